"""Rematerialisation between kernels: what a later one computes again instead of reading it.

To write a tensor and to read it back takes longer than a few functions. A value is computed again where all that it is
made of is read there anyway, or takes no more memory than the value itself would, nor longer to read than to write and
read the value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from attrs import frozen

from ..machine import Machine
from ..walks import reached
from .costs import ROW, own_cost
from .gather import Gather
from .groups import Group, Task
from .values import Count, Map, Memory, Number, Reduce, Value, View, Within

_AT_MOST = 16
"""Bytes that could be moved while an element is computed again: a number that is written (into a line of cache, which
is read first), and read, by one kernel or two."""

_PUT = 2
"""The same of an element that is put where a tensor says: threads seldom share these, as they would those of a kernel
before."""

_LOOKS = 3
"""Ways in which it looks at tensors: what takes an element from each of many places (a window) is read from one."""

_EQUALITIES, _ORDER = ("eq", "ne"), ("lt", "le", "gt", "ge")
_FROM = 1 << 12
"""Elements that do not stay in the nearest cache from one kernel to the next."""


@frozen(eq=False)
class _Recipe:
    """What a value is computed from, of which ``kept`` is not in memory yet; the operations for an element, and
    whether it gathers some."""

    sources: frozenset[Value]
    kept: frozenset[Value]
    cost: float
    gathers: bool


def compute_again(
    tasks: Sequence[Task], stored: dict[Value, Group], wanted: set[Value], group_of: Mapping[Value, Group],
    maker: Callable[[Value], Task | None], machine: Machine,
) -> None:  # fmt: skip
    """Let groups that come later compute what they read from others. ``stored``: what kernels leave for others, and
    which; ``wanted``: what has to be in memory; ``maker``: the task that makes a value. Changes ``stored``, and what
    groups read; their order stands, since what is read instead is made before. ``machine``: what runs it."""
    at = {task: i for i, task in enumerate(tasks)}
    readers: dict[Value, list[Group]] = {}
    for task in tasks:
        for value in task.reads if isinstance(task, Group) else ():
            readers.setdefault(value, []).append(task)  # type: ignore[arg-type]
    for value, own in list(stored.items()):
        later = [g for g in readers.get(value, ()) if g is not own]
        if value in wanted or value.about < _FROM or not later or any(_compares(g, value) for g in later):
            continue
        recipe = _recipe(value, stored, group_of, machine)
        if (
            recipe is None
            or _reads_more(value, recipe, later)
            or not all(_pays(value, recipe, g, stored, readers, at, maker, machine) for g in later)
        ):
            continue
        del stored[value]
        stored.update({source: group_of[source] for source in recipe.kept})
        for group in later:
            group.reads.discard(value)
            group.reads.update(recipe.sources)
            for source in recipe.sources:
                readers.setdefault(source, []).append(group)


def _compares(group: Group, value: Value) -> bool:
    """Whether a group asks which elements of a value are equal to others, or lie beyond its own maximum, which was
    found before: computed again, they may be rounded otherwise (where a loop ends, it is no vector), and none is."""
    if not value.dtype.is_floating_point:
        return False
    comparisons = [[*map(_signless, v.args)] for v in group.members if isinstance(v, Map) and v.op in _ORDER]
    equalities = [[*map(_signless, v.args)] for v in group.members if isinstance(v, Map) and v.op in _EQUALITIES]
    return any(value in args for args in equalities) or any(
        value in args and any(isinstance(v, Reduce) and _signless(v.arg) is value for v in args) for args in comparisons
    )


def _signless(value: Value) -> Value:
    """What a value has the elements of, but for their signs."""
    while isinstance(value, View) or (isinstance(value, Map) and value.op in ("abs", "neg")):
        value = value.inputs[0]
    return value


def _recipe(
    value: Value, stored: Mapping[Value, Group], group_of: Mapping[Value, Group], machine: Machine
) -> _Recipe | None:
    """How to compute a value from what is in memory; None where that takes a loop, or too long."""
    sources: set[Value] = set()
    kept: set[Value] = set()
    most = machine.operations_meanwhile(_AT_MOST)
    cost, looks, gathers, pending, seen = 0.0, 0, False, [value], {value}
    while pending:
        current = pending.pop()
        if current is not value and (current in stored or isinstance(current, Memory)):
            sources.add(current)
        elif isinstance(current, (Map, View, Within, Number, Count, Gather)):
            cost += own_cost(current, machine)
            gathers = gathers or isinstance(current, Gather)
            looks += isinstance(current, (View, Within)) and current.arg.about * ROW > value.about
            new = [v for v in current.inputs if v not in seen]
            seen.update(new)
            pending += new
        elif current is not value and current in group_of and current.about * ROW <= value.about:
            sources.add(current)
            kept.add(current)
        else:
            return None
        if cost > most or looks > _LOOKS:
            return None
    return _Recipe(frozenset(sources), frozenset(kept), cost, gathers)


def _reads_more(value: Value, recipe: _Recipe, groups: Sequence[Group]) -> bool:
    """Whether groups would read more bytes for what they do not read anyway than to write a value once, and to read
    it in each, takes: a state that every step makes of the one before would be made of all steps before."""
    more = sum(s.nbytes for g in groups for s in recipe.sources if s not in g.reads and s not in g.members)
    return more > value.nbytes * (1 + len(groups))


def _pays(
    value: Value, recipe: _Recipe, group: Group, stored: Mapping[Value, Group],
    readers: Mapping[Value, Sequence[Group]],
    at: Mapping[Task, int], maker: Callable[[Value], Task | None], machine: Machine,
) -> bool:  # fmt: skip
    """Whether a group computes it in few operations, and what has to be kept for it, and would not be, is no more
    than the value."""
    more = 0
    for source in recipe.sources:
        is_given = isinstance(source, Memory) and maker(source) is None
        more += 0 if is_given or any(at[g] >= at[group] for g in readers.get(source, ())) else source.nbytes
    # what is broadcast there would be computed for each place it goes to
    spread = max(1.0, group.domain.about / value.about)
    most = machine.operations_meanwhile(_AT_MOST if group.scatter is None else _PUT)
    if more > value.nbytes:
        return False
    if recipe.gathers and group.scatter is None:  # what was gathered is read faster, since it is in order
        return False
    return recipe.cost * spread * _times(value, group, stored) <= most


def _times(value: Value, group: Group, stored: Mapping[Value, Group]) -> float:
    """In how many ways a group looks at a value: so many times it would compute each element. By an index that is
    data: who knows."""
    ways: set[object] = set()

    def before(current: Value) -> list[Value]:
        return [v for v in current.inputs if v is not value and v not in stored]

    for current in reached(group.members, before):
        if value in current.inputs:
            if isinstance(current, Gather):
                return math.inf
            ways.add(current.where if isinstance(current, (View, Within)) and current.inputs[0] is value else None)
    return len(ways)
