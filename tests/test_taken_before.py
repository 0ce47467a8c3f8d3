"""Functions of torch that the caller's code has taken before it is traced: ``square = Square.apply``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import funcgrad as fg


class Scaled(torch.autograd.Function):
    """A product with derivatives that are not its own, so that it matters who computes them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, w = ctx.saved_tensors
        return g * w * 2, (g * x * 3 if ctx.needs_input_grad[1] else None)


class Squared(torch.autograd.Function):
    """A square with another derivative, at every level of ``torch.func``."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x


WEIGHT = torch.nn.Parameter(torch.tensor([2.0, 1.0, 4.0]))
scaled, squared = Scaled.apply, Squared.apply
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "of an argument": lambda x: scaled(x, x.detach() + 1),
    "of a parameter": lambda x: scaled(x, WEIGHT),
    "of a parameter alone": lambda x: squared(WEIGHT) * x,
    "of both, twice": lambda x: scaled(squared(x), WEIGHT) * squared(WEIGHT),
}


def gradients(f: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    WEIGHT.grad = None
    own = x.clone().requires_grad_()
    f(own).sum().backward()
    return own.grad, WEIGHT.grad


def second(f: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    own = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(f(own).sum(), own, create_graph=True)
    return first, torch.autograd.grad(first.sum(), own, allow_unused=True) if first.requires_grad else None


def at_level(f: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    return torch.func.grad(lambda x: f(x).sum())(x)


@pytest.mark.parametrize("of", FUNCTIONS)
@pytest.mark.parametrize("how", [gradients, second, lambda f, x: f(x)], ids=["backward", "twice", "values"])
def test_a_custom_function_by_a_method_taken_before(
    of: str, how: Callable[[Callable[[Tensor], Tensor], Tensor], Any]
) -> None:
    compiled = fg.jit(FUNCTIONS[of])
    for scale in (1.0, 0.5):
        x = torch.tensor([0.5, -1.0, 2.0]) * scale
        torch.testing.assert_close(how(compiled, x), how(FUNCTIONS[of], x))


def test_it_is_heard_of_in_the_whole_pass_that_is_compiled() -> None:
    f = FUNCTIONS["of both, twice"]
    compiled = fg.jit(lambda x: gradients(f, x))
    for scale in (1.0, 0.5):
        x = torch.tensor([0.5, -1.0, 2.0]) * scale
        torch.testing.assert_close(compiled(x), gradients(f, x))


class Counts:
    def __init__(self) -> None:
        self.n, self.last = 0, torch.zeros(3)


def counted(own: Counts, x: Tensor) -> Tensor:
    own.n = 2 * own.n + 1
    return (squared(x) * own.n).sum()


def stored(own: Counts, x: Tensor) -> Tensor:
    own.last = own.last + 1
    return (squared(x) * own.last).sum()


def kept(own: Counts, x: Tensor) -> Tensor:
    own.last = squared(x).detach()
    return (squared(x) * own.last).sum()


LEVELS: dict[str, Callable[[Callable[[Tensor], Tensor], Tensor], Any]] = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "grad of grad": lambda f, x: torch.func.grad(lambda x: torch.func.grad(f)(x).sum())(x),
    "vmap of grad": lambda f, x: torch.vmap(torch.func.grad(f))(torch.stack([x, 2 * x])),
    "jacrev": lambda f, x: torch.func.jacrev(f)(x),
}


@pytest.mark.parametrize(
    "f, level",
    [(f, level) for f in (counted, stored, kept) for level in LEVELS if f is counted or " of " not in level],
)  # what eager PyTorch keeps of two levels it cannot read afterwards
def test_a_custom_derivative_beside_what_is_stored_at_a_level(
    f: Callable[[Counts, Tensor], Tensor], level: str
) -> None:
    """The function runs again where it is differentiated: its graph would not know the derivative."""
    ours, theirs = Counts(), Counts()
    compiled = fg.jit(f)
    for i in range(4):
        x = torch.tensor([0.5, -1.0, 2.0]) + i
        found = LEVELS[level](lambda x: compiled(ours, x), x)
        torch.testing.assert_close(found, LEVELS[level](lambda x: f(theirs, x), x))
        assert ours.n == theirs.n
        torch.testing.assert_close(ours.last, theirs.last)
