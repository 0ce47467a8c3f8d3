"""What the opaque calls of a captured backward pass run: the caller's Python, and sums in ``.grad``."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..errors import OpaqueCallError
from ..torch_private.engine import add_to_each
from .statements import Statement, accumulate
from .tokens import Ref, refs_in

Look = tuple[tuple[int, ...], tuple[int, ...], torch.dtype, torch.device] | type[Tensor] | None
"""How a result of the caller's Python looked: sizes, strides, dtype, device; a wrapper subclass; None: it was None."""


@frozen(eq=False)
class Accumulate:
    """Add gradients to what leaves have. ``new``: which leaves had none when the program was made; these gradients are the call's own.
    ``taken``: which of those become the leaf's as they are."""

    new: tuple[bool, ...]
    taken: tuple[bool, ...]

    def __call__(self, *values: Tensor) -> None:
        n = len(self.new)
        old, added = [], []
        for variable, grad, is_own, is_taken in zip(values[:n], values[n:], self.new, self.taken, strict=True):
            now = variable.grad
            if now is None or now.is_sparse or now.is_nested:
                accumulate(variable, grad, is_own, is_taken)
            else:
                old.append(now)
                added.append(grad)
        if len(set(map(id, old))) < len(old):  # one leaf twice
            for now, grad in zip(old, added, strict=True):
                now.add_(grad)
        elif old:
            add_to_each(old, added)


Step = Callable[[list[Any]], Sequence[Any]]
"""What one statement of a block does: it reads what there is, the hooks and what was packed first, and gives its results."""


class Block:
    """Statements of one node of autograd that run the caller's Python, and sums in ``.grad`` between them, one after the other.

    ``given``: how many values of the graph it reads; ``kept``: which of what there is at the end is read outside.
    """

    def __init__(self, steps: Sequence[Step], given: int, kept: Sequence[int]) -> None:
        self._steps, self._takes, self._kept = steps, 2 + given, kept

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """``values``: the hooks, what was packed, what it reads, and what only has to be computed before."""
        there = list(values[: self._takes])
        for step in self._steps:
            there += step(there)
        return tuple([there[i] for i in self._kept])


def calling(statement: Statement, places: Mapping[Ref, int], wanted: Sequence[bool], looks: Sequence[Look]) -> Step:
    """``wanted``: which results are tensors, and not None; ``looks``: how results looked of which nothing else is known."""
    run, arguments = statement.run, _read_from(statement.args, places)
    if not statement.may_be_none:
        return lambda there: run(*arguments(there))

    def checked(there: list[Any]) -> Sequence[Any]:
        found = run(*arguments(there))
        for value, want in zip(found, wanted, strict=True):
            if (value is not None) != want:
                raise _other(statement, *("a tensor" if is_one else "None" for is_one in (not want, want)))
        for value, look in zip(found, looks, strict=False):
            if isinstance(look, tuple) and tuple(value.shape) != look[0]:
                raise _other(statement, f"a tensor of shape {list(value.shape)}", f"one of shape {list(look[0])}")
        return found

    return checked


def _other(statement: Statement, now: str, before: str) -> OpaqueCallError:
    return OpaqueCallError(
        f"{statement.name} gave {now}, and gave {before} before",
        where=statement.name,
        fix="run this backward pass outside of fg.compiled_autograd()",
    )


def storing(variable: int, grad: int, is_own: bool, is_taken: bool) -> Step:
    """A sum in ``.grad``; see ``Accumulate`` for ``is_own`` and ``is_taken``."""

    def stored(there: list[Any]) -> Sequence[Any]:
        accumulate(there[variable], there[grad], is_own, is_taken)
        return ()

    return stored


def _read_from(value: Any, places: Mapping[Ref, int]) -> Callable[[Sequence[Any]], Any]:
    """What finds a value that has ``Ref``s in it among what there is: it is made once, and called in each run."""
    if isinstance(value, Ref):
        at = value.at
        if value.of == "hooks":
            return lambda there: there[0][at]
        if value.of == "packed":
            return lambda there: there[1][at]
        return operator.itemgetter(places[value])
    if type(value) in (list, tuple) and any(True for _ in refs_in(value)):
        readers, kind = [_read_from(v, places) for v in value], type(value)
        return lambda there: kind([read(there) for read in readers])
    return lambda there: value
