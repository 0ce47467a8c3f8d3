"""What forward has saved, and the caller's Python writes to while backward runs: eager PyTorch raises where it is read
next.

A captured pass is given all of it when it begins. So it compares versions: of what a node reads after Python has run,
before Python runs again. Between the two nobody sees whether that was done at once.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..autograd_state import versions_of_saved
from ..runtime.given_tensors import require_versions
from .inlined import Inlinable
from .statements import VALIDATE, Function, Functional, Kind, Statement
from .tokens import Ref, refs_in


def saved_by(s: Statement) -> list[Ref]:
    """The inputs of a run that a statement reads as what was saved, all of them and always: an ``autograd.Function``
    of the caller's need not read what it has."""
    if isinstance(s.run, Inlinable):
        read = s.args[2]
    elif s.kind is Kind.PURE and isinstance(s.run, Functional) and s.run is not VALIDATE:
        read = s.args[1:]
    else:
        return []
    return [ref for ref in refs_in(read) if ref.of == "inputs"]


def saved_for(s: Statement) -> list[Ref | None]:
    """Of what an ``autograd.Function`` of the caller's is given as saved, the inputs of a run: where it reads any,
    it reads all."""
    if not isinstance(s.run, Function) or isinstance(s.run, Inlinable):
        return []
    return [ref if isinstance(ref, Ref) and ref.of == "inputs" else None for ref in s.args[2]]


def first_after_python(statements: Sequence[Statement]) -> int:
    """The first of some statements before which the caller's Python has run."""
    return next((i + 1 for i, s in enumerate(statements) if s.kind is Kind.CALL), len(statements))


class Unchanged:
    """``RuntimeError``, as in eager PyTorch, where a tensor is of another version than it was when the pass began:
    of the versions then, which are the last of the hooks, those at ``places``. ``objects``: where among the hooks
    the last of these tensors are, which are wrapper subclasses: of what they are made of, nobody counts versions."""

    def __init__(self, places: Sequence[int], objects: Sequence[int]) -> None:
        self._then = operator.itemgetter(*places) if len(places) > 1 else lambda versions: (versions[places[0]],)
        self._objects = tuple(objects)

    def __call__(self, hooks: Sequence[Any], *saved: Tensor) -> None:
        saved += tuple([hooks[i] for i in self._objects])
        then = self._then(hooks[-1])
        if versions_of_saved(saved) != then:
            require_versions(zip(saved, then, strict=True))
