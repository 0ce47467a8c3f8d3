"""Rows of the op table: pooling, as an operation on the few elements of a window, which are written out.

The gradient asks each element which windows it is in; where windows do not overlap there is one.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from attrs import frozen

from .index import Bound, Index, row_major
from .rows import TABLE, aten, wide_dtype
from .rows_reduce import average
from .values import (
    Number,
    Value,
    cast,
    compare,
    count,
    expand,
    look,
    number,
    own_index,
    pointwise,
    reshape,
    where,
    within,
)

_LARGEST = 32
"""Elements of a window that is written out."""


@frozen
class _Dim:
    """How windows lie along one dimension of ``size`` elements: ``n`` of them."""

    size: int
    n: int
    kernel: int
    stride: int
    padding: int
    dilation: int = 1

    def element(self, window: Index, tap: int) -> Index:
        """Where an element of a window stands; outside of the dimension where it is padding."""
        return window * self.stride + (tap * self.dilation - self.padding)

    def windows(self, element: Index) -> Sequence[tuple[Index, Index]]:
        """The windows an element may be in, and how far from their beginning it is there."""
        last, first = (element + self.padding) // self.stride, (element + self.padding) % self.stride
        return [
            (last - back, first + back * self.stride)
            for back in range((self.dilation * (self.kernel - 1)) // self.stride + 1)
        ]


def _dims(rank: int, shape: Sequence[int], out: Sequence[int], *sides: Any) -> list[_Dim]:
    """``sides``: kernel, stride (none: as the kernel), padding and dilation, each for all dimensions or one for
    each."""
    kernel, stride, *others = sides
    each = [[x] * rank if isinstance(x, int) else [*x] * (rank // len(x)) for x in (kernel, stride or kernel, *others)]
    return [_Dim(*sizes) for sizes in zip(shape[-rank:], out[-rank:], *each, strict=True)]


def _read(x: Value, shape: Sequence[int], at: Sequence[Index], other: Any) -> Value:
    """The elements of ``x`` at an index along its last dimensions, ``other`` where that is outside."""
    own = own_index(shape)
    bounds: list[Bound] = [
        (i, 0, n) for i, n in zip(at, x.shape[-len(at) :], strict=True) if i.range[0] < 0 or i.range[1] >= n
    ]
    index = (*own[: len(shape) - len(at)], *at)
    return within(x, index, bounds, number(other, x.dtype, shape)) if bounds else look(x, shape, index)


def _numbers(index: Index, shape: Sequence[int]) -> Value:
    """An index in terms of ``axes_of(shape)`` as a tensor."""
    low, high = index.range
    numbers = look(count((high - low + 1,), 0), shape, [index - low])
    return numbers + low if low else numbers


def _sum(values: Sequence[Value]) -> Value:
    return functools.reduce(lambda a, b: a + b, values)


def _place(dims: Sequence[_Dim], at: Sequence[Index]) -> Index:
    """The number of an element, counted in row-major order."""
    steps = row_major([d.size for d in dims])
    return functools.reduce(lambda a, b: a + b, (i * step for i, step in zip(at, steps, strict=True)))


# ── the greatest ─────────────────────────────────────────────────────────────────────────────────────────────────


def _max_pool(
    rank: int, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False,
    *, out: Any,
) -> Any:  # fmt: skip
    dims = _dims(rank, x.shape, out[0].shape, kernel, stride, padding, dilation)
    few = math.prod(d.kernel for d in dims) <= _LARGEST and math.prod(d.size for d in dims) < 1 << 31
    return _greatest(x, dims, tuple(out[0].shape)) if few and x.dtype.is_floating_point else NotImplemented


def _greatest(x: Value, dims: Sequence[_Dim], shape: tuple[int, ...]) -> tuple[Value, Value]:
    """The greatest element of each window, and its place: as PyTorch, the first of equal ones, the last NaN, never
    padding."""
    windows = own_index(shape)[-len(dims) :]
    steps = row_major([d.size for d in dims])
    there = number(True, torch.bool, x.shape)
    top = place = seen = None
    for tap in itertools.product(*(range(d.kernel) for d in dims)):
        at = [d.element(w, t) for d, w, t in zip(dims, windows, tap, strict=True)]
        element, exists = _read(x, shape, at, -math.inf), _read(there, shape, at, False)
        step = number(sum(t * d.dilation * n for t, d, n in zip(tap, dims, steps, strict=True)), torch.int32, shape)
        if top is None or place is None or seen is None:
            top, place, seen = element, step, exists
            continue
        # masks are chosen from, not joined: GCC 12 vectorises the one and not the other
        better = where(compare("gt", element, top), True, compare("ne", element, element))
        if not _is_certain(seen):
            better = where(seen, better, True)
            seen = where(seen, True, exists)
        if _is_certain(exists):
            seen = exists
        else:
            better = where(exists, better, False)
        top, place = where(better, element, top), where(better, step, place)
    assert top is not None and place is not None
    first = _place(dims, [d.element(w, 0) for d, w in zip(dims, windows, strict=True)])
    return top, cast(place, torch.int64) + _numbers(first, shape)


def _is_certain(truth: Value) -> bool:
    return isinstance(truth, Number)


def _max_pool_backward(
    rank: int,
    g: Value,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil: bool,
    places: Value,
    *,
    out: Any,
) -> Any:
    dims = _dims(rank, x.shape, g.shape, kernel, stride, padding, dilation)
    own = own_index(x.shape)[-rank:]
    windows = [[w for w, _ in d.windows(i)] for d, i in zip(dims, own, strict=True)]
    if math.prod(map(len, windows)) > _LARGEST:
        return NotImplemented
    mine = _numbers(_place(dims, own), x.shape)
    wide = cast(g, wide_dtype(g.dtype))
    pairs = ((_read(places, x.shape, at, -1), _read(wide, x.shape, at, 0.0)) for at in itertools.product(*windows))
    return cast(_sum([where(compare("eq", place, mine), part, 0.0) for place, part in pairs]), out.dtype)


# ── the mean ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _counted(dims: Sequence[_Dim], shape: Sequence[int], with_padding: bool, given: int | None) -> Any:
    """What the sum over each window is divided by, for a result of this shape: a number, or a value where windows
    differ."""
    if given is not None:
        return given
    counted: Any = 1
    for d, w in zip(dims, own_index(shape)[-len(dims) :], strict=True):
        low, high = (-d.padding, d.size + d.padding) if with_padding else (0, d.size)
        first = d.element(w, 0)
        last = first.range[1] + d.kernel
        if first.range[0] >= low and last <= high:
            counted = counted * d.kernel
        else:
            begin = _numbers(first, shape)
            counted = (pointwise("minimum", begin + d.kernel, high) - pointwise("maximum", begin, low)) * counted
    return counted


def _shared(value: Value, divisor: Any) -> Value:
    return value / (cast(divisor, value.dtype) if isinstance(divisor, Value) else float(divisor))


def _avg_pool(
    rank: int, x: Value, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    with_padding: bool = True, divisor: Any = None, *, out: Any,
) -> Any:  # fmt: skip
    shape = tuple(out.shape)
    dims = _dims(rank, x.shape, shape, kernel, stride, padding)
    if math.prod(d.kernel for d in dims) > _LARGEST or not x.dtype.is_floating_point:
        return NotImplemented
    windows = own_index(shape)[-rank:]
    wide = cast(x, wide_dtype(x.dtype))
    taps = itertools.product(*([d.element(w, t) for t in range(d.kernel)] for d, w in zip(dims, windows, strict=True)))
    total = _sum([_read(wide, shape, at, 0.0) for at in taps])
    return cast(_shared(total, _counted(dims, shape, with_padding, divisor)), x.dtype)


def _avg_pool_backward(
    rank: int,
    g: Value,
    x: Value,
    kernel: Any,
    stride: Any,
    padding: Any,
    ceil: bool,
    with_padding: bool,
    divisor: Any,
    *,
    out: Any,
) -> Any:
    dims = _dims(rank, x.shape, g.shape, kernel, stride, padding)
    own = own_index(x.shape)[-rank:]
    windows = [d.windows(i) for d, i in zip(dims, own, strict=True)]
    if math.prod(map(len, windows)) > _LARGEST:
        return NotImplemented
    share = _shared(cast(g, wide_dtype(g.dtype)), _counted(dims, g.shape, with_padding, divisor))
    parts: list[Value] = []
    for at in itertools.product(*windows):
        part = _read(share, x.shape, [w for w, _ in at], 0.0)
        for d, (_, tap) in zip(dims, at, strict=True):
            if tap.range[1] >= d.kernel:
                part = where(compare("lt", _numbers(tap, x.shape), d.kernel), part, 0.0)
        parts.append(part)
    return cast(_sum(parts), out.dtype)


def _adaptive_parts(rank: int, shape: Sequence[int], out: Sequence[int]) -> tuple[list[int], list[int]] | None:
    """The sizes of windows side by side, and which of them are those of a window, where all are alike and none
    overlaps another."""
    pairs = list(zip(shape[-rank:], out[-rank:], strict=True))
    if any(n % m for n, m in pairs):
        return None
    sizes = [*shape[:-rank], *(k for n, m in pairs for k in (m, n // m))]
    return sizes, [len(shape) - rank + 1 + 2 * d for d in range(rank)]


def _adaptive_pool(rank: int, x: Value, size: Any, *, out: Any) -> Any:
    parts = _adaptive_parts(rank, x.shape, out.shape)
    if parts is None or not x.dtype.is_floating_point:
        return NotImplemented
    return cast(reshape(average(reshape(cast(x, wide_dtype(x.dtype)), parts[0]), parts[1]), out.shape), x.dtype)


def _adaptive_pool_backward(rank: int, g: Value, x: Value, *, out: Any) -> Any:
    parts = _adaptive_parts(rank, x.shape, g.shape)
    if parts is None:
        return NotImplemented
    sizes, dims = parts
    share = cast(g, wide_dtype(g.dtype)) / float(math.prod(sizes[d] for d in dims))
    once = reshape(share, [1 if d in dims else n for d, n in enumerate(sizes)])
    return cast(reshape(expand(once, sizes), x.shape), g.dtype)


for _rank in (2, 3):
    for _name, _pool, _backward in (
        (f"max_pool{_rank}d_with_indices", _max_pool, _max_pool_backward),
        (f"avg_pool{_rank}d", _avg_pool, _avg_pool_backward),
        (f"_adaptive_avg_pool{_rank}d", _adaptive_pool, _adaptive_pool_backward),
    ):
        TABLE[getattr(aten, _name).default] = partial(_pool, _rank)
        TABLE[getattr(aten, f"{_name}_backward").default] = partial(_backward, _rank)
