"""Domains: the loops a kernel runs, and how the values of different shapes are indexed by them."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

from attrs import frozen

from ..symbolic.known import divides, is_few, same
from ..symbolic.sizes import hint
from .index import ZERO, Axis, Index, at_axis
from .scan import Scan
from .values import Reduce, Value

SMALL = 8
"""A trailing dimension of so few elements is written out instead of looped over."""


@frozen
class Domain:
    """The sizes of the loops, none of them 1. ``columns`` are those along which rows are reduced; None: not decided
    yet."""

    sizes: tuple[int, ...]
    columns: frozenset[int] | None = None

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(f"i{d}", n) for d, n in enumerate(self.sizes))

    @property
    def row_axes(self) -> tuple[Axis, ...]:
        return tuple(a for d, a in enumerate(self.axes) if self.columns is None or d not in self.columns)

    @property
    def column_axes(self) -> tuple[Axis, ...]:
        return tuple(a for d, a in enumerate(self.axes) if self.columns is not None and d in self.columns)

    @property
    def numel(self) -> int:
        return math.prod(self.sizes)

    @property
    def about(self) -> int:
        """How many turns there are in the call that is compiled: for costs."""
        return hint(self.numel)


@frozen
class Place:
    """Where in a domain a value is computed, and its index there.

    ``level``: ``"full"``; ``"row"`` (one for each row); ``"total"`` (over all rows, known when the kernel is done);
    ``"row total"`` (where each row adds to it once). ``written_out``: a trailing dimension that is not looped over.
    """

    level: str
    index: tuple[Index, ...]
    written_out: Axis | None = None


def core(shape: Sequence[int]) -> tuple[int, ...]:
    """The sizes that are not 1."""
    return tuple(n for n in shape if n != 1)


def place(value: Value, domain: Domain) -> Place | None:
    """Where the value stands in the domain; None if it does not belong there."""
    if isinstance(value, Reduce):
        return _place_reduction(value, domain)
    index, written_out = _along(value.shape, domain.axes)
    if isinstance(value, Scan):
        runs_along = (
            index is not None and domain.columns is not None and index[value.dim].axes == frozenset(domain.column_axes)
        )
        return Place("full", index) if index is not None and runs_along and written_out is None else None
    if index is not None:
        return Place("full", index, written_out)
    if domain.columns is not None:
        index, written_out = _along(value.shape, domain.row_axes)
        if index is not None:
            return Place("row", index, written_out)
    return None


def _place_reduction(value: Reduce, domain: Domain) -> Place | None:
    index, written_out = _along(value.arg.shape, domain.axes)
    if index is None:
        if (
            domain.columns is not None
            and value.shape == ()
            and same(math.prod(value.arg.shape), math.prod(a.size for a in domain.row_axes))
        ):
            return Place("row total", ())
        return None
    rest = tuple(i for d, i in enumerate(index) if d not in value.dims)
    gone = frozenset(a for d, i in enumerate(index) if d in value.dims for a in i.axes)
    if written_out in gone:
        return None
    if gone == frozenset(domain.axes):
        return Place("total", rest, written_out)
    if domain.columns is None:
        return None
    if gone == frozenset(domain.column_axes):
        return Place("row", rest, written_out)
    if gone == frozenset(domain.row_axes):
        return Place("total", rest, written_out)
    return None


@functools.lru_cache(maxsize=4096)  # asked for every value and every group it might join
def _along(shape: tuple[int, ...], axes: tuple[Axis, ...]) -> tuple[tuple[Index, ...] | None, Axis | None]:
    """The index of a tensor whose dimensions are products of successive axes; a small one may follow."""
    sizes = [a.size for a in axes]
    ours = core(shape)
    written_out = None
    if not same(math.prod(ours), math.prod(sizes)):
        if not ours or not is_few(ours[-1], SMALL) or not same(math.prod(ours[:-1]), math.prod(sizes)) or not sizes:
            return None, None
        written_out = Axis("u", ours[-1])
    remaining = list(axes)
    index: list[Index] = []
    last = max((d for d, n in enumerate(shape) if n != 1), default=-1)
    for d, n in enumerate(shape):
        if n == 1:
            index.append(ZERO)
        elif written_out is not None and d == last:
            index.append(at_axis(written_out))
        else:
            at, size = ZERO, 1
            while not same(size, n) and remaining:
                axis = remaining.pop(0)
                at, size = at * axis.size + at_axis(axis), size * axis.size
            if not same(size, n):
                return None, None
            index.append(at)
    return tuple(index), written_out


def refine(domain: Domain, shape: Sequence[int]) -> Domain | None:
    """The domain with its loops cut so that a tensor of this shape, of as many elements, can be indexed by them;
    None if it cannot."""
    ours, theirs = list(core(shape)), list(enumerate(domain.sizes))
    if not same(math.prod(ours), domain.numel):
        return None
    sizes: list[int] = []
    columns: set[int] = set()
    while ours and theirs:
        (d, a), b = theirs[0], ours[0]
        n = a if divides(a, b) else b
        if not divides(n, a):
            return None
        if domain.columns is not None and d in domain.columns:
            columns.add(len(sizes))
        sizes.append(n)
        theirs[0], ours[0] = (d, a // n), b // n
        if same(a, n):
            theirs.pop(0)
        if same(b, n):
            ours.pop(0)
    return Domain(tuple(sizes), None if domain.columns is None else frozenset(columns))


def widen(domain: Domain, shape: Sequence[int]) -> Domain | None:
    """The domain without its small last loop, which is written out instead, so that a tensor of this shape fits;
    None if it does not."""
    fits = domain.columns is None and len(domain.sizes) > 1 and is_few(domain.sizes[-1], SMALL)
    return (
        refine(Domain(domain.sizes[:-1]), shape)
        if fits and same(math.prod(shape), math.prod(domain.sizes[:-1]))
        else None
    )


def decide(domain: Domain, value: Reduce | Scan, together: int | None = None) -> Domain | None:
    """The domain with its columns chosen so that this reduction or scan belongs there; None if no choice does it.
    ``together``: the dimension of its argument along which most of what is read lies together in memory, if that is
    known."""
    index, written_out = _along(value.arg.shape, domain.axes)
    if index is None or domain.columns is not None:
        return None
    dims = (value.dim,) if isinstance(value, Scan) else value.dims
    gone = {a for d, i in enumerate(index) if d in dims for a in i.axes}
    if written_out in gone:
        return None
    positions = frozenset(d for d, a in enumerate(domain.axes) if a in gone)
    rest = frozenset(range(len(domain.sizes))) - positions
    # rows are what lies together in memory: what remains of a reduction over the first dimensions, else what is reduced
    is_first = positions == frozenset(range(len(positions))) if together is None else together not in dims
    total = isinstance(value, Reduce) and bool(rest) and is_first
    return Domain(domain.sizes, rest if total else positions)
