"""What a row of the op table is, and what rows have in common."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..symbolic.sizes import Size
from .values import HALF, Number, Scalar, Value, cast, compare, number

aten = torch.ops.aten
Rule = Callable[..., Any]

TABLE: dict[Any, Rule] = {}
"""Operator overload → its row. A row takes the operator's arguments and ``out``, the fake value(s) it returns:
tensors of dtypes that kernels know, as ``lower`` has seen to."""


TAKES_GIVEN: set[Any] = set()
"""Overloads whose rows are told of the tensors they are called with, too, as ``given``: how they lie in memory."""

TAKES_SCALARS: set[Any] = set()
"""Overloads whose rows take a ``Scalar`` where there may be a number: they ask nothing of its value."""


def row(*overloads: Any) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for overload in overloads:
            TABLE[overload] = rule
        return rule

    return add


# ── dtypes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def into(value: Any, dtype: torch.dtype) -> Any:
    """An argument in the dtype an operation computes in; numbers take it on, and wrap around as PyTorch's do."""
    return cast(value, dtype) if isinstance(value, Value) else number(plain(value, dtype), dtype)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF else dtype


def dims_of(dims: Any) -> Sequence[int] | None:
    return None if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)


def half_in_f32(rule: Callable[..., Value]) -> Rule:
    """Formulas of several steps: half precision is widened first, and rounded once."""

    @functools.wraps(rule)  # the coverage page asks where a row was written
    def lowered(*args: Any, out: Any, **kwargs: Any) -> Any:
        if not out.dtype.is_floating_point or not all(fits(a, out.dtype) for a in args if isinstance(a, (int, float))):
            return NotImplemented
        wide = wide_dtype(out.dtype)
        new = [cast(a, wide) if isinstance(a, Value) else a for a in args]
        found = rule(*new, **kwargs)
        return found if found is NotImplemented else cast(found, out.dtype)

    return lowered


def plain(value: Any, dtype: torch.dtype) -> Any:
    """A number as a Python number that the dtype holds; one that is known when the program runs, as it is."""
    if isinstance(value, Size) and dtype != torch.bool:
        return value
    if dtype.is_floating_point:
        return float(value)
    if dtype == torch.bool:
        return bool(value)
    info = torch.iinfo(dtype)
    return (int(value) - info.min) % (info.max - info.min + 1) + info.min


def fits(value: Any, dtype: torch.dtype) -> bool:
    """Whether a dtype holds a number: one that it does not hold wraps around in PyTorch's arithmetic and
    comparisons, and is refused elsewhere, where a row leaves the call to it. Tensors are cast."""
    if isinstance(value, Scalar):
        return dtype.is_floating_point  # the call was recorded for numbers that fit
    if isinstance(value, Value) or dtype == torch.bool:
        return True
    if isinstance(value, Size):  # asking whether it is small would tie the program to that
        return dtype in (torch.int64, torch.float32, torch.float64)
    info: Any = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return bool(info.min <= value <= info.max) or (dtype.is_floating_point and not math.isfinite(value))


def item_fits(value: Any, dtype: torch.dtype) -> bool:
    """The same where PyTorch takes the number out of a tensor; one that is known when the program runs fits for sure
    in its own dtype."""
    if isinstance(value, Value) and not isinstance(value, (Number, Scalar)):
        return value.dtype == dtype
    return fits(value.value if isinstance(value, Number) else value, dtype)


def truth(x: Value) -> Value:
    return x if x.dtype == torch.bool else compare("ne", x, number(0, x.dtype))


def begin(n: int, start: Any) -> int:
    """Where a slice of a dimension of ``n`` elements begins."""
    return 0 if start is None else max(0, min(n, start + n if start < 0 else start))
