"""Draws of zeros and ones, kept as bools: dropout's mask takes a byte for each element, not four."""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from ..graphs import pass_of, value_of
from ..joint import Joint
from ..tags import Tag, said_of, say

_aten = torch.ops.aten
_BINARY = (_aten.bernoulli.default, _aten.bernoulli.p, _aten.bernoulli.Tensor)


def pack_random_masks(joint: Joint, everywhere: bool) -> Joint:
    """Readers of such a draw read it through a bool, which is what is kept for backward, if it is there that the
    float is computed again: in checkpoint regions that compute again, or (``everywhere``) where that fuses into the
    readers."""
    for node in list(joint.graph.fx.nodes):
        pays = everywhere or (said_of(node) and said_of(node)[-1].flag is Tag.PREFER_RECOMPUTE)
        if pays and node.target in _BINARY and pass_of(node) == "forward" and value_of(node).is_floating_point():
            _pack(joint.graph.fx, node)
    return joint


def _pack(graph: fx.Graph, draw: fx.Node) -> None:
    with graph.inserting_after(draw):
        mask = graph.create_node("call_function", _aten._to_copy.default, (draw,), {"dtype": torch.bool}, name="mask")
    with graph.inserting_after(mask):
        wide = graph.create_node(
            "call_function", _aten._to_copy.default, (mask,), {"dtype": value_of(draw).dtype}, name=draw.name
        )
    draw.replace_all_uses_with(wide, delete_user_cb=lambda user: user is not mask)
    values: dict[fx.Node, Any] = {mask: value_of(draw).to(torch.bool), wide: value_of(draw).clone()}
    for node, value in values.items():
        node.meta = {key: v for key, v in draw.meta.items() if key in ("pass", "where")} | {"val": value}
        say(node, said_of(draw))
