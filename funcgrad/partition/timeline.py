"""Memory over time: what is alive while forward runs and then backward, for any choice of what backward computes again.

The model of the search for a budget: calls in the order of the graph, each value freed after its last reader, what is
computed again computed when it is first needed. A value that fuses into all its readers takes no memory. What the
schedule of a backend really takes is simulated for the few choices that the search proposes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
from attrs import define, frozen
from torch import fx

from ..graphs import Graph, is_getitem, is_view, memory_of, storages, value_of
from ..tags import Tag, tags_of
from .roles import Roles, price_of_saving


@define(eq=False)
class Piece:
    """Memory of one value: from the moment its node makes it to the moment of its last reader. ``left`` and
    ``read``: the last moment of forward that needs it, and the first of backward."""

    node: int
    place: int
    is_again: bool
    start: int
    left: int
    read: int
    end: int
    nbytes: int
    in_memory: bool
    """What another kernel reads, or is saved or returned."""


@frozen(eq=False)
class Timeline:
    """One choice, run in the model. ``cost``: of all that is computed again; ``pieces``: what is in memory; ``alive``:
    bytes at each moment."""

    again: frozenset[int]
    saved: tuple[int, ...]
    cost: float
    pieces: Sequence[Piece]
    alive: np.ndarray
    order: tuple[int, ...]
    """The node of each moment."""

    @property
    def peak(self) -> int:
        return int(self.alive.max(initial=0))

    def excess(self, budget: float) -> float:
        """By how much the budget is exceeded, summed over the moments."""
        return float(np.maximum(self.alive - budget, 0).sum())


def _alive(pieces: Iterable[Piece], n_moments: int) -> np.ndarray:
    """Bytes at each moment."""
    change = [0] * (n_moments + 1)
    for piece in pieces:
        change[piece.start] += piece.nbytes
        change[piece.end + 1] -= piece.nbytes
    return np.cumsum(change, dtype=np.int64)[:-1]


class Model:
    """A joint graph by numbers: nodes are known by their position."""

    def __init__(
        self,
        graph: Graph,
        roles: Roles,
        costs: Mapping[fx.Node, float],
        fused: Collection[fx.Node],
        early: Collection[str] = (),
    ) -> None:
        """``costs``: what it takes to compute a node again, for those for which that is possible. ``fused``: the
        nodes that take memory only where another kernel reads them. ``early``: what forward computes and keeps
        though it was recorded in backward, since what it is made of may be another by then."""
        self.nodes: list[fx.Node] = [n for n in graph.fx.nodes if n.op != "output"]
        number = {n: i for i, n in enumerate(self.nodes)}
        outs = graph.gives
        self.parents = [tuple(number[p] for p in n.all_input_nodes) for n in self.nodes]
        self._late = [roles.is_late(n) and n.name not in early for n in self.nodes]
        self._given = [n.op in ("placeholder", "get_attr") for n in self.nodes]
        self._fused = [n in fused for n in self.nodes]
        self._views = [n.op == "call_function" and is_view(n) for n in self.nodes]
        self._costs = [costs.get(n, math.inf) for n in self.nodes]
        self.places = [tuple(storages(n)) for n in self.nodes]
        self.sizes: dict[int, int] = {}
        given = {place for places, g in zip(self.places, self._given, strict=True) if g for place in places}
        for n in self.nodes:
            self.sizes |= {place: 0 if place in given else size for place, size in memory_of(value_of(n)).items()}
        self._holds: list[tuple[tuple[int, int, int], ...]] = []
        for i in range(len(self.nodes)):
            self._holds.append(self._held_by(i))
        self._gradients = [number[v] for s, v in outs if s in roles.backward_outs and isinstance(v, fx.Node)]
        self._returned = [number[v] for s, v in outs if isinstance(v, fx.Node)]
        first = [number[v] for s, v in outs if s not in roles.backward_outs and isinstance(v, fx.Node)]
        pinned = [i for i, n in enumerate(self.nodes) if Tag.MUST_BE_IN_FORWARD in tags_of(n).flags]
        self._first = [i for i in (*first, *pinned) if not self._late[i]]
        self._savable = [
            price_of_saving(n, view) < math.inf and roles.is_safe(n)
            for n, view in zip(self.nodes, self._views, strict=True)
        ]
        self.repeatable = [  # what may be computed again instead of being saved
            n.op == "call_function"
            and not late
            and Tag.MUST_SAVE not in tags_of(n).flags
            and (view or cost < math.inf or not savable)
            for n, late, view, cost, savable in zip(
                self.nodes, self._late, self._views, self._costs, self._savable, strict=True
            )
        ]
        self.always = frozenset(
            i
            for i, n in enumerate(self.nodes)
            if not self._late[i] and (n.op == "get_attr" or (self.repeatable[i] and not self._savable[i]))
        )

    def unsaved(self, i: int, timeline: Timeline) -> frozenset[int]:
        """A saved node, and what it is computed from, back to what is saved or computed again anyway."""
        there = {*timeline.saved, *(timeline.again - self.always)} - {i}
        return frozenset(self._made_of([i], lambda j: j not in there and self.repeatable[j]) - self.always)

    def cost(self, i: int) -> float:
        """Of computing a node again; for one of several results, of the call that makes them."""
        own = self.parents[i][0] if is_getitem(self.nodes[i]) else i
        return self._costs[own] if self._costs[own] < math.inf else 0.0

    def sources(self, i: int, inside: Collection[int]) -> Iterator[int]:
        """What a node is computed from, outside of some nodes: views are seen through."""
        for p in self.parents[i]:
            if p in self.always and p not in inside:
                yield from self.sources(p, inside)
            elif p not in inside:
                yield p

    def start(self, kept: Collection[str]) -> frozenset[int]:
        """The choice that keeps the values of these names."""
        seen = self._made_of(self._gradients, lambda i: self._late[i] or self.nodes[i].name not in kept)
        return self.always | {i for i in seen if not self._late[i] and self.repeatable[i]}

    def run(self, again: frozenset[int]) -> Timeline | None:
        """``None`` where what is left to be saved cannot be."""
        backward, saved = set[int](), set[int]()
        pending = list(self._gradients)
        while pending:
            i = pending.pop()
            if self._late[i] or i in again:
                if i not in backward:
                    backward.add(i)
                    pending += self.parents[i]
            elif not self._savable[i]:
                return None
            else:
                saved.add(i)
        forward = self._made_of([*self._first, *saved], lambda i: True)
        order = [(i, False) for i in sorted(forward) if not self._given[i]]
        border = len(order)
        order += [(i, True) for i in self._in_time(backward, saved) if not self._given[i]]
        cost = sum(self._costs[i] for i in forward & backward if not self._views[i] and self._costs[i] < math.inf)
        pieces = self._lives(order, border, backward, saved)
        alive = _alive(pieces, len(order))
        return Timeline(again, tuple(sorted(saved)), cost, pieces, alive, tuple(i for i, _ in order))

    def _in_time(self, backward: set[int], saved: set[int]) -> Iterable[int]:
        """Backward in the order of the graph, but what forward has computed before only when it is first needed."""
        own = sorted(i for i in backward if self._late[i])
        done = saved.union(own)
        for late in own:
            before = [p for p in self.parents[late] if p not in done]
            for i in before:
                if i not in done:
                    done.add(i)
                    before += [p for p in self.parents[i] if p not in done]
            yield from sorted(set(before))
            yield late

    def _made_of(self, roots: Iterable[int], goes_on: Callable[[int], bool]) -> set[int]:
        """The roots, and what they are computed from, as far as ``goes_on``."""
        found, pending = set[int](), list(roots)
        while pending:
            i = pending.pop()
            if i not in found and goes_on(i):
                found.add(i)
                pending += self.parents[i]
        return found

    def _held_by(self, i: int) -> tuple[tuple[int, int, int], ...]:
        """The memory that a node's value lies in: each place, and where it comes from: which of its parents, and where
        it stands there; -1 if the node makes it. What is there before takes none."""
        held: list[tuple[int, int, int]] = []
        for place in (p for p in self.places[i] if self.sizes[p]):
            found = ((p, [own[0] for own in self._holds[p]]) for p in reversed(self.parents[i]))
            parent, at = next(((p, places.index(place)) for p, places in found if place in places), (-1, -1))
            held.append((place, parent, at))
        return tuple(held)

    def _lives(
        self, order: Sequence[tuple[int, bool]], border: int, second: Collection[int], saved: Collection[int]
    ) -> list[Piece]:
        """What is in memory, and when. ``second``: the nodes of which backward reads its own copy."""
        n, made = len(order), list[Piece]()
        first_of: list[tuple[Piece, ...]] = [()] * len(self.nodes)  # the pieces of each node, and of its second copy
        second_of = first_of.copy()
        for moment, (i, is_second) in enumerate(order):
            reads_memory = not self._fused[i] and not self._views[i]
            pieces = {p: second_of[p] if is_second and p in second else first_of[p] for p in self.parents[i]}
            for piece in itertools.chain.from_iterable(pieces.values()):
                piece.end = moment
                if moment < border:
                    piece.left = moment
                elif piece.read > moment:
                    piece.read = moment
                if reads_memory:
                    piece.in_memory = True
            own: tuple[Piece, ...] = ()
            for place, p, at in self._holds[i]:
                if p >= 0:
                    own += (pieces[p][at],)
                else:
                    size = self.sizes[place]
                    made.append(Piece(i, place, is_second, moment, moment, n, moment, size, not self._fused[i]))
                    own += (made[-1],)
            (second_of if is_second else first_of)[i] = own
            if not is_second and i in saved:
                for piece in own:
                    piece.in_memory = True
        for i in self._returned:
            for piece in first_of[i] or second_of[i]:
                piece.end, piece.in_memory = n - 1, True
        return [piece for piece in made if piece.in_memory]
