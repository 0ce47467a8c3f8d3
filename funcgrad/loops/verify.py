"""Proof that a kernel reads and writes only what is there, by the ranges of its indices.

Each view is checked, dimension by dimension, when it is made (``values.look`` and ``within``), and views of views are
in bounds where each of them is. Here the addresses that came of it are checked once more against the memory of the
tensor. Under a guard whose bounds are on single counters, C reads whether it holds or not, with these counters kept
within the bounds: what is checked is where that leads. Else nothing is read there where the guard does not hold, and
what its bounds mean for an address cannot be seen any more.

What a walk over a row takes from others must be there by then. What is written in the place of something that is read
must be a thing that may (``in_place.places``).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import GraphError
from .in_place import places
from .index import Index, is_shifted_axis, limits, range_among
from .ir import Effect, Kernel, Load, computed, short, walk


def verify(kernel: Kernel, keeps: bool = False) -> Kernel:
    """The kernel itself, if every access is proven to lie in its buffer, walks take from others only what is there
    by then, and nothing is read after another has been written in its place (``keeps``: ``places``); else
    ``GraphError`` with the access, or the buffers."""
    last = {b.name: b.extent - 1 for b in (*kernel.reads, *kernel.writes)}
    effects = [e for stage in kernel.stages for e in stage.effects]
    loads = [e for e in walk(computed(effects)) if isinstance(e, Load)]
    for buffer, at, (low, high) in _accesses(loads, effects):
        if low < 0 or high > last[buffer]:
            raise GraphError(
                f"{kernel.name} may read or write {buffer}[{at}], from {low} to {high}, which ends at {last[buffer]}"
            )
    _require_in_turn(kernel)
    axes = [*kernel.rows, *kernel.columns]
    if len({a.name for a in axes}) != len(axes):
        raise GraphError(f"{kernel.name} has two loops of one name")
    possible = places(kernel, keeps) if kernel.over else {}
    for written, read in kernel.over.items():
        if read not in {b.name for b in possible.get(written, ())} or list(kernel.over.values()).count(read) > 1:
            raise GraphError(f"{kernel.name} may read what was in {read} after it has written {written} there")
    return kernel


def _require_in_turn(kernel: Kernel) -> None:
    """What a walk takes from others is made, or kept, in one before."""
    made = {e: n for n, stage in enumerate(kernel.stages) for e in (*stage.keeps, *stage.reductions)}
    for n, stage in enumerate(kernel.stages):
        roots = [*(r.body for r in stage.reductions), *stage.keeps, *(e.value for e in stage.effects)]
        elsewhere = made.keys() - stage.keeps
        for expr in {*roots, *(a for e in walk(roots, set(elsewhere)) for a in e.args)} & elsewhere:
            if made[expr] >= n:
                raise GraphError(f"{kernel.name} needs {short(expr)} in walk {n}, which is made in walk {made[expr]}")


def _accesses(loads: Iterable[Load], effects: Iterable[Effect]) -> Iterable[tuple[str, Index, tuple[int, int]]]:
    """What is read and written: the buffer, where in it, and from where to where that goes."""
    for e in loads:
        if all(is_shifted_axis(i) for i, _, _ in e.guard):
            # out of order where bounds contradict
            kept = {axis: (min(ends), max(ends)) for axis, ends in limits(e.guard).items()}
            yield e.buffer, e.at, range_among(e.at, kept)
    yield from ((e.buffer, e.at, e.at.range) for e in effects)
