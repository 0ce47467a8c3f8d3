"""Rows of the op table: elements at indices that are themselves tensors, and the losses that pick them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import torch

from .gather import Checked, gather, outside
from .index import Index, unravel
from .rows import aten, row, wide_dtype
from .values import Value, broadcast_shapes, cast, compare, expand, look, number, own_index, pointwise, reduce, where

WHOLE = (torch.int64, torch.int32)
"""Dtypes of indices; uint8 and bool are masks."""


@row(aten.embedding.default)
def _embedding(
    weight: Value, at: Value, padding: int = -1, scale: bool = False, sparse: bool = False, *, out: Any
) -> Any:
    return _rows(weight, 0, at, out)


@row(aten.index_select.default)
def _index_select(x: Value, dim: int, at: Value, *, out: Any) -> Any:
    return (
        _rows(x, dim % len(x.shape), at, out)
        if x.shape and len(at.shape) == 1 and at.dtype in WHOLE
        else NotImplemented
    )


def _rows(x: Value, dim: int, at: Value, out: Any) -> Checked:
    """The dimension ``dim`` replaced by those of the index."""
    shape = tuple(out.shape)
    own: list[Index | Value] = list(own_index(shape))
    own[dim : dim + len(at.shape)] = [look(at, shape, own_index(shape)[dim : dim + len(at.shape)])]
    return Checked(gather(x, shape, own), (outside(at, x.shape[dim]),))


@row(aten.gather.default)
def _gather(x: Value, dim: int, at: Value, *, sparse_grad: bool = False, out: Any) -> Any:
    if not x.shape or not at.shape or at.dtype not in WHOLE:
        return NotImplemented
    own: list[Index | Value] = list(own_index(at.shape))
    own[dim % len(own)] = at
    return Checked(gather(x, at.shape, own), (outside(at, x.shape[dim]),))


@row(aten.take.default)
def _take(x: Value, at: Value, *, out: Any) -> Any:
    if at.dtype != torch.int64:
        return NotImplemented
    flattened = look(x, (x.numel,), unravel(own_index((x.numel,))[0], x.shape))
    return Checked(gather(flattened, at.shape, [at]), (outside(at, x.numel, -x.numel),))


def places(
    shape: Sequence[int], given: Sequence[Value | None], out: Sequence[int]
) -> tuple[list[Index | Value], tuple[Value, ...]]:
    """What ``x[given]`` reads, for ``x`` of a shape and a result of shape ``out``; and where an index is wrong.

    The dimensions of the indices stand where those they replace were, if these stood together, else in front.
    """
    dims = [d for d, at in enumerate(given) if at is not None]
    wide = broadcast_shapes([at.shape for at in given if at is not None])
    together = dims[-1] - dims[0] + 1 == len(dims)
    first = dims[0] if together else 0
    own = own_index(out)
    rest = iter((*own[:first], *own[first + len(wide) :]))
    where_: list[Index | Value] = []
    wrong: list[Value] = []
    for n, at in itertools.zip_longest(shape, given):
        if at is None:
            where_.append(next(rest))
        else:
            where_.append(look(expand(at, wide), out, own[first : first + len(wide)]))
            wrong.append(outside(at, n, -n))
    return where_, tuple(wrong)


@row(aten.index.Tensor, aten._unsafe_index.Tensor)
def _index(x: Value, given: Sequence[Value | None], *, out: Any) -> Any:
    if any(at is not None and at.dtype not in WHOLE for at in given):
        return NotImplemented
    read, wrong = places(x.shape, given, tuple(out.shape))
    return Checked(gather(x, tuple(out.shape), read), wrong)


@row(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def _nll_loss(x: Value, target: Value, weight: Value | None, how: int, ignored: int, *, out: Any) -> Any:
    if not x.dtype.is_floating_point or target.dtype != torch.int64:
        return NotImplemented
    if weight is not None and weight.dtype != x.dtype:
        return NotImplemented
    wide, classes = wide_dtype(x.dtype), x.shape[1 if len(x.shape) > 1 else 0]
    own: list[Index | Value] = list(own_index(target.shape))
    own.insert(1 if len(x.shape) > 1 else 0, target)
    picked = cast(gather(x, target.shape, own), wide)
    counted = compare("ne", target, ignored)
    share = (
        cast(counted, wide)
        if weight is None
        else where(counted, cast(gather(weight, target.shape, [target]), wide), 0.0)
    )
    loss = where(counted, -(picked if weight is None else picked * share), 0.0)
    wrong = pointwise("and", outside(target, classes), counted)
    total = number(0.0, wide)
    if how != 0 or not target.shape:
        loss, total = reduce("sum", loss), reduce("sum", share)
        loss = loss / total if how == 1 else loss
    return Checked((cast(loss, x.dtype), cast(total, x.dtype)), (wrong,))
