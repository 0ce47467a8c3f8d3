"""Symbolic sizes as the function sees them: ints.

PyTorch's own symbolic ints are none to ``isinstance``, have no ``divmod``, and print as symbols. What the function is
given instead has the same node below, so that PyTorch takes it for its own, and is an ``int`` to everybody but PyTorch.
What no symbol can answer is asked of its value, which becomes a guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import SymFloat, SymInt, Tensor

from ..torch_private.symbols import is_size
from .floats import Float, Int, fixed, own
from .source_location import asked_by_library

_ARITHMETIC = (
    "add radd sub rsub mul rmul rfloordiv truediv rtruediv mod rmod pow rpow neg pos abs and rand or ror xor rxor "
    "lshift rlshift rshift rrshift eq ne lt le gt ge"
)


class TracedSize(SymInt):
    """A symbolic size; what is computed of it is one, too."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self) if asked_by_library() else int

    def __floordiv__(self, by: Any) -> Any:
        return seen(floor_quotient(SymInt(self.node), by))  # type: ignore[no-untyped-call]

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __round__(self, digits: int | None = None) -> Any:
        return self if digits is None or digits >= 0 else round(int(self), digits)

    def __trunc__(self) -> Any:
        return self

    __floor__ = __ceil__ = __trunc__

    def __hash__(self) -> int:
        return hash(int(self))

    def __repr__(self) -> str:
        return _symbol(self) if asked_by_library() else repr(int(self))

    def __str__(self) -> str:
        return _symbol(self) if asked_by_library() else str(int(self))

    def __format__(self, how: str) -> str:
        return format(_symbol(self), how) if asked_by_library() else format(int(self), how)

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.array(int(self), dtype)

    def __getattr__(self, name: str) -> Any:
        """The attributes of an int (``real``, ``to_bytes``)."""
        if hasattr(int, name) and not asked_by_library():
            return getattr(int(self), name)
        raise AttributeError(f"'{SymInt.__name__}' object has no attribute '{name}'", name=name, obj=self)


def seen(value: Any) -> Any:
    """A number, or sizes, that came by way of PyTorch as the function is to see them."""
    if type(value) is SymInt and is_size(value):
        return TracedSize(value.node)  # type: ignore[no-untyped-call]
    if type(value) is SymInt or type(value) is SymFloat:
        return own(value)
    if type(value) in (torch.Size, tuple) and any(type(n) is SymInt for n in value):
        return type(value)([seen(n) for n in value])
    return value


def whole_part(tensor: Tensor) -> Any:
    """``int(tensor)``: of a number that is a symbol, all that have this whole part, and not it alone."""
    number = seen(tensor.item())
    if isinstance(number, complex):
        if number.imag:
            raise RuntimeError("value cannot be converted to type int64_t without overflow")
        number = number.real
    return int(number)


def floor_quotient(of: Any, by: Any) -> Any:
    """``of // by`` of whole numbers: as that by a positive one, since PyTorch makes of ``n // 2 // -2`` an ``n // -4``,
    which is rounded otherwise."""
    return -of // -by if isinstance(by, (int, SymInt)) and by < 0 else of // by


def _symbol(size: TracedSize) -> str:
    return str(size.node)


def _seen(name: str) -> Callable[..., Any]:
    """A method of a number. With one that is given to the call, that says what comes of it (``Int``); with a complex
    one, Python says what comes of the value."""
    method = getattr(SymInt, name)

    def call(self: Any, *others: Any) -> Any:
        if any(type(other) in (Int, Float) for other in others):
            values = (fixed(other) if type(other) in (Int, Float) else other for other in others)
            return NotImplemented if len(others) == 1 else getattr(int(self), name)(*values)
        if others and isinstance(others[0], complex):
            return getattr(complex(int(self)), name)(*others)
        return seen(method(self, *others))

    return call


for _name in _ARITHMETIC.split():
    setattr(TracedSize, f"__{_name}__", _seen(f"__{_name}__"))
TracedSize.__name__ = "int"
