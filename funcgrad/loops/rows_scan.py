"""Rows of the op table: running sums, products and extremes."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from .rows import TABLE, aten, wide_dtype
from .rows_reduce import is_extreme
from .scan import scan
from .values import Value, cast, count, where


def _running(kind: str, x: Value, dim: int, *, dtype: Any = None, out: Any) -> Any:
    if out.dtype == torch.bool:
        return NotImplemented
    return cast(scan(kind, cast(cast(x, out.dtype), wide_dtype(out.dtype)), dim), out.dtype)


def _running_extreme(kind: str, x: Value, dim: int, *, out: Any) -> Any:
    if x.dtype == torch.bool or not x.shape:
        return NotImplemented
    top = scan(kind, x, dim)  # where there are several, the last one counts
    return top, scan("max", where(is_extreme(x, top), count(x.shape, dim % len(x.shape)), 0), dim)


TABLE[aten.cumsum.default], TABLE[aten.cumprod.default] = partial(_running, "sum"), partial(_running, "prod")
TABLE[aten.cummax.default] = partial(_running_extreme, "max")
TABLE[aten.cummin.default] = partial(_running_extreme, "min")
