"""Rows of the op table: random numbers, as a function of a key and of the number of the element."""

from __future__ import annotations

import math
from typing import Any

from ..philox import philox
from .rows import row
from .values import Value, count, pointwise, reshape


@row(philox)
def _philox(key: Value, start: int, half: int, *_: Any, out: Any) -> Value:
    shape = tuple(out.shape)
    counter = reshape(count((math.prod(shape),), 0) + start, shape)
    return pointwise(f"philox{half}", key, counter, dtype=out.dtype)
