"""Formulas of forward mode, and batching rules, that PyTorch has in C++ for sizes that are numbers: the same where
sizes are symbols.

The Python dispatcher, which runs where sizes are symbols, takes these first. Wherever else it runs, they go on to
PyTorch's own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp.decompositions import native_layer_norm_backward
from torch.autograd import forward_ad

from .symbols import sizes_are_symbols

_aten: Any = torch.ops.aten
_functorch: Any = torch._C._functorch
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


def _is_batched(value: Any) -> bool:
    """Whether a tensor is one of the level of ``vmap`` that runs."""
    if not isinstance(value, Tensor) or not _functorch.is_batchedtensor(value):
        return False
    return bool(_functorch.maybe_get_level(value) == _functorch.peek_interpreter_stack().level())


def _taken_out(tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[bool], Any]:
    """Tensors without the wrapper of the level of ``vmap`` that runs, whose dimension is the first; which of them had
    one, and how many samples there are."""
    are_batched = list(map(_is_batched, tensors))
    found = [
        _functorch.get_unwrapped(t).movedim(_functorch.maybe_get_bdim(t), 0) if batched else t
        for t, batched in zip(tensors, are_batched, strict=True)
    ]
    return found, are_batched, found[are_batched.index(True)].shape[0]


def _each_batched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """The same, the others expanded."""
    found, are_batched, n = _taken_out(tensors)
    return [t if batched else t.expand(n, *t.shape) for t, batched in zip(found, are_batched, strict=True)]


def _cat_of_batches(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    ranks = {t.dim() for t in tensors}
    if len(ranks) > 1 or 0 in ranks:  # which are refused, or skipped where they are empty
        return NotImplemented
    (rank,) = ranks
    return _below_batches(lambda: torch.cat(_each_batched(tensors), dim % rank + 1))


def _along(op: Any) -> Callable[..., Any]:
    """The rule of an operator of tensors of one rank, and of a dimension (``scatter``, ``gather``)."""

    def rule(x: Tensor, dim: int, *given: Any, **options: Any) -> Any:
        tensors = [x, *(v for v in given if isinstance(v, Tensor))]
        if any(t.dim() != x.dim() for t in tensors) or x.dim() == 0:
            return NotImplemented

        def run() -> Any:
            own, *others = _each_batched(tensors)
            rest = iter(others)
            values = [next(rest) if isinstance(v, Tensor) else v for v in given]
            return op(own, dim % x.dim() + 1, *values, **options)

        return _below_batches(run)

    return rule


def _convolution_of_batches(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Any:
    """Samples among the batch of the convolution, where they have the weights in common."""

    def run() -> Any:
        (inputs, *_), are_batched, n = _taken_out([x, weight] if bias is None else [x, weight, bias])
        if any(are_batched[1:]):
            return NotImplemented
        found = _aten.convolution.default(inputs.flatten(0, 1), weight, bias, *how)
        return found.unflatten(0, (n, inputs.shape[1]))

    return _below_batches(run)


def _convolution_backward_of_batches(gradient: Tensor, x: Tensor, weight: Tensor, *given: Any) -> Any:
    """The gradient of the input alone, in the same way."""

    def run() -> Any:
        (of_result, inputs, _), (*known, own_weights), n = _taken_out([gradient, x, weight])
        if own_weights or list(given[-1]) != [True, False, False]:
            return NotImplemented
        both = zip((of_result, inputs), known, strict=True)
        folded = [(t if batched else t.expand(n, *t.shape)).flatten(0, 1) for t, batched in both]
        return _aten.convolution_backward.default(*folded, weight, *given)[0].unflatten(0, (n, x.shape[0]))

    found = _below_batches(run)
    return found if found is NotImplemented else (found, None, None)


def _slice_backward_of_batches(gradient: Tensor, sizes: Sequence[Any], dim: int, *bounds: Any) -> Any:
    def run() -> Any:
        (own,), _, n = _taken_out([gradient])
        return _aten.slice_backward.default(own, [n, *sizes], dim % len(sizes) + 1, *bounds)

    return _below_batches(run)


def _below_batches(run: Callable[[], Any]) -> Any:
    """What is computed below the level of ``vmap`` that runs, as a tensor of that level."""
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_Key.FuncTorchBatched)):
        found = run()
    if found is NotImplemented:
        return found
    return _functorch._add_batch_dim(found, 0, _functorch.peek_interpreter_stack().level())


def _of_batches(rule: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        given = [v for a in args for v in (a if isinstance(a, (list, tuple)) else [a])]
        return rule(*args, **kwargs) if any(map(_is_batched, given)) else NotImplemented

    return call


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
_OF_BATCHES: dict[Any, Callable[..., Any]] = {
    _aten.cat.default: _cat_of_batches,
    _aten.gather.default: _along(_aten.gather.default),
    _aten.scatter.src: _along(_aten.scatter.src),
    _aten.scatter.value: _along(_aten.scatter.value),
    _aten.scatter_add.default: _along(_aten.scatter_add.default),
    _aten.convolution.default: _convolution_of_batches,
    _aten.convolution_backward.default: _convolution_backward_of_batches,
    _aten.native_layer_norm_backward.default: native_layer_norm_backward,
    _aten.slice_backward.default: _slice_backward_of_batches,
}


@functools.cache
def install() -> None:
    """Let the Python dispatcher find them, from the first trace on in which sizes are symbols."""
    for op, rule in _FORMULAS.items():
        _install(op, _Key.Autograd, _of_tangents(rule))
    for op, rule in _OF_BATCHES.items():
        _install(op, _Key.FuncTorchBatched, _of_batches(rule))
