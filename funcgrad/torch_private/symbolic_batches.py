"""Batching rules that PyTorch does not have, or has in C++ for sizes that are numbers: the same where sizes are
symbols."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from .symbols import known_contiguous

_aten: Any = torch.ops.aten
_functorch: Any = torch._C._functorch
_BATCHED = torch._C.DispatchKeySet(torch._C.DispatchKey.FuncTorchBatched)

Rule = Callable[..., Any]

# ── below a level ────────────────────────────────────────────────────────────────────────────────────────────────────


def _is_batched(value: Any) -> bool:
    """Whether a tensor is one of the level of ``vmap`` that runs."""
    if not isinstance(value, Tensor) or not _functorch.is_batchedtensor(value):
        return False
    return bool(_functorch.maybe_get_level(value) == _functorch.peek_interpreter_stack().level())


def of_batches(rule: Rule) -> Rule:
    """The rule where a tensor is of the level that runs."""

    def call(*args: Any, **kwargs: Any) -> Any:
        given = [v for a in (*args, *kwargs.values()) for v in (a if isinstance(a, (list, tuple)) else [a])]
        return rule(*args, **kwargs) if any(map(_is_batched, given)) else NotImplemented

    return call


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


def _below_batches(run: Callable[[], Any], dim: int = 0) -> Any:
    """What is computed below the level of ``vmap`` that runs, as tensors of that level."""
    with torch._C._ExcludeDispatchKeyGuard(_BATCHED):
        return _at_level(run(), dim)


def _at_level(found: Any, dim: int) -> Any:
    """Of its results, what are tensors."""
    level = _functorch.peek_interpreter_stack().level()

    def wrap(value: Any) -> Any:
        return _functorch._add_batch_dim(value, dim, level) if isinstance(value, Tensor) else value

    return tuple(map(wrap, found)) if isinstance(found, (list, tuple)) else wrap(found)


def _with_tensors(given: Sequence[Any], change: Callable[[list[Tensor]], list[Tensor]]) -> list[Any]:
    """Arguments, their tensors changed."""
    changed = iter(change([v for v in given if isinstance(v, Tensor)]))
    return [next(changed) if isinstance(v, Tensor) else v for v in given]


# ── rules ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _in_front(op: Any) -> Rule:
    """Of an operator that takes any dimensions before its own; its tensors have as many dimensions."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        if len({t.dim() for t in args if isinstance(t, Tensor)}) > 1:
            return NotImplemented
        return _below_batches(lambda: op(*_with_tensors(args, _each_batched), **kwargs))

    return rule


def _along(op: Any) -> Rule:
    """Of an operator of tensors of one rank, and of a dimension (``scatter``, ``gather``)."""

    def rule(x: Tensor, dim: int, *given: Any, **options: Any) -> Any:
        if x.dim() == 0 or any(t.dim() != x.dim() for t in given if isinstance(t, Tensor)):
            return NotImplemented

        def run() -> Any:
            own, *others = _with_tensors([x, *given], _each_batched)
            return op(own, dim % x.dim() + 1, *others, **options)

        return _below_batches(run)

    return rule


def _of_look(op: Any, *dims: int) -> Rule:
    """Of the gradient of a look: where in its arguments, behind the sizes, dimensions stand."""

    def rule(gradient: Tensor, sizes: Sequence[Any], *given: Any) -> Any:
        def run() -> Any:
            (own,), _, n = _taken_out([gradient])
            return op(own, [n, *sizes], *(v % len(sizes) + 1 if i in dims else v for i, v in enumerate(given)))

        return _below_batches(run)

    return rule


def _folded(op: Any, rank: int, sized: int | None = None) -> Rule:
    """Of an operator of images, or other batches of ``rank`` dimensions: samples among the batch, or as it, where
    there is none. ``sized``: where in the arguments the sizes of the input stand."""

    def rule(x: Tensor, *given: Any, **options: Any) -> Any:
        if x.dim() not in (rank - 1, rank):
            return NotImplemented
        batch = x.shape[0]

        def run() -> Any:
            n = _taken_out([t for t in (x, *given, *options.values()) if isinstance(t, Tensor)])[2]
            folds = x.dim() == rank

            def fold(tensors: list[Tensor]) -> list[Tensor]:
                return [t.flatten(0, 1) if folds else t for t in _each_batched(tensors)]

            every = _with_tensors([x, *given, *options.values()], fold)
            args, named = every[: 1 + len(given)], dict(zip(options, every[1 + len(given) :], strict=True))
            if sized is not None:
                args[sized] = [n * batch, *args[sized][1:]] if folds else [n, *args[sized]]
            found = op(*args, **named)
            if not folds:
                return found
            parts = found if isinstance(found, tuple) else (found,)
            unfolded = [_aten.unflatten.int(t, 0, (n, batch)) if isinstance(t, Tensor) else t for t in parts]
            return unfolded if isinstance(found, tuple) else unfolded[0]

        return _below_batches(run)

    return rule


def _attention(op: Any) -> Rule:
    """Samples among the batch, each with its mask."""
    folded = _folded(op, 4)

    def rule(x: Tensor, *given: Any, attn_mask: Tensor | None = None, **options: Any) -> Any:
        if attn_mask is not None:
            attn_mask = attn_mask[(None,) * (4 - attn_mask.dim())].expand(given[0].shape[0], -1, -1, -1)
        return folded(x, *given, attn_mask=attn_mask, **options)

    return rule


def _grid_sampler(op: Any, rank: int) -> Rule:
    """Images of samples as channels, or grids one below the other, where the other is in common."""
    folded = _folded(op, rank)

    def rule(x: Tensor, grid: Tensor, *how: Any) -> Any:
        if _is_batched(x) == _is_batched(grid):
            return folded(x, grid, *how)
        of_images = _is_batched(x)

        def run() -> Any:
            (images, at), _, n = _taken_out([x, grid])
            if of_images:
                return op(_beside(images), at, *how).unflatten(1, (n, x.shape[1]))
            return op(images, _beside(at), *how).unflatten(2, (n, grid.shape[1]))

        return _below_batches(run, 1 if of_images else 2)

    return rule


def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    ranks = {t.dim() for t in tensors}
    if len(ranks) > 1 or 0 in ranks:  # which are refused, or skipped where they are empty
        return NotImplemented
    (rank,) = ranks
    return _below_batches(lambda: torch.cat(_each_batched(tensors), dim % rank + 1))


def _beside(tensor: Tensor) -> Tensor:
    """Channels of samples beside one another."""
    return tensor.movedim(0, 1).flatten(1, 2)


def _convolution(x: Tensor, weight: Tensor, bias: Tensor | None, *how: Any) -> Any:
    """Samples among the batch of the convolution, where they have the weights in common; else beside one another, as
    groups."""
    *kind, groups = how
    op, channels = _aten.convolution.default, weight.shape[1] * groups if kind[3] else weight.shape[0]
    if not _is_batched(weight) and not _is_batched(bias):
        return _folded(lambda own: op(own, weight, bias, *how), x.dim())(x)

    def run() -> Any:
        if not _is_batched(x) and groups == 1 and not kind[3]:
            (own, weights), _, n = _taken_out([x, weight])
            found = op(own, weights.flatten(0, 1), None, *how)
        else:
            own, weights = _each_batched([x, weight])
            n = own.shape[0]
            found = op(_beside(own), weights.flatten(0, 1), None, *kind, groups * n)
        return found.unflatten(1, (n, channels))

    out = _below_batches(run, 1) if _is_batched(weight) else _convolution(x, weight, None, *how)
    return out if bias is None else out + bias.view([-1] + [1] * (x.dim() - 2))


def _convolution_backward(gradient: Tensor, x: Tensor, weight: Tensor, of_bias: Any, *how: Any) -> Any:
    """In the same ways: where the weights are in common, for the gradient of the input."""
    *kind, groups, (of_input, of_weight, of_bias) = how
    op = _aten.convolution_backward.default
    in_common = of_input and not _is_batched(weight)

    def run() -> list[Any]:
        each, is_asked = _each_batched([gradient, x, weight]), [of_input and not in_common, of_weight, False]
        n, weights = each[0].shape[0], each[2].flatten(0, 1)
        found = op(_beside(each[0]), _beside(each[1]), weights, None, *kind, groups * n, is_asked)
        samples = None if found[0] is None else found[0].unflatten(1, (n, x.shape[1])).movedim(1, 0)
        return [samples, None if found[1] is None else found[1].unflatten(0, (n, weight.shape[0]))]

    found = _below_batches(run) if of_weight or not in_common else (None, None)
    if in_common:
        folded = _folded(lambda *own: op(*own, weight, None, *kind, groups, [True, False, False])[0], x.dim())
        found = folded(gradient, x), found[1]
    dims = [0, *range(2, gradient.dim())]
    return *found, gradient.sum(dims) if of_bias else None


def _embedding(weight: Tensor, indices: Tensor, *how: Any) -> Any:
    """Weights of samples beside one another, where they have the indices in common."""
    of_weight, of_indices = _is_batched(weight), _is_batched(indices)

    def run() -> Any:
        found, _, n = _taken_out([weight, indices])
        own, at = found
        if not of_weight:
            return _aten.embedding.default(own, at, *how)
        if not of_indices:
            wide = own.transpose(0, 1).flatten(1)
            return _aten.embedding.default(wide, at, *how).unflatten(-1, (n, weight.shape[1]))
        return _aten.embedding.default(own.flatten(0, 1), _of_tables(at, weight.shape[0]), *how)

    return _below_batches(run, 0 if of_indices else indices.dim())


def _embedding_backward(gradient: Tensor, indices: Tensor, size: Any, padding: Any, by_frequency: bool) -> Any:
    """In the same way."""
    op, in_common = _aten.embedding_dense_backward.default, not _is_batched(indices)

    def run() -> Any:
        if in_common:
            (own,), _, n = _taken_out([gradient])
            wide = own.movedim(0, -2).flatten(-2)
            return op(wide, indices, size, padding, by_frequency).unflatten(-1, (n, gradient.shape[-1]))
        own, at = _each_batched([gradient, indices])
        n = own.shape[0]
        found = op(own, _of_tables(at, size), n * size, -1, by_frequency).unflatten(0, (n, size))
        return found.select_scatter(found.new_zeros(()).expand(n, own.shape[-1]), 1, padding) if padding >= 0 else found

    return _below_batches(run, 1 if in_common else 0)


def _of_tables(indices: Tensor, size: Any) -> Tensor:
    """Indices into the tables of samples, one below the other."""
    first: Tensor = torch.arange(indices.shape[0], dtype=indices.dtype, device=indices.device) * size
    return indices + first.view(-1, *[1] * (indices.dim() - 1))


def _batch_norm(op: Any) -> Rule:
    """Channels of samples beside one another, and weights after."""

    def rule(x: Tensor, weight: Tensor | None, bias: Tensor | None, *given: Any) -> Any:
        running = [r for r in given[:2] if isinstance(r, Tensor)]
        channels = x.shape[1]
        if running and given[2] is True and not all(map(_is_batched, running)):
            return NotImplemented  # which is refused: they are written to

        def run() -> Any:
            own, *statistics = _each_batched([x, *running])
            n = own.shape[0]
            flat = [s.flatten() for s in statistics]
            out, mean, rstd = op(_beside(own), None, None, *flat, *given[len(flat) :])
            per_sample = [s.unflatten(0, (n, channels)) if s.numel() else s.expand(n, 0) for s in (mean, rstd)]
            return out.unflatten(1, (n, channels)).movedim(1, 0), *per_sample

        out, mean, rstd = _below_batches(run)
        wide = [-1] + [1] * (x.dim() - 2)
        out = out if weight is None else out * weight.view(wide)
        return out if bias is None else out + bias.view(wide), mean, rstd

    return rule


def _batch_norm_backward(gradient: Tensor, x: Tensor, weight: Tensor | None, *given: Any) -> Any:
    """In the same way for the gradient of the input."""
    *statistics, trains, eps, (of_input, of_weight, of_bias) = given
    op, channels = _aten.native_batch_norm_backward.default, x.shape[1]

    def run() -> Any:
        weighted = gradient if weight is None else gradient * weight.view([-1] + [1] * (x.dim() - 2))
        own, inputs, *others = _with_tensors([weighted, x, *statistics], _each_batched)
        flat = [None if t is None else t.flatten() for t in others]
        with torch._C._ExcludeDispatchKeyGuard(_BATCHED):
            found = op(_beside(own), _beside(inputs), None, *flat, trains, eps, [True, False, False])[0]
            return found.unflatten(1, (own.shape[0], channels))

    of_weights = decomposition_table[op](gradient, x, weight, *statistics, trains, eps, [False, of_weight, of_bias])
    return (_at_level(run(), 1) if of_input else None), *of_weights[1:]


def _new_empty_strided(x: Tensor, size: Sequence[Any], stride: Sequence[Any], **kind: Any) -> Any:
    """One sample behind the other."""
    if any(type(s) is int and s == 0 for s in size):
        return NotImplemented
    extent: Any = 1 + sum((s - 1) * step for s, step in zip(size, stride, strict=True))

    def run() -> Any:
        (own,), _, n = _taken_out([x])
        return _aten.new_empty_strided.default(own, [n, *size], [extent, *stride], **kind)

    return _below_batches(run)


def _as_strided(x: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None) -> Any:
    """Of samples that lie one behind the other."""
    own = _taken_out([x])[0][0]
    if not known_contiguous(own.shape, own.stride()):
        return NotImplemented
    sizes, strides = [own.shape[0], *size], [own.stride(0), *stride]
    return _below_batches(lambda: _aten.as_strided.default(own, sizes, strides, offset))


def _diagonal_scatter(x: Tensor, diagonal: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    dims = dim1 % x.dim() + 1, dim2 % x.dim() + 1
    return _below_batches(lambda: _aten.diagonal_scatter.default(*_each_batched([x, diagonal]), offset, *dims))


def _select_scatter(x: Tensor, selected: Tensor, dim: int, index: Any) -> Any:
    return _below_batches(lambda: _aten.select_scatter.default(*_each_batched([x, selected]), dim % x.dim() + 1, index))


def _put(x: Tensor, indices: Tensor, values: Tensor, accumulate: bool = False) -> Any:
    """Into each sample as one row."""
    rows = [t.reshape(-1) for t in (x, indices, values)]

    def run() -> Any:
        own, at, given = _each_batched(rows)
        at = torch.where(at < 0, at + own.shape[1], at)
        return own.scatter_add(1, at, given) if accumulate else own.scatter(1, at, given)

    return _below_batches(run).view(x.shape)


def _cross(a: Tensor, b: Tensor, *, dim: int = -1) -> Any:
    return _in_front(_aten.linalg_cross.default)(a, b, dim=dim if dim < 0 else dim + 1)


_IMAGES = {
    "avg_pool2d": 4, "avg_pool3d": 5, "max_pool2d_with_indices": 4, "max_pool3d_with_indices": 5,
    "_adaptive_avg_pool2d": 4, "_adaptive_avg_pool3d": 5, "adaptive_max_pool2d": 4, "adaptive_max_pool3d": 5,
    "im2col": 4, "col2im": 3,
    **{f"{how}_pad{n}d": n + 2 for how in ("reflection", "replication") for n in (1, 2, 3)},
}  # fmt: skip
_RESIZED = {
    **{f"{how}{n}d": n + 2 for how in ("upsample_nearest", "_upsample_nearest_exact") for n in (1, 2, 3)},
    "upsample_linear1d": 3, "upsample_bilinear2d": 4, "upsample_bicubic2d": 4, "upsample_trilinear3d": 5,
    "_upsample_bilinear2d_aa": 4, "_upsample_bicubic2d_aa": 4,
}  # fmt: skip
_DECOMPOSED = (
    "native_layer_norm", "native_layer_norm_backward", "native_group_norm", "native_group_norm_backward",
    "gelu_backward", "glu_backward", "index_add", "take", "renorm",
)  # fmt: skip
_OF_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"


def _overload(name: str) -> Any:
    return getattr(_aten, name).default


def _with_gradients(images: dict[str, int], sized: int | None = None) -> dict[Any, Rule]:
    """Of operators of images, and of their gradients, which are told sizes behind two others."""
    rules = {_overload(name): _folded(_overload(name), rank) for name, rank in images.items()}
    gradients = {f"{name}_backward": rank for name, rank in images.items() if hasattr(_aten, f"{name}_backward")}
    return rules | {_overload(name): _folded(_overload(name), rank, sized) for name, rank in gradients.items()}


OF_BATCHES: dict[Any, Rule] = {
    **{_overload(name): decomposition_table[_overload(name)] for name in _DECOMPOSED},
    **{
        op: op.decompose
        for op in (*map(_overload, ("kl_div", "triplet_margin_loss", "quantile")), _aten.quantile.scalar)
    },
    **_with_gradients(_IMAGES),
    **_with_gradients(_RESIZED, 2),
    **{op: _attention(op) for op in (_overload(_OF_ATTENTION), _overload(f"{_OF_ATTENTION}_backward"))},
    **{op: _in_front(op) for op in map(_overload, ("pixel_shuffle", "pixel_unshuffle", "_linalg_solve_ex"))},
    **{op: _along(op) for op in (_aten.gather.default, _aten.scatter.src, _aten.scatter.value)},
    **{op: _along(op) for op in (_aten.scatter_add.default, _aten.scatter_reduce.two)},
    **{
        op: _batch_norm(op)
        for op in (
            *map(_overload, ("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training")),
            _aten._native_batch_norm_legit.no_stats,
        )
    },
    **{_overload(f"grid_sampler_{n}d"): _grid_sampler(_overload(f"grid_sampler_{n}d"), n + 2) for n in (2, 3)},
    **{
        _overload(f"grid_sampler_{n}d_backward"): _folded(_overload(f"grid_sampler_{n}d_backward"), n + 2)
        for n in (2, 3)
    },
    _aten.slice_backward.default: _of_look(_aten.slice_backward.default, 0),
    _aten.unfold_backward.default: _of_look(_aten.unfold_backward.default, 0),
    _aten.diagonal_backward.default: _of_look(_aten.diagonal_backward.default, 1, 2),
    _aten.diagonal_scatter.default: _diagonal_scatter,
    _aten.select_scatter.default: _select_scatter,
    _aten.put.default: _put,
    _aten.put_.default: lambda x, *given: x.copy_(torch.put(x, *given)),
    _aten.native_batch_norm_backward.default: _batch_norm_backward,
    _aten.cat.default: _cat,
    _aten.embedding.default: _embedding,
    _aten.embedding_dense_backward.default: _embedding_backward,
    _aten.linalg_cross.default: _cross,
    _aten.convolution.default: _convolution,
    _aten.convolution_backward.default: _convolution_backward,
    _aten.new_empty_strided.default: _new_empty_strided,
    _aten.as_strided.default: _as_strided,
    _aten.lerp_.Tensor: lambda x, end, weight: x.copy_(torch.lerp(x, end, weight)),
}
