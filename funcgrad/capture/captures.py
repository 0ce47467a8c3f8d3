"""Real tensors and what stands for them in a trace; which tensors can be traced at all."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from .. import refusals
from ..levels import level_of_call
from ..state.lines import user_line
from ..subclasses import Wrapping
from ..torch_private.levels import transform_active
from ..torch_private.tensors import is_transform_wrapper, is_wrapper_subclass, is_zero_tensor


@attrs.define(eq=False)
class Lifted:
    """A real tensor the function closes over, and the functional tensor that stands for it."""

    real: Tensor
    functional: Tensor
    where: str | None


def detached(real: Tensor) -> Tensor:
    """What is made a fake tensor: autograd history stays outside, and a Parameter becomes a plain tensor. Of a
    tensor of a level of torch.func, one that lies as it does."""
    return in_own_memory(real) if is_transform_wrapper(real) else real.detach()


def in_own_memory(real: Tensor) -> Tensor:
    """A tensor that lies as another one does, from the beginning of a memory of its own."""
    return torch.empty_strided(real.shape, real.stride(), dtype=real.dtype, device=real.device)


def detached_part(real: Tensor) -> Tensor:
    """The same as ``detached``, of what may be a part of a larger memory: how large that is, is not part of it."""
    own = detached(real)
    is_whole = own.layout is not torch.strided or own.untyped_storage().nbytes() == own.nbytes
    return own if is_whole else in_own_memory(own)


class GradientsMatter(BaseException):  # a signal the function must not catch, not an error
    """Grad mode is off outside the function, which switches it on, or asks whether a tensor requires grad: stand-ins
    must say."""


def require_traceable(tensor: Tensor, where: str | None) -> None:
    """Raise ``UnsupportedTensorError`` for a tensor that can be no input: one that is not dense, a subclass that is
    no wrapper."""
    kind = type(tensor)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise refusals.NOT_DENSE(
            "quantized tensor" if tensor.is_quantized else f"tensor with layout {tensor.layout}",
            "dequantize" if tensor.is_quantized else "to_dense",
            where=where or user_line(),
        )
    if is_zero_tensor(tensor):
        raise refusals.SYMBOLIC_ZEROS(where=where or user_line())
    if is_wrapper_subclass(tensor):
        _require_sound_protocol(tensor, where)
    elif is_lazy(tensor):
        # under a transform of torch.func, eager PyTorch refuses to make it, or ends the process
        under = transform_active() or level_of_call() >= 0
        raise (refusals.LAZY_MODULE if under else refusals.INITIALISES_LAZY_MODULE)(
            kind.__name__, where=where or user_line()
        )
    elif kind not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise refusals.SUBCLASS_WITHOUT_FLATTEN(kind.__name__, where=where or user_line())


_MAKES = {
    "sparse": (
        "a sparse tensor",
        "compute with dense tensors (index_put, scatter_add, sparse=False), or make it sparse outside",
    ),
    "quantize_per": ("a quantized tensor", "torch.fake_quantize_per_tensor_affine, or quantize the result outside"),
    "quantized_tensor": ("a quantized tensor", "torch.fake_quantize_per_tensor_affine, or quantize the result outside"),
    "to_mkldnn": ("a tensor with layout torch._mkldnn", "leave it dense"),
    "nested": ("a nested tensor", "pad it: torch.nn.utils.rnn.pad_sequence, with a mask"),
}
"""Words in the names of operators that make, or work on, tensors that are not dense; what those are, and what to do
instead."""


@functools.cache
def _made_by(op: Any) -> tuple[str, str] | None:
    name = op.name().removeprefix("aten::")
    if op.namespace != "aten" or name.startswith(("fake_", "_fake_", "is_")):
        return None
    return next((made for word, made in _MAKES.items() if word in name), None)


def require_dense(op: Any) -> None:
    """Raise ``UnsupportedTensorError`` for an operator that makes a tensor that is not dense: functionalisation
    cannot wrap it."""
    made = _made_by(op)
    if made is not None:
        what, fix = made
        raise refusals.MAKES_SPARSE(what, op, fix, where=user_line())


def require_dense_results(op: Any, results: Iterable[Tensor]) -> None:
    """Raise ``UnsupportedTensorError`` where an operator made a tensor that is not dense (a sparse gradient),
    whatever its name."""
    for result in results:
        if result.layout is not torch.strided:
            raise refusals.MAKES_LAYOUT(op, result.layout, where=user_line())


def _require_sound_protocol(tensor: Tensor, where: str | None) -> None:
    """A wrapper subclass is known by its inner tensors and its metadata, which must say whether a program fits
    another one."""
    wrapping = Wrapping.of(tensor)
    assert wrapping is not None
    for name, _ in wrapping.inner:
        require_traceable(getattr(tensor, name), f"{where or user_line()}.{name}")
    try:
        fault = "" if wrapping.fits(Wrapping.of(tensor)) else "is not equal to itself"
    except (RuntimeError, TypeError, ValueError) as error:
        fault = f"cannot be compared ({error})"
    if not wrapping.inner:
        fault = "names no inner tensor"
    if fault:
        raise refusals.FLATTENS_WRONGLY(type(tensor).__name__, fault, where=where or user_line())


class LeavesInferenceMode(BaseException):  # a signal, too
    """The call is made in inference mode, which the function leaves."""
