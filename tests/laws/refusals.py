"""What compiled functions say of random programs that they do not carry out, and of how many programs they may say it.

A refusal by name where eager PyTorch runs is no difference, but it is counted: a run fails in which a reason is given
more often than it was. The figures may only shrink. What a refusal says that is not named here is a difference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

CEILINGS: dict[str, float] = {
    # of leaves and histories
    "which would go on through the history": 32,
    "that is computed outside, and has it retained": 1,
    "(.backward() inside, .grad =, requires_grad_())": 61,
    "that was computed or used, under no_grad": 41,
    "or gives it other memory, and asks for its gradient": 46,
    "of an input that is a view itself": 16,
    "and switches requires_grad (requires_grad_()) of it": 6,
    "returns a leaf it made itself": 1,
    "returns a view taken under no_grad of what it detached": 1,
    "switches requires_grad off (requires_grad_())": 2,
    "that it made the gradient of": 3,
    "which keeps its gradient (retain_grad()), beside": 1,
    "that goes to a leaf it made itself": 1,
    "goes on through the history of an input to a leaf": 1,
    "depends on a leaf it made itself (requires_grad_() inside), and": 1,
    # of other memory
    "with a history other memory, or one to it (set_)": 35,
    "other memory (.data =, set_, resize_, out=) and": 99,
    "that requires grad other memory of another kind": 13,
    "a view that autograd forbids to use once its base was written to": 19,
    "resizes a tensor in place to memory that lies around it": 46,
    "after it was used, and goes back through what used it": 10,
    "to a view of it, or to what it is a view of": 10,
    "gives a tensor that requires grad other memory (out=)": 19,
    "resizes other memory that it gave a tensor": 3,
    "gives a tensor other memory in two ways": 3,
    "to a transposed layout": 1,
    # of memory that overlaps
    "writes to memory it reads elsewhere": 5,
    "writes to memory that overlaps itself": 1,
    "writes to memory around a tensor": 3,
    "several elements of which are one in memory, what requires grad": 1,
}
"""Part of what a refusal says → of how many programs in 10,000 it is said at most."""

STRIDED_CEILINGS = dict.fromkeys(CEILINGS, 1) | {
    "writes to memory that overlaps itself": 400,
    "writes to memory it reads elsewhere": 105,
    "several elements of which are one in memory, what requires grad": 60,
    "that was computed or used, under no_grad": 25,
    "writes to memory around a tensor": 15,
    "or gives it other memory, and asks for its gradient": 5,
}
"""The same for programs that are made to overlap."""


def reason_of(error: str) -> str | None:
    """The reason that a refusal gives; None for any other error."""
    return next((reason for reason in CEILINGS if reason in error), None)


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
