"""Real tensors and what stands for them in a trace; which tensors can be traced at all."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from ..errors import UnsupportedTensorError
from .where import user_line


@attrs.define(eq=False)
class Lifted:
    """A real tensor the function closes over, and the functional tensor that stands for it."""

    real: Tensor
    functional: Tensor
    where: str | None


class MetTooLate(BaseException):  # a signal the function must not catch, not an error
    """The dry run met a tensor where no stand-in can be made any more: inside a torch.func transform, or when one over the same
    memory is in use. It starts again with one."""

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        self.tensor = tensor


def require_plain(tensor: Tensor, where: str | None) -> None:
    kind = type(tensor)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        raise UnsupportedTensorError(
            f"a {'quantized tensor' if tensor.is_quantized else f'tensor with layout {tensor.layout}'} cannot be traced",
            where=where or user_line(),
            fix=f"pass dense floating-point tensors: x.{'dequantize' if tensor.is_quantized else 'to_dense'}()",
        )
    if kind not in (Tensor, torch.nn.Parameter, torch.nn.Buffer):
        raise UnsupportedTensorError(
            f"a tensor subclass {kind.__name__} cannot be traced",
            where=where or user_line(),
            fix="pass plain tensors: x.as_subclass(torch.Tensor)",
        )
