"""What fusion makes: groups of values, each of which becomes a kernel, and library calls, with what must be done
before what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field, frozen
from torch import fx

from .domain import Domain
from .scatter import Scatter
from .values import Value


@frozen(eq=False)
class Decision:
    """Why a value is in its group, and why in none of the others that were nearer."""

    because: str
    refused: tuple[tuple[Group, str], ...]


@define(eq=False)
class Group:
    """Values that one kernel computes, with reasons. ``whole``: tensors that are some of its values one after the
    other along a dimension, which are written there at once. ``after``: the groups and externs that must be done
    before it."""

    number: int
    domain: Domain
    members: dict[Value, Decision] = field(factory=dict)
    whole: dict[Value, tuple[int, Sequence[Value]]] = field(factory=dict)
    after: set[Task] = field(factory=set)
    reads: set[Value] = field(factory=set)

    @property
    def scatter(self) -> Scatter | None:
        """What is put together here, if it is that: such a group has no other member."""
        first = next(iter(self.members))
        return first if isinstance(first, Scatter) else None


@frozen(eq=False)
class ExternTask:
    """A call the library runs, and what must be done before."""

    number: int
    node: fx.Node
    after: set[Task]


Task = Group | ExternTask


@frozen(eq=False)
class Fused:
    """Groups and externs; ``stored`` are the values that a later task reads from memory, each with the group that
    makes it."""

    tasks: tuple[Task, ...]
    stored: Mapping[Value, Group]


class Order:
    """What must be done before what. Each task has a level above those it comes after, so that a question looks only
    at those between."""

    def __init__(self) -> None:
        self._level: dict[Task, int] = {}
        self._later: dict[Task, list[Task]] = {}

    def require(self, task: Task, before: set[Task]) -> None:
        """``task`` comes after these."""
        for other in before - task.after:
            self._later.setdefault(other, []).append(task)
        task.after.update(before)
        pending = [task]
        while pending:
            current = pending.pop()
            level = 1 + max((self._level.get(t, 0) for t in current.after), default=-1)
            if level > self._level.get(current, 0):
                self._level[current] = level
                pending += self._later.get(current, ())

    def depends(self, task: Task, on: Task) -> bool:
        """Whether ``task`` cannot run before ``on`` has."""
        least = self._level.get(on, 0)
        pending, seen = [task], {task}
        while pending:
            current = pending.pop()
            if current is on:
                return True
            for other in current.after - seen:
                if self._level.get(other, 0) >= least:
                    seen.add(other)
                    pending.append(other)
        return False
