"""Symbolic ints among the arguments of torch's functions, which are given none.

Arithmetic of floating tensors means the same with a float that is equal to an int: it gets that, a symbol. Everywhere
else (sizes, dimensions, indices, integer tensors, whose arithmetic is exact) an int decides what program there is, and
its value is a guard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..trees import flatten
from .floats import Float, Int, fixed

_ARITHMETIC = (
    "add sub subtract rsub mul multiply div divide true_divide floor_divide truediv floordiv remainder mod fmod pow "
    "float_power eq ne lt le gt ge not_equal less less_equal greater greater_equal clamp clamp_min clamp_max clip lerp "
    "addcmul addcdiv"
)
_CHOICES = "where masked_fill"


def _functions(names: str) -> set[Any]:
    forms = [
        form for name in names.split() for form in (name, f"{name}_", f"__{name}__", f"__r{name}__", f"__i{name}__")
    ]
    return {getattr(owner, form) for owner in (torch, Tensor) for form in forms if hasattr(owner, form)}


_CHOOSES = _functions(_CHOICES)
"""Functions in which masks, which are no floating tensors, say where a number goes."""
_COMPUTES = _functions(_ARITHMETIC) | _CHOOSES


def without_ints(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any], as_size: Callable[[Int], Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a function of torch's, with floats, sizes or values in the place of symbolic ints.
    ``as_size``: what PyTorch is given where no float means the same."""
    tensors = [v for v in flatten((args, kwargs))[0] if isinstance(v, Tensor)]
    beside = [t for t in tensors if not (function in _CHOOSES and t.dtype == torch.bool)]
    computes = function in _COMPUTES and bool(beside) and all(t.dtype.is_floating_point for t in beside)
    settled = functools.partial(_settled, as_size=as_size)
    return [settled(v, computes) for v in args], {name: settled(v, computes) for name, v in kwargs.items()}


def _settled(value: Any, computes: bool, as_size: Callable[[Int], Any]) -> Any:
    """A value without symbolic ints; ``computes``: whether a float means the same there. Within containers none
    does."""
    if type(value) is Int:
        if not computes:
            return as_size(value)
        node = value.node.as_float()
        return fixed(value) if node is None else Float(node)
    if type(value) is slice:
        return slice(*(_settled(v, False, as_size) for v in (value.start, value.stop, value.step)))
    if isinstance(value, (list, tuple)) and any(_holds(v) for v in value):
        items = [_settled(v, False, as_size) for v in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if type(value) is dict:
        return (
            {key: _settled(v, False, as_size) for key, v in value.items()}
            if any(map(_holds, value.values()))
            else value
        )
    return value


def _holds(value: Any) -> bool:
    """Whether there may be a symbolic int in a value."""
    return type(value) in (Int, slice, dict) or isinstance(value, (list, tuple))
