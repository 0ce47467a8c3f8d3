"""Rows of the op table: reductions, and softmax."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch

from .rows import TABLE, aten, dims_of, into, row, truth, wide_dtype
from .values import (
    Value,
    cast,
    compare,
    count,
    pointwise,
    reduce,
    reshape,
    where,
)


def _accumulated(kind: str, x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    if out.dtype == torch.bool:
        return NotImplemented
    return cast(reduce(kind, cast(x, wide_dtype(out.dtype)), dims_of(dims), keepdim), out.dtype)


TABLE[aten.sum.default] = TABLE[aten.sum.dim_IntList] = partial(_accumulated, "sum")
TABLE[aten.prod.default] = TABLE[aten.prod.dim_int] = partial(_accumulated, "prod")


@row(aten.mean.default, aten.mean.dim)
def _mean(x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    total = reduce("sum", cast(x, wide_dtype(out.dtype)), dims_of(dims), keepdim)
    return cast(total / into(x.numel // max(1, total.numel), total.dtype), out.dtype)


@row(aten.linalg_vector_norm.default)
def _vector_norm(
    x: Value, order: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any
) -> Any:
    if not x.dtype.is_floating_point or not out.dtype.is_floating_point or isinstance(order, Value):
        return NotImplemented
    x = cast(x, wide_dtype(out.dtype))
    if order == 2:
        result = pointwise("sqrt", reduce("sum", x * x, dims_of(dims), keepdim))
    elif order in (1, math.inf, -math.inf):
        result = reduce(
            "sum" if order == 1 else "max" if order > 0 else "min", pointwise("abs", x), dims_of(dims), keepdim
        )
    else:
        return NotImplemented
    return cast(result, out.dtype)


def _extreme(kind: str, x: Value, dims: Any = None, keepdim: bool = False, *, out: Any) -> Any:
    return NotImplemented if x.dtype == torch.bool else reduce(kind, x, dims_of(dims), keepdim)


TABLE[aten.amax.default] = TABLE[aten.max.default] = partial(_extreme, "max")
TABLE[aten.amin.default] = TABLE[aten.min.default] = partial(_extreme, "min")


def _extreme_with_place(kind: str, x: Value, dim: int) -> tuple[Value, Value]:
    """The extreme along a dimension, and where it is first met; NaN is the extreme."""
    top = reduce(kind, x, [dim], True)
    return top, reduce("min", where(is_extreme(x, top), count(x.shape, dim), torch.iinfo(torch.int64).max), [dim], True)


def is_extreme(x: Value, top: Value) -> Value:
    """Where an element is the extreme, or NaN."""
    same = compare("eq", x, top)
    return pointwise("or", same, compare("ne", x, x)) if x.dtype.is_floating_point else same


def _with_place(kind: str, x: Value, dim: int, keepdim: bool = False, *, out: Any) -> Any:
    if x.dtype == torch.bool or not x.shape:
        return NotImplemented
    top, place = _extreme_with_place(kind, x, dim % len(x.shape))
    return reshape(top, tuple(out[0].shape)), reshape(place, tuple(out[1].shape))


def _place(kind: str, x: Value, dim: Any = None, keepdim: bool = False, *, out: Any) -> Any:
    if x.dtype == torch.bool or not x.shape:
        return NotImplemented
    x, dim = (reshape(x, (x.numel,)), 0) if dim is None else (x, dim % len(x.shape))
    return reshape(_extreme_with_place(kind, x, dim)[1], tuple(out.shape))


TABLE[aten.max.dim], TABLE[aten.min.dim] = partial(_with_place, "max"), partial(_with_place, "min")
TABLE[aten.argmax.default], TABLE[aten.argmin.default] = partial(_place, "max"), partial(_place, "min")


def _truths(kind: str, x: Value, dims: Any = None, keepdim: bool = False, *, out: Any) -> Any:
    return reduce(kind, truth(x), dims_of(dims), keepdim) if out.dtype == torch.bool else NotImplemented


for _name in ("any", "all"):
    TABLE[getattr(aten, _name).default] = TABLE[getattr(aten, _name).dim] = partial(_truths, _name)


def variance_and_mean(x: Value, dims: Any, correction: Any, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean in two passes over the row, as exact as Welford's algorithm."""
    mean = average(x, dims)
    n = x.numel // max(1, mean.numel)
    squares = (x - mean) * (x - mean)
    divisor = max(
        0, n - (1 if correction is None else int(correction) if correction == int(correction) else correction)
    )
    total = reduce("sum", squares, dims, keepdim)
    variance = total / into(divisor, total.dtype)
    return variance, mean if keepdim else reshape(mean, variance.shape)


def average(x: Value, dims: Any) -> Value:
    total = reduce("sum", x, dims, True)
    return pointwise("div", total, into(x.numel // max(1, total.numel), total.dtype))


@row(aten.var.correction, aten.var_mean.correction)
def _var(x: Value, dims: Any = None, *, correction: Any = None, keepdim: bool = False, out: Any) -> Any:
    if not x.dtype.is_floating_point or isinstance(correction, Value):
        return NotImplemented
    variance, mean = variance_and_mean(cast(x, wide_dtype(x.dtype)), dims_of(dims), correction, keepdim)
    variance, mean = cast(variance, x.dtype), cast(mean, x.dtype)
    return (variance, mean) if isinstance(out, (tuple, list)) else variance


@row(aten.std.correction)
def _std(x: Value, dims: Any = None, *, correction: Any = None, keepdim: bool = False, out: Any) -> Any:
    if not x.dtype.is_floating_point or isinstance(correction, Value):
        return NotImplemented
    variance, _ = variance_and_mean(cast(x, wide_dtype(x.dtype)), dims_of(dims), correction, keepdim)
    return cast(pointwise("sqrt", variance), x.dtype)


@row(aten.logsumexp.default)
def _logsumexp(x: Value, dims: Any, keepdim: bool = False, *, out: Any) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    wide = cast(x, wide_dtype(x.dtype))
    top = reduce("max", wide, dims_of(dims), True)
    top = where(compare("eq", pointwise("abs", top), math.inf), 0.0, top)
    result = pointwise("log", reduce("sum", pointwise("exp", wide - top), dims_of(dims), True)) + top
    return cast(result if keepdim else reshape(result, out.shape), out.dtype)


def _softmax(log: bool, x: Value, dim: int, half_to_float: bool, *, out: Any) -> Any:
    wide = cast(x, wide_dtype(x.dtype))
    if not wide.dtype.is_floating_point or not x.shape:
        return NotImplemented
    shifted = wide - reduce("max", wide, [dim], True)
    e = pointwise("exp", shifted)
    total = reduce("sum", e, [dim], True)
    return cast(shifted - pointwise("log", total) if log else e / total, out.dtype)


def _softmax_backward(log: bool, g: Value, y: Value, dim: int, dtype: Any, *, out: Any) -> Any:
    if not y.shape:
        return NotImplemented
    g, y = cast(g, wide_dtype(g.dtype)), cast(y, wide_dtype(y.dtype))
    own, softmax = (g, pointwise("exp", y)) if log else (g * y, y)
    return cast(own - softmax * reduce("sum", own, [dim], True), out.dtype)


TABLE[aten._softmax.default], TABLE[aten._log_softmax.default] = partial(_softmax, False), partial(_softmax, True)
TABLE[aten._softmax_backward_data.default] = partial(_softmax_backward, False)
TABLE[aten._log_softmax_backward_data.default] = partial(_softmax_backward, True)
