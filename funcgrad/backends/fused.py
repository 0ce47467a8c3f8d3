"""The backend that fuses: values become kernels, library calls stay library calls, and a printed Python function runs
both in order.

Kernels that follow one another are one launch: one C function, called with the addresses of the tensors it reads and
writes, or one Python function that starts Triton kernels.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx

from ..graph_primitives import SIZES, expect, scalar
from ..graphs import Graph, is_getitem, is_path_check, is_view, value_of
from ..lifetimes import Lifetimes
from ..loops.fuse import fuse
from ..loops.groups import Decision, ExternTask, Fused, Group
from ..loops.index import row_major
from ..loops.ir import Buffer, Kernel
from ..loops.kernel import kernels_of
from ..loops.lower import Lowering, Target, lower
from ..loops.values import Memory, Value
from ..loops.verify import verify
from ..machine import CPU, GPU, Machine
from ..memory import arena, in_place
from ..memory.heap import keep_what_is_free
from ..memory.layout import Part, as_read, parts_of_stacks
from ..memory.liveness import alive_in
from ..memory.schedule import Kernels, Schedule
from ..memory.steps import Allocate, Call, Check, Extern, Free, Launch, Step, bytes_buffer, is_static
from ..opaque_calls import given_whole
from ..options import ENVIRONMENT
from ..passes.channels_last import channels_last
from ..passes.library import added_to, for_library
from ..passes.normalised import normalised
from ..source import Source, compile_function
from ..symbolic.names import naming
from ..symbolic.sizes import SizeError, hint
from ..symbolic.torch_sizes import shape_of, strides_of
from . import triton_build, triton_launches, triton_scatter
from .backend import Backend, Runnable, compiled_bodies
from .build import function, load
from .c_files import print_files
from .c_language import PRELUDE, STACK
from .fused_python import address, empty_on_cpu, print_python
from .printer import Printer

_MORE, _MORE_BYTES = 1.01, 1 << 14
"""How much higher the peak may be for arenas."""

_KERNELS_IN_A_FILE = 4
"""Files are compiled at the same time; each costs some 50 ms whatever it holds."""


class CBackend:
    """C, for tensors of the CPU."""

    name = "c"
    rewritings: Mapping[str, Callable[[Graph], Graph]] = {"channels last": channels_last, "normalised": normalised}

    def __init__(self, machine: Machine = CPU) -> None:
        self.target = Target(machine, tells_numbers=True)

    def lower(self, graph: Graph) -> Kernels:
        return _lowered(for_library(graph), torch.device("cpu"), self.target)

    def schedule(self, kernels: Kernels) -> Schedule:
        plain, steps = _scheduled(kernels, STACK, keeps=True)
        is_sized = any(not is_static(s.buffer) for s in steps if isinstance(s, Allocate))
        shared = None if is_sized else arena.with_arenas(kernels.graph, steps)
        if shared is None:
            return plain
        schedule = Schedule(kernels.graph, tuple(_with_frees(kernels.graph, shared)))
        before = alive_in([plain]).peak
        return schedule if alive_in([schedule]).peak <= max(_MORE * before, before + _MORE_BYTES) else plain

    def emit(self, schedule: Schedule) -> tuple[Source, ...]:
        launches = [s for s in schedule.steps if isinstance(s, Launch)]
        files, sizes = print_files(launches, _KERNELS_IN_A_FILE, self.target.machine) if launches else ([], {})
        counts = {
            launch.name: (len(launch.takes) + len(sizes[launch.name]), "int" if launch.checks else None)
            for launch in launches
        }
        counts |= {name: (0, "int64_t") for launch in launches if (name := launch.number_read) is not None}
        python = print_python(schedule, empty_on_cpu, address, sizes)
        named = naming(n for launch in launches for b in launch.buffers for n in (*b.shape, *b.strides))
        about = [{s: named(s) for s in itertools.chain(*sizes.values()) if s in text} for text in files]
        return (python, *(Source(f"kernels{i}", "c", text, counts, PRELUDE, about[i]) for i, text in enumerate(files)))

    def build(self, sources: Sequence[Source]) -> Runnable:
        keep_what_is_free()
        python, *others = sources
        if not others:
            return _built(self, python, {})
        library = load([source.text for source in others])
        return _built(self, python, {name: function(library, name, *takes) for name, takes in others[0].names.items()})


class TritonBackend:
    """Triton, for tensors of one CUDA device; for those of the CPU where Triton interprets kernels."""

    name = "triton"
    rewritings: Mapping[str, Callable[[Graph], Graph]] = {"normalised": normalised}

    def __init__(self, device: torch.device, machine: Machine = GPU) -> None:
        self._device = device
        self.target = Target(machine, refuse=triton_scatter.refuse)

    def lower(self, graph: Graph) -> Kernels:
        kernels = _lowered(graph, self._device, self.target)
        if not all(is_static(b) for k in kernels.steps if isinstance(k, Kernel) for b in k.parameters):
            raise SizeError("Triton kernels are printed for sizes that are known")
        return kernels

    def schedule(self, kernels: Kernels) -> Schedule:
        return _scheduled(kernels, 0, keeps=False)[0]

    def emit(self, schedule: Schedule) -> tuple[Source, ...]:
        launches = [s for s in schedule.steps if isinstance(s, Launch)]
        python = print_python(schedule, self._empty, self._tensor)
        names = dict.fromkeys(launch.name for launch in launches)
        return (
            (python, Source("kernels", "triton", triton_launches.print_file(launches, self.target.machine), names))
            if launches
            else (python,)
        )

    def build(self, sources: Sequence[Source]) -> Runnable:
        python, *others = sources
        return _built(
            self,
            python,
            {name: found for source in others for name, found in triton_build.load(source, self._device).items()},
        )

    def _empty(self, printer: Printer, b: Buffer) -> str:
        empty, device = printer.name("empty_strided", torch.empty_strided), printer.argument(self._device)
        return f"{empty}({b.shape}, {b.strides}, dtype={printer.argument(b.dtype)}, device={device})"

    def _tensor(self, printer: Printer, node: fx.Node | None, name: str) -> str:
        """A buffer as a tensor; a Python number, and what a tensor of the CPU holds that holds but one, are made one
        on the device: a copy of memory would wait for the device."""
        if node is None:
            return name
        value = value_of(node)
        text = printer.argument(node) if node.op == "get_attr" else name
        if isinstance(value, Tensor) and value.device == self._device:
            return text
        number, dtype = (f"{text}.item()", value.dtype) if isinstance(value, Tensor) else (text, torch.float64)
        full, device = printer.name("full", torch.full), printer.argument(self._device)
        return f"{full}((), {number}, dtype={printer.argument(dtype)}, device={device})"


def _lowered(graph: Graph, device: torch.device, target: Target) -> Kernels:
    lowering = lower(graph, device, target)
    fused = fuse(lowering, [r for r in graph.results if isinstance(r, fx.Node)], ENVIRONMENT.fuel)
    buffers = _Buffers(graph, lowering, fused)
    steps = list(_steps(graph, lowering, fused, buffers))
    return Kernels(graph, _that_matter(graph, steps), buffers.checks)


def _scheduled(kernels: Kernels, stack: int, keeps: bool) -> tuple[Schedule, Sequence[Call | Allocate | Launch]]:
    """The schedule, and its steps but for those that free something. ``stack``: so many bytes of scratch need no
    memory of their own. ``keeps``: whether kernels keep what they are told to."""
    graph, launched = kernels.graph, list(_launched(kernels))
    parts = parts_of_stacks(graph, launched)
    stacks = {whole.name for whole, _ in parts.values()}
    launched = in_place.take_over(graph, launched, stacks | parts.keys(), keeps)
    launched = [s for s in launched if isinstance(s, Launch) or s.node.name not in stacks]
    donated = dict[str, str]()
    if graph.donated:
        launched, donated = in_place.into_donated(graph, launched, stacks | parts.keys())
    steps = list(as_read(graph, list(_with_memory(graph, launched, parts, stack, donated))))
    return Schedule(kernels.graph, tuple(_with_frees(kernels.graph, steps))), steps


def _built(backend: Backend, python: Source, launches: Mapping[str, Any]) -> Runnable:
    built: Runnable = compile_function(
        Source(python.name, python.language, python.text, {**compiled_bodies(backend, python.names), **launches})
    )
    return built


# ── kernels ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _steps(graph: Graph, lowering: Lowering, fused: Fused, buffers: _Buffers) -> Iterable[Extern | Kernel]:
    groups = [task for task in fused.tasks if isinstance(task, Group)]
    names = {group: f"{graph.name}_kernel{i}" for i, group in enumerate(groups)}
    nodes: dict[Value, str] = {}
    for node, value in lowering.values.items():
        nodes.setdefault(value, node.name)
    nodes |= {value: node.name for node, values in lowering.checks.items() if is_path_check(node) for value in values}
    for task in fused.tasks:
        if isinstance(task, ExternTask):
            yield Extern(task.node, lowering.externs[task.node])
        else:
            loads = {v: buffers.of(v) for v in task.reads if v not in task.members}
            stores = {v: buffers.all_of(v) for v in (*task.members, *task.whole) if v in fused.stored}
            if not stores:  # others compute again all that it would leave
                continue
            computes = {nodes[v]: _why(decision, names) for v, decision in task.members.items() if v in nodes}
            computes |= {nodes[v]: "its parts are made here" for v in task.whole if v in nodes}
            yield from map(verify, kernels_of(names[task], task, loads, stores, computes))


def _that_matter(graph: Graph, steps: Sequence[Extern | Kernel]) -> tuple[Extern | Kernel, ...]:
    """The steps without the numbers that nobody reads: kernels are given symbols, and take no sizes that the graph
    computes."""
    by_name = {n.name: n for n in graph.fx.nodes}
    made = {b.name for step in steps if isinstance(step, Kernel) for b in step.writes}
    needed: set[fx.Node] = set()

    def need(nodes: Iterable[fx.Node]) -> None:
        for node in set(nodes) - needed:
            needed.add(node)
            if (is_view(node) or is_getitem(node)) and node.name not in made:
                need(node.all_input_nodes)

    need(r for r in graph.results if isinstance(r, fx.Node))
    kept: list[Extern | Kernel] = []
    for step in reversed(steps):
        if isinstance(step, Kernel):
            need(by_name[b.name] for b in step.reads if b.name in by_name)
        elif step.node.target in (*SIZES, scalar) and step.node not in needed:
            continue
        else:
            need(step.node.all_input_nodes)
        kept.append(step)
    return tuple(reversed(kept))


def _why(decision: Decision, names: Mapping[Group, str]) -> str:
    return "; ".join((decision.because, *(f"not in {names[group]}: {why}" for group, why in decision.refused)))


class _Buffers:
    """Where in memory values lie: under the names of the nodes whose tensors have to exist, or one of our own."""

    def __init__(self, graph: Graph, lowering: Lowering, fused: Fused) -> None:
        self._found: dict[Value, list[Buffer]] = {}
        for node, value in lowering.buffers.items():
            self._found.setdefault(value, []).append(
                Buffer(node.name, value.shape, value.dtype, lowering.strides[node])
            )
        numbers, taken = itertools.count(), {n.name for n in graph.fx.nodes}

        def fresh(kind: str) -> str:
            return next(name for name in (f"{kind}{i}" for i in numbers) if name not in taken)

        checks = dict.fromkeys(value for values in lowering.checks.values() for value in values)
        read = {v for task in fused.tasks if isinstance(task, Group) for v in task.reads if v not in task.members}
        for value, group in fused.stored.items():
            if value not in self._found and (value not in checks or value in read):
                self._found[value] = [Buffer(fresh("temporary"), value.shape, value.dtype, self._strides(value, group))]
        for value in checks:  # of their own, whoever else wants to know
            self._found.setdefault(value, []).append(Buffer(fresh("check"), (), value.dtype, ()))
        self.checks: dict[str, fx.Node] = {}
        for node, values in lowering.checks.items():
            for value in values:
                self.checks.setdefault(self._found[value][-1].name, node)

    def _strides(self, value: Value, group: Group) -> tuple[int, ...]:
        """Images lie as the largest ones do that the same kernel reads or writes, so that one walk through memory
        does for all."""
        if len(value.shape) != 4:
            return row_major(value.shape)
        beside = (*group.reads, *group.members)
        images = [
            b
            for v in beside
            for b in ([self.of(v)] if isinstance(v, Memory) else self._found.get(v, ()))
            if len(b.shape) == 4
        ]
        largest = max(images, key=lambda b: hint(math.prod(b.shape)), default=None)
        order = sorted(range(4), key=lambda d: -largest.strides[d]) if largest else range(4)
        steps = dict(zip(order, row_major([value.shape[d] for d in order]), strict=True))
        return tuple(steps[d] for d in range(4))

    def of(self, value: Value) -> Buffer:
        return (
            Buffer(value.name, value.shape, value.dtype, value.strides)
            if isinstance(value, Memory)
            else self._found[value][0]
        )

    def all_of(self, value: Value) -> Sequence[Buffer]:
        return self._found[value]


# ── schedule ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _launched(kernels: Kernels) -> Iterable[Extern | Launch]:
    """Library calls and launches in order: kernels that follow one another are one launch."""
    graph = kernels.graph
    there = {n.name for n in graph.fx.nodes}
    readers = Counter(b.name for k in kernels.steps if isinstance(k, Kernel) for b in k.reads)
    names = (name for i in itertools.count() if (name := f"{graph.name}_launch{i}") not in there)
    for is_kernel, steps in itertools.groupby(kernels.steps, lambda step: isinstance(step, Kernel)):
        if not is_kernel:
            yield from (step for step in steps if isinstance(step, Extern))
            continue
        together = tuple(step for step in steps if isinstance(step, Kernel))
        written = {b.name: b for kernel in together for b in kernel.writes}
        reads = Counter(b.name for kernel in together for b in kernel.reads)
        scratch = [
            b for name, b in written.items() if name not in there and reads[name] == readers[name] and is_static(b)
        ]
        own = {b.name: b for b in scratch}
        checks = tuple(Check(own[name], _read_by(node)) for name, node in kernels.checks.items() if name in own)
        yield Launch(next(names), together, tuple(scratch), checks)


def _read_by(check: fx.Node) -> tuple[int, Any] | None:
    """See ``Check``."""
    if check.target is not expect:
        return None
    _, read, expected = check.args
    return read, not expected if type(expected) is bool else expected  # type: ignore[return-value]


def _with_memory(
    graph: Graph,
    steps: Sequence[Extern | Launch],
    parts: Mapping[str, Part],
    stack: int,
    donated: Mapping[str, str],
) -> Iterable[Call | Allocate | Launch]:
    """Calls and launches, and before each the views and the memory it needs. ``donated``: the inputs in whose memory
    results lie, by their names."""
    externs = {s.node for s in steps if isinstance(s, Extern)}
    by_name = {n.name: n for n in graph.fx.nodes}
    arenas = (i for i in itertools.count() if f"arena{i}" not in by_name)
    launches = [s for s in steps if isinstance(s, Launch)]
    there = {by_name[b.name] for s in launches for k in s.kernels for b in k.writes if b.name in by_name}
    there |= {whole for whole, _ in parts.values()}
    begun: set[fx.Node] = set()
    read = frozenset(b.name for s in launches for k in s.kernels for b in k.reads)

    def made(b: Buffer) -> Iterable[Allocate]:
        whole, at = parts.get(b.name, (None, 0))
        if whole is None:
            yield Allocate(b, donated.get(b.name))
            return
        if whole not in begun:
            begun.add(whole)
            value = value_of(whole)
            yield Allocate(Buffer(whole.name, shape_of(value), value.dtype, strides_of(value)))
        yield Allocate(b, whole.name, at)

    def views(nodes: Iterable[fx.Node]) -> Iterable[Call]:
        for node in nodes:
            if (
                node.op == "call_function"
                and node not in there
                and node not in externs
                and (is_view(node) or is_getitem(node))
            ):
                there.add(node)
                yield from views(node.all_input_nodes)
                yield Call(node)

    for step in steps:
        if isinstance(step, Extern):
            yield from views(step.node.all_input_nodes)
            yield Call(step.node, added_to(step.node), whole=given_whole(step.node, read))
            # none of several results keeps the others alive
            yield from views(n for n in step.node.users if is_getitem(n) and n.users)
            continue
        yield from views(by_name[b.name] for b in step.buffers if b.name in by_name and is_getitem(by_name[b.name]))
        written = {b.name for kernel in step.kernels for b in kernel.writes}
        size = step.arena.nbytes
        room = bytes_buffer(f"arena{next(arenas)}", size) if size > stack else None
        launch = evolve(step, room=room)
        yield from (step for b in launch.takes if b.name in written or b is room for step in made(b))
        origins = launch.origins
        yield from (Allocate(b, origins[b.name]) for b in launch.buffers if b.name in origins)
        yield launch
    yield from views(r for r in graph.results if isinstance(r, fx.Node))


def _with_frees(graph: Graph, steps: Iterable[Step]) -> Iterable[Step]:
    """Each tensor is dropped after its last reader."""
    steps = list(steps)
    returned = {r.name for r in graph.results if isinstance(r, fx.Node)}
    lives = Lifetimes.of([_names(graph, step) for step in steps], returned | set(graph.constants))
    for step, dying in zip(steps, lives.dying, strict=True):
        yield step
        taken = step.into.name if isinstance(step, Call) and step.into else None
        gone = tuple(name for name in dying if name != taken)
        if gone:
            yield Free(gone)


def _names(graph: Graph, step: Step) -> Iterable[str]:
    if isinstance(step, Call):
        return [n.name for n in (*step.node.all_input_nodes, step.node) if n.op != "get_attr"]
    if isinstance(step, Allocate):
        return [step.over] if step.over in graph.donated else []
    if not isinstance(step, Launch):
        return []
    # where an index is wrong, all is computed once more
    names = [b.name for b in (*step.buffers, *step.takes) if b.name not in step.places]
    return [
        *names,
        *(at.name for at, _ in step.places.values()),
        *(n.name for n in graph.placeholders if step.may_raise),
    ]
