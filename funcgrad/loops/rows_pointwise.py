"""Rows of the op table: one ATen operator, one operation or a few for each element."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from ..symbolic.sizes import Size
from .rows import (
    TABLE,
    TAKES_GIVEN,
    TAKES_SCALARS,
    aten,
    fits,
    into,
    item_fits,
    row,
    truth,
)
from .values import (
    HALF,
    Number,
    Scalar,
    Value,
    cast,
    compare,
    number,
    pointwise,
    where,
)

_OF_TRUTHS = {"add": "or", "mul": "and", "maximum": "or", "minimum": "and"}
"""What arithmetic is of truth values."""


def _elementwise(op: str, floats_only: bool, *args: Any, out: Any) -> Any:
    if out.dtype == torch.bool and not floats_only:
        op = _OF_TRUTHS.get(op, "")
    if not (out.dtype.is_floating_point if floats_only else op):
        return NotImplemented
    return pointwise(op, *(into(a, out.dtype) for a in args))


for _names, _overloads, _floats_only in (
    (
        "exp log sin cos tan tanh sigmoid sqrt rsqrt reciprocal erf erfc expm1 log1p log2 log10 exp2 asin acos atan "
        "sinh cosh asinh acosh atanh floor ceil trunc round atan2 hypot",
        "default",
        True,
    ),
    ("relu neg sign abs maximum minimum", "default", False),
    ("div fmod remainder copysign", "Tensor Scalar", True),
    ("mul", "Tensor Scalar", False),
):
    for _name, _overload in itertools.product(_names.split(), _overloads.split()):
        TABLE[getattr(getattr(aten, _name), _overload)] = partial(_elementwise, _name, _floats_only)
TABLE[aten.sgn.default] = TABLE[aten.sign.default]
TABLE[aten.clamp_min.Tensor] = partial(_elementwise, "maximum", False)
TABLE[aten.clamp_max.Tensor] = partial(_elementwise, "minimum", False)


@row(aten.add.Tensor, aten.add.Scalar, aten.sub.Tensor, aten.sub.Scalar)
def _add(a: Any, b: Any, alpha: Any = 1, *, out: Any, op: str = "add") -> Any:
    if out.dtype == torch.bool and alpha == 1 and op == "add":
        return pointwise("or", into(a, out.dtype), into(b, out.dtype))
    if out.dtype == torch.bool or not fits(alpha, out.dtype) or isinstance(alpha, bool):
        return NotImplemented
    b = into(b, out.dtype)
    return pointwise(op, into(a, out.dtype), b if alpha == 1 else pointwise("mul", b, into(alpha, out.dtype)))


def _sub(a: Any, b: Any, alpha: Any = 1, *, out: Any) -> Any:
    if any((x.dtype if isinstance(x, Value) else type(x)) in (torch.bool, bool) for x in (a, b)):
        return NotImplemented  # PyTorch subtracts no truth values
    return _add(a, b, alpha, out=out, op="sub")


TABLE[aten.sub.Tensor] = TABLE[aten.sub.Scalar] = _sub


@row(aten.rsub.Scalar, aten.rsub.Tensor)
def _rsub(a: Any, b: Any, alpha: Any = 1, *, out: Any) -> Any:
    return NotImplemented if alpha != 1 or isinstance(alpha, bool) else _sub(b, a, out=out)


@row(aten.pow.Tensor_Scalar)
def _power(x: Value, exponent: Any, *, out: Any, given: Sequence[torch.Tensor]) -> Any:
    if not isinstance(exponent, (int, float)) or (out.dtype in HALF and not fits(exponent, out.dtype)):
        return NotImplemented
    if out.dtype.is_floating_point and exponent != (rounded := _rounded(exponent, out.dtype)) and rounded.is_integer():
        # of a negative number, 1 or NaN: eager PyTorch rounds it for some elements of a tensor, by where they are
        return NotImplemented
    x = cast(x, out.dtype)
    if out.dtype != torch.bool and exponent in (1, 2, 3):
        return x if exponent == 1 else x * x if exponent == 2 else x * x * x
    if not out.dtype.is_floating_point:
        return NotImplemented
    if exponent == 0:
        return number(1.0, out.dtype, x.shape)
    if exponent in (-1, -2):
        return pointwise("reciprocal", x if exponent == -1 else x * x)
    if exponent in (0.5, -0.5) and (out.dtype, given[0].device.type) != (torch.float16, "cpu"):
        return pointwise("sqrt" if exponent == 0.5 else "rsqrt", x)
    return pointwise("pow", x, float(exponent))  # other than of a root, that of -inf is inf, and that of -0.0 is 0.0


TAKES_GIVEN.add(aten.pow.Tensor_Scalar)


@row(aten.pow.Tensor_Tensor, aten.pow.Scalar)
def _power_of(base: Any, exponent: Value, *, out: Any) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    return pointwise("pow", into(base, out.dtype), into(exponent, out.dtype))


def _rounded(value: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(float(value), dtype=torch.float64).to(dtype))


def _comparison(op: str, a: Any, b: Any, *, out: Any) -> Any:
    dtype = torch.result_type(_promotes(a), _promotes(b))
    if dtype.is_complex or any(isinstance(x, Size) and not fits(x, dtype) for x in (a, b)):
        return NotImplemented
    return compare(op, *(_held(x, dtype) for x in (a, b)))


def _promotes(x: Any) -> Any:
    """A tensor, or a number, that takes part in type promotion as an argument does."""
    if isinstance(x, (Scalar, Size)):
        return 1.0 if isinstance(x, Scalar) else 1
    return torch.empty((1,) * bool(x.shape), dtype=x.dtype) if isinstance(x, Value) else x


def _held(x: Any, dtype: torch.dtype) -> Value:
    """An argument of a comparison: half precision is computed as float, in which 0.1 is another number than in
    PyTorch's comparison."""
    return number(_rounded(x, dtype), dtype) if dtype in HALF and not isinstance(x, Value) else into(x, dtype)


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    TABLE[getattr(aten, _name).Tensor] = TABLE[getattr(aten, _name).Scalar] = partial(_comparison, _name)


@row(aten.logical_not.default)
def _not(x: Value, *, out: Any) -> Any:
    return compare("eq", x, number(0, x.dtype))


def _logical(op: str, a: Value, b: Value, *, out: Any) -> Any:
    return pointwise(op, truth(a), truth(b))


def _bitwise(op: str, a: Any, b: Any, *, out: Any) -> Any:
    return NotImplemented if out.dtype.is_floating_point else pointwise(op, into(a, out.dtype), into(b, out.dtype))


for _name in ("and", "or", "xor"):
    TABLE[getattr(aten, f"logical_{_name}").default] = partial(_logical, _name)
    for _overload in ("Tensor", "Scalar"):
        TABLE[getattr(getattr(aten, f"bitwise_{_name}"), _overload)] = partial(_bitwise, _name)


@row(aten.bitwise_not.default)
def _invert(x: Value, *, out: Any) -> Any:
    if x.dtype.is_floating_point:
        return NotImplemented
    return compare("eq", x, number(False, torch.bool)) if x.dtype == torch.bool else pointwise("invert", x)


@row(aten.signbit.default)
def _signbit(x: Value, *, out: Any) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented if x.dtype == torch.bool else compare("lt", x, 0)
    return compare("lt", pointwise("copysign", number(1.0, x.dtype), x), 0.0)


def _isinf(infinity: float, either: bool, x: Value, *, out: Any) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    return compare("eq", pointwise("abs", x) if either else x, infinity)


TABLE[aten.isinf.default] = partial(_isinf, math.inf, True)
TABLE[aten.isposinf.default] = partial(_isinf, math.inf, False)
TABLE[aten.isneginf.default] = partial(_isinf, -math.inf, False)


@row(aten.nan_to_num.default)
def _nan_to_num(x: Value, nan: Any = None, top: Any = None, bottom: Any = None, *, out: Any) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    most = torch.finfo(x.dtype).max
    bottom = -most if bottom is None else bottom
    finite = where(
        compare("eq", x, math.inf),
        most if top is None else float(top),
        where(compare("eq", x, -math.inf), float(bottom), x),
    )
    return where(compare("ne", x, x), 0.0 if nan is None else float(nan), finite)


@row(aten.isnan.default)
def _isnan(x: Value, *, out: Any) -> Any:
    return compare("ne", x, x) if x.dtype.is_floating_point else NotImplemented


@row(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf)
def _where(condition: Value, a: Any, b: Any, *, out: Any) -> Any:
    if condition.dtype != torch.bool or not (fits(a, out.dtype) and fits(b, out.dtype)):
        return NotImplemented
    return where(condition, into(a, out.dtype), into(b, out.dtype))


@row(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def _masked_fill(x: Value, mask: Value, value: Any, *, out: Any) -> Any:
    if mask.dtype != torch.bool or not item_fits(value, out.dtype):
        return NotImplemented
    return where(mask, into(value, out.dtype), cast(x, out.dtype))


@row(aten.clamp.default, aten.clamp.Tensor)
def _clamp(x: Value, low: Any = None, high: Any = None, *, out: Any) -> Any:
    if out.dtype == torch.bool or not all(bound is None or fits(bound, out.dtype) for bound in (low, high)):
        return NotImplemented
    x = cast(x, out.dtype)
    x = x if low is None else pointwise("maximum", *_of_equals_first(x, low, out.dtype))
    return x if high is None else pointwise("minimum", *_of_equals_first(x, high, out.dtype))


def _of_equals_first(x: Value, bound: Any, dtype: torch.dtype) -> tuple[Value, Value]:
    """As in PyTorch, 0.0 and -0.0 stay what they are at a bound of 0 that is a number; a tensor is taken instead."""
    into_it = into(bound, dtype)
    return (into_it, x) if isinstance(bound, Scalar) or isinstance(into_it, Number) else (x, into_it)


TABLE[aten.clamp_min.default] = lambda x, low, *, out: _clamp(x, low, out=out)
TABLE[aten.clamp_max.default] = lambda x, high, *, out: _clamp(x, None, high, out=out)


def _added(op: str, x: Value, a: Value, b: Value, value: Any = 1, *, out: Any) -> Any:
    if not out.dtype.is_floating_point or not fits(value, out.dtype):
        return NotImplemented
    x, a, b = (cast(v, out.dtype) for v in (x, a, b))
    return x + pointwise(op, a if value == 1 else a * into(value, out.dtype), b)


TABLE[aten.addcmul.default], TABLE[aten.addcdiv.default] = partial(_added, "mul"), partial(_added, "div")


@row(aten.lerp.Scalar, aten.lerp.Tensor)
def _lerp(a: Value, b: Value, weight: Any, *, out: Any) -> Any:
    if not out.dtype.is_floating_point or not fits(weight, out.dtype):
        return NotImplemented
    w, whole = into(weight, out.dtype), b - a
    # as PyTorch rounds them: where a product is too large, the sum may not be
    from_a, from_b = pointwise("fma", w, whole, a), pointwise("fma", w - 1, whole, b)
    return where(compare("lt", pointwise("abs", w), 0.5), from_a, from_b)


@row(aten.xlogy.Tensor)
def _xlogy(x: Value, y: Value, *, out: Any) -> Any:
    x, y = cast(x, out.dtype), cast(y, out.dtype)
    return where(
        compare("ne", y, y),
        number(math.nan, out.dtype),
        where(compare("eq", x, 0.0), number(0.0, out.dtype), x * pointwise("log", y)),
    )


TAKES_SCALARS |= {
    getattr(getattr(aten, name), overload)
    for names, overloads in (
        ("add sub mul div fmod remainder eq ne lt le gt ge", "Tensor Scalar"),
        ("rsub lerp copysign", "Scalar"),
        ("pow", "Scalar"),
        ("where", "self ScalarOther ScalarSelf"),
        ("masked_fill", "Scalar"),
        ("clamp clamp_min clamp_max addcmul addcdiv", "default"),
    )
    for name in names.split()
    for overload in overloads.split()
}
