"""What is derived from bodies of control flow: their derivatives and their batched forms, as functions of tensors
again."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

Function = Callable[..., Sequence[Tensor]]
Gradients = Sequence[Tensor | None]


def _of(
    body: Function, values: Sequence[Tensor], at: Sequence[int], results: Sequence[int]
) -> Callable[..., tuple[Tensor, ...]]:
    """The results at some places, as a function of the operands at some places."""

    def function(*some: Tensor) -> tuple[Tensor, ...]:
        every = dict(enumerate(values)) | dict(zip(at, some, strict=True))
        outs = body(*every.values())
        return tuple(outs[i] for i in results)

    return function


def pull(
    body: Function, values: Sequence[Tensor], at: Sequence[int], results: Sequence[int], cotangents: Sequence[Tensor]
) -> Sequence[Tensor]:
    if not at:
        return ()
    made = torch.func.vjp(_of(body, values, at, results), *(values[i] for i in at))
    found: Sequence[Tensor] = made[1](tuple(cotangents))
    return found


def push(
    body: Function, values: Sequence[Tensor], at: Sequence[int], results: Sequence[int], tangents: Sequence[Tensor]
) -> Sequence[Tensor]:
    if not results:
        return ()
    if not at:
        return [torch.zeros_like(t) for t in _of(body, values, at, results)()]
    # a rule of forward mode runs with grad mode off: a body that is itself a derivative would be one that has none, of
    # what forward saved (the LU factors of a solve)
    with torch.enable_grad():
        made = torch.func.jvp(_of(body, values, at, results), tuple(values[i] for i in at), tuple(tangents))
    found: Sequence[Tensor] = made[1]
    return found


def vmapped(body: Function, at: tuple[int | None, ...], size: int, randomness: str) -> Function:
    if all(d is None for d in at):  # only what it is chosen by is batched
        return lambda *values: tuple(t.expand(size, *t.shape) for t in body(*values))
    return torch.vmap(lambda *values: tuple(body(*values)), at, 0, randomness)


def is_differentiable(tensor: Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def or_zeros(derivative: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if derivative is None else derivative


def spread(n: int, places: Sequence[int], values: Sequence[Tensor]) -> Gradients:
    found = dict(zip(places, values, strict=False))
    return [found.get(i) for i in range(n)]


def in_batch(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    batched = tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)
    return batched.contiguous()


def beside(condition: Tensor, value: Tensor) -> Tensor:
    return condition.reshape(*condition.shape, *[1] * (value.ndim - condition.ndim))
