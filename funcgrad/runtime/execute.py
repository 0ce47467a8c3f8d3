"""How a program runs where its result must be differentiable: as an autograd Function of its flat inputs.

The forward half returns outputs and saved values, the backward half takes them back. A backward pass that must itself be
differentiable (``create_graph=True``) goes through ``pullback``: the compiled vector-Jacobian product as a function of the
inputs and the incoming gradients, differentiable like any other compiled function, so that every order exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..backends.backend import Runnable
from ..torch_private import below_autograd

Pullback = Callable[[Sequence[Any], Sequence[Tensor]], Sequence[Tensor | None]]


@frozen(eq=False)
class Differentiable:
    """The two halves of a program and how their values are laid out.

    ``forward`` returns ``n_outs`` outputs, then saved values; ``differentiable`` are the outputs that require grad.
    ``backward`` takes the inputs at ``kept_inputs``, the saved values, and one incoming gradient per differentiable
    output (with the strides in ``tangent_strides``); it returns the gradients of the inputs at ``backward_gradients``.
    ``backward`` is None for a program that is itself a gradient: its derivative is compiled when it is first asked for.
    ``pullback`` returns a gradient or None for every input that requires grad: those at ``gradient_inputs``.
    """

    forward: Runnable
    backward: Runnable | None
    n_outs: int
    differentiable: tuple[int, ...]
    tangent_strides: tuple[tuple[int, ...], ...]
    kept_inputs: tuple[int, ...]
    backward_gradients: tuple[int, ...]
    gradient_inputs: tuple[int, ...]
    pullback: Pullback
    draws: bool
    """Whether forward draws random numbers: a derivative that runs it again must draw the same."""

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        outs: tuple[Any, ...] = _Apply.apply(self, *inputs)  # type: ignore[no-untyped-call]
        return outs


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: Differentiable, *inputs: Any) -> tuple[Any, ...]:
        ctx.generator = torch.get_rng_state() if program.draws else None
        # Below autograd nothing is tracked, but grad mode is on as it was in the trace: some kernels ask for it (oneDNN's RNN).
        with below_autograd(), torch.enable_grad():
            values = program.forward(*inputs)
        outs, saved = tuple(values[: program.n_outs]), values[program.n_outs :]
        kept = [inputs[i] for i in program.kept_inputs] + list(saved)
        ctx.program = program
        ctx.save_for_backward(*[v if isinstance(v, Tensor) else None for v in kept])
        ctx.scalars = [None if isinstance(v, Tensor) else v for v in kept]
        # For a second derivative only. Not among the saved tensors: eager PyTorch lets a bias be updated before backward.
        ctx.inputs = inputs
        ctx.versions = [v._version if isinstance(v, Tensor) and not v.is_inference() else 0 for v in inputs]
        ctx.mark_non_differentiable(*[v for i, v in enumerate(outs) if i not in program.differentiable and isinstance(v, Tensor)])
        return outs

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Any, ...]:
        program: Differentiable = ctx.program
        tangents = [incoming[i] for i in program.differentiable]
        saved = ctx.saved_tensors  # raises, as in eager PyTorch, if a value was changed in place or freed
        if torch.is_grad_enabled() or program.backward is None:
            _require_unchanged(ctx)
            places = program.gradient_inputs
            with torch.random.fork_rng(enabled=program.draws):
                if program.draws:
                    torch.set_rng_state(ctx.generator)
                gradients = program.pullback(ctx.inputs, tangents)
        else:
            laid_out = [_with_strides(t, s) for t, s in zip(tangents, program.tangent_strides, strict=True)]
            kept = [t if t is not None else scalar for t, scalar in zip(saved, ctx.scalars, strict=True)]
            places, gradients = program.backward_gradients, program.backward(*kept, *laid_out)
        result: list[Any] = [None] * (1 + len(ctx.inputs))
        for i, gradient in zip(places, gradients, strict=True):
            result[1 + i] = gradient
        return tuple(result)


def _with_strides(tangent: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The incoming gradient in the layout backward was compiled for.

    Where a kernel's output has another rank than its meta function says (multilabel_margin_loss), it is taken as it is.
    """
    if tangent.stride() == strides or tangent.dim() != len(strides):
        return tangent
    return torch.empty_strided(tangent.shape, strides, dtype=tangent.dtype, device=tangent.device).copy_(tangent)


def _require_unchanged(ctx: Any) -> None:
    for value, version in zip(ctx.inputs, ctx.versions, strict=True):
        if isinstance(value, Tensor) and not value.is_inference() and value._version != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: an input of shape "
                f"{list(value.shape)} is at version {value._version}; expected version {version} instead"
            )
