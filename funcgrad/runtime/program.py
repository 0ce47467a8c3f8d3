"""A Program is everything one compilation made, stage by stage, and the printed call that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from ..capture.facts import Facts
from ..executable import Executable
from ..joint import Joint
from ..layers.layer import Layer
from ..memory.schedule import Kernels, Schedule
from ..partition.partition import Partition
from ..show.parts import Doc, Table
from ..show.shown import Several, Shown
from ..show.units import in_bytes, in_seconds
from ..source import Source
from .call import build_call
from .captured import CapturedCall
from .key import CallKey


@frozen(eq=False, repr=False)
class Program(Shown):
    """One compiled call: stages that can be printed, shown in a notebook and (the graphs) run.

    ``facts`` what the dry run showed · ``layers`` what stands around the kernel · ``call`` the printed call · ``joint``
    one graph of forward and backward · ``partition`` its two halves and what is saved between them · ``kernels``,
    ``schedule``, ``sources`` one entry for each graph that runs · ``seconds`` what each stage took.
    """

    name: str
    key: CallKey
    facts: Facts
    layers: tuple[Layer, ...] = field(converter=Several[Layer])
    joint: Joint
    partition: Partition
    kernels: tuple[Kernels, ...] = field(converter=Several[Kernels])
    schedule: tuple[Schedule, ...] = field(converter=Several[Schedule])
    sources: tuple[Source, ...] = field(converter=Several[Source])
    call: Source
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    seconds: Mapping[str, float]

    @staticmethod
    def of(
        name: str,
        found: CapturedCall,
        layers: tuple[Layer, ...],
        made: Executable,
        call: Source,
        seconds: Mapping[str, float],
    ) -> Program:
        """What the two halves of the spine gave, and the call that was printed of them."""
        return Program(
            name, found.key, found.facts.released(), layers, made.joint, made.partition, made.kernels, made.schedules,
            made.sources,
            call, build_call(call), seconds,
        )  # fmt: skip

    def headline(self) -> str:
        return f"program of {self.name}: {', '.join(stage.headline() for stage in self.kernels)}"

    def doc(self) -> Doc:
        """A summary, and the stages without what they have pages of their own for: drawings, halves, schedules,
        sources."""
        summary = (
            ("inputs", f"{len(self.key.leaves)} arguments, {len(self.key.captured)} captured tensors"),
            ("around the kernel", ", ".join(layer.name for layer in self.layers) or "nothing"),
            ("graph", self.joint.headline().removeprefix("joint graph: ")),
            ("runs as", "; ".join(stage.headline().removeprefix("kernels of ") for stage in self.kernels)),
            ("saved for backward", in_bytes(self.partition.saved_bytes)),
            ("compiled in", in_seconds(sum(self.seconds.values()))),
        )
        graphs = (
            Doc(self.joint.headline(), self.joint.listed()),
            Doc(self.partition.headline(), self.partition.listed()),
        )
        more = [(f"program.schedule[{i}]", stage.headline()) for i, stage in enumerate(self.schedule)]
        more += [(f"program.sources[{i}]", source.headline()) for i, source in enumerate(self.sources)]
        pages = Doc("schedule and sources", (Table(("", ""), tuple(more), "stages"),))
        times = Doc(
            "compile time", (Table(("stage", "time"), tuple((k, in_seconds(v)) for k, v in self.seconds.items())),)
        )
        first = (stage.doc() for stage in (self.key, self.facts, self.facts.state, *self.layers))
        kernels = (stage.doc() for stage in self.kernels)
        return Doc(
            f"program of {self.name}",
            (Table(("", ""), summary), *first, *graphs, *kernels, pages, self.call.doc(), times),
        )
