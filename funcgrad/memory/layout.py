"""Where, and in which shape, tensors are made that kernels write and the library reads.

What a matrix gets from every step of a sequence is one product of all rows (``library.py``): kernels write the rows of
each step into their part of one tensor. What the library looks at in one shape alone is made in that shape: another
tensor over the same memory takes as long to make as a small kernel runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import evolve
from torch import Tensor, fx

from ..graph_primitives import Opaque
from ..graphs import Graph, is_view, value_of
from ..symbolic.torch_sizes import shape_of, strides_of
from .steps import Allocate, Call, Extern, Launch

Part = tuple[fx.Node, int]
"""What a tensor is a part of, and how many elements from its start."""


def parts_of_stacks(graph: Graph, steps: Sequence[Extern | Launch]) -> Mapping[str, Part]:
    """The tensors that can be made where they are copied to, by name: kernels make them, all that are copied there,
    and nobody else wants them for good."""
    made = {b.name for step in steps if isinstance(step, Launch) for kernel in step.kernels for b in kernel.writes}
    returned = set(graph.results)
    found: dict[str, Part] = {}
    if any(isinstance(node.target, Opaque) for node in graph.fx.nodes):
        return found  # the caller's Python may keep what it is given
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


def as_read(graph: Graph, steps: Sequence[Call | Allocate | Launch]) -> Iterable[Call | Allocate | Launch]:
    """The steps, with tensors made as their only reader in the library looks at them (``Call.same``)."""
    readers: dict[str, list[fx.Node]] = {r.name: [r] for r in graph.results if isinstance(r, fx.Node)}
    for call in (s.node for s in steps if isinstance(s, Call)):
        for node in call.all_input_nodes:
            readers.setdefault(node.name, []).append(call)
    nodes = {n.name: n for n in graph.fx.nodes}
    views: set[fx.Node] = set()
    for step in steps:
        if isinstance(step, Allocate) and step.buffer.name in nodes:
            seen = _seen(nodes[step.buffer.name], readers)
            views.update(seen)
            look = value_of(seen[-1] if seen else nodes[step.buffer.name])
            yield evolve(step, buffer=evolve(step.buffer, shape=shape_of(look), strides=strides_of(look)))
        else:
            yield evolve(step, same=True) if isinstance(step, Call) and step.node in views else step


def _seen(node: fx.Node, readers: Mapping[str, Sequence[fx.Node]]) -> list[fx.Node]:
    """The views of all of a tensor, one of another, through which alone it is read."""
    found: list[fx.Node] = []
    while len(read := readers.get(node.name, ())) == 1 and _is_whole(node, read[0]):
        node = read[0]
        found.append(node)
    return found


def _is_whole(node: fx.Node, view: fx.Node) -> bool:
    """Whether a call looks at all elements of a tensor in the order in which they lie."""
    one, other = value_of(node), value_of(view)
    if (
        view is node
        or not is_view(view)
        or not isinstance(other, Tensor)
        or one.dtype != other.dtype
        or one.numel() != other.numel()
    ):
        return False
    return bool(one.is_contiguous() and other.is_contiguous() and one.is_neg() == other.is_neg())
