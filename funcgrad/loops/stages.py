"""The work of a kernel on a row as walks over it: what each computes, keeps for a later one, and writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from ..machine import CPU
from .costs import FUNCTIONS, TURNS, cost_of
from .ir import Effect, Expr, Load, Op, Reduced, Scanned, Stage, Store, Total, walk

_STREAMS = 12
"""Arrays that one loop reads and writes, if what else it does has nothing to do with the first ones."""

_AT_ONCE = 2
"""Expensive operations in one stage: more make one long chain of dependent instructions, which no processor fills."""

_KEPT_FROM = 4.0
"""What it must cost to compute an element again for it to be kept for the next stage."""


def stages_of(effects: Sequence[Effect]) -> tuple[Stage, ...]:
    """Cut the work on a row into walks over it, and choose what is kept from one to a later one."""
    reductions = [e for e in walk([e.value for e in effects]) if isinstance(e, Reduced)]
    numbers = _numbered([r.body for r in reductions] + [e.value for e in effects])
    parts = _Parts([e.value for e in effects])
    plain, kept = _cut(effects, reductions, numbers, {}, parts)
    instead = _shared_origins(kept)
    return _cut(effects, reductions, numbers, instead, parts)[0] if instead else plain


def _cut(
    effects: Sequence[Effect],
    reductions: Sequence[Reduced],
    numbers: Mapping[Expr, int],
    instead: Mapping[Expr, Expr],
    parts: _Parts,
) -> tuple[tuple[Stage, ...], list[Expr]]:
    """The stages, and what they keep; ``instead``: what is kept in the place of something that is soon made of it."""
    kept: dict[Expr, int] = {}
    stages: list[Stage] = []
    for n in range(max(numbers.values(), default=0), -1, -1):
        here = tuple(r for r in reductions if numbers[r.body] == n)
        after = tuple(e for e in effects if numbers[e.value] == n)
        keeps = tuple(k for k, at in kept.items() if at == n)
        for expr in _from_before([r.body for r in here] + [e.value for e in after] + list(keeps), n, numbers, instead):
            kept[expr] = numbers[expr]
        stages += _apart(here, keeps, after, parts)
    return tuple(reversed(stages)), list(kept)


def _apart(
    reductions: Sequence[Reduced], keeps: Sequence[Expr], effects: Sequence[Effect], parts: _Parts
) -> list[Stage]:
    """A walk for each part of the work that has elements in common, the small ones together: a loop over few arrays
    is the fast one."""
    found: dict[Expr | None, list[Reduced | Expr | Effect]] = {}
    for item, root in [*((r, r.body) for r in reductions), *((k, k) for k in keeps), *((e, e.value) for e in effects)]:
        found.setdefault(parts.of(root), []).append(item)
    walks: list[list[Reduced | Expr | Effect]] = []
    arrays = _STREAMS
    for part, items in found.items():
        size = parts.size(part) + len(items)
        if arrays + size > _STREAMS:
            walks.append([])
            arrays = 0
        walks[-1] += items
        arrays += size
    return [
        Stage(
            tuple(i for i in items if isinstance(i, Reduced)),
            tuple(i for i in items if isinstance(i, Expr) and not isinstance(i, Reduced)),
            tuple(i for i in items if isinstance(i, (Store, Total))),
        )
        for items in reversed(walks)
    ]


class _Parts:
    """Which expressions of a kernel read an array in common, directly or through others: each part is known by one
    of its reads. The counters of a row, and scans of what is the same in all of it, are arrays, too."""

    def __init__(self, roots: Sequence[Expr]) -> None:
        self._above: dict[Expr, Expr] = {}
        self._sizes: dict[Expr, int] = {}
        self._read: dict[Expr, Expr] = {}
        for expr in walk(roots):
            if expr.full and not any(a.full for a in expr.args):
                self._read[expr], self._sizes[expr] = expr, 1
                continue
            reads = [self._read[a] for a in expr.args if a in self._read]
            for read in reads:
                self._join(self._top(reads[0]), self._top(read))
            if reads:
                self._read[expr] = reads[0]

    def of(self, expr: Expr) -> Expr | None:
        return self._top(self._read[expr]) if expr in self._read else None

    def size(self, part: Expr | None) -> int:
        """How many arrays it reads."""
        return self._sizes[part] if part is not None else 0

    def _top(self, read: Expr) -> Expr:
        while read in self._above:
            read = self._above[read]
        return read

    def _join(self, one: Expr, other: Expr) -> None:
        if one is not other:
            small, large = sorted((one, other), key=lambda top: self._sizes[top])
            self._above[small] = large
            self._sizes[large] += self._sizes[small]


def _shared_origins(kept: Sequence[Expr]) -> dict[Expr, Expr]:
    """Which of several kept elements are soon computed from the same one: it alone is kept."""
    origins = {expr: origin for expr in kept if (origin := _origin(expr)) is not None}
    served = Counter([*origins.values(), *kept])
    return {expr: origin for expr, origin in origins.items() if served[origin] > 1}


def _origin(expr: Expr) -> Expr | None:
    """The one dear element that ``expr`` is computed from in a few cheap operations."""
    dear: set[Expr] = set()
    cost, pending = 0.0, [expr]
    while pending:
        current = pending.pop()
        if not current.full or current in dear:
            continue
        if isinstance(current, Op) and current.name in FUNCTIONS and current is not expr:
            dear.add(current)
            continue
        cost += _cost(current)
        if cost >= _KEPT_FROM:
            return None
        pending += current.args
    return dear.pop() if len(dear) == 1 else None


def _numbered(roots: Sequence[Expr]) -> dict[Expr, int]:
    """The walk in which each expression is computed first: after the reductions it needs, and not too many at once;
    nor with a scan, whose walk is not vectorised."""
    numbers: dict[Expr, int] = {}
    spent: dict[int, int] = {}
    in_order: set[int] = set()
    turned: dict[Expr, int] = {}
    for expr in walk(roots):
        if isinstance(expr, Reduced):
            numbers[expr] = numbers[expr.body] + 1
            continue
        number = max((numbers[a] for a in expr.args), default=0)
        if isinstance(expr, Op) and expr.name in TURNS and turned.get(expr.operands[0], -1) >= number:
            number = turned[expr.operands[0]]
        elif expr.full and isinstance(expr, Op) and expr.name in FUNCTIONS:
            while spent.get(number, 0) >= _AT_ONCE or number in in_order:
                number += 1
            spent[number] = spent.get(number, 0) + 1
            if expr.name in TURNS:
                turned[expr.operands[0]] = number
        if isinstance(expr, Scanned):
            while number in spent:
                number += 1
            in_order.add(number)
        numbers[expr] = number
    return numbers


def _from_before(
    roots: Sequence[Expr], n: int, numbers: Mapping[Expr, int], instead: Mapping[Expr, Expr]
) -> list[Expr]:
    """What walk ``n`` takes from an earlier one, because it would be dear to compute it again."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    pending = list(roots)
    while pending:
        expr = pending.pop()
        if expr in seen or not expr.full:
            continue
        seen.add(expr)
        if isinstance(expr, (Op, Scanned)) and numbers[expr] < n and _again(expr) >= _KEPT_FROM:
            found[instead.get(expr, expr)] = None
        else:
            pending += expr.args
    return list(found)


def _again(expr: Expr) -> float:
    """What it costs to compute an element again, counted up to what is worth knowing."""
    cost, pending = 0.0, [expr]
    while pending and cost < _KEPT_FROM:
        current = pending.pop()
        if current.full:
            cost += _cost(current)
            pending += current.args
    return cost


def _cost(expr: Expr) -> float:
    """What an element costs, given those it is made of."""
    if isinstance(expr, Op):  # walks are loops over memory; Triton holds in registers what they keep
        return cost_of(expr.name, CPU).alone
    return _KEPT_FROM if isinstance(expr, Scanned) else 0.5 if isinstance(expr, Load) else 0.0
