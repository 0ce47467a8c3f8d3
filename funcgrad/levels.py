"""Tensors of levels of torch.func, and those that belong to none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor

from . import refusals
from .inside import set_to
from .torch_private.levels import BelowLevel, dual_parts, innermost_transform, outside_transforms, wrapping_level
from .torch_private.tensors import is_tracked_wrapper, is_transform_wrapper, wrapped_value

_level: ContextVar[int] = ContextVar("funcgrad_level", default=-1)


@contextlib.contextmanager
def outside_levels() -> Iterator[None]:
    """Inside, no transform runs, and it is known which one did."""
    with set_to(_level, innermost_transform()[1]), outside_transforms():
        yield


def level_of_call() -> int:
    """The level of torch.func at which a call compiles; -1: at none."""
    return _level.get()


def below_levels(value: Tensor) -> Tensor | None:
    """The numbers of a tensor, whatever levels differentiate it; None where a vmap has others of them for each
    sample."""
    while is_transform_wrapper(value):
        if not is_tracked_wrapper(value):
            return None
        value = wrapped_value(value)
    return value


def is_below(tensor: Tensor) -> bool:
    """Whether a tensor is none of a level of derivatives that runs innermost, nor of one around it up to the next
    vmap: it belongs to that vmap, or to no level."""
    return not (is_transform_wrapper(tensor) and is_tracked_wrapper(tensor))


def write_below(target: Tensor, value: Tensor) -> None:
    """Write the numbers of a value into a tensor that ``is_below``: a buffer under a gradient transform, which eager
    torch.func refuses. Raises ``MutationError`` where they are others in each sample of a batch, and it is one for
    all."""
    level = wrapping_level(target)
    while is_transform_wrapper(value) and wrapping_level(value) != level:
        if not is_tracked_wrapper(value):
            raise refusals.SHARED_BY_SAMPLES()
        value = wrapped_value(value)
    with contextlib.ExitStack() as below:
        while innermost_transform()[1] > level:
            below.enter_context(BelowLevel())
        target.detach().copy_(value.detach())


def write_dual(target: Tensor, value: Tensor, is_tracked: bool) -> None:
    """Write a value and its tangent into a tensor. One whose tangent is what it was has been written to through
    ``detach()``, which eager PyTorch's forward mode does not hear of, or by what does not change it."""
    before, after = dual_parts(target)[1], dual_parts(value)[1]
    is_kept = before is not None and after is not None and before.is_set_to(after)
    if is_kept and not (is_tracked and target.requires_grad):
        target.detach().copy_(value.detach())
    else:
        with contextlib.nullcontext() if is_tracked else torch.no_grad():
            target.copy_(value)
