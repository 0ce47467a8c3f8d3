"""Rows of the op table: activations and losses, formulas of several steps for each element."""

from __future__ import annotations

import math
from typing import Any

from .rows import TABLE, aten, half_in_f32
from .values import (
    Value,
    compare,
    pointwise,
    where,
)


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
    aten.silu.default: half_in_f32(lambda x: x / (1.0 + pointwise("exp", -x))),
    aten.silu_backward.default: half_in_f32(lambda g, x: g * _sigmoid(x) * (1.0 + x * (1.0 - _sigmoid(x)))),
    aten.gelu.default: half_in_f32(_gelu),
    aten.gelu_backward.default: half_in_f32(_gelu_backward),
    aten.softplus.default: half_in_f32(_softplus),
    aten.softplus_backward.default: half_in_f32(_softplus_backward),
    aten.elu.default: half_in_f32(_elu),
    aten.leaky_relu.default: half_in_f32(lambda x, slope=0.01: where(compare("gt", x, 0.0), x, x * slope)),
    aten.leaky_relu_backward.default: half_in_f32(lambda g, x, slope, is_result: where(compare("gt", x, 0.0), g, g * slope)),
    aten.hardtanh.default: half_in_f32(
        lambda x, low=-1.0, high=1.0: pointwise("minimum", pointwise("maximum", x, float(low)), float(high))
    ),
    aten.sigmoid_backward.default: half_in_f32(lambda g, y: g * ((1.0 - y) * y)),
    aten.tanh_backward.default: half_in_f32(lambda g, y: g * (1.0 - y * y)),
    aten.threshold_backward.default: half_in_f32(lambda g, x, threshold: where(compare("le", x, float(threshold)), 0.0, g)),
    aten.mse_loss_backward.default: half_in_f32(lambda g, x, y, how: g * (x - y) * (2.0 / x.numel if how == 1 else 2.0)),
}
