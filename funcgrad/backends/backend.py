"""What every backend takes and gives: a Graph becomes Kernels, a Schedule, Sources (the first is the function that is called), and a
function of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import frozen
from torch import fx

from ..graphs import Graph, call_text, nbytes, type_text, where_of
from ..loops.ir import Buffer, Kernel
from ..loops.memory import Arena, plan
from ..show import Doc, Shown, Table, in_bytes
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
                rows.append(("allocate", step.buffer.name, "", in_bytes(math.prod(step.buffer.shape) * step.buffer.dtype.itemsize)))
            elif isinstance(step, Launch):
                arena = f"{len(step.scratch)} buffers in an arena" if step.scratch else ""
                rows.append(("launch", ", ".join(k.name for k in step.kernels), arena, in_bytes(step.arena.nbytes) if arena else ""))
            else:
                how = f"into {step.into.name}" if step.into else ""
                rows.append(("call", call_text(step.node), how, in_bytes(nbytes(step.node.meta.get("val")))))
        calls = sum(isinstance(s, Call) for s in self.steps)
        reused = sum(isinstance(s, Call) and s.into is not None for s in self.steps)
        return Doc(
            f"schedule of {self.graph.name}: {calls} calls, {reused} in place", (Table(("", "what", "memory", "bytes"), tuple(rows)),)
        )


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
