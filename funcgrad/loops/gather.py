"""Gather: elements of a value at an index that is not known before the kernels run.

Such an index may be wrong. A kernel then reads something else, which is there; that it is wrong is a value of its own,
which the row of the operator gives back beside the result (``Checked``), and whose kernel tells the caller.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from attrs import frozen

from ..symbolic.sizes import hint
from .index import Axis, Index, at_axis, substitute
from .values import Map, Value, View, axes_of, below, broadcast, cast, compare, look, made, pointwise, require_inside

Numbers = tuple[tuple[Axis, Value], ...]


@frozen(eq=False)
class Gather(Value):
    """Elements of another value: ``where`` says, in terms of ``axes_of(shape)`` and of the axes in ``found``, which one
    stands at an index.

    Each axis in ``found`` is a whole number of the value beside it, which has the same shape: one that is negative
    counts from the end, for one that is out of bounds the axis is 0.
    """

    arg: Value
    where: tuple[Index, ...]
    found: Numbers

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.arg, *(number for _, number in self.found))


@frozen(eq=False)
class Checked:
    """What a row computes, and what must be true nowhere for it to make sense; where it is, eager PyTorch raises an
    error, or takes another path. Or the number that Python reads, which must be the one it was."""

    result: Any
    wrong: tuple[Value, ...]


def gather(value: Value, shape: Sequence[int], where: Sequence[Index | Value]) -> Value:
    """The element of ``value`` at ``where`` at each index: along each dimension an index in terms of
    ``axes_of(shape)``, or whole numbers of this shape."""
    index, numbers = found_along(value.shape, where)
    require_inside(value, index, ())
    return _gathered(value, tuple(shape), index, numbers, hint(math.prod(shape)) * _SELDOM <= value.about)


def found_along(shape: Sequence[int], where: Sequence[Index | Value]) -> tuple[tuple[Index, ...], Numbers]:
    """An index into a shape, along some dimensions at numbers: with an axis for each of them, and which they are."""
    pairs = [(Axis(f"f{d}", n), at) for d, (n, at) in enumerate(zip(shape, where, strict=True))]
    index = tuple(at_axis(axis) if isinstance(at, Value) else at for axis, at in pairs)
    return index, tuple((axis, at) for axis, at in pairs if isinstance(at, Value) and axis.size > 1)


_SELDOM = 4
"""Where so few of the elements are asked for, one in so many, they alone are computed, each with at most so many
operations:"""
_SHORT = 12


def _gathered(value: Value, shape: tuple[int, ...], index: Sequence[Index], numbers: Numbers, computed: bool) -> Value:
    """As ``gather``; ``computed``: of what the value is computed from, so that it need not be in memory."""
    inner = dict(zip(axes_of(value.shape), index, strict=True))
    if isinstance(value, View):
        return _gathered(value.arg, shape, [substitute(i, inner) for i in value.where], numbers, computed)
    if isinstance(value, Map) and computed and _operations(value) <= _SHORT:
        wheres = [[substitute(i, inner) for i in broadcast(a.shape, value.shape)] for a in value.args]
        args = [_gathered(a, shape, where, numbers, True) for a, where in zip(value.args, wheres, strict=True)]
        return made(Map, shape, value.dtype, value.op, tuple(args))  # type: ignore[no-any-return]
    axes = frozenset().union(*(i.axes for i in index))
    numbers = tuple((axis, number) for axis, number in numbers if axis in axes)
    return made(Gather, shape, value.dtype, value, tuple(index), numbers) if numbers else look(value, shape, index)  # type: ignore[no-any-return]


def _operations(value: Value) -> int:
    return sum(isinstance(v, Map) for v in below([value], stop=lambda v: not isinstance(v, (Map, View))))


def outside(numbers: Value, size: int, least: int = 0) -> Value:
    """Where numbers are no index into ``size`` elements; ``least``: the least one allowed."""
    numbers = cast(numbers, torch.int64)
    return pointwise("or", compare("lt", numbers, least), compare("ge", numbers, size))
