"""The calls besides ATen's that a graph may hold: expressions and sizes, checks, one of several results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def scalar(expression: str, **symbols: Any) -> Any:
    """The value of a Python expression over symbolic inputs: arithmetic on floats and sizes."""
    return eval(expression, {"math": math, "torch": torch}, symbols)


def guard_holds(condition: str, **symbols: Any) -> bool:
    """Whether a condition over symbolic inputs holds; one that cannot be computed (a division by zero) does not."""
    try:
        return bool(scalar(condition, **symbols))
    except (ArithmeticError, ValueError):
        return False


def size(tensor: Tensor, dim: int) -> int:
    """A size of an input, where it is a symbol."""
    return tensor.shape[dim]


def require_false(condition: Tensor, message: str) -> None:
    """A check on values, made when the program runs: raises ``ValueError(message)`` where the condition is true."""
    if condition:
        raise ValueError(message)


def require_true(condition: Tensor, message: str) -> None:
    """A check of PyTorch's own on values, made when the program runs: raises ``RuntimeError(message)`` where the condition is false."""
    if not condition:
        raise RuntimeError(message)


def getitem(values: Sequence[Any], i: int) -> Any:
    """One of an op's several results."""
    return values[i]


def again(value: Tensor) -> Tensor:
    """The same tensor: what is computed from it is computed, whether or not an equal value was computed before."""
    return value
