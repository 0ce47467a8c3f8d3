"""Which nodes the partition must treat specially, each with its reason."""

from __future__ import annotations

from ..graphs import Joint, has_effect, is_random, pass_of
from ..slots import Tangent
from ..tags import Tag, tag


def tag_joint(joint: Joint) -> Joint:
    """Tag random draws, other effects, and incoming gradients. Raises ``PartitionError`` on a contradiction."""
    graph = joint.graph
    for slot, node in zip(graph.signature.ins, graph.placeholders, strict=True):
        if isinstance(slot, Tangent):
            tag(node, Tag.MUST_BE_IN_BACKWARD, "an incoming gradient: known only when backward runs")
    for node in graph.fx.nodes:
        if is_random(node):
            if pass_of(node) == "forward":
                tag(node, Tag.MUST_BE_IN_FORWARD, "draws random numbers: the generator must advance where eager advances it")
                tag(node, Tag.MUST_SAVE, "draws random numbers: a second draw would be another one")
            else:
                tag(node, Tag.MUST_BE_IN_BACKWARD, "draws random numbers in backward")
        elif has_effect(node):
            flag = Tag.MUST_BE_IN_FORWARD if pass_of(node) == "forward" else Tag.MUST_BE_IN_BACKWARD
            tag(node, flag, "has an effect: it runs where eager runs it, once")
            if flag is Tag.MUST_BE_IN_FORWARD:
                tag(node, Tag.MUST_SAVE, "has an effect: it runs where eager runs it, once")
    return joint
