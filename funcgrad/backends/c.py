"""Kernels as C: loops over rows in parallel, vectorised loops over columns, buffers of the thread for what is kept.

Nothing is reordered but the additions of a sum. Totals over rows are kept by each thread and added up in the order of
the threads: on as many threads results are the same, bit by bit.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence

import torch
from attrs import frozen

from ..loops.costs import TURNS, cost_of
from ..loops.ir import Expr, Kernel, Load, Op, Put, Scanned, Stage, Store, Total, computed, walk
from ..machine import CPU, Machine
from ..symbolic.known import divides, is_few
from ..symbolic.sizes import PREFIX, Size, hint
from .c_lanes import lanes_function, lanes_of
from .c_language import REDUCTIONS, TYPES, C, start, stored
from .c_loops import indented, loop, nested, over_rows, parameters, read_in_steps
from .c_scatter import scatter_function
from .c_totals import Totals
from .emitter import named, print_expressions

_LONG, _SPAN = 2048, 512
"""Columns of a row that is added up in single precision; a longer one goes on in double precision, after so many
columns at a time."""

_SHORT, _LANES, _FEWER_LANES = 256, 16, 8
"""Reductions of so few columns, if they may not fill vectors of 16 numbers, are computed in vectors of 8: GCC 12
computes the columns that are left over one by one, where OpenMP reduces."""

_FEWEST = 4
"""Columns of a number that is not known for which vectors are worth their start, as long as there are as many as
now."""


_SYMBOL = re.compile(rf"\b{PREFIX}\w+")


@frozen
class Function:
    """A kernel as a C function, ``void k_…(const float* p0, …, float* p3, …)``: what it reads, then what it writes.

    Kernels that do the same are the same text, whatever the tensors are called: it is compiled once, and the name is
    its digest. ``length``: the next argument, where it takes one more; ``sizes``: the last ones, symbols by their
    names. ``work``: operations, roughly. ``is_cut``: the threads of the region in which it is called share its rows;
    ``has_threads``: it starts threads of its own; else one thread does it.
    """

    name: str
    text: str
    elements: int
    length: int | Size | None
    sizes: tuple[str, ...]
    work: int | Size
    is_cut: bool
    has_threads: bool


def print_kernel(kernel: Kernel, machine: Machine = CPU) -> Function:
    """The C function of a kernel."""
    printer = _Printer(kernel, machine)
    scatters = any(isinstance(e, Put) for stage in kernel.stages for e in stage.effects)
    text = "\n".join(scatter_function(kernel, machine.threads_from) if scatters else printer.function())
    sizes = size_arguments(text)
    if sizes:
        head, parenthesis, body = text.partition(") {")
        text = f"{head}, {', '.join(f'int64_t {name}' for name in sizes)}{parenthesis}{body}"
    name, text = named(text)
    elements = hint(math.prod(a.size for a in (*kernel.rows, *kernel.columns)))
    has_threads = "#pragma omp parallel" in text
    is_cut = not has_threads and "#pragma omp for" in text
    length = None if scatters else printer.length
    return Function(name, text, elements, length, sizes, printer.work, is_cut, has_threads)


def size_arguments(text: str) -> tuple[str, ...]:
    """The symbolic sizes that C text names."""
    return tuple(dict.fromkeys(_SYMBOL.findall(text)))


def may_be_parallel(work: int | Size, machine: Machine) -> bool:
    """Whether so much work is worth threads; of work that is known when the program runs, that is asked then."""
    return isinstance(work, Size) or work >= machine.threads_from


def is_worth_threads(work: int | Size, machine: Machine) -> str:
    """The same as C, where there are ``threads``."""
    return "threads > 1" + (f" && {work} >= {machine.threads_from}" if isinstance(work, Size) else "")


class _Printer:
    def __init__(self, kernel: Kernel, machine: Machine) -> None:
        self._kernel, self._machine = kernel, machine
        self._parameters = kernel.names
        self._language = C(self._parameters, kernel.columns[-1] if kernel.columns else None)
        self._rows = math.prod(a.size for a in kernel.rows)
        self._columns = math.prod(a.size for a in kernel.columns)
        self._numbers = itertools.count()
        self._kept = {k: f"k{i}" for i, k in enumerate(k for stage in kernel.stages for k in stage.keeps)}
        self._side_by_side: dict[Expr, str] = {load: f"g{i}" for i, load in enumerate(_side_by_side(kernel))}
        self._in_arrays = {**self._kept, **self._side_by_side}
        self._totals = Totals(kernel, self._is_parallel)

    def function(self) -> list[str]:
        lanes = lanes_of(self._kernel)
        if lanes:
            return lanes_function(self._kernel, lanes, self._is_parallel)
        kernel, arrays, body = self._kernel, self._arrays(), self._rows_loop()  # before what they name is defined
        takes = [*parameters(kernel), *(["int64_t n"] if self.length else [])]
        lines = self._language.variables()
        if self._is_parallel and self._totals:  # else in the region in which it is called
            lines += ["const int threads = omp_get_max_threads();", *self._totals.before()]
            lines.append(f"#pragma omp parallel num_threads(threads) if ({is_worth_threads(self.work, self._machine)})")
        freed = [f"free({name});" for name in self._in_arrays.values()] if self._on_heap() else []
        inside = indented([*self._totals.thread(), *arrays, *body, *freed, *self._totals.thread_end()])
        lines += ["{", *inside, "}", *self._totals.after()]
        return [f"void {{name}}({', '.join(takes)}) {{", *indented(lines), "}"]

    @property
    def length(self) -> int | Size | None:
        """The number of elements, where it is a parameter: kernels that go over tiles of any number of elements are
        one function."""
        n, tile = self._columns, self._kernel.tile
        return n if tile and (isinstance(n, Size) or n > tile) else None

    @functools.cached_property
    def work(self) -> int | Size:
        """Operations, roughly."""
        found = walk([e.value for stage in self._kernel.stages for e in stage.effects])
        costs = [cost_of(e.name, self._machine).in_lanes for e in found if e.full and isinstance(e, Op)]
        each = 1 + sum(costs) + sum(e.full and isinstance(e, Load) for e in found)
        return self._rows * self._columns * each

    @property
    def _is_parallel(self) -> bool:
        return may_be_parallel(self.work, self._machine) and (
            isinstance(self._rows, Size) or self._rows > 1 or self.length is not None
        )

    # arrays of a thread: elements of a row that a later stage needs, and what is read in steps, side by side

    def _arrays(self) -> list[str]:
        width = self._kernel.tile or self._columns
        lines = []
        for expr, name in self._in_arrays.items():
            kind = TYPES[expr.dtype]
            if self._on_heap():
                lines.append(f"{kind}* restrict {name} = aligned_alloc(64, ({width} * sizeof({kind}) + 63) / 64 * 64);")
            else:
                lines.append(f"{kind} {name}[{width}] __attribute__((aligned(64)));")
        if self._side_by_side:
            names: dict[Expr, str] = {}
            body = print_expressions(self._language, list(self._side_by_side), names, lambda e: True)
            body += [f"{name}[{self._column()}] = {names[load]};" for load, name in self._side_by_side.items()]
            lines += self._loops(body, [], in_order=False)
        return lines

    def _on_heap(self) -> bool:
        width = self._kernel.tile or self._columns
        return isinstance(width, Size) or width * len(self._in_arrays) * 8 > 1 << 18

    # loops

    def _rows_loop(self) -> list[str]:
        kernel = self._kernel
        inner = self._stages()
        shared = [f"#pragma omp for schedule(static){'' if self._totals else ' nowait'}"] if self._is_parallel else []
        if kernel.tile:
            return [*shared, *_spans("n" if self.length else self._columns, kernel.tile, inner)]
        if not kernel.rows:
            return ["{", *indented(inner), "}"]
        return over_rows(kernel.rows, shared, [*inner, *self._totals.rows_done()])

    def _stages(self) -> list[str]:
        lines: list[str] = []
        names: dict[Expr, str] = {}
        for stage in self._kernel.stages:
            lines += self._stage(stage, names)
        return lines

    def _stage(self, stage: Stage, names: dict[Expr, str]) -> list[str]:
        roots = [r.body for r in stage.reductions] + list(stage.keeps) + [e.value for e in stage.effects]
        lines = print_expressions(self._language, roots, names, lambda e: not e.full)
        effects = [e for e in stage.effects if not isinstance(e, Put)]
        lines += [self._effect(e, names) for e in effects if not e.full]
        full = [e for e in effects if e.full]
        if stage.reductions or stage.keeps or full:
            lines += self._walk(stage, full, names)
        return lines

    def _walk(self, stage: Stage, effects: Sequence[Store | Total], names: dict[Expr, str]) -> list[str]:
        inside = dict(names)
        for expr, name in self._in_arrays.items():
            if expr not in stage.keeps:
                inside[expr] = f"{name}[{self._column()}]"
        roots = [r.body for r in stage.reductions] + list(stage.keeps) + [e.value for e in effects]
        before = self._running(roots, inside)
        turns = self._turns(stage, roots, effects, inside)
        if turns:
            return self._near_and_far(stage, roots, effects, inside, turns)
        body = print_expressions(self._language, roots, inside, lambda e: True)
        in_order = any(isinstance(e, Scanned) for e in inside if e not in names)
        after: list[str] = []
        clauses: list[str] = []
        wide: list[str] = []

        def reduced_in(kind: str, dtype: torch.dtype, value: str) -> tuple[str, str]:
            """The variable of a reduction, and the one that holds it when the columns are done."""
            name, how = f"a{next(self._numbers)}", REDUCTIONS[kind]
            is_wide = self._is_wide(kind, dtype, in_order)
            held = f"w{name}" if is_wide else name
            before.append(f"{'double' if is_wide else TYPES[dtype]} {held} = {start(kind, dtype)};")
            own = held if in_order else name  # nothing is gained by floats one by one
            body.append(f"{own} = {how.add.format(own, value)};")
            clauses.append(f"reduction({how.clause}:{own})")
            if own != held:
                wide.append(name)
            return name, held

        for reduced in stage.reductions:
            name, held = reduced_in(reduced.kind, reduced.dtype, inside[reduced.body])
            names[reduced] = name
            after += [f"const float {name} = {held};"] if held != name else []
        body += self._kept_and_stored(stage, effects, inside)
        for effect in effects:
            if isinstance(effect, Store):
                continue
            # in a register: no loop over columns is vectorised that adds to one place in memory
            if not effect.at.terms:
                _, held = reduced_in(effect.kind, effect.value.dtype, inside[effect.value])
                after.append(self._effect(effect, {effect.value: held}))
            else:
                body.append(self._effect(effect, inside))
        return [*before, *self._loops(body, clauses, in_order, wide), *after]

    def _is_wide(self, kind: str, dtype: torch.dtype, in_order: bool) -> bool:
        """Whether a reduction of a row goes on in double precision: of a long one (of how many columns there are in a
        symbolic row nothing is known), and where one column is added after the other."""
        is_long = not self._kernel.tile and not is_few(self._columns, _LONG)
        return (is_long or in_order) and kind == "sum" and dtype == torch.float32

    def _kept_and_stored(self, stage: Stage, effects: Sequence[Store | Total], names: Mapping[Expr, str]) -> list[str]:
        lines = [f"{self._kept[keep]}[{self._column()}] = {names[keep]};" for keep in stage.keeps]
        return [*lines, *(self._effect(e, names) for e in effects if isinstance(e, Store))]

    def _effect(self, effect: Store | Total, names: Mapping[Expr, str]) -> str:
        value = names[effect.value]
        if isinstance(effect, Store):
            place = self._language.address(effect.at)
            return stored(self._parameters[effect.buffer], place, value, effect.value.dtype)
        total = self._totals.place(effect)
        return f"{total} = {REDUCTIONS[effect.kind].add.format(total, value)};"

    def _turns(
        self, stage: Stage, roots: Sequence[Expr], effects: Sequence[Store | Total], known: Mapping[Expr, str]
    ) -> list[Expr]:
        """The angles of a walk whose sines and cosines may be computed fast, and the walk again if one is far from
        zero."""
        here = walk(roots, set(known))
        once = bool(stage.reductions) or any(isinstance(e, (Total, Scanned)) for e in (*effects, *here))
        once = once or any(e.buffer in self._kernel.over for e in effects)  # what has been read is gone
        if once or not self._kernel.columns:
            return []
        found = [e.operands[0] for e in here if isinstance(e, Op) and e.name in TURNS and e.dtype != torch.float64]
        return list(dict.fromkeys(found))

    def _near_and_far(
        self,
        stage: Stage,
        roots: Sequence[Expr],
        effects: Sequence[Store | Total],
        known: dict[Expr, str],
        turns: Sequence[Expr],
    ) -> list[str]:
        near, far = dict(known), known
        body = print_expressions(self._language.near(), roots, near, lambda e: True)
        body += [f"far |= fabsf({near[angle]}) > FG_NEAR;" for angle in turns]
        again = print_expressions(self._language, roots, far, lambda e: True)
        return [
            "{", "  int far = 0;",
            *indented(self._loops([*body, *self._kept_and_stored(stage, effects, near)], ["reduction(|:far)"], False)),
            "  if (far) {",
            *indented(indented(self._loops([*again, *self._kept_and_stored(stage, effects, far)], [], False))),
            "  }", "}",
        ]  # fmt: skip

    def _running(self, roots: Sequence[Expr], known: Mapping[Expr, str]) -> list[str]:
        """The variables of the scans of a walk; sums and products of single precision go on in double precision."""
        lines = []
        for expr in walk(roots, set(known)):
            if isinstance(expr, Scanned):
                name = self._language.running[expr] = f"s{next(self._numbers)}"
                wide = expr.dtype == torch.float32 and expr.kind in ("sum", "prod")
                lines.append(f"{'double' if wide else TYPES[expr.dtype]} {name} = {start(expr.kind, expr.dtype)};")
        return lines

    def _loops(
        self, body: Sequence[str], clauses: Sequence[str], in_order: bool, wide: Sequence[str] = ()
    ) -> list[str]:
        """The loops over columns; ``wide``: sums of single precision that go on in double precision."""
        kernel = self._kernel
        if not kernel.columns:
            return ["{", *indented(body), "}"]
        *outer, last = kernel.columns
        in_spans = bool(wide) and not is_few(last.size, _LONG)
        is_short = clauses and not kernel.tile and hint(last.size) < _SHORT and not divides(_LANES, last.size)
        clauses = [f"simdlen({_FEWER_LANES})", *clauses] if is_short else clauses
        is_tiny = not clauses and isinstance(last.size, Size) and last.size.hint < _FEWEST
        lines = [] if in_order or is_tiny else [f"#pragma omp simd {' '.join(clauses)}".rstrip()]
        lines += loop(last, body, *(("begin", "end") if kernel.tile or in_spans else ()))
        lines = [*(f"float {name} = 0;" for name in wide), *lines, *(f"w{name} = w{name} + {name};" for name in wide)]
        if in_spans:
            lines = _spans(last.size, _SPAN, lines)
        return nested(outer, lines)

    def _column(self) -> str:
        """Which element of a kept row the present column is."""
        if self._kernel.tile:
            return f"{self._kernel.columns[0].name} - begin"
        text = "0"
        for axis in self._kernel.columns:
            text = axis.name if text == "0" else f"({text}) * {axis.size} + {axis.name}"
        return text


def _spans(n: int | Size | str, most: int, body: Sequence[str]) -> list[str]:
    """A loop over at most so many of ``n`` elements at a time, from ``begin`` to ``end``."""
    return [
        f"for (int64_t begin = 0; begin < {n}; begin += {most}) {{",
        f"  const int64_t end = begin + {most} < {n} ? begin + {most} : {n};",
        *indented(body), "}",
    ]  # fmt: skip


def _side_by_side(kernel: Kernel) -> list[Load]:
    """What all rows read in steps."""
    if kernel.tile or not kernel.columns:
        return []
    found = walk([e for stage in kernel.stages for e in computed(stage.effects)])
    return read_in_steps((e for e in found if isinstance(e, Load) and e.full), kernel.columns, kernel.rows)
