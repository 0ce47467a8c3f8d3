"""Liveness of memory as a program goes on, and its peak: pieces, each under the names that look at it; and how long
that of schedules is that run one after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Protocol

from torch import fx

from ..graphs import Graph, Place, memory_of, storage_map, value_of
from ..show.chart import Chart
from ..show.units import in_bytes
from ..slots import Saved, Slot
from .steps import Allocate, Call, Free, Step, size_of


class Alive:
    """``history``: bytes alive at each moment, from the first that held memory."""

    def __init__(self) -> None:
        self.now = 0
        self.history: list[int] = []
        self._size: dict[Hashable, int] = {}
        self._names: Counter[Hashable] = Counter()
        self._held: dict[Hashable, Sequence[Hashable]] = {}

    @property
    def peak(self) -> int:
        return max(self.history, default=0)

    def hold(self, name: Hashable, memory: Mapping[Any, int], besides: int = 0) -> None:
        """From this moment a name looks at pieces of memory; ``besides``: bytes that are there at this moment alone."""
        for place, size in memory.items():
            if not self._names[place]:
                self._size[place] = size
                self.now += size
            self._names[place] += 1
        self._held[name] = tuple(memory)
        self.history.append(self.now + besides)

    def drop(self, name: Hashable) -> None:
        """A piece is gone with the last name that looks at it."""
        for place in self._held.pop(name, ()):
            self._names[place] -= 1
            self.now -= 0 if self._names[place] else self._size[place]


def chart_of(history: Sequence[int], border: int | None = None, limit: int | None = None) -> Chart:
    """Bytes over time, as a drawing."""
    label = "" if limit is None else f"budget {in_bytes(limit)}"
    return Chart(tuple(history), f"memory over time, at most {in_bytes(max(history, default=0))}", border, limit, label)


_Piece = tuple[int, Place]
"""Memory: of which schedule, and where in its graph."""


class Scheduled(Protocol):
    """A graph, and what runs of it in which order."""

    @property
    def graph(self) -> Graph: ...

    @property
    def steps(self) -> tuple[Step, ...]: ...


class _Pieces:
    """Which memory the values of a schedule lie in. ``handed``: that of what the schedule before has saved, by slot."""

    def __init__(self, number: int, graph: Graph, handed: Mapping[Slot, Mapping[int, _Piece | None]]) -> None:
        self._number = number
        self._lies = storage_map(graph)
        self._other: dict[Place, _Piece | None] = {}  # what lies in other memory than its own; None: it is there before
        slots = dict(zip((n.name for n in graph.placeholders), graph.signature.ins, strict=True))
        for node in graph.fx.nodes:
            if node.op in ("placeholder", "get_attr"):
                pieces, own = handed.get(slots.get(node.name), {}), self._lies[node.name]  # type: ignore[arg-type]
                # whatever the storage is called: forward may have been rewritten to make it otherwise
                if len(pieces) == len(own) == 1:
                    ((piece,), (place,)) = pieces.values(), own.values()
                    self._other[place] = piece
                else:
                    self._other |= {place: pieces.get(storage) for storage, place in own.items()}

    def of(self, name: str) -> dict[int, _Piece | None]:
        """By storage."""
        places = self._lies.get(name, {0: (name, 0)})
        return {storage: self._other.get(p, (self._number, p)) for storage, p in places.items()}

    def held(self, name: str, sizes: Mapping[int, int]) -> dict[_Piece, int]:
        """Bytes that a name keeps alive, given those of its storages."""
        return {piece: sizes[storage] for storage, piece in self.of(name).items() if piece is not None}

    def take_over(self, name: str, old: str) -> None:
        """From now on a value lies where another one did."""
        ((_, piece),) = self.of(old).items()
        (place,) = self._lies.get(name, {0: (name, 0)}).values()
        self._other[place] = piece


def alive_in(schedules: Sequence[Scheduled], workspace: Callable[[fx.Node], int] = lambda node: 0) -> Alive:
    """What is allocated as schedules go on, one after the other; in the end, the memory of their results. What one
    has saved for the next is freed after its last reader there. ``workspace``: bytes that a library call takes
    besides its result, while it runs."""
    alive = Alive()
    saved: dict[Slot, str] = {}  # by the schedule before, under which names
    pieces = _Pieces(0, schedules[0].graph, {})
    for k, schedule in enumerate(schedules):
        graph = schedule.graph
        if k:
            pieces = _Pieces(k, graph, {slot: pieces.of(name) for slot, name in saved.items()})
        for slot, node in graph.given:
            if slot in saved:
                alive.hold((k, node.name), pieces.held(node.name, memory_of(value_of(node))))
        for name in saved.values():  # from here on it lives for those that read it here
            alive.drop((k - 1, name))
        for step in schedule.steps:
            if isinstance(step, Allocate):
                name = step.buffer.name
                if step.over:
                    pieces.take_over(name, step.over)
                alive.hold((k, name), pieces.held(name, dict.fromkeys(pieces.of(name), size_of(step.buffer))))
            elif isinstance(step, Call):
                if step.into is not None:
                    alive.drop((k, step.into.name))
                    pieces.take_over(step.node.name, step.into.name)
                held = pieces.held(step.node.name, memory_of(value_of(step.node)))
                alive.hold((k, step.node.name), held, workspace(step.node))
            elif isinstance(step, Free):
                for name in step.names:
                    alive.drop((k, name))
        saved = {slot: r.name for slot, r in graph.gives if isinstance(slot, Saved)}
    return alive
