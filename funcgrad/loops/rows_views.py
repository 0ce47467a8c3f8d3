"""Rows of the op table: tensors made from numbers, and other looks at a tensor."""

from __future__ import annotations

from functools import partial
from typing import Any

from .rows import TABLE, TAKES_SCALARS, aten, begin, fits, plain, row
from .values import (
    Scalar,
    Value,
    cast,
    compare,
    count,
    expand,
    flip,
    held,
    look,
    narrow,
    number,
    own_index,
    permute,
    reshape,
    select,
    where,
    zeros,
)

# ── making ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _filled(value: Any, out: Any) -> Any:
    if isinstance(value, Scalar) and not fits(value, out.dtype):
        return NotImplemented
    if isinstance(value, Value):
        return expand(cast(value, out.dtype), tuple(out.shape)) if not value.shape else NotImplemented
    if not fits(value, out.dtype):
        return NotImplemented
    return number(plain(value, out.dtype), out.dtype, tuple(out.shape))


TABLE |= {
    aten.full.default: lambda size, value, *, out, **_: _filled(value, out),
    aten.full_like.default: lambda x, value, *, out, **_: _filled(value, out),
    aten.new_full.default: lambda x, size, value, *, out, **_: _filled(value, out),
    aten.fill.Scalar: lambda x, value, *, out: _filled(value, out),
    aten.scalar_tensor.default: lambda value, *, out, **_: _filled(value, out),
    aten.clone.default: lambda x, *, out, **_: x,
    aten._to_copy.default: lambda x, *, out, **_: cast(held(x), out.dtype),
    aten.copy.default: lambda x, y, non_blocking=False, *, out: expand(cast(y, out.dtype), tuple(out.shape)),
    aten.lift_fresh_copy.default: lambda x, *, out: x,
}
TAKES_SCALARS |= {
    aten.full.default, aten.full_like.default, aten.new_full.default, aten.fill.Scalar, aten.scalar_tensor.default,
    aten._to_copy.default,
}  # fmt: skip
for _name, _value in (("zeros", 0), ("ones", 1)):
    for _op in (getattr(aten, _name), getattr(aten, f"{_name}_like"), getattr(aten, f"new_{_name}")):
        TABLE[_op.default] = lambda *args, out, _value=_value, **_: _filled(_value, out)
TABLE[aten._new_zeros_with_same_feature_meta.default] = lambda like, primal, *, out, **_: _filled(0, out)


@row(aten.arange.start_step, aten.arange.start, aten.arange.default)
def _arange(*args: Any, out: Any, **_: Any) -> Any:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) == 3 else 1)
    if not all(isinstance(a, int) for a in args):
        return NotImplemented
    i = count(tuple(out.shape), 0)
    return cast(i * step + start if (start, step) != (0, 1) else i, out.dtype)


@row(aten.eye.default, aten.eye.m)
def _eye(*args: Any, out: Any, **_: Any) -> Any:
    return cast(compare("eq", count(tuple(out.shape), 0), count(tuple(out.shape), 1)), out.dtype)


def _triangle(op: str, x: Value, diagonal: int = 0, *, out: Any) -> Any:
    n = len(x.shape)
    return where(compare(op, count(x.shape, n - 1) - count(x.shape, n - 2), diagonal), x, zeros((), x.dtype))


TABLE[aten.tril.default] = partial(_triangle, "le")
TABLE[aten.triu.default] = partial(_triangle, "ge")

# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _slice(x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1, *, out: Any) -> Value:
    return narrow(x, dim, begin(x.shape[dim], start), out.shape[dim], step)


def _split(x: Value, sizes: Any, dim: int = 0, *, out: Any) -> tuple[Value, ...]:
    starts = [sum(o.shape[dim] for o in out[:i]) for i in range(len(out))]
    return tuple(narrow(x, dim, start, o.shape[dim]) for start, o in zip(starts, out, strict=True))


def _diagonal(x: Value, offset: int = 0, dim1: int = 0, dim2: int = 1, *, out: Any) -> Value:
    rank = len(x.shape)
    dim1, dim2 = dim1 % rank, dim2 % rank
    own = own_index(tuple(out.shape))
    rest = iter(own[:-1])
    at = {dim1: own[-1] + max(0, -offset), dim2: own[-1] + max(0, offset)}
    return look(x, tuple(out.shape), [at[d] if d in at else next(rest) for d in range(rank)])


# no kernel is needed where the memory is there
TABLE |= dict.fromkeys(
    (
        aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.unsqueeze.default,
        aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
    ),
    lambda x, *_, out: reshape(x, tuple(out.shape)),
)  # fmt: skip
TABLE |= dict.fromkeys((aten.alias.default, aten.detach.default, aten.lift_fresh.default), lambda x, *, out: x)
TABLE |= {
    aten.permute.default: lambda x, dims, *, out: permute(x, dims),
    aten.t.default: lambda x, *, out: permute(x, range(len(x.shape))[::-1]),
    aten.transpose.int: lambda x, a, b, *, out: _transpose(x, a, b),
    aten.expand.default: lambda x, shape, *, out, implicit=False: expand(x, tuple(out.shape)),
    aten.slice.Tensor: _slice,
    aten.select.int: lambda x, dim, at, *, out: select(x, dim, at),
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unbind.int: lambda x, dim=0, *, out: tuple(select(x, dim, i) for i in range(len(out))),
    aten.diagonal.default: _diagonal,
}
for _name, _overload in (  # the same, in memory of its own
    ("alias", "default"), ("diagonal", "default"), ("expand", "default"), ("permute", "default"), ("select", "int"),
    ("slice", "Tensor"), ("split", "Tensor"), ("split_with_sizes", "default"), ("t", "default"), ("transpose", "int"),
    ("unbind", "int"), ("unsqueeze", "default"), ("view", "default"),
):  # fmt: skip
    TABLE[getattr(getattr(aten, f"{_name}_copy"), _overload)] = TABLE[getattr(getattr(aten, _name), _overload)]
TABLE[aten.flip.default] = lambda x, dims, *, out: flip(x, dims) if x.shape else x


def _transpose(x: Value, a: int, b: int) -> Value:
    if not x.shape:
        return x
    dims = list(range(len(x.shape)))
    dims[a], dims[b] = dims[b], dims[a]
    return permute(x, dims)


@row(aten.select_backward.default)
def _select_backward(g: Value, shape: Any, dim: int, at: int, *, out: Any) -> Any:
    shape = tuple(out.shape)
    dim %= len(shape)
    here = compare("eq", count(shape, dim), at % shape[dim])
    wide = reshape(g, tuple(1 if d == dim else n for d, n in enumerate(shape)))
    return where(here, expand(wide, shape), zeros((), out.dtype))
