"""Constants of symbolic size: whether another size would be other values.

What is filled with a number, or expanded, is *uniform*: the same along dimensions of symbolic size. So is what is
computed of it element by element, and whether all of it are true: an argument that ``torch.distributions`` validates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..torch_private.operators import is_pointwise

aten = torch.ops.aten

_FILLS = {
    aten.full.default: 1, aten.full_like.default: 1, aten.new_full.default: 2,
    aten.ones.default: 2, aten.ones_like.default: 2, aten.new_ones.default: 2,
    aten.zeros.default: 2, aten.zeros_like.default: 2, aten.new_zeros.default: 2, aten.expand.default: 2,
}  # fmt: skip
"""Operators that make the same values along dimensions of sizes they are given, and their first argument that is no
size."""
_KEEP = {
    aten.all.default, aten.all.dim, aten.all.dims, aten.any.default, aten.any.dim, aten.any.dims,
    aten._is_all_true.default, aten._is_any_true.default, aten.amax.default, aten.amin.default,
    aten.unsqueeze.default, aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.transpose.int,
    aten.permute.default, aten.t.default, aten.clone.default, aten.alias.default, aten.detach.default,
    aten._to_copy.default,
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


def _has_symbols(value: Any) -> bool:
    if isinstance(value, dict):
        return _has_symbols(list(value.values()))
    return any(map(_has_symbols, value)) if isinstance(value, (list, tuple)) else isinstance(value, _SYMBOLIC)
