"""Images as the library's convolutions read them: channels last, from the first convolution on.

A convolution of images that lie row by row puts them in another order, and its result back: each kernel between two
convolutions would read and write in both. Here the whole graph is of images that lie channels last, as if the caller's
did: forward, backward, and what is kept between them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..graph_primitives import SIZES
from ..graphs import Graph, copied, is_getitem, is_random, nbytes, storages, value_of, verify
from ..loops.costs import ROW
from ..torch_private.operators import is_operator
from .library import OF_MEMORY, is_planar
from .rewriting import call, computed

aten = torch.ops.aten


def channels_last(graph: Graph) -> Graph:
    """The graph with images channels last, where it has several convolutions of them; what goes in and out lies as
    before. Itself where that cannot be, or would draw random numbers in another order."""
    if not torch.backends.mkldnn.is_available() or not _is_worth_it(graph):  # type: ignore[no-untyped-call]
        return graph
    new = copied(graph)
    given = frozenset().union(*(storages(n) for n in graph.placeholders))
    wanted = [(_look(value_of(r)), storages(r) & given) if isinstance(r, fx.Node) else None for r in graph.results]
    try:
        _turn(new.fx)
        _turn_results(new, wanted)
    except (RuntimeError, TypeError, ValueError):  # a call that takes images of one layout alone
        return graph
    return verify(new)


def _is_worth_it(graph: Graph) -> bool:
    nodes = list(graph.fx.nodes)
    planar = [n for n in nodes if n.target is aten.convolution.default and is_planar(n.args[0]) and is_planar(n)]
    return len(planar) > 1 and not any(is_random(n) or n.target in OF_MEMORY for n in nodes)


def _turn(graph: fx.Graph) -> None:
    """Images come in channels last, and all that is made of them is computed again, as it lies then."""
    given = [n for n in graph.nodes if n.op == "placeholder"]
    turned: set[fx.Node] = set()
    with graph.inserting_after(given[-1]):
        for node in given:
            if isinstance(value_of(node), Tensor) and is_planar(node) and _feeds_convolution(node):
                copy = call(node, aten.clone.default, node, memory_format=torch.channels_last)
                node.replace_all_uses_with(copy, lambda user, copy=copy: user is not copy and user.target not in SIZES)  # type: ignore[misc]
                turned.add(copy)
    for node in list(graph.nodes):
        if node.op == "call_function" and not turned.isdisjoint(node.all_input_nodes):
            node.meta["val"] = _computed(graph, node)
            turned.add(node)


def _computed(graph: fx.Graph, node: fx.Node) -> Any:
    """The value of a call; where it can only look at a tensor that lies row by row, of a copy that does."""
    if not is_operator(node.target) and not is_getitem(node):
        raise TypeError(f"{node.target} is no operator")
    try:
        return computed(node)
    except (RuntimeError, ValueError):
        if node.target is not aten.view.default:
            raise
    with graph.inserting_before(node):
        copy = _in_rows(node.args[0])  # type: ignore[arg-type]
    node.args = (copy, *node.args[1:])
    return computed(node)


def _in_rows(node: fx.Node) -> fx.Node:
    """A copy that lies row by row."""
    return call(node, aten.clone.default, node, memory_format=torch.contiguous_format)


def _feeds_convolution(node: fx.Node) -> bool:
    """Images; and weights that are next to nothing beside them, of which the library would make such a copy in each
    call."""
    convolutions = [user for user in node.users if user.target is aten.convolution.default]
    return any(
        node is c.args[0] or (node is c.args[1] and nbytes(value_of(node)) * ROW <= nbytes(value_of(c)))
        for c in convolutions
    )


def _look(value: Any) -> Any:
    return (tuple(value.shape), tuple(value.stride())) if isinstance(value, Tensor) else None


def _turn_results(graph: Graph, wanted: Sequence[Any]) -> None:
    """What is returned lies as it did."""
    output = graph.fx.output_node()
    results = list(graph.results)
    users = Counter(place for r in results if isinstance(r, fx.Node) for place in storages(r))
    with graph.fx.inserting_before(output):
        for i, (result, before) in enumerate(zip(graph.results, wanted, strict=True)):
            if not isinstance(result, fx.Node):
                continue
            look, in_given = before
            if _look(value_of(result)) != look:
                results[i] = copy = _in_rows(result)
                if _look(value_of(copy)) != look or any(users[place] > 1 for place in storages(result)):
                    raise TypeError(f"{result} is returned as it lies")
            if not in_given <= storages(result):
                raise TypeError(f"{result} is returned in the memory of an input")
    output.args = (tuple(results),)
