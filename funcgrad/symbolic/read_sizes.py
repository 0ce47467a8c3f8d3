"""Sizes that a program finds when it runs, where Python read them of values: what it takes for granted of them is
checked there."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from attrs import define, field, frozen

from ..graph_primitives import PathMiss, shapes_of
from .sizes import Sizes


@frozen
class Conditions:
    """What ``Sizes`` has found, when a program is done."""

    found: tuple[str, ...]
    is_closed = True

    def checks(self, symbols: Collection[str]) -> Sequence[str]:
        return self.found


@define(eq=False)
class SizesOnPath:
    """A check that the program is for this call, once it knows the sizes of ``read``: raises ``PathMiss`` where a
    condition on them does not hold. It is called with what Python read (a number, or tensors, for their sizes), and
    with the values of ``symbols``, of which ``own`` are known by this read.

    The conditions are all known when the program is done: how it is compiled adds to them.
    """

    sizes: Sizes | Conditions
    read: int
    own: Collection[str]
    symbols: Sequence[str]
    _holds: Callable[..., bool] | None = field(default=None, init=False)

    def __call__(self, found: Any, *values: int) -> None:
        holds = self._holds or self._written()
        try:
            is_on_path = holds(*values)
        except (ArithmeticError, ValueError):
            is_on_path = False
        if not is_on_path:
            raise PathMiss(self.read, found if isinstance(found, (int, float)) else shapes_of(found))

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process the conditions are known, and what they were found by is not there."""
        return SizesOnPath, (Conditions(tuple(self.sizes.checks(self.own))), self.read, self.own, self.symbols)

    def _written(self) -> Callable[..., bool]:
        conditions = " and ".join(f"({c})" for c in self.sizes.checks(self.own)) or "True"
        holds: Callable[..., bool] = eval(
            f"lambda {', '.join(self.symbols)}: {conditions}", {"math": math, "torch": torch}
        )
        if self.sizes.is_closed:
            self._holds = holds
        return holds
