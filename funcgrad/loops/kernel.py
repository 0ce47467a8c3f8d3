"""From a group of values to a kernel: expressions at the loops' indices, then stages."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import torch

from .domain import Domain, Place, core, place
from .fuse import EXPENSIVE, Group
from .gather import Gather
from .index import Axis, Bound, Index, at_axis, flat, substitute
from .ir import Buffer, Effect, Expr, Expressions, Kernel, Load, Op, Position, Put, Reduced, Scanned, Stage, Store, Total, computed, walk
from .scan import Scan
from .scatter import Scatter
from .values import PAIRWISE, Count, Map, Number, Reduce, Value, View, Within, axes_of, broadcast

TILE = 256
"""Elements of a tile: several rows of so many numbers stay in the L1 cache."""

_STREAMS = 12
"""Arrays that one loop reads and writes, if what else it does has nothing to do with the first ones."""

_SLOW = frozenset("div reciprocal sqrt rsqrt fmod remainder".split())
"""Operations that cost as much as some eight additions."""

Guard = tuple[Bound, ...]

_AT_ONCE = 2
"""Expensive operations in one stage: more make one long chain of dependent instructions, which no processor fills."""

_KEPT_FROM = 4.0
"""What it must cost to compute an element again for it to be kept for the next stage."""


def build(
    name: str, group: Group, loads: Mapping[Value, Buffer], stores: Mapping[Value, Sequence[Buffer]], computes: tuple[str, ...] = ()
) -> Kernel:
    """The kernel that computes a group: ``loads`` say where what it reads lies, ``stores`` where its results go."""
    domain = group.domain
    loops = {axis: at_axis(axis) for axis in domain.axes}
    effects = _effects(group, domain, loops, loads, stores)
    rows, columns, loops = _merged(domain, effects)
    tile = 0
    if domain.columns is None:
        rows, columns = rows[:-1], rows[-1:]
        tile = TILE if columns and not rows else 0
    effects = _effects(group, domain, loops, loads, stores, columns)
    stages = _stages(effects)
    found = walk([e.value for e in effects])
    names = {b.name: b for b in loads.values()}
    reads = dict.fromkeys(names[e.buffer] for e in found if isinstance(e, Load))
    writes = tuple(b for v in group.members for b in stores.get(v, ()))
    return Kernel(name, tuple(rows), tuple(columns), stages, tuple(reads), writes, tile, computes)


def kernels_of(
    name: str, group: Group, loads: Mapping[Value, Buffer], stores: Mapping[Value, Sequence[Buffer]], computes: tuple[str, ...] = ()
) -> tuple[Kernel, ...]:
    """The kernels of a group, one after the other: where something is scattered, one that writes what it is scattered into goes before."""
    scattered = group.scatter
    if scattered is None:
        return (build(name, group, loads, stores, computes),)
    buffers, into = stores[scattered], scattered.into
    start = Group(group.number, Domain(core(into.shape)), {into: None})
    return build(f"{name}_start", start, loads, {into: buffers}), _build_scatter(name, scattered, loads, buffers, computes)


def _build_scatter(
    name: str, value: Scatter, loads: Mapping[Value, Buffer], buffers: Sequence[Buffer], computes: tuple[str, ...]
) -> Kernel:
    domain = Domain(core(value.arg.shape))
    axes = list(domain.axes)
    dims = [axis for axis, n in zip(axes_of(value.arg.shape), value.arg.shape, strict=True) if n != 1]
    # along such a dimension each element is put elsewhere
    apart = [any(w == at_axis(axis) + w.const for w in value.where) for axis in dims]
    first = min([i for i, is_apart in enumerate(apart) if not is_apart], default=max(0, len(axes) - 1))
    last = max([i + 1 for i, is_apart in enumerate(apart) if not is_apart], default=first)
    indices = _indices(_puts(value, domain, {axis: at_axis(axis) for axis in axes}, loads, buffers, (), 0))
    loops: dict[Axis, Index] = {}
    parts = (axes[:first], "r"), (axes[first:last], "s"), (axes[last:], "c")
    independent, ordered, within = (_merge(part, indices, letter, loops) for part, letter in parts)
    rows, columns = [*independent, *ordered, *within[:-1]], within[-1:]
    puts = _puts(value, domain, loops, loads, buffers, columns, len(independent))
    names = {b.name: b for b in loads.values()}
    reads = dict.fromkeys(names[e.buffer] for e in walk(computed(puts)) if isinstance(e, Load) and e.buffer in names)
    return Kernel(name, tuple(rows), tuple(columns), (Stage((), (), tuple(puts)),), tuple(reads), tuple(buffers), 0, computes)


def _puts(
    value: Scatter,
    domain: Domain,
    loops: Mapping[Axis, Index],
    loads: Mapping[Value, Buffer],
    buffers: Sequence[Buffer],
    columns: Sequence[Axis],
    apart: int,
) -> list[Effect]:
    make = Expressions(columns)
    reader = _Reader(make, domain, loops, loads)
    at = place(value.arg, domain)
    assert at is not None
    index = tuple(substitute(i, loops) for i in at.index)
    inner = dict(zip(axes_of(value.arg.shape), index, strict=True))
    inner |= {a: at_axis(make.axis(reader.at(number, index), a.size)) for a, number in value.found}
    where = [substitute(i, inner) for i in value.where]
    element = reader.at(value.arg, index)
    puts: list[Effect] = []
    for b in buffers:
        there = flat(where, b.strides)
        new = make.op(PAIRWISE[value.kind], [make.load(b.name, there, b.dtype), element], b.dtype) if value.kind else element
        puts.append(Put(b.name, there, new, bool(columns), make.found_in(there), apart))
    return puts


# ── expressions ──────────────────────────────────────────────────────────────────────────────────────────────────


def _effects(
    group: Group,
    domain: Domain,
    loops: Mapping[Axis, Index],
    loads: Mapping[Value, Buffer],
    stores: Mapping[Value, Sequence[Buffer]],
    columns: Sequence[Axis] | None = None,
) -> list[Effect]:
    expressions = Expressions(domain.column_axes if columns is None else columns)
    reader = _Reader(expressions, domain, loops, loads)
    effects: list[Effect] = []
    for value in group.members:
        at = place(value, domain)
        assert at is not None
        for i in range(at.written_out.size if at.written_out else 1):
            here = {**loops, at.written_out: Index((), i)} if at.written_out else loops
            index = tuple(substitute(k, here) for k in at.index)
            effects += _written(value, at, index, reader, stores.get(value, ()), domain)
    return effects


def _written(value: Value, at: Place, index: tuple[Index, ...], reader: _Reader, buffers: Sequence[Buffer], domain: Domain) -> list[Effect]:
    if at.level in ("total", "row total"):
        assert isinstance(value, Reduce)
        body = reader.argument(value, index)
        return [Total(b.name, flat(index, b.strides), value.kind, body, at.level == "total", _extent(index, b.strides)) for b in buffers]
    expr = reader.at(value, index)  # also where nothing is written: what reads it finds it made
    return [Store(b.name, flat(index, b.strides), expr, at.level == "full") for b in buffers]


def _extent(index: Sequence[Index], strides: Sequence[int]) -> int:
    return flat(index, strides).range[1] + 1


class _Reader:
    """The expression for an element of a value. ``guard``: the bounds outside of which it is not asked for, and must not be read."""

    def __init__(self, expressions: Expressions, domain: Domain, loops: Mapping[Axis, Index], loads: Mapping[Value, Buffer]) -> None:
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
            case Reduce():
                return make.reduced(value.kind, self.argument(value, index, guard))
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
                args = [self.at(a, tuple(substitute(i, inner) for i in broadcast(a.shape, value.shape)), guard) for a in value.args]
                return args[0] if value.op == "copy" else make.op(value.op, args, value.dtype)
        raise AssertionError(f"{value} is neither computed here nor in memory")

    def _within(self, value: Within, index: tuple[Index, ...], inner: Mapping[Axis, Index], guard: Guard) -> Expr:
        make = self._make
        bounds = [(substitute(i, inner), low, high) for i, low, high in value.bounds]
        if any(i.range[1] < low or i.range[0] >= high for i, low, high in bounds):
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
    """Loops that run through memory as one become one: the new rows and columns, and the old counters in terms of theirs."""
    indices = _indices(effects)
    rows, columns = list(domain.row_axes), list(domain.column_axes)
    if domain.columns is None:  # any order will do: as the first result lies in memory
        first = next((e.at for e in effects if isinstance(e, Store)), effects[0].at if effects else Index())
        rows.sort(key=lambda axis: -(first.coefficient(axis) or 0))
    loops: dict[Axis, Index] = {}
    merged = [_merge(axes, indices, name, loops) for axes, name in ((rows, "r"), (columns, "c"))]
    return merged[0], merged[1], loops


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
    return a is not None and b is not None and a == b * inner.size


# ── stages ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _stages(effects: Sequence[Effect]) -> tuple[Stage, ...]:
    """Cut the work on a row into walks over it, and choose what is kept from one to a later one."""
    reductions = [e for e in walk([e.value for e in effects]) if isinstance(e, Reduced)]
    numbers = _numbered([r.body for r in reductions] + [e.value for e in effects])
    parts = _Parts([e.value for e in effects])
    plain, kept = _cut(effects, reductions, numbers, {}, parts)
    instead = _shared_origins(kept)
    return _cut(effects, reductions, numbers, instead, parts)[0] if instead else plain


def _cut(
    effects: Sequence[Effect],
    reductions: Sequence[Reduced],
    numbers: Mapping[Expr, int],
    instead: Mapping[Expr, Expr],
    parts: _Parts,
) -> tuple[tuple[Stage, ...], list[Expr]]:
    """The stages, and what they keep; ``instead``: what is kept in the place of something that is soon made of it."""
    kept: dict[Expr, int] = {}
    stages: list[Stage] = []
    for n in range(max(numbers.values(), default=0), -1, -1):
        here = tuple(r for r in reductions if numbers[r.body] == n)
        after = tuple(e for e in effects if numbers[e.value] == n)
        keeps = tuple(k for k, at in kept.items() if at == n)
        for expr in _from_before([r.body for r in here] + [e.value for e in after] + list(keeps), n, numbers, instead):
            kept[expr] = numbers[expr]
        stages += _apart(here, keeps, after, parts)
    return tuple(reversed(stages)), list(kept)


def _apart(reductions: Sequence[Reduced], keeps: Sequence[Expr], effects: Sequence[Effect], parts: _Parts) -> list[Stage]:
    """A walk for each part of the work that has elements in common, the small ones together: a loop over few arrays is the fast one."""
    found: dict[Expr | None, list[Reduced | Expr | Effect]] = {}
    for item, root in [*((r, r.body) for r in reductions), *((k, k) for k in keeps), *((e, e.value) for e in effects)]:
        found.setdefault(parts.of(root), []).append(item)
    walks: list[list[Reduced | Expr | Effect]] = []
    arrays = _STREAMS
    for part, items in found.items():
        size = parts.size(part) + len(items)
        if arrays + size > _STREAMS:
            walks.append([])
            arrays = 0
        walks[-1] += items
        arrays += size
    return [
        Stage(
            tuple(i for i in items if isinstance(i, Reduced)),
            tuple(i for i in items if isinstance(i, Expr) and not isinstance(i, Reduced)),
            tuple(i for i in items if isinstance(i, (Store, Total))),
        )
        for items in reversed(walks)
    ]


class _Parts:
    """Which expressions of a kernel read an array in common, directly or through others: each part is known by one of its reads."""

    def __init__(self, roots: Sequence[Expr]) -> None:
        self._above: dict[Expr, Expr] = {}
        self._sizes: dict[Expr, int] = {}
        self._read: dict[Expr, Expr] = {}
        for expr in walk(roots):
            if expr.full and not expr.args:
                self._read[expr], self._sizes[expr] = expr, 1
                continue
            reads = [self._read[a] for a in expr.args if a in self._read]
            for read in reads:
                self._join(self._top(reads[0]), self._top(read))
            if reads:
                self._read[expr] = reads[0]

    def of(self, expr: Expr) -> Expr | None:
        return self._top(self._read[expr]) if expr in self._read else None

    def size(self, part: Expr | None) -> int:
        """How many arrays it reads."""
        return self._sizes[part] if part is not None else 0

    def _top(self, read: Expr) -> Expr:
        while read in self._above:
            read = self._above[read]
        return read

    def _join(self, one: Expr, other: Expr) -> None:
        if one is not other:
            small, large = sorted((one, other), key=lambda top: self._sizes[top])
            self._above[small] = large
            self._sizes[large] += self._sizes[small]


def _shared_origins(kept: Sequence[Expr]) -> dict[Expr, Expr]:
    """Which of several kept elements are soon computed from the same one: it alone is kept."""
    origins = {expr: origin for expr in kept if (origin := _origin(expr)) is not None}
    served = Counter([*origins.values(), *kept])
    return {expr: origin for expr, origin in origins.items() if served[origin] > 1}


def _origin(expr: Expr) -> Expr | None:
    """The one dear element that ``expr`` is computed from in a few cheap operations."""
    dear: set[Expr] = set()
    cost, pending = 0.0, [expr]
    while pending:
        current = pending.pop()
        if not current.full or current in dear:
            continue
        if isinstance(current, Op) and current.name in EXPENSIVE and current is not expr:
            dear.add(current)
            continue
        cost += _cost(current)
        if cost >= _KEPT_FROM:
            return None
        pending += current.args
    return dear.pop() if len(dear) == 1 else None


def _numbered(roots: Sequence[Expr]) -> dict[Expr, int]:
    """The walk in which each expression is computed first: after the reductions it needs, and not too many at once; nor with a scan,
    whose walk is not vectorised."""
    numbers: dict[Expr, int] = {}
    spent: dict[int, int] = {}
    in_order: set[int] = set()
    for expr in walk(roots):
        if isinstance(expr, Reduced):
            numbers[expr] = numbers[expr.body] + 1
            continue
        number = max((numbers[a] for a in expr.args), default=0)
        if expr.full and isinstance(expr, Op) and expr.name in EXPENSIVE:
            while spent.get(number, 0) >= _AT_ONCE or number in in_order:
                number += 1
            spent[number] = spent.get(number, 0) + 1
        if isinstance(expr, Scanned):
            while number in spent:
                number += 1
            in_order.add(number)
        numbers[expr] = number
    return numbers


def _from_before(roots: Sequence[Expr], n: int, numbers: Mapping[Expr, int], instead: Mapping[Expr, Expr]) -> list[Expr]:
    """What walk ``n`` takes from an earlier one, because it would be dear to compute it again."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    pending = list(roots)
    while pending:
        expr = pending.pop()
        if expr in seen or not expr.full:
            continue
        seen.add(expr)
        if isinstance(expr, (Op, Scanned)) and numbers[expr] < n and _again(expr) >= _KEPT_FROM:
            found[instead.get(expr, expr)] = None
        else:
            pending += expr.args
    return list(found)


def _again(expr: Expr) -> float:
    """What it costs to compute an element again, counted up to what is worth knowing."""
    cost, pending = 0.0, [expr]
    while pending and cost < _KEPT_FROM:
        current = pending.pop()
        if current.full:
            cost += _cost(current)
            pending += current.args
    return cost


def _cost(expr: Expr) -> float:
    """What an element costs, given those it is made of."""
    if isinstance(expr, Op):
        return 20.0 if expr.name in EXPENSIVE else 8.0 if expr.name in _SLOW else 1.0
    return _KEPT_FROM if isinstance(expr, Scanned) else 0.5 if isinstance(expr, Load) else 0.0
