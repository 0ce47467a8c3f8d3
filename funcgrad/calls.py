"""The calls besides ATen's that a graph may hold: expressions and sizes, checks, one of several results, writes without effect."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def scalar(expression: str, **symbols: Any) -> Any:
    """The value of a Python expression over symbolic inputs: arithmetic on floats and sizes."""
    return eval(expression, {"math": math, "torch": torch}, symbols)


def size(tensor: Tensor, dim: int) -> int:
    """A size of an input, where it is a symbol."""
    return tensor.shape[dim]


def require_false(condition: Tensor, message: str) -> None:
    """A check on values, made when the program runs: raises ``ValueError(message)`` where the condition is true."""
    if condition:
        raise ValueError(message)


def getitem(values: Sequence[Any], i: int) -> Any:
    """One of an op's several results."""
    return values[i]


def written_copies(op: Any, written: Sequence[int | str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """A custom operator that writes to its arguments, as a pure function: it gets copies of those at ``written`` (positions and
    names), and what it returns is followed by them."""
    places: dict[int | str, Any] = dict(enumerate(args))
    places.update(kwargs)
    for place in written:
        old = places[place]
        places[place] = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device).copy_(old)
    out = op(*(places[i] for i in range(len(args))), **{name: places[name] for name in kwargs})
    made = out if isinstance(out, (list, tuple)) else [out]
    return (*(t for t in made if isinstance(t, Tensor)), *(places[place] for place in written))


def again(value: Tensor) -> Tensor:
    """The same tensor: what is computed from it is computed, whether or not an equal value was computed before."""
    return value
