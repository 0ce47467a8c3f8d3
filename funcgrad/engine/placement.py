"""Where each statement stands: in eager PyTorch's own order.

The engine tells of nodes in the order of a stack. Where it runs them, it takes the node that was made last of those
that are ready, and one that collects a gradient before all others. So nodes are put into that order, and what belongs
to a node stays together in it: hooks before it on one gradient, then on all, the node, hooks after it, the sum in
``.grad``, hooks after that, in the order they were registered. A gradient with several addends is added up as they
arrive.

The engine's key does not tell apart graphs of one shape whose nodes were made in another order: ``Walk`` asks for it in
each run.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from ..autograd_state import next_nodes
from ..errors import GraphError
from ..torch_private.engine import sequence_number
from ..walks import after
from .statements import Kind, Statement, short_name
from .tokens import Ref, refs_in

Order = tuple[int, ...]
"""The engine's numbers of nodes, as they run."""


@frozen(eq=False)
class Reached:
    """The graph of a backward pass: nodes by the engine's numbers, and what leads where."""

    numbers: Mapping[Any, int]
    order: Order
    root: int


def reached(roots: Sequence[Any], targets: Sequence[Any], names: Mapping[int, str]) -> Reached | None:
    """The nodes that a backward pass from ``roots`` runs, numbered as the engine numbers them, in the order in which
    eager PyTorch runs them. ``targets``: nodes whose gradients alone are asked for, where there are any. None if the
    numbers are not those of ``names``."""
    following, waits = _edges(roots)
    needed = _needed(roots, targets, following)
    numbers: dict[Any, int] = {}
    adds_up = short_name(names.get(0, "")) == "GraphRoot"  # backward(inputs=…): nothing is returned
    for target in () if adds_up else targets:
        numbers.setdefault(target, len(numbers))
    root = len(numbers)
    n = root + 1
    for node in _stack(roots, following, waits, needed):
        if node not in numbers:
            numbers[node] = n
            n += 1
    if any(
        number in names and short_name(node.name()) != short_name(names[number]) for node, number in numbers.items()
    ):
        return None
    return Reached(numbers, (root, *(numbers[node] for node in _as_eager(roots, following, waits, needed))), root)


def _edges(roots: Sequence[Any]) -> tuple[dict[Any, list[Any]], Counter[Any]]:
    """What follows each node, and for how many each waits."""
    following: dict[Any, list[Any]] = {}
    waits: Counter[Any] = Counter(roots)
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in following:
            following[node] = next_nodes(node)
            waits.update(following[node])
            pending += following[node]
    return following, waits


def _needed(roots: Sequence[Any], targets: Sequence[Any], following: Mapping[Any, Sequence[Any]]) -> dict[Any, bool]:
    """Which nodes run: all, or those that lead to a target."""
    if not targets:
        return dict.fromkeys(following, True)
    wanted = set(targets)
    needed: dict[Any, bool] = {}
    for node in after(roots, following.__getitem__):
        needed[node] = node in wanted or any(needed[n] for n in following[node])
    return needed


def _ready(done: Sequence[Any], left: Counter[Any], needed: Mapping[Any, bool]) -> Iterator[Any]:
    """Of what follows a node that has run, what waits for no other."""
    for node in done:
        left[node] -= 1
        if not left[node] and needed[node]:
            yield node


def _stack(roots: Sequence[Any], following: Any, waits: Counter[Any], needed: Any) -> Iterator[Any]:
    """Nodes in the order in which the engine tells of them. What does not run keeps nobody waiting."""
    left = Counter(waits)
    stack = list(_ready(roots, left, needed))
    while stack:
        node = stack.pop()
        yield node
        stack += _ready([n for n in following[node] if needed[n]], left, needed)


class _Node:
    __slots__ = ("made", "node")

    def __init__(self, node: Any) -> None:
        self.node, self.made = node, sequence_number(node)

    def __lt__(self, other: _Node) -> bool:
        return self.made > other.made


def _as_eager(roots: Sequence[Any], following: Any, waits: Counter[Any], needed: Any) -> Iterator[Any]:
    """Nodes in the order in which the engine runs them. Among equals a heap decides: Python's moves elements as that
    of C++ does."""
    left, heap = Counter(waits), list[_Node]()
    for node in _ready(roots, left, needed):
        heapq.heappush(heap, _Node(node))
    while heap:
        node = heapq.heappop(heap).node
        yield node
        for n in _ready([n for n in following[node] if needed[n]], left, needed):
            heapq.heappush(heap, _Node(n))


class Walk:
    """A quick check that the nodes of a graph of known shape were made in a known order.

    What a node leads to was made before it, but for what collects gradients, which comes when it can: so eager PyTorch
    runs all others in the order of their numbers, and a graph in which these fall along ``order`` runs in that order.
    """

    def __init__(self, found: Reached, roots: Sequence[Any]) -> None:
        node_of = {number: node for node, number in found.numbers.items()}
        nodes = [node_of[n] for n in found.order if n != found.root]
        leaf = (1 << 64) - 1
        self._steps: list[tuple[int, int]] = []
        place: dict[Any, int] = {}
        ways: dict[Any, tuple[int, int]] = {}
        for i, root in enumerate(roots):
            ways.setdefault(root, (-1, i))
        for node in nodes:
            if sequence_number(node) == leaf:
                continue
            place[node] = len(place)
            self._steps.append(ways[node])
            for i, (n, _) in enumerate(node.next_functions):
                if n is not None:
                    ways.setdefault(n, (place[node], i))
        made = [sequence_number(node) for node in place]
        self.is_plain = all(a > b for a, b in itertools.pairwise(made))

    def __call__(self, roots: Sequence[Any]) -> bool:
        """Whether a graph of this shape runs in this order."""
        if not self.is_plain:
            return False
        followers: list[Any] = []
        last = 1 << 64
        for parent, edge in self._steps:
            node = roots[edge] if parent < 0 else followers[parent][edge][0]
            made = node._sequence_nr()
            if made >= last:
                return False
            last = made
            followers.append(node.next_functions)
        return True


# ── statements ───────────────────────────────────────────────────────────────────────────────────────────────────


def placed(statements: Sequence[Statement], order: Order) -> list[Statement]:
    """Statements node by node. Sums are taken apart, and put together where the later addend of each is made."""
    at = {node: i for i, node in enumerate(order)}
    sums = {s.number: s for s in statements if s.kind is Kind.SUM}
    inner = {r.of for s in sums.values() for r in refs_in(s.args) if r.of in sums}
    key: dict[int, tuple[int, int, int]] = {s.number: (at.get(s.node, len(at)), 0, s.number) for s in statements}

    def addends(value: Any) -> list[Any]:
        if isinstance(value, Ref) and value.of in sums:
            return [a for v in sums[value.of].args for a in addends(v)]
        return [value]

    def made(value: Any) -> tuple[int, int, int]:
        return key[value.of] if isinstance(value, Ref) and isinstance(value.of, int) else (-1, 0, 0)

    found = [s for s in statements if s.number not in sums]
    fresh = len(statements)
    for number, s in sums.items():
        if number in inner:
            continue
        first, *others = sorted((a for v in s.args for a in addends(v)), key=made)
        for i, other in enumerate(others):
            own = number if i == len(others) - 1 else fresh
            fresh += own == fresh
            found.append(evolve(s, number=own, args=(first, other)))
            key[own] = (made(other)[0], 1, made(other)[2])
            first = Ref(own, 0)
    return verified(sorted(found, key=lambda s: key[s.number]))


def verified(statements: Sequence[Statement]) -> list[Statement]:
    """The statements, if each comes after those whose results it takes."""
    there: set[int] = set()
    for s in statements:
        for ref in refs_in(s.args):
            if isinstance(ref.of, int) and ref.of not in there:
                raise GraphError(f"a backward pass was put into an order in which `{s}` stands before {ref} is made")
        there.add(s.number)
    return list(statements)


def is_seen(statements: Sequence[Statement]) -> bool:
    """Whether somebody can tell in which order nodes run: there is a call of the caller's Python, and another one to
    compare it with."""
    seen = {s.node for s in statements if s.kind in (Kind.CALL, Kind.STORE)}
    return len(seen) > 1 and any(s.kind is Kind.CALL for s in statements)
