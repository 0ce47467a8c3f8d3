"""A Program is everything one compilation made, stage by stage, and the printed call that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve, frozen

from ..backends.backend import Kernels, Schedule
from ..capture.facts import Facts
from ..capture.origins import Origin, Unresolved, baked, find_origins
from ..graphs import Joint
from ..layers.layer import Layer
from ..partition.partition import Partition
from ..show import Doc, Shown, Table, in_seconds
from ..slots import Captured
from ..source import Source
from .key import CallKey, holds


@frozen(eq=False)
class Watched:
    """A Python value the trace baked in, and where it lives: when another value lives there, the program does not fit."""

    origin: Origin
    value: Any


@frozen(eq=False)
class WatchedModule:
    """A module the function called: the same object must be there, in the same state, with the same captured tensors.

    ``state`` maps expressions over the module's ``__dict__`` (called ``own``) to what they were: attributes that are plain, or
    functions, or small containers of plain values, a ``forward`` of its own, how many children and hooks there are. ``tensors``
    are the parameters and buffers that are captured: ``(table, name, slot)``; where weights are tied, one tensor is reached
    through several modules, and each must still hold it.
    """

    module: torch.nn.Module
    origin: Origin | Unresolved
    state: Mapping[str, Any]
    tensors: tuple[tuple[str, str, Captured], ...]

    def now(self, expression: str) -> Any:
        """The value of one expression of ``state`` now; None where it has none."""
        try:
            return eval(expression, {"own": self.module.__dict__})
        except KeyError:
            return None


_OF_TORCH = frozenset(torch.nn.Module().__dict__) - {"training"}
"""Attributes with which ``nn.Module`` keeps its own books."""


def watch_modules(facts: Facts, root: Callable[..., Any]) -> tuple[WatchedModule, ...]:
    """The modules the dry run called, where each lives, its state and its captured tensors."""
    origins = find_origins(root, facts.modules)
    slots = {id(c.tensor): c.slot for c in facts.captured}
    return tuple(WatchedModule(m, o, _state(m), _tensors(m, slots)) for m, o in zip(facts.modules, origins, strict=True))


def _state(module: torch.nn.Module) -> dict[str, Any]:
    state: dict[str, Any] = {f"len(own[{t!r}])": len(module.__dict__[t]) for t in ("_modules", "_forward_hooks", "_forward_pre_hooks")}
    state["own.get('forward')"] = module.__dict__.get("forward")
    return state | {f"own[{key!r}]": kept for key, value in module.__dict__.items() if key not in _OF_TORCH for kept in baked(value)}


def _tensors(module: torch.nn.Module, slots: Mapping[int, Captured]) -> tuple[tuple[str, str, Captured], ...]:
    tables = ((table, key, t) for table in ("_parameters", "_buffers") for key, t in module.__dict__[table].items())
    return tuple((table, key, slots[id(t)]) for table, key, t in tables if id(t) in slots)


def unchanged(
    constants: Sequence[tuple[Origin, Any]], modules: Sequence[WatchedModule]
) -> tuple[tuple[Watched, ...], tuple[WatchedModule, ...]]:
    """Without the values the trace itself changed: a function that counts its calls does not ask to be traced for each."""
    values = tuple(Watched(origin, value) for origin, value in constants if holds(value, origin.read()))
    return values, tuple(evolve(m, state={e: v for e, v in m.state.items() if holds(v, m.now(e))}) for m in modules)


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
