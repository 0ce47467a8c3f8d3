"""Sizes that a program finds when it runs, where Python read them of values: what it takes for granted of them is
checked there, by a line of a printed program, or (``SizesNow``) where a graph runs node by node."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from attrs import define, field, frozen
from torch import fx

from ..graph_primitives import NumberAsSize, PathMiss, Sized, several, shapes_of
from .places import places_of_sizes, sizes_around
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
    condition on them does not hold. It is called with what Python read (a number, or sizes; or tensors, for those), and
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
            raise PathMiss(self.read, found if _is_read(found) else shapes_of(found))

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


def _is_read(found: Any) -> bool:
    """Whether this is what Python read, and not the tensors whose sizes that was."""
    return not any(isinstance(part, torch.Tensor) for part in several(found))


class SizesNow:
    """The sizes that Python read, where a graph runs node by node, of values that may be those of another trace."""

    def __init__(self, placeholders: Sequence[fx.Node], values: Mapping[fx.Node, Any]) -> None:
        self._placeholders = placeholders
        self._values = values
        self._known: dict[str, Any] | None = None

    def check(self, node: fx.Node) -> None:
        """Raise ``PathMiss`` where what the graph takes for granted of the sizes that a call found does not hold."""
        target, found = node.target, self._values[node]
        if isinstance(target, NumberAsSize):
            named, read = {target.symbol: found}, target.read
            found = fx.map_arg(node.args[-1], self._values.__getitem__)
        elif isinstance(target, Sized) and target.symbols:
            named, read = {name: several(found)[i].shape[d] for name, i, d in target.symbols}, target.read
        else:
            return
        if self._known is None:
            self._known = self._of_inputs()
        self._known |= named
        if read is not None:
            SizesOnPath(sizes_around(node), read, frozenset(named), tuple(self._known))(found, *self._known.values())

    def _of_inputs(self) -> dict[str, Any]:
        values = {node.name: self._values[node] for node in self._placeholders}
        places = places_of_sizes(self._placeholders)
        return {name: eval(place, {"math": math}, values) for name, place in places.items()}
