"""Wrapper subclasses: tensors made of other tensors, by the protocol ``__tensor_flatten__`` / ``__tensor_unflatten__``.

Autograd knows the outer tensor; a graph knows the plain *inner tensors* at the bottom of it. What lies between is a
``Wrapping``: the types, the attributes that hold the inner tensors, and the metadata.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import torch
from attrs import frozen
from torch import Tensor

from .autograd_state import bump_version, view_base
from .slots import Slot, inner_slot
from .torch_private.autograd import below_autograd
from .torch_private.functional import FunctionalTensor
from .torch_private.tensors import is_wrapper_subclass

HowWritten = Literal["plain", "detached", "unversioned"]
"""Tracked by autograd (where it tracks anything), with the version counter alone, or without autograd's knowledge
(``.data``)."""


@frozen(eq=False)
class Wrapping:
    """How a wrapper subclass is made of its inner tensors: what ``__tensor_flatten__`` tells, without the tensors.

    ``inner`` are the attributes that hold tensors, each with its own wrapping (None: a plain tensor); ``others`` those
    that do not (a DTensor's device mesh).
    """

    kind: Any
    inner: tuple[tuple[str, Wrapping | None], ...]
    others: tuple[tuple[str, Any], ...]
    context: Any
    size: torch.Size
    stride: tuple[int, ...]

    @staticmethod
    def of(tensor: Any) -> Wrapping | None:
        """The wrapping of a tensor; None for any that is no wrapper subclass."""
        if not is_wrapper_subclass(tensor):
            return None
        names, context = tensor.__tensor_flatten__()
        values = {name: getattr(tensor, name) for name in names}
        inner = tuple((name, Wrapping.of(value)) for name, value in values.items() if isinstance(value, Tensor))
        others = tuple((name, value) for name, value in values.items() if not isinstance(value, Tensor))
        return Wrapping(type(tensor), inner, others, context, tensor.shape, tuple(tensor.stride()))

    def build(self, inner: Iterator[Any]) -> Tensor:
        """A tensor made of these inner tensors."""
        values = {name: next(inner) if wrapping is None else wrapping.build(inner) for name, wrapping in self.inner}
        made: Tensor = self.kind.__tensor_unflatten__(values | dict(self.others), self.context, self.size, self.stride)
        return made

    def paths(self) -> list[tuple[str, ...]]:
        """The attributes that lead to each plain tensor at the bottom."""
        return [
            (name, *rest) for name, wrapping in self.inner for rest in ([()] if wrapping is None else wrapping.paths())
        ]

    def fits(self, other: Wrapping | None) -> bool:
        """Whether two tensors are made the same way, whatever their strides."""
        if other is None or (self.kind, self.size, self.others) != (other.kind, other.size, other.others):
            return False
        if self.context != other.context or [name for name, _ in self.inner] != [name for name, _ in other.inner]:
            return False
        pairs = [(own, its) for (_, own), (_, its) in zip(self.inner, other.inner, strict=True)]
        return all(own is its is None or (own is not None and own.fits(its)) for own, its in pairs)

    def __str__(self) -> str:
        return f"{self.kind.__name__} of {', '.join(name for name, _ in self.inner)}"


def inner_tensors(tensor: Tensor) -> list[Tensor]:
    """The plain tensors at the bottom of a tensor; a plain tensor is its own."""
    return [t for t in with_inner(tensor) if not is_wrapper_subclass(t)]


def with_inner(tensor: Tensor) -> list[Tensor]:
    """A tensor, and those it is made of, each before its own."""
    if not is_wrapper_subclass(tensor):
        return [tensor]
    held = [getattr(tensor, name) for name in tensor.__tensor_flatten__()[0]]  # type: ignore[attr-defined]
    return [tensor, *(t for value in held if isinstance(value, Tensor) for t in with_inner(value))]


def parts(slot: Slot, tensor: Tensor) -> list[tuple[Slot, Tensor]]:
    """The plain tensors at the bottom of the value of a slot, under slots of their own."""
    wrapping = Wrapping.of(tensor)
    if wrapping is None:
        return [(slot, tensor)]
    return [
        (inner_slot(slot, path), inner) for path, inner in zip(wrapping.paths(), inner_tensors(tensor), strict=True)
    ]


def is_traced(value: Any) -> bool:
    """Whether a value is a tensor of a trace: functional, or made of functional tensors."""
    if isinstance(value, FunctionalTensor):
        return True
    return is_wrapper_subclass(value) and any(isinstance(inner, FunctionalTensor) for inner in inner_tensors(value))


class _Overwrite(torch.autograd.Function):
    """``target`` gets the values and the history of ``source``."""

    @staticmethod
    def forward(ctx: Any, target: Tensor, source: Tensor) -> Tensor:
        ctx.mark_dirty(target)
        ctx.of_part = view_base(target) is not None
        _copy_inner(target, source)
        return target

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor]:  # type: ignore[override]
        # without one for a view, none would come to the rest of what that is a view of
        return torch.zeros_like(gradient) if ctx.of_part else None, gradient


def overwrite(target: Tensor, source: Tensor, how: HowWritten = "plain") -> None:
    """The inner tensors of ``target`` get what those of ``source`` hold. Its own ``copy_`` is not asked: what that
    does, if the function called it, has been computed."""
    if how == "plain" and source.requires_grad and torch.is_grad_enabled():
        _Overwrite.apply(target, source)  # type: ignore[no-untyped-call]
        return
    _copy_inner(target, source)
    if how != "unversioned":
        bump_version(target)


def _copy_inner(target: Tensor, source: Tensor) -> None:
    with below_autograd():
        for old, new in zip(inner_tensors(target), inner_tensors(source), strict=True):
            old.copy_(new)
