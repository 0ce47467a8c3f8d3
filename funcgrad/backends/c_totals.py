"""Totals over rows, as C: each thread adds up its own, and those of the threads are added up in their order.

What a thread adds up to lies as its loops go: where they write every third element, for instance, the first of all
threes lie together, then the second ones. So it is read and written by whole vectors, whatever the strides of the
buffer are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from attrs import frozen

from ..loops.index import Index
from ..loops.ir import Kernel, Total
from ..symbolic.known import divides
from ..symbolic.sizes import Size, hint
from .c_language import REDUCTIONS, STACK, TYPES, start, stored
from .emitter import index_text

_BLOCK = 32
"""Rows that are added up in single precision before they are added to a total in double precision."""


class Totals:
    """The totals of a kernel; ``is_parallel``: whether it has threads, of which each has an array of its own."""

    def __init__(self, kernel: Kernel, is_parallel: bool) -> None:
        found: dict[str, list[Total]] = {}
        for stage in kernel.stages:
            for effect in stage.effects:
                if isinstance(effect, Total):
                    found.setdefault(effect.buffer, []).append(effect)
        many_rows = hint(math.prod(a.size for a in kernel.rows)) > _BLOCK
        self._arrays = {buffer: _array(kernel, buffer, totals, many_rows) for buffer, totals in found.items()}
        self._is_parallel = is_parallel

    def __bool__(self) -> bool:
        return bool(self._arrays)

    def place(self, total: Total) -> str:
        """Where a thread adds up what is written at an element of the buffer."""
        array = self._arrays[total.buffer]
        return f"t_{array.name}[{index_text(array.place(total.at))}]"

    def before(self) -> list[str]:
        """Lines before the threads begin."""
        if not self._is_parallel or not self:
            return []
        arrays = self._arrays.values()
        return [
            "int used = 1;",
            *(f"{a.type}* s_{a.name} = malloc(threads * {a.padded} * sizeof({a.type}));" for a in arrays),
        ]

    def thread(self) -> list[str]:
        """Lines with which a thread begins. There may be fewer threads than were asked for: the others have no
        totals."""
        lines = []
        if self._is_parallel and self:
            lines = ["const int thread = omp_get_thread_num();", "if (thread == 0) used = omp_get_num_threads();"]
        for a in self._arrays.values():
            mine = f"s_{a.name} + (int64_t)thread * {a.padded}" if self._is_parallel else None
            lines += a.made(a.type, a.own, mine) + (a.made("float", f"t_{a.name}", None) if a.is_blocked else [])
        return lines

    def rows_done(self) -> list[str]:
        """Lines after a row: a block of rows is added to the thread's."""
        lines = self._flushes()
        return [f"if (row % {_BLOCK} == {_BLOCK - 1}) {{", *(f"  {line}" for line in lines), "}"] if lines else []

    def thread_end(self) -> list[str]:
        """Lines with which a thread ends."""
        lines = self._flushes()
        for a in self._arrays.values():
            if not self._is_parallel:
                lines.append(f"for (int64_t i = 0; i < {a.size}; ++i) {a.stored(f'{a.own}[i]')}")
            if not a.is_small:
                lines += [f"free(t_{a.name});"] if a.is_blocked or not self._is_parallel else []
                lines += [f"free({a.own});"] if a.is_blocked and not self._is_parallel else []
        return lines

    def after(self) -> list[str]:
        """Lines after the threads have ended."""
        lines = []
        for a in self._arrays.values():
            lines += [
                f"for (int64_t i = 0; i < {a.size}; ++i) {{",
                f"  {a.type} sum = s_{a.name}[i];",
                f"  for (int64_t t = 1; t < used; ++t) sum = {a.add.format('sum', f's_{a.name}[t * {a.padded} + i]')};",
                f"  {a.stored('sum')}", "}", f"free(s_{a.name});",
            ]  # fmt: skip
        return lines if self._is_parallel else []

    def _flushes(self) -> list[str]:
        return [
            f"for (int64_t i = 0; i < {a.size}; ++i) {{ d_{a.name}[i] += t_{a.name}[i]; t_{a.name}[i] = 0; }}"
            for a in self._arrays.values()
            if a.is_blocked
        ]


@frozen
class _Array:
    """What a thread adds up for a buffer, of which every ``step``-th element lies together.

    ``is_blocked``: many rows are added to many numbers of single precision, in blocks. ``type``: what C keeps the
    thread's in: such sums, and those of all columns, in double precision, as there may be millions of terms.
    """

    name: str
    dtype: torch.dtype
    size: int | Size
    step: int
    is_blocked: bool
    type: str
    add: str
    start: str

    @property
    def own(self) -> str:
        return f"{'d' if self.is_blocked else 't'}_{self.name}"

    @property
    def padded(self) -> int | Size:
        """Threads do not share a cache line."""
        return (self.size + 15) // 16 * 16

    @property
    def is_small(self) -> bool:
        """Whether it may lie on the stack."""
        return isinstance(self.size, int) and self.size <= STACK // 8

    def place(self, at: Index) -> Index:
        return at % self.step * (self.size // self.step) + at // self.step

    def stored(self, value: str) -> str:
        """Write what is at ``i`` in this array to the buffer."""
        each = self.size // self.step
        return stored(self.name, f"i % {each} * {self.step} + i / {each}" if self.step > 1 else "i", value, self.dtype)

    def made(self, kind: str, name: str, at: str | None) -> list[str]:
        """Such an array, at an address, or of its own, with a start in each place."""
        if at is None and self.is_small:
            declared = f"{kind} {name}[{self.size}] __attribute__((aligned(64)));"
        else:
            declared = f"{kind}* restrict {name} = {at or f'malloc({self.size} * sizeof({kind}))'};"
        return [declared, f"for (int64_t i = 0; i < {self.size}; ++i) {name}[i] = {self.start};"]


def _array(kernel: Kernel, buffer: str, totals: Sequence[Total], many_rows: bool) -> _Array:
    size = max(total.size for total in totals)
    kind, dtype = totals[0].kind, totals[0].value.dtype
    wide = dtype == torch.float32 and kind == "sum"
    is_blocked = wide and size > 1 and many_rows
    of_columns = not any(total.at.terms for total in totals)
    type_ = "double" if is_blocked or (wide and of_columns) else TYPES[dtype]
    step = _step(kernel, totals, size)
    return _Array(kernel.names[buffer], dtype, size, step, is_blocked, type_, REDUCTIONS[kind].add, start(kind, dtype))


def _step(kernel: Kernel, totals: Sequence[Total], size: int | Size) -> int:
    """How far the loop over columns goes in the buffer with each turn, if all elements of a turn lie in the same
    places of so many."""
    if not kernel.columns or not all(total.full for total in totals):
        return 1
    step, *others = {total.at.coefficient(kernel.columns[-1]) for total in totals}
    if others or not isinstance(step, int) or step <= 1 or not divides(step, size):
        return 1
    return step if not any((total.at % step).terms for total in totals) else 1
