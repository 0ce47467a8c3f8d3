"""Five steps of a real program, in two copies of its world: in one its function is compiled, in the other it is eager
PyTorch's.

After each step the value, the gradients of arguments and parameters, the buffers and the drawn numbers must be equal.
Parameters change between steps as an optimiser changes them, arguments with the step.
"""

import contextlib
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

import funcgrad as fg

STEPS = 5


@attrs.frozen
class World:
    """A function with what it works on: ``arguments(step)`` are made anew, by random numbers seeded with the step."""

    f: Callable[..., Tensor]
    arguments: Callable[[int], tuple[Any, ...]]
    modules: Sequence[nn.Module] = ()
    between: Callable[[int], None] | None = None
    """What happens after a step; by default a step of gradient descent."""

    def parameters(self) -> list[nn.Parameter]:
        return [p for module in self.modules for p in module.parameters()]

    def change(self, step: int) -> None:
        if self.between is not None:
            return self.between(step)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter -= 0.01 * parameter.grad


def check_steps(make: Callable[[], World], *, programs: int, rtol: float = 1e-4, atol: float = 1e-5) -> None:
    """Assert that the world goes through its steps as in eager PyTorch, in at most ``programs`` programs, and that
    its Python does not run again on a hit."""
    ours, eager = _made(make), _made(make)
    compiled = fg.jit(ours.f)
    for step in range(STEPS):
        want, got = _step(eager, eager.f, step), _step(ours, compiled, step)
        torch.testing.assert_close(
            got, want, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m, s=step: f"step {s}: {m}"
        )
    assert compiled.cache_info().misses <= programs
    with _runs(ours.f.__code__) as runs:
        _step(ours, compiled, STEPS - 1)
    assert not runs, "Python ran again on a hit"


def _made(make: Callable[[], World]) -> World:
    torch.manual_seed(0)
    return make()


def _step(world: World, f: Callable[..., Tensor], step: int) -> list[Tensor]:
    """One step, and all that can be seen of it."""
    torch.manual_seed(step)
    arguments = world.arguments(step)
    for parameter in world.parameters():
        parameter.grad = None
    value = f(*arguments)
    if value.requires_grad:
        value.sum().backward()
    seen = [value.detach(), torch.rand(1)]  # the generator goes on from the same place
    seen += [a.grad for a in arguments if isinstance(a, Tensor) and a.grad is not None]
    seen += [torch.zeros(0) if p.grad is None else p.grad.clone() for p in world.parameters()]
    world.change(step)
    return seen + [b.clone() for module in world.modules for b in module.buffers()]


@contextlib.contextmanager
def _runs(code: types.CodeType) -> Iterator[list[str]]:
    """How often Python runs a function, heard of by a profile function, which no compiled program sees."""
    runs: list[str] = []

    def heard(frame: types.FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code is code:
            runs.append(code.co_name)

    before = sys.getprofile()
    sys.setprofile(heard)
    try:
        yield runs
    finally:
        sys.setprofile(before)
