"""A Program is everything one compilation made, stage by stage, and the printed call that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from .. import refusals
from ..capture.facts import Facts
from ..errors import ArgumentError
from ..executable import Executable
from ..graph_primitives import PathMiss
from ..joint import Joint
from ..layers.layer import Layer
from ..memory.schedule import Kernels, Schedule
from ..partition.partition import Partition
from ..show.parts import Doc, Table
from ..show.shown import Several, Shown
from ..show.units import in_bytes, in_seconds
from ..source import Source
from ..torch_private.levels import transforms_or_duals
from .call import MISS, build_call
from .captured import CapturedCall
from .key import CallKey


@frozen(eq=False, repr=False)
class Program(Shown):
    """One compiled call: stages that can be printed, shown in a notebook and (the graphs) run.

    ``facts`` what the dry run showed · ``layers`` what stands around the kernel · ``call`` the printed call · ``joint``
    one graph of forward and backward · ``partition`` its two halves and what is saved between them · ``kernels``,
    ``schedule``, ``sources`` one entry for each graph that runs · ``seconds`` what each stage took.

    A program is called as the function that it was compiled of, with arguments that fit its key.
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
    misfits: Callable[[Program, tuple[Any, ...], dict[str, Any]], list[str]]
    """Why a program does not fit a call."""

    @staticmethod
    def of(
        name: str,
        found: CapturedCall,
        layers: tuple[Layer, ...],
        made: Executable,
        call: Source,
        seconds: Mapping[str, float],
        misfits: Callable[[Program, tuple[Any, ...], dict[str, Any]], list[str]],
    ) -> Program:
        """What the two halves of the pipeline gave, and the call that was printed of them."""
        return Program(
            name, found.key, found.facts.released(), layers, made.joint, made.partition, made.kernels, made.schedules,
            made.sources,
            call, build_call(call), seconds, misfits,
        )  # fmt: skip

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """A call of this very program: nothing is compiled, whatever the arguments are.

        Raises ``ArgumentError``, which says what differs, for a call that the program is not for, and
        ``UnsupportedTransformError`` under a transform of torch.func, whose tensors no program is for.
        """
        if transforms_or_duals():
            raise refusals.PROGRAM_UNDER_TRANSFORM(self.name)
        try:
            result = self.run(args, kwargs)
        except PathMiss as miss:
            read = self.joint.reads[miss.read]
            raise self._does_not_fit([f"Python read {read.value!r} of a tensor, now it is {miss.value!r}"]) from None
        if result is MISS:
            raise self._does_not_fit(self.misfits(self, args, kwargs))
        return result

    def _does_not_fit(self, reasons: list[str]) -> ArgumentError:
        why = "; ".join(reasons) or "inside of another trace there is no call to compare"
        return ArgumentError(
            f"this program of {self.name} is not for this call: {why}",
            fix="call the compiled function, which compiles what no program fits",
        )

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
