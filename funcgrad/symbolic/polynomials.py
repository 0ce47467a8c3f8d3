"""Polynomials with whole coefficients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

from attrs import define

Terms = dict[tuple[str, ...], int]
"""Monomials, the names of their factors in order, with their coefficients."""

LEAST = 2
"""A size of 0 or 1 is no symbol: it means another program, in which it is broadcast, or there is nothing to compute."""


@define
class Atom:
    """A symbol, or a quotient or remainder that is no polynomial: its hint, its range, and how Python and C write
    it."""

    hint: int
    low: int
    high: float
    python: str
    symbol: bool

    @property
    def condition(self) -> str:
        """Its range as Python."""
        if self.low == self.high:
            return f"{self.python} == {self.low}"
        return f"{self.low} <= {self.python}" + (f" <= {self.high}" if self.high < math.inf else "")


def added(a: Terms, b: Terms) -> Terms:
    """``a + b``."""
    return {names: a.get(names, 0) + b.get(names, 0) for names in (*a, *(n for n in b if n not in a))}


def multiplied(a: Terms, b: Terms) -> Terms:
    """``a * b``."""
    found: Terms = {}
    for one, by in a.items():
        for other, times in b.items():
            names = tuple(sorted(one + other))
            found[names] = found.get(names, 0) + by * times
    return found


def divided(of: Terms, by: Terms) -> tuple[Terms, Terms]:
    """``(a, b)`` with ``of == a * by + b``."""
    if len(by) > 1:
        ratio = next(iter(of.values())) // next(iter(by.values()))
        return ({(): ratio}, {}) if of == {names: n * ratio for names, n in by.items()} else ({}, of)
    ((factors, times),) = by.items()
    whole: Terms = {}
    rest: Terms = {}
    for names, n in of.items():
        left = list(names)
        for factor in factors:
            if factor in left:
                left.remove(factor)
        if len(left) + len(factors) == len(names) and n % times == 0:
            whole[tuple(left)] = n // times
        else:
            rest[names] = n
    return whole, rest


def unknowns(values: Iterable[tuple[Terms, str]]) -> dict[str, str]:
    """What symbols are, as Python, where polynomials have these values: each that is the only unknown of one, in a
    single term of it."""
    pending = [
        ({names: by for names, by in terms.items() if names}, terms.get((), 0), value) for terms, value in values
    ]
    known: dict[str, str] = {}
    progress = True
    while progress:
        progress = False
        for rest, constant, value in pending:
            (names, by), *others = sorted(rest.items(), key=lambda term: known.keys() >= set(term[0]))
            unknown = [name for name in names if name not in known]
            if len(unknown) == 1 and all(known.keys() >= set(own) for own, _ in others):
                less = [*([str(constant)] if constant else []), *(_product(own, n, known) for own, n in others)]
                text = f"({' - '.join([value, *less])})" if less else value
                by_these = _product([name for name in names if name in known], by, known)
                known[unknown[0]] = f"({text} // ({by_these}))" if by_these else text
                progress = True
    return known


def _product(names: Iterable[str], by: int, known: Mapping[str, str]) -> str:
    """A product of symbols that are known and of a number, as Python; nothing where that is one of none."""
    return " * ".join([*(known[name] for name in names), *([str(by)] if by != 1 else [])])


def greatest(factors: Iterable[float]) -> float:
    """A product of numbers that are not negative, of which some may be infinite."""
    found = list(factors)
    return math.prod(found) if all(found) else 0


def bounds(terms: Terms, range_of: Callable[[str], tuple[int, float]]) -> tuple[float, float]:
    """The least and the greatest value, as far as the ranges of the symbols tell."""
    low = high = 0.0
    above: Terms = {}  # the polynomial in how far each symbol is above its least value
    for names, by in terms.items():
        lows, highs = zip(*map(range_of, names), strict=True) if names else ((), ())
        least, most = by * math.prod(lows), by * greatest(highs)
        low, high = low + min(least, most), high + max(least, most)
        for chosen in range(1 << len(names)):
            rest = tuple(n for i, n in enumerate(names) if chosen >> i & 1)
            factor = by * math.prod(n for i, n in enumerate(lows) if not chosen >> i & 1)
            above[rest] = above.get(rest, 0) + factor
    start = above.pop((), 0)
    if all(by >= 0 for by in above.values()):
        low = max(low, start)
    if all(by <= 0 for by in above.values()):
        high = min(high, start)
    return low, high


def written(terms: Terms, name: Callable[[str], str]) -> str:
    """A polynomial as code of Python or C."""
    found: list[str] = []
    for names, by in sorted(terms.items(), reverse=True):
        found.append(" * ".join([*map(name, names), *([str(by)] if by != 1 or not names else [])]))
    is_factor = len(terms) == 1 and all(len(names) == 1 and by == 1 for names, by in terms.items())
    return found[0] if is_factor else f"({' + '.join(found)})"
