"""The aten backend: the graph as one straight-line Python function of ATen calls.

A pointwise call whose first operand dies writes its result there; every other value is freed right after its last
reader. Nothing is fused, so the results are bit-equal to eager PyTorch's.
"""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx

from ..errors import GraphError
from ..graph_primitives import NumberAsSize, Opaque, Sized, scalar, size
from ..graphs import (
    Graph,
    has_effect,
    is_expanded,
    is_getitem,
    is_random,
    storages,
    target_text,
    tensors_in,
    type_text,
    value_of,
    where_of,
)
from ..lifetimes import Lifetimes
from ..loops.lower import Refuse
from ..memory.schedule import Kernels, Schedule
from ..memory.steps import Call, Extern, Free, Step
from ..opaque_calls import given_whole
from ..passes.library import ADDING
from ..source import Source, compile_function
from ..symbolic.names import solved
from ..symbolic.read_sizes import SizesOnPath
from ..symbolic.sizes import Size, SizeError, Sizes, plain, sizes_of
from ..symbolic.torch_sizes import symbols_of
from ..torch_private.operators import argument_names, direct, is_operator, is_torchs_own, overload_name
from ..torch_private.symbols import is_size, shape_environment, symbol_name
from .backend import Runnable, compiled_bodies


class AtenBackend:
    """See the module's docstring."""

    name = "aten"
    fuses = False
    refuse: Refuse | None = None
    rewritings: Mapping[str, Callable[[Graph], Graph]] = {}

    def lower(self, graph: Graph) -> Kernels:
        calls = [n for n in graph.fx.nodes if n.op == "call_function"]
        return Kernels(graph, tuple(Extern(n, "the aten backend fuses nothing") for n in calls))

    def schedule(self, kernels: Kernels) -> Schedule:
        graph = kernels.graph
        nodes = [extern.node for extern in kernels.steps if isinstance(extern, Extern)]
        lasting = {r for r in (*graph.results, *graph.fx.find_nodes(op="get_attr")) if isinstance(r, fx.Node)}
        donated = [n for n in graph.placeholders if n.name in graph.donated]
        # what raises leaves what it was given as it was
        uses = [(*n.all_input_nodes, n, *(donated if has_effect(n) else ())) for n in nodes]
        lives = Lifetimes.of(uses, lasting)
        sharers = _sharers(graph)
        steps: list[Step] = []
        for node, dead in zip(nodes, lives.dying, strict=True):
            into = next((d for d in dead if _can_write_into(d, node, sharers, graph.donated)), None)
            steps.append(Call(node, into, whole=given_whole(node)))
            gone = tuple(d.name for d in dead if d is not into)
            if gone:
                steps.append(Free(gone))
        return Schedule(graph, tuple(steps))

    def emit(self, schedule: Schedule) -> tuple[Source, ...]:
        graph = schedule.graph
        names: dict[str, Any] = {}
        printer = Printer(names, graph)
        lines = printer.head()
        head = len(lines)
        for step in schedule.steps:
            lines += printer.step(step)
        lines.append(printer.result())
        lines[head:head] = printer.sizes(lines)
        return (Source(graph.name, "python", "\n".join(lines) + "\n", names),)

    def build(self, sources: Sequence[Source]) -> Runnable:
        function: Runnable = compile_function(evolve(sources[0], names=compiled_bodies(self, sources[0].names)))
        return function


# ── in place ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _sharers(graph: Graph) -> dict[int, list[fx.Node]]:
    """Memory → the nodes that look at it, in order."""
    sharers: dict[int, list[fx.Node]] = {}
    for node in graph.fx.nodes:
        for storage in storages(node):
            sharers.setdefault(storage, []).append(node)
    return sharers


def _can_write_into(dying: fx.Node, node: fx.Node, sharers: dict[int, list[fx.Node]], donated: Collection[str]) -> bool:
    """Whether ``node`` may write its result over ``dying``.

    It is the first operand of an op that has an in-place form, looks exactly like the result, is memory of this
    program alone, and no other value that looks at that memory is alive.
    """
    if not node.args or node.args[0] is not dying or is_random(node) or in_place_form(node.target) is None:
        return False
    before, after = value_of(dying), value_of(node)
    if not isinstance(before, Tensor) or not isinstance(after, Tensor) or _look(before) != _look(after):
        return False
    if (
        list(node.all_input_nodes).count(dying) != 1
        or sum(a is dying for a in (*node.args, *node.kwargs.values())) != 1
    ):
        return False
    if is_expanded(before) or any(_may_return(user) for user in dying.users):
        return False
    (memory,) = storages(dying)
    # a custom operator may return its own input, whatever its fake says
    maker = dying.all_input_nodes[0] if is_getitem(dying) else dying
    is_own = is_operator(maker.target) and is_torchs_own(maker.target)
    return sharers[memory] == [dying] and (is_own or dying.name in donated)


def _may_return(user: fx.Node) -> bool:
    """Whether a call may hold on to what it is given, or return it: the caller's Python, and operators that are not
    torch's own."""
    return isinstance(user.target, Opaque) or (is_operator(user.target) and not is_torchs_own(user.target))


def _look(t: Tensor) -> tuple[Any, ...]:
    return (t.shape, t.stride(), t.dtype, t.device)


_POINTWISE = frozenset(
    "abs acos add addcdiv addcmul asin atan atan2 ceil clamp clamp_max clamp_min cos cosh div erf erfc exp exp2 expm1 "
    "floor fmod "
    "hardtanh leaky_relu lerp log log10 log1p log2 masked_fill mul neg pow reciprocal relu remainder round rsqrt "
    "sigmoid sign silu "
    "sin sinh sqrt sub tan tanh tril triu trunc xlogy threshold".split()
)
"""Ops whose in-place form computes element by element, so that reading and writing one place is safe."""


def in_place_form(op: Any) -> Any:
    """``aten.mul_.Tensor`` for ``aten.mul.Tensor``; None where there is none with the same arguments."""
    if not is_operator(op) or op.namespace != "aten":
        return None
    base = op.__name__.split(".")[0]
    packet = getattr(torch.ops.aten, base + "_", None) if base in _POINTWISE or op in ADDING.values() else None
    overload = getattr(packet, overload_name(op), None)
    return overload if overload is not None and argument_names(overload) == argument_names(op) else None


# ── print ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Printer:
    """Prints a schedule of library calls as Python; the objects it refers to by name go to ``names``."""

    def __init__(self, names: dict[str, Any], graph: Graph) -> None:
        self._names = names
        self._constants = graph.constants
        self._graph = graph
        self._taken = {graph.name, *(n.name for n in graph.fx.nodes if n.op != "get_attr")}
        self._known: dict[str, str] = {}
        """Symbols that are numbers as sizes, or sizes that Python read, and where they are."""

    def head(self) -> list[str]:
        """The first lines of the function."""
        graph = self._graph
        names = [n.name for n in graph.placeholders]
        if not graph.is_boxed:
            return [f"def {graph.name}({', '.join(names)}):", f'    """{_escape(str(graph.signature))}"""']
        box = next(
            name
            for name in itertools.chain(["values"], map("values_{}".format, itertools.count()))
            if name not in self._taken
        )
        takes = [f"    {', '.join(names)}, = {box}"] if names else []
        return [f"def {graph.name}({box}):", f'    """{_escape(str(graph.signature))}"""', *takes, f"    {box}.clear()"]

    def step(self, step: Step) -> list[str]:
        """The lines of a call, or of values dropped."""
        if isinstance(step, Free):
            return [f"    {' = '.join(step.names)} = None"]
        assert isinstance(step, Call)
        node = step.node
        call = self.argument(node.args[0]) if step.same else self.call(node, step.into, step.whole)
        lines = [f"    {node.name} = {call}  # {type_text(node.meta.get('val'))}{_from(node)}"]
        if isinstance(node.target, NumberAsSize):
            found = "".join(map(self.argument, node.args[1:]))
            lines += self._sizes_known(node, node.target.read, {node.target.symbol: node.name}, found)
        if isinstance(node.target, Sized) and node.target.symbols:
            several = isinstance(value_of(node), (list, tuple))
            named = {
                symbol: f"{node.name}{f'[{i}]' if several else ''}.shape[{d}]" for symbol, i, d in node.target.symbols
            }
            lines += self._sizes_known(node, node.target.read, named, node.name)
        return lines if step.into is None else [*lines, f"    {step.into.name} = None"]

    def _sizes_known(self, node: fx.Node, read: int | None, named: Mapping[str, str], found: str) -> list[str]:
        """Lines that name sizes, and, of those which Python ``read``, check what the program takes for granted;
        ``found``: what it read."""
        self._known |= named
        names = [f"    {symbol} = {place}" for symbol, place in named.items()]
        if read is None:
            return names
        known = list(dict.fromkeys([*self._inputs[0], *self._known]))
        check = self.name("on_path", SizesOnPath(sizes_around(node), read, frozenset(named), tuple(known)))
        return [*names, f"    {check}({found}, {', '.join(known)})"]

    @property
    def reads_sizes(self) -> bool:
        """Whether some sizes are known only to lines that follow the one in which they are read."""
        return bool(self._known)

    def result(self) -> str:
        """The last line."""
        results = "".join(f"{self.argument(r)}, " for r in self._graph.results)
        return f"    return ({results.rstrip() if results else ''})"

    def sizes(self, lines: Sequence[str]) -> list[str]:
        """Lines that give symbolic sizes the names by which others know them."""
        known, symbols = self._inputs
        named = (
            symbols & set(re.findall(r"[A-Za-z_]\w*", "\n".join(line.partition("  # ")[0] for line in lines)))
            if symbols
            else set()
        )
        if not self._taken.isdisjoint(symbols):
            raise SizeError(f"symbols are called like other values: {', '.join(sorted(self._taken & symbols))}")
        if not named <= known.keys() | self._known.keys():
            unknown = named - known.keys() - self._known.keys()
            raise SizeError(f"the inputs of {self._graph.name} do not say what {', '.join(sorted(unknown))} is")
        _require_read_before(lines, self._known.keys() - known.keys())
        return [f"    {name} = {place}" for name, place in known.items() if name in named]

    @functools.cached_property
    def _inputs(self) -> tuple[dict[str, str], set[str]]:
        """Where in the inputs symbolic sizes are, by their names; and all symbols there are."""
        inputs = self._graph.placeholders
        found = [(n, f"{node.name}.shape[{d}]") for node in inputs for d, n in _symbolic_sizes(node)]
        found += [(node.meta["val"], node.name) for node in inputs if is_size(node.meta.get("val"))]
        # a slice that a body of control flow is given lies as a tensor does whose size is none of its own
        found += [(n, f"{node.name}.stride({d})") for node in inputs for d, n in _symbolic_strides(node)]
        symbols = {symbol for n in self._graph.fx.nodes for symbol in _symbols(n)}
        known = {name: place for n, place in reversed(found) if (name := symbol_name(n)) is not None}
        known |= {
            name: place
            for name, place in solved([(plain(n), place) for n, place in found]).items()
            if name not in known
        }
        return known, symbols

    def name(self, like: str, value: Any) -> str:
        """A name for an object, that neither a variable of the program, nor another object, nor Python has:
        expressions call ``bool``."""
        name = re.sub(r"\W+", "_", like)
        while (
            name in self._taken
            or hasattr(builtins, name)
            or not name.isidentifier()
            or self._names.get(name, value) is not value
        ):
            name = f"_{name}"
        self._names[name] = value
        return name

    def call(self, node: fx.Node, into: fx.Node | None, whole: Collection[str] = ()) -> str:
        if node.target is scalar:
            return self._scalar(node)
        if node.target is size:
            return f"{self.argument(node.args[0])}.shape[{node.args[1]}]"
        if is_getitem(node):
            return f"{self.argument(node.args[0])}[{node.args[1]}]"
        if isinstance(node.target, Opaque):
            texts = [self.argument(a) for a in node.args]
            args = [
                f"{text}.clone()" if i in node.target.writes and text not in whole else text
                for i, text in enumerate(texts)
            ]
            return f"{self.name(node.target.name, node.target.in_place)}({', '.join(args)})"
        op = node.target if into is None else in_place_form(node.target)
        name = self.name(target_text(op), direct(op))
        args = [self.argument(a) for a in node.args] + [f"{k}={self.argument(v)}" for k, v in node.kwargs.items()]
        return f"{name}({', '.join(args)})"

    def _scalar(self, node: fx.Node) -> str:
        """A scalar expression with each symbol replaced by the variable that holds it."""
        text = str(node.args[0])
        for module in (math, torch):  # what an expression may name
            text = re.sub(rf"\b{module.__name__}(?=\.)", self.name(module.__name__, module), text)
        for symbol, value in node.kwargs.items():
            text = re.sub(rf"\b{symbol}\b", self.argument(value), text)
        return text

    def argument(self, value: Any) -> str:
        if isinstance(value, fx.Node):
            return (
                self.name(str(value.target), self._constants[str(value.target)])
                if value.op == "get_attr"
                else value.name
            )
        if isinstance(value, (list, tuple)):
            inside = ", ".join(map(self.argument, value))
            return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' if len(value) == 1 else ''})"
        if isinstance(value, (torch.SymInt, Size)):
            return repr(plain(value))
        if value is None or isinstance(value, (bool, int, str)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if value - value == 0 else f"float('{value}')"
        if isinstance(value, (torch.dtype, torch.layout, torch.memory_format, torch.device, complex)):
            return self.name(str(value).removeprefix("torch."), value)
        if isinstance(value, torch.Generator):
            return self.name("generator", value)
        if isinstance(value, Graph):
            return self.name(value.name, value)
        if isinstance(value, dict):
            return f"{{{', '.join(f'{k!r}: {self.argument(v)}' for k, v in value.items())}}}"
        if is_operator(value):
            return self.name(target_text(value), value)
        raise GraphError(f"the aten backend cannot print an argument of type {type(value).__name__}: {value!r}")


def _symbolic_strides(node: fx.Node) -> Iterator[tuple[int, torch.SymInt]]:
    """The dimensions along which elements of a tensor lie a symbolic number apart; not where there is but one."""
    value = node.meta.get("val")
    if isinstance(value, Tensor):
        pairs: Any = zip(value.shape, value.stride(), strict=True)
        yield from ((d, n) for d, (size, n) in enumerate(pairs) if is_size(n) and (is_size(size) or size > 1))


def _symbolic_sizes(node: fx.Node) -> Iterator[tuple[int, torch.SymInt]]:
    """The dimensions of a tensor whose sizes are symbolic."""
    value = node.meta.get("val")
    for d, n in enumerate(value.shape if isinstance(value, Tensor) else ()):
        size: Any = n
        if isinstance(size, torch.SymInt):
            yield d, size


def sizes_around(node: fx.Node) -> Sizes:
    """What is known of all sizes where a node's own are from."""
    numbers: list[Any] = [node.meta["val"], *(n for tensor in tensors_in(value_of(node)) for n in tensor.shape)]
    return sizes_of(shape_environment(next(filter(is_size, numbers))))


def _require_read_before(lines: Sequence[str], read: Collection[str]) -> None:
    """A size that Python reads is known to those lines alone that follow the one in which it is read."""
    for symbol in read:
        first = next(line for line in lines if re.search(rf"\b{symbol}\b", line.partition("  # ")[0]))
        if not first.startswith(f"    {symbol} = "):
            raise SizeError(f"{symbol} is read after it is used: {first.strip()}")


def _symbols(node: fx.Node) -> Collection[str]:
    """The symbols that a value knows of."""
    value = node.meta.get("val")
    sizes: list[Any] = [value] if is_size(value) else [n for _, n in (*_symbolic_sizes(node), *_symbolic_strides(node))]
    return {symbol for n in sizes for symbol in symbols_of(n)}


def _from(node: fx.Node) -> str:
    where = where_of(node)
    return f" · {where}" if where else ""


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")
