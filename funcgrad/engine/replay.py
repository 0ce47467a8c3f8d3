"""Statements, one after the other, on real values: where a graph cannot be traced, must itself be differentiable, or
has not run yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..autograd_state import version_of
from ..runtime.given_tensors import require_versions
from .calls import Look, look_of
from .run import Run
from .statements import Kind, Statement
from .tokens import Ref, mapped, refs_in
from .versions import first_after_python, saved_by, saved_for


class Replay:
    """``looks``: how what the caller's Python returned looked when it ran last; ``sparse``: which gradients
    were sparse then, and undefined ones beside them."""

    def __init__(self, statements: Sequence[Statement], outputs: Sequence[Any]) -> None:
        self._statements, self._outputs = statements, outputs
        self.looks: dict[int, tuple[Look | None, ...]] = {}
        self.sparse: frozenset[Ref] = frozenset()
        first = first_after_python(statements)
        self._saved = [saved_by(s) if i >= first else [] for i, s in enumerate(statements)]
        self._saved_for: list[Sequence[Ref | None]] = [
            saved_for(s) if i >= first else [] for i, s in enumerate(statements)
        ]
        last: dict[Ref, int] = {}
        for i, s in enumerate(statements):
            last |= dict.fromkeys([*refs_in(s.args), *s.results], i)
        for ref in outputs:
            last.pop(ref, None)
        self._gone: list[list[Ref]] = [[] for _ in statements]
        for ref, i in last.items():
            if not isinstance(ref.of, str) or ref.of == "inputs":
                self._gone[i].append(ref)

    def __call__(self, run: Run) -> list[Any]:
        """Run them. Each value is dropped after its last reader, as the engine does."""
        self.looks, sparse = {}, set[Ref]()
        made: dict[Ref, Any] = {Ref("inputs", i): value for i, value in enumerate(run.inputs)}
        run.inputs.clear()
        saved = (ref for refs in (*self._saved, *self._saved_for) for ref in refs)
        versions = {ref: version_of(made[ref]) for ref in saved if ref is not None}

        def read(ref: Ref) -> Any:
            return made[ref] if ref.of == "inputs" or not isinstance(ref.of, str) else run.read(ref)

        for s, read_now, may_read, gone in zip(self._statements, self._saved, self._saved_for, self._gone, strict=True):
            require_versions((made[ref], versions[ref]) for ref in read_now)
            then = {"then": [None if ref is None else versions[ref] for ref in may_read]} if may_read else {}
            results = s.run(*mapped(s.args, read), **then)
            if any(map(_is_sparse, results)):
                sparse.update(r for r, v in zip(s.results, results, strict=True) if v is None or _is_sparse(v))
            elif s.kind is Kind.CALL:
                self.looks[s.number] = tuple(map(look_of, results))
            made.update(zip(s.results, results, strict=True))
            del results
            for ref in gone:
                del made[ref]
        self.sparse = frozenset(sparse)
        return [read(ref) if isinstance(ref, Ref) else None for ref in self._outputs]


def _is_sparse(value: Any) -> bool:
    return isinstance(value, Tensor) and value.layout is not torch.strided
