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
from torch import Tensor, _prims_common
from torch._prims_common import suggest_memory_format
from torch.autograd import forward_ad

from .symbolic_batches import OF_BATCHES, of_batches
from .symbolic_composites import COMPOSITES, keys_of
from .symbols import known_contiguous, sizes_are_symbols

_aten: Any = torch.ops.aten
_Key = torch._C.DispatchKey


def _is_dual(tensor: Any) -> bool:
    """Whether a tensor has a tangent at the level that runs."""
    return isinstance(tensor, Tensor) and torch._VF._unpack_dual(tensor, level=0)[1] is not None  # type: ignore[attr-defined]


def _joined(op: Callable[..., Tensor]) -> Callable[..., Any]:
    """Of ``cat`` and ``stack``: zeros for those that have no tangent."""

    def rule(tensors: Sequence[Tensor], dim: int = 0) -> Any:
        are_dual = [_is_dual(t) for t in tensors]
        if all(are_dual) or not any(are_dual) or not all(t.is_floating_point() or t.is_complex() for t in tensors):
            return NotImplemented
        make: Any = torch._VF._make_dual  # type: ignore[attr-defined]
        known = zip(tensors, are_dual, strict=True)
        return op([t if is_dual else make(t, torch.zeros_like(t), level=0) for t, is_dual in known], dim)

    return rule


def _are_normalised(*given: Tensor | None) -> bool:
    """Whether a formula serves for what is normalised, and its weights: what has a tangent, in one precise dtype."""
    found = [t for t in given if t is not None]
    return any(map(_is_dual, found)) and {t.dtype for t in found} in ({torch.float32}, {torch.float64})


def _normalised(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    mean = x.mean(dims, keepdim=True)
    centred = x - mean
    rstd = torch.rsqrt((centred * centred).mean(dims, keepdim=True) + eps)
    return centred * rstd, mean, rstd


def _weighted(x: Tensor, shape: Sequence[Any], weight: Tensor | None, bias: Tensor | None) -> Tensor:
    x = x if weight is None else x * weight.view(shape)
    return x if bias is None else x + bias.view(shape)


def _layer_norm(x: Tensor, shape: Sequence[int], weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
    """By its formula."""
    given = [t for t in (x, weight, bias) if t is not None]
    n = len(shape)
    if not _are_normalised(x, weight, bias) or not n or any(t.dim() < n for t in given):
        return NotImplemented
    if list(x.shape[-n:]) != list(shape) or any(list(t.shape) != list(shape) for t in given[1:]):
        return NotImplemented  # which is refused
    out, mean, rstd = _normalised(x, list(range(-n, 0)), eps)
    return _weighted(out, shape, weight, bias), mean, rstd


def _group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: Any, channels: Any, size: Any, groups: int, eps: float
) -> Any:
    """The same."""
    if not _are_normalised(x, weight, bias):
        return NotImplemented
    out, mean, rstd = _normalised(x.reshape(n, groups, -1), [-1], eps)
    wide = [-1] + [1] * (x.dim() - 2)
    return _weighted(out.reshape(x.shape), wide, weight, bias), mean.squeeze(-1), rstd.squeeze(-1)


def _batch_norm(op: Any) -> Callable[..., Any]:
    """The same; running statistics have no tangents."""

    def rule(x: Tensor, weight: Tensor | None, bias: Tensor | None, *given: Any) -> Any:
        running = [t for t in given[:2] if isinstance(t, Tensor)]
        trains = given[len(running)] is True
        if not _are_normalised(x, weight, bias) or not (trains or running) or any(map(_is_dual, running)):
            return NotImplemented
        wide, eps = [-1] + [1] * (x.dim() - 2), given[-1]
        x = x.contiguous(memory_format=suggest_memory_format(x))  # as the result is
        if not trains:
            centred, rstd = x - running[0].view(wide), torch.rsqrt(running[1] + eps).view(wide)
            return _weighted(centred * rstd, wide, weight, bias), x.new_zeros(0), x.new_zeros(0)
        if running:  # they are written to
            primals = [None if t is None else torch._VF._unpack_dual(t, level=0)[0] for t in (x, weight, bias)]  # type: ignore[attr-defined]
            op(*primals, *given)
        out, mean, rstd = _normalised(x, [0, *range(2, x.dim())], eps)
        return _weighted(out, wide, weight, bias), mean.flatten(), rstd.flatten()

    return rule


def _batch_norm_backward(*given: Any) -> Any:
    """By the formula that PyTorch lets TorchScript run, which asks for sizes."""
    if not any(map(_is_dual, given)):
        return NotImplemented
    # compiles TorchScript, as the first derivative in forward mode does anyway
    from torch._decomp.decompositions_for_jvp import decomposition_table_for_jvp

    return decomposition_table_for_jvp[_aten.native_batch_norm_backward.default](*given)


def _glu(x: Tensor, dim: int = -1) -> Any:
    if not _is_dual(x):
        return NotImplemented
    half = x.shape[dim] // 2
    if x.shape[dim] != 2 * half:
        return NotImplemented  # which is refused
    return x.narrow(dim, 0, half) * x.narrow(dim, half, half).sigmoid()


def _of_tangents(rule: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        # there (values are looked up for a read) PyTorch can take no dual tensor apart
        is_below_views = torch._C._dispatch_tls_is_dispatch_key_excluded(_Key.ADInplaceOrView)
        return NotImplemented if forward_ad._current_level < 0 or is_below_views else rule(*args, **kwargs)

    return call


def _install(op: Any, key: Any, rule: Callable[..., Any]) -> None:
    """Let a rule come before what stands there: a formula of PyTorch's, or C++."""
    own = op.py_kernels.pop(key, None) or functools.partial(op._op_dk, key)

    def call(*args: Any, **kwargs: Any) -> Any:
        if sizes_are_symbols():
            with torch._C.DisableTorchFunction():
                out = rule(*args, **kwargs)
            if out is not NotImplemented:
                return out
        return own(*args, **kwargs)

    op.py_impl(key)(call)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Any:
    """Of sequences, as at any level of torch.func: one product of all rows."""
    if bias is None or x.dim() != 3 or not known_contiguous(x.shape, x.stride()):
        return NotImplemented
    out = torch.addmm(bias, x.view(-1, x.shape[2]), weight.t())
    return out.view(x.shape[0], x.shape[1], out.shape[1])


_TO_TYPE = _prims_common.dtype_to_type_ctor


_FORMULAS: dict[Any, Callable[..., Any]] = {
    _aten.cat.default: _joined(torch.cat),
    _aten.stack.default: _joined(torch.stack),
    _aten.native_layer_norm.default: _layer_norm,
    _aten.native_group_norm.default: _group_norm,
    **{
        op: _batch_norm(op)
        for op in (
            _aten._native_batch_norm_legit.default,
            _aten._native_batch_norm_legit.no_stats,
            _aten._native_batch_norm_legit_no_training.default,
        )
    },
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.glu.default: _glu,
}


def _to_type(dtype: torch.dtype) -> Callable[[Any], Any]:
    """What makes a number that an operator is given one of its dtype, where PyTorch infers what it makes: a symbol
    stays one beside complex numbers, too. ``complex`` would fix it."""
    own = _TO_TYPE(dtype)
    if not dtype.is_complex:
        return own
    symbols = torch.SymInt, torch.SymFloat
    return lambda value: value if isinstance(value, symbols) and sizes_are_symbols() else own(value)


@functools.cache
def install() -> None:
    """Let the Python dispatcher find them, from the first trace on in which sizes are symbols."""
    _prims_common.dtype_to_type_ctor = _to_type
    for op, rule in _FORMULAS.items():
        _install(op, _Key.Autograd, _of_tangents(rule))
    _install(_aten.linear.default, _Key.FuncTorchDynamicLayerFrontMode, _linear)
    for op, rule in COMPOSITES.items():
        for key in keys_of(op):
            _install(op, key, rule)
    for op, rule in OF_BATCHES.items():
        _install(op, _Key.FuncTorchBatched, of_batches(rule))
