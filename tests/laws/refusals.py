"""What compiled functions say of random programs that they do not carry out, and of how many programs they may say it.

A refusal by name where eager PyTorch runs is no difference, but it is counted: a run fails in which a reason is given
more often than it was. The figures may only shrink. What is refused by a row that is not named here is a difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from funcgrad.refusals import REFUSALS

CEILINGS: dict[str, float] = {
    # of leaves and histories
    "ONWARD ONWARD_CREATE_GRAPH ONWARD_TO_BASE ONWARD_WITH_FAULTS": 10,
    "RETAINED_OUTSIDE": 1,
    "GRADIENT_OF_INPUT HOOKED_GRADIENT_OF_INPUT VIEW_SWITCHED_AND_RESTRIDED": 20,
    "RESTRIDED_AFTER_USE": 22,
    "RESTRIDED_AND_ASKED": 3,
    "SWITCHED_TOO_LATE": 6,
    "RETURNS_OWN_LEAF": 1,
    "RETURNS_NO_GRAD_VIEW": 1,
    "SWITCHED_OFF_WITH_VIEW SWITCHED_OFF_BASE": 2,
    "RETURNS_RETAINED": 1,
    "WRITES_IN_BACKWARD_OF_OWN_LEAF": 1,
    "ONWARD_TO_OWN_GRADIENT": 1,
    "BACKWARD_OF_OWN_LEAF": 1,
    # of other memory
    "HISTORY_REUSED HISTORY_GIVEN": 35,
    "OTHER_MEMORY": 70,
    "MEMORY_OF_OTHER_KIND": 13,
    "MEMORY_OF_STALE_VIEW": 1,
    "RESIZED_AROUND": 20,
    "MEMORY_AFTER_USE": 10,
    "MEMORY_AND_WRITES": 7,
    "OUT_REQUIRES_GRAD": 7,
    "RESIZES_GIVEN": 3,
    "MEMORY_IN_TWO_WAYS": 3,
    "OUT_TRANSPOSED": 1,
    # of memory that overlaps
    "WRITES_WHAT_IT_READS": 5,
    "OVERLAPS_ITSELF OVERLAPS_ITSELF_TRACKED": 1,
    "AROUND_A_VIEW": 1,
    "TRACKED_ONTO_ITSELF": 1,
}
"""Rows of ``funcgrad.refusals``, by name → of how many programs in 10,000 they are refused at most."""

STRIDED_CEILINGS = dict.fromkeys(CEILINGS, 1) | {
    "OVERLAPS_ITSELF OVERLAPS_ITSELF_TRACKED": 400,
    "WRITES_WHAT_IT_READS": 105,
    "TRACKED_ONTO_ITSELF": 60,
    "RESTRIDED_AFTER_USE": 25,
    "AROUND_A_VIEW": 15,
    "RESTRIDED_AND_ASKED": 5,
}
"""The same for programs that are made to overlap."""


NAMES = {row: name for name, row in REFUSALS.items()}


def reason_of(error: BaseException) -> str | None:
    """The refusals among which an error is counted; None for any other error."""
    name = NAMES.get(getattr(error, "refusal", None))
    return next((names for names in CEILINGS if name in names.split()), None)


def above(refused: Mapping[str, int], n: int, ceilings: Mapping[str, float] = CEILINGS) -> list[str]:
    """What is refused more often than it may be in ``n`` programs: by more than four standard deviations of what is
    chance."""
    counts = {"any of them": sum(refused.values()), **refused}
    allowed = {"any of them": sum(ceilings.values()), **ceilings}
    return [
        f"{count} of {n} programs are refused, {expected:.1f} may be: … {reason} …"
        for reason, count in counts.items()
        if count > (expected := allowed.get(reason, 0) * n / 10_000) + 4 * math.sqrt(max(expected, 1))
    ]
