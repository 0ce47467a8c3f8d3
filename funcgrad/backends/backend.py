"""What every backend takes and gives: a Graph becomes Kernels, a Schedule, Sources (the first is the function that is called), and a
function of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import frozen
from torch import fx

from ..alive import Alive, chart_of
from ..graphs import Graph, call_text, memory_of, nbytes, storages, type_text, value_of, where_of
from ..loops.ir import Buffer, Kernel
from ..loops.memory import Arena, plan
from ..show import Doc, Shown, Table, in_bytes
from ..slots import Saved
from ..source import Source


@frozen(eq=False)
class Extern:
    """One call of a library operator; ``why`` says why it is no fused kernel."""

    node: fx.Node
    why: str


@frozen(eq=False)
class Kernels(Shown):
    """What a graph is lowered to, in order. ``graph`` says what goes in and out."""

    graph: Graph
    steps: tuple[Extern | Kernel, ...]

    def doc(self) -> Doc:
        externs = [step for step in self.steps if isinstance(step, Extern)]
        kernels = [step for step in self.steps if isinstance(step, Kernel)]
        reasons = sorted({step.why for step in externs})
        said_once = len(reasons) == 1
        rows = [
            (n.name, call_text(n), type_text(n.meta.get("val")), where_of(n) or "", "" if said_once else step.why)
            for step in externs
            for n in (step.node,)
        ]
        count = f"{len(kernels)} kernels, {len(rows)} extern calls" if kernels else f"{len(rows)} extern calls"
        title = f"kernels of {self.graph.name}: {count}" + (f" ({reasons[0]})" if said_once else "")
        return Doc(title, (*(k.doc() for k in kernels), Table(("", "call", "type", "from", ""), tuple(rows))))


@frozen(eq=False)
class Call:
    """Run one extern call; ``into`` names a value that dies here and whose memory takes the result."""

    node: fx.Node
    into: fx.Node | None = None


@frozen(eq=False)
class Free:
    """Drop the last references to these values."""

    names: tuple[str, ...]


@frozen(eq=False)
class Allocate:
    """Memory for what a kernel writes."""

    buffer: Buffer


@frozen(eq=False)
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

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """What it is called with: the buffers its kernels read and write, each once, without the scratch."""
        reads = [b for k in self.kernels for b in k.reads]
        own = {b.name for b in self.scratch}
        every = {b.name: b for b in (*reads, *(b for k in self.kernels for b in k.writes))}
        return tuple(b for name, b in every.items() if name not in own)

    @property
    def arena(self) -> Arena:
        return plan(self.kernels, self.scratch, self.checks)

    @property
    def takes(self) -> tuple[Buffer, ...]:
        """All it is called with: its buffers, and the room for its scratch."""
        return (*self.buffers, *([self.room] if self.room else ()))


Step = Call | Free | Allocate | Launch


@frozen(eq=False)
class Schedule(Shown):
    """Calls in order, each value freed right after its last reader."""

    graph: Graph
    steps: tuple[Step, ...]

    def doc(self) -> Doc:
        rows: list[tuple[str, ...]] = []
        for step in self.steps:
            if isinstance(step, Free):
                rows.append(("free", ", ".join(step.names), "", ""))
            elif isinstance(step, Allocate):
                rows.append(("allocate", step.buffer.name, "", in_bytes(size_of(step.buffer))))
            elif isinstance(step, Launch):
                arena = f"{len(step.scratch)} buffers in an arena" if step.scratch else ""
                rows.append(("launch", ", ".join(k.name for k in step.kernels), arena, in_bytes(step.arena.nbytes) if arena else ""))
            else:
                how = f"into {step.into.name}" if step.into else ""
                rows.append(("call", call_text(step.node), how, in_bytes(nbytes(step.node.meta.get("val")))))
        calls = sum(isinstance(s, Call) for s in self.steps)
        reused = sum(isinstance(s, Call) and s.into is not None for s in self.steps)
        return Doc(
            f"schedule of {self.graph.name}: {calls} calls, {reused} in place",
            (chart_of(alive_in([self]).history), Table(("", "what", "memory", "bytes"), tuple(rows))),
        )


def alive_in(schedules: Sequence[Schedule], workspace: Callable[[fx.Node], int] = lambda node: 0) -> Alive:
    """What is allocated as schedules go on, one after the other; in the end, the memory of their results. What one has saved for the next
    is freed after its last reader there. ``workspace``: bytes that a library call takes besides its result, while it runs."""
    alive = Alive()
    given = {place for n in schedules[0].graph.fx.nodes if n.op in ("placeholder", "get_attr") for place in storages(n)}
    for k, schedule in enumerate(schedules):
        nodes = {n.name: n for n in schedule.graph.fx.nodes}
        for slot, node in zip(schedule.graph.signature.ins, schedule.graph.placeholders, strict=True):
            if isinstance(slot, Saved) and k:
                alive.hold((k, node.name), {p: size for p, size in memory_of(value_of(node)).items() if p not in given})
        if k:  # from here on it lives for those that read it here
            before = schedules[k - 1].graph
            for slot, result in zip(before.signature.outs, before.results, strict=True):
                if isinstance(slot, Saved):
                    alive.drop((k - 1, result.name))
        for step in schedule.steps:
            if isinstance(step, Allocate):
                own = nodes.get(step.buffer.name)
                place = (k, step.buffer.name) if own is None else min(storages(own))
                alive.hold((k, step.buffer.name), {place: size_of(step.buffer)})
            elif isinstance(step, Call):
                if step.into is not None:
                    alive.drop((k, step.into.name))
                memory = {p: size for p, size in memory_of(value_of(step.node)).items() if p not in given}
                alive.hold((k, step.node.name), memory, workspace(step.node))
            elif isinstance(step, Free):
                for name in step.names:
                    alive.drop((k, name))
    return alive


def size_of(buffer: Buffer) -> int:
    """Bytes of a buffer."""
    return math.prod(buffer.shape) * buffer.dtype.itemsize


Runnable = Callable[..., Sequence[Any]]


class Backend(Protocol):
    """The four steps of a backend. Values in and out of a runnable are those of the graph's signature, in order."""

    name: str
    fuses: bool
    """Whether a value can be computed in the kernel that reads it."""

    def lower(self, graph: Graph) -> Kernels: ...

    def schedule(self, kernels: Kernels) -> Schedule: ...

    def emit(self, schedule: Schedule) -> tuple[Source, ...]: ...

    def build(self, sources: Sequence[Source]) -> Runnable: ...
