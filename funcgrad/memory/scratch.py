"""Memory of what only the kernels of one launch know: one arena, in which buffers that are not alive together share
places."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence

from attrs import frozen

from ..lifetimes import Lifetimes
from ..loops.ir import Buffer, Kernel

ALIGNMENT = 64
"""Bytes: a cache line, and the widest vector register."""

_SMALL = 16
"""Bytes to which what is smaller than a line is rounded up: it comes after all others, and several share one."""

_PAGE = 1 << 12
"""Bytes: what lies as far apart, or several times as far, has the same place in the L1 cache, and a processor mixes
up stores to one with loads from the other."""


@frozen(eq=False)
class Arena:
    """``offsets`` in bytes of the buffers, by name; ``nbytes`` of all."""

    offsets: dict[str, int]
    nbytes: int


def origins(kernels: Sequence[Kernel]) -> dict[str, str]:
    """In whose memory buffers lie that are written in the place of another one: ``{written: the first that lay
    there}``."""
    found: dict[str, str] = {}
    for kernel in kernels:
        found |= {written: found.get(read, read) for written, read in kernel.over.items()}
    return found


def plan(kernels: Sequence[Kernel], scratch: Sequence[Buffer], lasting: Sequence[Buffer] = ()) -> Arena:
    """Places for ``scratch``: the largest first, each at the lowest address free from its first writer to its last
    reader, or to the end if it is ``lasting``. What is written in the place of another buffer takes none.

    First fit by size stays within a few percent of the lower bound, the most bytes alive at a time (Pisarchyk & Lee
    2020, "Efficient memory management for deep neural net inference").
    """
    shared = origins(kernels)
    uses = [*((*kernel.writes, *kernel.reads) for kernel in kernels), tuple(lasting)]
    lives = Lifetimes.of([shared.get(b.name, b.name) for b in buffers] for buffers in uses)
    placed: list[tuple[int, int, tuple[int, int]]] = []  # begin, end, life
    offsets: dict[str, int] = {}
    for b in sorted((b for b in scratch if b.name not in shared), key=_nbytes, reverse=True):
        size = skewed(_nbytes(b)) if _nbytes(b) >= ALIGNMENT else _whole(_nbytes(b), _SMALL)
        first, last = lives.first[b.name], lives.last[b.name]
        at = 0
        for begin, end, (other_first, other_last) in placed:
            if other_first <= last and first <= other_last and begin < at + size and at < end:
                at = end
        offsets[b.name] = at
        bisect.insort(placed, (at, at + size, (first, last)))
    return Arena(offsets, max((end for _, end, _ in placed), default=0))


def skewed(size: int) -> int:
    """So many bytes, rounded up to whole lines, and one more where what comes next would lie in the same place of
    the cache."""
    size = _whole(size, ALIGNMENT)
    return size + (ALIGNMENT if size % _PAGE == 0 else 0)


def _nbytes(buffer: Buffer) -> int:
    return math.prod(buffer.shape) * buffer.dtype.itemsize


def _whole(size: int, unit: int) -> int:
    return (size + unit - 1) // unit * unit
