"""Rows of the op table: losses, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .rows import TABLE, Rule, aten, half_in_f32, into, row, wide_dtype
from .values import Value, cast, compare, count, pointwise, reduce, reshape, where

_NONE, _MEAN, _SUM = 0, 1, 2  # torch.nn's reductions, as ATen numbers them


def _reduced(loss: Value, how: int) -> Value:
    if how == _NONE:
        return loss
    total = reduce("sum", loss)
    return total / into(loss.numel, total.dtype) if how == _MEAN else total


def _share(x: Value, how: int) -> float:
    """What a gradient is multiplied with because of the reduction."""
    return 1.0 / x.numel if how == _MEAN else 1.0


def _difference(loss: Callable[..., Value]) -> Rule:
    """A loss of the difference of two tensors."""

    def lowered(x: Value, y: Value, how: int = _MEAN, *more: Any) -> Any:
        found = loss(x - y, *more)
        return found if found is NotImplemented else _reduced(found, how)

    return half_in_f32(lowered)


def _smooth_l1(d: Value, beta: float = 1.0) -> Any:
    if not beta >= 0:
        return NotImplemented  # which PyTorch refuses
    z = pointwise("abs", d)
    return where(compare("lt", z, float(beta)), 0.5 * z * z / float(beta), z - 0.5 * beta) if beta else z


def _smooth_l1_backward(g: Value, x: Value, y: Value, how: int, beta: float) -> Value:
    d, share = x - y, _share(x, how)
    inside = share * d * g / float(beta)
    return where(compare("le", d, -float(beta)), g * -share, where(compare("ge", d, float(beta)), g * share, inside))


def _huber(d: Value, delta: float = 1.0) -> Value:
    z = pointwise("abs", d)
    return where(compare("le", z, float(delta)), 0.5 * z * z, (z - 0.5 * delta) * float(delta))


def _huber_backward(g: Value, x: Value, y: Value, how: int, delta: float) -> Value:
    d, share = x - y, _share(x, how)
    return where(
        compare("le", d, -float(delta)),
        g * (-share * delta),
        where(compare("ge", d, float(delta)), g * (share * delta), share * d * g),
    )


def _log_sigmoid(x: Value) -> Value:
    return pointwise("minimum", x, 0.0) - pointwise("log1p", pointwise("exp", -pointwise("abs", x)))


def _with_logits(
    x: Value, y: Value, weight: Value | None = None, positive: Value | None = None, how: int = _MEAN
) -> Value:
    log = _log_sigmoid(x)
    loss = (1.0 - y) * x - (log if positive is None else ((positive - 1.0) * y + 1.0) * log)
    return _reduced(loss if weight is None else loss * weight, how)


def _cross_entropy_backward(g: Value, x: Value, y: Value, weight: Value | None = None, how: int = _MEAN) -> Value:
    grad = g * (x - y) / pointwise("maximum", (1.0 - x) * x, 1e-12)
    grad = grad if weight is None else grad * weight
    return grad / into(x.numel, grad.dtype) if how == _MEAN else grad


TABLE |= {
    aten.mse_loss.default: _difference(lambda d: d * d),
    aten.mse_loss_backward.default: half_in_f32(lambda g, x, y, how: (x - y) * (2.0 * _share(x, how)) * g),
    aten.smooth_l1_loss.default: _difference(_smooth_l1),
    aten.smooth_l1_loss_backward.default: half_in_f32(_smooth_l1_backward),
    aten.huber_loss.default: _difference(_huber),
    aten.huber_loss_backward.default: half_in_f32(_huber_backward),
    aten.binary_cross_entropy_with_logits.default: half_in_f32(_with_logits),
    aten.binary_cross_entropy_backward.default: half_in_f32(_cross_entropy_backward),
}


@row(aten.log_sigmoid_forward.default)
def _log_sigmoid_forward(x: Value, *, out: Any) -> Any:
    if not x.dtype.is_floating_point:
        return NotImplemented
    wide = cast(x, wide_dtype(x.dtype))
    return cast(_log_sigmoid(wide), x.dtype), cast(pointwise("exp", -pointwise("abs", wide)), x.dtype)


@row(aten.log_sigmoid_backward.default)
def _log_sigmoid_backward(g: Value, x: Value, z: Value, *, out: Any) -> Any:
    if not out.dtype.is_floating_point:
        return NotImplemented
    g, x, z = (cast(v, wide_dtype(out.dtype)) for v in (g, x, z))
    z = z / (1.0 + z)
    return cast(where(compare("lt", x, 0.0), 1.0 - z, z) * g, out.dtype)


@row(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def _nll_backward(
    g: Value, x: Value, target: Value, weight: Value | None, how: int, ignored: int, total: Value, *, out: Any
) -> Any:
    """A target that is no class has made the forward, from which ``total`` comes, raise an error."""
    wide, shape = wide_dtype(out.dtype), x.shape
    dim = 0 if len(shape) == 1 else 1
    wanted = reshape(target, tuple(1 if d == dim else n for d, n in enumerate(shape)))
    wanted = cast(wanted, count(shape, dim).dtype)
    g, total = cast(g, wide), cast(total, wide)
    g = -(reshape(g, wanted.shape) if g.shape else g)
    if weight is not None:
        g = g * reshape(cast(weight, wide), tuple(n if d == dim else 1 for d, n in enumerate(shape)))
    g = g / total if how == _MEAN else g
    counted = where(compare("ne", wanted, ignored), cast(g, out.dtype), 0.0)  # first, as it is one number for each row
    return where(compare("eq", count(shape, dim), wanted), counted, 0.0)
