"""What stands for calls of a graph where it runs inside of transforms: operators that vmap has no rule for, or a
wrong or a stricter one, those of backward passes that have no derivative, and control flow, which is traced once more,
and not unrolled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import control_flow
from ..capture.applied import apply
from ..capture.control_flow import Choice, Scan, While
from ..capture.running_statistics import whole_batch
from ..capture.trace import Trace, active_trace
from ..graphs import Graph
from ..levels import below_levels
from ..torch_private.levels import dual_parts, outside_transforms
from ..torch_private.operators import decomposed
from ..torch_private.tensors import is_tracked_wrapper, is_transform_wrapper, wrapped_value

aten = torch.ops.aten


def _copied(target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
    return source.to(target.dtype).expand(target.shape).clone()


def _filled(target: Tensor, value: Any) -> Tensor:
    return _copied(target, value) if isinstance(value, Tensor) else torch.full_like(target, value)


def _as_strided_put(
    target: Tensor, source: Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any = None
) -> Tensor:
    at = torch.full([], offset or 0, dtype=torch.int64, device=target.device)
    for n, step in zip(size, stride, strict=True):
        at = at.unsqueeze(-1) + torch.arange(n, device=target.device) * step
    return target.reshape(-1).index_put((at.reshape(-1),), source.reshape(-1)).reshape(target.shape)


def _slice_put(
    target: Tensor, source: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Tensor:
    """Under vmap the bounds are taken as they stand: one from the end, or beyond it, as a slice of Python may have."""
    n = target.shape[dim]

    def within(at: Any) -> Any:
        at = at + n if at < 0 else at
        return 0 if at < 0 else n if at > n else at

    first = within(0 if start is None else start)
    last = within(n if end is None else end)
    put: Tensor = aten.slice_scatter.default(target, source, dim, first, first if last < first else last, step)
    return put


def _body(graph: Graph) -> Callable[..., tuple[Any, ...]]:
    return lambda *values: graph.run(*values, instead=MAPPED)


def _trace() -> Trace:
    trace = active_trace()
    assert trace is not None, "graphs run inside of transforms only where these are traced"
    return trace


def _choose(condition: Tensor, if_true: Graph, if_false: Graph, operands: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return apply(Choice(_trace(), _body(if_true), _body(if_false)), [condition, *operands])


def _scan(
    body: Graph, reverse: bool, init: Sequence[Tensor], xs: Sequence[Tensor], constants: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    return Scan.run(_trace(), _body(body), init, xs, constants, reverse=reverse)


def _repeat(condition: Graph, body: Graph, carry: Sequence[Tensor], constants: Sequence[Tensor]) -> tuple[Tensor, ...]:
    flow = While(_trace(), _body(condition), _body(body), len(carry))
    return apply(flow, [*(t.contiguous() for t in carry), *constants])


def is_opaque(value: Any) -> bool:
    """Whether no level of reverse mode knows a value."""
    if not isinstance(value, Tensor):
        return True
    while is_transform_wrapper(value):
        if is_tracked_wrapper(value):
            return False
        value = wrapped_value(value)
    return not value.requires_grad


def _is_differentiated(value: Any) -> bool:
    """Whether some level of autograd knows a value."""
    return isinstance(value, Tensor) and (dual_parts(value)[1] is not None or not is_opaque(value))


def _with_derivative(op: Any) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return (decomposed(op) if any(map(_is_differentiated, args)) else op)(*args, **kwargs)

    return call


def _batch_norm(
    input: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    """Of samples that share running statistics, these are updated once, from the whole batch (``running_statistics``
    says so of the function itself)."""
    running = running_mean, running_var
    if not training:
        return *_batch_norm_in_evaluation(input, weight, bias, *running, momentum, eps), *running
    out, *saved = aten._native_batch_norm_legit.no_stats(input, weight, bias, True, momentum, eps)
    shared = [below_levels(r) for r in running]
    whole, is_mapped = whole_batch(input)
    if is_mapped and all(r is not None for r in shared):
        with outside_transforms(), torch.no_grad():
            after = aten._native_batch_norm_legit_functional(whole, None, None, *shared, True, momentum, eps)[-2:]
        return out, *saved, *after
    var, mean = torch.var_mean(input, [0, *range(2, input.dim())])
    return (
        out,
        *saved,
        *(torch.lerp(old, new.to(old.dtype), momentum) for old, new in zip(running, (mean, var), strict=True)),
    )


def _batch_norm_in_evaluation(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, momentum: float, eps: float
) -> tuple[Tensor, ...]:
    return torch.native_batch_norm(input, weight, bias, mean, var, False, momentum, eps)


_WITHOUT_DERIVATIVE = (
    aten.hardsigmoid_backward.default,
    aten.huber_loss_backward.default,
    aten.logit_backward.default,
    aten.mish_backward.default,
    aten.native_group_norm_backward.default,
    aten.nll_loss_backward.default,
    aten.nll_loss2d_backward.default,
    aten.silu_backward.default,
    aten.soft_margin_loss_backward.default,
)
"""What computes gradients and has none itself, or no tangent, though what it is the gradient of has second ones, or
tangents."""


MAPPED: Mapping[Any, Any] = {
    **{op: _with_derivative(op) for op in _WITHOUT_DERIVATIVE},
    aten._native_batch_norm_legit_functional.default: _batch_norm,
    aten._native_batch_norm_legit_no_training.default: _batch_norm_in_evaluation,
    aten.as_strided_scatter.default: _as_strided_put,
    aten.copy.default: _copied,
    aten.fill.Scalar: _filled,
    aten.fill.Tensor: _filled,
    aten.slice_scatter.default: _slice_put,
    aten.view.default: torch.reshape,
    aten.zero.default: torch.zeros_like,
    control_flow.choose: _choose,
    control_flow.scan: _scan,
    control_flow.repeat: _repeat,
}
"""Calls of graphs, and functions of the same numbers that transforms apply to."""
