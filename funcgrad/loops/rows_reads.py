"""Rows of the op table: truth values that Python read.

What the branch of a program depends on is known to its kernels: they say themselves whether the call is on its path,
and no tensor is made for Python to read.
"""

from __future__ import annotations

from typing import Any

import torch

from ..graph_primitives import expect
from .gather import Checked
from .rows import row
from .values import Value, compare


@row(expect)
def _expect(value: Value, read: int, expected: Any, *, out: Any) -> Any:
    if type(expected) is not bool or value.dtype != torch.bool:
        return NotImplemented
    return Checked((), (compare("ne", value, expected),))
