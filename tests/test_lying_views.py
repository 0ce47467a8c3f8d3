"""Sizes that vary of tensors that lie in larger ones, or share memory with one another: two programs serve them all."""

from __future__ import annotations

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import funcgrad as fg


def assert_same_tensor(found: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(found, wanted)
    assert found.stride() == wanted.stride()


LENGTHS = (7, 9, 12, 5, 8)


def _parts(length: int) -> dict[str, tuple[Tensor, ...]]:
    t = torch.randn(4, length, 6, dtype=torch.float64)
    return {
        "next token": (t[:, :-1], t[:, 1:]),
        "one of both": (t[:, 1:], t[:, 1:].contiguous()),
        "rows": (t[1:].transpose(0, 1), t[:3].transpose(0, 1)),
        "halves": t.chunk(2, 2),
        "every other": (t[:, 1::2], t[:, : t[:, 1::2].shape[1]]),
        "a tensor and a part": (t[:, 0], t[:, 1]),
        "of two tensors": (t[:, 1:], torch.randn(4, 2 * length, 6, dtype=torch.float64)[:, : length - 1]),
    }


FUNCTIONS = {
    "pointwise": lambda x, y: (x.sin() * y).sum(),
    "product": lambda x, y: (x @ y.mT).tanh().sum(),
    "softmax": lambda x, y: (x.softmax(1) * y.cumsum(0)).mean(),
    "views": lambda x, y: (x.reshape(-1) * y.flatten()).sum() + x[1:].exp().sum(),
    "strides": lambda x, y: (x * x.stride(0) - y / y.stride(0)).sum(),
}


@pytest.mark.parametrize("case", _parts(5))
@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_few_programs_serve_all_sizes(function, case):
    eager = torch.func.grad_and_value(function, argnums=(0, 1))
    gradient, differentiable = fg.value_and_grad_compiled(function, argnums=(0, 1)), fg.jit(function)
    for length in LENGTHS:
        x, y = _parts(length)[case]
        wanted, value = eager(x, y)
        torch.testing.assert_close(gradient(x, y), (value, wanted))
        x, y = x.detach().requires_grad_(), y.detach().requires_grad_()
        torch.testing.assert_close(torch.autograd.grad(differentiable(x, y), (x, y)), wanted)
    # of even lengths one stride times its size is the next one, and a product folds the batch without a copy
    programs = 3 if (function, case) == (FUNCTIONS["product"], "every other") else 2
    assert gradient.cache_info().misses == differentiable.cache_info().misses == programs


def test_a_part_of_one_size_of_tensors_of_many():
    c = fg.jit(lambda x: (x * 2, x.stride(0)))
    for length in LENGTHS:
        x = torch.randn(4, length, 3)[:, :4]
        found, stride = c(x)
        assert_same_tensor(found, x * 2)
        assert stride == length * 3
    assert c.cache_info().misses == 2


def test_another_order_of_dimensions_is_another_program():
    c = fg.jit(lambda x: x * 2)
    for x in (torch.randn(4, 6), torch.randn(6, 4).T, torch.randn(4, 6), torch.randn(6, 4).T):
        assert_same_tensor(c(x), x * 2)
    assert c.cache_info().misses == 2


def test_what_is_written_to_is_for_its_sizes():
    """Where in one another's memory they lie is part of the program."""

    def write(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y.sum()

    c = fg.jit(write, dynamic=False)
    for length in LENGTHS:
        memory = torch.randn(length, 6)
        own = memory.clone()
        torch.testing.assert_close(c(memory[1:], memory[:-1]), write(own[1:], own[:-1]))
        torch.testing.assert_close(memory, own)


def test_parts_that_are_one_object_are_told_from_parts_that_are_not():
    c = fg.jit(lambda x, y: (x is y, x + y))
    t = torch.randn(5, 3)
    part = t[1:]
    assert c(part, part)[0] is True
    assert c(t[1:], t[1:])[0] is False
    assert c(part, part)[0] is True
    assert c(t[1:], t[:-1])[0] is False
    assert c.cache_info().misses == 2
    part, other = torch.randn(7, 3)[1:], torch.randn(7, 3)
    assert c(part, part)[0] is True
    assert c(other[1:], other[:-1])[0] is False


@st.composite
def _geometries(draw):
    """Slices, along each dimension, of tensors whose first two sizes differ from call to call."""
    cuts = [(draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.integers(1, 2))) for _ in range(3)]
    order = draw(st.permutations(range(3)))
    sizes = draw(st.lists(st.tuples(st.integers(6, 9), st.integers(6, 9)), min_size=3, max_size=4))
    return cuts, order, sizes


@settings(max_examples=6, deadline=None)
@given(_geometries(), st.sampled_from([*FUNCTIONS.values()]), st.booleans())
def test_any_part(geometry, function, both):
    cuts, order, sizes = geometry

    def part(t: Tensor) -> Tensor:
        index = [slice(begin, n - end, step) for (begin, end, step), n in zip(cuts, t.shape, strict=True)]
        return t[tuple(index)].permute(order)

    c = fg.jit(torch.func.grad(function, argnums=(0, 1)))
    for rows, columns in sizes:
        x = part(torch.randn(rows, columns, 7, dtype=torch.float64))
        y = x[:] if both else part(torch.randn(rows, columns, 7, dtype=torch.float64))
        torch.testing.assert_close(c(x, y), torch.func.grad(function, argnums=(0, 1))(x, y))


@pytest.mark.parametrize("part", [lambda t: t[:, :-1], lambda t: t[..., :3], lambda t: t[:, ::2].transpose(0, 1)])
def test_a_captured_backward_pass_of_parts(part):
    """Strides of what autograd has saved."""

    def gradients(length: int, captured: bool) -> tuple[Tensor, ...]:
        torch.manual_seed(length)
        x = part(torch.randn(4, length, 6, dtype=torch.float64)).detach().requires_grad_()
        w = torch.randn(x.shape[-1], 3, dtype=torch.float64, requires_grad=True)
        loss = (x.sin() @ w).square().sum() + (x * x).sum()
        with fg.compiled_autograd() if captured else contextlib.nullcontext():
            loss.backward()
        return x.grad, w.grad

    for length in LENGTHS:
        torch.testing.assert_close(gradients(length, True), gradients(length, False))


def test_what_a_program_assumes_of_strides_is_written_as_they_are_asked_for():
    c = fg.jit(lambda x: x * 2)
    for length in (7, 9):
        c(torch.randn(4, length)[:, 1:])
    page = str(c.explain(torch.randn(4, 9)[:, 1:]))
    assert "x.stride(0) != x.shape[1]" in page and "float32[4, x.shape[1]]" in page
