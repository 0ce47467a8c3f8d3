"""Sizes that are numbers, given or read of values: a kernel that computes with one comes after the call that knows
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from attrs import fields

from ..graph_primitives import NumberAsSize, Sized
from ..symbolic.sizes import Size, symbols_in
from .groups import ExternTask, Task
from .index import Axis, Index, Quotient, Remainder
from .values import Value, below


class ReadSizes:
    """Which call knows each size that is a number."""

    def __init__(self) -> None:
        self._reader: dict[str, ExternTask] = {}

    def note(self, task: ExternTask) -> None:
        """A library call, which may be one that knows sizes."""
        target = task.node.target
        if isinstance(target, NumberAsSize):
            self._reader[target.symbol] = task
        elif isinstance(target, Sized):
            self._reader |= {symbol: task for symbol, _, _ in target.symbols}

    def read_before(self, value: Value, is_there: Callable[[Value], bool]) -> set[Task]:
        """The calls that read sizes which a value needs, and what is computed with it: not what ``is_there``."""
        if not self._reader:
            return set()
        needed = (n for v in below([value], is_there) if not is_there(v) for n in _sizes_in(v))
        return {self._reader[symbol] for n in needed for symbol in symbols_in(repr(n)) if symbol in self._reader}


def _sizes_in(part: Any) -> Iterator[Size]:
    """The symbolic sizes that a value, or an index, is made with."""
    if isinstance(part, Size):
        yield part
    elif isinstance(part, (tuple, list)):
        for p in part:
            if not isinstance(p, Value):
                yield from _sizes_in(p)
    elif isinstance(part, (Value, Index, Axis, Quotient, Remainder)):
        yield from _sizes_in([getattr(part, field.name) for field in fields(type(part))])
