"""One arena for the small buffers of a program that kernels alone know: one allocation, and addresses in the place of tensors.

A tensor takes a microsecond to make and to drop, as long as a small kernel runs. Large buffers have memory of their own, which is free
for others as soon as they are not needed; small ones among many hardly count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import evolve
from torch import fx

from ..graphs import Graph
from ..loops.ir import Buffer
from ..loops.memory import Arena, place
from .backend import Allocate, Call, Launch, bytes_buffer, size_of

_SMALL = 1 << 16
"""Bytes of a buffer up to which it goes into the arena."""

_WORTH, _MOST = 4, 1000
"""How many buffers make an arena; with more than the most, it would take long to find their places."""


def with_arena(graph: Graph, steps: Sequence[Call | Allocate | Launch]) -> list[Call | Allocate | Launch] | None:
    """The steps, with small buffers in an arena; None where it is not worth it."""
    origins = _origins(graph, steps)
    buffers = {s.buffer.name: s.buffer for s in steps if isinstance(s, Allocate) and s.over is None}
    roots = [buffers[name] for name in dict.fromkeys(origins.values())]
    if not _WORTH <= len(roots) <= _MOST:
        return None
    life: dict[str, tuple[int, int]] = {}
    for i, step in enumerate(steps):
        for b in step.buffers if isinstance(step, Launch) else ():
            if b.name in origins:
                root = origins[b.name]
                life[root] = (life.get(root, (i, i))[0], i)
    arena = place(roots, life)
    names = {n.name for n in graph.fx.nodes}
    memory = bytes_buffer(
        next(name for name in ("memory", *(f"memory{i}" for i in range(len(names) + 1))) if name not in names), arena.nbytes
    )
    return list(_placed(steps, origins, arena, memory))


def _origins(graph: Graph, steps: Sequence[Call | Allocate | Launch]) -> dict[str, str]:
    """The buffers that can go into the arena, each with the first that lies in its place."""
    known = {r.name for r in graph.results if isinstance(r, fx.Node)}
    known |= {n.name for s in steps if isinstance(s, Call) for n in (s.node, *s.node.all_input_nodes)}
    known |= {s.room.name for s in steps if isinstance(s, Launch) and s.room}
    origins: dict[str, str] = {}
    for step in steps:
        if isinstance(step, Allocate):
            name = step.buffer.name
            if step.over is None and size_of(step.buffer) <= _SMALL:
                origins[name] = name
            elif step.over in origins:
                origins[name] = origins[step.over]
    tensors = {origin for name, origin in origins.items() if name in known}
    return {name: origin for name, origin in origins.items() if origin not in tensors}


def _placed(
    steps: Sequence[Call | Allocate | Launch], origins: dict[str, str], arena: Arena, memory: Buffer
) -> Iterator[Call | Allocate | Launch]:
    begun = False
    for step in steps:
        if isinstance(step, Allocate) and step.buffer.name in origins:
            if not begun:
                yield Allocate(memory)
            begun = True
            continue
        if isinstance(step, Launch):
            places = {b.name: arena.offsets[origins[b.name]] for b in step.buffers if b.name in origins}
            yield evolve(step, memory=memory, places=places) if places else step
        else:
            yield step
