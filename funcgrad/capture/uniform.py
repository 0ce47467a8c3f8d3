"""Constants of symbolic size: whether another size would be other values, and what they are at every size.

What is filled with a number, or expanded, is *uniform*: the same along dimensions of symbolic size. So is what is
computed of it element by element, and whether all of it are true: an argument that ``torch.distributions`` validates.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_private.operators import is_pointwise

aten = torch.ops.aten

_GIVEN = {aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2}
"""Operators that fill a tensor with one of their arguments, and with which."""
_ONES_OR_ZEROS = {
    **dict.fromkeys((aten.ones.default, aten.ones_like.default, aten.new_ones.default), 1),
    **dict.fromkeys((aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default), 0),
}
_FILLS = _GIVEN | dict.fromkeys((*_ONES_OR_ZEROS, aten.expand.default), 2)
"""Operators that make the same values along dimensions of sizes they are given, and their first argument that is no
size."""
_KEEP = {
    aten.all.default, aten.all.dim, aten.all.dims, aten.any.default, aten.any.dim, aten.any.dims,
    aten._is_all_true.default, aten._is_any_true.default, aten.amax.default, aten.amin.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.transpose.int, aten.permute.default, aten.t.default,
    aten.clone.default, aten.alias.default, aten.detach.default, aten._to_copy.default,
}  # fmt: skip
"""Operators that make uniform values of uniform ones, besides those that go element by element."""
_BATCHED = {aten.view.default, aten._unsafe_view.default, aten.linalg_cholesky_ex.default}
"""The same of what is uniform along its first dimensions, where the result has these, too."""
_SYMBOLIC = torch.SymInt, torch.SymFloat, torch.SymBool


def keeps_uniform(op: Any, args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[Sequence[Any]]) -> bool:
    """Whether a call makes uniform values of uniform ones; ``shapes`` of its operands and results."""
    if op in _FILLS:
        return not _has_symbols(args[_FILLS[op] :])
    if op in _BATCHED:
        last = max((d + 1 for shape in shapes for d, n in enumerate(shape) if _has_symbols(n)), default=0)
        return len({tuple(map(str, shape[:last])) for shape in shapes}) == 1
    if _has_symbols([args, kwargs]):
        return False
    return op in _KEEP or is_pointwise(op) or not _has_symbols(shapes)


_COMPARISONS = {
    getattr(getattr(aten, name), overload): getattr(operator, name)
    for name in ("eq", "ne", "lt", "le", "gt", "ge")
    for overload in ("Scalar", "Tensor")
}
_PASS_ON = _KEEP | _BATCHED - {aten.linalg_cholesky_ex.default} | {aten.expand.default}


def filled_with(value: Any, call_of: Callable[[Tensor], Any]) -> Any:
    """The whole number, or bool, that a constant is filled with: in symbols, where sizes decide it (``ones(n).sum()``
    is ``n``); None for one that is not known to be filled. ``call_of``: what made a tensor."""
    if not isinstance(value, Tensor):
        return value if isinstance(value, (int, torch.SymInt)) else None
    call, is_whole = call_of(value), value.dtype in (torch.int64, torch.bool)  # smaller ones wrap around
    # of what is empty all are true, and none is
    if (
        call is None
        or not (is_whole or value.is_floating_point())
        or any(type(n) is int and n == 0 for n in value.shape)
    ):
        return None
    found: Any
    if call.op in _ONES_OR_ZEROS:
        found = _ONES_OR_ZEROS[call.op]
    elif call.op in _PASS_ON:
        found = filled_with(call.args[0], call_of)
    elif not is_whole:  # rounded
        return None
    elif call.op in _GIVEN:
        found = call.args[_GIVEN[call.op]]
        found = found if isinstance(found, (int, torch.SymInt)) else None
    elif call.op in _COMPARISONS:
        a, b = (filled_with(operand, call_of) for operand in call.args)
        found = None if a is None or b is None else _COMPARISONS[call.op](a, b)
    elif call.op is aten.sum.default and not call.args[0].is_floating_point():
        found = filled_with(call.args[0], call_of)
        number = int(found) if isinstance(found, bool) else found  # 2.11: True times a symbol is no size
        found = None if number is None else number * math.prod(call.args[0].shape)
    else:
        return None
    return found if found is None or value.dtype != torch.bool else bool(found)


def _has_symbols(value: Any) -> bool:
    if isinstance(value, dict):
        return _has_symbols(list(value.values()))
    return any(map(_has_symbols, value)) if isinstance(value, (list, tuple)) else isinstance(value, _SYMBOLIC)
