"""What Triton's interpreter lacks, computed by PyTorch on the arrays that the interpreter works on. Nothing here
runs on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from torch import Tensor
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle


def _count_with(patch: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def call(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return call


# Triton 3.6 makes the bounds of a loop ints by int() of an array of one element, which NumPy refuses since 2.4; later
# ones do not.
interpreter._patch_lang_tensor = _count_with(interpreter._patch_lang_tensor)


def _tensor(x: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(x.handle.data)) if isinstance(x, tl.tensor) else torch.tensor([x])


def _made(result: Tensor, dtype: Any, is_block: bool) -> Any:
    array = result.numpy() if is_block else result.reshape(1).numpy()
    return tl.tensor(TensorHandle(array, dtype), tl.block_type(dtype, list(array.shape)) if is_block else dtype)


class _Libdevice:
    """The functions of libdevice, by those of PyTorch; most have the same names."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = torch.special.erfcx if name == "erfcx" else getattr(torch, {"rint": "round"}.get(name, name))

        def call(*given: Any) -> Any:
            dtype = next(x.dtype for x in given if isinstance(x, tl.tensor))
            numbers = [_tensor(x) for x in given]
            kind = next(t.dtype for x, t in zip(given, numbers, strict=True) if isinstance(x, tl.tensor))
            is_block = any(isinstance(x, tl.tensor) and x.type.is_block() for x in given)
            return _made(function(*(t.to(kind) for t in numbers)), dtype, is_block)

        return call


libdevice = _Libdevice()


def _reduction(function: Callable[[Tensor, Any, bool], Tensor]) -> Callable[..., Any]:
    def call(x: Any, axis: int | None = None, keep_dims: bool = False) -> Any:
        numbers = _tensor(x)
        if axis is None:
            return _made(function(numbers.flatten(), 0, False), x.dtype, False)
        return _made(function(numbers, axis, keep_dims).to(numbers.dtype), x.dtype, True)

    return call


largest, smallest, product = _reduction(torch.amax), _reduction(torch.amin), _reduction(torch.prod)


def _scan(function: Callable[[Tensor, int], Tensor]) -> Callable[[Any], Any]:
    return lambda x: _made(function(_tensor(x), 1), x.dtype, True)


running_sum, running_prod = (
    _scan(lambda x, d: x.cumsum(d, dtype=x.dtype)),
    _scan(lambda x, d: x.cumprod(d, dtype=x.dtype)),
)
running_max, running_min = _scan(lambda x, d: x.cummax(d).values), _scan(lambda x, d: x.cummin(d).values)


def to_bfloat16(x: Any) -> Any:
    """The nearest bfloat16, the even one of two."""
    return _made(_tensor(x).float().bfloat16().view(torch.uint16), tl.bfloat16, x.type.is_block())


def from_bfloat16(x: Any) -> Any:
    """The same number in single precision."""
    return _made(_tensor(x).view(torch.bfloat16).float(), tl.float32, x.type.is_block())
