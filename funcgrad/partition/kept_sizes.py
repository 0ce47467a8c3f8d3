"""Sizes that backward knows from incoming gradients alone, as values that forward saves: a gradient may not come in,
and zeros in its place have its sizes."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from torch import Tensor, fx

from ..graphs import Graph, value_of, verify
from ..passes.symbolic_zeros import size_along, sized_by
from ..slots import Cotangent, Saved, Signature, Slot, outer_slot
from ..torch_private.symbols import expression, is_size


def with_sizes(forward: Graph, backward: Graph) -> tuple[Graph, Graph]:
    """The two halves, where forward saves these too."""
    given = backward.given
    incoming = [node for slot, node in given if isinstance(slot, Cotangent)]
    if len({outer_slot(slot.of) for slot, _ in given if isinstance(slot, Cotangent)}) < 2:
        return forward, backward  # the one there is comes in, or backward does not run
    needed = {str(symbol): None for node in incoming for n in _sizes(node) for symbol in expression(n).free_symbols}
    known = {str(n) for node in backward.placeholders if node not in incoming for n in _sizes(node)}
    for symbol in needed:
        if symbol not in known and (found := sized_by(forward.fx, symbol)) is not None:
            forward, backward = _kept(forward, backward, symbol, *found)
    return forward, backward


def _sizes(node: fx.Node) -> list[Any]:
    """The symbolic sizes of a tensor, or a size itself."""
    value = value_of(node)
    return [n for n in (value.shape if isinstance(value, Tensor) else (value,)) if is_size(n)]


def _kept(forward: Graph, backward: Graph, symbol: str, node: fx.Node, dim: int | None) -> tuple[Graph, Graph]:
    ins = backward.signature.ins
    own = dict(zip(forward.placeholders, forward.signature.ins, strict=True)).get(node) if dim is None else None
    if own is None:
        output = forward.fx.output_node()
        with forward.fx.inserting_before(output):
            node = size_along(node, dim, f"size_{symbol}", "forward")
        output.args = ((*forward.results, node),)
        outs: tuple[Slot, ...] = (*forward.signature.outs, Saved(node.name))
        forward = verify(evolve(forward, signature=Signature(forward.signature.ins, outs)))
    # among what is kept, inputs come first
    later: Any = Cotangent if own is None else (Cotangent, Saved)
    place = next(i for i, slot in enumerate(ins) if isinstance(slot, later))
    with backward.fx.inserting_before(backward.placeholders[place]):
        made = backward.fx.placeholder(node.name)
    made.meta = {"val": value_of(node), "pass": "backward", "where": None}
    slots = (*ins[:place], Saved(node.name) if own is None else own, *ins[place:])
    return forward, verify(evolve(backward, signature=Signature(slots, backward.signature.outs)))
