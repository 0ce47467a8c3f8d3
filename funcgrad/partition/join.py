"""The two halves as one program: forward, then backward, which computes again what the partition says."""

from __future__ import annotations

from typing import Any

from torch import Tensor, fx

from ..graph_primitives import again
from ..graphs import Graph, value_of, verify
from ..joint import Joint
from ..slots import Saved, Slot
from .partition import Partition


def join(joint: Joint, split: Partition) -> Graph:
    """The joint graph with a second copy of each value that is computed again, which starts from what is kept; the
    joint graph itself where nothing is.

    What is computed again reads kept values through ``again``: a backend that knows equal values by what they are
    computed from would otherwise find them where forward left them, and keep them alive.
    """
    if not split.again:
        return joint.graph
    new = fx.Graph()
    first: dict[str, fx.Node] = {n.name: _copied(new, n, {}) for n in joint.graph.placeholders}
    for node in split.forward.fx.nodes:
        if node.op not in ("placeholder", "output"):
            first[node.name] = _copied(new, node, first)
    second, fresh = dict(first), dict(first)
    twice = {n.name for n in split.backward.fx.nodes if n.op == "call_function"} & first.keys()
    for node in split.backward.fx.nodes:
        if node.op in ("placeholder", "output") or (node.op == "get_attr" and node.name in first):
            continue
        if node.name in twice:
            for source in node.all_input_nodes:
                if fresh.get(source.name) is first.get(source.name) and source.op != "get_attr":
                    fresh[source.name] = _seen_again(new, first[source.name])
            fresh[node.name] = second[node.name] = _copied(new, node, fresh)
        else:
            second[node.name] = fresh[node.name] = _copied(new, node, second)
    last = {slot: second[v.name] if isinstance(v, fx.Node) else v for slot, v in _results(split.backward).items()}
    known = {slot: first[v.name] if isinstance(v, fx.Node) else v for slot, v in _results(split.forward).items()}
    new.output(tuple(last[slot] if slot in last else known[slot] for slot in joint.signature.outs))
    constants = {n.target: joint.graph.constants[str(n.target)] for n in new.nodes if n.op == "get_attr"}
    return verify(Graph(joint.signature, new, constants, joint.graph.name))  # type: ignore[arg-type]


def _copied(graph: fx.Graph, node: fx.Node, by_name: dict[str, fx.Node]) -> fx.Node:
    return graph.node_copy(node, lambda n: by_name[n.name])


def _seen_again(graph: fx.Graph, node: fx.Node) -> fx.Node:
    if not isinstance(value_of(node), Tensor):
        return node
    seen = graph.create_node("call_function", again, (node,), {}, name=f"{node.name}_again")
    seen.meta = {**node.meta, "pass": "backward"}
    return seen


def _results(graph: Graph) -> dict[Slot, Any]:
    return {slot: v for slot, v in graph.gives if not isinstance(slot, Saved)}
