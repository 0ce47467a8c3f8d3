"""Operator fusion: which values are computed together, in groups, each of which becomes one kernel.

Values are taken in order; one joins the group that reads or makes what it reads, if it can be indexed by that group's
loops, if it needs nothing that the group only knows when it is done, and if no library call stands in between; values
that only have the same loops do not hold memory for one another. Cheap values belong to no group: they are
rematerialised wherever they are read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set

from torch import fx

from ..graphs import is_getitem, is_path_check
from ..symbolic.sizes import hint
from .costs import ROW, is_dear, own_cost
from .domain import Domain, Place, core, decide, place, refine, widen
from .gather import Gather
from .groups import Decision, ExternTask, Fused, Group, Order, Task
from .index import Axis, Index, innermost, substitute
from .lower import Lowering
from .order import in_turn, totals_first
from .read_sizes import ReadSizes
from .rematerialize import compute_again
from .scan import Scan
from .scatter import Scatter
from .values import Memory, Reduce, Value, View, Within, axes_of, broadcast, is_given, own_index, parts_of, whole

_LARGEST = 256
"""Values in a group: a kernel longer than this takes the C compiler long, and has left the cache anyway."""

_HELD = 2**15
"""Bytes a kernel may keep that would be free earlier, for the sake of values that only have the same loops."""
_NEAR, _HELD_NEAR = 64, 2**18
"""Within so many calls of the graph it may keep so many, or as many as could be moved in the time in which a kernel of
its own begins."""

_AGAIN = 4
"""Of what is read so often or more, as of matrices that are multiplied, it matters little how it lies."""

_FREE, _FREE_NUMBER = 2, 16
"""Operations up to which an element, and a number, is computed wherever it is read: less than one function."""

Read = tuple[Value, tuple[Index, ...]]


def fuse(lowering: Lowering, results: Sequence[fx.Node], fuel: int | None = None) -> Fused:
    """Form the groups. ``fuel``: so many values may join a group that exists; the others stand alone."""
    fusion = _Fusion(lowering, fuel)
    for node in in_turn(lowering):
        if node in lowering.externs:
            fusion.extern(node)
        else:
            fusion.check(lowering.checks[node], in_order=is_path_check(node))
    fusion.need(results)
    return fusion.done()


class _Fusion:
    def __init__(self, lowering: Lowering, fuel: int | None) -> None:
        self._lowering, self._machine = lowering, lowering.machine
        self._held_near = max(_HELD_NEAR, self._machine.launch * self._machine.bandwidth)
        self._fuel = math.inf if fuel is None else fuel
        self._group_of: dict[Value, Group] = {}
        self._maker: dict[str, ExternTask] = {}
        self._tasks: list[Task] = []
        self._by_size: dict[int, list[Group]] = {}
        self._reading: dict[Value, list[Group]] = {}
        self._cost: dict[Value, float] = {}
        self._sources: dict[Value, tuple[Read, ...]] = {}
        self._wanted = set(lowering.buffers.values())
        # along which dimension what is computed lies together, where it is stored
        self._inner: dict[Value, int | None] = {}
        self._strides = {value: lowering.strides[node] for node, value in lowering.buffers.items()}
        self._checked: set[Task] = set()
        self._checked_before: dict[Value, set[Task]] = {}
        self._last_effect: ExternTask | None = None
        self._order, self._sizes = Order(), ReadSizes()
        self._node_position = {node: i for i, node in enumerate(lowering.nodes)}
        self._position = {value: self._node_position[node] for node, value in reversed([*lowering.values.items()])}
        self._now = -1  # where in the graph what is placed is needed
        self._last: dict[Task, int] = {}  # where in the graph the last is that a task computes

    # ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────

    def extern(self, node: fx.Node) -> None:
        """A library call runs after what makes its arguments, and after the call before it: their order is kept."""
        before = self.need(node.all_input_nodes) | self._checked
        task = ExternTask(len(self._tasks), node, set())
        self._order.require(task, before if self._last_effect is None else before | {self._last_effect})
        self._last_effect = task
        self._sizes.note(task)
        self._maker[node.name] = task
        for user in node.users:
            if is_getitem(user):
                self._maker[user.name] = task
        self._tasks.append(task)
        self._last[task] = self._node_position[node]

    def check(self, checks: Iterable[Value], in_order: bool) -> None:
        """Whether an index is wrong is known before the next library call. ``in_order``: and not before what is checked
        earlier: on which path a call is depends on what was read first."""
        for value in checks:
            self._wanted.add(value)
            self._checked_before[value] = {*self._checked} if in_order else set()
            self._place_all(value)
            self._checked.add(self._group_of[value])

    def need(self, nodes: Iterable[fx.Node]) -> set[Task]:
        """Place all that the tensors of these nodes are computed from; the tasks that make them."""
        found: set[Task] = set()
        for node in nodes:
            for base in self._lowering.bases(node):
                value = self._lowering.buffers.get(base)
                if value is not None:
                    self._place_all(value)
                    found.add(self._group_of[value])
                elif base in self._lowering.externs:
                    found.add(self._maker[base.name])
        return found

    def _place_all(self, root: Value) -> None:
        self._now = self._position.get(root, self._now)
        values = totals_first(root, self._group_of.__contains__)
        unfinished = {v for value in values for v in _unfinished(value)}
        for value in values:
            if value not in self._group_of and (
                value in self._wanted or not (value in unfinished or self._is_free(value))
            ):
                self._place(value)

    # ── placing ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _place(self, value: Value) -> None:
        if self._is_put_together(value):
            return
        sources = self._read_by(value)
        before = {task for source, _ in sources if (task := self._task_of(source)) is not None}
        before |= self._sizes.read_before(value, self._group_of.__contains__) | self._checked_before.get(value, set())
        together = self._together((value.arg if isinstance(value, Reduce) else value).shape, sources)
        if not isinstance(value, (Reduce, Scan, Scatter)):
            self._inner[value] = together
        refused: list[tuple[Group, str]] = []
        for group in () if isinstance(value, Scatter) else self._candidates(value, sources):
            domain = (
                self._joins(value, group, sources, before, together) if self._fuel > 0 else "FUNCGRAD_FUEL is spent"
            )
            if isinstance(domain, Domain) and self._would_wait(value, group, sources):
                domain = "what it reads would be kept until then"
            if isinstance(domain, Domain):
                self._fuel -= 1
                if domain.about != group.domain.about:
                    self._by_size.setdefault(domain.about, []).append(group)
                group.domain = domain
                because = _in_common(group, [s for s, _ in sources])
                break
            refused.append((group, domain))
        else:
            group = Group(len(self._tasks), _own_domain(value, together))
            self._tasks.append(group)
            self._by_size.setdefault(group.domain.about, []).append(group)
            because = (
                "where it is put is data: nothing goes with it" if isinstance(value, Scatter) else "begins a kernel"
            )
        group.members[value] = Decision(because, tuple(refused))
        self._order.require(group, before - {group})
        group.reads |= {s for s, _ in sources}
        self._last[group] = max(self._last.get(group, -1), self._position.get(value, self._now))
        self._group_of[value] = group
        for source, _ in sources:
            self._reading.setdefault(source, []).append(group)

    def _is_put_together(self, value: Value) -> bool:
        """Whether a tensor is parts that one group makes, each of which it can write where it belongs."""
        found = parts_of(value, range(len(value.shape)))
        group = self._group_of.get(found[1][0]) if found and self._fuel > 0 else None
        if group is None or group.scatter is not None:
            return False
        assert found is not None
        places = [place(part, group.domain) if part in group.members else None for part in found[1]]
        if any(at is None or at.level != "full" for at in places):
            return False
        group.whole[value] = found
        self._fuel -= 1
        self._group_of[value] = group
        self._last[group] = max(self._last[group], self._position.get(value, -1))
        return True

    def _candidates(self, value: Value, sources: Sequence[Read]) -> Iterable[Group]:
        """Groups that make, or read, what the value reads, much of it before little; and others with as many
        elements; the latest first."""
        near = [self._group_of[s] for s, _ in sources if s in self._group_of]
        near += [g for s, _ in sources for g in self._reading.get(s, [])[-4:]]
        if value.about > 1 or isinstance(value, Reduce):
            near += self._by_size.get(value.inputs[0].about if isinstance(value, Reduce) else value.about, [])[-2:]
        large = [s for s, _ in sources if s.about * ROW > value.about]
        shared = {g for g in near if any(s in g.members or s in g.reads for s in large)}
        return dict.fromkeys(sorted(near, key=lambda g: (g not in shared, -g.number)))

    def _joins(
        self, value: Value, group: Group, sources: Sequence[Read], before: set[Task], together: int | None
    ) -> Domain | str:
        """The domain the group has with the value in it, or why they do not go together."""
        if len(group.members) >= _LARGEST:
            return f"it has {_LARGEST} values already"
        if group.scatter is not None:
            return "it puts elements where a tensor says"
        why = f"its loops are not over {list((value.arg if isinstance(value, Reduce) else value).shape)}"
        for domain in _ways(group.domain, value, together):
            at = place(value, domain)
            if at is None:
                continue
            misfit = _misfit(value, at, group, domain, sources)
            if not misfit and at.level == "row" and is_dear(value) and not self._has_room(group, domain):
                columns = self._machine.columns_beside_a_function
                misfit = f"for each {columns} columns one function of a row at most"
            if misfit:
                why = misfit
            elif any(self._order.depends(task, group) for task in before if task is not group):
                return "what is read here is made from its results"
            else:
                return domain
        return why

    def _has_room(self, group: Group, domain: Domain) -> bool:
        """Whether its rows are long enough for one more expensive operation on a number for the row."""
        dear = [v for v in group.members if is_dear(v) and (at := place(v, domain)) is not None and at.level == "row"]
        needed = self._machine.columns_beside_a_function * (len(dear) + 1)
        return needed <= math.prod(hint(a.size) for a in domain.column_axes)

    def _would_wait(self, value: Value, group: Group, sources: Sequence[Read]) -> bool:
        """Whether a value would wait for a group that has next to nothing in common with it, or that for the value,
        holding on to what it reads."""
        if any(s.about > group.domain.about // ROW and (s in group.members or s in group.reads) for s, _ in sources):
            return False
        at, last = self._position.get(value, self._now), self._last[group]
        held = self._held_near if abs(at - last) < _NEAR else _HELD
        if at < last:
            waiting = {s for s, _ in sources}
        elif all(s in group.members or s in group.reads or self._task_of(s) is None for s, _ in sources):
            return value.nbytes > held  # it need not wait, but be kept until somebody reads it
        else:
            waiting = group.reads
        return sum(s.nbytes for s in waiting if self._task_of(s) is not None) > held

    def _shrinks(self, group: Group, stored: Mapping[Value, Group]) -> bool:
        """Whether next to nothing is left of what a group reads: sums, mostly."""
        read = sum(s.about for s in group.reads if self._task_of(s) is not None)
        return sum(v.about for v in (*group.members, *group.whole) if v in stored) * ROW <= read

    # ── what a value reads ───────────────────────────────────────────────────────────────────────────────────────

    def _read_by(self, value: Value) -> tuple[Read, ...]:
        """The placed values and the memory that computing one element reads, each with the index there."""
        if isinstance(value, Reduce):
            return self._through(value.arg)
        if isinstance(value, View):
            return self._at(value.arg, value.where)
        if isinstance(value, Scatter):
            own = own_index(value.arg.shape)
            numbers = (read for v in (value.arg, *(n for _, n in value.found)) for read in self._at(v, own))
            return (*self._at(value.into, own_index(value.shape)), *numbers)
        if isinstance(value, Gather):
            numbers = (read for _, number in value.found for read in self._at(number, own_index(value.shape)))
            return (*self._at(value.arg, value.where), *numbers)
        if isinstance(value, Within):
            return (*self._at(value.arg, value.where), *self._at(value.other, own_index(value.shape)))
        return tuple(read for a in value.inputs for read in self._at(a, broadcast(a.shape, value.shape)))

    def _through(self, value: Value) -> tuple[Read, ...]:
        """What is read for an element of ``value``: itself if it is placed or in memory, else what it is made of."""
        if value in self._group_of or isinstance(value, Memory):
            return ((value, own_index(value.shape)),)
        if value not in self._sources:
            self._sources[value] = self._read_by(value)
        return self._sources[value]

    def _at(self, value: Value, where: Sequence[Index]) -> tuple[Read, ...]:
        inner = dict(zip(axes_of(value.shape), where, strict=True))
        return tuple((s, tuple(substitute(i, inner) for i in index)) for s, index in self._through(value))

    def _together(self, shape: Sequence[int], sources: Sequence[Read]) -> int | None:
        """The dimension of what reads these, at an index into ``shape``, along which most of it lies together in
        memory."""
        axes = axes_of(shape)
        votes: Counter[int] = Counter()
        if hint(math.prod(shape)) >= _AGAIN * max((source.about for source, _ in sources), default=math.inf):
            return None
        for source, where in sources:
            strides = source.strides if isinstance(source, Memory) else self._strides.get(source)
            inner = self._inner.get(source) if strides is None else innermost(source.shape, strides)
            if inner is not None:
                votes.update({d: source.about for d, axis in enumerate(axes) if where[inner].coefficient(axis) == 1})
        return votes.most_common(1)[0][0] if votes else None

    def _task_of(self, source: Value) -> Task | None:
        if isinstance(source, Memory):
            return self._maker.get(source.name)
        return self._group_of[source]

    def _is_free(self, value: Value) -> bool:
        return value not in self._group_of and (
            is_given(value) or self._cost_of(value) <= (_FREE_NUMBER if value.numel == 1 else _FREE)
        )

    def _cost_of(self, value: Value) -> float:
        """Operations to compute an element again; infinite where a loop, or reading much, would be needed."""
        if value in self._group_of:
            return 0 if value.numel == 1 else math.inf
        if value not in self._cost:
            read = [v for v in value.inputs if isinstance(value, View) or not self._is_small(v, value)]
            self._cost[value] = own_cost(value, self._machine, in_lanes=value.numel != 1) + sum(
                map(self._cost_of, read)
            )
        return self._cost[value]

    def _is_small(self, value: Value, beside: Value) -> bool:
        """Whether it is there, or a view of what is, and next to nothing to read: one number for each row."""
        value = whole(value)
        return value in self._group_of and value.about * ROW <= beside.about

    # ── done ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def done(self) -> Fused:
        stored: dict[Value, Group] = {v: self._group_of[v] for v in self._wanted if v in self._group_of}
        for value, groups in self._reading.items():
            own = self._group_of.get(value)
            if own is not None and any(g is not own for g in groups):
                stored[value] = own
        tasks = _in_order(self._tasks, {t for t in self._tasks if isinstance(t, Group) and self._shrinks(t, stored)})
        compute_again(tasks, stored, self._wanted, self._group_of, self._task_of, self._machine)
        return Fused(tuple(tasks), stored)


def _misfit(value: Value, at: Place, group: Group, domain: Domain, sources: Sequence[Read]) -> str:
    """Why something that is read within the group is not there when it is read, at the very element at which it is
    computed; or ""."""
    if domain != group.domain and any(place(member, domain) is None for member in group.members):
        return "its values do not go into the loops this one needs"
    own = _index_of_arguments(value, at, domain)
    if own is None:
        return "it adds up over other loops"
    inner = dict(zip(axes_of(value.arg.shape if isinstance(value, Reduce) else value.shape), own, strict=True))
    for source, where in sources:
        if source in group.whole:
            return "what is read is put together here"
        if source not in group.members:
            continue
        there = place(source, domain)
        if there is None or there.level in ("total", "row total"):
            return "what is read is a total over its rows, known when it is done"
        read = tuple(substitute(i, inner) for i in where)
        if not all(_same(a, b, there.written_out) for a, b in zip(read, there.index, strict=True)):
            return "what is read is made in other turns of its loops"
    return ""


def _unfinished(value: Value) -> Iterable[Value]:
    """What a tensor that is put together from parts is before all of them are there: nobody needs that."""
    if parts_of(value, range(len(value.shape))):
        while isinstance(value, Within) and isinstance(value.other, Within):
            value = value.other
            yield value


def _in_common(group: Group, sources: Sequence[Value]) -> str:
    if not group.members.keys().isdisjoint(sources):
        return "reads what is made here"
    return "reads what is read here" if not group.reads.isdisjoint(sources) else "has as many elements"


def _index_of_arguments(value: Value, at: Place, domain: Domain) -> tuple[Index, ...] | None:
    """The index, in terms of the loops, at which the argument of a reduction is read: that of the reduction
    elsewhere."""
    if not isinstance(value, Reduce):
        return at.index
    argument = place(View(value.arg.shape, value.arg.dtype, value.arg, ()), domain)
    return None if argument is None or (argument.level != "full" and at.level != "row total") else argument.index


def _same(read: Index, made: Index, written_out: Axis | None) -> bool:
    if read == made:
        return True
    return (
        written_out is not None
        and made.axes == {written_out}
        and (not read.terms or read.axes <= {Axis("u", written_out.size)})
    )


def _own_domain(value: Value, together: int | None) -> Domain:
    """The loops of a value that stands alone."""
    if not isinstance(value, (Reduce, Scan)):
        return Domain(core(value.arg.shape if isinstance(value, Scatter) else value.shape))
    plain = Domain(core(value.arg.shape))
    return plain if len(core(value.shape)) == 0 else decide(plain, value, together) or plain


def _ways(domain: Domain, value: Value, together: int | None) -> Iterable[Domain]:
    """The domain, and what it may be turned into for a value: loops cut, a small one written out, columns chosen."""
    shape = value.arg.shape if isinstance(value, Reduce) else value.shape
    if not domain.sizes or not core(shape):
        if domain.sizes == core(shape):
            yield domain
        return
    shapes = [d for d in (domain, refine(domain, shape), widen(domain, shape)) if d is not None]
    for way in dict.fromkeys(shapes):
        yield way
        if isinstance(value, (Reduce, Scan)):
            decided = decide(way, value, together)
            if decided is not None:
                yield decided


def _in_order(tasks: Sequence[Task], early: Set[Task]) -> list[Task]:
    """The tasks so that each comes after what it needs; where that leaves a choice, ``early`` ones as soon as they
    can be done, so that what they read is free, the others as they were formed: shortly before what reads them."""
    readers: dict[Task, list[Task]] = {}
    for task in tasks:
        for other in task.after if task in early else ():
            readers.setdefault(other, []).append(task)
    done: dict[Task, None] = {}
    for task in tasks:
        pending = [(task, False)]
        while pending:
            current, ready = pending.pop()
            if current in done:
                continue
            if ready:
                done[current] = None
                pending += [(t, True) for t in readers.get(current, ()) if all(other in done for other in t.after)]
            else:
                pending.append((current, True))
                pending += [(t, False) for t in sorted(current.after, key=lambda t: t.number) if t not in done]
    return list(done)
