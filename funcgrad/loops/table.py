"""The op table: one row for each ATen operator that becomes loops. Whoever must know something of an operator reads it here.

A row is a function from the operator's arguments (tensors as values) to the value of its result, or ``NotImplemented`` where this
call is better left to the library. An operator without a row runs as ATen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .values import (
    Value,
    cast,
    compare,
    concatenate,
    count,
    expand,
    flip,
    insert,
    look,
    narrow,
    number,
    own_index,
    permute,
    pointwise,
    reduce,
    reshape,
    select,
    where,
    within,
)

aten = torch.ops.aten
Rule = Callable[..., Any]

TABLE: dict[Any, Rule] = {}
"""Operator overload → its row. A row takes the operator's arguments and ``out``, the fake value(s) it returns."""


def _row(*overloads: Any) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        for overload in overloads:
            TABLE[overload] = rule
        return rule

    return add


# ── dtypes ───────────────────────────────────────────────────────────────────────────────────────────────────────

_SMALL = (torch.float16, torch.bfloat16)


def _in(value: Any, dtype: torch.dtype) -> Any:
    """An argument in the dtype an operation computes in; numbers take it on."""
    if isinstance(value, Value):
        return cast(value, dtype)
    return number(float(value) if dtype.is_floating_point else value, dtype)


def _promoted(*args: Any) -> torch.dtype:
    """The dtype PyTorch computes a comparison in."""
    kinds = [torch.empty((1,) * bool(a.shape), dtype=a.dtype) if isinstance(a, Value) else a for a in args]
    result = kinds[0]
    for other in kinds[1:]:
        result = torch.empty((1,) * _rank(result, other), dtype=torch.result_type(result, other))
    return result.dtype  # type: ignore[no-any-return]


def _rank(a: Any, b: Any) -> int:
    return max(getattr(a, "ndim", 0), getattr(b, "ndim", 0))


def _is_arithmetic(dtype: torch.dtype) -> bool:
    return dtype in (torch.float32, torch.float64, *_SMALL, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


# ── pointwise ────────────────────────────────────────────────────────────────────────────────────────────────────


def _elementwise(op: str, floats_only: bool = False) -> Rule:
    def rule(*args: Any, out: Any) -> Any:
        if not (out.dtype.is_floating_point if floats_only else _is_arithmetic(out.dtype)):
            return NotImplemented
        return pointwise(op, *(_in(a, out.dtype) for a in args))

    return rule


for _name in (
    "exp log sin cos tan tanh sigmoid sqrt rsqrt reciprocal erf erfc expm1 log1p log2 log10 exp2 asin acos atan sinh cosh asinh acosh "
    "atanh floor ceil trunc relu neg sign abs"
).split():
    TABLE[getattr(aten, _name).default] = _elementwise(_name, floats_only=_name not in ("relu", "neg", "sign", "abs"))
TABLE[aten.round.default] = _elementwise("round", floats_only=True)
for _name in ("maximum", "minimum", "atan2", "hypot"):
    TABLE[getattr(aten, _name).default] = _elementwise(_name, floats_only=_name in ("atan2", "hypot"))
for _op in (aten.mul.Tensor, aten.mul.Scalar):
    TABLE[_op] = _elementwise("mul")
for _op in (aten.div.Tensor, aten.div.Scalar):
    TABLE[_op] = _elementwise("div", floats_only=True)
for _op in (aten.fmod.Tensor, aten.fmod.Scalar):
    TABLE[_op] = _elementwise("fmod", floats_only=True)
for _op in (aten.remainder.Tensor, aten.remainder.Scalar):
    TABLE[_op] = _elementwise("remainder", floats_only=True)
TABLE[aten.clamp_min.default] = TABLE[aten.clamp_min.Tensor] = _elementwise("maximum")
TABLE[aten.clamp_max.default] = TABLE[aten.clamp_max.Tensor] = _elementwise("minimum")


@_row(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(a: Any, b: Any, alpha: Any = 1, *, out: Any, op: str = "add") -> Any:
    if not _is_arithmetic(out.dtype):
        return NotImplemented
    b = _in(b, out.dtype)
    return pointwise(op, _in(a, out.dtype), b if alpha == 1 else pointwise("mul", b, _in(alpha, out.dtype)))


def _sub(a: Any, b: Any, alpha: Any = 1, *, out: Any) -> Any:
    return _add(a, b, alpha, out=out, op="sub")


TABLE[aten.sub.Tensor] = TABLE[aten.sub.Scalar] = _sub


@_row(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(a: Any, b: Any, alpha: Any = 1, *, out: Any) -> Any:
    return NotImplemented if alpha != 1 else _add(b, a, out=out, op="sub")


@_row(aten.pow.Tensor_Scalar)
def _power(x: Value, exponent: Any, *, out: Any) -> Any:
    if not isinstance(exponent, (int, float)):
        return NotImplemented
    x = cast(x, out.dtype)
    if _is_arithmetic(out.dtype) and exponent in (1, 2, 3):
        return x if exponent == 1 else x * x if exponent == 2 else x * x * x
    if not out.dtype.is_floating_point:
        return NotImplemented
    if exponent == 0:
        return number(1.0, out.dtype, x.shape)
    if exponent in (-1, -2):
        return pointwise("reciprocal", x if exponent == -1 else x * x)
    if exponent in (0.5, -0.5):
        return pointwise("sqrt" if exponent == 0.5 else "rsqrt", x)
    return pointwise("pow", x, float(exponent))


@_row(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _power_of(base: Any, exponent: Value, *, out: Any) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    return pointwise("pow", _in(base, out.dtype), _in(exponent, out.dtype))


def _comparison(op: str) -> Rule:
    def rule(a: Any, b: Any, *, out: Any) -> Any:
        dtype = _promoted(a, b)
        if dtype.is_complex:
            return NotImplemented
        return compare(op, _in(a, dtype), _in(b, dtype))

    return rule


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    TABLE[getattr(aten, _name).Tensor] = TABLE[getattr(aten, _name).Scalar] = _comparison(_name)


@_row(aten.logical_not.default)
def _not(x: Value, *, out: Any) -> Any:
    return NotImplemented if x.dtype.is_complex else compare("eq", x, number(0, x.dtype))


def _truth(x: Value) -> Value:
    return x if x.dtype == torch.bool else compare("ne", x, number(0, x.dtype))


def _logical(op: str) -> Rule:
    def rule(a: Value, b: Value, *, out: Any) -> Any:
        return NotImplemented if a.dtype.is_complex or b.dtype.is_complex else pointwise(op, _truth(a), _truth(b))

    return rule


def _bitwise(op: str) -> Rule:
    def rule(a: Any, b: Any, *, out: Any) -> Any:
        return pointwise(op, _in(a, out.dtype), _in(b, out.dtype))

    return rule


for _name in ("and", "or", "xor"):
    TABLE[getattr(aten, f"logical_{_name}").default] = _logical(_name)
    TABLE[getattr(aten, f"bitwise_{_name}").Tensor] = TABLE[getattr(aten, f"bitwise_{_name}").Scalar] = _bitwise(_name)


@_row(aten.bitwise_not.default)
def _invert(x: Value, *, out: Any) -> Any:
    return compare("eq", x, number(False, torch.bool)) if x.dtype == torch.bool else pointwise("invert", x)


@_row(aten.isnan.default)
def _isnan(x: Value, *, out: Any) -> Any:
    return compare("ne", x, x) if x.dtype.is_floating_point else NotImplemented


@_row(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _where(condition: Value, a: Any, b: Any, *, out: Any) -> Any:
    return (
        NotImplemented if out.dtype.is_complex or condition.dtype != torch.bool else where(condition, _in(a, out.dtype), _in(b, out.dtype))
    )


@_row(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(x: Value, mask: Value, value: Any, *, out: Any) -> Any:
    if out.dtype.is_complex or mask.dtype != torch.bool:
        return NotImplemented
    return where(mask, _in(value, out.dtype), cast(x, out.dtype))


@_row(aten.clamp.default, aten.clamp.Tensor)
def _clamp(x: Value, low: Any = None, high: Any = None, *, out: Any) -> Any:
    if not _is_arithmetic(out.dtype):
        return NotImplemented
    x = cast(x, out.dtype)
    x = x if low is None else pointwise("maximum", x, _in(low, out.dtype))
    return x if high is None else pointwise("minimum", x, _in(high, out.dtype))


@_row(aten.addcmul.default)
def _addcmul(x: Value, a: Value, b: Value, value: Any = 1, *, out: Any) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    x, a, b = (cast(v, out.dtype) for v in (x, a, b))
    return x + (a * b if value == 1 else a * b * _in(value, out.dtype))


@_row(aten.addcdiv.default)
def _addcdiv(x: Value, a: Value, b: Value, value: Any = 1, *, out: Any) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    x, a, b = (cast(v, out.dtype) for v in (x, a, b))
    return x + (a if value == 1 else a * _in(value, out.dtype)) / b


@_row(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(a: Value, b: Value, weight: Any, *, out: Any) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    w = _in(weight, out.dtype)
    return where(compare("lt", pointwise("abs", w), 0.5), a + w * (b - a), b - (b - a) * (1 - w))


@_row(aten.xlogy.Tensor)
def _xlogy(x: Value, y: Value, *, out: Any) -> Any:
    x, y = cast(x, out.dtype), cast(y, out.dtype)
    return where(
        compare("ne", y, y), number(math.nan, out.dtype), where(compare("eq", x, 0.0), number(0.0, out.dtype), x * pointwise("log", y))
    )


def _half_in_f32(rule: Callable[..., Value]) -> Rule:
    """Formulas of several steps: half precision is widened first, and rounded once."""

    def lowered(*args: Any, out: Any, **kwargs: Any) -> Any:
        if not out.dtype.is_floating_point:
            return NotImplemented
        wide = torch.float32 if out.dtype in _SMALL else out.dtype
        new = [cast(a, wide) if isinstance(a, Value) and a.dtype.is_floating_point else a for a in args]
        return cast(rule(*new, **kwargs), out.dtype)

    return lowered


def _sigmoid(x: Value) -> Value:
    return pointwise("sigmoid", x)


def _gelu(x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        return 0.5 * x * (1.0 + pointwise("tanh", math.sqrt(2 / math.pi) * (x + 0.044715 * (x * x * x))))
    return 0.5 * x * (1.0 + pointwise("erf", x * math.sqrt(0.5)))


def _gelu_backward(g: Value, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        k = math.sqrt(2 / math.pi)
        t = pointwise("tanh", k * (x + 0.044715 * (x * x * x)))
        return g * (0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * (k * (1.0 + 3 * 0.044715 * (x * x))))
    cdf = 0.5 * (1.0 + pointwise("erf", x * math.sqrt(0.5)))
    return g * (cdf + x * pointwise("exp", x * x * -0.5) * (1 / math.sqrt(2 * math.pi)))


def _softplus(x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    return where(compare("gt", x * beta, float(threshold)), x, pointwise("log1p", pointwise("exp", x * beta)) / beta)


def _softplus_backward(g: Value, x: Value, beta: Any, threshold: Any) -> Value:
    z = pointwise("exp", x * beta)
    return where(compare("gt", x * beta, float(threshold)), g, g * z / (z + 1.0))


def _elu(x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    return where(compare("gt", x, 0.0), x * scale, pointwise("expm1", x * input_scale) * (alpha * scale))


TABLE |= {
    aten.silu.default: _half_in_f32(lambda x: x / (1.0 + pointwise("exp", -x))),
    aten.silu_backward.default: _half_in_f32(lambda g, x: g * _sigmoid(x) * (1.0 + x * (1.0 - _sigmoid(x)))),
    aten.gelu.default: _half_in_f32(_gelu),
    aten.gelu_backward.default: _half_in_f32(_gelu_backward),
    aten.softplus.default: _half_in_f32(_softplus),
    aten.softplus_backward.default: _half_in_f32(_softplus_backward),
    aten.elu.default: _half_in_f32(_elu),
    aten.leaky_relu.default: _half_in_f32(lambda x, slope=0.01: where(compare("gt", x, 0.0), x, x * slope)),
    aten.leaky_relu_backward.default: _half_in_f32(lambda g, x, slope, is_result: where(compare("gt", x, 0.0), g, g * slope)),
    aten.hardtanh.default: _half_in_f32(
        lambda x, low=-1.0, high=1.0: pointwise("minimum", pointwise("maximum", x, float(low)), float(high))
    ),
    aten.sigmoid_backward.default: _half_in_f32(lambda g, y: g * ((1.0 - y) * y)),
    aten.tanh_backward.default: _half_in_f32(lambda g, y: g * (1.0 - y * y)),
    aten.threshold_backward.default: _half_in_f32(lambda g, x, threshold: where(compare("le", x, float(threshold)), 0.0, g)),
    aten.mse_loss_backward.default: _half_in_f32(lambda g, x, y, how: g * (x - y) * (2.0 / x.numel if how == 1 else 2.0)),
}


# ── reductions ───────────────────────────────────────────────────────────────────────────────────────────────────


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _SMALL else dtype


def _dims(dims: Any) -> Sequence[int] | None:
    return None if dims is None or dims == [] else [dims] if isinstance(dims, int) else list(dims)


@_row(aten.sum.default, aten.sum.dim_IntList)
def _sum(x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    if not _is_arithmetic(out.dtype):
        return NotImplemented
    return cast(reduce("sum", cast(x, _wide(out.dtype)), _dims(dims), keepdim), out.dtype)


@_row(aten.mean.default, aten.mean.dim)
def _mean(x: Value, dims: Any = None, keepdim: bool = False, *, dtype: Any = None, out: Any) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    total = reduce("sum", cast(x, _wide(out.dtype)), _dims(dims), keepdim)
    return cast(total / (x.numel / max(1, total.numel)), out.dtype)


def _extreme(kind: str) -> Rule:
    def rule(x: Value, dims: Any = None, keepdim: bool = False, *, out: Any) -> Any:
        return reduce(kind, x, _dims(dims), keepdim) if _is_arithmetic(x.dtype) else NotImplemented

    return rule


TABLE[aten.amax.default] = TABLE[aten.max.default] = _extreme("max")
TABLE[aten.amin.default] = TABLE[aten.min.default] = _extreme("min")


def _truths(kind: str) -> Rule:
    def rule(x: Value, dims: Any = None, keepdim: bool = False, *, out: Any) -> Any:
        if out.dtype != torch.bool or x.dtype.is_complex:
            return NotImplemented
        return reduce(kind, _truth(x), _dims(dims), keepdim)

    return rule


for _name in ("any", "all"):
    TABLE[getattr(aten, _name).default] = TABLE[getattr(aten, _name).dim] = _truths(_name)


def _variance(x: Value, dims: Any, correction: Any, keepdim: bool) -> tuple[Value, Value]:
    """Variance and mean in two passes over the row, as exact as Welford's algorithm."""
    mean = _average(x, dims)
    n = x.numel / max(1, mean.numel)
    squares = (x - mean) * (x - mean)
    divisor = n - (1 if correction is None else correction)
    total = reduce("sum", squares, dims, keepdim)
    variance = total / divisor if divisor > 0 else total * math.nan if divisor < 0 or n == 0 else total / 0.0
    return variance, mean if keepdim else reshape(mean, variance.shape)


def _average(x: Value, dims: Any) -> Value:
    total = reduce("sum", x, dims, True)
    return total / (x.numel / max(1, total.numel))


@_row(aten.var.correction, aten.var_mean.correction, aten.std.correction)
def _var(x: Value, dims: Any = None, *, correction: Any = None, keepdim: bool = False, out: Any, take: str = "var") -> Any:
    if not x.dtype.is_floating_point or isinstance(correction, Value):
        return NotImplemented
    variance, mean = _variance(cast(x, _wide(x.dtype)), _dims(dims), correction, keepdim)
    variance, mean = cast(variance, x.dtype), cast(mean, x.dtype)
    return (variance, mean) if isinstance(out, (tuple, list)) else variance


@_row(aten.std.correction)
def _std(x: Value, dims: Any = None, *, out: Any, **how: Any) -> Any:
    variance = _var(x, dims, out=out, **how)
    return variance if variance is NotImplemented else pointwise("sqrt", variance)


@_row(aten.logsumexp.default)
def _logsumexp(x: Value, dims: Any, keepdim: bool = False, *, out: Any) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    wide = cast(x, _wide(x.dtype))
    top = reduce("max", wide, _dims(dims), True)
    top = where(compare("eq", pointwise("abs", top), math.inf), 0.0, top)
    result = pointwise("log", reduce("sum", pointwise("exp", wide - top), _dims(dims), True)) + top
    return cast(result if keepdim else reshape(result, out.shape), out.dtype)


@_row(aten._softmax.default)
def _softmax(x: Value, dim: int, half_to_float: bool, *, out: Any) -> Any:
    wide = cast(x, _wide(x.dtype))
    if not wide.dtype.is_floating_point or not x.shape:
        return NotImplemented
    e = pointwise("exp", wide - reduce("max", wide, [dim], True))
    return cast(e / reduce("sum", e, [dim], True), out.dtype)


@_row(aten._log_softmax.default)
def _log_softmax(x: Value, dim: int, half_to_float: bool, *, out: Any) -> Any:
    wide = cast(x, _wide(x.dtype))
    if not wide.dtype.is_floating_point or not x.shape:
        return NotImplemented
    shifted = wide - reduce("max", wide, [dim], True)
    return cast(shifted - pointwise("log", reduce("sum", pointwise("exp", shifted), [dim], True)), out.dtype)


@_row(aten._softmax_backward_data.default)
def _softmax_backward(g: Value, y: Value, dim: int, dtype: Any, *, out: Any) -> Any:
    if not y.shape:
        return NotImplemented
    g, y = cast(g, _wide(g.dtype)), cast(y, _wide(y.dtype))
    gy = g * y
    return cast(gy - y * reduce("sum", gy, [dim], True), out.dtype)


@_row(aten._log_softmax_backward_data.default)
def _log_softmax_backward(g: Value, y: Value, dim: int, dtype: Any, *, out: Any) -> Any:
    if not y.shape:
        return NotImplemented
    g, y = cast(g, _wide(g.dtype)), cast(y, _wide(y.dtype))
    return cast(g - pointwise("exp", y) * reduce("sum", g, [dim], True), out.dtype)


@_row(aten.native_layer_norm.default)
def _layer_norm(x: Value, shape: Sequence[int], weight: Value | None, bias: Value | None, eps: float, *, out: Any) -> Any:
    wide = _wide(x.dtype)
    dims = list(range(len(x.shape) - len(shape), len(x.shape)))
    wx = cast(x, wide)
    variance, mean = _variance(wx, dims, 0, True)
    scale = pointwise("rsqrt", variance + eps)
    y = (wx - mean) * scale
    y = y if weight is None else y * cast(weight, wide)
    y = y if bias is None else y + cast(bias, wide)
    return cast(y, out[0].dtype), cast(mean, out[1].dtype), cast(scale, out[2].dtype)


@_row(aten.native_layer_norm_backward.default)
def _layer_norm_backward(
    g: Value,
    x: Value,
    shape: Sequence[int],
    mean: Value,
    scale: Value,
    weight: Value | None,
    bias: Value | None,
    mask: Sequence[bool],
    *,
    out: Any,
) -> Any:
    wide = _wide(x.dtype)
    rank = len(x.shape)
    inner, outer = list(range(rank - len(shape), rank)), list(range(rank - len(shape)))
    g, wx, mean, scale = (cast(v, wide) for v in (g, x, mean, scale))
    normal = (wx - mean) * scale
    gw = g if weight is None else g * cast(weight, wide)
    grad = scale * (gw - _average(gw, inner) - normal * _average(gw * normal, inner))
    sums = [reduce("sum", v, outer) if outer else v for v in (g * normal, g)]
    found = (grad, *sums)
    return tuple(cast(v, o.dtype) if wanted else None for v, wanted, o in zip(found, mask, out, strict=True))


# ── making ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _filled(value: Any, out: Any) -> Any:
    if isinstance(value, Value):
        return expand(cast(value, out.dtype), tuple(out.shape)) if not value.shape else NotImplemented
    return NotImplemented if out.dtype.is_complex else number(_plain(value, out.dtype), out.dtype, tuple(out.shape))


def _plain(value: Any, dtype: torch.dtype) -> Any:
    return float(value) if dtype.is_floating_point else bool(value) if dtype == torch.bool else int(value)


TABLE |= {
    aten.full.default: lambda size, value, *, out, **_: _filled(value, out),
    aten.full_like.default: lambda x, value, *, out, **_: _filled(value, out),
    aten.new_full.default: lambda x, size, value, *, out, **_: _filled(value, out),
    aten.fill.Scalar: lambda x, value, *, out: _filled(value, out),
    aten.scalar_tensor.default: lambda value, *, out, **_: _filled(value, out),
    aten.clone.default: lambda x, *, out, **_: x,
    aten._to_copy.default: lambda x, *, out, **_: NotImplemented if x.dtype.is_complex or out.dtype.is_complex else cast(x, out.dtype),
    aten.copy.default: lambda x, y, non_blocking=False, *, out: expand(cast(y, out.dtype), tuple(out.shape)),
    aten.lift_fresh_copy.default: lambda x, *, out: x,
}
for _name, _value in (("zeros", 0), ("ones", 1)):
    for _op in (getattr(aten, _name), getattr(aten, f"{_name}_like"), getattr(aten, f"new_{_name}")):
        TABLE[_op.default] = lambda *args, out, _value=_value, **_: _filled(_value, out)


@_row(aten.arange.start_step, aten.arange.start, aten.arange.default)
def _arange(*args: Any, out: Any, **_: Any) -> Any:
    start, step = (0, 1) if len(args) == 1 else (args[0], args[2] if len(args) == 3 else 1)
    if not all(isinstance(a, int) for a in args):
        return NotImplemented
    i = count(tuple(out.shape), 0)
    return cast(i * step + start if (start, step) != (0, 1) else i, out.dtype)


@_row(aten.eye.default, aten.eye.m)
def _eye(*args: Any, out: Any, **_: Any) -> Any:
    same = compare("eq", count(tuple(out.shape), 0), count(tuple(out.shape), 1))
    return NotImplemented if out.dtype.is_complex else cast(same, out.dtype)


def _triangle(op: str) -> Rule:
    def rule(x: Value, diagonal: int = 0, *, out: Any) -> Any:
        if x.dtype.is_complex:
            return NotImplemented
        n = len(x.shape)
        return where(compare(op, count(x.shape, n - 1) - count(x.shape, n - 2), diagonal), x, number(_plain(0, x.dtype), x.dtype))

    return rule


TABLE[aten.tril.default] = _triangle("le")
TABLE[aten.triu.default] = _triangle("ge")


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _slice(x: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1, *, out: Any) -> Value:
    return narrow(x, dim, _begin(x.shape[dim], start), out.shape[dim], step)


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


VIEWS: dict[Any, Rule] = {
    aten.view.default: lambda x, shape, *, out: reshape(x, tuple(out.shape)),
    aten._unsafe_view.default: lambda x, shape, *, out: reshape(x, tuple(out.shape)),
    aten.reshape.default: lambda x, shape, *, out: reshape(x, tuple(out.shape)),
    aten.permute.default: lambda x, dims, *, out: permute(x, dims),
    aten.t.default: lambda x, *, out: permute(x, range(len(x.shape))[::-1]),
    aten.transpose.int: lambda x, a, b, *, out: _transpose(x, a, b),
    aten.expand.default: lambda x, shape, *, out, implicit=False: expand(x, tuple(out.shape)),
    aten.unsqueeze.default: lambda x, dim, *, out: reshape(x, tuple(out.shape)),
    aten.squeeze.default: lambda x, *, out: reshape(x, tuple(out.shape)),
    aten.squeeze.dim: lambda x, dim, *, out: reshape(x, tuple(out.shape)),
    aten.squeeze.dims: lambda x, dims, *, out: reshape(x, tuple(out.shape)),
    aten.slice.Tensor: _slice,
    aten.select.int: lambda x, dim, at, *, out: select(x, dim, at),
    aten.split.Tensor: _split,
    aten.split_with_sizes.default: _split,
    aten.unbind.int: lambda x, dim=0, *, out: tuple(select(x, dim, i) for i in range(len(out))),
    aten.diagonal.default: _diagonal,
    aten.alias.default: lambda x, *, out: x,
    aten.detach.default: lambda x, *, out: x,
    aten.lift_fresh.default: lambda x, *, out: x,
}
"""The rows that only look at memory: no kernel is needed where the memory is there."""
TABLE |= VIEWS
TABLE[aten.flip.default] = lambda x, dims, *, out: flip(x, dims)


def _transpose(x: Value, a: int, b: int) -> Value:
    if not x.shape:
        return x
    dims = list(range(len(x.shape)))
    dims[a], dims[b] = dims[b], dims[a]
    return permute(x, dims)


@_row(aten.select_backward.default)
def _select_backward(g: Value, shape: Any, dim: int, at: int, *, out: Any) -> Any:
    shape = tuple(out.shape)
    dim %= len(shape)
    here = compare("eq", count(shape, dim), at % shape[dim])
    wide = reshape(g, tuple(1 if d == dim else n for d, n in enumerate(shape)))
    return where(here, expand(wide, shape), number(_plain(0, out.dtype), out.dtype))


# ── putting together ─────────────────────────────────────────────────────────────────────────────────────────────


def _zeros(out: Any) -> Value:
    return number(_plain(0, out.dtype), out.dtype, tuple(out.shape))


@_row(aten.cat.default)
def _cat(tensors: Sequence[Value], dim: int = 0, *, out: Any) -> Any:
    return concatenate([cast(t, out.dtype) for t in tensors], dim)


@_row(aten.stack.default)
def _stack(tensors: Sequence[Value], dim: int = 0, *, out: Any) -> Any:
    dim %= len(out.shape)
    one = tuple(1 if d == dim else n for d, n in enumerate(out.shape))
    return concatenate([reshape(cast(t, out.dtype), one) for t in tensors], dim)


def _begin(n: int, start: Any) -> int:
    return 0 if start is None else max(0, min(n, start + n if start < 0 else start))


@_row(aten.slice_backward.default)
def _slice_backward(g: Value, shape: Any, dim: int, start: int, end: int, step: int, *, out: Any) -> Any:
    return insert(g, _zeros(out), dim, _begin(out.shape[dim], start), step)


@_row(aten.slice_scatter.default)
def _slice_scatter(x: Value, part: Value, dim: int = 0, start: Any = None, end: Any = None, step: int = 1, *, out: Any) -> Any:
    return insert(cast(part, out.dtype), x, dim, _begin(out.shape[dim], start), step)


@_row(aten.select_scatter.default)
def _select_scatter(x: Value, part: Value, dim: int, at: int, *, out: Any) -> Any:
    dim %= len(x.shape)
    one = tuple(1 if d == dim else n for d, n in enumerate(x.shape))
    return insert(reshape(cast(part, out.dtype), one), x, dim, at % x.shape[dim])


@_row(aten.constant_pad_nd.default)
def _pad(x: Value, pads: Sequence[int], value: Any = 0, *, out: Any) -> Any:
    if out.dtype.is_complex or isinstance(value, Value):
        return NotImplemented
    own = list(own_index(tuple(out.shape)))
    bounds = []
    for i in range(len(pads) // 2):
        d = len(own) - 1 - i
        bounds.append((own[d], pads[2 * i], pads[2 * i] + x.shape[d]))
        own[d] = own[d] - pads[2 * i]
    return within(x, own, bounds, number(_plain(value, out.dtype), out.dtype, tuple(out.shape)))


def _on_diagonal(x: Value, other: Value, offset: int, dim1: int, dim2: int) -> Value:
    """``other``, with the last dimension of ``x`` along a diagonal."""
    rank = len(other.shape)
    own = own_index(other.shape)
    i, j = own[dim1 % rank], own[dim2 % rank]
    rest = [o for d, o in enumerate(own) if d not in (dim1 % rank, dim2 % rank)]
    at = i if offset >= 0 else j
    return within(x, [*rest, at], [(j - i, offset, offset + 1), (at, 0, x.shape[-1])], other)


@_row(aten.diagonal_backward.default)
def _diagonal_backward(g: Value, shape: Any, offset: int, dim1: int, dim2: int, *, out: Any) -> Any:
    return _on_diagonal(g, _zeros(out), offset, dim1, dim2)


@_row(aten.diag_embed.default)
def _diag_embed(x: Value, offset: int = 0, dim1: int = -2, dim2: int = -1, *, out: Any) -> Any:
    return _on_diagonal(x, _zeros(out), offset, dim1, dim2)


@_row(aten.diagonal_scatter.default)
def _diagonal_scatter(x: Value, part: Value, offset: int = 0, dim1: int = 0, dim2: int = 1, *, out: Any) -> Any:
    return _on_diagonal(cast(part, out.dtype), x, offset, dim1, dim2)


@_row(aten.roll.default)
def _roll(x: Value, shifts: Sequence[int], dims: Sequence[int] = (), *, out: Any) -> Any:
    if not dims:
        return NotImplemented
    own = list(own_index(x.shape))
    for shift, dim in zip(shifts, dims, strict=True):
        n = x.shape[dim]
        own[dim] = (own[dim] + -shift % n) % n
    return look(x, x.shape, own)


@_row(aten.repeat.default)
def _repeat(x: Value, times: Sequence[int], *, out: Any) -> Any:
    own = own_index(tuple(out.shape))[len(out.shape) - len(x.shape) :]
    return look(x, tuple(out.shape), [i % n if n > 1 else i * 0 for i, n in zip(own, x.shape, strict=True)])


# what is never read before it is written may hold anything
TABLE[aten.new_empty_strided.default] = TABLE[aten.empty_like.default] = TABLE[aten.new_empty.default] = lambda *args, out, **_: _filled(0, out)
