"""The steps of fused optimisers as ordinary tensor code, by the formulas of PyTorch's kernels: its operators write
to lists of tensors, one of which may be empty, or have no fake form, and so are not traced. Kernels fuse the code
again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_private.operators import FUSED_ADAGRAD, FUSED_ADAM, FUSED_ADAMW, FUSED_SGD
from .error_translation import unsupported_operator

Tensors = Sequence[Tensor]


def _require_unscaled(grad_scale: Tensor | None, found_inf: Tensor | None) -> None:
    if grad_scale is not None or found_inf is not None:
        raise unsupported_operator(
            "a fused step that a gradient scaler scales", "optimizer.step() of gradients without a scale"
        )


def _falling(param: Tensor, grad: Tensor, weight_decay: float, maximize: bool) -> Tensor:
    """The gradient to go down along, of what is minimised with a penalty."""
    grad = -grad if maximize else grad
    return grad + param * weight_decay if weight_decay else grad


def _adam(decoupled: bool) -> Callable[..., None]:
    def step(
        params: Tensors, grads: Tensors, averages: Tensors, squares: Tensors, most: Tensors, steps: Tensors, *, lr: Any,
        beta1: float, beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool,
        grad_scale: Any = None, found_inf: Any = None,
    ) -> None:  # fmt: skip
        _require_unscaled(grad_scale, found_inf)
        for i, (param, average, square) in enumerate(zip(params, averages, squares, strict=True)):
            count = steps[i].double()
            grad = _falling(param, grads[i], 0.0 if decoupled else weight_decay, maximize)
            if decoupled and weight_decay:
                param.mul_(1 - lr * weight_decay)
            average.add_((grad - average) * (1 - beta1))
            square.copy_(square * beta2 + grad * grad * (1 - beta2))
            if amsgrad:
                torch.maximum(most[i], square, out=most[i])
            root = (most[i] if amsgrad else square).sqrt() / (1 - beta2**count).sqrt().to(square.dtype)
            param.sub_((lr / (1 - beta1**count)).to(param.dtype) * average / (root + eps))

    return step


def _sgd(
    params: Tensors, grads: Tensors, momenta: Tensors, *, weight_decay: float, momentum: float, lr: Any,
    dampening: float, nesterov: bool,
    maximize: bool, is_first_step: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    _require_unscaled(grad_scale, found_inf)
    for i, param in enumerate(params):
        grad = _falling(param, grads[i], weight_decay, maximize)
        if momentum:
            momenta[i].copy_(grad if is_first_step else momenta[i] * momentum + grad * (1 - dampening))
            grad = grad + momenta[i] * momentum if nesterov else momenta[i]
        param.sub_(lr * grad)


def _adagrad(
    params: Tensors, grads: Tensors, sums: Tensors, steps: Tensors, *, lr: Any, lr_decay: float, weight_decay: float,
    eps: float, maximize: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    _require_unscaled(grad_scale, found_inf)
    for param, given, total, count in zip(params, grads, sums, steps, strict=True):
        grad = _falling(param, given, weight_decay, maximize)
        total.add_(grad * grad)
        rate = lr / (1 + (count.double() - 1) * lr_decay)
        param.sub_(grad * rate.to(param.dtype) / (total.sqrt() + eps))


FUSED_STEPS: dict[Any, Callable[..., None]] = {
    FUSED_ADAM: _adam(False),
    FUSED_ADAMW: _adam(True),
    FUSED_SGD: _sgd,
    FUSED_ADAGRAD: _adagrad,
}
