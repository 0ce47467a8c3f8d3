"""What a graph is lowered to, and what runs in which order, in which memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from attrs import field, frozen
from torch import fx

from ..graphs import Graph, call_text, nbytes, type_text, where_of
from ..loops.ir import Kernel
from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..show.text import elided
from ..show.units import in_bytes
from .liveness import alive_in, chart_of
from .steps import Allocate, Call, Extern, Free, Launch, Step, size_of

_SHOWN = 160
"""Characters of a call that are shown."""


@frozen(eq=False, repr=False)
class Kernels(Shown):
    """What a graph is lowered to, in order. ``graph`` says what goes in and out. ``checks``: the buffers in which
    kernels leave that something is wrong, by name, each with the call it is wrong for; in the order of the graph."""

    graph: Graph
    steps: tuple[Extern | Kernel, ...]
    checks: Mapping[str, fx.Node] = field(factory=dict)

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
            (
                n.name,
                elided(call_text(n), _SHOWN),
                type_text(n.meta.get("val")),
                where_of(n) or "",
                "" if said_once else step.why,
            )
            for step in externs
            for n in (step.node,)
        ]
        title = self.headline() + (f" ({reasons[0]})" if said_once else "")
        calls = (Table(("", "call", "type", "from", "why"), tuple(rows), "library calls"),) if rows else ()
        return Doc(title, (*(k.doc() for k in kernels), *calls))


@frozen(eq=False, repr=False)
class Schedule(Shown):
    """Calls in order, each value freed right after its last reader."""

    graph: Graph
    steps: tuple[Step, ...]

    def doc(self) -> Doc:
        rows: list[tuple[str, ...]] = []
        arenas = {
            name: at.name for step in self.steps if isinstance(step, Launch) for name, (at, _) in step.places.items()
        }
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
                rows.append(
                    ("call", elided(call_text(step.node), _SHOWN), how, in_bytes(nbytes(step.node.meta.get("val"))))
                )
        calls = sum(isinstance(s, Call) for s in self.steps)
        reused = sum(isinstance(s, Call) and s.into is not None for s in self.steps)
        over = sum(len(k.over) for s in self.steps if isinstance(s, Launch) for k in s.kernels)
        return Doc(
            f"schedule of {self.graph.name}: {calls} calls, {reused} in place"
            + (f"; {over} results of kernels in place" if over else ""),
            (chart_of(alive_in([self]).history), Table(("", "what", "memory", "bytes"), tuple(rows), "steps")),
        )
