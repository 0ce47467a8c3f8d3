"""The Python function of a schedule with kernels: library calls, launches, and the memory both need."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch
from attrs import define, frozen
from torch import Tensor, fx
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from ..generators import own_draws
from ..graph_primitives import Opaque, PathMiss
from ..graphs import Graph, call_text, device_of, is_path_check, value_of, where_of
from ..loops.ir import Buffer
from ..loops.lower import lower
from ..loops.rows_products import PRODUCTS
from ..memory.schedule import Schedule
from ..memory.steps import Allocate, Call, Launch
from ..source import Source
from ..symbolic.known import same_sizes
from ..symbolic.sizes import PREFIX
from ..symbolic.torch_sizes import shape_of, strides_of
from ..torch_private.engine import n_dispatch_modes
from ..torch_private.modes import count_flops
from ..torch_private.tensors import ALONE, alone, empty_cpu, holders, over
from .printer import LAID_OUT_AS_SAID, Printer, lies_as_said_now


def print_python(
    schedule: Schedule,
    empty: Callable[[Printer, Buffer], str],
    passed: Callable[[Printer, fx.Node | None, str], str],
    sizes: Mapping[str, Sequence[str]] = {},
) -> Source:
    """``empty`` makes the memory of a buffer, ``passed`` is how a launch is given one; ``sizes`` are the symbols
    each launch takes."""
    graph = schedule.graph
    names: dict[str, Any] = {}
    printer = Printer(names, graph)
    by_name = {n.name: n for n in graph.fx.nodes}
    lines = printer.head()
    head = len(lines)
    taken = {
        old for step in schedule.steps if isinstance(step, Launch) for old in step.origins.values()
    } & graph.handed_over
    lines += [_unless_held(printer, n.name) for n in graph.placeholders if n.name in taken]
    read = {b.name for step in schedule.steps if isinstance(step, Launch) for b in step.buffers}
    kernels_read: dict[str, str] = {}
    looks = {name: _look(value_of(n)) for name, n in by_name.items() if isinstance(n.meta.get("val"), Tensor)}
    arenas = {at for step in schedule.steps if isinstance(step, Launch) for at, _ in step.places.values()}
    for step in schedule.steps:
        if isinstance(step, Allocate):
            looks[step.buffer.name] = step.buffer.shape, step.buffer.strides
            lines.append(
                f"    {step.buffer.name} = "
                f"{_in_memory_of(printer, by_name, step, looks) if step.over else empty(printer, step.buffer)}"
            )
            lines += [f"    {step.buffer.name}_at = {step.buffer.name}.data_ptr()"] if step.buffer in arenas else []
        elif isinstance(step, Launch):
            buffers = [
                _in_arena(*step.places[b.name])
                if b.name in step.places
                else passed(printer, by_name.get(b.name), kernels_read.get(b.name, b.name))
                for b in step.takes
            ]
            own = [name.removeprefix(PREFIX) for name in sizes.get(step.name, ())]
            call = f"{step.name}({', '.join((*buffers, *own))})"
            if step.checks:
                call = _checked(printer, graph, step, call)
            lines.append(f"    {call}")
            lines += [f"    # {kernel.name}: {', '.join(kernel.computes)}" for kernel in step.kernels]
        else:
            lines += printer.step(step)
            if isinstance(step, Call) and step.node.name in read and _needs_layout(step):
                # what is returned stays as the library made it
                returned = any(user.op == "output" for user in step.node.users)
                kernels_read[step.node.name] = f"{step.node.name}_laid_out" if returned else step.node.name
                lines.append(printer.laid_out(step.node, kernels_read[step.node.name]))
    counted = len(lines) if printer.reads_sizes else head  # of sizes that are known
    lines[counted:counted] = _counted(printer, schedule)
    lines.append(printer.result())
    lines[head:head] = printer.sizes(lines)
    return Source(graph.name, "python", "\n".join(lines) + "\n", names)


def _counted(printer: Printer, schedule: Schedule) -> list[str]:
    """A line that tells those who count operations of the products that kernels compute: they see library calls
    alone."""
    called = {step.node for step in schedule.steps if isinstance(step, Call)}
    products = [n for n in schedule.graph.fx.nodes if n.target in PRODUCTS and n not in called]
    if not products:
        return []

    def sizes(value: Any) -> Any:
        return shape_of(value_of(value)) if isinstance(value, fx.Node) else value

    calls = [(n.target, tuple(sizes(a) for a in n.args), sizes(n)) for n in products]
    asks, tells = printer.name("n_dispatch_modes", n_dispatch_modes), printer.name("count_flops", count_flops)
    return [f"    if {asks}(): {tells}({printer.argument(calls)})"]


def _checked(printer: Printer, graph: Graph, launch: Launch, call: str) -> str:
    """A launch that says which of its checks fails first, if any does."""
    otherwise = []
    reads = tuple(check.read for check in launch.checks)
    if any(reads):
        failed = printer.variable("failed")
        call = f"{failed} := {call}"
        given = failed if launch.number_read is None else f"{failed}, {launch.number_read}"
        otherwise.append(f"{printer.name('off_path', OffPath(reads))}({given})")
    if launch.may_raise:
        given = ", ".join(n.name for n in graph.placeholders)
        otherwise.append(f"{printer.name('wrong_index', WrongIndex(graph))}({given})")
    return f"if {call}: {'; '.join(otherwise)}"


def _in_arena(arena: Buffer, offset: int) -> str:
    return f"{arena.name}_at + {offset}" if offset else f"{arena.name}_at"


def _in_memory_of(printer: Printer, nodes: Mapping[str, fx.Node], step: Allocate, looks: dict[str, _Look]) -> str:
    """What takes the memory of a value that dies, or is a part of one; kernels alone do not mind in which shape. Of
    what was handed over the tensor itself may be anything, and is not returned. ``looks``: the sizes and strides of
    tensors."""
    new = step.buffer.name
    old = nodes.get(step.over or "")
    name = step.over
    look = (step.buffer.shape, step.buffer.strides)
    assert name is not None
    is_given = old is not None and old.op == "placeholder"
    if step.at is None and (new not in nodes or (not is_given and all(map(same_sizes, look, looks[name])))):
        looks[new] = looks[name]
        return name
    return f"{printer.name('over', over)}({name}, {look[0]}, {look[1]}{f', {step.at}' if step.at else ''})"


_Look = tuple[Sequence[int], Sequence[int]]


def _look(t: Tensor) -> _Look:
    return shape_of(t), strides_of(t)


def _unless_held(printer: Printer, name: str) -> str:
    """What is handed over is written to, unless somebody may read it again: autograd (``retain_graph=True``), or who
    asked it for it."""
    held = f"{printer.name('holders', holders)}({name})"
    others = f"{held} != {printer.name('alone', ALONE)} and {held} != {printer.name('alone_now', alone)}()"
    return f"    if {others}: {name} = {name}.clone()"


@frozen
class OffPath:
    """Called with the number of the check of a launch that fails first, from 1: raises ``PathMiss`` if that is one of
    what Python ``reads``. A number that was ``found`` is told by the library."""

    reads: tuple[tuple[int, Any] | None, ...]

    def __call__(self, failed: int, found: Callable[[], int] | None = None) -> None:
        read = self.reads[failed - 1]
        if read is None:
            return
        number, value = read
        if found is not None and type(value) is not bool:
            value = found() if type(value) is int else struct.unpack("=d", struct.pack("=q", found()))[0]
        raise PathMiss(number, value)


@define(eq=False)
class WrongIndex:
    """Called with the inputs of a graph where a kernel found an index that is out of bounds, or a matrix that is
    singular. Nothing is written to yet: run the graph as ATen, which raises what it raises.

    On a GPU that would end all work of the process there, and an opaque call runs once: the calls that may be wrong are
    named instead.
    """

    graph: Graph
    _checks: _Checks | None = None

    @property
    def checks(self) -> _Checks:
        """What is asked of the lowered graph where something is wrong, and when it is saved."""
        self._checks = self._checks or _checks_of(self.graph)
        return self._checks

    def __call__(self, *inputs: Any) -> NoReturn:
        found = self.checks
        if not found.may_run_again:
            raise found.error("\n  ".join([f"{found.what}, in one of", *found.calls]))
        with own_draws(), torch.no_grad():
            self.graph.run(*inputs)
        raise found.error(found.what)

    def __reduce__(self) -> tuple[Any, ...]:
        return WrongIndex, (self.graph, self.checks)


@frozen
class _Checks:
    """What may be wrong in a graph."""

    error: type[Exception]
    what: str
    calls: tuple[str, ...]
    may_run_again: bool


def _checks_of(graph: Graph) -> _Checks:
    checks = [node for node in lower(graph).checks if not is_path_check(node)]
    error, what = IndexError, "an index is out of bounds"
    if all(node.target is torch.ops.aten._linalg_check_errors.default for node in checks):
        error, what = LinAlgError, "a matrix is singular, or not positive definite"
    is_repeatable = not any(isinstance(n.target, Opaque) and not n.target.is_pure for n in graph.fx.nodes)
    calls = tuple(f"{call_text(node)} {where_of(node) or ''}".rstrip() for node in checks)
    return _Checks(error, what, calls, device_of(graph).type == "cpu" and is_repeatable)


def _needs_layout(step: Call) -> bool:
    """Whether a library call may have left another layout than PyTorch's shape functions say; products do not, and what
    looks at all of a tensor is made as its reader sees it, in the order in which kernels read it."""
    is_said = step.same or step.node.target in LAID_OUT_AS_SAID or lies_as_said_now(step)
    return isinstance(value_of(step.node), Tensor) and not is_said


def empty_on_cpu(printer: Printer, b: Buffer) -> str:
    """Memory for a buffer."""
    return f"{printer.name('empty', empty_cpu)}({b.shape}, {b.strides}, {printer.argument(b.dtype)})"


def address(printer: Printer, node: fx.Node | None, name: str) -> str:
    """The address of a buffer; that of a Python number is the one of a copy."""
    if node is None or (node.op != "get_attr" and isinstance(value_of(node), Tensor)):
        return f"{name}.data_ptr()"
    if node.op == "get_attr":
        return f"{printer.argument(node)}.data_ptr()"
    return f"{printer.name('byref', ctypes.byref)}({printer.name('c_double', ctypes.c_double)}({name}))"
