"""Incoming gradients, in the layout and (for a wrapper subclass) with the metadata a backward pass was compiled for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from attrs import frozen
from torch import Tensor

from .. import refusals
from ..subclasses import Wrapping, inner_tensors
from ..symbolic.sizes import Size, hint
from ..symbolic.torch_sizes import shape_of, strides_of
from ..torch_private.tensors import is_wrapper_subclass


@frozen
class Outline:
    """What is left of a plain tensor without its values. Where its sizes are symbols, the order of its dimensions
    is: it is dense."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    order: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @staticmethod
    def of(t: Tensor) -> Outline:
        shape, stride = shape_of(t), strides_of(t)
        order = None
        if any(isinstance(n, Size) for n in (*shape, *stride)):
            order = tuple(sorted(range(t.ndim), key=lambda d: -hint(stride[d])))
            shape = stride = ()
        return Outline(shape, stride, order, t.dtype, t.device, t.requires_grad)

    def strides_for(self, shape: Sequence[int]) -> tuple[int, ...]:
        """How a tensor of this shape would lie."""
        if self.order is None:
            return self.stride
        strides, step = [1] * len(shape), 1
        for d in reversed(self.order):
            strides[d], step = step, step * max(1, shape[d])
        return tuple(strides)


class Blank(NamedTuple):
    """What is left of a plain tensor of one call without its values."""

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool

    @staticmethod
    def of(t: Tensor) -> Blank:
        return Blank(t.shape, t.stride(), t.dtype, t.device, t.requires_grad)

    def empty(self) -> Tensor:
        """A tensor like it."""
        own = torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device)
        return own.requires_grad_(self.requires_grad)


@frozen(eq=False)
class Hollow:
    """What is left of a wrapper subclass without the values of its inner tensors."""

    wrapping: Wrapping
    inner: tuple[Blank, ...]
    requires_grad: bool

    @staticmethod
    def of(t: Tensor) -> Hollow:
        wrapping = Wrapping.of(t)
        assert wrapping is not None
        return Hollow(wrapping, tuple(map(Blank.of, inner_tensors(t))), t.requires_grad)

    @property
    def shape(self) -> torch.Size:
        return self.wrapping.size

    def empty(self) -> Tensor:
        """A tensor like it."""
        return self.wrapping.build(outline.empty() for outline in self.inner).requires_grad_(self.requires_grad)


@frozen(eq=False)
class CotangentLayout:
    """What a backward pass was compiled for: how an incoming gradient is made, and how its inner tensors lie."""

    wrapping: Wrapping | None
    inner: tuple[Outline, ...]

    @property
    def known_strides(self) -> tuple[int, ...] | None:
        """Of a plain one whose sizes are known."""
        return self.inner[0].stride if self.wrapping is None and self.inner[0].order is None else None

    def __call__(self, cotangent: Tensor) -> Tensor:
        """The incoming gradient, so made and laid out."""
        if self.wrapping is None and (type(cotangent) is Tensor or not is_wrapper_subclass(cotangent)):
            outline = self.inner[0]
            strides = outline.stride if outline.order is None else outline.strides_for(cotangent.shape)
            return cotangent if cotangent.stride() == strides else _with_strides(cotangent, strides)
        inner = inner_tensors(_made_like(cotangent, self.wrapping))
        laid_out = [
            _with_strides(t, outline.strides_for(t.shape)) for t, outline in zip(inner, self.inner, strict=True)
        ]
        return laid_out[0] if self.wrapping is None else self.wrapping.build(iter(laid_out))


def _with_strides(cotangent: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The incoming gradient in the layout backward was compiled for.

    Where a kernel's output has another rank than its meta function says (multilabel_margin_loss), it is taken as it is.
    """
    if cotangent.stride() == strides or cotangent.dim() != len(strides):
        return cotangent
    return torch.empty_strided(cotangent.shape, strides, dtype=cotangent.dtype, device=cotangent.device).copy_(
        cotangent
    )


def _made_like(cotangent: Tensor, wanted: Wrapping | None) -> Tensor:
    """An incoming gradient with the metadata backward was compiled for; where it has others, its class knows the way
    there."""
    own = Wrapping.of(cotangent)
    if wanted is not None and wanted.fits(own):
        return cotangent
    if own is not None and hasattr(cotangent, "__coerce_same_metadata_as_tangent__"):
        kind = torch.Tensor if wanted is None else None if wanted.kind is own.kind else wanted.kind
        coerced = cotangent.__coerce_same_metadata_as_tangent__(None if wanted is None else wanted.context, kind)
        if coerced is not None and _shape_of(Wrapping.of(coerced)) == _shape_of(wanted):
            return coerced  # type: ignore[no-any-return]
    raise refusals.COTANGENT_DIFFERS(_named(own), _named(wanted), where="the backward pass")


def _shape_of(wrapping: Wrapping | None) -> Any:
    return wrapping and (wrapping.kind, wrapping.size, wrapping.paths())


def _named(wrapping: Wrapping | None) -> str:
    return "a plain tensor" if wrapping is None else f"a {wrapping.kind.__name__} with metadata {wrapping.context}"
