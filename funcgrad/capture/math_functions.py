"""Functions of ``math`` in a trace, of symbols: written down, too; and what of a size may be a size again."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import SymFloat, SymInt

from .floats import Floats, Int, fixed, own, wrapped
from .source_location import asked_by_library

MATH = tuple(
    name
    for name in (
        "sqrt cbrt exp exp2 expm1 log log2 log10 log1p pow sin cos tan asin acos atan atan2 sinh cosh tanh asinh "
        "acosh atanh hypot "
        "fabs copysign fmod degrees radians erf erfc gamma lgamma floor ceil trunc isqrt isnan isinf isfinite"
    ).split()
    if hasattr(math, name)
)
"""Functions of ``math`` that are written down, too."""


_TO_INTS = {math.floor, math.ceil, math.trunc}
"""Functions that make of a size, or of a quotient of two, what may be a size."""


def of_math(floats: Floats, function: Callable[..., Any], *args: Any) -> Any:
    """What a function of ``math`` makes of numbers, some of which may be symbols: floats, ints, or sizes."""
    if not any(isinstance(a, (SymFloat, SymInt)) for a in args):
        return function(*args)
    args = tuple(own(a) if type(a) in (SymFloat, SymInt) else a for a in args)
    if function in _TO_INTS and type(args[0]) is not Int:
        found = function(*args)
        return fixed(found) if type(found) is Int and asked_by_library(3) else found  # torch takes it for a size
    nodes = [floats.node(a) for a in args]
    if None in nodes:
        return function(*args)
    text = f"math.{function.__name__}({', '.join(['{}'] * len(nodes))})"
    return wrapped(nodes[0].computed(text, function, *nodes[1:], may_raise=True))  # type: ignore[union-attr, arg-type]


def quotient_of(function: Callable[..., Any], args: Any) -> tuple[Any, Any] | None:
    """The sizes of PyTorch's of which what a function makes is the quotient: ``n / 2``, ``float(n)``. None where it
    is none."""
    if function is torch.sym_float and type(args[0]) is SymInt:
        return args[0], 1
    if function is operator.truediv and not any(isinstance(a, (float, SymFloat)) for a in args):
        return args  # type: ignore[no-any-return]
    return None
