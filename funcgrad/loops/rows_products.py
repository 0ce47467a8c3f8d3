"""Rows of the op table: products of matrices that are better not left to the library.

A library call is some microseconds, and a wall between kernels; a product with few terms to each element is arithmetic
like any other, and one with a vector reads each element of the matrix once: it is best where the matrix, or what comes
of it, is read anyway.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..symbolic.known import is_few
from .index import Index, innermost, row_major
from .rows import TABLE, aten, fits, into, wide_dtype
from .values import Memory, Value, View, axes_of, cast, look, own_index, reduce

_TERMS = 4
"""With so few terms to an element, a product of any size is bound by memory, and is best where its operands are made
or read."""

_SMALL = 2048
"""Multiplications that take as long as a call."""


_IN_LANES, _LANES, _ROWS, _ADDED = 32768, 8, 8, 256
"""On a CPU, multiplications that take as long as a call where rows lie side by side (``c_lanes.py``): of so many
columns or a multiple, of so many rows, with so few terms to an element that they may be added one after the other."""


def is_small(shape: Sequence[int], terms: int) -> bool:
    """Whether a product of this shape, or several of the last two dimensions, with so many terms to an element is
    better not left to the library."""
    return is_few(terms, _TERMS) or is_few(math.prod(shape[-2:]) * terms, _SMALL)


def _contracted(a: Value, b: Value, out: Any, kept: tuple[Sequence[int], Sequence[int]]) -> Any:
    """``Σ_k a[…, k] b[…, k]`` for each index of ``out``, not yet rounded to half precision: ``kept`` are the
    dimensions of it that ``a`` and ``b`` have, in their order, -1 for k."""
    shape = out.shape
    terms = a.shape[kept[0].index(-1)]
    k = _place_of_terms(a, b, shape, terms, kept, out.device.type == "cpu")
    if k is None or not a.dtype.is_floating_point:
        return NotImplemented
    wide = wide_dtype(a.dtype)
    full = (*shape[:k], terms, *shape[k:])
    own = own_index(full)
    rest = own[:k] + own[k + 1 :]

    def along(value: Value, dims: Sequence[int]) -> Value:
        where: list[Index] = [own[k] if d == -1 else rest[d] for d in dims]
        return look(cast(value, wide), full, where)

    return reduce("sum", along(a, kept[0]) * along(b, kept[1]), [k])


def _place_of_terms(
    a: Value, b: Value, shape: Sequence[int], terms: int, kept: tuple[Sequence[int], Sequence[int]], on_cpu: bool
) -> int | None:
    """Which of the loops goes over the terms: the last, or the first, where a row of the matrix, as it lies in
    memory, has a term of each element. None where the product is the library's."""
    if is_small(shape, terms) or (on_cpu and a.dtype.itemsize >= 4 and _goes_in_lanes(shape, terms)):
        return len(shape)
    by_a_vector = len(shape) < 2 or (len(shape) == 2 and 1 in shape)
    if not by_a_vector:
        return None
    matrix, dims = max((a, kept[0]), (b, kept[1]), key=lambda operand: operand[0].about)
    return len(shape) if _innermost(matrix) == dims.index(-1) else 0


def _goes_in_lanes(shape: Sequence[int], terms: int) -> bool:
    """Whether a kernel has such a product of two matrices as soon as a call."""
    if len(shape) != 2 or not all(isinstance(n, int) for n in (*shape, terms)):
        return False
    return math.prod(shape) * terms <= _IN_LANES and terms <= _ADDED and shape[0] >= _ROWS and shape[1] % _LANES == 0


def _innermost(value: Value) -> int | None:
    """The dimension along which neighbours lie side by side in memory; what is computed has the order of its
    dimensions."""
    if isinstance(value, View):
        inner = _innermost(value.arg)
        own = axes_of(value.shape)
        return None if inner is None else innermost(value.shape, [value.where[inner].coefficient(axis) for axis in own])
    return innermost(value.shape, value.strides if isinstance(value, Memory) else row_major(value.shape))


def _product(kept: tuple[Sequence[int], Sequence[int]], a: Value, b: Value, *, out: Any) -> Any:
    product = _contracted(a, b, out, kept)
    return product if product is NotImplemented else cast(product, out.dtype)


def _added_product(
    kept: tuple[Sequence[int], Sequence[int]], x: Value, a: Value, b: Value, *, beta: Any = 1, alpha: Any = 1, out: Any
) -> Any:
    product = _contracted(a, b, out, kept)
    if product is NotImplemented or not (fits(alpha, out.dtype) and fits(beta, out.dtype)):
        return NotImplemented
    wide = wide_dtype(out.dtype)
    product = product * into(alpha, wide)
    return cast(product if beta == 0 else cast(x, wide) * into(beta, wide) + product, out.dtype)


_OPERANDS: dict[str, tuple[Sequence[int], Sequence[int]]] = {
    "mm": ((0, -1), (-1, 1)),
    "bmm": ((0, 1, -1), (0, -1, 2)),
    "mv": ((0, -1), (-1,)),
    "dot": ((-1,), (-1,)),
}

_RULES = {_name: partial(_product, _kept) for _name, _kept in _OPERANDS.items()} | {
    _name: partial(_added_product, _OPERANDS[_of])
    for _name, _of in (("addmm", "mm"), ("baddbmm", "bmm"), ("addmv", "mv"))
}
PRODUCTS = {getattr(aten, _name).default: _rule for _name, _rule in _RULES.items()}
TABLE.update(PRODUCTS)
