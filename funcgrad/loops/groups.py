"""What fusion makes: groups of values, each of which becomes a kernel, and library calls, with what must be done
before what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field, frozen
from torch import fx

from .domain import Domain
from .scatter import Scatter
from .values import Value

ROW = 16
"""Elements of a row for which one more number is nothing to read, or to keep."""

TURNS = ("sin", "cos")
"""Functions of an angle: most of the work on both is the same."""

EXPENSIVE = frozenset(
    (
        "exp log sin cos tan tanh sigmoid erf erfc expm1 log1p log2 log10 exp2 asin acos atan sinh cosh asinh acosh "
        "atanh pow atan2 hypot "
        "philox0 philox1"
    ).split()
)
"""Operations that cost as much as some twenty additions."""

_SLOW = frozenset("div reciprocal sqrt rsqrt fmod remainder erfcx".split())
"""As some eight."""


def operations(op: str) -> float:
    """What an operation costs, in additions."""
    return 20.0 if op in EXPENSIVE else 8.0 if op in _SLOW else 1.0


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
    group_of: Mapping[Value, Group]
