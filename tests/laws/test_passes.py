"""The law of ``passes.py``, on programs that are the same in each run of the tests."""

import pytest

from .passes import VARIANTS, check


@pytest.mark.sweep(2)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(0, 60, 10))
@pytest.mark.parametrize("kind", VARIANTS)
def test_passes_from_some_of_the_results(kind, first):
    for seed in range(first, first + 10):
        assert check(seed, **VARIANTS[kind]) == ""
