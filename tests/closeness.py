"""Equal up to rounding: what fused kernels compute in another order than eager PyTorch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

_ROUNDING = {
    torch.float64: 1e-12, torch.complex128: 1e-12, torch.float32: 1e-5, torch.complex64: 1e-5, torch.bfloat16: 3e-2,
    torch.float16: 4e-3,
}  # fmt: skip


def assert_rounded(found: Any, expected: Any) -> None:
    """Tensor by tensor equal but for rounding errors, measured against the largest element, and against 1: sums
    cancel."""
    for a, b in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        assert isinstance(a, Tensor) == isinstance(b, Tensor), (a, b)
        if isinstance(b, Tensor) and b.dtype in _ROUNDING:
            finite = b.detach()[b.detach().isfinite()]
            largest = finite.abs().max().item() if finite.numel() else 0.0
            limit = _ROUNDING[b.dtype]
            torch.testing.assert_close(a, b, rtol=limit, atol=limit * max(largest, 1.0), equal_nan=True)
        else:
            torch.testing.assert_close(a, b, rtol=0, atol=0)
