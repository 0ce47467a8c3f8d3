"""Rows of the op table: tensors put together from parts, and what gradients of views are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor

from ..symbolic.sizes import hint
from ..symbolic.torch_sizes import shape_of, strides_of
from .index import flat, row_major, unravel
from .rows import TABLE, TAKES_GIVEN, Rule, aten, begin, fits, plain, row
from .values import Value, cast, concatenate, insert, look, number, own_index, reshape, within, zeros


@row(aten.cat.default)
def _cat(tensors: Sequence[Value], dim: int = 0, *, out: Any) -> Any:
    return concatenate([cast(t, out.dtype) for t in tensors], dim)


@row(aten.stack.default)
def _stack(tensors: Sequence[Value], dim: int = 0, *, out: Any) -> Any:
    dim %= len(out.shape)
    one = tuple(1 if d == dim else n for d, n in enumerate(out.shape))
    return concatenate([reshape(cast(t, out.dtype), one) for t in tensors], dim)


@row(aten.slice_backward.default)
def _slice_backward(g: Value, shape: Any, dim: int, start: int, end: int, step: int, *, out: Any) -> Any:
    if len(g.shape) != len(out.shape):
        return NotImplemented
    return insert(g, zeros(out.shape, out.dtype), dim, begin(out.shape[dim], start), step)


@row(aten.slice_scatter.default)
def _slice_scatter(
    x: Value, part: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1, *, out: Any
) -> Any:
    return insert(cast(part, out.dtype), x, dim, begin(out.shape[dim], start), step)


@row(aten.select_scatter.default)
def _select_scatter(x: Value, part: Value, dim: int, at: int, *, out: Any) -> Any:
    dim %= len(x.shape)
    one = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    return insert(reshape(cast(part, out.dtype), one), x, dim, at % x.shape[dim])


@row(aten.constant_pad_nd.default)
def _pad(x: Value, pads: Sequence[int], value: Any = 0, *, out: Any) -> Any:
    if isinstance(value, Value) or not fits(value, out.dtype):
        return NotImplemented
    own = list(own_index(tuple(out.shape)))
    bounds = []
    for i in range(len(pads) // 2):
        d = len(own) - 1 - i
        bounds.append((own[d], pads[2 * i], pads[2 * i] + x.shape[d]))
        own[d] = own[d] - pads[2 * i]
    return within(x, own, bounds, number(plain(value, out.dtype), out.dtype, tuple(out.shape)))


def _on_diagonal(x: Value, other: Value, offset: int, dim1: int, dim2: int) -> Value:
    """``other``, with the last dimension of ``x`` along a diagonal."""
    rank = len(other.shape)
    own = own_index(other.shape)
    i, j = own[dim1 % rank], own[dim2 % rank]
    rest = [o for d, o in enumerate(own) if d not in (dim1 % rank, dim2 % rank)]
    at = i if offset >= 0 else j
    return within(x, [*rest, at], [(j - i, offset, offset + 1), (at, 0, x.shape[-1])], other)


@row(aten.diagonal_backward.default)
def _diagonal_backward(g: Value, shape: Any, offset: int, dim1: int, dim2: int, *, out: Any) -> Any:
    return (
        _on_diagonal(g, zeros(out.shape, out.dtype), offset, dim1, dim2)
        if len(g.shape) == len(out.shape) - 1
        else NotImplemented
    )


@row(aten.diag_embed.default)
def _diag_embed(x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1, *, out: Any) -> Any:
    return _on_diagonal(x, zeros(out.shape, out.dtype), offset, dim1, dim2)


@row(aten.diagonal_scatter.default)
def _diagonal_scatter(x: Value, part: Value, offset: int = 0, dim1: int = 0, dim2: int = 1, *, out: Any) -> Any:
    return _on_diagonal(cast(part, out.dtype), x, offset, dim1, dim2)


def _where_elements_are_apart(rule: Rule, x: Value, *args: Any, out: Any, given: Any, **kwargs: Any) -> Any:
    """A result lies as ``x`` does: where several elements of that may be one in memory (windows that overlap), what is
    put into one is put into others, too."""
    return NotImplemented if _may_overlap_itself(given[0]) else rule(x, *args, out=out, **kwargs)


def _may_overlap_itself(t: Tensor) -> bool:
    """Whether several elements may be one in memory, of a tensor that is no expanded one (of that a copy is none)."""
    reach = 0
    for step, n in sorted((hint(step), hint(n)) for step, n in zip(strides_of(t), shape_of(t), strict=True)):
        if n > 1:
            if step == 0:
                return False
            if step <= reach:
                return True
            reach += (n - 1) * step
    return False


for _op in (aten.slice_scatter.default, aten.select_scatter.default, aten.diagonal_scatter.default):
    TABLE[_op] = partial(_where_elements_are_apart, TABLE[_op])
    TAKES_GIVEN.add(_op)


@row(aten.roll.default)
def _roll(x: Value, shifts: Sequence[int], dims: Sequence[int] = (), *, out: Any) -> Any:
    if not dims:
        n = max(1, x.numel)
        return look(x, x.shape, unravel((flat(own_index(x.shape), row_major(x.shape)) + -shifts[0] % n) % n, x.shape))
    own = list(own_index(x.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        n = x.shape[dim]
        own[dim] = (own[dim] + -shift % n) % n
    return look(x, x.shape, own)


@row(aten.repeat.default)
def _repeat(x: Value, times: Sequence[int], *, out: Any) -> Any:
    own = own_index(tuple(out.shape))[len(out.shape) - len(x.shape) :]
    return look(x, tuple(out.shape), [i % n if n > 1 else i * 0 for i, n in zip(own, x.shape, strict=True)])


# what is never read before it is written may hold anything
for _empty in (
    aten.empty_strided.default,
    aten.new_empty_strided.default,
    aten.empty_like.default,
    aten.new_empty.default,
):
    TABLE[_empty] = lambda *args, out, **_: zeros(out.shape, out.dtype)
