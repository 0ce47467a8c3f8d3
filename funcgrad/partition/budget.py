"""Rematerialisation within a budget in bytes: of all choices of what backward computes again, the cheapest whose peak
stays within it.

The search walks down from the choice that is fastest: for one level of memory after the other, it computes again (or
saves again) what lowers the excess over that level at the least cost, then saves again whatever the level has room for.
What it passes is the frontier of a graph, which no budget changes: so a larger budget never costs more. The peaks that
count are those of the backend's schedules, simulated for the choices of the frontier, from the fastest, until one keeps
the budget.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
from attrs import evolve, frozen
from torch import fx

from ..errors import PartitionError
from ..graphs import ancestors, is_view, nbytes, value_of
from ..joint import Joint
from ..loops.lower import Target
from ..show.units import in_bytes
from .cost import costs_again
from .partition import Limit, Partition, cut, split
from .roles import Roles
from .timeline import Model, Timeline

_LEVELS = 24
"""How many levels of memory the search stops at."""
_TRIED = 32
"""How many of the values that are computed again are tried for what a level has room for; all of them in small
graphs."""
_SMALL = 120
_FEW = 10
"""So many values that might be computed again are few enough to try every set of them."""
_ROOM = 1.5
"""By how much the model may overestimate a peak: choices beyond that are not simulated."""


def within(
    joint: Joint,
    budget: int | float,
    start: Partition,
    is_split: bool,
    target: Target,
    peak_of: Callable[[Partition], int],
    where: str | None,
) -> Partition:
    """The cheapest partition on the frontier that keeps the budget: bytes, or a fraction of the peak of a program that
    saves whatever autograd saves.

    ``start``: the fastest partition. ``peak_of``: the most bytes alive at a time, by the schedules of a partition.
    Raises ``PartitionError`` with the smallest peak on the frontier where none keeps the budget.
    """
    graph = joint.graph
    roles = Roles(graph, is_split)
    costs, fused = costs_again(graph, target)
    model = Model(graph, roles, costs, fused, start.kept)
    allowed = budget if isinstance(budget, int) else _as_autograd(joint, model, roles, peak_of) * budget
    total = max(sum(costs.values()), 1.0)

    def limited(chosen: Partition, peak: int, timeline: Timeline) -> Partition:
        bound = _least_cost(joint, is_split, costs, fused, allowed)
        return evolve(chosen, limit=Limit(int(allowed), peak, timeline.cost / total, bound / total))

    fastest = model.run(model.start(start.kept))
    assert fastest is not None, "what was chosen may be saved"
    smallest = peak_of(start)
    if smallest <= allowed:
        return limited(start, smallest, fastest)
    scale = smallest / max(fastest.peak, 1)
    points = frontier(model, fastest)
    for point in points:
        if point.peak * scale <= allowed * _ROOM or point is points[-1]:
            chosen = _partition(joint, model, roles, point)
            peak = peak_of(chosen)
            if peak <= allowed:
                return limited(chosen, peak, point)
            smallest = min(smallest, peak)
    least = f"{in_bytes(smallest)} ({smallest} bytes)"
    raise PartitionError(
        f"memory_budget: no choice of what is computed again keeps the peak within {in_bytes(allowed)}; the smallest "
        f"found is {least}",
        where=where,
        fix=f"allow at least {smallest} bytes, or make what is alive at once smaller: the batch, or the largest "
        "single step",
    )


def _partition(joint: Joint, model: Model, roles: Roles, timeline: Timeline) -> Partition:
    return split(joint.graph, roles, {model.nodes[i] for i in timeline.saved})


def _as_autograd(joint: Joint, model: Model, roles: Roles, peak_of: Callable[[Partition], int]) -> int:
    """The peak where what backward reads is saved, and nothing computed again but views."""
    everything = model.run(model.always)
    assert everything is not None, "what autograd saves may be saved"
    return peak_of(_partition(joint, model, roles, everything))


def _least_cost(
    joint: Joint, is_split: bool, costs: Mapping[fx.Node, float], fused: Collection[fx.Node], allowed: float
) -> float:
    """A cost that no choice within the budget goes below: what is saved for the first library call of backward and
    for all after it is alive by then, and must fit. (What kernels read before, they write over, or never have in
    memory.) The bound is the largest of its Lagrangian relaxations, each a minimum cut between bytes at one price
    and costs."""
    graph = joint.graph
    roles = Roles(graph, is_split)
    late = [n for n in graph.fx.nodes if roles.is_late(n)]
    roles.incoming.update(late)
    calls = [n for n in late if n in roles.backward and n.op == "call_function"]
    first = next((i for i, n in enumerate(calls) if n not in fused and not is_view(n)), len(calls))
    roles.backward -= set(calls[:first])
    # all that is known at this moment
    roles.forward |= ancestors(calls[first].all_input_nodes) if calls[first:] else set()
    roots = [r for s, r in graph.gives if s in roles.backward_outs]
    roots += [n for reader in calls[first:] for n in reader.all_input_nodes]
    best = 0.0
    for price in np.geomspace(1e-3, 10, 12):
        kept = cut(graph, roles, costs, float(price))
        again = (ancestors(roots, {*kept, *late}) - kept).intersection(roles.forward).difference(late)
        saved = sum(nbytes(value_of(n)) for n in kept if n.op == "call_function")
        best = max(best, sum(costs.get(n, 0.0) for n in again) + float(price) * (saved - allowed))
    return best


def frontier(model: Model, first: Timeline) -> Sequence[Timeline]:
    """Choices from the fastest to the one that takes least memory, each cheaper than all that take no more: in tiny
    graphs of all that there are, else of those that the search passes."""
    free = [i for i in range(len(model.nodes)) if model.repeatable[i] and i not in model.always]
    found = _all(model, free) if len(free) <= _FEW else _walk(model, first)
    cheapest: list[Timeline] = []
    for t in sorted(found, key=lambda t: (t.peak, t.cost)):
        if not cheapest or t.cost < cheapest[-1].cost:
            cheapest.append(t)
    return cheapest[::-1]


def _all(model: Model, free: Sequence[int]) -> Iterator[Timeline]:
    for k in range(len(free) + 1):
        for again in itertools.combinations(free, k):
            if (timeline := model.run(model.always | set(again))) is not None:
                yield timeline


def _walk(model: Model, first: Timeline) -> Iterator[Timeline]:
    yield first
    current, failed = first, set[frozenset[int]]()
    floor = max((p.nbytes for p in first.pieces), default=0)
    for k in range(1, _LEVELS + 1):
        level = first.peak - (first.peak - floor) * k / _LEVELS
        if current.peak <= level:
            continue
        lower = _descend(model, current, level, failed)
        if lower is None:
            break
        current = _trim(model, lower, level)
        yield current


# ── moves ────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Move:
    """Nodes that are computed again from now on, or no longer; and by how much that should lower the excess, for
    each unit of cost."""

    nodes: frozenset[int]
    promise: float

    def of(self, current: Timeline) -> frozenset[int]:
        return current.again ^ self.nodes


class _Estimate:
    """What moves should do to the excess over a level, without running them."""

    def __init__(self, model: Model, current: Timeline, level: float) -> None:
        self._model, self._current = model, current
        self._over = current.alive - level
        self._pieces = {(p.place, p.is_again): p for p in current.pieces}

    def moves(self) -> list[Move]:
        """What is saved may be computed again, alone or with all it is made of. Best first."""
        model, current = self._model, self._current
        moves: list[Move] = []
        for i in current.saved:
            pieces = [p for place in model.places[i] if (p := self._pieces.get((place, False)))]
            relief = sum(self._less(p.left + 1, p.read, p.nbytes) for p in pieces) if model.repeatable[i] else 0.0
            if relief > 0:
                moment = min(p.read for p in pieces)
                for nodes in {frozenset((i,)), model.unsaved(i, current)}:
                    gain = relief - self._price(nodes, moment)
                    if gain > 0:
                        moves.append(Move(nodes, gain / (1 + sum(map(model.cost, nodes)))))
        return sorted(moves, key=lambda m: (-m.promise, sorted(m.nodes)))

    def saves(self) -> list[Move]:
        """What is computed again where there is too much may be saved; the costliest first."""
        model, current = self._model, self._current
        nodes = [
            i for i in current.again - model.always if any(self._is_over((place, True)) for place in model.places[i])
        ]
        return [Move(frozenset((i,)), 0.0) for i in sorted(nodes, key=lambda i: (-model.cost(i), i))]

    def _is_over(self, key: tuple[int, bool]) -> bool:
        piece = self._pieces.get(key)
        return piece is not None and bool((self._over[piece.start : piece.end + 1] > 0).any())

    def _price(self, nodes: frozenset[int], moment: int) -> float:
        """What the nodes are computed from has to be there at this moment."""
        model, price = self._model, 0.0
        for place, is_again in {
            (q, p in self._current.again) for i in nodes for p in model.sources(i, nodes) for q in model.places[p]
        }:
            piece = self._pieces.get((place, is_again)) or self._pieces.get((place, False))
            if piece is None:
                price += 0.0 if not model.sizes[place] else self._more(moment, moment + 1, model.sizes[place])
            elif piece.end < moment:
                price += self._more(piece.end + 1, moment, piece.nbytes)
            elif piece.start > moment:
                price += self._more(moment, piece.start, piece.nbytes)
        return price

    def _less(self, start: int, stop: int, nbytes: int) -> float:
        return float(np.minimum(np.maximum(self._over[start:stop], 0), nbytes).sum())

    def _more(self, start: int, stop: int, nbytes: int) -> float:
        over = self._over[start:stop]
        return float((np.maximum(over + nbytes, 0) - np.maximum(over, 0)).sum())


def _descend(model: Model, current: Timeline, level: float, failed: set[frozenset[int]]) -> Timeline | None:
    """Make the best move until the level is kept; ``None`` where none helps. The best does more than the next one
    promises. What ``failed`` to help before is tried last."""
    careful = len(model.nodes) <= _SMALL
    while current.peak > level:
        estimate = _Estimate(model, current, level)
        best, score = None, 0.0
        moves = estimate.moves()
        for move, promise in zip(moves, (*(m.promise for m in moves[1:]), 0.0), strict=False):
            best, score = _better(model, current, level, move, best, score)
            if score >= promise and not careful:
                break
        if best is None or careful:
            for move in sorted(estimate.saves(), key=lambda move: move.nodes in failed):
                best, score = _better(model, current, level, move, best, score)
                if best is not None and not careful:
                    break
                if best is None:
                    failed.add(move.nodes)
        if best is None:
            return None
        current = best
    return current


def _better(
    model: Model, current: Timeline, level: float, move: Move, best: Timeline | None, score: float
) -> tuple[Timeline | None, float]:
    new = model.run(move.of(current))
    own = 0.0 if new is None else _score(current, new, level)
    return (new, own) if own > score else (best, score)


def _score(old: Timeline, new: Timeline, level: float) -> float:
    """By how much a move lowers the excess over the level, for each unit of cost; 0 where it does not."""
    return max(0.0, old.excess(level) - new.excess(level)) / max(new.cost - old.cost, 1e-9)


def _trim(model: Model, current: Timeline, level: float) -> Timeline:
    """Save again what the level has room for, the costliest first."""
    again = sorted(current.again - model.always, key=lambda i: (-model.cost(i), i))
    for i in again if len(model.nodes) <= _SMALL else again[:_TRIED]:
        new = model.run(current.again - {i})
        if new is not None and new.cost < current.cost and new.peak <= level:
            current = new
    return current
