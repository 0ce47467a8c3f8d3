"""Tensors of levels of torch.func, and those that belong to none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from torch import Tensor

from .errors import MutationError
from .torch_private.levels import innermost_transform, outside_transforms
from .torch_private.tensors import is_tracked_wrapper, is_transform_wrapper, wrapped_value

_level: ContextVar[int] = ContextVar("funcgrad_level", default=-1)


@contextlib.contextmanager
def outside_levels() -> Iterator[None]:
    """Inside, no transform runs, and it is known which one did."""
    token = _level.set(innermost_transform()[1])
    try:
        with outside_transforms():
            yield
    finally:
        _level.reset(token)


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


def write_below(target: Tensor, value: Tensor) -> None:
    """Write the numbers of a value into a tensor that belongs to no level: a buffer under a gradient transform,
    which eager torch.func refuses. Raises ``MutationError`` where they are others in each sample of a batch."""
    if not is_transform_wrapper(value):  # the level is one of torch.autograd.forward_ad
        target.copy_(value)
        return
    while is_transform_wrapper(value):
        if not is_tracked_wrapper(value):
            raise MutationError(
                "the function writes to a tensor that all samples of a vmap share, and each sample would write other "
                "values",
                fix="pass the tensor as an argument with a batch dimension, or return what is to be written",
            )
        value = wrapped_value(value)
    with outside_transforms():
        target.detach().copy_(value.detach())
