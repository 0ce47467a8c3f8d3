"""A Python loop that a trace has unrolled: as many copies of its body as it has steps, all compiled and all printed.
A hint says so."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from torch import fx

from ..call_text import target_text
from ..errors import UnrolledLoopWarning
from ..graphs import Graph, is_getitem, is_view, pass_of, type_text, value_of, where_of
from ..state.lines import warn

_STEPS = 50
"""So many copies of a body go without a hint."""

_Call = tuple[str, Any, str]
"""The same call of the caller's, made again: its line, the operator, what it makes."""


def warn_of_unrolled(graph: Graph) -> None:
    """An ``UnrolledLoopWarning`` where lines of the caller's are recorded more than 50 times, each time of what the
    time before has made.

    A layer that is called in many places does that, too, but few models are so deep; a sum over many tensors does it
    with one operator.
    """
    repeated: dict[_Call, list[fx.Node]] = defaultdict(list)
    for node in graph.fx.nodes:
        where = where_of(node)
        if (
            where is not None
            and node.op == "call_function"
            and pass_of(node) == "forward"
            and not is_view(node)
            and not is_getitem(node)
        ):
            repeated[where, node.target, type_text(value_of(node))].append(node)
    repeated = {call: nodes for call, nodes in repeated.items() if len(nodes) > _STEPS}
    if not repeated:
        return
    loops: dict[str, list[_Call]] = defaultdict(list)
    for call in _carried(graph, repeated):
        loops[call[0].rpartition(" in ")[2]].append(call)
    for calls in loops.values():
        if len({op for _, op, _ in calls}) > 1:
            where = calls[0][0]
            steps = len(repeated[calls[0]])
            operators = ", ".join(dict.fromkeys(target_text(op) for _, op, _ in calls))
            warn(
                f"the function unrolls a loop: {where} is traced {steps} times, each time of what the last one made "
                f"({operators}). It is "
                "compiled once if it is the body of torch._higher_order_ops.scan(body, carry, xs)",
                UnrolledLoopWarning,
            )


def _carried(graph: Graph, repeated: dict[_Call, list[fx.Node]]) -> list[_Call]:
    """The calls that are each made of what the one before has made."""
    position = {node: (call, i) for call, nodes in repeated.items() for i, node in enumerate(nodes)}
    last: dict[fx.Node, dict[_Call, int]] = {}
    broken: set[_Call] = set()
    for node in graph.fx.nodes:
        below: dict[_Call, int] = {}
        for given in node.all_input_nodes:
            for call, i in last[given].items():
                below[call] = max(below.get(call, -1), i)
        if node in position:
            call, i = position[node]
            if i and below.get(call) != i - 1:
                broken.add(call)
            below[call] = i
        last[node] = below
    return [call for call in repeated if call not in broken]
