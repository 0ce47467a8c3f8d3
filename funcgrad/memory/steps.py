"""The steps of a schedule: calls, launches, what is allocated and what is freed."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch
from attrs import field, frozen
from torch import fx

from ..loops.ir import Buffer, Kernel
from ..symbolic.sizes import Size, hint
from .scratch import Arena, origins, plan


@frozen(eq=False)
class Extern:
    """One call of a library operator; ``why`` says why it is no fused kernel."""

    node: fx.Node
    why: str


@frozen(eq=False)
class Call:
    """Run one extern call; ``into`` names a value that dies here and whose memory takes the result. ``same``: it is
    a view of what has been made in its shape, and there is nothing to run."""

    node: fx.Node
    into: fx.Node | None = None
    same: bool = False
    whole: frozenset[str] = frozenset()
    """Of an opaque call, the arguments that it writes to and is given as they are: it is given copies of the others."""


@frozen(eq=False)
class Free:
    """Drop the last references to these values."""

    names: tuple[str, ...]


@frozen(eq=False)
class Allocate:
    """Memory for what a kernel writes; ``over`` names a value whose memory it is: one that dies in that kernel, or
    one of which it is a part, ``at`` so many elements from its start."""

    buffer: Buffer
    over: str | None = None
    at: int | None = None


@frozen(eq=False)
class Check:
    """A bool that kernels leave: true where something is wrong. ``read``: then Python reads another value; the number
    of the read, and the value; None: then eager PyTorch raises an error. Or the number itself that Python reads: it is
    wrong where it is another than that of ``read``."""

    buffer: Buffer
    read: tuple[int, Any] | None

    @property
    def number(self) -> Any:
        """The number that is expected; None for a bool."""
        return None if self.read is None or self.buffer.dtype == torch.bool else self.read[1]


@frozen(eq=False, slots=False)
class Launch:
    """Run kernels one after the other, in one call. ``scratch``: buffers that only these kernels know, placed in one
    arena.

    ``room``: the memory of the arena, where the stack does not do. ``checks``: what lies among the scratch, in order;
    the call returns the number of the first that is true, from 1, or 0.
    """

    name: str
    kernels: tuple[Kernel, ...]
    scratch: tuple[Buffer, ...]
    checks: tuple[Check, ...] = ()
    room: Buffer | None = None
    places: Mapping[str, tuple[Buffer, int]] = field(factory=dict)
    """The buffers that lie in arenas of the program, by name: in which, and its offset in bytes."""

    @functools.cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers its kernels read and write, each once, without the scratch."""
        reads = [b for k in self.kernels for b in k.reads]
        own = {b.name for b in self.scratch}
        every = {b.name: b for b in (*reads, *(b for k in self.kernels for b in k.writes))}
        return tuple(b for name, b in every.items() if name not in own)

    @functools.cached_property
    def arena(self) -> Arena:
        return plan(self.kernels, self.scratch, [check.buffer for check in self.checks])

    @functools.cached_property
    def origins(self) -> dict[str, str]:
        """The buffers written in the place of others, each with the first that lay there."""
        return origins(self.kernels)

    @functools.cached_property
    def arguments(self) -> tuple[Buffer, ...]:
        """The buffers it is called with: those that have a place of their own."""
        elsewhere = self.origins
        return tuple(b for b in self.buffers if b.name not in elsewhere)

    @property
    def may_raise(self) -> bool:
        """Whether a check of it is for an error of eager PyTorch's, which is raised by computing all once more."""
        return any(check.read is None for check in self.checks)

    @property
    def number_read(self) -> str | None:
        """The name of the function that tells which number Python would read, where that is another than expected: an
        integer, or the bits of a float. None where no number is read."""
        return f"{self.name}_read" if any(check.number is not None for check in self.checks) else None

    @property
    def takes(self) -> tuple[Buffer, ...]:
        """All it is called with: its arguments, and the room for its scratch."""
        return (*self.arguments, *([self.room] if self.room else ()))


Step = Call | Free | Allocate | Launch


def bytes_buffer(name: str, size: int) -> Buffer:
    """Memory for whatever lies in it."""
    return Buffer(name, (size,), torch.uint8, (1,))


def is_static(buffer: Buffer) -> bool:
    """Whether it has as many bytes in every call."""
    return not any(isinstance(n, Size) for n in (*buffer.shape, *buffer.strides))


def size_of(buffer: Buffer) -> int:
    """Bytes of a buffer; of one that is not static, in the call that is compiled."""
    return hint(math.prod(buffer.shape)) * buffer.dtype.itemsize
