"""The recorded run: a function on functional fakes becomes a Joint, its results named by slots."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from ..graphs import Constant, Graph, Joint, Returned, has_effect, storages
from ..slots import Signature, Slot
from ..trees import flatten
from .facts import Facts, Inputs, make_stand_ins
from .trace import Trace


def capture(function: Callable[..., Any], inputs: Inputs, facts: Facts, grad: bool, out_slot: Callable[[str], Slot]) -> Joint:
    """Trace ``function`` (a forward, or a forward with its backward) into one graph.

    ``grad``: whether inputs keep their ``requires_grad``. ``out_slot`` names a leaf of the result from its path.
    Raises ``TraceError`` if this run meets a tensor the dry run did not.
    """
    trace = Trace(record=True)
    assert trace.graph is not None
    stand_ins = make_stand_ins(trace, inputs, grad)
    for captured in facts.captured:
        trace.captured_input(captured.slot, captured.read())
    with torch.set_grad_enabled(grad):
        result = trace.run(function, *inputs.rebuild(stand_ins))
    leaves, tree, paths = flatten(result)
    outs: dict[Slot, Any] = {}
    returned: list[Slot | Constant] = []
    for leaf, path in zip(leaves, paths, strict=True):
        if isinstance(leaf, (Tensor, torch.SymInt, torch.SymFloat, torch.SymBool)):
            slot = out_slot(path)
            outs[slot] = trace.result(leaf)
            returned.append(slot)
        else:
            returned.append(Constant(leaf))
    trace.graph.output(tuple(outs.values()))
    ins: tuple[Slot, ...] = (*stand_ins, *(c.slot for c in facts.captured), *trace.late)
    graph = Graph(Signature(ins, tuple(outs)), trace.graph, trace.constants, "joint")
    simplify(graph)
    return Joint(graph, Returned(tree, tuple(returned)), tuple(trace.guards()), trace.symbol_slots())


def simplify(graph: Graph) -> None:
    """Remove what has no effect: detach and alias (nothing tracks gradients in a graph), and calls nobody reads.

    A random draw nobody reads stays: it advances the generator, as it does in eager PyTorch. So does a returned
    alias of an input or of another returned value: the caller gets a tensor object of its own, with a gradient of its own or none.
    """
    aliases = {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
    outside = set().union(*(storages(n) for n in graph.fx.nodes if n.op in ("placeholder", "get_attr")), frozenset())
    returned = [r for r in graph.results if isinstance(r, fx.Node)]
    for node in graph.fx.nodes:
        same = node.op == "call_function" and (node.target in aliases or _is_noop_view(node))
        others = outside.union(*(storages(r) for r in returned if r is not node), frozenset())
        if same and (node not in returned or not (storages(node) & others)):
            node.replace_all_uses_with(node.args[0])
            returned = [r for r in graph.results if isinstance(r, fx.Node)]
    for node in reversed(list(graph.fx.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not has_effect(node):
            graph.fx.erase_node(node)


def _is_noop_view(node: fx.Node) -> bool:
    """A view or expand to the very sizes and strides its input has."""
    if node.target not in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default):
        return False
    before, after = node.args[0].meta["val"], node.meta["val"]  # type: ignore[union-attr]
    return bool(before.shape == after.shape and before.stride() == after.stride())
