"""Kernels that scatter, as Triton: what may write to one place is done in order, by one program.

Programs share the rows that differ along axes on which elements are put apart, and the columns. So results are the same
on every run, as they are of ATen on the CPU; and where many elements may be put in one place it takes long.
"""

from __future__ import annotations

import math

from ..loops.domain import core
from ..loops.index import substitute
from ..loops.ir import Expr, Kernel, Put, computed
from ..loops.scatter import Scatter, in_order
from ..loops.values import Value
from .emitter import elements, print_expressions
from .triton_language import Tile, Triton, apart, counters, is_wide, power_of_two, stored, value_text

_TILE = 256
"""Elements of a tile: two for each thread of four warps."""

_STEPS = 64
"""Elements that are put one after the other in less time than the library takes to sort them."""


def refuse(value: Value) -> str | None:
    """Why the library scatters this; None where a kernel does, and for all else."""
    if not isinstance(value, Scatter):
        return None
    first, last = in_order(value)
    steps = math.prod(core(value.arg.shape)[first:last])
    return (
        f"{steps} elements may go to one place, and a kernel would put one after the other" if steps > _STEPS else None
    )


def scatter_function(kernel: Kernel) -> tuple[list[str], int, int]:
    """The lines of a kernel's function, how many programs it takes, and of how many warps."""
    puts = [e for e in kernel.stages[0].effects if isinstance(e, Put)]
    names = kernel.names
    shared, ordered = kernel.rows[: puts[0].apart], kernel.rows[puts[0].apart :]
    rows, steps, columns = (math.prod(a.size for a in axes) for axes in (shared, ordered, kernel.columns))
    width = min(_TILE, power_of_two(columns))
    height = min(_TILE // width, power_of_two(rows))
    blocks, strips, wide = -(-rows // height), -(-columns // width), is_wide(kernel)
    insides = "row_inside" if rows % height else None, "column_inside" if columns % width else None
    tile = Tile(frozenset(shared), frozenset(kernel.columns), height, width, *insides)
    program = "tl.program_id(0)"
    block, strip = (program, "0") if strips == 1 else (f"({program} // {strips})", f"({program} % {strips})")
    lines = counters(shared, "row", block, (height, blocks, "[:, None]"), tile.rows_inside, wide)
    lines += counters(kernel.columns, "column", strip, (width, strips, "[None, :]"), tile.columns_inside, wide)
    body = _body(puts, Triton(names, tile, wide))
    if ordered:
        # the barrier keeps what one thread writes from being read by another before
        counter = ordered[0].name if len(ordered) == 1 else "place"
        cast = f"{counter} = tl.cast(step, tl.int{64 if wide else 32})"
        body = ["tl.debug_barrier()", cast, *apart(ordered, counter), *body]
        body = [f"for step in range({steps}):", *(f"    {line}" for line in body)]
    head = ["@triton.jit", f"def {{name}}({', '.join(names[b.name] for b in kernel.parameters)}):"]
    return [*head, *(f"    {line}" for line in (*lines, *body))], blocks * strips, max(1, height * width // 64)


def _body(puts: list[Put], language: Triton) -> list[str]:
    """What is done with the elements of a tile."""
    names: dict[Expr, str] = {}
    lines = print_expressions(language, computed(puts), names, lambda e: True)
    for put in puts:
        at = substitute(put.at, elements(language, put.found, names))
        place, mask = language.address(put.buffer, at, (True, True))
        lines.append(stored(place, value_text(put.value, names), put.value.dtype, mask))
    return lines
