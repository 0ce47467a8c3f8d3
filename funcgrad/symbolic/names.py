"""What symbols are called, and what each is as Python."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .polynomials import unknowns
from .sizes import Size


def naming(sizes: Iterable[Any]) -> Callable[[str], str]:
    """What ``Sizes.named`` does for a text about some sizes."""
    symbolic = next((n for n in sizes if isinstance(n, Size)), None)
    return str if symbolic is None else symbolic._sizes.named


def solved(found: Iterable[tuple[int | Size, str]]) -> dict[str, str]:
    """What symbols are, as Python, by their names: ``found`` are sizes, and where each is. A symbol may be known as
    itself, or as a part of an expression, or by the number that is known to divide it and the quotient."""
    symbolic = [(size, place) for size, place in found if isinstance(size, Size)]
    if not symbolic:
        return {}
    sizes = symbolic[0][0]._sizes
    known = unknowns([(size._terms, place) for size, place in symbolic])
    for symbol, multiple in sizes._multiples.items():
        ((names, by),) = multiple.items()
        if symbol not in known and names[0] in known:
            known[symbol] = f"{by} * ({known[names[0]]})"
    return {atom.python: known[name] for name, atom in sizes._atoms.items() if atom.symbol and name in known}
