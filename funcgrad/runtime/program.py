"""A Program is everything one compilation made, stage by stage, and the printed call that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from ..backends.backend import Kernels, Schedule
from ..capture.facts import Facts
from ..graphs import Joint
from ..layers.layer import Layer
from ..partition.partition import Partition
from ..show import Doc, Shown, Table, in_seconds
from ..source import Source
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
    layers: tuple[Layer, ...]
    joint: Joint
    partition: Partition
    kernels: tuple[Kernels, ...]
    schedule: tuple[Schedule, ...]
    sources: tuple[Source, ...]
    call: Source
    run: Callable[[tuple[Any, ...], dict[str, Any]], Any]
    seconds: Mapping[str, float]

    def doc(self) -> Doc:
        stages: Sequence[Shown] = (
            self.key,
            self.facts,
            self.facts.state,
            *self.layers,
            self.joint,
            self.partition,
            *self.kernels,
            *self.schedule,
        )
        times = Doc("compile time", (Table(("stage", "time"), tuple((k, in_seconds(v)) for k, v in self.seconds.items())),))
        return Doc(f"program of {self.name}", (*(s.doc() for s in stages), *(s.doc() for s in self.sources), self.call.doc(), times))
