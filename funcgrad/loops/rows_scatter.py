"""Rows of the op table: elements put, or added, where tensors say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from .gather import Checked, outside
from .index import Index
from .rows import aten, fits, into, item_fits, plain, row, wide_dtype
from .rows_gather import WHOLE, places
from .scatter import scatter
from .values import (
    PAIRWISE,
    Value,
    broadcast_shapes,
    cast,
    compare,
    count,
    expand,
    look,
    narrow,
    number,
    own_index,
    pointwise,
    where,
    zeros,
)


@row(aten.embedding_dense_backward.default)
def _embedding_backward(g: Value, at: Value, words: int, padding: int, scale: bool, *, out: Any) -> Any:
    """As in eager PyTorch, rows that are out of bounds are left out."""
    if scale:
        return NotImplemented
    at = cast(at, torch.int64)
    left_out = outside(at, words)
    if 0 <= padding < words:
        left_out = pointwise("or", left_out, compare("eq", at, padding))
    own = own_index(g.shape)
    left_out, at = (look(v, g.shape, own[:-1]) for v in (left_out, at))
    return scatter(zeros(out.shape, out.dtype), where(left_out, 0.0, cast(g, out.dtype)), [at, own[-1]], "sum")


@row(aten.index_put.default, aten._unsafe_index_put.default)
def _index_put(x: Value, given: Sequence[Value | None], values: Value, accumulate: bool = False, *, out: Any) -> Any:
    if any(at is not None and at.dtype not in WHOLE for at in given) or (accumulate and x.dtype == torch.bool):
        return NotImplemented
    if values.dtype != x.dtype:  # which eager PyTorch refuses, and a trace does not
        return NotImplemented
    dims = [d for d, at in enumerate(given) if at is not None]
    wide = broadcast_shapes([at.shape for at in given if at is not None])
    first = dims[0] if dims[-1] - dims[0] + 1 == len(dims) else 0
    shape = [n for d, n in enumerate(x.shape) if d not in dims]
    shape[first:first] = wide
    if math.prod(shape) == 0:
        return x
    put, wrong = places(x.shape, given, shape)
    return Checked(scatter(x, expand(values, shape), put, "sum" if accumulate else None), wrong)


@row(aten.index_add.default)
def _index_add(x: Value, dim: int, at: Value, source: Value, *, alpha: Any = 1, out: Any) -> Any:
    if x.dtype == torch.bool or not fits(alpha, x.dtype) or source.dtype != x.dtype:
        return NotImplemented
    return _along(x, dim, at, source if alpha == 1 else source * into(alpha, x.dtype), "sum")


@row(aten.index_copy.default)
def _index_copy(x: Value, dim: int, at: Value, source: Value, *, out: Any) -> Any:
    if at.dtype != torch.int64 or source.dtype != x.dtype:
        return NotImplemented
    return _along(x, dim, at, source, None)


@row(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def _index_fill(x: Value, dim: int, at: Value, value: Any, *, out: Any) -> Any:
    if not x.shape or not at.shape or at.dtype != torch.int64 or not item_fits(value, x.dtype):
        return NotImplemented
    shape = [at.shape[0] if d == dim % len(x.shape) else n for d, n in enumerate(x.shape)]
    new = (
        expand(cast(value, x.dtype), shape)
        if isinstance(value, Value)
        else number(plain(value, x.dtype), x.dtype, shape)
    )
    return _along(x, dim, at, new, None, -x.shape[dim])


def _along(x: Value, dim: int, at: Value, source: Value, kind: str | None, least: int = 0) -> Any:
    """Slices of ``source`` put at a dimension's places."""
    if not x.shape or not at.shape or not source.shape or at.dtype not in WHOLE:
        return NotImplemented
    own: list[Index | Value] = list(own_index(source.shape))
    own[dim] = look(at, source.shape, [own_index(source.shape)[dim]])
    return Checked(scatter(x, source, own, kind), (outside(at, x.shape[dim], least),))


@row(aten.scatter.src)
def _scatter(x: Value, dim: int, at: Value, source: Value, *, out: Any) -> Any:
    return _scattered(x, dim, at, source, None)


@row(aten.scatter.value)
def _scatter_value(x: Value, dim: int, at: Value, value: Any, *, out: Any) -> Any:
    if isinstance(value, Value) or not fits(value, x.dtype):
        return NotImplemented
    return _scattered(x, dim, at, number(plain(value, x.dtype), x.dtype, at.shape), None)


@row(aten.scatter_add.default)
def _scatter_add(x: Value, dim: int, at: Value, source: Value, *, out: Any) -> Any:
    return NotImplemented if x.dtype == torch.bool else _scattered(x, dim, at, source, "sum")


@row(aten.scatter_reduce.two)
def _scatter_reduce(
    x: Value, dim: int, at: Value, source: Value, kind: str, *, include_self: bool = True, out: Any
) -> Any:
    kind = {"sum": "sum", "prod": "prod", "amax": "max", "amin": "min"}.get(kind, "")
    return _scattered(x, dim, at, source, kind) if include_self and kind and x.dtype != torch.bool else NotImplemented


def _scattered(x: Value, dim: int, at: Value, source: Value, kind: str | None) -> Any:
    if not x.shape or not at.shape or at.dtype not in WHOLE:
        return NotImplemented
    dim %= len(x.shape)
    for d, n in enumerate(at.shape):
        source = narrow(source, d, 0, n)
    wrong = (outside(at, x.shape[dim]),)
    # one for each slice: all are asked whether it is theirs
    if all(n == (1 if d == dim else x.shape[d]) for d, n in enumerate(at.shape)):
        here = compare("eq", count(x.shape, dim), expand(cast(at, torch.int64), x.shape))
        return Checked(where(here, pointwise(PAIRWISE[kind], x, source) if kind else source, x), wrong)
    own: list[Index | Value] = list(own_index(at.shape))
    own[dim] = at
    wide = wide_dtype(x.dtype) if kind else x.dtype  # rounded when all are added, other than in index_add
    return Checked(cast(scatter(cast(x, wide), cast(source, wide), own, kind), x.dtype), wrong)
