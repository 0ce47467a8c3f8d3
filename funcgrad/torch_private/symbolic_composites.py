"""Functions that PyTorch composes of others in C++ for sizes that are numbers: the same where sizes are symbols."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

_aten: Any = torch.ops.aten


def _take_along_dim(x: Tensor, indices: Tensor, dim: int | None = None) -> Any:
    if indices.dtype != torch.int64:
        return NotImplemented  # which is refused
    if dim is None:
        return x.view(-1).gather(0, indices.view(-1))
    if indices.dim() != x.dim() or not -x.dim() <= dim < x.dim():
        return NotImplemented
    common: Any = torch.broadcast_shapes
    places, sizes = common(_resized(x, dim, indices), indices.shape), common(_resized(indices, dim, x), x.shape)
    return x.broadcast_to(sizes).gather(dim, indices.broadcast_to(places))


def _resized(x: Tensor, dim: int, like: Tensor) -> list[Any]:
    sizes: list[Any] = list(x.shape)
    sizes[dim] = like.shape[dim]
    return sizes


def _cov(x: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Any:
    """Of observations without weights."""
    if fweights is not None or aweights is not None or x.dim() > 2 or x.dtype == torch.bool:
        return NotImplemented
    x = x if x.dim() == 2 else x.view(1, -1)
    n = x.shape[1]
    if n <= correction:
        return NotImplemented  # which is warned about

    def number(value: Any) -> Tensor:
        return x.new_full((), value, dtype=torch.int64)

    centred = x - (x.sum(1) / number(n)).unsqueeze(1)
    return (centred @ centred.t().conj() / number(n - correction)).squeeze()


def _corrcoef(x: Tensor) -> Any:
    if x.dim() > 2 or x.dtype == torch.bool:
        return NotImplemented
    c = torch.cov(x)
    if c.dim() == 0:
        return c / c
    deviations = c.diag().real.sqrt() if c.is_complex() else c.diag().sqrt()
    c = c / deviations.unsqueeze(1) / deviations
    return torch.complex(c.real.clip(-1, 1), c.imag.clip(-1, 1)) if c.is_complex() else c.clip(-1, 1)


def _kron(a: Tensor, b: Tensor) -> Tensor:
    rank = max(a.dim(), b.dim())
    a, b = (t[(None,) * (rank - t.dim())] for t in (a, b))
    sizes = [m * n for m, n in zip(a.shape, b.shape, strict=True)]
    for i in range(rank):
        a, b = a.unsqueeze(2 * i + 1), b.unsqueeze(2 * i)
    return _aten._unsafe_view.default(a * b, sizes)  # type: ignore[no-any-return]


def _gradient(x: Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> Any:
    """Of points at equal distances."""
    dims = range(x.dim()) if dim is None else [dim] if isinstance(dim, int) else dim
    steps = spacing if isinstance(spacing, (list, tuple)) else [1 if spacing is None else spacing] * len(dims)
    if edge_order != 1 or len(steps) != len(dims) or any(isinstance(v, Tensor) for v in steps):
        return NotImplemented
    if any(not -x.dim() <= d < x.dim() or x.shape[d] < 2 for d in dims) or len({d % x.dim() for d in dims}) < len(dims):
        return NotImplemented  # which is refused

    def along(d: int, step: Any) -> Tensor:
        n = x.shape[d]
        inner, before, after = (
            (x.narrow(d, to, length) - x.narrow(d, start, length)) / step
            for start, to, length in ((0, 2, n - 2), (0, 1, 1), (n - 2, n - 1, 1))
        )
        return torch.cat([before, inner / 2, after], d)

    return [along(d, step) for d, step in zip(dims, steps, strict=True)]


def _multi_dot(tensors: Sequence[Tensor]) -> Any:
    """In the order that takes the fewest multiplications."""
    ranks = [t.dim() for t in tensors]
    if len(tensors) < 2 or any(rank != 2 for rank in ranks[1:-1]) or not {ranks[0], ranks[-1]} <= {1, 2}:
        return NotImplemented  # which is refused
    rows = tensors[0] if ranks[0] == 2 else tensors[0].unsqueeze(0)
    columns = tensors[-1] if ranks[-1] == 2 else tensors[-1].unsqueeze(-1)
    chain = [rows, *tensors[1:-1], columns]
    sizes = [rows.shape[0], *(t.shape[1] for t in chain)]
    found = _product(chain, _order(sizes))
    return found.view([n for n, rank in ((sizes[0], ranks[0]), (sizes[-1], ranks[-1])) if rank == 2])


def _order(sizes: Sequence[Any]) -> Callable[[int, int], int]:
    """After which matrix to part a chain, from one to another one."""
    n = len(sizes) - 1
    if n == 3:  # as PyTorch decides between equal ones
        a, b, c, d = sizes
        first = 0 if (a * c) * (b + d) > (b * d) * (a + c) else 1
        return lambda i, j: first if (i, j) == (0, 2) else i
    costs: dict[tuple[int, int], Any] = {(i, i): 0 for i in range(n)}
    parts: dict[tuple[int, int], int] = {}
    for length in range(1, n):
        for i in range(n - length):
            j = i + length
            for k in range(i, j):
                cost = costs[i, k] + costs[k + 1, j] + sizes[i] * sizes[k + 1] * sizes[j + 1]
                if k == i or cost < costs[i, j]:
                    costs[i, j], parts[i, j] = cost, k
    return lambda i, j: parts[i, j]


def _product(chain: Sequence[Tensor], part: Callable[[int, int], int]) -> Tensor:
    def product(i: int, j: int) -> Tensor:
        return chain[i] if i == j else product(i, part(i, j)).mm(product(part(i, j) + 1, j))

    return product(0, len(chain) - 1)


def _block_diag(tensors: Sequence[Tensor]) -> Any:
    if any(t.dim() > 2 for t in tensors) or len({t.device for t in tensors}) > 1:
        return NotImplemented  # which is refused
    blocks = [t.view(1, -1) if t.dim() < 2 else t for t in tensors]
    dtype = functools.reduce(torch.promote_types, [t.dtype for t in tensors])
    before, rows, width = 0, [], sum(t.shape[1] for t in blocks)
    for block in blocks:
        after = width - before - block.shape[1]
        rows.append(functional.pad(block.to(dtype), (before, after)))
        before = before + block.shape[1]
    return torch.cat(rows)


def _cumprod_backward(gradient: Tensor, x: Tensor, dim: int, product: Tensor) -> Tensor:
    """At each place of the product of all others up to one that is not before it."""
    if x.dim() == 0:
        return gradient
    dim %= x.dim()
    pairs = (-1, x.shape[dim], *[1] * (x.dim() - dim - 1))
    own = torch.eye(x.shape[dim], dtype=torch.bool, device=x.device).view(pairs)
    before = torch.ones(x.shape[dim], x.shape[dim], dtype=torch.bool, device=x.device).tril(-1).view(pairs)
    others = x.conj().unsqueeze(dim).masked_fill(own, 1).cumprod(dim + 1)
    return (gradient.unsqueeze(dim) * others).masked_fill(before, 0).sum(dim + 1)


def _sgn(x: Tensor) -> Any:
    """Which the derivative of ``abs`` is, and has none of its own that knows symbols."""
    return NotImplemented if x.is_complex() else torch.sign(x)


def _upsampled(is_vector: bool, formula: str, whole: Sequence[int]) -> Callable[..., Any]:
    """By PyTorch's formula. Where a result is ``whole`` times as large, its C++ takes each element by its place,
    whatever the factor was that the size was rounded from."""

    def rule(x: Tensor, sizes: Any, *given: Any, **named: Any) -> Any:
        formulas = importlib.import_module("torch._decomp.decompositions")  # seen in 2.11, 2.13
        n = int("linear" in formula)
        align_corners, scales = given[:n], given[n] if is_vector else given[n:]
        if named or not scales or True in align_corners:
            return NotImplemented
        scales = *scales, *[None] * (x.dim() - 2 - len(scales))
        if is_vector:
            sizes = formulas.upsample_compute_output_size(x.shape, None, scales)
        known = zip(x.shape[2:], sizes, scales, strict=True)
        scales = [None if any(size == times * n for times in whole) else scale for n, size, scale in known]
        return getattr(formulas, formula)(x, sizes, *align_corners, scales)

    return rule


_UPSAMPLING = {
    _aten.upsample_nearest2d: ("_upsample_nearest", (1, 2)),
    _aten.upsample_linear1d: ("_upsample_linear", (1,)),
    _aten.upsample_bilinear2d: ("_upsample_linear", (1,)),
    _aten.upsample_trilinear3d: ("_upsample_linear", (1,)),
}


def _multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> Any:
    """In C++. PyTorch's formula compares what comes after the first -1, too, as if it were label 0."""
    op = _aten.multilabel_margin_loss_forward.default
    return op._op_dk(torch._C.DispatchKey.Autograd, x, target, reduction)


COMPOSITES: dict[Any, Callable[..., Any]] = {
    _aten.take_along_dim.default: _take_along_dim,
    _aten.cov.default: _cov,
    _aten.corrcoef.default: _corrcoef,
    _aten.kron.default: _kron,
    **{getattr(_aten.gradient, name): _gradient for name in _aten.gradient.overloads() if "tensor" not in name},
    _aten.linalg_multi_dot.default: _multi_dot,
    _aten.block_diag.default: _block_diag,
    _aten.cumprod_backward.default: _cumprod_backward,
    _aten.sgn.default: _sgn,
    **{op.vec: _upsampled(True, *how) for op, how in _UPSAMPLING.items()},
    **{op.default: _upsampled(False, *how) for op, how in _UPSAMPLING.items()},
    _aten.multilabel_margin_loss_forward.default: _multilabel_margin_loss,
}


def keys_of(op: Any) -> Sequence[Any]:
    """Where such a rule stands: at any level of torch.func, and where an operator is composed of others, or is a node
    of autograd; wherever PyTorch has a formula."""
    key = torch._C.DispatchKey
    composed = torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "CompositeImplicitAutograd")
    own = {key.CompositeImplicitAutograd if composed else key.Autograd}
    return key.FuncTorchDynamicLayerFrontMode, *(
        own | {key.CompositeImplicitAutograd, key.Autograd} & set(op.py_kernels)
    )
