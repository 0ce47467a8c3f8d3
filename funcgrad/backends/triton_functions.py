"""The functions that printed Triton kernels call, besides Triton's own.

Where kernels are interpreted (``TRITON_INTERPRET=1``), PyTorch computes what Triton's interpreter cannot: libdevice,
reductions by a function of one's own, and the rounding to bfloat16. The kernels are the same text. Importing this
module imports Triton.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from ..options import ENVIRONMENT

__all__ = (
    "all_of", "any_of", "element", "from_bfloat16", "largest", "libdevice", "maximum", "minimum", "philox_bits",
    "philox_double",
    "philox_float", "product", "remainder", "running_max", "running_min", "running_prod", "running_sum", "sigmoid",
    "smallest",
    "to_bfloat16",
)  # fmt: skip

if ENVIRONMENT.interpret:
    from .triton_interpreted import (
        from_bfloat16,
        largest,
        libdevice,
        product,
        running_max,
        running_min,
        running_prod,
        running_sum,
        smallest,
        to_bfloat16,
    )
else:

    @triton.jit
    def to_bfloat16(x):
        """The nearest bfloat16, the even one of two."""
        return x.to(tl.bfloat16)

    @triton.jit
    def from_bfloat16(x):
        return x.to(tl.float32)

    @triton.jit
    def _times(a, b):
        return a * b

    @triton.jit
    def product(x, axis: tl.constexpr = None, keep_dims: tl.constexpr = False):
        return tl.reduce(x, axis, _times, keep_dims=keep_dims)

    @triton.jit
    def largest(x, axis: tl.constexpr = None, keep_dims: tl.constexpr = False):
        """NaN, if there is one."""
        return tl.reduce(x, axis, maximum, keep_dims=keep_dims)

    @triton.jit
    def smallest(x, axis: tl.constexpr = None, keep_dims: tl.constexpr = False):
        """NaN, if there is one."""
        return tl.reduce(x, axis, minimum, keep_dims=keep_dims)

    @triton.jit
    def _plus(a, b):
        return a + b

    @triton.jit
    def running_sum(x):
        return tl.associative_scan(x, 1, _plus)

    @triton.jit
    def running_prod(x):
        return tl.associative_scan(x, 1, _times)

    @triton.jit
    def running_max(x):
        return tl.associative_scan(x, 1, maximum)

    @triton.jit
    def running_min(x):
        return tl.associative_scan(x, 1, minimum)


@triton.jit
def maximum(a, b):
    """The first one if it is greater, or NaN; else the second one."""
    return tl.where(a > b, a, tl.where(a != a, a, b))


@triton.jit
def minimum(a, b):
    """The first one if it is less, or NaN; else the second one."""
    return tl.where(a < b, a, tl.where(a != a, a, b))


@triton.jit
def element(i, n: tl.constexpr):
    """A number as the index of one of n elements, counted from the end where it is negative; 0 where there is none."""
    i = i.to(tl.int64)
    i = tl.where(i < 0, i + n, i)
    return tl.where((i >= 0) & (i < n), i, 0)


@triton.jit
def _philox(key, counter, half: tl.constexpr):
    """Philox4x32-10, as philox.py defines it: two of the four words at a counter, each in 64 bits, whose products
    are whole."""
    key, counter = key.to(tl.uint64), counter.to(tl.uint64)
    c0, c1 = counter & 0xFFFFFFFF, counter >> 32
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    c2, c3 = c0 * 0, c0 * 0
    for _ in tl.static_range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF
        c2, c3 = (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    if half == 0:
        low, high = c0, c1
    else:
        low, high = c2, c3
    return low, high


@triton.jit
def philox_float(key, counter, half: tl.constexpr):
    low, _ = _philox(key, counter, half)
    return (low >> 8).to(tl.int32).to(tl.float32) * 5.9604644775390625e-08


@triton.jit
def philox_double(key, counter, half: tl.constexpr):
    low, high = _philox(key, counter, half)
    return (((low >> 5) << 26) + (high >> 6)).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def philox_bits(key, counter, half: tl.constexpr):
    low, high = _philox(key, counter, half)
    return ((high << 32) | low).to(tl.int64)


@triton.jit
def any_of(x, axis: tl.constexpr = None, keep_dims: tl.constexpr = False):
    return tl.max(x.to(tl.int32), axis, keep_dims=keep_dims) != 0


@triton.jit
def all_of(x, axis: tl.constexpr = None, keep_dims: tl.constexpr = False):
    return tl.min(x.to(tl.int32), axis, keep_dims=keep_dims) != 0


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + libdevice.exp(x * -1.0))


@triton.jit
def remainder(a, b):
    """What is left of a floor division: it has the sign of ``b``."""
    r = libdevice.fmod(a, b)
    return tl.where((r != 0) & ((r < 0) != (b < 0)), r + b, r)
