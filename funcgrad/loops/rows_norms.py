"""Rows of the op table: normalisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .rows import aten, row, wide_dtype
from .rows_reduce import average, variance_and_mean
from .values import (
    Value,
    cast,
    pointwise,
    reduce,
)


@row(aten.native_layer_norm.default)
def _layer_norm(x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float, *, out: Any) -> Any:
    wide = wide_dtype(x.dtype)
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    wx = cast(x, wide)
    variance, mean = variance_and_mean(wx, dims, 0, True)
    scale = pointwise("rsqrt", variance + eps)
    y = (wx - mean) * scale
    y = y if weight is None else y * cast(weight, wide)
    y = y if bias is None else y + cast(bias, wide)
    return cast(y, out[0].dtype), cast(mean, out[1].dtype), cast(scale, out[2].dtype)


@row(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    g: Value,
    x: Value,
    shape: Sequence[int],
    mean: Value,
    scale: Value,
    weight: Value | None,
    bias: Value | None,
    mask: Sequence[bool],
    *,
    out: Any,
) -> Any:
    wide = wide_dtype(x.dtype)
    rank = len(x.shape)
    inner, outer = list(range(rank - len(shape), rank)), list(range(rank - len(shape)))
    g, wx, mean, scale = (cast(v, wide) for v in (g, x, mean, scale))
    normal = (wx - mean) * scale
    gw = g if weight is None else g * cast(weight, wide)
    grad = scale * (gw - average(gw, inner) - normal * average(gw * normal, inner))
    sums = [reduce("sum", v, outer) if outer else v for v in (g * normal, g)]
    found = (grad, *sums)
    return tuple(cast(v, o.dtype) if wanted else None for v, wanted, o in zip(found, mask, out, strict=True))
