"""Polynomials with whole coefficients."""

from __future__ import annotations

import math
from collections.abc import Iterable

Terms = dict[tuple[str, ...], int]
"""Monomials, the names of their factors in order, with their coefficients."""


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
    """What symbols are, as Python, where polynomials have these values: those that are the only unknown of one of a single term."""
    pending = [({names: by for names, by in terms.items() if names}, terms.get((), 0), value) for terms, value in values]
    known: dict[str, str] = {}
    progress = True
    while progress:
        progress = False
        for rest, constant, value in pending:
            (names, by), *others = rest.items()
            unknown = [name for name in names if name not in known]
            if not others and len(unknown) == 1:
                by_these = [*(known[name] for name in names if name in known), *([str(by)] if by != 1 else [])]
                text = f"({value} - {constant})" if constant else value
                known[unknown[0]] = f"({text} // ({' * '.join(by_these)}))" if by_these else text
                progress = True
    return known


def greatest(factors: Iterable[float]) -> float:
    """A product of numbers that are not negative, of which some may be infinite."""
    found = list(factors)
    return math.prod(found) if all(found) else 0
