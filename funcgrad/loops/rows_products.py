"""Rows of the op table: products of matrices so small that calling the library costs more than multiplying.

A library call is some microseconds, and a wall between kernels; a product with few terms to each element is arithmetic like any other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ..sizes import is_few
from .index import Index
from .rows import TABLE, Rule, aten, fits, into, wide_dtype
from .values import Value, cast, look, own_index, reduce

_TERMS = 4
"""With so few terms to an element, a product of any size is bound by memory, and is best where its operands are made or read."""

_SMALL = 2048
"""Multiplications that take as long as a call."""


def is_small(shape: Sequence[int], terms: int) -> bool:
    """Whether a product of this shape, or several of the last two dimensions, with so many terms to an element is better not left to
    the library."""
    return is_few(terms, _TERMS) or is_few(math.prod(shape[-2:]) * terms, _SMALL)


def _contracted(a: Value, b: Value, shape: Sequence[int], kept: tuple[Sequence[int], Sequence[int]]) -> Any:
    """``Σ_k a[…, k] b[…, k]`` for each index of ``shape``, not yet rounded to half precision: ``kept`` are the dimensions of it that ``a``
    and ``b`` have, in their order, -1 for k."""
    terms = a.shape[kept[0].index(-1)]
    if not a.dtype.is_floating_point or not is_small(shape, terms):
        return NotImplemented
    wide = wide_dtype(a.dtype)
    full = (*shape, terms)
    own = own_index(full)

    def along(value: Value, dims: Sequence[int]) -> Value:
        where: list[Index] = [own[d] for d in dims]
        return look(cast(value, wide), full, where)

    return reduce("sum", along(a, kept[0]) * along(b, kept[1]), [-1])


def _product(kept: tuple[Sequence[int], Sequence[int]]) -> Rule:
    def rule(a: Value, b: Value, *, out: Any) -> Any:
        product = _contracted(a, b, out.shape, kept)
        return product if product is NotImplemented else cast(product, out.dtype)

    return rule


def _added_product(kept: tuple[Sequence[int], Sequence[int]]) -> Rule:
    def rule(x: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1, out: Any) -> Any:
        product = _contracted(a, b, out.shape, kept)
        if product is NotImplemented or not (fits(alpha, out.dtype) and fits(beta, out.dtype)):
            return NotImplemented
        wide = wide_dtype(out.dtype)
        product = product * into(alpha, wide)
        return cast(product if beta == 0 else cast(x, wide) * into(beta, wide) + product, out.dtype)

    return rule


_OPERANDS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "mm": ((0, -1), (-1, 1)),
    "bmm": ((0, 1, -1), (0, -1, 2)),
    "mv": ((0, -1), (-1,)),
    "dot": ((-1,), (-1,)),
}

for _name, _kept in _OPERANDS.items():
    TABLE[getattr(aten, _name).default] = _product(_kept)
for _name, _of in (("addmm", "mm"), ("baddbmm", "bmm"), ("addmv", "mv")):
    TABLE[getattr(aten, _name).default] = _added_product(_OPERANDS[_of])
