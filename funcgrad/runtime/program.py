"""A Program is everything one compilation made, stage by stage, and the printed call that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, frozen

from ..backends.backend import Kernels, Schedule, Source
from ..capture.facts import Facts
from ..capture.origins import Origin, Unresolved, find_origins
from ..graphs import Joint
from ..layers.layer import Layer
from ..partition.partition import Partition
from ..show import Doc, Shown, Table, in_seconds
from .key import CallKey


@frozen(eq=False)
class Watched:
    """A Python value the trace baked in, and where it lives: when another value lives there, the program does not fit."""

    origin: Origin
    value: Any


@frozen(eq=False)
class WatchedModule:
    """A module the function called: the same object must be there, with the same plain attributes (``training``, ``p``, …)."""

    module: torch.nn.Module
    origin: Origin | Unresolved
    attributes: Mapping[str, Any]


def watch_modules(facts: Facts, root: Callable[..., Any]) -> tuple[WatchedModule, ...]:
    """The modules the dry run called, where each lives, and its plain attributes."""
    origins = find_origins(root, facts.modules)
    plain = (bool, int, float, str)
    return tuple(
        WatchedModule(m, origin, {k: v for k, v in m.__dict__.items() if not k.startswith("_") and type(v) in plain})
        for m, origin in zip(facts.modules, origins, strict=True)
    )


def unchanged(
    baked: Sequence[tuple[Origin, Any]], modules: Sequence[WatchedModule]
) -> tuple[tuple[Watched, ...], tuple[WatchedModule, ...]]:
    """Without the values the trace itself changed: a function that counts its calls does not ask to be traced for each."""
    values = tuple(Watched(origin, value) for origin, value in baked if origin.read() is value or origin.read() == value)
    return values, tuple(evolve(m, attributes={k: v for k, v in m.attributes.items() if m.module.__dict__.get(k) == v}) for m in modules)


@frozen(eq=False)
class Program(Shown):
    """One compiled call: stages that can be printed, shown in a notebook and (the graphs) run.

    ``facts`` what the dry run showed · ``layers`` what stands around the kernel · ``call`` the printed call · ``joint``
    one graph of forward and backward · ``partition`` its two halves and what is saved between them · ``kernels``,
    ``schedule``, ``sources`` one entry for each graph that runs · ``seconds`` what each stage took.
    """

    name: str
    key: CallKey
    facts: Facts
    watched: tuple[Watched, ...]
    modules: tuple[WatchedModule, ...]
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
        stages: Sequence[Shown] = (self.key, self.facts, *self.layers, self.joint, self.partition, *self.kernels, *self.schedule)
        times = Doc("compile time", (Table(("stage", "time"), tuple((k, in_seconds(v)) for k, v in self.seconds.items())),))
        return Doc(f"program of {self.name}", (*(s.doc() for s in stages), *(s.doc() for s in self.sources), self.call.doc(), times))
