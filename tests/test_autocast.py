"""What a backward pass sees of autocast."""

import contextlib
import queue
import warnings

import pytest
import torch

import funcgrad as fg

NOTED = queue.SimpleQueue()
"""Nothing watches it: what a backward pass writes to Python state is refused, or undone."""


def noted():
    """What was noted last."""
    return [NOTED.get_nowait() for _ in range(NOTED.qsize())][-1]


class Product(torch.autograd.Function):
    """Its backward notes the dtype autocast gives a matrix product."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        product = g.float() @ w.float().t()
        NOTED.put(product.dtype)
        return product.float(), x.float().t() @ g.float()


def loss(x, w):
    return Product.apply(x, w).float().sum()


CASES = [
    ("off", torch.float32),
    ("same_as_forward", torch.bfloat16),
    ([{"device_type": "cpu", "dtype": torch.float16}], torch.float16),
]


@pytest.mark.parametrize("transform", [fg.jit, fg.grad_compiled])
@pytest.mark.parametrize("option, dtype", CASES)
def test_a_custom_backward_sees_the_autocast_it_was_given(transform, option, dtype):  # S1-13
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16), warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", fg.UnwatchedStateWarning)  # what it notes in
        transform(loss, backward_autocast=option)(x, w)
    assert noted() is dtype


@pytest.mark.parametrize("option, dtype", CASES)
def test_gradients_equal_eager_under_the_same_autocast(option, dtype):  # S1-13
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, found = loss(x, w), fg.jit(loss, backward_autocast=option)(x, w)
    torch.testing.assert_close(found, expected)
    with torch.autocast(
        "cpu", dtype=dtype if dtype is not torch.float32 else torch.bfloat16, enabled=dtype is not torch.float32
    ):
        wanted = torch.autograd.grad(expected, [x, w])
    torch.testing.assert_close(torch.autograd.grad(found, [x, w]), wanted)


def test_unsaid_is_off_with_a_warning_where_autocast_is_on():  # S1-14
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(fg.AutocastWarning, match="backward_autocast"):
        fg.jit(loss)(x, w)
    assert noted() is torch.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fg.jit(loss)(x, w)  # autocast is off: there is nothing to say
        with torch.autocast("cpu", dtype=torch.bfloat16):
            fg.jit(lambda x: x @ x)(w)  # nothing is differentiated
            fg.jit(lambda x: (x @ x).sum())(x)  # nothing asks for it
            fg.grad_compiled(lambda x: (x @ x).sum())(w)


def test_backward_is_called_under_autocast():
    """A program's backward half has the casts of its graph, and no others: its kernels were made for these dtypes."""
    torch.manual_seed(0)
    x, w = torch.randn(8, 64, requires_grad=True), torch.randn(64, 64)

    def f(x, w):
        return (x.sin() @ w).sin()

    (wanted,) = torch.autograd.grad(f(x, w).sum(), x)
    for step in (contextlib.nullcontext, fg.compiled_autograd):
        found = fg.jit(f)(x, w).sum()
        with step(), torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(torch.autograd.grad(found, x)[0], wanted)
