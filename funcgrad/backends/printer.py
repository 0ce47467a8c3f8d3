"""Library calls as lines of Python: what every backend prints its function with."""

from __future__ import annotations

import builtins
import functools
import itertools
import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..errors import GraphError
from ..graph_primitives import NumberAsSize, Opaque, Sized, scalar, size, stride
from ..graphs import (
    Graph,
    is_getitem,
    is_view,
    target_text,
    type_text,
    value_of,
    where_of,
)
from ..loops.index import row_major
from ..memory.steps import Call, Free, Step
from ..passes.library import ADDING
from ..symbolic.known import same
from ..symbolic.places import places_of_sizes, sizes_around, symbols_around
from ..symbolic.read_sizes import SizesOnPath
from ..symbolic.sizes import Size, SizeError, plain
from ..symbolic.torch_sizes import shape_of, strides_of
from ..torch_private.operators import RECURRENT, argument_names, direct, is_operator, is_pointwise, overload_name


class Printer:
    """Prints a schedule of library calls as Python; the objects it refers to by name go to ``names``."""

    def __init__(self, names: dict[str, Any], graph: Graph) -> None:
        self._names = names
        self._constants = graph.constants
        self._graph = graph
        self._taken = {graph.name, *(n.name for n in graph.fx.nodes if n.op != "get_attr")}
        self._variables: dict[str, str] = {}
        self._known: dict[str, str] = {}
        """Symbols that are numbers as sizes, or sizes that Python read, and where they are."""

    def head(self) -> list[str]:
        """The first lines of the function."""
        graph = self._graph
        names = [n.name for n in graph.placeholders]
        if not graph.is_boxed:
            return [f"def {graph.name}({', '.join(names)}):", f'    """{_escape(str(graph.signature))}"""']
        box = self.variable("values")
        takes = [f"    {', '.join(names)}, = {box}"] if names else []
        return [f"def {graph.name}({box}):", f'    """{_escape(str(graph.signature))}"""', *takes, f"    {box}.clear()"]

    def variable(self, like: str) -> str:
        """A name for a variable, the same each time, that no tensor and no constant has."""
        if like not in self._variables:
            tried = itertools.chain([like], map(f"{like}_{{}}".format, itertools.count()))
            self._variables[like] = next(n for n in tried if n not in self._taken and n not in self._names)
            self._taken.add(self._variables[like])
        return self._variables[like]

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
        if lies_as_said_now(step):
            lines.append(self.laid_out(node, node.name))
        return lines if step.into is None else [*lines, f"    {step.into.name} = None"]

    def laid_out(self, node: fx.Node, name: str) -> str:
        """A line that gives a call's result, as ``name``, the layout that PyTorch's shape functions say it has. Now and
        then they are wrong."""
        fake = value_of(node)
        strides, dtype = strides_of(fake), self.argument(fake.dtype)
        made = f"{self.name('as_expected', as_expected)}({node.name}, {shape_of(fake)}, {strides}, {dtype})"
        if name == node.name:
            return f"    if {node.name}.stride() != {strides} or {node.name}.dtype is not {dtype}: {name} = {made}"
        same = f"{node.name}.stride() == {strides} and {node.name}.dtype is {dtype}"
        return f"    {name} = {node.name} if {same} else {made}"

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
        symbols = {symbol for n in self._graph.fx.nodes for symbol in symbols_around(n)}
        return places_of_sizes(self._graph.placeholders), symbols

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
        if node.target is stride:
            return f"{self.argument(node.args[0])}.stride({node.args[1]})"
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
        name = self.name(target_text(op), direct(op, _keeps_workspace(node)))
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


def in_place_form(op: Any) -> Any:
    """``aten.mul_.Tensor`` for ``aten.mul.Tensor``; None where there is none with the same arguments, or it may read a
    place that it has written to: one that does not compute element by element."""
    if not is_operator(op) or op.namespace != "aten":
        return None
    base = op.__name__.split(".")[0]
    packet = getattr(torch.ops.aten, base + "_", None) if is_pointwise(op) or op in ADDING.values() else None
    overload = getattr(packet, overload_name(op), None)
    return overload if overload is not None and argument_names(overload) == argument_names(op) else None


def _require_read_before(lines: Sequence[str], read: Collection[str]) -> None:
    """A size that Python reads is known to those lines alone that follow the one in which it is read."""
    for symbol in read:
        first = next(line for line in lines if re.search(rf"\b{symbol}\b", line.partition("  # ")[0]))
        if not first.startswith(f"    {symbol} = "):
            raise SizeError(f"{symbol} is read after it is used: {first.strip()}")


def _from(node: fx.Node) -> str:
    where = where_of(node)
    return f" · {where}" if where else ""


def lies_as_said_now(step: Call) -> bool:
    """Whether the lines of a call end with its result in the layout that PyTorch's shape functions say it has."""
    return step.into is None and not step.same and _may_lie_otherwise(step.node)


def _may_lie_otherwise(node: fx.Node) -> bool:
    """Whether PyTorch's shape functions may be wrong about the layout of a result that is read: where all lies row by
    row they are not. A view that was traced for the one layout may not be one of the other, and operators choose a
    memory format by the strides, also of dimensions of one element."""
    made = value_of(node)
    if not isinstance(made, Tensor) or is_view(node) or all(user.op == "output" for user in node.users):
        return False
    has_ones = made.ndim > 3 and any(type(n) is int and n == 1 for n in shape_of(made))
    if node.target in LAID_OUT_AS_SAID or (in_place_form(node.target) is not None and not has_ones):
        return False  # these are as they say
    call = node.args[0] if is_getitem(node) else node
    read = [value_of(n) for n in call.all_input_nodes] if isinstance(call, fx.Node) else []
    return not all(_is_row_major(t) for t in (made, *read) if isinstance(t, Tensor))


def _keeps_workspace(node: fx.Node) -> bool:
    """Whether a call computes what its backward pass alone needs, which it does where grad mode is on."""
    last: Any = value_of(node)[-1] if node.target is RECURRENT else None
    return last is not None and any(value_of(user) is last and user.users for user in node.users)


LAID_OUT_AS_SAID = {
    torch.ops.aten.mm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.baddbmm.default,
}
"""Calls whose result lies as PyTorch's shape functions say."""


def _is_row_major(t: Tensor) -> bool:
    return all(map(same, strides_of(t), row_major(shape_of(t))))


def as_expected(tensor: Tensor, shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """The same numbers in another layout."""
    return torch.empty_strided(shape, strides, dtype=dtype, device=tensor.device).copy_(tensor.reshape(shape))


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', "'")
