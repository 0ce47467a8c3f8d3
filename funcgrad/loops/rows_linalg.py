"""Rows of the op table: factorisations and solutions of small systems, written out element by element.

The library is called for one matrix in microseconds, and goes over many one by one; here a batch is an array for each
element of the matrix, and the elimination is arithmetic on them like any other. Pivoting is that of LAPACK: the first
of the largest.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch

from ..symbolic.known import is_few
from .gather import Checked
from .index import Index
from .rows import TABLE, TAKES_GIVEN, aten, row
from .values import Value, compare, concatenate, look, number, own_index, permute, pointwise, reshape, where

_LARGEST = 4
"""Rows of a matrix that is written out."""

Matrix = list[list[Value]]
"""Its elements, each for the whole batch."""


def _is_small(a: Value) -> bool:
    return a.dtype in (torch.float32, torch.float64) and is_few(a.shape[-1], _LARGEST) and a.shape[-1] == a.shape[-2]


def _elements(a: Value) -> Matrix:
    return [[_element(a, i, j) for j in range(a.shape[-1])] for i in range(a.shape[-2])]


def _element(a: Value, *at: int) -> Value:
    batch = a.shape[: len(a.shape) - len(at)]
    return look(a, batch, [*own_index(batch), *(Index((), i) for i in at)])


def _rows_of(b: Value) -> list[Value]:
    shape = (*b.shape[:-2], b.shape[-1])
    *batch, last = own_index(shape)
    return [look(b, shape, [*batch, Index((), i), last]) for i in range(b.shape[-2])]


def _stacked(parts: Sequence[Value], dim: int) -> Value:
    """Along a new dimension, counted from the end of the result."""
    shape = list(parts[0].shape)
    shape.insert(len(shape) + 1 + dim, 1)
    return concatenate([reshape(p, shape) for p in parts], dim) if len(parts) > 1 else reshape(parts[0], shape)


def _matrix(a: Matrix) -> Value:
    return _stacked([_stacked(row, -1) for row in a], -2)


def _transposed(a: Value) -> Value:
    rank = len(a.shape)
    return permute(a, [*range(rank - 2), rank - 1, rank - 2])


# ── A = P L U ────────────────────────────────────────────────────────────────────────────────────────────────────


def _factor(a: Matrix) -> tuple[Matrix, list[Value], Value]:
    """L and U in one matrix; for each column the row it was exchanged with; and the first column without a pivot,
    counted from 1."""
    n = len(a)
    a = [list(row) for row in a]
    batch = a[0][0].shape
    exchanges: list[Value] = []
    info = number(0, torch.int32, batch)
    for k in range(n):
        largest, chosen = pointwise("abs", a[k][k]), number(k, torch.int32, batch)
        for i in range(k + 1, n):
            size = pointwise("abs", a[i][k])
            larger = compare("gt", size, largest)
            largest, chosen = where(larger, size, largest), where(larger, i, chosen)
        exchanges.append(chosen)
        for i in range(k + 1, n):
            here = compare("eq", chosen, i)
            pairs = [(where(here, y, x), where(here, x, y)) for x, y in zip(a[k], a[i], strict=True)]
            a[k], a[i] = [x for x, _ in pairs], [y for _, y in pairs]
        missing = compare("eq", a[k][k], 0.0)
        info = where(pointwise("and", missing, compare("eq", info, 0)), k + 1, info)
        for i in range(k + 1, n):
            a[i][k] = where(missing, a[i][k], a[i][k] / a[k][k])
            for j in range(k + 1, n):
                a[i][j] = a[i][j] - a[i][k] * a[k][j]
    return a, exchanges, info


def _exchanged(rows: Sequence[Value], exchanges: Sequence[Value], order: Sequence[int]) -> list[Value]:
    rows = list(rows)
    for k in order:
        for i in range(k + 1, len(rows)):
            here = _beside(compare("eq", exchanges[k], i), rows[k])
            rows[k], rows[i] = where(here, rows[i], rows[k]), where(here, rows[k], rows[i])
    return rows


def _beside(number: Value, row: Value) -> Value:
    """A number of each matrix, against a row of another."""
    return number if len(number.shape) == len(row.shape) else reshape(number, (*number.shape, 1))


def _substituted(a: Matrix, rows: Sequence[Value], lower: bool, unit: bool) -> list[Value]:
    """The solution of a triangular system."""
    n = len(rows)
    found: dict[int, Value] = {}
    for i in range(n) if lower else reversed(range(n)):
        rest = functools.reduce(lambda x, j, i=i: x - _beside(a[i][j], rows[i]) * found[j], sorted(found), rows[i])  # type: ignore[misc]
        found[i] = rest if unit else rest / _beside(a[i][i], rest)
    return [found[i] for i in range(n)]


def _solved(lu: Matrix, exchanges: Sequence[Value], rows: Sequence[Value], adjoint: bool) -> list[Value]:
    n = len(rows)
    if not adjoint:
        rows = _exchanged(rows, exchanges, range(n))
        return _substituted(lu, _substituted(lu, rows, lower=True, unit=True), lower=False, unit=False)
    turned = [list(column) for column in zip(*lu, strict=True)]
    rows = _substituted(turned, _substituted(turned, rows, lower=True, unit=False), lower=False, unit=True)
    return _exchanged(rows, exchanges, list(reversed(range(n))))


def _solution(lu: Matrix, exchanges: Sequence[Value], b: Value, left: bool, adjoint: bool) -> Value:
    """Of ``A X = B``, of ``X A = B`` if not ``left``; of A transposed if ``adjoint``."""
    b = b if left else _transposed(b)
    x = _stacked(_solved(lu, exchanges, _rows_of(b), adjoint == left), -2)
    return x if left else _transposed(x)


def _pivots(exchanges: Sequence[Value]) -> Value:
    """As LAPACK counts them."""
    return _stacked([e + 1 for e in exchanges], -1)


@row(aten._linalg_solve_ex.default)
def _solve(a: Value, b: Value, *, left: bool = True, check_errors: bool = False, out: Any) -> Any:
    is_vector = len(b.shape) == len(a.shape) - 1
    matrix = reshape(b, (*b.shape, 1)) if is_vector else b
    if not _is_small(a) or a.shape[:-2] != matrix.shape[:-2] or (is_vector and not left):
        return NotImplemented
    lu, exchanges, info = _factor(_elements(a))
    x = _solution(lu, exchanges, matrix, left, False)
    result = (reshape(x, b.shape), _matrix(lu), _pivots(exchanges), info)
    return Checked(result, (compare("ne", info, 0),)) if check_errors else result


@row(aten.linalg_lu_solve.default)
def _lu_solve(lu: Value, pivots: Value, b: Value, *, left: bool = True, adjoint: bool = False, out: Any) -> Any:
    if not _is_small(lu) or lu.shape[:-2] != b.shape[:-2]:
        return NotImplemented
    exchanges = [_element(pivots, k) - 1 for k in range(lu.shape[-1])]
    return _solution(_elements(lu), exchanges, b, left, adjoint)


@row(aten.linalg_lu_factor_ex.default)
def _lu_factor(a: Value, *, pivot: bool = True, check_errors: bool = False, out: Any) -> Any:
    if not _is_small(a) or not pivot or check_errors:
        return NotImplemented
    lu, exchanges, info = _factor(_elements(a))
    return _matrix(lu), _pivots(exchanges), info


@row(aten.linalg_inv_ex.default)
def _inverse(a: Value, *, check_errors: bool = False, out: Any) -> Any:
    if not _is_small(a) or check_errors:
        return NotImplemented
    n = a.shape[-1]
    lu, exchanges, info = _factor(_elements(a))
    identity = _matrix([[number(float(i == j), a.dtype, a.shape[:-2]) for j in range(n)] for i in range(n)])
    return _solution(lu, exchanges, identity, True, False), info


def _determinant(log: bool, a: Value, *, out: Any, given: Any) -> Any:
    if not _is_small(a):
        return NotImplemented
    turned = given[0].is_contiguous()  # as PyTorch, which saves itself a copy; its gradient knows
    lu, exchanges, _ = _factor(_elements(_transposed(a) if turned else a))
    diagonal = [lu[i][i] for i in range(len(lu))]
    signs = [where(compare("eq", e, k), number(1.0, a.dtype), number(-1.0, a.dtype)) for k, e in enumerate(exchanges)]
    rest = (_matrix(lu), _pivots(exchanges))
    if not log:
        return (_product([*signs, *diagonal]), *rest)
    sizes = [pointwise("log", pointwise("abs", d)) for d in diagonal]
    sign = _product([*signs, *(pointwise("sign", d) for d in diagonal)])
    return (sign, functools.reduce(lambda x, y: x + y, sizes), *rest)


def _product(values: Sequence[Value]) -> Value:
    return functools.reduce(lambda x, y: x * y, values)


TABLE[aten._linalg_det.default] = functools.partial(_determinant, False)
TABLE[aten._linalg_slogdet.default] = functools.partial(_determinant, True)
TAKES_GIVEN |= {aten._linalg_det.default, aten._linalg_slogdet.default}


@row(aten._linalg_check_errors.default)
def _check_errors(info: Value, name: str, *, is_matrix: bool, out: Any) -> Any:
    return Checked((), (compare("ne", info, 0),))


# ── triangular ───────────────────────────────────────────────────────────────────────────────────────────────────


@row(aten.linalg_solve_triangular.default)
def _solve_triangular(
    a: Value, b: Value, *, upper: bool, left: bool = True, unitriangular: bool = False, out: Any
) -> Any:
    if not _is_small(a) or a.shape[:-2] != b.shape[:-2]:
        return NotImplemented
    a, b = (a, b) if left else (_transposed(a), _transposed(b))
    x = _stacked(_substituted(_elements(a), _rows_of(b), upper != left, unitriangular), -2)
    return x if left else _transposed(x)


@row(aten.linalg_cholesky_ex.default)
def _cholesky(a: Value, *, upper: bool = False, check_errors: bool = False, out: Any) -> Any:
    if not _is_small(a) or check_errors:
        return NotImplemented
    n, batch = a.shape[-1], a.shape[:-2]
    given = _elements(_transposed(a) if upper else a)
    zero, info = number(0.0, a.dtype, batch), number(0, torch.int32, batch)
    found: Matrix = [[zero] * n for _ in range(n)]
    for j in range(n):
        square = functools.reduce(lambda x, k, j=j: x - found[j][k] * found[j][k], range(j), given[j][j])  # type: ignore[misc]
        positive = compare("gt", square, 0.0)
        info = where(positive, info, where(compare("eq", info, 0), j + 1, info))
        found[j][j] = pointwise("sqrt", square)
        for i in range(j + 1, n):
            rest = functools.reduce(lambda x, k, i=i, j=j: x - found[i][k] * found[j][k], range(j), given[i][j])  # type: ignore[misc]
            found[i][j] = rest / found[j][j]
    result = _matrix(found)
    return _transposed(result) if upper else result, info
