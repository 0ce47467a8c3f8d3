"""The law of ``hooks.py``, on programs that are the same in each run of the tests."""

import pytest
import torch

import funcgrad as fg

from . import hooks


@pytest.mark.parametrize("first", [*range(0, 200, 50), *(pytest.param(n, marks=pytest.mark.long) for n in (200, 250))])
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


def test_order_where_gradients_are_asked_for_of_some_leaves():
    """``backward(inputs=…)`` adds up, and the engine numbers nodes as in a pass without it."""

    def passes():
        log, leaves = [], [torch.ones(3, requires_grad=True) for _ in range(3)]
        first, second = [leaves[0].exp()], [leaves[1].exp() * leaves[2]]
        for _ in range(3):  # what was made last runs first
            first.append(first[-1].sin())
            second.append(second[-1].cos())
        for i, pair in enumerate(zip(first, second, strict=True)):
            for v, name in zip(pair, "ab", strict=True):
                v.register_hook(lambda g, name=name, i=i: log.append((name, i)))
        loss = (first[-1] * second[-1]).sum()
        loss.backward(inputs=leaves[:2])
        assert leaves[2].grad is None
        return log

    wanted = passes()
    with fg.compiled_autograd(backend="aten"):
        assert [passes() for _ in range(3)] == [wanted] * 3
