"""Tensors that a library call would copy one below the other, made where it would copy them to.

What a matrix gets from every step of a sequence is one product of all rows (``library.py``): kernels write the rows of each step into
their part of one tensor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, fx

from ..graphs import Graph, value_of
from .backend import Extern, Launch

Part = tuple[fx.Node, int]
"""What a tensor is a part of, and how many elements from its start."""


def parts_of_stacks(graph: Graph, steps: Sequence[Extern | Launch]) -> Mapping[str, Part]:
    """The tensors that can be made where they are copied to, by name: kernels make them, all that are copied there, and nobody else wants
    them for good."""
    made = {b.name for step in steps if isinstance(step, Launch) for kernel in step.kernels for b in kernel.writes}
    returned = set(graph.results)
    found: dict[str, Part] = {}
    for step in steps:
        if isinstance(step, Extern) and step.node.target is torch.ops.aten.concat.default and len(step.node.args) == 1:
            whole = step.node
            matrices: list[fx.Node] = [*whole.all_input_nodes]
            names = {m.name for m in matrices}
            once = matrices == list(whole.args[0])  # type: ignore[arg-type]
            fresh = once and made >= names and found.keys().isdisjoint(names)
            if fresh and returned.isdisjoint((whole, *matrices)) and all(_fits(m, whole) for m in matrices):
                begin = 0
                for m in matrices:
                    found[m.name] = whole, begin
                    begin += value_of(m).numel()
    return found


def _fits(part: fx.Node, whole: fx.Node) -> bool:
    """Whether a tensor of some rows lies as they do in the one that has all."""
    one, all_ = value_of(part), value_of(whole)
    if not isinstance(one, Tensor) or one.dtype != all_.dtype or one.ndim != all_.ndim or math.prod(one.shape) == 0:
        return False
    return bool(one.is_contiguous() and all_.is_contiguous())
