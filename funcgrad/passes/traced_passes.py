"""The backward pass of a joint graph in which Python hears of absent gradients: one graph of several passes (see
``Told``), of which a half is taken."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from attrs import evolve, frozen

from ..graphs import Graph, absent_in, ancestors, copy_nodes, has_effect, verify
from ..joint import Told
from ..slots import Final, Slot, Without, inner_path, inner_slot, outer_slot
from .symbolic_zeros import without


@frozen(eq=False)
class TracedPasses:
    """All that was traced of backward, as one graph."""

    graph: Graph
    told: Told

    @property
    def outs(self) -> list[Slot]:
        """What a pass may give."""
        slots = self.graph.signature.outs
        return [inner_slot(o.of, inner_path(s)) if isinstance(o := outer_slot(s), Without) else s for s in slots]

    def half(self, absent: Collection[Slot] = (), unasked: Collection[Slot] = ()) -> Graph:
        """The backward half where no gradient comes in for the ``absent`` outputs, nor is asked for of the
        ``unasked`` inputs (see ``symbolic_zeros.without``)."""
        own = self._pass(self.told.traced_for(absent))
        return without(own, absent, unasked) if absent or unasked else own

    def reads_without(self, absent: Collection[Slot]) -> frozenset[Slot] | None:
        """What passes from other outputs than the ``absent`` ones read of what was saved; None where that depends on
        which they come from."""
        if self.told or any(isinstance(slot, Final) for slot in self.outs) or any(map(has_effect, self.graph.fx.nodes)):
            return None
        return frozenset(outer_slot(slot) for slot, node in self.half(absent).given if node.users)

    def _pass(self, absent: frozenset[Slot]) -> Graph:
        """One of the passes that were traced."""
        graph = self.graph
        if not self.told:
            return graph
        outs = [(of_pass(slot, absent), r) for slot, r in graph.gives]
        own: list[tuple[Slot, Any]] = [(slot, r) for slot, r in outs if slot is not None]
        effects = [n for n in graph.fx.nodes if has_effect(n) and absent_in(n) == absent]
        needed = ancestors([*(r for _, r in own), *effects])
        made = copy_nodes(graph, [n for n in graph.fx.nodes if n in needed], graph.given, own, graph.name)
        return verify(evolve(made, is_boxed=graph.is_boxed, handed_over=graph.handed_over))


def of_pass(slot: Slot, absent: frozenset[Slot]) -> Slot | None:
    """What a result of the graph is in one of its passes; None for one of another pass."""
    outer = outer_slot(slot)
    if not isinstance(outer, Without):
        return None if absent else slot
    return inner_slot(outer.of, inner_path(slot)) if outer.absent == absent else None
