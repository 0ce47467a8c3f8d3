"""Rows of the op table: truth values and numbers that Python read.

What the branch of a program depends on is known to its kernels: they say themselves whether the call is on its path,
and no tensor is made for Python to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..graph_primitives import expect
from .gather import Checked
from .rows import TAKES_GIVEN, row
from .values import Value, compare, is_given, whole

_NUMBERS = {
    int: (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8),
    float: (torch.float32, torch.float64),
}
"""Whose tensors hold the numbers that Python reads of them."""


@row(expect)
def _expect(value: Value, read: int, expected: Any, *, given: Sequence[torch.Tensor], out: Any) -> Any:
    if type(expected) is bool and value.dtype == torch.bool:
        return Checked((), (compare("ne", value, expected),))
    is_number = value.dtype in _NUMBERS.get(type(expected), ()) and value.numel == 1
    # one that is in memory is read there; of a number on a GPU it is not known on the CPU what it is
    if not is_number or is_given(whole(value)) or given[0].device.type != "cpu":
        return NotImplemented
    return Checked((), (value,))


TAKES_GIVEN.add(expect)
