"""Rows of the op table: truth values and numbers that Python read.

What the branch of a program depends on is known to its kernels: they say themselves whether the call is on its path,
and no tensor is made for Python to read.
"""

from __future__ import annotations

from typing import Any

import torch

from ..graph_primitives import expect
from .gather import Checked
from .rows import row
from .values import Value, compare, is_given, whole

_NUMBERS = {
    int: (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
    float: (torch.float32, torch.float64),
}
"""Whose tensors hold the numbers that Python reads of them."""


@row(expect)
def _expect(value: Value, read: int, expected: Any, *, out: Any) -> Any:
    if type(expected) is bool and value.dtype == torch.bool:
        return Checked((), (compare("ne", value, expected),))
    is_number = value.dtype in _NUMBERS.get(type(expected), ()) and value.numel == 1
    if not is_number or is_given(whole(value)):  # one that is in memory is read there
        return NotImplemented
    return Checked((), (value * 1,))  # one of its own: what other checks are computed from is known before these are
