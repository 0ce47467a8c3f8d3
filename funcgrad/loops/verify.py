"""Proof that a kernel reads and writes only what is there, by the ranges of its indices.

Each view is checked, dimension by dimension, when it is made (``values.look`` and ``within``), and views of views are in bounds
where each of them is. Here the addresses that came of it are checked once more against the memory of the tensor, but for those
that a guard keeps from being read: what its bounds mean for an address of several dimensions cannot be seen any more.

What a walk over a row takes from others must be there by then. What is written in the place of something that is read must be a thing that
may (``in_place.places``).
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import GraphError
from .in_place import places
from .index import Index
from .ir import Buffer, Effect, Kernel, Load, computed, short, walk


def verify(kernel: Kernel, keeps: bool = False) -> Kernel:
    """The kernel itself, if every access is proven to lie in its buffer, walks take from others only what is there by then, and nothing is
    read after another has been written in its place (``keeps``: ``places``); else ``GraphError`` with the access, or the buffers."""
    last = {b.name: _last(b) for b in (*kernel.reads, *kernel.writes)}
    effects = [e for stage in kernel.stages for e in stage.effects]
    loads = [e for e in walk(computed(effects)) if isinstance(e, Load)]
    for buffer, at in _accesses(loads, effects):
        low, high = at.range
        if low < 0 or high > last[buffer]:
            raise GraphError(f"{kernel.name} may read or write {buffer}[{at}], from {low} to {high}, which ends at {last[buffer]}")
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


def _accesses(loads: Iterable[Load], effects: Iterable[Effect]) -> Iterable[tuple[str, Index]]:
    yield from ((e.buffer, e.at) for e in loads if not e.guard)
    yield from ((e.buffer, e.at) for e in effects)


def _last(buffer: Buffer) -> int:
    """The address of the last element."""
    return sum((n - 1) * s for n, s in zip(buffer.shape, buffer.strides, strict=True))
