"""Calls whose numbers PyTorch takes in C++ as a ``double``, said in another way, in which a symbol stays one: what is
scheduled from step to step (the rate of a dropout, the scale of noise, a margin, a momentum).

The same numbers are drawn, and the same is computed, by the formulas of PyTorch's own composites. What cannot be said
in this way is ``NotImplemented``: it is called with the value, which is a guard then.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import SymFloat, Tensor
from torch.nn import functional

from ..generators import bernoulli
from ..torch_private.levels import transform_active
from .sized_calls import OF_SIZES
from .views import is_dense

_WIDE = torch.float32, torch.float64
_REDUCTIONS: dict[str, Callable[[Tensor], Tensor]] = {"none": lambda loss: loss, "mean": Tensor.mean, "sum": Tensor.sum}
_SATURATION = 1.7580993408473766
"""Of ``selu``, below: its scale times its alpha (arXiv:1706.02515)."""


def _in_order(tensor: Tensor) -> bool:
    """Whether numbers for a tensor are drawn in the order of its dimensions, as it stores them."""
    is_simple = tensor.device.type == "cpu" and tensor.dtype in _WIDE and not transform_active()
    return is_simple and is_dense(tensor) and list(tensor.stride()) == sorted(tensor.stride(), reverse=True)


# ── draws ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _bernoulli(input: Tensor, p: Any, *, generator: Any = None, out: Any = None) -> Any:
    if not _in_order(input) or not 0 <= p <= 1 or out is not None or input.requires_grad:
        return NotImplemented
    return bernoulli(input, p, generator=generator)


def _bernoulli_(self: Tensor, p: Any = 0.5, *, generator: Any = None) -> Any:
    if not _in_order(self) or not 0 <= p <= 1:
        return NotImplemented
    return self.copy_(bernoulli(self.detach(), p, generator=generator))


def _uniform_(self: Tensor, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None, **named: Any) -> Any:
    low, high = named.get("from", low), named.get("to", high)
    if not _in_order(self) or not low <= high or not math.isfinite(high - low):
        return NotImplemented
    return self.uniform_(generator=generator).mul_(high - low).add_(low)


def _normal_(self: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Any:
    if not _in_order(self) or not std >= 0:
        return NotImplemented
    return self.normal_(generator=generator).mul_(std).add_(mean)


def _exponential_(self: Tensor, lambd: Any = 1.0, *, generator: Any = None) -> Any:
    if not _in_order(self) or not lambd > 0:
        return NotImplemented
    return self.exponential_(generator=generator).div_(lambd)


def _normal(mean: Any, std: Any = 1.0, size: Any = None, *, generator: Any = None, out: Any = None, **like: Any) -> Any:
    tensors = [v for v in (mean, std) if isinstance(v, Tensor)]
    makes_new = out is None and (size is None) == bool(tensors) and not any(t.requires_grad for t in tensors)
    if not makes_new or not (isinstance(std, Tensor) or std >= 0):
        return NotImplemented
    made = torch.empty_like(tensors[0]) if tensors else torch.empty(size, **like)
    return made.normal_(generator=generator).mul_(std).add_(mean) if _in_order(made) else NotImplemented


def _dropped(input: Tensor, p: Any, training: bool, inplace: bool, is_alpha: bool, drawn: tuple[int, ...]) -> Any:
    """``drawn``: the shape of what is drawn."""
    if not _in_order(input) or not training or not 0 < p < 1 or not input.numel():
        return NotImplemented
    # a byte of each is kept for backward
    noise = bernoulli(torch.empty(drawn, dtype=torch.bool), 1 - p).to(input.dtype)
    if not is_alpha:
        noise = noise / (1 - p)
        return input.mul_(noise) if inplace else input * noise
    scale = 1 / ((_SATURATION * _SATURATION * p + 1) * (1 - p)) ** 0.5
    shift = (noise - 1) * (_SATURATION * scale) + _SATURATION * scale * p
    return input.mul_(noise * scale).add_(shift) if inplace else input * (noise * scale) + shift


def _dropout(is_alpha: bool = False) -> Callable[..., Any]:
    def dropout(input: Tensor, p: Any = 0.5, training: bool = not is_alpha, inplace: bool = False) -> Any:
        return _dropped(input, p, training, inplace, is_alpha, tuple(input.shape))

    return dropout


def _feature_dropout(*dims: int, is_alpha: bool = False) -> Callable[..., Any]:
    """Of samples of so many dimensions, the first two drawn for."""

    def dropout(input: Tensor, p: Any = 0.5, training: bool = not is_alpha, inplace: bool = False) -> Any:
        if input.dim() not in dims:
            return NotImplemented
        return _dropped(input, p, training, inplace, is_alpha, (*input.shape[:2], *(1,) * (input.dim() - 2)))

    return dropout


# ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _loss(formula: Callable[..., Any]) -> Callable[..., Any]:
    """A loss whose operands are alike, by the losses of its elements. (A product of a single element with a number has
    a tangent in float64.)"""

    @functools.wraps(formula)
    def loss(*given: Any, size_average: Any = None, reduce: Any = None, reduction: str = "mean", **more: Any) -> Any:
        tensors = [v for v in (*given, *more.values()) if isinstance(v, Tensor)]
        alike = len({t.shape for t in tensors}) == 1 and tensors[0].dim() > 0
        if size_average is not None or reduce is not None or reduction not in _REDUCTIONS or not alike:
            return NotImplemented
        found = formula(*given, **more)
        return found if found is NotImplemented else _REDUCTIONS[reduction](found)

    return loss


@_loss
def _huber_loss(input: Tensor, target: Tensor, *, delta: Any = 1.0, weight: Any = None) -> Any:
    if not delta > 0 or weight is not None:
        return NotImplemented
    far = (input - target).abs()
    return torch.where(far <= delta, 0.5 * far * far, delta * (far - 0.5 * delta))


@_loss
def _smooth_l1_loss(input: Tensor, target: Tensor, *, beta: Any = 1.0) -> Any:
    if not beta > 0:
        return NotImplemented
    far = (input - target).abs()
    return torch.where(far < beta, 0.5 * far * far / beta, far - 0.5 * beta)


@_loss
def _margin_ranking_loss(input1: Tensor, input2: Tensor, target: Tensor, margin: Any = 0.0) -> Any:
    return (-target * (input1 - input2) + margin).clamp_min(0)


@_loss
def _hinge_embedding_loss(input: Tensor, target: Tensor, margin: Any = 1.0) -> Any:
    zeros = torch.zeros_like(input)
    apart = torch.where(target != 1, (margin - input).clamp_min(0), zeros)
    return apart + torch.where(target != -1, input, zeros)


@_loss
def _triplet_margin_loss(
    anchor: Tensor, positive: Tensor, negative: Tensor, margin: Any = 1.0, p: Any = 2.0, eps: Any = 1e-6,
    swap: bool = False,
) -> Any:  # fmt: skip
    if not margin > 0:
        return NotImplemented
    distance = functools.partial(functional.pairwise_distance, p=p, eps=eps)
    near, far = distance(anchor, positive), distance(anchor, negative)
    if swap:
        far = torch.minimum(far, distance(positive, negative))
    return (margin + near - far).clamp_min(0)


def _cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: Any = 0, size_average: Any = None, reduce: Any = None,
    reduction: str = "mean",
) -> Any:  # fmt: skip
    by_row = input1.dim() > 1 and input1.shape == input2.shape == (*target.shape, input1.shape[-1])
    if size_average is not None or reduce is not None or reduction not in _REDUCTIONS or not by_row:
        return NotImplemented
    one, other = ((own * own).sum(-1) + 1e-12 for own in (input1, input2))
    cosine = (input1 * input2).sum(-1) / (one * other).sqrt()
    zeros = torch.zeros_like(cosine)
    near = torch.where(target == 1, 1 - cosine, zeros)
    return _REDUCTIONS[reduction](near + torch.where(target == -1, (cosine - margin).clamp_min(0), zeros))


def _cross_entropy(
    input: Tensor, target: Tensor, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: Any = 0.0,
) -> Any:  # fmt: skip
    is_by_class = not target.is_floating_point() and weight is None and 0 < target.dim() == input.dim() - 1
    if size_average is not None or reduce is not None or reduction not in _REDUCTIONS or not is_by_class:
        return NotImplemented
    if not 0 < label_smoothing <= 1:
        return NotImplemented
    logs, ignored = input.log_softmax(1), target == ignore_index
    of_target = functional.nll_loss(logs, target, ignore_index=ignore_index, reduction="none")
    of_all = (-logs.sum(1)).masked_fill(ignored, 0.0)
    loss = (1 - label_smoothing) * of_target + of_all * (label_smoothing / input.shape[1])
    return loss.sum() / (~ignored).sum() if reduction == "mean" else _REDUCTIONS[reduction](loss)


def _quantile(input: Tensor, q: Any, dim: Any = None, keepdim: bool = False, **more: Any) -> Any:
    is_one_of_many = not isinstance(q, Tensor) and more.get("out") is None and 0 <= q <= 1
    if not is_one_of_many or isinstance(dim, SymFloat):
        return NotImplemented
    return torch.quantile(input, torch.full((), q, dtype=input.dtype), dim, keepdim, **more)


# ── running statistics ───────────────────────────────────────────────────────────────────────────────────────────────


def _batch_norm(
    input: Tensor, running_mean: Tensor | None, running_var: Tensor | None, weight: Tensor | None = None,
    bias: Tensor | None = None, training: bool = False, momentum: Any = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """The statistics of the batch are those of a momentum of one."""
    if isinstance(eps, SymFloat) or running_mean is None or running_var is None or transform_active():
        return NotImplemented
    if not training:
        return functional.batch_norm(input, running_mean, running_var, weight, bias, training, 0.0, eps)
    own = torch.zeros_like(running_mean), torch.zeros_like(running_var)
    out = functional.batch_norm(input, *own, weight, bias, training, 1.0, eps)
    with torch.no_grad():
        for before, now in zip((running_mean, running_var), own, strict=True):
            before.copy_(momentum * now + (1 - momentum) * before)
    return out


OF_NUMBERS: dict[Any, Callable[..., Any]] = {
    **dict.fromkeys((torch.bernoulli, Tensor.bernoulli), _bernoulli),
    Tensor.bernoulli_: _bernoulli_,
    Tensor.uniform_: _uniform_,
    Tensor.normal_: _normal_,
    Tensor.exponential_: _exponential_,
    torch.normal: _normal,
    functional.dropout: _dropout(),
    functional.alpha_dropout: _dropout(is_alpha=True),
    functional.dropout1d: _feature_dropout(3),
    functional.dropout2d: _feature_dropout(4),
    functional.dropout3d: _feature_dropout(5),
    functional.feature_alpha_dropout: _feature_dropout(2, 3, 4, 5, is_alpha=True),
    functional.huber_loss: _huber_loss,
    functional.smooth_l1_loss: _smooth_l1_loss,
    functional.margin_ranking_loss: _margin_ranking_loss,
    functional.hinge_embedding_loss: _hinge_embedding_loss,
    functional.triplet_margin_loss: _triplet_margin_loss,
    functional.cosine_embedding_loss: _cosine_embedding_loss,
    functional.cross_entropy: _cross_entropy,
    **dict.fromkeys((torch.quantile, Tensor.quantile), _quantile),
    functional.batch_norm: _batch_norm,
}
"""What a function called with numbers of which some are symbols is, in other words."""


def with_symbols(function: Any, args: Any, kwargs: dict[str, Any], otherwise: Callable[..., Any]) -> Any:
    """A call where sizes and numbers may be symbols: ``otherwise``, where it has no other words, or needs none."""
    said = OF_NUMBERS.get(function)
    if said is not None and any(isinstance(v, SymFloat) for v in (*args, *kwargs.values())):
        found = said(*args, **kwargs)
        if found is not NotImplemented:
            return found
    return OF_SIZES.get(function, otherwise)(*args, **kwargs)
