"""The caller's tensors, before and after a differentiable call: how autograd is told of them, that they are what they
were, and what backward writes to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..autograd_state import has_hooks, is_leaf, version_of
from ..capture.views import Step, take
from ..subclasses import overwrite
from ..torch_private.autograd import versions_kept
from ..torch_private.tensors import is_wrapper_subclass


def is_heard(tensor: Tensor | None) -> bool:
    """Whether Python may hear of the gradient that goes on to an input: not where that is a leaf without hooks."""
    return tensor is None or not is_leaf(tensor) or has_hooks(tensor)


def ahead(leaf: Any, steps: Sequence[Step]) -> Any:
    """A leaf as it looks now, connected to autograd as it will look: who connects it fixes the sizes of its
    gradient."""
    if not steps:
        return leaf.detach().requires_grad_(leaf.requires_grad)  # results require grad though nothing comes back to it
    if not (leaf.requires_grad and is_leaf(leaf)):
        return leaf
    now = leaf.detach()
    _look_like(leaf, take(now, steps))
    try:
        with torch.enable_grad():
            return leaf.as_strided(now.shape, now.stride(), now.storage_offset())
    finally:
        _look_like(leaf, now)


def _look_like(leaf: Tensor, other: Tensor) -> None:
    with torch.no_grad(), versions_kept(leaf):
        leaf.as_strided_(other.shape, other.stride(), other.storage_offset())


def require_versions(expected: Iterable[tuple[Tensor, int]]) -> None:
    """``RuntimeError``, as in eager PyTorch, where a tensor is of another version than expected."""
    for value, version in expected:
        if version_of(value) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                "tensor of shape "
                f"{list(value.shape)} is at version {value._version}; expected version {version} instead"
            )


def write_back(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """What backward writes to tensors."""
    for target, value in zip(targets, values, strict=True):
        _write(target, value)


def _write(target: Tensor, value: Tensor) -> None:
    if is_wrapper_subclass(target):
        overwrite(target, value)
        return
    for d, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:  # expanded: written once
            target, value = target.narrow(d, 0, 1), value.narrow(d, 0, 1)
    target.copy_(value)
