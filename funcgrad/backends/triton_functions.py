"""The functions that printed Triton kernels call, besides Triton's own.

Where kernels are interpreted (``TRITON_INTERPRET=1``), PyTorch computes what Triton's interpreter cannot: libdevice, reductions by
a function of one's own, and the rounding to bfloat16. The kernels are the same text. Importing this module imports Triton.
"""

import triton
import triton.language as tl
from triton.language.extra import libdevice

from ..options import ENVIRONMENT

__all__ = (
    "all_of", "any_of", "element", "from_bfloat16", "largest", "libdevice", "maximum", "minimum", "product", "remainder", "running_max",
    "running_min", "running_prod", "running_sum", "sigmoid", "smallest", "to_bfloat16",
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
