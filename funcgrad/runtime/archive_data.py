"""What of a program has a name in another process: the vocabulary in which a file is pickled.

Operators are written by their names, graphs as lists of calls, functions by the modules they stand in. What has no name
of its own (a closure, a lock, a symbol of a trace) is refused.
"""

from __future__ import annotations

import functools
import importlib
import io
import pickle
import pkgutil
import types
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx

from .. import graph_primitives
from ..graphs import Graph
from ..slots import Signature
from ..symbolic.sizes import Size
from ..torch_private.fakes import FakeTensorMode
from ..torch_private.operators import direct, direct_call, is_operator, operator_named
from ..torch_private.pytrees import registered_part, whose_part
from .cotangents import Blank

_KEPT = ("pass", "where", "passage", "write", "absent", "is_gradient", "looks_at")
"""What half of a backward pass is chosen by (``passes/symbolic_zeros.py``), and how that reads what it is given."""


class HasNoName(Exception):  # noqa: N818 it is caught where the program is known
    """An object that no file can hold."""


class Pickler(pickle.Pickler):
    """Writes what a program is made of."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, Graph):
            return _graph, _as_calls(obj)
        if is_operator(obj):
            return operator_named, (obj.name(),)
        if (of := direct_call(obj)) is not None:
            return direct, of
        if isinstance(obj, (Size, torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise HasNoName("a symbol of the trace")
        if isinstance(obj, types.ModuleType):
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, type) and obj.__module__ == "funcgrad":  # what fx is told of the calls of a graph
            return _at, (graph_primitives.__name__, obj.__qualname__)
        if isinstance(obj, types.BuiltinFunctionType) and (place := _ours().get(id(obj))) is not None:
            return _at, place
        if isinstance(obj, types.FunctionType) and (part := whose_part(obj)) is not None:
            return registered_part, part
        return NotImplemented


def _at(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


@functools.cache
def _ours() -> Mapping[int, tuple[str, str]]:
    """Functions of C++ that have a name in our rooms, by identity: not all have one of their own."""
    room = importlib.import_module("funcgrad.torch_private")
    found: dict[int, tuple[str, str]] = {}
    for info in pkgutil.iter_modules(room.__path__, f"{room.__name__}."):
        for name, value in vars(importlib.import_module(info.name)).items():
            if isinstance(value, types.BuiltinFunctionType):
                found[id(value)] = info.name, name
    return found


def pickled_like(value: Any) -> Any:
    """A copy that went through a file. Raises what pickling raises."""
    data = io.BytesIO()
    Pickler(data).dump(value)
    return pickle.loads(data.getvalue())


# ── graphs ───────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class _Ref:
    """A node, by its name."""

    name: str


def _ref(node: fx.Node) -> Any:
    return _Ref(node.name)


def _as_calls(graph: Graph) -> tuple[Any, ...]:
    """A graph as a list of calls: what ``_graph`` takes."""
    nodes = []
    for node in graph.fx.nodes:
        args, kwargs = fx.map_arg((node.args, node.kwargs), _ref)
        meta = {key: node.meta[key] for key in _KEPT if key in node.meta}
        nodes.append((node.op, node.name, node.target, args, kwargs, meta, _looks(node.meta.get("val"))))
    kinds = graph.is_boxed, graph.handed_over, graph.donated
    return graph.signature, nodes, dict(graph.constants), graph.name, *kinds


def _looks(value: Any) -> Any:
    """What is known of a value, without a trace: None where that is a symbol."""
    if isinstance(value, (list, tuple)):
        return [_looks(v) for v in value]
    if not isinstance(value, Tensor):
        return value if isinstance(value, (bool, int, float, str)) else None
    return Blank.of(value) if all(type(n) is int for n in (*value.shape, *value.stride())) else None


def _graph(signature: Signature, nodes: Sequence[Any], constants: Mapping[str, Tensor], *how: Any) -> Graph:
    """The graph of such a list; nobody's memory is that of another value in it."""
    made, env, fakes = fx.Graph(), dict[str, fx.Node](), FakeTensorMode()

    def fake(looks: Any) -> Any:
        if isinstance(looks, list):
            return [fake(own) for own in looks]
        return looks.empty() if isinstance(looks, Blank) else looks

    for op, name, target, refs, named, meta, looks in nodes:
        args, kwargs = fx.node.map_aggregate((refs, named), lambda a: env[a.name] if isinstance(a, _Ref) else a)
        node = env[name] = made.create_node(op, target, args, kwargs, name)
        with fakes:
            node.meta = meta if op == "output" else {**meta, "val": fake(looks)}
    return Graph(signature, made, constants, *how)
