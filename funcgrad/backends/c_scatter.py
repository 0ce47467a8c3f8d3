"""Kernels that scatter, as C: what may write to one place is done in order, by one thread.

Threads share the rows that differ along axes on which elements are put apart; where there are none, the columns: each
thread goes over all rows, with a range of columns of its own. So results are the same on any number of threads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..loops.index import Axis, substitute
from ..loops.ir import Expr, Kernel, Put, computed, walk
from ..symbolic.sizes import hint
from .c_language import C, stored
from .c_loops import counters, indented, loop, nested, parameters
from .emitter import elements, index_text, print_expressions

_SHARE = 64
"""Columns for which a thread is worth its start."""

_LINE = 16
"""Columns that no two threads share: a cache line of single precision."""


def scatter_function(kernel: Kernel, parallel_from: int) -> list[str]:
    """The lines of a kernel's function; threads are started for so many operations."""
    puts = [e for e in kernel.stages[0].effects if isinstance(e, Put)]
    shared, ordered, columns = kernel.rows[: puts[0].apart], kernel.rows[puts[0].apart :], kernel.columns
    rows, width = math.prod(a.size for a in shared), math.prod(a.size for a in columns)
    many = hint(rows * math.prod(a.size for a in ordered) * width) * len(walk(computed(puts))) >= parallel_from
    by_columns = many and rows == 1 and width >= 2 * _SHARE
    lines = nested(ordered, _body(kernel, puts, kernel.names, ("begin", "end") if by_columns else ()))
    if shared:
        head = ["#pragma omp parallel for schedule(static)"] if many and rows > 1 else []
        lines = [*head, *loop(Axis("row", rows), [*counters(shared), *lines])]
    elif by_columns:
        lines = [
            f"#pragma omp parallel num_threads(CLAMP(omp_get_max_threads(), 1, {width // _SHARE}))", "{",
            f"  const int64_t lines = {-(-width // _LINE)}, thread = omp_get_thread_num(), threads = "
            "omp_get_num_threads();",
            f"  const int64_t begin = lines * thread / threads * {_LINE}, next = lines * (thread + 1) / threads * "
            f"{_LINE};",
            f"  const int64_t end = next < {width} ? next : {width};",
            *indented(lines), "}",
        ]  # fmt: skip
    return [f"void {{name}}({', '.join(parameters(kernel))}) {{", *indented(lines), "}"]


def _body(kernel: Kernel, puts: Sequence[Put], parameters: Mapping[str, str], bounds: Sequence[str]) -> list[str]:
    """What is done in a row: what is the same in all its columns, then a loop over them."""
    language, names, roots = C(parameters), dict[Expr, str](), computed(puts)
    lines = print_expressions(language, roots, names, lambda e: not e.full)
    inside = print_expressions(language, roots, names, lambda e: True)
    for put in puts:
        at = index_text(substitute(put.at, elements(language, put.found, names)))
        inside.append(stored(parameters[put.buffer], at, names[put.value], put.value.dtype))
    if not kernel.columns:
        return [*lines, *inside]
    return [*lines, "#pragma omp simd", *loop(kernel.columns[0], inside, *bounds)]
