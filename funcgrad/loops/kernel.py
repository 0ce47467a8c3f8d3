"""From a group of values to a kernel: expressions at the loops' indices, then stages."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import torch

from ..symbolic.known import same
from .domain import Domain, Place, core, place
from .gather import Gather
from .groups import Decision, Group
from .index import Axis, Bound, Index, at_axis, bounded, flat, is_shifted_axis, substitute
from .ir import (
    Buffer,
    Effect,
    Expr,
    Expressions,
    Kernel,
    Load,
    Position,
    Put,
    Reduced,
    Scanned,
    Stage,
    Store,
    Total,
    computed,
    walk,
)
from .scan import Scan
from .scatter import Scatter, in_order
from .stages import stages_of
from .values import PAIRWISE, Count, Map, Number, Reduce, Value, View, Within, axes_of, broadcast, pointwise

TILE = 256
"""Elements of a tile: several rows of so many numbers stay in the L1 cache."""

_PART, _PARTS = 16, 4
"""The columns of a part that is worth a loop of its own, and how many such parts a turn may do at once."""

Guard = tuple[Bound, ...]

Counters = Mapping[Axis, Index]
"""What the counters of a domain are, in terms of those of a kernel."""

_Turns = tuple[list[Axis], list[Axis], Sequence[Counters]]
"""Rows and columns, and the elements that a turn does, by their counters."""


def build(
    name: str,
    group: Group,
    loads: Mapping[Value, Buffer],
    stores: Mapping[Value, Sequence[Buffer]],
    computes: Mapping[str, str],
) -> Kernel:
    """The kernel that computes a group: ``loads`` say where what it reads lies, ``stores`` where its results go."""
    domain = group.domain
    loops = {axis: at_axis(axis) for axis in domain.axes}
    several = max(len(domain.row_axes), len(domain.column_axes)) > 1
    rows, columns, loops = _merged(domain, _effects(group, domain, [loops], loads, stores) if several else [])
    if domain.columns is None:
        rows, columns = rows[:-1], rows[-1:]
    turns: _Turns = rows, columns, [loops]
    effects = _effects(group, domain, [loops], loads, stores, columns)
    for cut in (_in_parts, _in_lines) if columns and domain.columns is None else (_in_parts,):
        fewer = cut(effects, *turns)
        if fewer is not None:
            turns = rows, columns, parts = fewer
            effects = _effects(group, domain, parts, loads, stores, columns)
    tile = TILE if domain.columns is None and columns and not rows else 0
    stages = stages_of(effects)
    found = walk([e.value for e in effects])
    names = {b.name: b for b in loads.values()}
    reads = dict.fromkeys(names[e.buffer] for e in found if isinstance(e, Load))
    writes = tuple(b for v in (*group.members, *group.whole) for b in stores.get(v, ()))
    return Kernel(name, tuple(rows), tuple(columns), stages, tuple(reads), writes, tile, computes)


def kernels_of(
    name: str,
    group: Group,
    loads: Mapping[Value, Buffer],
    stores: Mapping[Value, Sequence[Buffer]],
    computes: Mapping[str, str],
) -> tuple[Kernel, ...]:
    """The kernels of a group, one after the other: where something is scattered, one that writes what it is
    scattered into goes before."""
    scattered = group.scatter
    if scattered is None:
        return (build(name, group, loads, stores, computes),)
    # a reduction itself would be made here, not read
    buffers, into = stores[scattered], pointwise("copy", scattered.into)
    start = Group(group.number, Domain(core(into.shape)), {into: Decision("what is put is put into it", ())})
    return build(f"{name}_start", start, loads, {into: buffers}, {}), _build_scatter(
        name, scattered, loads, buffers, computes
    )


def _build_scatter(
    name: str, value: Scatter, loads: Mapping[Value, Buffer], buffers: Sequence[Buffer], computes: Mapping[str, str]
) -> Kernel:
    domain = Domain(core(value.arg.shape))
    axes = list(domain.axes)
    first, last = in_order(value)
    indices = _indices(_puts(value, domain, {axis: at_axis(axis) for axis in axes}, loads, buffers, (), 0))
    loops: dict[Axis, Index] = {}
    parts = (axes[:first], "r"), (axes[first:last], "s"), (axes[last:], "c")
    independent, ordered, within = (_merge(part, indices, letter, loops) for part, letter in parts)
    rows, columns = [*independent, *ordered, *within[:-1]], within[-1:]
    puts = _puts(value, domain, loops, loads, buffers, columns, len(independent))
    names = {b.name: b for b in loads.values()}
    reads = dict.fromkeys(names[e.buffer] for e in walk(computed(puts)) if isinstance(e, Load) and e.buffer in names)
    return Kernel(
        name, tuple(rows), tuple(columns), (Stage((), (), tuple(puts)),), tuple(reads), tuple(buffers), 0, computes
    )


def _puts(
    value: Scatter,
    domain: Domain,
    loops: Counters,
    loads: Mapping[Value, Buffer],
    buffers: Sequence[Buffer],
    columns: Sequence[Axis],
    apart: int,
) -> list[Effect]:
    make = Expressions(columns)
    reader = _Reader(make, domain, loops, loads)
    # a reduction itself stands in other loops
    at = place(View(value.arg.shape, value.arg.dtype, value.arg, ()), domain)
    assert at is not None
    index = tuple(substitute(i, loops) for i in at.index)
    inner = dict(zip(axes_of(value.arg.shape), index, strict=True))
    inner |= {a: at_axis(make.axis(reader.at(number, index), a.size)) for a, number in value.found}
    where = [substitute(i, inner) for i in value.where]
    element = reader.at(value.arg, index)
    puts: list[Effect] = []
    for b in buffers:
        there = flat(where, b.strides)
        new = (
            make.op(PAIRWISE[value.kind], [make.load(b.name, there, b.dtype), element], b.dtype)
            if value.kind
            else element
        )
        puts.append(Put(b.name, there, new, bool(columns), make.found_in(there), apart))
    return puts


# ── expressions ──────────────────────────────────────────────────────────────────────────────────────────────────


def _effects(
    group: Group,
    domain: Domain,
    parts: Sequence[Counters],
    loads: Mapping[Value, Buffer],
    stores: Mapping[Value, Sequence[Buffer]],
    columns: Sequence[Axis] | None = None,
) -> list[Effect]:
    """What one turn of the loops writes; ``parts``: what the domain's counters are there, several times if a turn
    has several elements."""
    expressions = Expressions(domain.column_axes if columns is None else columns)
    effects: list[Effect] = []
    for loops in parts:
        reader = _Reader(expressions, domain, loops, loads)
        for value in group.members:
            for at, index in _turns_of(value, domain, loops):
                effects += _written(value, at, index, reader, stores.get(value, ()), domain)
        for whole, (dim, parts_of_it) in group.whole.items():
            begin = 0
            for part in parts_of_it:
                for at, index in _turns_of(part, domain, loops):
                    there = (*index[:dim], index[dim] + begin, *index[dim + 1 :])
                    effects += [
                        Store(b.name, flat(there, b.strides), reader.at(part, index), at.level == "full")
                        for b in stores.get(whole, ())
                    ]
                begin += part.shape[dim]
    return effects


def _turns_of(value: Value, domain: Domain, loops: Counters) -> Iterable[tuple[Place, tuple[Index, ...]]]:
    """Where a value stands in the loops, and the index of each element of a turn: several where its last dimension
    is written out."""
    at = place(value, domain)
    assert at is not None
    for i in range(at.written_out.size if at.written_out else 1):
        here = {**loops, at.written_out: Index((), i)} if at.written_out else loops
        yield at, tuple(substitute(k, here) for k in at.index)


def _written(
    value: Value, at: Place, index: tuple[Index, ...], reader: _Reader, buffers: Sequence[Buffer], domain: Domain
) -> list[Effect]:
    if at.level in ("total", "row total"):
        assert isinstance(value, Reduce)
        body = reader.argument(value, index)
        return [
            Total(b.name, flat(index, b.strides), value.kind, body, at.level == "total", _extent(index, b.strides))
            for b in buffers
        ]
    expr = reader.at(value, index)  # also where nothing is written: what reads it finds it made
    return [Store(b.name, flat(index, b.strides), expr, at.level == "full") for b in buffers]


def _extent(index: Sequence[Index], strides: Sequence[int]) -> int:
    return flat(index, strides).range[1] + 1


class _Reader:
    """The expression for an element of a value. ``guard``: the bounds outside of which it is not asked for, and must
    not be read."""

    def __init__(
        self, expressions: Expressions, domain: Domain, loops: Counters, loads: Mapping[Value, Buffer]
    ) -> None:
        self._make = expressions
        self._domain = domain
        self._loops = loops
        self._loads = loads
        self._known: dict[tuple[Value, tuple[Index, ...], Guard], Expr] = {}

    def at(self, value: Value, index: tuple[Index, ...], guard: Guard = ()) -> Expr:
        """The element at ``index``."""
        key = (value, index, guard)
        if key not in self._known:
            self._known[key] = self._read(value, index, guard)
        return self._known[key]

    def _read(self, value: Value, index: tuple[Index, ...], guard: Guard) -> Expr:
        make = self._make
        buffer = self._loads.get(value)
        if buffer is not None:
            return make.load(buffer.name, flat(index, buffer.strides), value.dtype, guard)
        inner = dict(zip(axes_of(value.shape), index, strict=True))
        match value:
            case Number():
                return make.const(value.value, value.dtype)
            case Count():
                return make.position(index[value.dim])
            case Reduce():  # over all columns, whichever of them asks
                rows_alone = tuple(bound for bound in guard if not make.is_full(bound[0]))
                return make.reduced(value.kind, self.argument(value, index, rows_alone))
            case Gather():
                found = {a: at_axis(make.axis(self.at(number, index, guard), a.size)) for a, number in value.found}
                return self.at(value.arg, tuple(substitute(i, inner | found) for i in value.where), guard)
            case Scan():  # at each place of its own, whatever the guard
                return make.scanned(value.kind, self.at(value.arg, index))
            case View():
                return self.at(value.arg, tuple(substitute(i, inner) for i in value.where), guard)
            case Within():
                return self._within(value, index, inner, guard)
            case Map():
                args = [
                    self.at(a, tuple(substitute(i, inner) for i in broadcast(a.shape, value.shape)), guard)
                    for a in value.args
                ]
                return args[0] if value.op == "copy" else make.op(value.op, args, value.dtype)
        raise AssertionError(f"{value} is neither computed here nor in memory")

    def _within(self, value: Within, index: tuple[Index, ...], inner: Mapping[Axis, Index], guard: Guard) -> Expr:
        make = self._make
        bounds = [(substitute(i, inner), low, high) for i, low, high in value.bounds]
        ranges = (bounded(i, (*guard, *bounds)) for i, _, _ in bounds)
        if any(least > most for least, most in ranges):  # they never hold, or not where this is asked for
            return self.at(value.other, index, guard)
        bounds = [(i, low, high) for i, low, high in bounds if i.range[0] < low or i.range[1] >= high]
        element = self.at(value.arg, tuple(substitute(i, inner) for i in value.where), (*guard, *bounds))
        if not bounds:
            return element
        tests = [make.op(*test) for i, low, high in bounds for test in _tests(make, i, low, high)]
        condition = functools.reduce(lambda a, b: make.op("and", [a, b], torch.bool), tests)
        return make.op("where", [condition, element, self.at(value.other, index, guard)], value.dtype)

    def argument(self, value: Reduce, index: tuple[Index, ...], guard: Guard = ()) -> Expr:
        """The element of a reduction's argument that belongs to ``index`` of the result and the present columns."""
        at = place(View(value.arg.shape, value.arg.dtype, value.arg, ()), self._domain)
        assert at is not None
        kept = iter(index)
        own = [substitute(i, self._loops) if d in value.dims else next(kept) for d, i in enumerate(at.index)]
        return self.at(value.arg, tuple(own), guard)


def _tests(make: Expressions, index: Index, low: int, high: int) -> list[tuple[str, list[Expr], torch.dtype]]:
    """The comparisons a bound comes to, without those that always hold."""
    at = make.position(index)
    found = [("ge", low)] if index.range[0] < low else []
    found += [("lt", high)] if index.range[1] >= high else []
    return [(name, [at, make.const(limit, torch.int64)], torch.bool) for name, limit in found]


def _merged(domain: Domain, effects: Sequence[Effect]) -> tuple[list[Axis], list[Axis], dict[Axis, Index]]:
    """Loops that run through memory as one become one: the new rows and columns, and the old counters in terms of
    theirs."""
    indices = _indices(effects)
    rows, columns = list(domain.row_axes), list(domain.column_axes)
    if domain.columns is None:  # any order will do
        first = _usual(effects, rows)
        rows.sort(key=lambda axis: -(first.coefficient(axis) or 0))
    loops: dict[Axis, Index] = {}
    merged = [_merge(axes, indices, name, loops) for axes, name in ((rows, "r"), (columns, "c"))]
    return merged[0], merged[1], loops


def _usual(effects: Sequence[Effect], axes: Sequence[Axis]) -> Index:
    """How most of what is read and written lies in memory; where that is equal, the first result."""
    first = next((e.at for e in effects if isinstance(e, Store)), effects[0].at if effects else Index())
    found = [first, *(e.at for e in walk(computed(effects)) if isinstance(e, Load)), *(e.at for e in effects)]
    innermost = [next((a for a in axes if i.coefficient(a) == 1), None) for i in found]
    most = Counter(axis for axis in innermost if axis is not None).most_common(1)
    return found[innermost.index(most[0][0])] if most else first


def _in_parts(
    effects: Sequence[Effect], rows: list[Axis], columns: list[Axis], loops: Sequence[Counters]
) -> _Turns | None:
    """Columns that are equal parts, one after the other, as ``cat`` and ``chunk`` make them: the loop over one part.
    A turn does an element of every part, and need not ask which one it is in; what parts have in common is computed
    once."""
    found = walk(computed(effects))
    if not columns or any(isinstance(e, (Reduced, Scanned)) for e in found) or not all(e.full for e in effects):
        return None
    axis = columns[-1]
    if not isinstance(axis.size, int):
        return None
    bounds = dict.fromkeys(
        b for e in found if isinstance(e, Load) for b in e.guard if is_shifted_axis(b[0]) and axis in b[0].axes
    )
    ends = {end - i.const for i, *both in bounds for end in both}
    if not ends or not all(isinstance(end, int) for end in ends):  # another size would be other parts
        return None
    size = math.gcd(axis.size, *ends)
    if size < _PART or axis.size > _PARTS * size:
        return None
    part = Axis(axis.name, size)
    return (
        rows,
        [*columns[:-1], part],
        [_with(c, axis, at_axis(part) + begin) for c in loops for begin in range(0, axis.size, size)],
    )


def _in_lines(
    effects: Sequence[Effect], rows: list[Axis], columns: list[Axis], loops: Sequence[Counters]
) -> _Turns | None:
    """Columns of which so many at a time lie together, as where heads are put one after the other: a row for each
    line of these, in which nothing need be divided."""
    (axis,) = columns
    atoms = {a for i in _indices(effects) for a, _ in i.terms if not isinstance(a, Axis) and axis in a.of.axes}
    if (
        not atoms
        or any(a.of != at_axis(axis) or not isinstance(a.by, int) for a in atoms)
        or not isinstance(axis.size, int)
    ):
        return None
    size = math.gcd(axis.size, *(a.by for a in atoms))
    if size < _PART or size == axis.size:
        return None
    line, column = Axis(f"r{len(rows)}", axis.size // size), Axis(f"r{len(rows) + 1}", size)
    return [*rows, line], [column], [_with(c, axis, at_axis(line) * size + at_axis(column)) for c in loops]


def _with(loops: Counters, axis: Axis, index: Index) -> Counters:
    return {a: substitute(i, {axis: index}) for a, i in loops.items()}


def _indices(effects: Sequence[Effect]) -> list[Index]:
    """All that effects read and write at."""
    found = walk(computed(effects))
    indices = [e.at for e in found if isinstance(e, (Load, Position))] + [e.at for e in effects]
    return indices + [i for e in found if isinstance(e, Load) for i, _, _ in e.guard]


def _merge(axes: Sequence[Axis], indices: Sequence[Index], name: str, loops: dict[Axis, Index]) -> list[Axis]:
    runs: list[list[Axis]] = []
    for axis in axes:
        if runs and all(_runs_on(i, runs[-1][-1], axis) for i in indices):
            runs[-1].append(axis)
        else:
            runs.append([axis])
    result: list[Axis] = []
    for n, run in enumerate(runs):
        new = Axis(f"{name}{n}", math.prod(a.size for a in run))
        result.append(new)
        rest = at_axis(new)
        for axis in reversed(run):
            loops[axis] = rest % axis.size if axis is not run[0] else rest
            rest = rest // axis.size
    return result


def _runs_on(index: Index, outer: Axis, inner: Axis) -> bool:
    a, b = index.coefficient(outer), index.coefficient(inner)
    return a is not None and b is not None and same(a, b * inner.size)
