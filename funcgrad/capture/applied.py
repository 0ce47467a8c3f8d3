"""Calls with derivatives and a batched form of their own: control flow, and Python that no trace sees. Autograd and
``torch.func`` come to these rules by one ``autograd.Function``, traced or not."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..inside import having
from .derived import Gradients, is_differentiable
from .trace import active_trace


class Applied(Protocol):
    """A call of tensors. Those of control flow are in one sequence: those that are computed with, then what the bodies
    close over."""

    @property
    def has_derivative(self) -> bool:
        """Whether there is one, of what is saved for it."""

    def record(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, on tensors that no transform wraps."""

    def pulled(
        self, tensors: Sequence[Tensor], outs: Sequence[Tensor], cotangents: Gradients, needed: Sequence[bool]
    ) -> Gradients:
        """Reverse mode: the gradients of the tensors."""

    def pushed(self, tensors: Sequence[Tensor], outs: Sequence[Tensor], tangents: Gradients) -> Gradients:
        """Forward mode: the tangents of the results."""

    def batched(
        self, tensors: Sequence[Tensor], dims: Sequence[int | None], size: int, randomness: str
    ) -> tuple[Any, Any]:
        """Under ``vmap``: results of the whole batch, and the dimension of each that is the batch's."""


def apply(call: Applied, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The results of a call, differentiable to every order."""
    outs: tuple[Any, ...] = _Apply.apply(call, *tensors)  # type: ignore[no-untyped-call]
    return tuple(out for out in outs if out is not None)


class _Apply(torch.autograd.Function):
    is_pure = True
    records_itself = True

    @staticmethod
    def forward(call: Applied, *tensors: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        return call.record(tensors) or (None,)  # autograd knows of no function without a result

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.call, *tensors = inputs
        outs = [out for out in output if out is not None]
        ctx.n = len(tensors)
        ctx.mark_non_differentiable(*[out for out in outs if not is_differentiable(out)])
        if ctx.call.has_derivative:
            ctx.save_for_backward(*tensors, *outs)
            ctx.save_for_forward(*tensors, *outs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        tensors, outs = ctx.saved_tensors[: ctx.n], ctx.saved_tensors[ctx.n :]
        trace = active_trace()
        # what forward saved is read, not what inputs hold by then: these are our rules, not the caller's Python
        with contextlib.nullcontext() if trace is None else having(trace, rereads={}):
            return None, *ctx.call.pulled(tensors, outs, cotangents, ctx.needs_input_grad[1:])

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: Any) -> Any:
        tensors, outs = ctx.saved_tensors[: ctx.n], ctx.saved_tensors[ctx.n :]
        return tuple(ctx.call.pushed(tensors, outs, tangents)) or (None,)

    @staticmethod
    def vmap(info: Any, in_dims: Any, call: Applied, *tensors: Tensor) -> Any:
        outs, dims = call.batched(tensors, in_dims[1:], info.batch_size, info.randomness)
        return outs or (None,), dims or (None,)
