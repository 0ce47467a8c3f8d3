"""A Program is everything one compilation made, stage by stage, and the printed call that runs it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from attrs import field, frozen

from .. import refusals
from ..backends.backend import Backend
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
from ..torch_private.levels import transforms_or_duals
from .archive import save
from .call import Call, build_call, called_alone
from .captured import Around
from .key import CallKey
from .tentative import is_of_values


@frozen(eq=False, repr=False)
class Program(Shown):
    """One compiled call: stages that can be printed, shown in a notebook and (the graphs) run.

    ``facts`` what the dry run showed · ``layers`` what stands around the kernel · ``call`` the printed call · ``joint``
    one graph of forward and backward · ``partition`` its two halves and what is saved between them · ``kernels``,
    ``schedule``, ``sources`` one entry for each graph that runs · ``seconds`` what each stage took.

    A program is called as the function that it was compiled of, with arguments that fit its key.
    """

    name: str
    around: Around
    layers: tuple[Layer, ...] = field(converter=Several[Layer])
    partition: Partition
    kernels: tuple[Kernels, ...] = field(converter=Several[Kernels])
    schedule: tuple[Schedule, ...] = field(converter=Several[Schedule])
    sources: tuple[Source, ...] = field(converter=Several[Source])
    backend: Backend
    call: Source
    run: Call
    seconds: Mapping[str, float]
    misfits: Callable[[Program, tuple[Any, ...], dict[str, Any]], list[str]]
    """Why a program does not fit a call."""

    @staticmethod
    def of(
        name: str,
        around: Around,
        layers: tuple[Layer, ...],
        made: Executable,
        call: Source,
        seconds: Mapping[str, float],
        misfits: Callable[[Program, tuple[Any, ...], dict[str, Any]], list[str]],
    ) -> Program:
        """What the two halves of the pipeline gave, and the call that was printed of them."""
        return Program(
            name, around, layers, made.partition, made.kernels, made.schedules, made.sources, made.backend, call,
            build_call(call), seconds, misfits,
        )  # fmt: skip

    @property
    def key(self) -> CallKey:
        return self.around.key

    @property
    def plain_layers(self) -> tuple[Layer, ...]:
        """The layers that are statements alone: those around which a context stands are left out."""
        return tuple(layer for layer in self.layers if not layer.context)

    @property
    def facts(self) -> Facts:
        return self.around.facts

    @property
    def joint(self) -> Joint:
        return self.around.joint

    def may_be_caught(self, error: Exception) -> bool:
        """Whether its kernel has raised what the function may catch in eager PyTorch, and nothing has happened."""
        return self.joint.may_be_caught and is_of_values(error)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the program to a file, from which ``fg.load(path)`` makes it again, in another process, without the
        function and without a trace.

        What the function reads besides its arguments is in the file as it is now: tensors with their values, numbers
        and other state as what the program takes for granted (``LoadedProgram.assumes``). Raises ``ArchiveError`` for
        a program that needs what no file can hold, and leaves a file that is there as it was.
        """
        save(path, self.name, self.around, self.sources, self.backend, self.call)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """A call of this very program: nothing is compiled, whatever the arguments are.

        Raises ``ArgumentError``, which says what differs, for a call that the program is not for, and
        ``UnsupportedTransformError`` under a transform of torch.func, whose tensors no program is for.
        """
        if transforms_or_duals():
            raise refusals.PROGRAM_UNDER_TRANSFORM(self.name)
        return called_alone(
            self.name,
            self.run,
            (args, kwargs),
            self.joint.reads,
            lambda: self.misfits(self, args, kwargs),
            "inside of another trace there is no call to compare",
            "call the compiled function, which compiles what no program fits",
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
