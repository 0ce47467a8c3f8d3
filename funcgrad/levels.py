"""Tensors of levels of torch.func, and those that belong to none."""

from __future__ import annotations

from torch import Tensor

from .errors import MutationError
from .torch_private import is_tracked_wrapper, is_transform_wrapper, outside_transforms, wrapped_value


def write_below(target: Tensor, value: Tensor) -> None:
    """Write the numbers of a value into a tensor that belongs to no level: a buffer under a gradient transform, which eager torch.func
    refuses. Raises ``MutationError`` where they are others in each sample of a batch."""
    if not is_transform_wrapper(value):  # the level is one of torch.autograd.forward_ad
        target.copy_(value)
        return
    while is_transform_wrapper(value):
        if not is_tracked_wrapper(value):
            raise MutationError(
                "the function writes to a tensor that all samples of a vmap share, and each sample would write other values",
                fix="pass the tensor as an argument with a batch dimension, or return what is to be written",
            )
        value = wrapped_value(value)
    with outside_transforms():
        target.detach().copy_(value.detach())
