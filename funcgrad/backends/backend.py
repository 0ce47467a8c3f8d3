"""What every backend takes and gives: a Graph becomes Kernels, a Schedule, Sources (the first is the function that
is called), and a function of tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from attrs import evolve, frozen

from ..graphs import Graph
from ..loops.lower import Target
from ..memory.schedule import Kernels, Schedule
from ..source import Source

Runnable = Callable[..., Sequence[Any]]


@frozen(eq=False)
class Emitted:
    """A body of control flow whose sources are there: what a saved program has in the place of its graph."""

    sources: tuple[Source, ...]


def _emitted(backend: Backend, graph: Graph) -> tuple[Source, ...]:
    return backend.emit(backend.schedule(backend.lower(graph)))


def emitted_bodies(backend: Backend, sources: Sequence[Source]) -> tuple[Source, ...]:
    """Sources that name no graph of a body, but what was emitted of it."""

    def emitted(value: Any) -> Any:
        if not isinstance(value, Graph):
            return value
        return Emitted(emitted_bodies(backend, _emitted(backend, value)))

    return tuple(evolve(s, names={name: emitted(v) for name, v in s.names.items()}) for s in sources)


def compiled_bodies(backend: Backend, names: Mapping[str, Any]) -> dict[str, Any]:
    """What printed Python refers to by name: bodies of control flow as functions that the same backend has compiled,
    each once."""

    def compiled(value: Any) -> Any:
        if isinstance(value, Graph):
            return backend.build(_emitted(backend, value))
        return backend.build(value.sources) if isinstance(value, Emitted) else value

    return {name: compiled(value) for name, value in names.items()}


class Backend(Protocol):
    """The four steps of a backend. Values in and out of a runnable are those of the graph's signature, in order."""

    name: str
    target: Target
    """What it compiles for: the machine, and which values it has kernels for."""
    rewritings: Mapping[str, Callable[[Graph], Graph]]
    """By name, in order, what makes of a joint graph one that this backend runs faster, and that computes the same."""

    def lower(self, graph: Graph) -> Kernels:
        """The kernels of a graph, fused, and the calls that stay the library's."""

    def schedule(self, kernels: Kernels) -> Schedule:
        """Launches and calls in order, with the memory each of their buffers lies in, and where it is freed."""

    def emit(self, schedule: Schedule) -> tuple[Source, ...]:
        """Their text: what is compiled first, the function that calls it last."""

    def build(self, sources: Sequence[Source]) -> Runnable:
        """The function, compiled and loaded. Raises ``BuildError`` with what the compiler said."""
