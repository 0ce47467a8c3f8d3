"""Counter-based random numbers: Philox4x32-10 (Salmon, Moraes, Dror and Shaw, 2011).

A number is a function of a key and a counter. Nothing is kept from one draw to the next, so what was drawn may be drawn
again, in another order, by another program. This is what the numbers are; ``backends/c_language.py`` says it in C, and
gets the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

_LOW = 0xFFFFFFFF
_MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
_WEYL = 0x9E3779B9, 0xBB67AE85
_ROUNDS = 10
_AT_ONCE = 1 << 15
"""Elements worked on at a time: a handful of tensors of so many words stay in cache."""


def draw_key() -> Tensor:
    """A key for one call, drawn from torch's default generator: what ``torch.manual_seed`` fixes, and the next call
    does not get."""
    return torch.empty((), dtype=torch.int64, device="cpu").random_()


def philox(
    key: Tensor,
    start: int,
    half: int,
    size: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """Uniform numbers: element ``i``, in row-major order, is made from one half (0 or 1) of the 128 bits at the counter
    ``start + i``.

    float32: a multiple of 2^-24 in [0, 1); float64: one of 2^-53; int64: 64 bits.
    """
    n = math.prod(size)
    flat = torch.empty(n, dtype=dtype, device=device)
    for begin in range(0, n, _AT_ONCE):
        end = min(n, begin + _AT_ONCE)
        low, high = _words(key, torch.arange(start + begin, start + end, device=device))[2 * half : 2 * half + 2]
        if dtype == torch.float32:
            flat[begin:end] = (low >> 8).to(dtype) * 2.0**-24
        elif dtype == torch.float64:
            flat[begin:end] = ((low >> 5) * 2**26 + (high >> 6)).to(dtype) * 2.0**-53
        else:
            flat[begin:end] = high << 32 | low
    found = flat.view(size)
    return (
        found
        if found.stride() == tuple(stride)
        else torch.empty_strided(size, stride, dtype=dtype, device=device).copy_(found)
    )


def _words(key: Tensor, counter: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The four words of 32 bits at a counter, each in an int64."""
    c0, c1 = counter & _LOW, counter >> 32 & _LOW
    c2 = c3 = torch.zeros_like(counter)
    k0, k1 = key & _LOW, key >> 32 & _LOW
    for _ in range(_ROUNDS):
        p0, p1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]  # 64 bits, as if they had no sign
        c0, c1, c2, c3 = p1 >> 32 & _LOW ^ c1 ^ k0, p1 & _LOW, p0 >> 32 & _LOW ^ c3 ^ k1, p0 & _LOW
        k0, k1 = k0 + _WEYL[0] & _LOW, k1 + _WEYL[1] & _LOW
    return c0, c1, c2, c3
