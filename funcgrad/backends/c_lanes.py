"""Kernels whose rows lie side by side in memory while the columns of a row do not, as C: products of matrices, first of
all.

Columns are vectorised where neighbours lie together. Here rows are: each goes through its columns in order, in a lane
of its own, and what they add up stays in registers. A matrix that lies the other way round is turned before.
"""

from __future__ import annotations

import math

from ..loops.index import Axis, Index, at_axis
from ..loops.ir import Expr, Kernel, Load, Scanned, Stage, Store, computed, walk
from .c_language import REDUCTIONS, TYPES, C, start, stored
from .c_loops import indented, nested, over_rows, parameters, read_in_steps
from .emitter import index_text, print_expressions

_LANES = (16, 8)
"""Rows that are computed at once: as many as a vector or two of single precision hold."""

_COLUMNS = 256
"""Columns that are added one after the other; more of them lose digits that sums in several parts keep."""


def lanes_of(kernel: Kernel) -> int:
    """How many rows are computed side by side; 0 where columns are."""
    if (
        kernel.tile
        or not kernel.rows
        or not kernel.columns
        or not all(isinstance(a.size, int) for a in (*kernel.rows, *kernel.columns))
    ):
        return 0
    last, columns = kernel.rows[-1].size, math.prod(a.size for a in kernel.columns)
    lanes = next((n for n in _LANES if last % n == 0), 0)
    return lanes if columns <= _COLUMNS and _sums_rows(kernel) and _lies_in_lanes(kernel) else 0


def _sums_rows(kernel: Kernel) -> bool:
    """Whether all that is done in a column is to add it up, and all that is written belongs to a row; nothing is
    read after it is gone."""
    effects = [e for stage in kernel.stages for e in stage.effects]
    early = [e for stage in kernel.stages[:-1] for e in stage.effects]
    plain = all(isinstance(e, Store) and not e.full for e in effects) and not any(
        stage.keeps for stage in kernel.stages
    )
    reductions = [r for stage in kernel.stages for r in stage.reductions]
    scans = any(isinstance(e, Scanned) for e in walk([r.body for r in reductions]))
    return plain and bool(reductions) and not scans and not (early and kernel.over)


def _lies_in_lanes(kernel: Kernel) -> bool:
    """Whether neighbouring rows read neighbours, or the same, in every column; or will, when what is read is turned."""
    loads = _full_loads(kernel)
    lane = kernel.rows[-1]
    turned = turned_by(kernel)
    steps = [load.at.coefficient(lane) for load in loads if load not in turned]
    return (
        bool(turned or 1 in steps)
        and all(n in (0, 1) for n in steps)
        and not any(load.found or load.guard for load in loads)
    )


def _full_loads(kernel: Kernel) -> list[Load]:
    found = walk([e for stage in kernel.stages for e in (*stage.reductions, *computed(stage.effects))])
    return [e for e in found if isinstance(e, Load) and e.full]


def turned_by(kernel: Kernel) -> list[Load]:
    """What lanes read in steps, of which there is but one matrix for all other rows."""
    *others, lane = kernel.rows
    return read_in_steps(_full_loads(kernel), (*kernel.columns, lane), others)


def lanes_function(kernel: Kernel, lanes: int, is_shared: bool) -> list[str]:
    """The lines of its function; ``is_shared``: threads share the rows."""
    *others, lane = kernel.rows
    block, within = Axis("block", lane.size // lanes), Axis("lane", lanes)
    language, turned = C(kernel.names), {load: f"g{i}" for i, load in enumerate(turned_by(kernel))}
    counter = f"const int64_t {lane.name} = {index_text(at_axis(block) * lanes + at_axis(within))};"
    column = Index()
    for axis in kernel.columns:
        column = column * axis.size + at_axis(axis)
    in_lanes = [f"for (int64_t lane = 0; lane < {lanes}; ++lane) {{"]
    there: dict[Expr, str] = {
        load: f"{name}[{index_text(column * lane.size + at_axis(lane))}]" for load, name in turned.items()
    }
    names: dict[Expr, str] = {}
    body: list[str] = []
    for number, stage in enumerate(kernel.stages):
        body += _stage(kernel, stage, number, language, names, there, [counter], in_lanes, lanes)
    before: list[str] = []
    for load, name in turned.items():
        kind = TYPES[load.dtype]
        before.append(f"{kind} {name}[{column.range[1] * lane.size + lane.size}] __attribute__((aligned(64)));")
        own: dict[Expr, str] = {}
        copied = [*print_expressions(language, [load], own, lambda e: True)]
        before += nested([*kernel.columns, lane], [*copied, f"{there[load]} = {own[load]};"])
    loop = over_rows([*others, block], ["#pragma omp for schedule(static) nowait"] if is_shared else [], body)
    return [f"void {{name}}({', '.join(parameters(kernel))}) {{", *indented([*before, *loop]), "}"]


def _stage(
    kernel: Kernel, stage: Stage, number: int, language: C, names: dict[Expr, str], there: dict[Expr, str],
    counter: list[str],
    in_lanes: list[str], lanes: int,
) -> list[str]:  # fmt: skip
    lines: list[str] = []
    if stage.reductions:
        inside = {**names, **there}
        body = print_expressions(language, [r.body for r in stage.reductions], inside, lambda e: True)
        for i, reduced in enumerate(stage.reductions):
            name = f"a{number}_{i}"
            names[reduced] = f"{name}[lane]"
            lines += [f"{TYPES[reduced.dtype]} {name}[{lanes}];"]
            lines += [*in_lanes, f"  {name}[lane] = {start(reduced.kind, reduced.dtype)};", "}"]
            body.append(f"{name}[lane] = {REDUCTIONS[reduced.kind].add.format(f'{name}[lane]', inside[reduced.body])};")
        lines += nested(kernel.columns, ["#pragma omp simd", *in_lanes, *indented([*counter, *body]), "}"])
    if stage.effects:
        inside = dict(names)
        body = print_expressions(language, [e.value for e in stage.effects], inside, lambda e: True)
        for effect in stage.effects:
            body.append(
                stored(kernel.names[effect.buffer], index_text(effect.at), inside[effect.value], effect.value.dtype)
            )
        lines += ["#pragma omp simd", *in_lanes, *indented([*counter, *body]), "}"]
    return lines
