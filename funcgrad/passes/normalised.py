"""Normalised values as arithmetic on their statistics.

A call that normalises returns what it has normalised with the means and the inverse deviations. To compute the first
again in backward would be to go through the tensor twice more for the others, which are next to nothing to keep. Here
it is made of them: what backward computes again is a few operations in the kernel that reads it. The kernels of forward
are the same as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import fx

from ..graphs import Graph, copied, device_of, is_getitem, value_of, verify
from ..loops.lower import is_lowered
from ..loops.rows import wide_dtype
from ..tags import said_of, tags_of
from .rewriting import call

aten = torch.ops.aten

_WEIGHTS: Mapping[Any, slice] = {
    aten.native_layer_norm.default: slice(2, 4), aten._native_batch_norm_legit_functional.default: slice(1, 3),
    aten._native_batch_norm_legit.no_stats: slice(1, 3),
}  # fmt: skip
"""Calls that normalise, and which of their arguments are weight and bias."""


def normalised(graph: Graph) -> Graph:
    """The graph with what kernels normalise written out; where a checkpoint policy speaks of a call, it stays as it
    is."""
    if not any(n.target in _WEIGHTS for n in graph.fx.nodes):
        return graph
    new, device = copied(graph), device_of(graph)
    for node in list(new.fx.nodes):
        is_plain = node.target in _WEIGHTS and not said_of(node) and not tags_of(node).flags
        if is_plain and is_lowered(node, device):
            _write_out(node)
    return verify(new)


def _write_out(norm: fx.Node) -> None:
    """Put arithmetic in the place of the first result of a call, if somebody wants the others, too, which have all
    their digits."""
    results: Mapping[Any, fx.Node] = {user.args[1]: user for user in norm.users if is_getitem(user)}
    x: Any = norm.args[0]
    wide = wide_dtype(value_of(x).dtype)
    if not results.keys() >= {0, 1, 2} or value_of(results[1]).dtype != wide:
        return
    first = results[0]
    # a value that Python reads is computed first, and is there before the others
    for i in sorted(results, reverse=True):
        norm.append(results[i])
    last = results[max(results)]
    following = last.next
    with norm.graph.inserting_before(following):
        mean, scale, weight, bias = (
            _along(norm, n, wide) for n in (results[1], results[2], *norm.args[_WEIGHTS[norm.target]])
        )
        y = call(norm, aten.mul.Tensor, call(norm, aten.sub.Tensor, _in(norm, x, wide), mean), scale)
        y = y if weight is None else call(norm, aten.mul.Tensor, y, weight)
        y = y if bias is None else call(norm, aten.add.Tensor, y, bias)
        y = _in(norm, y, value_of(first).dtype)
    if value_of(y).stride() == value_of(first).stride():
        first.replace_all_uses_with(y)
        return
    while following.prev is not last:
        norm.graph.erase_node(following.prev)


def _in(norm: fx.Node, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    return node if value_of(node).dtype == dtype else call(norm, aten._to_copy.default, node, dtype=dtype)


def _along(norm: fx.Node, node: Any, dtype: torch.dtype) -> Any:
    """Statistics, or weights, as they are broadcast: where there is one for each channel, which is dimension 1,
    against the image."""
    if node is None:
        return None
    node = _in(norm, node, dtype)
    if norm.target is not aten.native_layer_norm.default:
        image: Any = norm.args[0]
        for dim in (0, *[-1] * (value_of(image).ndim - 2)):
            node = call(norm, aten.unsqueeze.default, node, dim)
    return node
