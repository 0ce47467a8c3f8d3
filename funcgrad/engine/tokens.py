"""What stands for values while a backward pass is recorded: tokens, known by which statement makes them, and never
by how they look."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..errors import GraphError
from ..torch_private.symbols import NumberBelow

UNLIKELY = 123_456_789
"""A size no tensor has: where it turns up, somebody has read the size of a token."""

_AT_ONCE = 256

_PLAIN = frozenset({int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout})


@frozen
class Ref:
    """A value: the ``at``-th of what a statement makes (``of`` is its number), or of a list that the engine hands
    over with each run (``of`` is ``"inputs"``, ``"sizes"``, ``"scalars"``, ``"hooks"`` or ``"packed"``)."""

    of: int | str
    at: int

    def __str__(self) -> str:
        return (
            f"{self.of}[{self.at}]" if isinstance(self.of, str) else f"v{self.of}" + (f"[{self.at}]" if self.at else "")
        )


class Tokens:
    """The tokens of one recording. A tensor is known by its identity, so all of them live until the recording ends."""

    def __init__(self) -> None:
        self._refs: dict[int, Ref] = {}
        self._alive: list[Any] = []
        self._spare: list[Tensor] = []

    def tensor(self, ref: Ref) -> Tensor:
        if not self._spare:  # many at once: dispatch costs more than they do
            self._spare += torch.empty(_AT_ONCE, 0, UNLIKELY, device="meta").unbind()
        token = self._spare.pop()
        self._refs[id(token)] = ref
        self._alive.append(token)
        return token

    def number(self, ref: Ref, kind: type) -> Any:
        symbolic: Any = torch.SymInt if kind is int else torch.SymFloat
        token = symbolic(_Number(ref, kind))
        self._alive.append(token)
        return token

    def refs(self, value: Any) -> Any:
        """A value the engine names, with a ``Ref`` for each token in it."""
        kind = type(value)
        if kind is tuple or kind is torch.Size:
            return tuple([self.refs(v) for v in value])
        if kind is list:
            return [self.refs(v) for v in value]
        if kind is torch.SymInt or kind is torch.SymFloat:
            return value.node.named()
        if kind in _PLAIN:
            return value
        ref = self._refs.get(id(value))
        if ref is None and isinstance(value, Tensor):
            raise GraphError(
                "the autograd engine named a tensor that it was not given while a backward pass was recorded"
            )
        return value if ref is None else ref

    def close(self) -> None:
        self._refs.clear()
        self._alive.clear()


class _Number(NumberBelow):
    """What stands below a symbolic number that is nothing but the ``at``-th one: as far as the engine may go without
    asking for a value."""

    def __init__(self, ref: Ref | None, kind: type) -> None:
        self._ref, self.kind = ref, kind

    def named(self) -> Ref:
        if self._ref is None:
            raise GraphError("the autograd engine computed with a size while a backward pass was recorded")
        return self._ref

    def has_hint(self) -> bool:
        return False

    def str(self) -> str:
        return f"<{self._ref}>"

    def wrap_int(self, number: int) -> _Number:
        return _Number(None, int)

    def mul(self, other: Any) -> _Number:
        """How many elements a geometry has: the engine multiplies its sizes, and tells nobody."""
        return _Number(None, int)


def mapped(value: Any, read: Callable[[Ref], Any]) -> Any:
    """A value with something else for each ``Ref`` in it."""
    if isinstance(value, Ref):
        return read(value)
    return type(value)(mapped(v, read) for v in value) if type(value) in (list, tuple) else value


def refs_in(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif type(value) in (list, tuple):
        for v in value:
            yield from refs_in(v)
