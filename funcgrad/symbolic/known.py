"""What is known of sizes in every call: to ask leaves no guard."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .polynomials import divided
from .sizes import terms_of


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are known to be equal in every call; leaves no guard."""
    difference = a - b
    return isinstance(difference, int) and difference == 0


def same_sizes(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether these are as many, each known to be equal to the other's in every call; leaves no guard."""
    return len(a) == len(b) and all(map(same, a, b))


def divides(by: Any, size: Any) -> bool:
    """Whether one size is known to divide another in every call; leaves no guard."""
    if isinstance(by, int) and isinstance(size, int):
        return size % by == 0
    rest = divided(terms_of(size), terms_of(by))[1]
    return not any(rest.values())


def is_few(size: Any, most: int) -> bool:
    """Whether a size is known, and no larger than this: so many of something may be written out."""
    return isinstance(size, int) and size <= most
