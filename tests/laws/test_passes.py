"""The law of ``passes.py``, on programs that are the same in each run of the tests."""

import pytest

from .passes import VARIANTS, check

SEEDS = [(kind, first) for kind in VARIANTS for first in range(0, 3 if kind in ("c", "sizes") else 18, 3)]


@pytest.mark.sweep(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("kind", "first"), SEEDS)
def test_passes_from_some_of_the_results(kind, first):
    for seed in range(first, first + 3):
        assert check(seed, **VARIANTS[kind]) == ""
