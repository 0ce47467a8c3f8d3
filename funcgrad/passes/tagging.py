"""Which nodes the partition must treat specially, each with its reason."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, fx

from ..graph_primitives import Opaque
from ..graphs import Graph, has_effect, is_getitem, is_random, is_view, pass_of, tensors_in
from ..joint import Joint
from ..slots import Cotangent, Final
from ..tags import Said, Tag, said_of, tag, tags_of
from ..torch_private.operators import is_operator, is_torchs_own

_aten = torch.ops.aten
_PICKS = {
    _aten.max.default, _aten.min.default, _aten.amax.default, _aten.amin.default, _aten.median.default,
    _aten.nanmedian.default, _aten.linalg_vector_norm.default, _aten.norm.Scalar, _aten.norm.ScalarOpt_dim,
    _aten.max.dim, _aten.min.dim, _aten.median.dim, _aten.nanmedian.dim, _aten.kthvalue.default, _aten.mode.default,
    _aten.topk.default, _aten.sort.default, _aten.sort.stable, _aten.cummax.default, _aten.cummin.default,
}  # fmt: skip
"""What gives elements of a tensor (norms: where they are maxima)."""
_COMPARES = {getattr(_aten, name).Tensor for name in ("eq", "ne", "lt", "le", "gt", "ge")}
_EXACT = {_aten.abs.default, _aten.neg.default, _aten.clone.default}


def _tag_write(slot: Final, source: fx.Node) -> None:
    """The source of a write belongs to the pass that writes, and is computed once."""
    if slot.during == "forward" and pass_of(source) == "forward":
        if source.op == "call_function":
            tag(source, Tag.MUST_BE_IN_FORWARD, f"{slot.of} holds it when forward is done")
            tag(
                source,
                Tag.MUST_SAVE,
                f"{slot.of} holds it when forward is done: computed again, it would start from itself",
            )
    elif source.op == "call_function" and pass_of(source) == "backward":
        tag(source, Tag.MUST_BE_IN_BACKWARD, f"{slot.of} holds it when backward is done")


def tag_joint(joint: Joint) -> None:
    """Tag incoming gradients, writes, random draws, other effects, and what checkpoint policies say. Raises
    ``PartitionError`` on a contradiction; a mere preference to compute again yields to what must be saved."""
    graph = joint.graph
    for slot, node in graph.given:
        if isinstance(slot, Cotangent):
            tag(node, Tag.MUST_BE_IN_BACKWARD, "an incoming gradient: known only when backward runs")
    for slot, result in graph.gives:
        if isinstance(slot, Final) and isinstance(result, fx.Node):
            _tag_write(slot, result)
    for node in graph.fx.nodes:
        if is_random(node):
            if pass_of(node) == "forward":
                tag(
                    node,
                    Tag.MUST_BE_IN_FORWARD,
                    "draws random numbers: the generator must advance where eager advances it",
                )
                tag(node, Tag.MUST_SAVE, "draws random numbers: a second draw would be another one")
            else:
                tag(node, Tag.MUST_BE_IN_BACKWARD, "draws random numbers in backward")
        elif has_effect(node) or isinstance(node.target, Opaque):
            flag = Tag.MUST_BE_IN_FORWARD if pass_of(node) == "forward" else Tag.MUST_BE_IN_BACKWARD
            tag(node, flag, _effect(node))
            if flag is Tag.MUST_BE_IN_FORWARD:
                tag(node, Tag.MUST_SAVE, _effect(node))
        elif node.target in _COMPARES:
            _tag_compared(node)
    for node, flag, why in judgements(graph):
        if flag is not Tag.PREFER_RECOMPUTE or Tag.MUST_SAVE not in tags_of(node).flags:
            tag(node, flag, why)


def _tag_compared(node: fx.Node) -> None:
    """Where a value is compared with one of its own elements that was picked in forward (a maximum), it is the value
    that was there: computed again by another kernel, it may differ by a rounding, and no element is found."""
    for value, picked in itertools.permutations(map(_exact, node.all_input_nodes), 2):
        is_own = picked.target in _PICKS and any(_exact(a) is value for a in picked.all_input_nodes)
        if is_own and value.op == "call_function" and pass_of(value) == "forward":
            kept, what = (node, "compares") if pass_of(node) == "forward" else (value, "is compared")
            tag(kept, Tag.MUST_SAVE, f"{what} with {picked.name}: computed again, it may round otherwise")


def _exact(node: fx.Node) -> fx.Node:
    """What a node has the elements of, but for their signs; of several results that are picked, what picks them."""
    while node.all_input_nodes and (
        is_view(node) or node.target in _EXACT or (is_getitem(node) and node.all_input_nodes[0].target in _PICKS)
    ):
        node = node.all_input_nodes[0]
    return node


def _effect(node: fx.Node) -> str:
    if isinstance(node.target, Opaque) and node.target.is_pure:
        return "Python of the caller's, of which nobody knows what it takes: it runs once"
    if not is_operator(node.target) or is_torchs_own(node.target):
        return "has an effect: it runs where eager runs it, once"
    if "c10d" in node.target.namespace:  # type: ignore[union-attr]
        return "a collective: every process takes part, as often as eager does"
    return f"an operator of {node.target.namespace}, which may have effects: it runs where eager runs it, once"  # type: ignore[union-attr]


def judgements(graph: Graph) -> Iterator[tuple[fx.Node, Tag, str]]:
    """Each value that a region speaks of with the flag and the reason that hold for it."""
    result = {n for n in graph.results if isinstance(n, fx.Node)}
    for node in graph.fx.nodes:
        said = said_of(node)
        if node.op != "call_function" or not said or is_view(node) or not tensors_in(node.meta.get("val")):
            continue
        inside = min((_common(said, user) for user in _forward_readers(node, result)), default=len(said))
        if inside:
            yield node, said[inside - 1].flag, said[inside - 1].why
        else:
            yield node, Tag.MUST_SAVE, f"a result of {said[0].name}"


def _common(said: Sequence[Said], reader: Sequence[Said]) -> int:
    """How many regions, from the outermost, stand around both."""
    pairs = itertools.takewhile(lambda pair: pair[0].region == pair[1].region, zip(said, reader, strict=False))
    return len(list(pairs))


def _forward_readers(node: fx.Node, results: set[fx.Node]) -> Iterator[Sequence[Said]]:
    """Where a value is read in forward, also through views: what the regions around each reader say of that."""
    for user in node.users:
        if user.op == "output":
            yield ()
        elif isinstance(user.meta.get("val"), Tensor) and is_view(user):
            yield from _forward_readers(user, results)
        elif pass_of(user) == "forward":
            yield said_of(user)
