"""Common subexpression elimination: what forward computes twice from the same values is computed once.

A network that is called for its value and again inside each derivative (``u(x)``, ``grad(u)(x)``, ``hessian(u)(x)``)
runs once. Within a kernel equal values are one anyway (``loops/values.py``); here the library's calls are, too, and all
that follows from them.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import torch
from torch import fx

from ..graphs import Graph, copied, has_effect, is_getitem, pass_of, storage_map, storages
from ..tags import said_of
from ..torch_private.operators import is_operator, is_torchs_own
from .rewriting import view_what_stands


def common_subexpressions(graph: Graph) -> Graph:
    """The graph without calls that compute again what is there; itself where there are none."""
    if not _repeated(graph):
        return graph
    new = copied(graph)
    again = _repeated(new)
    gone = {storage for node, first in again.items() for storage in storages(node) - storages(first)}
    for node in list(new.fx.nodes):
        if node in again:
            node.replace_all_uses_with(again[node])
            new.fx.erase_node(node)
    view_what_stands(new.fx, gone)
    return new


def _repeated(graph: Graph) -> dict[fx.Node, fx.Node]:
    """The calls that compute again what another did before, with that."""
    places, results = storage_map(graph), [n for n in graph.results if isinstance(n, fx.Node)]
    # who gets a result may write to it, and ask whether two are one
    escaping = {place for result in results for place in places[result.name].values()}
    first: dict[Hashable, fx.Node] = {}
    again: dict[fx.Node, fx.Node] = {}
    for node in graph.fx.nodes:
        if _may_be_shared(node) and not escaping.intersection(places[node.name].values()):
            key = (node.target, said_of(node), _key(node.args, again), _key(node.kwargs, again))
            same = first.setdefault(key, node)
            if same is not node:
                again[node] = same
    return again


def _may_be_shared(node: fx.Node) -> bool:
    """Whether a call gives the same each time, and nobody asked for it to run once more: a region that is checkpointed
    is told apart by what its policy says, a backward pass is left as the user wrote it."""
    if node.op != "call_function" or pass_of(node) != "forward" or has_effect(node):
        return False
    if not is_operator(node.target):
        return is_getitem(node)
    sized = torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output
    return is_torchs_own(node.target) and not any(tag in node.target.tags for tag in sized)  # type: ignore[union-attr]


def _key(value: Any, again: Mapping[fx.Node, fx.Node]) -> Hashable:
    """What is equal for arguments that are the same."""
    if isinstance(value, fx.Node):
        return again.get(value, value)
    if isinstance(value, (list, tuple)):
        return tuple(_key(v, again) for v in value)
    if isinstance(value, dict):
        return tuple((name, _key(v, again)) for name, v in value.items())
    if isinstance(value, (Graph, torch.Generator)):
        return value
    return type(value), repr(value)  # 1, 1.0 and True are equal, 0.0 and -0.0 are
