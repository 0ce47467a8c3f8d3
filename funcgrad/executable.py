"""The second half of the pipeline: from a joint graph, whatever it was captured from, to what runs.

It knows graphs only: no function, no arguments, no facts about a call. passes → tag → partition → lower → schedule →
emit → build.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable

from attrs import evolve, field, frozen

from .backends.backend import Backend, Runnable
from .backends.choose import choose_backend
from .backends.peak import predicted_peak
from .graphs import Graph, has_effect, verify
from .joint import Joint
from .memory.schedule import Kernels, Schedule
from .options import Options
from .partition.choice import choose_partition
from .partition.partition import Partition
from .partition.programs import graphs_to_run
from .passes.common_subexpressions import common_subexpressions
from .passes.logged import logged
from .passes.random_masks import pack_random_masks
from .passes.scans import with_steps
from .passes.tagging import tag_joint
from .show.parts import Doc
from .show.shown import Several, Shown
from .source import Source
from .stages import Stages
from .torch_private.fakes import without_modes

_LOWERED = 4
"""Graphs whose kernels are kept while a program is compiled: those whose peaks are compared last are those that run."""


@frozen(eq=False)
class Partitioned:
    """A joint graph, rewritten for a backend and tagged; its partition, and the graphs that will run."""

    joint: Joint
    backend: Backend
    partition: Partition
    graphs: tuple[Graph, ...]
    kernels_of: Callable[[Graph], Kernels]
    schedule_of: Callable[[Graph], Schedule]

    @property
    def unbuilt(self) -> Executable:
        """Of what is compiled elsewhere, as a part of something larger: no kernels."""
        return Executable(self.joint, self.backend, self.partition, self.graphs, (), (), (), ())


@frozen(eq=False, repr=False)
class Executable(Shown):
    """What a joint graph was compiled to; of ``kernels``, ``schedules`` and ``runnables`` one entry for each graph
    that runs. Values in and out of a runnable are those of its graph's signature, in order; one whose graph is boxed
    takes a list, and empties it."""

    joint: Joint
    backend: Backend
    partition: Partition
    graphs: tuple[Graph, ...]
    kernels: tuple[Kernels, ...] = field(converter=Several[Kernels])
    schedules: tuple[Schedule, ...] = field(converter=Several[Schedule])
    sources: tuple[Source, ...] = field(converter=Several[Source])
    runnables: tuple[Runnable, ...]

    def headline(self) -> str:
        return f"executable: {', '.join(stage.headline() for stage in self.kernels)}"

    def doc(self) -> Doc:
        return Doc(
            self.headline(),
            (self.partition.doc(), *(k.doc() for k in self.kernels), *(s.doc() for s in self.schedules)),
        )


def compile_joint(joint: Joint, options: Options, stages: Stages | None = None, where: str | None = None) -> Executable:
    """Compile a joint graph. ``stages``: the clock of the compilation; ``where``: the line it comes from, for errors.

    Raises ``PartitionError`` where tags contradict each other, or no partition keeps ``options.memory_budget``, and
    ``BuildError`` where the backend that was asked for cannot run here.
    """
    clock = Stages(joint.graph.name) if stages is None else stages
    return build_all(partition_joint(joint, options, clock, where), clock)


def partition_joint(joint: Joint, options: Options, stages: Stages, where: str | None) -> Partitioned:
    """The first stages of ``compile_joint``: what follows from the graph, before any kernel is made."""
    backend = choose_backend(options, joint.graph)
    with stages("passes"):
        joint = rewritten(joint, backend, options)
    with stages("tag"):
        tag_joint(joint)  # in the nodes' meta
        verify(joint.graph)
    with stages("partition"):
        kernels_of = functools.lru_cache(_LOWERED)(backend.lower)
        schedule_of = functools.lru_cache(_LOWERED)(lambda graph: backend.schedule(kernels_of(graph)))

        @functools.cache
        def peak_of(graphs: tuple[Graph, ...]) -> int:
            return predicted_peak([schedule_of(graph) for graph in graphs])

        def peak_of_split(split: Partition) -> int:
            return peak_of(graphs_to_run(joint, split, peak_of))

        split = choose_partition(joint, options.memory_budget, backend.name, backend.target, peak_of_split, where)
        return Partitioned(joint, backend, split, graphs_to_run(joint, split, peak_of), kernels_of, schedule_of)


def compile_narrowed(graph: Graph, joint: Joint, options: Options) -> Runnable:
    """Compile what is left of the backward half of a program that is done. What a kernel would ask of sizes that vary
    could be no guard of that any more: there, ATen's calls run."""
    if not graph.signature.outs and not any(map(has_effect, graph.fx.nodes)):
        return lambda _: ()
    backend = choose_backend(options if joint.sizes is None else evolve(options, backend="aten"), joint.graph)
    with without_modes():
        return backend.build(backend.emit(backend.schedule(backend.lower(graph))))


def rewritten(joint: Joint, backend: Backend, options: Options) -> Joint:
    """A joint graph that computes the same, after all passes: what is costed, partitioned and tagged from here on is
    what runs, but for calls that the library runs faster in another form (``passes/library.py``)."""
    is_limited = options.memory_budget is not None
    graph = joint.graph
    if not is_limited:  # else what is computed twice may be so for the sake of memory
        graph = logged("common subexpressions", graph, common_subexpressions)
    for name, rewrite in backend.rewritings.items():
        graph = logged(name, graph, rewrite)
    joint = with_steps(evolve(joint, graph=graph), keep=not is_limited)
    return pack_random_masks(joint, (backend.target.fuses and joint.is_split) or is_limited)


def build_all(found: Partitioned, stages: Stages) -> Executable:
    """The last stages of ``compile_joint``."""
    with stages("lower"):
        kernels = tuple(map(found.kernels_of, found.graphs))
    with stages("schedule"):
        schedules = tuple(map(found.schedule_of, found.graphs))
    with stages("emit"):
        sources = tuple(map(found.backend.emit, schedules))
    with stages("build"):
        runnables = tuple(map(found.backend.build, sources))
    return Executable(
        found.joint,
        found.backend,
        found.partition,
        found.graphs,
        kernels,
        schedules,
        tuple(itertools.chain(*sources)),
        runnables,
    )
