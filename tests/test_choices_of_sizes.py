"""What the compiler chooses by sizes asks what is known of them: a batch that is as large as something else of the
program, a number of classes or of features, when its size becomes a symbol, leaves no guard that ties the program to
it."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import funcgrad as fg


def looked_up_and_turned(x: Tensor, w: Tensor) -> Tensor:
    """What dies has the turned sizes of what is written in its place."""
    return w[:, x.argmax(1)].T.tanh().sum()


def recurrence(x: Tensor, w: Tensor) -> Tensor:
    """A reduction of as many elements as another one has rows."""
    transition, emission = w[:, :3].log_softmax(1), w.log_softmax(1)
    at = (x.abs() * 10).long() % 5
    alpha = w[:, 0].log_softmax(0) + emission[:, at[:, 0]].T
    for t in range(1, at.shape[1]):
        alpha = torch.logsumexp(alpha[:, :, None] + transition, 1) + emission[:, at[:, t]].T
    return -alpha.logsumexp(1).mean()


def classified(x: Tensor, w: Tensor) -> Tensor:
    hidden = torch.tanh(x @ w.T)
    return F.cross_entropy(hidden @ w[:, :3], torch.arange(len(x)) % 3) + hidden.T.square().sum()


@pytest.mark.parametrize("f", [looked_up_and_turned, recurrence, classified], ids=lambda f: f.__name__)
@pytest.mark.parametrize("transform", ["jit", "grad"])
def test_a_size_that_equals_another_one_now_ties_the_program_to_nothing(
    f: Callable[[Tensor, Tensor], Tensor], transform: str
) -> None:
    torch.manual_seed(0)
    compiled = fg.jit(f) if transform == "jit" else fg.grad_compiled(f, argnums=1)
    w = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    for batch in (2, 3, 4, 7, 5, 9):
        x = torch.randn(batch, 5, dtype=torch.float64)
        want = torch.autograd.grad(f(x, w), w)[0]
        got = torch.autograd.grad(compiled(x, w), w)[0] if transform == "jit" else compiled(x, w)
        torch.testing.assert_close(got, want)
    assert compiled.cache_info().misses == 2, compiled.explain_miss(x, w)


@pytest.mark.parametrize("in_a_row", [False, True])
def test_ctc_loss_serves_all_lengths_and_batches(in_a_row: bool) -> None:
    def loss(x: Tensor, y: Tensor) -> Tensor:
        here, there = torch.full((x.shape[1],), x.shape[0]), torch.full((x.shape[1],), 3)
        return F.ctc_loss(x.log_softmax(-1), y.flatten() if in_a_row else y, here, there)

    compiled = fg.jit(loss, backend="aten")
    for n in (2, 3, 4, 2):
        x = torch.randn(10 + n, n, 6, dtype=torch.float64, requires_grad=True)
        y = torch.randint(1, 6, (n, 3))
        value, wanted = compiled(x, y), loss(x, y)
        torch.testing.assert_close(value, wanted)
        torch.testing.assert_close(torch.autograd.grad(value, x), torch.autograd.grad(wanted, x))
    assert compiled.cache_info().misses == 2


def in_columns(x):
    return x[:, :2] * 3 if x.shape[1] % 2 == 1 else x * 2


def padded_to_four(x):
    rest = x.shape[1] % 4
    x = torch.nn.functional.pad(x, (0, 4 - rest)) if rest == 3 else x[:, : x.shape[1] - rest]
    return x.cumsum(1).reshape(x.shape[0], -1, 4).sum(1) * x.shape[1]


def in_halves(x):
    n = x.shape[1] // 2
    return torch.cat([x[:, :n].sin(), x[:, n:].cos()], 1) if x.shape[1] % 2 != 0 else x.unflatten(1, (2, n)).sum(1)


def test_what_is_left_over_when_a_size_is_divided():
    """A program that has asked for a remainder that is not zero must not take the size for a multiple."""
    for f, dynamic in itertools.product((in_columns, padded_to_four, in_halves), (None, True)):
        compiled, gradient = fg.jit(f, dynamic=dynamic), fg.grad_compiled(lambda x, f=f: f(x).square().sum())
        for n in (8, 5, 7, 11, 9, 12, 6, 10, 13, 15):
            x = torch.randn(3, n, dtype=torch.float64)
            torch.testing.assert_close(compiled(x), f(x))
            expected = torch.func.grad(lambda x, f=f: f(x).square().sum())(x)
            torch.testing.assert_close(gradient(x), expected)


def test_chunks_of_two_samples_of_an_odd_batch():
    doubled = fg.vmap_compiled(lambda x: x * 2, 1, chunk_size=2)
    for n in (4, 5, 7, 6, 9):
        x = torch.randn(3, n)
        torch.testing.assert_close(doubled(x), torch.vmap(lambda x: x * 2, 1)(x))
