"""What every backend takes and gives: a Graph becomes Kernels, a Schedule, Sources (the first is the function that is called), and a
function of tensors."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from attrs import field, frozen
from torch import fx

from ..graphs import Graph, Place, call_text, memory_of, nbytes, storage_map, type_text, value_of, where_of
from ..liveness import Alive, chart_of
from ..loops.ir import Buffer, Kernel
from ..loops.memory import Arena, origins, plan
from ..show import Doc, Shown, Table, elided, in_bytes
from ..sizes import Size, hint
from ..slots import Saved, Slot
from ..source import Source

_SHOWN = 160
"""Characters of a call that are shown."""


@frozen(eq=False)
class Extern:
    """One call of a library operator; ``why`` says why it is no fused kernel."""

    node: fx.Node
    why: str


@frozen(eq=False, repr=False)
class Kernels(Shown):
    """What a graph is lowered to, in order. ``graph`` says what goes in and out."""

    graph: Graph
    steps: tuple[Extern | Kernel, ...]

    def headline(self) -> str:
        kernels = sum(isinstance(step, Kernel) for step in self.steps)
        count = f"{kernels} kernels, " if kernels else ""
        return f"kernels of {self.graph.name}: {count}{len(self.steps) - kernels} library calls"

    def doc(self) -> Doc:
        externs = [step for step in self.steps if isinstance(step, Extern)]
        kernels = [step for step in self.steps if isinstance(step, Kernel)]
        reasons = sorted({step.why for step in externs})
        said_once = len(reasons) == 1
        rows = [
            (n.name, elided(call_text(n), _SHOWN), type_text(n.meta.get("val")), where_of(n) or "", "" if said_once else step.why)
            for step in externs
            for n in (step.node,)
        ]
        title = self.headline() + (f" ({reasons[0]})" if said_once else "")
        calls = (Table(("", "call", "type", "from", "why"), tuple(rows), "library calls"),) if rows else ()
        return Doc(title, (*(k.doc() for k in kernels), *calls))


@frozen(eq=False)
class Call:
    """Run one extern call; ``into`` names a value that dies here and whose memory takes the result. ``same``: it is a view of what has been
    made in its shape, and there is nothing to run."""

    node: fx.Node
    into: fx.Node | None = None
    same: bool = False
    whole: frozenset[str] = frozenset()
    """Of an opaque call, the arguments that it writes to and is given as they are: it is given copies of the others."""


@frozen(eq=False)
class Free:
    """Drop the last references to these values."""

    names: tuple[str, ...]


@frozen(eq=False)
class Allocate:
    """Memory for what a kernel writes; ``over`` names a value whose memory it is: one that dies in that kernel, or one of which it is a
    part, ``at`` so many elements from its start."""

    buffer: Buffer
    over: str | None = None
    at: int | None = None


@frozen(eq=False, slots=False)
class Launch:
    """Run kernels one after the other, in one call. ``scratch``: buffers that only these kernels know, placed in one arena.

    ``room``: the memory of the arena, where the stack does not do. ``checks``: bools among the scratch that the kernels leave; the call
    returns whether one of them is true.
    """

    name: str
    kernels: tuple[Kernel, ...]
    scratch: tuple[Buffer, ...]
    checks: tuple[Buffer, ...] = ()
    room: Buffer | None = None
    places: Mapping[str, tuple[Buffer, int]] = field(factory=dict)
    """The buffers that lie in arenas of the program, by name: in which, and its offset in bytes."""

    @functools.cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers its kernels read and write, each once, without the scratch."""
        reads = [b for k in self.kernels for b in k.reads]
        own = {b.name for b in self.scratch}
        every = {b.name: b for b in (*reads, *(b for k in self.kernels for b in k.writes))}
        return tuple(b for name, b in every.items() if name not in own)

    @functools.cached_property
    def arena(self) -> Arena:
        return plan(self.kernels, self.scratch, self.checks)

    @functools.cached_property
    def origins(self) -> dict[str, str]:
        """The buffers written in the place of others, each with the first that lay there."""
        return origins(self.kernels)

    @functools.cached_property
    def arguments(self) -> tuple[Buffer, ...]:
        """The buffers it is called with: those that have a place of their own."""
        elsewhere = self.origins
        return tuple(b for b in self.buffers if b.name not in elsewhere)

    @property
    def takes(self) -> tuple[Buffer, ...]:
        """All it is called with: its arguments, and the room for its scratch."""
        return (*self.arguments, *([self.room] if self.room else ()))


Step = Call | Free | Allocate | Launch


@frozen(eq=False, repr=False)
class Schedule(Shown):
    """Calls in order, each value freed right after its last reader."""

    graph: Graph
    steps: tuple[Step, ...]

    def doc(self) -> Doc:
        rows: list[tuple[str, ...]] = []
        arenas = {name: at.name for step in self.steps if isinstance(step, Launch) for name, (at, _) in step.places.items()}
        held = Counter(arenas.values())
        for step in self.steps:
            if isinstance(step, Free):
                rows.append(("free", ", ".join(step.names), "", ""))
            elif isinstance(step, Allocate):
                place = f"{'in place' if step.at is None else 'part'} of {step.over}" if step.over else ""
                place = f"an arena for {held[step.buffer.name]} buffers" if held[step.buffer.name] else place
                rows.append(("allocate", step.buffer.name, place, "" if step.over else in_bytes(size_of(step.buffer))))
            elif isinstance(step, Launch):
                own = {b.name for b in step.scratch}
                arena = [f"{len(step.arena.offsets)} buffers in an arena"] if step.arena.offsets else []
                places = [f"{new} in place of {old}" for k in step.kernels for new, old in k.over.items() if new in own]
                size = in_bytes(step.arena.nbytes) if arena else ""
                rows.append(("launch", ", ".join(k.name for k in step.kernels), "; ".join([*arena, *places]), size))
            else:
                how = f"into {step.into.name}" if step.into else "made in this shape" if step.same else ""
                rows.append(("call", elided(call_text(step.node), _SHOWN), how, in_bytes(nbytes(step.node.meta.get("val")))))
        calls = sum(isinstance(s, Call) for s in self.steps)
        reused = sum(isinstance(s, Call) and s.into is not None for s in self.steps)
        over = sum(len(k.over) for s in self.steps if isinstance(s, Launch) for k in s.kernels)
        return Doc(
            f"schedule of {self.graph.name}: {calls} calls, {reused} in place" + (f"; {over} results of kernels in place" if over else ""),
            (chart_of(alive_in([self]).history), Table(("", "what", "memory", "bytes"), tuple(rows), "steps")),
        )


_Piece = tuple[int, Place]
"""Memory: of which schedule, and where in its graph."""


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
                if len(pieces) == len(own) == 1:  # whatever the storage is called: forward may have been rewritten to make it otherwise
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


def alive_in(schedules: Sequence[Schedule], workspace: Callable[[fx.Node], int] = lambda node: 0) -> Alive:
    """What is allocated as schedules go on, one after the other; in the end, the memory of their results. What one has saved for the next
    is freed after its last reader there. ``workspace``: bytes that a library call takes besides its result, while it runs."""
    alive = Alive()
    saved: dict[Slot, str] = {}  # by the schedule before, under which names
    pieces = _Pieces(0, schedules[0].graph, {})
    for k, schedule in enumerate(schedules):
        graph = schedule.graph
        if k:
            pieces = _Pieces(k, graph, {slot: pieces.of(name) for slot, name in saved.items()})
        for slot, node in zip(graph.signature.ins, graph.placeholders, strict=True):
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
                held = pieces.held(step.node.name, memory_of(value_of(step.node)))
                alive.hold((k, step.node.name), held, workspace(step.node))
            elif isinstance(step, Free):
                for name in step.names:
                    alive.drop((k, name))
        results = zip(graph.signature.outs, graph.results, strict=True)
        saved = {slot: r.name for slot, r in results if isinstance(slot, Saved)}
    return alive


def bytes_buffer(name: str, size: int) -> Buffer:
    """Memory for whatever lies in it."""
    return Buffer(name, (size,), torch.uint8, (1,))


def is_static(buffer: Buffer) -> bool:
    """Whether it has as many bytes in every call."""
    return not any(isinstance(n, Size) for n in (*buffer.shape, *buffer.strides))


def size_of(buffer: Buffer) -> int:
    """Bytes of a buffer; of one that is not static, in the call that is compiled."""
    return hint(math.prod(buffer.shape)) * buffer.dtype.itemsize


Runnable = Callable[..., Sequence[Any]]


def compiled_bodies(backend: Backend, names: Mapping[str, Any]) -> dict[str, Any]:
    """What printed Python refers to by name: bodies of control flow as functions that the same backend has compiled, each once."""
    return {
        name: backend.build(backend.emit(backend.schedule(backend.lower(value)))) if isinstance(value, Graph) else value
        for name, value in names.items()
    }


class Backend(Protocol):
    """The four steps of a backend. Values in and out of a runnable are those of the graph's signature, in order."""

    name: str
    fuses: bool
    """Whether a value can be computed in the kernel that reads it."""
    rewritings: Mapping[str, Callable[[Graph], Graph]]
    """By name, in order, what makes of a joint graph one that this backend runs faster, and that computes the same."""

    def lower(self, graph: Graph) -> Kernels: ...

    def schedule(self, kernels: Kernels) -> Schedule: ...

    def emit(self, schedule: Schedule) -> tuple[Source, ...]: ...

    def build(self, sources: Sequence[Source]) -> Runnable: ...
