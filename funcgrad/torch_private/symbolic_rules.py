"""Formulas of forward mode, and batching rules (``symbolic_batches.py``), that PyTorch has in C++ for sizes that are
numbers: the same where sizes are symbols.

The Python dispatcher, which runs where sizes are symbols, takes these first. Wherever else it runs, they go on to
PyTorch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from .symbolic_batches import OF_BATCHES, of_batches
from .symbols import sizes_are_symbols

_aten: Any = torch.ops.aten
_Key = torch._C.DispatchKey


def _is_dual(tensor: Any) -> bool:
    """Whether a tensor has a tangent at the level that runs."""
    return isinstance(tensor, Tensor) and torch._VF._unpack_dual(tensor, level=0)[1] is not None  # type: ignore[attr-defined]


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Zeros for those that have no tangent."""
    are_dual = [_is_dual(t) for t in tensors]
    if all(are_dual) or not any(are_dual) or not all(t.is_floating_point() or t.is_complex() for t in tensors):
        return NotImplemented
    make: Any = torch._VF._make_dual  # type: ignore[attr-defined]
    duals = [t if known else make(t, torch.zeros_like(t), level=0) for t, known in zip(tensors, are_dual, strict=True)]
    return torch.cat(duals, dim)


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    """By its formula."""
    given = [t for t in (x, weight, bias) if t is not None]
    if not any(map(_is_dual, given)) or any(t.dtype not in (torch.float32, torch.float64) for t in given):
        return NotImplemented
    n = len(shape)
    if not n or len({t.dtype for t in given}) > 1 or any(t.dim() < n for t in given):
        return NotImplemented
    if list(x.shape[-n:]) != list(shape) or any(list(t.shape) != list(shape) for t in given[1:]):
        return NotImplemented  # which is refused
    dims = list(range(-n, 0))
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    rstd = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    out = centred * rstd
    out = out if weight is None else out * weight
    return out if bias is None else out + bias, mean, rstd


def _of_tangents(rule: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return rule(*args, **kwargs) if forward_ad._current_level >= 0 else NotImplemented

    return call


def _install(op: Any, key: Any, rule: Callable[..., Any]) -> None:
    def call(*args: Any, **kwargs: Any) -> Any:
        if sizes_are_symbols():
            with torch._C.DisableTorchFunction():
                out = rule(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return op._op_dk(key, *args, **kwargs)

    op.py_impl(key)(call)


_FORMULAS: dict[Any, Callable[..., Any]] = {_aten.cat.default: _cat, _aten.native_layer_norm.default: _layer_norm}


@functools.cache
def install() -> None:
    """Let the Python dispatcher find them, from the first trace on in which sizes are symbols."""
    for op, rule in _FORMULAS.items():
        _install(op, _Key.Autograd, _of_tangents(rule))
    for op, rule in OF_BATCHES.items():
        _install(op, _Key.FuncTorchBatched, of_batches(rule))
