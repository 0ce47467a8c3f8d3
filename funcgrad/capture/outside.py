"""Calls the trace does not look into: what torch's own library asks of tensor *values*, answered without them.

A few library functions read values where nothing but a check or a hint depends on them. The caller could not rewrite
that code, so it is answered here; a value read in the caller's own code is an error that names the line.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .. import refusals
from ..state.lines import user_line
from ..subclasses import is_traced
from ..torch_private.levels import parameters_at_levels
from ..torch_private.operators import operator_of_functions
from ..torch_private.tensors import unwrap_transform
from .error_translation import unsupported_operator
from .fused_steps import FUSED_STEPS
from .memory import overlaps_itself
from .quasirandom import SOBOL_SEQUENCES
from .running_statistics import RUNNING
from .source_location import is_called_by
from .traced_sizes import whole_part

_CALLS = {
    "wrap",
    "custom_function_call",
    "wrap_with_set_grad_enabled",
    "wrap_with_autocast",
    "tag_activation_checkpoint",
    "invoke_quant",
    "out_dtype",
}
"""Higher-order operators that a trace sees through."""

_INSTEAD = {
    "while_loop_stack_output": "torch._higher_order_ops.scan, over as many steps as there may be",
    "flex_attention": "torch.nn.functional.scaled_dot_product_attention",
}


def require_compiled_operator(func: Any) -> None:
    """Raise ``UnsupportedOperatorError`` for a higher-order operator that no trace carries out: its functions would
    be lost."""
    name = operator_of_functions(func)
    if name is not None and name not in _CALLS:
        raise unsupported_operator(
            f"the function calls the higher-order operator {name}", _INSTEAD.get(name, "what it computes in torch")
        )


VALUE_CHECKS: dict[Any, str] = {torch.nn.functional.gaussian_nll_loss: "var has negative entry/entries"}
"""Functions that read values only to reject them (``if tensor: raise``), with the message of the ValueError they raise.

While one runs under the trace, each value it reads is taken to be false, and checked when the program runs."""


_PHASE = (
    "svd_backward: The singular vectors in the complex case are specified up to multiplication by e^{i phi}. The "
    "specified loss function depends on this phase term, making it ill-defined."
)
BACKWARD_CHECKS: dict[str | None, str] = {"LinalgSvdBackward0": _PHASE}
"""Nodes of autograd that ask whether values are close, only to raise a RuntimeError where they are not, with its
message."""


_OF_EIGENVECTORS = (
    "{}: The eigenvectors in the complex case are specified up to multiplication by e^{{i phi}}. The specified loss "
    "function depends on this quantity, so it is ill-defined."
)
PHASE_CHECKS: dict[str | None, str] = {
    "LinalgEigBackward0": _OF_EIGENVECTORS.format("linalg_eig_backward"),
    "LinalgEighBackward0": _OF_EIGENVECTORS.format("linalg_eigh_backward"),
}
"""Nodes of autograd that ask the same, but not of tensor subclasses, and so of none in a trace: whether the diagonal
that they take first is real."""


def _with_lengths_as_tensors(ctc_loss: Callable[..., Any]) -> Callable[..., Any]:
    """ctc_loss makes a tensor of lengths given as ints in C++ and reads it at once: give it tensors from the start."""

    def call(log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, *rest: Any, **more: Any) -> Any:
        lengths = [
            v if isinstance(v, Tensor) else torch.tensor(v, dtype=torch.int64) for v in (input_lengths, target_lengths)
        ]
        return ctc_loss(log_probs, targets, *lengths, *rest, **more)

    return call


def _contiguous_in_training(rrelu: Callable[..., Any]) -> Callable[..., Any]:
    """What ``rrelu`` returns in training is contiguous in eager PyTorch, in place aside; the functional form keeps
    strides."""

    def call(
        input: Tensor,
        lower: float = 1 / 8,
        upper: float = 1 / 3,
        training: bool = False,
        inplace: bool = False,
        **more: Any,
    ) -> Any:
        given = (lower, upper, training, inplace) if rrelu is torch.nn.functional.rrelu else (lower, upper, training)
        return rrelu(input.contiguous() if training and not inplace else input, *given, **more)

    return call


def _of_whole_targets(loss: Callable[..., Any]) -> Callable[..., Any]:
    """A loss that takes classes as bytes, too, but not of images: on fake tensors, PyTorch looks them up as an
    index, which is no byte."""

    def call(input: Any, target: Any, *rest: Any, **more: Any) -> Any:
        is_bytes = isinstance(target, Tensor) and target.dtype == torch.uint8 and input.ndim <= 2
        return loss(input, target.long() if is_bytes else target, *rest, **more)

    return call


def _one_hot(input: Tensor, num_classes: int = -1) -> Any:
    """As eager PyTorch makes it, by an index that may be wrong; on fake tensors it compares with each class, as
    always in ``vmap``."""
    of_largest = num_classes == -1 and input.numel() > 0
    if input.dtype != torch.int64 or unwrap_transform(input).ndim > input.ndim or (num_classes < 0 and not of_largest):
        return torch.nn.functional.one_hot(input, num_classes)
    if of_largest:
        num_classes = input.max().item() + 1  # type: ignore[assignment]
    return input.new_zeros((*input.shape, num_classes)).scatter(-1, input.unsqueeze(-1), 1)


def _dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
    """Where all is dropped nothing is drawn; on fake tensors PyTorch takes the operator that draws for that, too."""
    if not training or p != 1:
        return torch.nn.functional.dropout(input, p, training, inplace)
    return input.mul_(input.new_zeros(())) if inplace else input * input.new_zeros(())


def _of_a_batch(f: Callable[..., Any], ndim: int) -> Callable[..., Any]:
    """Dropout in place of an input of ``ndim`` dimensions without one for a batch: on a view that has one. PyTorch
    gives it to the input itself, and takes it off again, inside of a call where nobody hears of it."""

    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not inplace or input.ndim != ndim:
            return f(input, p, training, inplace)  # type: ignore[no-any-return]
        f(input.unsqueeze(0), p, training, True)
        return input

    return dropout


def _without_memory(f: Callable[..., Any]) -> Callable[..., Any]:
    """A tensor made of data on the meta device, where PyTorch hands it out past all modes."""

    def make(*args: Any, **kwargs: Any) -> Tensor:
        made: Tensor = f(*args, **kwargs)
        if not made.is_meta or is_traced(made):
            return made
        return torch.empty(made.shape, dtype=made.dtype, device=made.device, requires_grad=made.requires_grad)

    return make


def _dequantized(f: Callable[..., Any]) -> Callable[..., Any]:
    """What is not quantised is itself, or its cast; functionalisation would copy it."""

    def call(tensor: Any) -> Any:
        is_plain = isinstance(tensor, Tensor) and not tensor.is_quantized
        is_tracked = is_plain and tensor.requires_grad and torch.is_grad_enabled()  # it has no derivative
        return tensor.to(torch.float32) if is_plain and not is_tracked else f(tensor)

    return call


def _requires_grad(tensor: Tensor, requires_grad: bool = True) -> Tensor:
    """Levels of torch.func forbid it, but ``nn.Parameter``, which asks it of what stands for its tensor, may be made at
    any."""
    of_parameter = is_called_by(nn.Parameter.__new__, depth=2)
    with parameters_at_levels() if of_parameter else contextlib.nullcontext():
        return Tensor.requires_grad_(tensor, requires_grad)


_OF_MANY_VALUES = ("exponential", "log_normal", "geometric", "cauchy")


def _drawn_into(method: Callable[..., Any], op: Any) -> Callable[..., Any]:
    """A draw in place from a generator that is named, which kernels without memory do not take."""

    def draw(self: Tensor, *args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Any:
        if generator is None:
            return method(self, *args, **kwargs)
        return self.copy_(op(self.detach(), *args, generator=generator, **kwargs))

    return draw


REWRITES: dict[Any, Callable[..., Any]] = {
    **{
        getattr(Tensor, f"{name}_"): _drawn_into(getattr(Tensor, f"{name}_"), getattr(torch.ops.aten, name).default)
        for name in _OF_MANY_VALUES
    },
    Tensor.requires_grad_: _requires_grad,
    **{f: _without_memory(f) for f in (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)},
    **{f: _with_lengths_as_tensors(f) for f in (torch.ctc_loss, torch.nn.functional.ctc_loss)},
    **{f: _contiguous_in_training(f) for f in (torch.rrelu, torch.nn.functional.rrelu)},
    **{f: _of_whole_targets(f) for f in (torch.nn.functional.nll_loss, torch.nn.functional.cross_entropy)},
    **{f: _dequantized(f) for f in (torch.dequantize, Tensor.dequantize)},
    torch.nn.functional.one_hot: _one_hot,
    **FUSED_STEPS,
    **RUNNING,
    **SOBOL_SEQUENCES,
    torch.nn.functional.dropout: _dropout,
    torch.nn.functional.dropout1d: _of_a_batch(torch.nn.functional.dropout1d, 2),
    torch.nn.functional.dropout3d: _of_a_batch(torch.nn.functional.dropout3d, 4),
    Tensor.__int__: whole_part,
}
"""Functions called in another way while tracing, with the same meaning."""


def _ctc_loss(log_probs: Tensor, targets: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    """Sizes of ``_ctc_loss``: the second result is a table for its own backward, as long as the longest target at
    most."""
    steps, batch = log_probs.shape[0], log_probs.shape[1]
    return log_probs.new_empty(batch), log_probs.new_empty(batch, steps, 2 * targets.shape[-1] + 1)


def _ctc_loss_backward(grad: Tensor, log_probs: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(log_probs, memory_format=torch.contiguous_format)


def _grouped_mm(
    a: Tensor, b: Tensor, offs: Tensor | None = None, bias: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor:
    """Sizes of ``_grouped_mm``, whose rows begin at multiples of 16 bytes. PyTorch's own fakes know it in bfloat16
    alone, and not in the dtypes that the operator takes besides."""
    of_groups = () if a.dim() != b.dim() else (a.shape[0] if offs is None else offs.shape[0],)
    rows, columns = (a.shape[1] if a.dim() > b.dim() else a.shape[-2]), b.shape[-1]
    aligned = 16 // a.element_size()
    padded = (columns + aligned - 1) // aligned * aligned
    strides = (*(rows * padded for _ in of_groups), padded, 1)
    return a.new_empty_strided((*of_groups, rows, columns), strides, dtype=out_dtype)


def _drawn(op: Any) -> Callable[..., Tensor]:
    """Sizes of what is drawn from a generator that is named: where none is named, as kernels without memory take the
    sizes of the other as numbers, or do not take it."""
    return lambda *sizes, generator=None, **kind: op(*sizes, **kind)


FAKE_RESULTS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.rand.generator: _drawn(torch.ops.aten.rand.default),
    torch.ops.aten.randn.generator: _drawn(torch.ops.aten.randn.default),
    torch.ops.aten.randint.generator: _drawn(torch.ops.aten.randint.default),
    torch.ops.aten.randint.low_generator: _drawn(torch.ops.aten.randint.low),
    torch.ops.aten.randperm.generator: _drawn(torch.ops.aten.randperm.default),
    **{op: _drawn(op) for op in (getattr(torch.ops.aten, name).default for name in _OF_MANY_VALUES)},
    torch.ops.aten._grouped_mm.default: _grouped_mm,
    torch.ops.aten._ctc_loss.default: _ctc_loss,
    torch.ops.aten._ctc_loss.Tensor: _ctc_loss,
    torch.ops.aten._ctc_loss_backward.default: _ctc_loss_backward,
    torch.ops.aten._ctc_loss_backward.Tensor: _ctc_loss_backward,
}
"""Ops with a size that depends on values, but only in a result that nothing but their own backward reads; that
backward, and others of which PyTorch says nothing where sizes are symbols."""


def require_fitting_values(target: Tensor, indices: Sequence[Tensor | None], values: Tensor) -> None:
    """What eager PyTorch raises for ``index_put`` of values that do not fit where they go, which fake tensors do not
    ask."""
    if any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices):
        return  # how many there are depends on values
    shape = torch.ops.aten.index.Tensor(target, list(indices)).shape
    sizes = zip(reversed(values.shape), reversed(shape), strict=False)
    if values.dim() > len(shape) or any(n not in (1, m) for n, m in sizes):
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to indexing result of "
            f"shape {list(shape)}"
        )


FILLS = {torch.ops.aten.zero_.default, torch.ops.aten.fill_.Scalar, torch.ops.aten.fill_.Tensor}
"""The only ops that may write to an expanded tensor."""


def _zero_tangent(like: Tensor, primal: Tensor, batch_dims: int) -> tuple[Any, Any, Any] | None:
    """The call that makes zeros that lie in memory as a primal does, which forward mode relies on: those of an
    expanded one, which would lie over one another, do not. None where torch's own operator is to make them."""
    if overlaps_itself(primal) or (primal.is_contiguous() and not primal.storage_offset()):
        return torch.ops.aten.new_zeros.default, (like, [*like.shape[:batch_dims], *primal.shape]), {}
    return None


def rewrite(op: Any, args: Any, kwargs: Any) -> tuple[Any, Any, Any]:
    """The call to make in place of one that writes to its arguments without saying so in its schema, or whose result
    cannot be written to.

    Batch normalisation updates the running statistics it is given; the form that says so can be functionalised.
    """
    aten = torch.ops.aten
    if op is aten.native_batch_norm.default and args[5] and args[3] is not None:
        return aten._native_batch_norm_legit.default, args, kwargs
    if op is aten._new_zeros_with_same_feature_meta.default:
        return _zero_tangent(args[0], args[1], kwargs.get("self_num_batch_dims", 0)) or (op, args, kwargs)
    if op is aten.cudnn_batch_norm.default and args[5] and args[3] is not None:
        raise refusals.CUDNN_STATISTICS(where=user_line())
    return op, args, kwargs
