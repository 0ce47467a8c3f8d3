"""What passes put into a graph: new calls, whose values are computed from those of what they are given."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

from torch import fx

from ..graphs import storages, value_of


def call(like: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new call, before the present place, for the same line of the caller's as another."""
    node = like.graph.call_function(target, args, kwargs)
    node.meta = {**like.meta, "val": computed(node)}
    return node


def computed(node: fx.Node) -> Any:
    """The value of a call, computed from those of its arguments as they are now."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    return node.target(*args, **kwargs)  # type: ignore[operator]


def view_what_stands(graph: fx.Graph, gone: Container[int]) -> None:
    """A view of memory that is gone is one of what stands for it."""
    for node in graph.nodes:
        if node.op == "call_function" and any(storage in gone for storage in storages(node)):
            node.meta["val"] = computed(node)
