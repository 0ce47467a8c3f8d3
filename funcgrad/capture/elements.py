"""Whole numbers that small constants hold, element by element: in symbols, where they are computed of sizes
(``torch.tensor([h, w]).prod()``, ``limit - torch.tensor(n)``).

A row says what an operator does to arrays of Python's numbers, of which symbols are some. What compares two symbols
(a maximum, a mask) leaves the guard that Python's own comparison of them leaves.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..graph_primitives import several
from .traced_sizes import floor_quotient
from .uniform import filled_with

aten = torch.ops.aten

Array = np.ndarray[Any, np.dtype[np.object_]]

_MOST = 64
"""Tensors of more elements are data, not sizes."""
_LARGEST = 1 << 31
"""What is computed of larger ones may wrap around in 64 bits, as Python's do not."""
_KINDS = {torch.int64: int, torch.bool: bool}
"""Smaller integers wrap around."""


def numbers_in(constant: Tensor, call_of: Callable[[Tensor], Any], known: dict[int, Array]) -> Array | None:
    """What a constant holds, as numbers and symbols; None where that is not known at every size. ``call_of``: what
    made a tensor; ``known``: what was found before, by the tensors' ids."""
    pending = [constant]
    while pending:
        value = pending[-1]
        if id(value) in known:
            pending.pop()
            continue
        call = call_of(value)
        if call is None or not _are_few(value):
            return None
        number = filled_with(value, call_of)
        found: Sequence[Any]
        if number is not None:
            found = [_filled(value.shape, number)]
        elif call.op not in _ROWS:
            return None
        elif before := [operand for operand in call.operands if id(operand) not in known]:
            pending += before
            continue
        else:
            try:
                found = several(_ROWS[call.op](*(_given(a, known) for a in call.args), **call.kwargs))
            except ZeroDivisionError:  # which Python does not raise before the function asks
                return None
        kind = _KINDS[value.dtype]
        for out, numbers in zip(call.outs, found, strict=True):
            known[id(out)] = _each(lambda n, kind=kind: n if isinstance(n, torch.SymInt) else kind(n))(numbers)
        if any(isinstance(n, int) and abs(n) >= _LARGEST for n in known[id(value)].flat):
            return None
    return known[id(constant)]


def _are_few(value: Tensor) -> bool:
    return value.dtype in _KINDS and all(type(n) is int for n in value.shape) and value.numel() <= _MOST


def _given(value: Any, known: dict[int, Array]) -> Any:
    """An argument of an operator, as its row takes it."""
    if isinstance(value, Tensor):  # data that Python wrote down is no fake
        return known[id(value)] if id(value) in known else np.array(value.tolist(), object)
    return [_given(v, known) for v in value] if isinstance(value, (list, tuple)) else value


def _each(of: Callable[..., Any]) -> Callable[..., Array]:
    """An operator that goes element by element."""
    return lambda *operands, **more: np.asarray(
        np.frompyfunc(functools.partial(of, **more), len(operands), 1)(*operands), object
    )


def _reduced(by: Callable[[Any, Any], Any], **first: Any) -> Callable[..., Array]:
    """A reduction of everything, along a dimension, or along several."""

    def reduce(a: Array, dim: Any = None, keepdim: bool = False, **_: Any) -> Array:
        dims = range(a.ndim) if dim in (None, []) else dim if isinstance(dim, list) else [dim]
        for d in sorted((d % a.ndim for d in dims if a.ndim), reverse=True):
            a = np.asarray(np.frompyfunc(by, 2, 1).reduce(a, axis=d, keepdims=keepdim, **first), object)
        return a

    return reduce


def _filled(size: Sequence[int], value: Any, **_: Any) -> Array:
    found = np.empty(size, object)
    found.fill(value)
    return found


def _divided(a: Any, b: Any, rounding_mode: str) -> Any:
    up = rounding_mode == "trunc" and (a < 0) != (b < 0)
    return -floor_quotient(-a, b) if up else floor_quotient(a, b)


def _clamped(a: Any, low: Any = None, high: Any = None, **bounds: Any) -> Any:
    low, high = bounds.get("min", low), bounds.get("max", high)
    a = a if low is None else max(a, low)
    return a if high is None else min(a, high)


def _sliced(a: Array, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    return a[(slice(None),) * (dim % a.ndim) + (slice(start, end, step),)]


def _forms(name: str) -> list[Any]:
    """The overloads of an operator that take a tensor and numbers, and make tensors."""
    forms = ("default", "Tensor", "Scalar", "int", "dim", "dim_int", "dim_IntList", "Tensor_mode")
    found = [getattr(getattr(aten, name), form) for form in forms if form in getattr(aten, name).overloads()]
    return [op for op in found if any("Tensor" in str(made.type) for made in op._schema.returns)]


_BY_NAME: dict[str, Callable[..., Any]] = {
    "add": _each(lambda a, b, alpha=1: a + b * alpha),
    "sub": _each(lambda a, b, alpha=1: a - b * alpha),
    "rsub": _each(lambda a, b, alpha=1: b - a * alpha),
    "mul": _each(operator.mul),
    "neg": _each(operator.neg),
    "div": _each(_divided),
    "floor_divide": _each(floor_quotient),
    "remainder": _each(operator.mod),
    "minimum": _each(min),
    "maximum": _each(max),
    "clamp": _each(_clamped),
    **{name: _each(getattr(operator, name)) for name in ("eq", "ne", "lt", "le", "gt", "ge")},
    "sum": _reduced(operator.add, initial=0),
    "prod": _reduced(operator.mul, initial=1),
    "amax": _reduced(max),
    "amin": _reduced(min),
    "cumsum": lambda a, dim, **_: np.add.accumulate(a, axis=dim) if a.ndim else a,
    "cat": lambda parts, dim=0: np.concatenate(parts, axis=dim),
    "stack": lambda parts, dim=0: np.stack(parts, axis=dim),
    "select": lambda a, dim, i: np.asarray(np.take(a, i, axis=dim), object),
    "slice": _sliced,
    "unsqueeze": lambda a, dim: np.expand_dims(a, dim),
    "unbind": lambda a, dim=0: tuple(np.moveaxis(a, dim, 0)),
    "view": np.reshape,
    "_unsafe_view": np.reshape,
    "permute": np.transpose,
    "transpose": np.swapaxes,
    "t": np.transpose,
    **dict.fromkeys(("clone", "alias", "detach", "lift_fresh", "lift_fresh_copy", "_to_copy"), lambda a, **_: a),
}
"""What operators make of arrays."""
_ROWS = {op: row for name, row in _BY_NAME.items() for op in _forms(name)}
_ROWS |= {aten.max.default: _reduced(max), aten.min.default: _reduced(min)}  # the other forms find places, too
