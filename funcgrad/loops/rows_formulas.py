"""Rows of the op table: activations, formulas of several steps for each element."""

from __future__ import annotations

import math
from typing import Any

import torch

from .rows import TABLE, aten, fits, half_in_f32
from .values import (
    Value,
    compare,
    pointwise,
    where,
)


def _sigmoid(x: Value) -> Value:
    return pointwise("sigmoid", x)


def _tanh_gate(x: Value) -> Value:
    """(1 + tanh(u)) / 2 with all its digits, where tanh is near -1, too."""
    return _sigmoid((2 * math.sqrt(2 / math.pi)) * (x + 0.044715 * (x * x * x)))


_NORMAL = 13.0**2
"""Up to here the density times the tail, in 32 bits, is no denormal number."""


def _normal(x: Value) -> tuple[Value, Value]:
    """(1 + erf(x / sqrt(2))) / 2, likewise, and e^(-x^2 / 2), which its tails are made of: erfcx(a) = e^(a^2)
    erfc(a), for a >= 0."""
    square = x * x
    density = pointwise("exp", square * -0.5)
    if x.dtype == torch.float64:
        return 0.5 * pointwise("erfc", x * -math.sqrt(0.5)), density
    # what is beyond would be denormal numbers, with which a product takes ten times as long
    density = where(compare("lt", square, _NORMAL), density, 0.0)
    tail = 0.5 * (pointwise("erfcx", pointwise("abs", x) * math.sqrt(0.5)) * density)
    return where(compare("gt", x, 0.0), 1.0 - tail, tail), density


def _gelu(x: Value, approximate: str = "none") -> Value:
    return x * (_tanh_gate(x) if approximate == "tanh" else _normal(x)[0])


def _gelu_backward(g: Value, x: Value, approximate: str = "none") -> Value:
    if approximate == "tanh":
        gate = _tanh_gate(x)
        slope = (2 * math.sqrt(2 / math.pi)) * (1.0 + 3 * 0.044715 * (x * x))
        return g * (gate + x * (gate * (1.0 - gate) * slope))
    gate, density = _normal(x)
    return g * (gate + x * density * (1 / math.sqrt(2 * math.pi)))


def _softplus(x: Value, beta: Any = 1, threshold: Any = 20) -> Value:
    return where(compare("gt", x * beta, float(threshold)), x, pointwise("log1p", pointwise("exp", x * beta)) / beta)


def _softplus_backward(g: Value, x: Value, beta: Any, threshold: Any) -> Value:
    z = pointwise("exp", x * beta)
    return where(compare("gt", x * beta, float(threshold)), g, g * z / (z + 1.0))


def _elu(x: Value, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Value:
    return where(compare("gt", x, 0.0), x * scale, pointwise("expm1", x * input_scale) * (alpha * scale))


def _elu_backward(g: Value, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Value) -> Any:
    if is_result and not alpha >= 0:
        return NotImplemented  # which PyTorch refuses: what was written over is not known from the result
    inside = x + alpha * scale if is_result else pointwise("exp", x * input_scale) * (alpha * scale)
    return where(compare("le", x, 0.0), g * input_scale * inside, g * scale)


def _celu(x: Value, alpha: Any = 1) -> Any:
    # PyTorch refuses 0, and what is too large
    return _elu(x, alpha, 1.0, 1.0 / alpha) if alpha and fits(1.0 / alpha, x.dtype) else NotImplemented


def _leaky_relu_backward(g: Value, x: Value, slope: Any, is_result: bool) -> Any:
    return NotImplemented if is_result and not slope >= 0 else where(compare("gt", x, 0.0), g, g * slope)


def _hardtanh(x: Value, low: Any = -1.0, high: Any = 1.0) -> Value:
    return pointwise("minimum", float(high), pointwise("maximum", float(low), x))


def _hardtanh_backward(g: Value, x: Value, low: Any, high: Any) -> Value:
    return where(pointwise("or", compare("le", x, float(low)), compare("ge", x, float(high))), 0.0, g)


def _hardsigmoid_backward(g: Value, x: Value) -> Value:
    return where(pointwise("and", compare("gt", x, -3.0), compare("lt", x, 3.0)), g * (1 / 6), 0.0)


def _hardswish_backward(g: Value, x: Value) -> Value:
    return where(compare("le", x, -3.0), 0.0, where(compare("lt", x, 3.0), g * (x / 3.0 + 0.5), g))


def _softshrink(x: Value, by: Any = 0.5) -> Value:
    inside = where(compare("ne", x, x), x, 0.0)
    return where(compare("gt", x, float(by)), x - float(by), where(compare("lt", x, -float(by)), x + float(by), inside))


def _shrink_backward(g: Value, x: Value, by: Any) -> Value:
    return where(pointwise("and", compare("ge", x, -float(by)), compare("le", x, float(by))), 0.0, g)


def _hardshrink(x: Value, by: Any = 0.5) -> Value:
    return _shrink_backward(x, x, by)


def _mish(x: Value) -> Value:
    return x * pointwise("tanh", pointwise("log1p", pointwise("exp", x)))


def _mish_backward(g: Value, x: Value) -> Value:
    t = pointwise("tanh", pointwise("log1p", pointwise("exp", x)))
    return g * (t + x * _sigmoid(x) * (1.0 - t * t))


def _logaddexp(a: Value, b: Value) -> Value:
    top = pointwise("maximum", a, b)
    equal = pointwise("and", compare("eq", a, b), compare("eq", pointwise("abs", a), math.inf))
    return where(equal, a, top + pointwise("log1p", pointwise("exp", -pointwise("abs", a - b))))


TABLE |= {
    aten.silu.default: half_in_f32(lambda x: x / (1.0 + pointwise("exp", -x))),
    aten.silu_backward.default: half_in_f32(lambda g, x: g * _sigmoid(x) * (1.0 + x * (1.0 - _sigmoid(x)))),
    aten.gelu.default: half_in_f32(_gelu),
    aten.gelu_backward.default: half_in_f32(_gelu_backward),
    aten.softplus.default: half_in_f32(_softplus),
    aten.softplus_backward.default: half_in_f32(_softplus_backward),
    aten.elu.default: half_in_f32(_elu),
    aten.leaky_relu.default: half_in_f32(lambda x, slope=0.01: where(compare("gt", x, 0.0), x, x * slope)),
    aten.leaky_relu_backward.default: half_in_f32(_leaky_relu_backward),
    aten.hardtanh.default: half_in_f32(_hardtanh),
    aten.hardtanh_backward.default: half_in_f32(_hardtanh_backward),
    aten.elu_backward.default: half_in_f32(_elu_backward),
    aten.celu.default: half_in_f32(_celu),
    aten.hardsigmoid.default: half_in_f32(lambda x: _hardtanh(x + 3.0, 0.0, 6.0) / 6.0),
    aten.hardsigmoid_backward.default: half_in_f32(_hardsigmoid_backward),
    aten.hardswish.default: half_in_f32(lambda x: x * _hardtanh(x + 3.0, 0.0, 6.0) / 6.0),
    aten.hardswish_backward.default: half_in_f32(_hardswish_backward),
    aten.softshrink.default: half_in_f32(_softshrink),
    aten.softshrink_backward.default: half_in_f32(_shrink_backward),
    aten.hardshrink.default: half_in_f32(_hardshrink),
    aten.hardshrink_backward.default: half_in_f32(_shrink_backward),
    aten.mish.default: half_in_f32(_mish),
    aten.mish_backward.default: half_in_f32(_mish_backward),
    aten.logaddexp.default: half_in_f32(_logaddexp),
    aten.sigmoid_backward.default: half_in_f32(lambda g, y: g * (1.0 - y) * y),
    aten.tanh_backward.default: half_in_f32(lambda g, y: g * (1.0 - y * y)),
    aten.threshold_backward.default: half_in_f32(
        lambda g, x, threshold: where(compare("le", x, float(threshold)), 0.0, g)
    ),
}
