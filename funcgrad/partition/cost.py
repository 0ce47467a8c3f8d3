"""What it costs to compute a forward value again in backward, read from the op table: a few operations where it fuses
into the kernel that reads it, a whole call where the library computes it.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..control_flow import scan
from ..graphs import Graph, bodies_of, is_getitem, is_view, nbytes, pass_of, tensors_in, value_of
from ..loops.costs import own_cost
from ..loops.lower import Lowering, Target, lower
from ..loops.values import below
from ..symbolic.sizes import hint


def fused_costs(graph: Graph, target: Target) -> Mapping[fx.Node, float]:
    """For each forward value that would be computed in the kernel that reads it: the cost of that, in bytes that
    could be moved meanwhile. A value that a library call of backward reads has to be written to memory once more."""
    lowering = lower(graph, target=target)
    costs: dict[fx.Node, float] = {}
    for node in graph.fx.nodes:
        if (
            node.op == "call_function"
            and pass_of(node) == "forward"
            and node in lowering.values
            and node not in lowering.externs
        ):
            operations = _operations(node, lowering)
            if operations < math.inf:
                costs[node] = target.machine.bytes_meanwhile(operations) + (
                    nbytes(value_of(node)) if _is_read_by_library(node, lowering) else 0
                )
    return costs


def costs_again(graph: Graph, target: Target) -> tuple[Mapping[fx.Node, float], Collection[fx.Node]]:
    """For each forward value, whatever computes it: the cost of computing it again, in bytes that could be moved
    meanwhile; and the values that take memory only where a library call reads them."""
    lowering = lower(graph, target=target)
    costs: dict[fx.Node, float] = {}
    fused = {n for n in graph.fx.nodes if target.fuses and n in lowering.values and n not in lowering.externs}
    for node in graph.fx.nodes:
        if is_getitem(node):
            costs[node] = 0.0
        elif node.op == "call_function" and pass_of(node) == "forward" and not is_view(node):
            moved = 0 if node in fused and not _is_read_by_library(node, lowering) else bytes_moved(node)
            costs[node] = moved + _time(node, lowering)
    return costs, fused


def _time(node: fx.Node, lowering: Lowering) -> float:
    """Of one call, in bytes that could be moved meanwhile."""
    operations, machine = flops(node, lowering), lowering.machine
    if node not in lowering.externs:
        return machine.bytes_meanwhile(operations)
    made = tensors_in(value_of(node))
    return machine.bytes_beside_products(operations, made[0].dtype if made else torch.float32)


def bytes_moved(node: fx.Node) -> int:
    """Bytes that a call of the library reads and writes, each tensor once."""
    return nbytes(value_of(node)) + sum(nbytes(value_of(n)) for n in node.all_input_nodes)


def _operations(node: fx.Node, lowering: Lowering) -> float:
    """Element-wise operations in one call; infinite where it takes a loop of its own."""
    value = lowering.values[node]
    known = {lowering.values[n] for n in node.all_input_nodes if n in lowering.values}
    return sum(
        own_cost(v, lowering.machine) * v.about for v in below([value], stop=known.__contains__) if v not in known
    )


def _is_read_by_library(node: fx.Node, lowering: Lowering) -> bool:
    return any(
        (user in lowering.externs and pass_of(user) == "backward")
        or (is_view(user) and _is_read_by_library(user, lowering))
        for user in node.users
    )


def flops(node: fx.Node, lowering: Lowering | None = None) -> float:
    """Floating-point operations of one call: PyTorch's own count where it has one (matrix products, convolutions,
    attention), else one (or what the op table says) for each element of what is read or made."""
    if node.op != "call_function" or is_view(node) or is_getitem(node):
        return 0.0
    bodies = bodies_of(node)
    if bodies:  # of a choice, the dearer one; of a loop whose steps nobody knows, one
        steps = hint(value_of(node.args[3][0]).shape[0]) if node.target is scan else 1  # type: ignore[index, arg-type]
        return float(steps) * max(sum(flops(n, of) for n in body.fx.nodes) for body in bodies for of in (lower(body),))
    from torch.utils.flop_counter import flop_registry  # noqa: PLC0415 # takes 0.3 s to import: only for those who ask

    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is not None:
        args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
        return float(hint(formula(*args, **kwargs, out_val=value_of(node))))
    if lowering is not None and node in lowering.values and node not in lowering.externs:
        operations = _operations(node, lowering)
        if operations < math.inf:
            return operations
    return float(max((_numel(value_of(n)) for n in (node, *node.all_input_nodes)), default=0))


def _numel(value: Any) -> int:
    tensors: Sequence[Tensor] = tensors_in(value)
    return sum(hint(t.numel()) for t in tensors)
