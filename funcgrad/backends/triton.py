"""Kernels as Triton: a program computes a tile of rows and columns, held in registers, or goes along rows too long for
that.

Kernels without reductions know no rows: their tiles are lines of elements. Those that only have totals for each column
are cut into strips of columns. What is kept from stage to stage stays in registers too, but for the longest rows: there
it is computed again. Totals over rows are added up tile by tile in each program, and its sums by a second kernel, in
the order of the programs: results are the same on every run, bit by bit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from attrs import frozen

from ..loops.costs import FUNCTIONS
from ..loops.ir import Const, Expr, Kernel, Op, Put, Reduced, Scanned, Store, Total, computed, walk
from ..loops.values import neutral
from ..machine import GPU, Machine
from .emitter import index_text, named, print_expressions
from .triton_language import TYPES, Tile, Triton, counters, is_wide, number, power_of_two, stored, typed, value_text
from .triton_scatter import scatter_function

_TILE = 1024
"""Elements of a tile: eight for each thread of four warps."""

_STRIP = 256
"""Columns of a tile of kernels that add up over rows alone."""

_LONGEST = 16384
"""Columns of a row that is held in registers; half as many where totals are held beside it."""

_STEP = 2048
"""Columns of longer rows that are computed at a time."""

_MANY = 6
"""Expensive operations from which on a thread computes fewer elements: each takes many registers."""

_PARTIALS = 1 << 22
"""Elements of the totals of all programs."""

_REDUCTIONS = {
    # kind: how a number is added, the reduction of a tile
    "sum": ("{} + {}", "tl.sum({})"),
    "prod": ("{} * {}", "product({})"),
    "max": ("maximum({}, {})", "largest({})"),
    "min": ("minimum({}, {})", "smallest({})"),
    "any": ("{} | {}", "any_of({})"),
    "all": ("{} & {}", "all_of({})"),
}


@frozen
class Partial:
    """What each of ``programs`` adds up for a buffer of totals: ``size`` numbers of ``dtype``; ``blocks``: programs
    of the kernel that adds them up in the end."""

    buffer: str
    programs: int
    size: int
    dtype: torch.dtype
    blocks: int


@frozen
class Printed:
    """A kernel as text: the function ``name``, which takes what the kernel reads, what it writes and its partial
    totals, and a function ``name_totalN`` for each of those."""

    name: str
    text: str
    grid: tuple[int, ...]
    warps: int
    partials: tuple[Partial, ...]


def print_kernel(kernel: Kernel, machine: Machine = GPU) -> Printed:
    """Kernels that do the same are the same text, whatever the tensors are called; the name is its digest."""
    if any(isinstance(e, Put) for stage in kernel.stages for e in stage.effects):
        lines, programs, warps = scatter_function(kernel)
        return Printed(*named("\n".join(lines)), (programs,), warps, ())
    printer = _Printer(kernel, machine)
    return Printed(*named("\n".join(printer.functions())), printer.grid, printer.warps, printer.partials)


class _Printer:
    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self._kernel = kernel
        self._parameters = kernel.names
        self._rows = math.prod(a.size for a in kernel.rows)
        self._columns = math.prod(a.size for a in kernel.columns)
        self._effects = [e for stage in kernel.stages for e in stage.effects if not isinstance(e, Put)]
        self._reductions = [r for stage in kernel.stages for r in stage.reductions]
        self._scans = any(isinstance(e, Scanned) for e in walk(computed(self._effects)))
        self._totals = {t: f"t{i}" for i, t in enumerate(e for e in self._effects if isinstance(e, Total))}
        buffers = dict.fromkeys(t.buffer for t in self._totals)
        self._sizes = {b: max(t.size for t in self._totals if t.buffer == b) for b in buffers}
        self._wide = is_wide(kernel)
        self._is_line = self._has_no_rows()
        self._tile = self._line() if self._is_line else self._rectangle()
        self._strips = -(-self._columns // self._tile.width) if self._is_in_strips() else 1
        self._goes_along = not self._is_line and self._tile.width * self._strips < self._columns
        self._language = Triton(self._parameters, self._tile, self._wide)
        self._blocks = -(-(self._rows * self._columns if self._is_line else self._rows) // self._tile.height)
        # those that keep totals of their own: as many as run at once
        most = min(machine.programs // self._strips, _PARTIALS // max(self._sizes.values(), default=1))
        self._programs = min(self._blocks, max(1, most)) if self._totals else self._blocks
        self._program = "tl.program_id(1)" if self._strips > 1 else "tl.program_id(0)"
        self.grid = (self._strips, self._programs) if self._strips > 1 else (self._programs,)
        self.warps = self._warps()
        self.partials = self._partial_totals()
        self._numbers = itertools.count()

    # what a program works on

    def _has_no_rows(self) -> bool:
        """Whether nothing tells rows and columns apart."""
        if self._scans:
            return False
        if not self._kernel.columns:
            return not self._reductions
        columns = set(self._kernel.columns)
        return not self._reductions and all(
            e.full and (isinstance(e, Store) or columns.isdisjoint(e.at.axes)) for e in self._effects
        )

    def _warps(self) -> int:
        """Eight elements for each thread; fewer where much is computed of each, more of the longest rows."""
        dear = sum(isinstance(e, Op) and e.full and e.name in FUNCTIONS for e in walk([e.value for e in self._effects]))
        elements = self._tile.height * max(1, self._tile.width)
        at_most = 8 if elements <= _STEP else 16
        return max(1, min(at_most, elements // (128 if dear >= _MANY else 256)))

    def _is_in_strips(self) -> bool:
        """Whether columns have nothing to do with each other, and there are totals for each of them."""
        columns = set(self._kernel.columns)
        found = [t for t in self._totals if not columns.isdisjoint(t.at.axes)]
        apart = not self._reductions and not self._scans and all(e.full for e in self._effects)
        return bool(found) and apart and len(found) == len(self._totals)

    def _line(self) -> Tile:
        elements = self._rows * self._columns
        height = min(_TILE, power_of_two(elements))
        axes = frozenset((*self._kernel.rows, *self._kernel.columns))
        return Tile(axes, frozenset(), height, 0, "inside" if elements % height else None, None)

    def _rectangle(self) -> Tile:
        width, height = power_of_two(self._columns), 1
        if self._is_in_strips():
            width = min(width, _STRIP)
            height = min(power_of_two(self._rows), max(1, _TILE // width))
        elif width > (_LONGEST // 2 if self._totals else _LONGEST):
            width = _STEP
        else:
            height = min(power_of_two(self._rows), max(1, _TILE // width))
        rows_inside = "row_inside" if self._rows % height else None
        columns_inside = "column_inside" if self._columns % width else None
        return Tile(
            frozenset(self._kernel.rows), frozenset(self._kernel.columns), height, width, rows_inside, columns_inside
        )

    def _partial_totals(self) -> tuple[Partial, ...]:
        found = []
        for buffer, size in self._sizes.items():
            total = next(t for t in self._totals if t.buffer == buffer)
            if self._programs > 1 or any(self._is_in_memory(t) for t in self._totals if t.buffer == buffer):
                dtype = torch.float32 if TYPES[total.value.dtype] == "tl.float32" else total.value.dtype
                found.append(Partial(buffer, self._programs, size, dtype, -(-size // self._totals_at_once(size))))
        return tuple(found)

    def _is_in_memory(self, total: Total) -> bool:
        """Whether a program's totals are more than it can hold in registers."""
        return self._goes_along and self._tile.sides(total.at.axes)[1]

    def _totals_at_once(self, size: int) -> int:
        return min(power_of_two(size), max(1, 4 * _TILE // power_of_two(self._programs)))

    # functions

    def functions(self) -> list[str]:
        partials = {p.buffer: f"s{i}" for i, p in enumerate(self.partials)}
        takes = [*(self._parameters[b.name] for b in self._kernel.parameters), *partials.values()]
        lines = ["@triton.jit", f"def {{name}}({', '.join(takes)}):"]
        before = [] if self._goes_along or self._is_line else self._column_counters("tl.program_id(0)")
        for total, name in self._totals.items():
            if self._is_in_memory(total):
                before += self._clear(total, partials[total.buffer])
            else:
                before.append(f"{name} = {self._full(self._tile.shape((True, total.full)), total)}")
        if any(map(self._is_in_memory, self._totals)):
            before.append("tl.debug_barrier()")
        if self._programs < self._blocks:
            body = [f"for block in range({self._program}, {self._blocks}, {self._programs}):"]
            body += [f"    {line}" for line in (*self._row_counters("block"), *self._stages(partials))]
        else:
            body = [*self._row_counters(self._program), *self._stages(partials)]
        after = [self._sum_up(t, name, partials) for t, name in self._totals.items() if not self._is_in_memory(t)]
        lines += [f"    {line}" for line in (*before, *body, *after)]
        for i, partial in enumerate(self.partials):
            lines += ["", "", *self._add_up(i, partial)]
        return lines

    def _row_counters(self, block: str) -> list[str]:
        kernel, height = self._kernel, self._tile.height
        shape = "" if self._is_line else "[:, None]"
        axes = (*kernel.rows, *kernel.columns) if self._is_line else kernel.rows
        name = "i" if self._is_line else "row"
        return counters(axes, name, block, (height, self._blocks, shape), self._tile.rows_inside, self._wide)

    def _column_counters(self, begin: str) -> list[str]:
        tile = self._tile.width, -(-self._columns // self._tile.width), "[None, :]"
        return counters(self._kernel.columns, "column", begin, tile, self._tile.columns_inside, self._wide)

    # stages

    def _stages(self, partials: dict[str, str]) -> list[str]:
        """All that is done with a tile. A row in registers is walked over but once for each reduction that needs
        another one."""
        lines: list[str] = []
        names: dict[Expr, str] = {}
        last = max(e.value.stage for e in self._effects)
        for n in range(last + 1):
            reductions = [r for r in self._reductions if r.body.stage == n]
            effects = [e for e in self._effects if e.value.stage == n]
            if self._goes_along:
                lines += self._walk(reductions, effects, names, partials)
                continue
            roots = [r.body for r in reductions] + [e.value for e in effects]
            lines += print_expressions(self._language, roots, names, lambda e: True)
            for reduced in reductions:
                names[reduced] = f"a{next(self._numbers)}"
                tile = self._filled(reduced, names[reduced.body])
                lines.append(
                    f"{names[reduced]} = {_reduced(reduced.kind, reduced.dtype, f'{tile}, 1, keep_dims=True')}"
                )
            lines += self._done(effects, names)
        return lines

    def _walk(
        self,
        reductions: Sequence[Reduced],
        effects: Sequence[Store | Total],
        names: dict[Expr, str],
        partials: dict[str, str],
    ) -> list[str]:
        """A walk along rows that are too long to be held."""
        roots = [r.body for r in reductions] + [e.value for e in effects]
        lines = print_expressions(self._language, roots, names, lambda e: not e.full)
        lines += self._done([e for e in effects if not e.full], names)
        full = [e for e in effects if e.full]
        if not reductions and not full:
            return lines
        inside = dict(names)
        body = self._column_counters("step")
        roots = [r.body for r in reductions] + [e.value for e in full]
        scans = [e for e in walk(roots, set(names)) if isinstance(e, Scanned)]
        for scan in scans:
            name = self._language.running[scan] = f"a{next(self._numbers)}"
            lines.append(f"{name} = {self._full([self._tile.height, 1], scan)}")
        body += print_expressions(self._language, roots, inside, lambda e: True)
        for scan in scans:
            name, here = self._language.running[scan], self._language.filled(scan.body, inside[scan.body])
            here = _reduced(scan.kind, scan.dtype, f"{here}, 1, keep_dims=True")
            body.append(f"{name} = {_REDUCTIONS[scan.kind][0].format(name, here)}")
        after: list[str] = []
        for reduced in reductions:
            name = names[reduced] = f"a{next(self._numbers)}"
            lines.append(f"{name} = {self._full([self._tile.height, self._tile.width], reduced)}")
            body.append(
                f"{name} = {_REDUCTIONS[reduced.kind][0].format(name, self._masked(reduced, inside[reduced.body]))}"
            )
            after.append(f"{name} = {_reduced(reduced.kind, reduced.dtype, f'{name}, 1, keep_dims=True')}")
        in_memory = [e for e in full if isinstance(e, Total) and self._is_in_memory(e)]
        for total in in_memory:
            body += self._add_in_memory(total, inside, partials[total.buffer])
        body += self._done([e for e in full if e not in in_memory], inside)
        steps = -(-self._columns // self._tile.width)
        return [*lines, f"for step in range({steps}):", *(f"    {line}" for line in body), *after]

    def _done(self, effects: Sequence[Store | Total], names: dict[Expr, str]) -> list[str]:
        """Where one writes over what is read here, no thread may write before all have read: they may share elements
        otherwise."""
        waits = any(e.buffer in self._kernel.over for e in effects)
        return [*(["tl.debug_barrier()"] if waits else []), *(self._effect(e, names) for e in effects)]

    def _effect(self, effect: Store | Total, names: dict[Expr, str]) -> str:
        if isinstance(effect, Total):
            name = self._totals[effect]
            return f"{name} = {_REDUCTIONS[effect.kind][0].format(name, self._masked_total(effect, names))}"
        height, width = self._tile.height, self._tile.width
        # no smaller than what is written there
        least = (height > 1 or not effect.at.axes, effect.full and width > 1)
        place, mask = self._language.address(effect.buffer, effect.at, least)
        return stored(place, value_text(effect.value, names), effect.value.dtype, mask)

    # reductions

    def _filled(self, reduced: Reduced, text: str) -> str:
        """The numbers to reduce, one for each column."""
        if self._tile.columns_inside or reduced.body.full:
            return self._masked(reduced, text)
        return self._language.filled(reduced.body, text)

    def _masked(self, reduced: Reduced, text: str) -> str:
        text = typed(reduced.body.value, reduced.dtype) if isinstance(reduced.body, Const) else text
        inside = self._tile.columns_inside
        return (
            f"tl.where({inside}, {text}, {typed(neutral(reduced.kind, reduced.dtype), reduced.dtype)})"
            if inside
            else text
        )

    def _masked_total(self, total: Total, names: dict[Expr, str]) -> str:
        dtype = total.value.dtype
        inside = " & ".join(self._tile.inside((True, total.full)))
        value = value_text(total.value, names)
        return f"tl.where({inside}, {value}, {typed(neutral(total.kind, dtype), dtype)})" if inside else value

    def _full(self, shape: Sequence[int], of: Total | Reduced | Scanned) -> str:
        dtype = of.value.dtype if isinstance(of, Total) else of.dtype
        return f"tl.full({list(shape)}, {number(neutral(of.kind, dtype), dtype)}, {TYPES[dtype]})"

    # totals over rows: one sum for each program, and a kernel that adds them up

    def _own(self, total: Total, partials: dict[str, str]) -> str:
        """Where the totals of this program lie."""
        if total.buffer not in partials:
            return self._parameters[total.buffer]
        size = self._sizes[total.buffer]
        return f"{partials[total.buffer]} + {self._program}" + (f" * {size}" if size > 1 else "")

    def _sum_up(self, total: Total, name: str, partials: dict[str, str]) -> str:
        dtype, at = total.value.dtype, index_text(total.at, "//")
        place = self._own(total, partials) + (f" + {at}" if at != "0" else "")
        dtype_there = torch.float32 if total.buffer in partials and TYPES[dtype] == "tl.float32" else dtype
        if self._tile.sides(total.at.axes)[1]:
            return stored(
                place,
                _reduced(total.kind, dtype, f"{name}, 0, keep_dims=True"),
                dtype_there,
                self._tile.inside((False, True)),
            )
        return stored(place, _reduced(total.kind, dtype, name), dtype_there, [])

    def _clear(self, total: Total, partial: str) -> list[str]:
        """Totals kept in memory begin with what adds nothing."""
        place = self._own(total, {total.buffer: partial}) + f" + {index_text(total.at, '//')}"
        lines = [
            *self._column_counters("step"),
            stored(place, self._full([1, self._tile.width], total), torch.float32, self._tile.inside((False, True))),
        ]
        return [f"for step in range({-(-self._columns // self._tile.width)}):", *(f"    {line}" for line in lines)]

    def _add_in_memory(self, total: Total, names: dict[Expr, str], partial: str) -> list[str]:
        """Each program adds to its own; the barriers keep what one thread writes from being read by another before."""
        place = self._own(total, {total.buffer: partial}) + f" + {index_text(total.at, '//')}"
        mask = f", mask={self._tile.columns_inside}, other=0" if self._tile.columns_inside else ""
        added = _REDUCTIONS[total.kind][0].format(f"tl.load({place}{mask})", value_text(total.value, names))
        return ["tl.debug_barrier()", stored(place, added, torch.float32, self._tile.inside((False, True)))]

    def _add_up(self, number_: int, partial: Partial) -> list[str]:
        """The kernel that adds up what the programs have: sums of single precision in double precision."""
        total = next(t for t in self._totals if t.buffer == partial.buffer)
        dtype, size, programs = total.value.dtype, partial.size, partial.programs
        at_once, all_programs = self._totals_at_once(size), power_of_two(programs)
        begin = f"tl.program_id(0) * {at_once} + " if partial.blocks > 1 else ""
        i_inside, program_inside = size % at_once != 0, programs != all_programs
        mask = [*([f"(program < {programs})"] * program_inside), *([f"(i < {size})"] * i_inside)]
        mask_text = f", mask={' & '.join(mask)}, other=0" if mask else ""
        lines = [
            "@triton.jit", f"def {{name}}_total{number_}(s, p):",
            f"    i = {begin}tl.arange(0, {at_once})[None, :]",
            f"    program = tl.arange(0, {all_programs})[:, None]",
            f"    v = tl.load(s + program * {size} + i{mask_text})",
        ]  # fmt: skip
        if program_inside:
            lines.append(f"    v = tl.where(program < {programs}, v, {typed(neutral(total.kind, dtype), dtype)})")
        wide = ".to(tl.float64)" if total.kind == "sum" and TYPES[dtype] == "tl.float32" else ""
        text = _reduced(total.kind, torch.float64 if wide else dtype, f"v{wide}, 0, keep_dims=True")
        text = f"{text}.to(tl.float32)" if wide else text
        return [*lines, f"    {stored('p + i', text, dtype, [f'i < {size}'] if i_inside else [])}"]


def _reduced(kind: str, dtype: torch.dtype, arguments: str) -> str:
    text = _REDUCTIONS[kind][1].format(arguments)
    narrow = not dtype.is_floating_point and dtype != torch.bool and dtype.itemsize < 4
    return f"{text}.to({TYPES[dtype]})" if narrow else text
