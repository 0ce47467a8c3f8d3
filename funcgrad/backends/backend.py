"""What every backend takes and gives: a Graph becomes Kernels, a Schedule, a Source, and a function of tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from attrs import frozen
from torch import fx

from ..graphs import Graph, call_text, nbytes, type_text, where_of
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
    steps: tuple[Extern, ...]

    def doc(self) -> Doc:
        reasons = sorted({step.why for step in self.steps})
        said_once = len(reasons) == 1
        rows = [
            (n.name, call_text(n), type_text(n.meta.get("val")), where_of(n) or "", "" if said_once else step.why)
            for step in self.steps
            for n in (step.node,)
        ]
        title = f"kernels of {self.graph.name}: {len(rows)} extern calls" + (f" ({reasons[0]})" if said_once else "")
        return Doc(title, (Table(("", "call", "type", "from", ""), tuple(rows)),))


@frozen(eq=False)
class Call:
    """Run one extern call; ``into`` names a value that dies here and whose memory takes the result."""

    node: fx.Node
    into: fx.Node | None = None


@frozen(eq=False)
class Free:
    """Drop the last references to these values."""

    nodes: tuple[fx.Node, ...]


@frozen(eq=False)
class Schedule(Shown):
    """Calls in order, each value freed right after its last reader."""

    graph: Graph
    steps: tuple[Call | Free, ...]

    def doc(self) -> Doc:
        rows: list[tuple[str, ...]] = []
        for step in self.steps:
            if isinstance(step, Free):
                rows.append(("free", ", ".join(n.name for n in step.nodes), "", ""))
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

    def lower(self, graph: Graph) -> Kernels: ...

    def schedule(self, kernels: Kernels) -> Schedule: ...

    def emit(self, schedule: Schedule) -> Source: ...

    def build(self, source: Source) -> Runnable: ...
