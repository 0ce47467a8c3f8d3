"""The law of ``hooks.py``, on programs that are the same in each run of the tests."""

import pytest

from . import hooks


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_hooks_see_what_they_see_in_eager(first):  # S3-50, S0-12, S3-69
    for seed in range(first, first + 50):
        hooks.check(seed, backend="aten")


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_hooks_around_compiled_regions(first):
    for seed in range(first, first + 20):
        hooks.check(seed, regions=True, backend="aten")


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_hooks_of_wrapper_subclasses(first):
    for seed in range(first, first + 20):
        hooks.check(seed, wrapped=True, backend="aten")


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_hooks_of_sparse_gradients(first):
    for seed in range(first, first + 20):
        hooks.check(seed, times=4, sparse=True, backend="aten")
