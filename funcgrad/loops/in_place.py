"""What a kernel may write over what it reads: a result in the place of a buffer that dies there.

Each element of the buffer is read in the very turn of the loops that writes the element of the result to the same
address, and in no walk after that. So it is gone only when nobody needs it any more, however turns are shared among
threads, vectors or programs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import frozen

from ..symbolic.known import same_sizes
from .index import Axis, Index
from .ir import Buffer, Expr, Kernel, Load, Put, Reduced, Store, Total, walk

Access = tuple[Index, torch.dtype, int]
"""Where an element lies, and of what memory: its dtype and how many elements there are."""


@frozen
class _Moment:
    """When something happens in a turn of the rows: the walk, by which C goes, and the first stage in which all it
    is made of is known, by which rows are computed that stay in registers (``Expr.stage``)."""

    walk: int
    stage: int

    def is_by(self, other: _Moment, keeps: bool) -> bool:
        return self.walk <= other.walk and (keeps or self.stage <= other.stage)


def places(kernel: Kernel, keeps: bool) -> Mapping[str, Sequence[Buffer]]:
    """For what the kernel writes, the buffers it could be written over, those of the same sizes and strides first.
    ``keeps``: what a walk is to keep is there in later ones, as in C; where it may be computed again, what it is
    made of is read again."""
    if any(isinstance(e, Put) for stage in kernel.stages for e in stage.effects):
        return {}  # where elements go is data
    read = _read_last(kernel)
    by_access: dict[Access, list[Buffer]] = {}
    for b in kernel.reads:
        if b.name in read and is_dense(b):
            by_access.setdefault(_access(read[b.name][0], b), []).append(b)
    found: dict[str, Sequence[Buffer]] = {}
    written = {b.name: b for b in kernel.writes}
    for name, (store, moment) in _written_once(kernel).items():
        own = written[name]
        if is_dense(own):
            fitting = [b for b in by_access.get(_access(store.at, own), ()) if read[b.name][1].is_by(moment, keeps)]
            found[name] = sorted(fitting, key=lambda b: not _lies_like(b, own))
    return found


def _lies_like(buffer: Buffer, own: Buffer) -> bool:
    """Whether it is known to have the same sizes and strides: which buffer is taken first ties no program to a size."""
    return same_sizes(buffer.shape, own.shape) and same_sizes(buffer.strides, own.strides)


def is_dense(buffer: Buffer) -> bool:
    """Whether its elements lie next to each other, each once."""
    step = 1
    for stride, size in sorted((s, n) for n, s in zip(buffer.shape, buffer.strides, strict=True) if n != 1):
        if stride != step:
            return False
        step *= size
    return step > 0


def _access(at: Index, buffer: Buffer) -> Access:
    return at, buffer.dtype, math.prod(buffer.shape)


def _written_once(kernel: Kernel) -> dict[str, tuple[Store, _Moment]]:
    """The buffers that one store writes, to each element in a turn of its own."""
    found: dict[str, list[tuple[Store | Total, _Moment]]] = {}
    for n, stage in enumerate(kernel.stages):
        for e in stage.effects:
            assert not isinstance(e, Put)
            found.setdefault(e.buffer, []).append((e, _Moment(n, e.value.stage)))
    return {
        name: (store, moment)
        for name, ((store, moment), *others) in found.items()
        if not others
        and isinstance(store, Store)
        and _is_apart(store.at, (*kernel.rows, *(kernel.columns if store.full else ())))
    }


def _is_apart(at: Index, turns: Sequence[Axis]) -> bool:
    """Whether an index differs from turn to turn: each counter goes farther in one step than all smaller ones do
    together."""
    if {a for a in turns if a.size > 1} != {atom for atom, _ in at.terms}:
        return False
    reach = 0
    for by, size in sorted((by, atom.size) for atom, by in at.terms if isinstance(atom, Axis)):
        if by <= reach:
            return False
        reach += by * (size - 1)
    return True


def _read_last(kernel: Kernel) -> dict[str, tuple[Index, _Moment]]:
    """The buffers that are read at one index alone, unguarded, with the last moment that reads them."""
    walks: list[list[Load]] = []
    stages: dict[int, list[Expr]] = {}
    kept = {k for stage in kernel.stages for k in stage.keeps}
    reduced: set[Expr] = {e for e in walk(_roots(kernel)) if isinstance(e, Reduced)}
    for stage in kernel.stages:
        roots = [r.body for r in stage.reductions] + [e.value for e in stage.effects]
        walks.append(_loads([*roots, *stage.keeps], reduced | (kept - set(stage.keeps))))
        for root in roots:
            stages.setdefault(root.stage, []).append(root)
    found: dict[str, tuple[Index, _Moment]] = {}
    elsewhere: set[str] = set()
    for n, loads in enumerate(walks):
        for load in loads:
            at, _ = found.setdefault(load.buffer, (load.at, _Moment(n, 0)))
            found[load.buffer] = at, _Moment(n, 0)
            if load.guard or load.at != at:
                elsewhere.add(load.buffer)
    for level in sorted(stages):
        for load in _loads(stages[level], reduced):
            at, moment = found[load.buffer]
            found[load.buffer] = at, _Moment(moment.walk, level)
    return {name: last for name, last in found.items() if name not in elsewhere}


def _roots(kernel: Kernel) -> list[Expr]:
    return [e.value for stage in kernel.stages for e in stage.effects]


def _loads(roots: Iterable[Expr], known: set[Expr]) -> list[Load]:
    """What is read to compute something, given what is known already."""
    return [e for e in walk(list(roots), set(known)) if isinstance(e, Load)]
