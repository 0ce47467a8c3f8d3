"""Which nodes the partition must treat specially, each with its reason."""

from __future__ import annotations

from torch import fx

from ..graphs import Joint, has_effect, is_random, pass_of
from ..slots import Cotangent, Final
from ..tags import Tag, tag, tags_of
from ..torch_private import is_operator, is_torchs_own
from .regions import judgements


def _tag_write(slot: Final, source: fx.Node) -> None:
    """The source of a write belongs to the pass that writes, and is computed once."""
    if slot.during == "forward" and pass_of(source) == "forward":
        if source.op == "call_function":
            tag(source, Tag.MUST_BE_IN_FORWARD, f"{slot.of} holds it when forward is done")
            tag(source, Tag.MUST_SAVE, f"{slot.of} holds it when forward is done: computed again, it would start from itself")
    elif source.op == "call_function" and pass_of(source) == "backward":
        tag(source, Tag.MUST_BE_IN_BACKWARD, f"{slot.of} holds it when backward is done")


def tag_joint(joint: Joint) -> Joint:
    """Tag incoming gradients, writes, random draws, other effects, and what checkpoint policies say. Raises ``PartitionError`` on a
    contradiction; a mere preference to compute again yields to what must be saved."""
    graph = joint.graph
    for slot, node in zip(graph.signature.ins, graph.placeholders, strict=True):
        if isinstance(slot, Cotangent):
            tag(node, Tag.MUST_BE_IN_BACKWARD, "an incoming gradient: known only when backward runs")
    for slot, result in zip(graph.signature.outs, graph.results, strict=True):
        if isinstance(slot, Final) and isinstance(result, fx.Node):
            _tag_write(slot, result)
    for node in graph.fx.nodes:
        if is_random(node):
            if pass_of(node) == "forward":
                tag(node, Tag.MUST_BE_IN_FORWARD, "draws random numbers: the generator must advance where eager advances it")
                tag(node, Tag.MUST_SAVE, "draws random numbers: a second draw would be another one")
            else:
                tag(node, Tag.MUST_BE_IN_BACKWARD, "draws random numbers in backward")
        elif has_effect(node):
            flag = Tag.MUST_BE_IN_FORWARD if pass_of(node) == "forward" else Tag.MUST_BE_IN_BACKWARD
            tag(node, flag, _effect(node))
            if flag is Tag.MUST_BE_IN_FORWARD:
                tag(node, Tag.MUST_SAVE, _effect(node))
    for node, flag, why in judgements(graph):
        if flag is not Tag.PREFER_RECOMPUTE or Tag.MUST_SAVE not in tags_of(node).flags:
            tag(node, flag, why)
    return joint


def _effect(node: fx.Node) -> str:
    if not is_operator(node.target) or is_torchs_own(node.target):
        return "has an effect: it runs where eager runs it, once"
    if "c10d" in node.target.namespace:  # type: ignore[union-attr]
        return "a collective: every process takes part, as often as eager does"
    return f"an operator of {node.target.namespace}, which may have effects: it runs where eager runs it, once"  # type: ignore[union-attr]
