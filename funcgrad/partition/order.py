"""List scheduling for a low peak of live memory: the order of calls in which less is alive at a time.

Autograd runs a backward pass in the reverse order of forward, whatever that holds on to. Finding the best order is
NP-hard (Sethi 1975, "Complete register allocation problems"); this tries list scheduling (of the calls that can run,
the one that frees most, and where none does, the one that takes least), and computing what backward needs as late as it
can be.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from torch import fx

from ..graphs import (
    Graph,
    Place,
    as_needed,
    has_effect,
    in_order,
    is_path_check,
    memory_of,
    nbytes,
    pass_of,
    storage_map,
    value_of,
)
from ..loops.costs import ROW
from ..torch_private.operators import is_pointwise

_WORTH = 0.9
"""Of the peak that another order has to go below."""

_LOW = 2**20
"""Bytes of a peak that is not worth the time of compiling."""


def in_less_memory(graphs: tuple[Graph, ...], peak_of: Callable[[tuple[Graph, ...]], int]) -> tuple[Graph, ...]:
    """Graphs that run one after the other, the last of them in the order in which less is alive at a time: by its
    values alone, then, as kernels do not keep all of them, by ``peak_of``. It stays as it is where that does not
    lower the peak by a tenth, or it is low."""
    *before, last = graphs
    memory = _Memory(last)
    peak = memory.peak(_calls(last))
    if peak < _LOW or memory.peak(order := _order(last, memory)) > _WORTH * peak:
        return graphs
    other = (*before, in_order(last, order))
    return other if peak_of(other) <= _WORTH * peak_of(graphs) else graphs


def ordered(graph: Graph) -> Graph:
    """The same calls in another order. Calls that have an effect (draws, checks, operators that are not torch's own)
    keep theirs."""
    return in_order(graph, _order(graph, _Memory(graph)))


def _order(graph: Graph, memory: _Memory) -> list[fx.Node]:
    before = _before(_calls(graph))
    return min((_by_growth(before, memory), _lately(before)), key=memory.peak)


def _by_growth(before: Mapping[fx.Node, set[fx.Node]], memory: _Memory) -> list[fx.Node]:
    """Of what can run, what frees most, or takes least; among equals, what the earliest call of backward needs, so
    that gradients are added up one after the other."""
    due = _due(before)
    later: dict[fx.Node, list[fx.Node]] = {n: [] for n in before}
    for node, others in before.items():
        for other in others:
            later[other].append(node)
    waits = {n: len(others) for n, others in before.items()}
    memory.begin()
    ready = [(memory.growth(n), due[n], n) for n in before if not waits[n]]
    heapq.heapify(ready)
    order: dict[fx.Node, None] = {}
    while ready:
        _, _, node = heapq.heappop(ready)
        if node in order:
            continue
        order[node] = None
        for other in later[node]:
            waits[other] -= 1
        for other in {*later[node], *memory.run(node)}:  # what can run now, and what frees more than it did before
            if not waits.get(other, True) and other not in order:
                heapq.heappush(ready, (memory.growth(other), due[other], other))
    return list(order)


def _lately(before: Mapping[fx.Node, set[fx.Node]]) -> list[fx.Node]:
    """Backward in its order, and each call of forward just before the first that needs it."""
    return list(as_needed((*(n for n in before if pass_of(n) == "backward"), *before), before))


def _calls(graph: Graph) -> list[fx.Node]:
    return [n for n in graph.fx.nodes if n.op not in ("placeholder", "output")]


def _before(calls: list[fx.Node]) -> dict[fx.Node, set[fx.Node]]:
    """For which calls each waits."""
    known, effects = set(calls), [n for n in calls if has_effect(n)]
    before = {n: {i for i in n.all_input_nodes if i in known} for n in calls}
    for first, second in itertools.pairwise(effects):
        before[second].add(first)
    check = None
    for node in calls:  # on another path a call may fail: it runs when it is known that the program is for this one
        if check is not None:
            before[node].add(check)
        check = node if is_path_check(node) else check
    return before


def _due(calls: Collection[fx.Node]) -> dict[fx.Node, tuple[int, int]]:
    """By the earliest call of backward that needs a call, and then in the order of the graph."""
    due: dict[fx.Node, tuple[int, int]] = {}
    for i, node in reversed([*enumerate(calls)]):
        first = min((due[user][0] for user in node.users if user in due), default=len(calls))
        due[node] = (i if pass_of(node) == "backward" else first, i)
    return due


class _Memory:
    """What is alive while calls run: memory is free after its last reader. What is given is there anyway, unless it
    is handed over."""

    def __init__(self, graph: Graph) -> None:
        size: dict[Place, int] = {}
        every: dict[Place, int] = {}
        self.made: dict[fx.Node, int] = {}
        self._reads: dict[fx.Node, list[Place]] = {}
        self._readers: dict[Place, list[fx.Node]] = {}
        lies = storage_map(graph)
        for node in graph.fx.nodes:
            read = {p for n in node.all_input_nodes for p in lies[n.name].values()}
            bytes_of = memory_of(value_of(node)) if node.op != "output" else {}
            made = {p: bytes_of[p[1]] for p in lies[node.name].values() if p[0] == node.name}
            every |= made
            is_free = (
                not graph.is_boxed if node.op == "placeholder" else _is_broadcast(node, sum(every[p] for p in read))
            )
            size |= {} if is_free else made
            self.made[node] = 0 if is_free else sum(made.values())
            self._reads[node] = [p for p in read if size.get(p)]
            for place in self._reads[node]:
                self._readers.setdefault(place, []).append(node)
        self._size = size
        read_by = self._readers
        self._unread = {
            n: sum(size.get(p, 0) for p in lies[n.name].values() if p[0] == n.name and p not in read_by)
            for n in self.made
        }

    def begin(self) -> None:
        """Nothing has run."""
        self._done: set[fx.Node] = set()
        self._left = {place: len(readers) for place, readers in self._readers.items()}

    def peak(self, calls: Sequence[fx.Node]) -> int:
        """The most bytes alive at a time while calls run in this order."""
        self.begin()
        now, peak = 0, 0
        for node in calls:
            now += (growth := self.growth(node))
            peak = max(peak, now, now - growth + self.made[node])
            self.run(node)
        return peak

    def growth(self, node: fx.Node) -> int:
        """By how many bytes more is alive after a call."""
        freed = sum(self._size[p] for p in self._reads[node] if self._left[p] == 1)
        return self.made[node] - self._unread[node] - freed

    def run(self, node: fx.Node) -> list[fx.Node]:
        """Run it; the calls that now free more than before."""
        self._done.add(node)
        lighter = []
        for place in self._reads[node]:
            self._left[place] -= 1
            if self._left[place] == 1:
                lighter += [n for n in self._readers[place] if n not in self._done]
        return lighter


def _is_broadcast(node: fx.Node, read: int) -> bool:
    """Whether a call makes much of next to nothing: kernels compute that where it is read."""
    return (
        node.op == "call_function"
        and (is_pointwise(node.target) or not node.all_input_nodes)
        and read * ROW <= nbytes(value_of(node))
    )
