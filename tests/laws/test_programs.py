"""Random programs that alias and mutate do in a compiled function what they do in eager PyTorch: the first ones, on
every run.

``make fuzz`` runs more of them, on all cores.
"""

from collections import Counter

import pytest

import funcgrad as fg
from funcgrad.refusals import REFUSALS

from .programs import KINDS, STRIDED, report
from .refusals import CEILINGS, STRIDED_CEILINGS, above, reason_of

EACH = 50
MORE = [pytest.param(first, marks=pytest.mark.long) for first in (200, 250)]


@pytest.mark.parametrize("first", [*range(0, 200, EACH), *MORE])
def test_random_programs_do_what_eager_does(first):
    require_agreement(first, EACH, KINDS, CEILINGS)


@pytest.mark.parametrize("first", range(0, 100, EACH))
def test_random_programs_with_memory_that_overlaps_itself_do_what_eager_does(first):
    require_agreement(first, EACH, STRIDED, STRIDED_CEILINGS)


def require_agreement(first, n, kinds, ceilings):
    refused = Counter()
    found = [text for seed in range(first, first + n) if (text := report(seed, refused, kinds)) is not None]
    assert not found, "\n\n".join(found)
    assert not above(refused, n, ceilings)


def test_a_reason_given_more_often_than_it_was_is_found():
    reason, ceiling = max(CEILINGS.items(), key=lambda item: item[1])  # of the others twice as many may be chance
    usual = round(10_000 * ceiling / 10_000)
    assert not above({reason: usual}, 10_000)
    assert reason in above({reason: 2 * usual}, 10_000)[0]
    assert any("a new one" in line for line in above({"a new one": 10}, 100))
    assert any("any of them" in line for line in above({reason: sum(CEILINGS.values()) * 2}, 10_000))


def test_ceilings_are_those_of_refusals():
    names = [name for names in CEILINGS for name in names.split()]
    assert set(names) <= REFUSALS.keys() and len(set(names)) == len(names), "one ceiling hides another"
    assert all(reason_of(REFUSALS[name](*"abcdef")) is not None for name in names)
    assert reason_of(fg.MutationError(REFUSALS[names[0]].what)) is None
    assert STRIDED_CEILINGS.keys() == CEILINGS.keys()
