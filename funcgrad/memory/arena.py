"""Static memory planning by live ranges: arenas for the small buffers of a program that kernels alone know.

A tensor takes a microsecond to make and to drop, as long as a small kernel runs. Buffers that are made one after the
other mostly die together: an arena is one allocation for several, with addresses in the place of tensors, and lives
from the first of them to the last. None is so large that the C library asks the system for its memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from attrs import evolve
from torch import fx

from ..graphs import Graph
from ..loops.ir import Buffer
from .scratch import skewed
from .steps import Allocate, Call, Launch, bytes_buffer, size_of

_SMALL = 1 << 15
"""Bytes of a buffer up to which it goes into an arena."""

_LARGEST = 3 << 15
"""Bytes of an arena: below what glibc takes from the system, and gives back, each time."""

_WORTH = 4
"""How many buffers make it worth while."""


_Place = tuple[Buffer, int]
"""In which arena a buffer lies, and where: bytes."""


def with_arenas(graph: Graph, steps: Sequence[Call | Allocate | Launch]) -> list[Call | Allocate | Launch] | None:
    """The steps, with small buffers in arenas; None where it is not worth it."""
    origins = _origins(graph, steps)
    buffers = {s.buffer.name: s.buffer for s in steps if isinstance(s, Allocate) and s.over is None}
    roots = [buffers[name] for name in dict.fromkeys(origin for origin, _ in origins.values())]
    if len(roots) < _WORTH:
        return None
    places = _places(graph, roots)
    found = {name: (places[origin][0], places[origin][1] + at) for name, (origin, at) in origins.items()}
    return list(_placed(steps, found))


def _places(graph: Graph, buffers: Sequence[Buffer]) -> dict[str, _Place]:
    """Arenas are filled one after the other, in the order in which buffers are made."""
    arenas: list[list[tuple[str, int]]] = [[]]
    end, ends = 0, list[int]()
    for b in buffers:
        size = skewed(size_of(b))
        if end + size > _LARGEST:
            ends.append(end)
            arenas.append([])
            end = 0
        arenas[-1].append((b.name, end))
        end += size
    taken = {n.name for n in graph.fx.nodes}
    free = (name for i in range(len(taken) + len(arenas)) if (name := f"memory{i}") not in taken)
    found: dict[str, _Place] = {}
    for held, size in zip(arenas, (*ends, end), strict=True):
        arena = bytes_buffer(next(free), size)
        found |= {name: (arena, offset) for name, offset in held}
    return found


def _origins(graph: Graph, steps: Sequence[Call | Allocate | Launch]) -> dict[str, tuple[str, int]]:
    """The buffers that can go into an arena, each with the first that lies in its place, or has it as a part; and
    where in that: bytes."""
    known = {r.name for r in graph.results if isinstance(r, fx.Node)}
    known |= {n.name for s in steps if isinstance(s, Call) for n in (s.node, *s.node.all_input_nodes)}
    known |= {s.room.name for s in steps if isinstance(s, Launch) and s.room}
    origins: dict[str, tuple[str, int]] = {}
    for step in steps:
        if isinstance(step, Allocate):
            name = step.buffer.name
            if step.over is None and size_of(step.buffer) <= _SMALL:
                origins[name] = name, 0
            elif step.over in origins:
                origin, at = origins[step.over]
                origins[name] = origin, at + (step.at or 0) * step.buffer.dtype.itemsize
    tensors = {origin for name, (origin, _) in origins.items() if name in known}
    return {name: place for name, place in origins.items() if place[0] not in tensors}


def _placed(
    steps: Sequence[Call | Allocate | Launch], places: Mapping[str, _Place]
) -> Iterator[Call | Allocate | Launch]:
    begun: set[Buffer] = set()
    for step in steps:
        if isinstance(step, Allocate) and step.buffer.name in places:
            arena, _ = places[step.buffer.name]
            if arena not in begun:
                begun.add(arena)
                yield Allocate(arena)
        elif isinstance(step, Launch):
            here = {b.name: places[b.name] for b in step.buffers if b.name in places}
            yield evolve(step, places=here) if here else step
        else:
            yield step
