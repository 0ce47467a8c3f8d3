"""From a graph to values: what each ATen call computes, as a function of its index, or why the library runs it.

This is the only module of ``loops`` that looks into the calls of fx graphs; ``order`` and ``fuse`` ask what is read by
library calls, and when.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from ..errors import GraphError
from ..graph_primitives import SIZES, again, item_of, scalar
from ..graphs import Graph, bodies_of, device_of, is_getitem, is_view, target_text, tensors_in, value_of
from ..machine import Machine, machine_of
from ..symbolic import sizes
from ..symbolic.known import same
from ..symbolic.sizes import SizeError
from ..symbolic.torch_sizes import shape_of, strides_of
from ..torch_private.operators import argument_kinds
from ..torch_private.symbols import is_size
from ..torch_private.tensors import is_zero_tensor
from .gather import Checked
from .index import ZERO
from .rows import TAKES_GIVEN, TAKES_SCALARS, plain
from .table import TABLE
from .values import (
    HALF,
    Memory,
    MixedDtypesError,
    Scalar,
    Value,
    View,
    below,
    is_given,
    memory,
    number,
    own_index,
    pointwise,
    reduce,
)

SUPPORTED = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
)  # fmt: skip

Refuse = Callable[[Value], str | None]
"""Why a backend has no kernel for a value; None where it has."""

_CPU = torch.device("cpu")


@frozen(eq=False)
class Target:
    """What a graph is compiled for. ``fuses``: a value can be computed in the kernel that reads it, but for those that
    are ``refuse``d; None: none is. ``tells_numbers``: what kernels find of a number that Python reads can be asked
    for."""

    machine: Machine
    fuses: bool = True
    refuse: Refuse | None = None
    tells_numbers: bool = False


@frozen(eq=False)
class Lowering:
    """What the calls of a graph have become.

    ``values``: the value of each node that has one (those of externs are memory). ``externs``: the calls that the
    library runs, each with the reason. ``buffers``: the nodes whose tensor has to exist because an extern reads it, or
    the graph returns it, with the value that is written there; views of memory, and memory itself, need no writing and
    are not among them. ``strides``: how each of these lies in memory, by the dimensions of its value: what is copied in
    another order of dimensions is written there at once. ``checks``: bools that say whether a call was given an index
    that is out of bounds, and what Python reads. ``machine``: what kernels are made for.
    """

    machine: Machine
    values: Mapping[fx.Node, Value]
    externs: Mapping[fx.Node, str]
    buffers: Mapping[fx.Node, Value]
    strides: Mapping[fx.Node, tuple[int, ...]]
    checks: Mapping[fx.Node, tuple[Value, ...]]

    @property
    def nodes(self) -> list[fx.Node]:
        """The graph's, in order."""
        known = next(itertools.chain(self.values, self.externs), None)
        return [] if known is None else list(known.graph.nodes)

    def bases(self, node: fx.Node) -> list[fx.Node]:
        """The nodes in whose memory a node's tensor lies."""
        if node in self.buffers or node in self.externs or node.op != "call_function":
            return [node]
        return [b for n in node.all_input_nodes for b in self.bases(n)]


def lower(graph: Graph, device: torch.device | None = None, target: Target | None = None) -> Lowering:
    """Take the rows of the op table for the nodes that have one, and see which tensors must exist.

    Kernels run on ``device`` (None: that of the graph), for which there is a ``target``; what that refuses is left to
    the library.
    """
    device = device or device_of(graph)
    target = target or Target(machine_of(device))
    values: dict[fx.Node, Any] = {}
    externs: dict[fx.Node, str] = {}
    checks: dict[fx.Node, tuple[Value, ...]] = {}
    for node in graph.fx.nodes:
        if node.op == "placeholder":
            values[node] = _exists(node, value_of(node))
        elif node.op == "get_attr":
            values[node] = _constant(graph.constants[str(node.target)], node)
        elif node.op == "call_function":
            found = _value(node, values, device, target)
            if isinstance(found, str):
                externs[node] = found
                found = _exists(node, value_of(node))
            elif isinstance(found, Checked):
                checks[node] = tuple(reduce("any", wrong) for wrong in found.wrong)
                found = found.result
            values[node] = found
    written = {
        node: _written(value, strides_of(value_of(node))) for node, value in _needed(graph, values, externs).items()
    }
    buffers = {node: value for node, (value, _) in written.items()}
    strides = {node: found for node, (_, found) in written.items()}
    known = {n: v for n, v in values.items() if isinstance(v, Value)}
    return Lowering(target.machine, known, externs, buffers, strides, checks)


def is_lowered(node: fx.Node, device: torch.device) -> bool:
    """Whether a call has a loop form, of tensors that are there."""
    values = {n: _exists(n, value_of(n)) for n in node.all_input_nodes}
    return not isinstance(_value(node, values, device, Target(machine_of(device))), str)


def _value(node: fx.Node, values: Mapping[fx.Node, Any], device: torch.device, target: Target) -> Any:
    """The value of a call, or the reason why there is none."""
    if is_getitem(node):
        of = values[node.args[0]]  # type: ignore[index]
        return of[node.args[1]] if isinstance(of, tuple) else _exists(node, value_of(node))  # type: ignore[index]
    out = value_of(node)
    rule = TABLE.get(node.target)
    if rule is None:
        if bodies_of(node):
            return "it runs bodies of its own, which are compiled as this graph is"
        return (
            "Python"
            if node.target in (*SIZES, scalar, again, item_of)
            else f"{target_text(node.target)} has no row in the op table"
        )
    made = list(tensors_in(out))
    for t in (*made, *(t for n in node.all_input_nodes for t in tensors_in(value_of(n)))):
        is_there = t.device == device or (t.ndim == 0 and t.device == _CPU and not any(t is m for m in made))
        if not is_there or t.dtype not in SUPPORTED:
            return f"a tensor of dtype {t.dtype} on {t.device}"
        if any(size == 0 for size in shape_of(t)):
            return "there is nothing to compute: a tensor is empty"
    try:
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: _argument(values[n]))
    except LookupError:
        return "an argument that is no tensor of a known kind"
    if not any(isinstance(a, Value) for a in args):
        args = tuple(_of_its_own(a, kind) for a, kind in zip(args, argument_kinds(node.target), strict=False))
    scalars = [a for a in (*args, *kwargs.values()) if isinstance(a, Scalar)]
    if scalars and (node.target not in TAKES_SCALARS or any(t.dtype in HALF for t in made)):
        # in half precision it is not rounded as a tensor of it is
        return "a number that is known when the program runs"
    if node.target in TAKES_GIVEN:
        kwargs = {**kwargs, "given": [value_of(n) for n in node.all_input_nodes]}
    try:
        found = rule(*args, **kwargs, out=_types(out))
    except MixedDtypesError as error:
        return f"mixed dtypes: {error}"
    except SizeError as error:
        return f"a symbolic size: {error}"
    if found is NotImplemented:
        return f"this call of {target_text(node.target)} has no loop form"
    wrong = found.wrong if isinstance(found, Checked) else ()
    if not target.tells_numbers and any(value.dtype != torch.bool for value in wrong):
        return "a number that Python reads"
    result = found.result if isinstance(found, Checked) else found
    _check(node, result, _types(out))
    return (target.refuse and _refused(node, result, values, target.refuse)) or found


def _of_its_own(value: Any, kind: str) -> Any:
    """A number in the place of a tensor, which no other tensor lends its dtype (``vmap`` casts it to that of what it
    is computed with)."""
    dtype = {bool: torch.bool, int: torch.int64, float: torch.float64}.get(type(value)) if kind == "Tensor" else None
    return value if dtype is None else number(value, dtype)


@frozen
class Type:
    """What an operator returns, to the rows of its table."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device


def _types(out: Any) -> Any:
    if isinstance(out, Tensor):
        return Type(shape_of(out), out.dtype, out.device)
    return tuple(map(_types, out)) if isinstance(out, (list, tuple)) else out


def _refused(node: fx.Node, result: Any, values: Mapping[fx.Node, Any], refuse: Refuse) -> str | None:
    """Of what a call makes, and was not there before."""
    known = {values[n] for n in node.all_input_nodes if isinstance(values[n], Value)}
    made = [v for v in (result if isinstance(result, tuple) else (result,)) if isinstance(v, Value)]
    reasons = (refuse(v) for v in below(made, stop=known.__contains__) if v not in known)
    return next((reason for reason in reasons if reason), None)


def _argument(value: Any) -> Any:
    if value is None:
        raise LookupError("a value of another kind")
    return value


def _check(node: fx.Node, found: Any, out: Any) -> None:
    """The row of the table and PyTorch agree on what is computed."""
    pairs = zip(found, out, strict=True) if isinstance(out, tuple) else [(found, out)]
    for value, fake in pairs:
        if isinstance(value, Value) and (value.shape != fake.shape or value.dtype != fake.dtype):
            raise GraphError(
                f"the op table makes {value.dtype}{list(value.shape)} of {node.format_node()}, which is "
                f"{fake.dtype}{list(fake.shape)}"
            )


def _exists(node: fx.Node, out: Any) -> Value | None:
    if isinstance(out, Tensor) and is_zero_tensor(out):
        return number(plain(0, out.dtype), out.dtype, shape_of(out)) if out.dtype in SUPPORTED else None
    if isinstance(out, Tensor):
        there = memory(node.name, shape_of(out), strides_of(out), out.dtype)
        # PyTorch notes that the sign is turned, and leaves memory as it is
        return pointwise("neg", there) if out.is_neg() else there
    if isinstance(out, (torch.SymFloat, float)):
        return Scalar((), torch.float64, node.name, ())
    return sizes.plain(out) if is_size(out) or type(out) is int else None


def _constant(tensor: Tensor, node: fx.Node) -> Value | None:
    if tensor.ndim == 0 and tensor.dtype in SUPPORTED:
        return number(tensor.item(), tensor.dtype)
    return _exists(node, tensor)


# ── which tensors must exist ─────────────────────────────────────────────────────────────────────────────────────


def _needed(graph: Graph, values: Mapping[fx.Node, Any], externs: Mapping[fx.Node, str]) -> dict[fx.Node, Value]:
    pending = [n for extern in externs for n in extern.all_input_nodes if not is_getitem(extern)]
    pending += [r for r in graph.results if isinstance(r, fx.Node)]
    needed: dict[fx.Node, Value] = {}
    seen: set[fx.Node] = set()
    while pending:
        node = pending.pop()
        if node in seen or node.op != "call_function" or node in externs:
            continue
        seen.add(node)
        if is_view(node) or (is_getitem(node) and node.args[0] in externs):
            pending += node.all_input_nodes
        elif isinstance(values[node], Value):
            needed[node] = values[node]
        else:
            raise GraphError(f"{node.name}: its tensor is needed, and nothing makes it")
    order = {n: i for i, n in enumerate(graph.fx.nodes)}
    return {n: needed[n] for n in sorted(needed, key=order.__getitem__)}


def _written(value: Value, strides: tuple[int, ...]) -> tuple[Value, tuple[int, ...]]:
    """What is computed for a tensor that lies so, and how that lies: of a view that only changes the order of the
    dimensions, what it is a view of, if its last dimension is the one that lies together in memory."""
    if not is_given(value):
        return value, strides
    if isinstance(value, View) and not isinstance(value.arg, Memory):
        found = _of_argument(value, strides)
        last = (
            next((s for s, n in zip(reversed(found), reversed(value.arg.shape), strict=True) if n > 1), None)
            if found
            else None
        )
        if found and last == 1:
            return value.arg, found
    return pointwise("copy", value), strides  # of a tensor that is there, but this is another tensor


def _of_argument(view: View, strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The strides by the dimensions of what is viewed; None where it is seen otherwise than whole, each element
    once."""
    by_axis = {i: (n, step) for i, n, step in zip(own_index(view.shape), view.shape, strides, strict=True)}
    seen = [(w, n) for w, n in zip(view.where, view.arg.shape, strict=True) if n > 1]
    is_whole = all(w != ZERO and w in by_axis and same(by_axis[w][0], n) for w, n in seen)
    if not is_whole or view.numel != view.arg.numel or len(set(seen)) != len(seen):
        return None
    return tuple(by_axis[w][1] if n > 1 else 1 for w, n in zip(view.where, view.arg.shape, strict=True))
