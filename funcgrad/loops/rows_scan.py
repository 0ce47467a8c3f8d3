"""Rows of the op table: running sums, products and extremes."""

from __future__ import annotations

from typing import Any

from .rows import TABLE, Rule, aten, is_arithmetic, wide_dtype
from .rows_reduce import is_extreme
from .scan import scan
from .values import Value, cast, count, where


def _running(kind: str) -> Rule:
    def rule(x: Value, dim: int, *, dtype: Any = None, out: Any) -> Any:
        if not is_arithmetic(out.dtype):
            return NotImplemented
        return cast(scan(kind, cast(cast(x, out.dtype), wide_dtype(out.dtype)), dim), out.dtype)

    return rule


def _running_extreme(kind: str) -> Rule:
    def rule(x: Value, dim: int, *, out: Any) -> Any:
        if not is_arithmetic(x.dtype) or not x.shape:
            return NotImplemented
        top = scan(kind, x, dim)  # where there are several, the last one counts
        return top, scan("max", where(is_extreme(x, top), count(x.shape, dim % len(x.shape)), 0), dim)

    return rule


TABLE[aten.cumsum.default], TABLE[aten.cumprod.default] = _running("sum"), _running("prod")
TABLE[aten.cummax.default], TABLE[aten.cummin.default] = _running_extreme("max"), _running_extreme("min")
