"""Rows of the op table: normalisations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .rows import aten, row, wide_dtype
from .rows_reduce import average, variance_and_mean
from .values import (
    Value,
    cast,
    compare,
    pointwise,
    reduce,
    reshape,
    where,
)


def _takes(x: Value, *given: Value | None) -> bool:
    """Whether eager PyTorch takes weights and statistics of these dtypes; a trace does not ask."""
    wide = wide_dtype(x.dtype)
    return all(v is None or v.dtype in (x.dtype, wide) for v in given)


def _affine(y: Value, weight: Value | None, bias: Value | None) -> Value:
    y = y if weight is None else y * cast(weight, y.dtype)
    return y if bias is None else y + cast(bias, y.dtype)


def _gradient(g: Value, normal: Value, scale: Value, dims: Sequence[int]) -> Value:
    """Of what was normalised over ``dims``; ``scale``: the inverse deviation."""
    return scale * (g - average(g, dims) - normal * average(g * normal, dims))


def _rounded(found: Sequence[Value], out: Any, mask: Sequence[bool] | None = None) -> Any:
    """The results in their dtypes; ``mask``: which of them are asked for."""
    wanted = [True] * len(found) if mask is None else mask
    return tuple(cast(v, o.dtype) if is_wanted else None for v, o, is_wanted in zip(found, out, wanted, strict=True))


@row(aten.native_layer_norm.default)
def _layer_norm(
    x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float, *, out: Any
) -> Any:
    if not _takes(x, weight, bias):
        return NotImplemented
    wide = wide_dtype(x.dtype)
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    wx = cast(x, wide)
    variance, mean = variance_and_mean(wx, dims, 0, True)
    scale = pointwise("rsqrt", variance + eps)
    return _rounded((_affine((wx - mean) * scale, weight, bias), mean, scale), out)


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
    gw = _affine(g, weight, None)
    sums = [reduce("sum", v, outer) if outer else v for v in (g * normal, g)]
    return _rounded((_gradient(gw, normal, scale, inner), *sums), out, mask)


def _per_channel(value: Value | None, rank: int) -> Any:
    """A number for each channel, which is dimension 1, against a tensor of so many dimensions."""
    return None if value is None else reshape(value, (1, value.shape[0]) + (1,) * (rank - 2))


@row(aten._native_batch_norm_legit_functional.default, aten._native_batch_norm_legit.no_stats)
def _batch_norm(x: Value, weight: Value | None, bias: Value | None, *rest: Any, out: Any) -> Any:
    means, variances, training, momentum, eps = rest if len(rest) == 5 else (None, None, *rest)
    if not training or not _takes(x, weight, bias, means, variances):
        return NotImplemented
    wide, rank = wide_dtype(x.dtype), len(x.shape)
    dims = [d for d in range(rank) if d != 1]
    wx = cast(x, wide)
    variance, mean = variance_and_mean(wx, dims, 0, True)
    scale = pointwise("rsqrt", variance + eps)
    # as PyTorch has it for batches, and for them alone
    scale = scale if eps else where(compare("eq", variance, 0.0), 0.0, scale)
    y = _affine((wx - mean) * scale, _per_channel(weight, rank), _per_channel(bias, rank))
    mean, scale, variance = (reshape(v, (x.shape[1],)) for v in (mean, scale, variance))
    found = [y, mean, scale]
    if means is not None:
        n = x.numel // x.shape[1]
        unbiased = variance * (n / (n - 1) if n > 1 else math.nan)
        found += [
            cast(old, wide) * (1 - momentum) + new * momentum for old, new in ((means, mean), (variances, unbiased))
        ]
    return _rounded(found, out)


@row(aten.native_batch_norm_backward.default)
def _batch_norm_backward(
    g: Value,
    x: Value,
    weight: Value | None,
    running_mean: Value | None,
    running_var: Value | None,
    mean: Value | None,
    scale: Value | None,
    train: bool,
    eps: float,
    mask: Sequence[bool],
    *,
    out: Any,
) -> Any:
    if not train or mean is None or scale is None:
        return NotImplemented
    wide, rank = wide_dtype(x.dtype), len(x.shape)
    dims = [d for d in range(rank) if d != 1]
    g, wx = cast(g, wide), cast(x, wide)
    mean, scale = (_per_channel(cast(v, wide), rank) for v in (mean, scale))
    normal = (wx - mean) * scale
    grad = _affine(_gradient(g, normal, scale, dims), _per_channel(weight, rank), None)
    return _rounded((grad, reduce("sum", g * normal, dims), reduce("sum", g, dims)), out, mask)


def _grouped(value: Value, n: int, groups: int, channels: int) -> Value:
    """(batch, group, channel of the group, element)."""
    return reshape(value, (n, groups, channels // groups, value.numel // (n * channels)))


def _per_group(value: Value | None, groups: int) -> Any:
    return None if value is None else reshape(value, (1, groups, value.numel // groups, 1))


@row(aten.native_group_norm.default)
def _group_norm(
    x: Value,
    weight: Value | None,
    bias: Value | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    eps: float,
    *,
    out: Any,
) -> Any:
    if not _takes(x, weight, bias):
        return NotImplemented
    wide = wide_dtype(x.dtype)
    wx = _grouped(cast(x, wide), n, groups, channels)
    variance, mean = variance_and_mean(wx, [2, 3], 0, True)
    scale = pointwise("rsqrt", variance + eps)
    y = _affine((wx - mean) * scale, _per_group(weight, groups), _per_group(bias, groups))
    return _rounded((reshape(y, x.shape), *(reshape(v, (n, groups)) for v in (mean, scale))), out)


@row(aten.native_group_norm_backward.default)
def _group_norm_backward(
    g: Value,
    x: Value,
    mean: Value,
    scale: Value,
    weight: Value | None,
    n: int,
    channels: int,
    size: int,
    groups: int,
    mask: Sequence[bool],
    *,
    out: Any,
) -> Any:
    wide = wide_dtype(x.dtype)
    gs, wx = (_grouped(cast(v, wide), n, groups, channels) for v in (g, x))
    mean, scale = (reshape(cast(v, wide), (n, groups, 1, 1)) for v in (mean, scale))
    normal = (wx - mean) * scale
    grad = _gradient(_affine(gs, _per_group(weight, groups), None), normal, scale, [2, 3])
    sums = (reshape(reduce("sum", v, [0, 3]), (channels,)) for v in (gs * normal, gs))
    return _rounded((reshape(grad, x.shape), *sums), out, mask)
