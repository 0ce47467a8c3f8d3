"""Effects: what a function writes to Python state, as statements of the printed call.

What is written must be the same on each call in which the guards hold: plain values, objects that were there before,
tensors the function computed (``Stored`` slots of the program), containers of these. A number that is only ever
increased in place is increased (``Count``), without a guard on its value; a list or set that is only ever added to is
added to (``Grow``).
"""

from __future__ import annotations

import collections
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from .buffers import is_buffer, put_into
from .builtin_methods import call, call_text, overridden
from .guards import MISSING, Constant, Place
from .new_values import Names, New
from .output import Log, Print
from .warned import Warn


@frozen(eq=False)
class Store:
    """A place holds another value from now on; ``new`` is None where it holds nothing."""

    place: Place
    new: New | None

    def lines(self, names: Names, constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        if self.new is not None:
            yield self.place.store(self.new.text(names, constants, constant), constant)
        else:
            yield self.place.delete(constant)

    def __str__(self) -> str:
        return f"{self.place} = {self.new}" if self.new is not None else f"del {self.place}"


@frozen(eq=False)
class Count:
    """A number is increased in place, whatever it is; ``times`` times, as sums of floats are rounded."""

    place: Place
    by: Any
    times: int = 1
    otherwise: Any = MISSING
    """What it starts from where the place holds nothing: an attribute of the class."""

    def lines(self, names: Names, constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        now = self.place.expression(constant)
        if self.otherwise is not MISSING:
            now = f"{constant(self.place.owner)}.get({self.place.key!r}, {constant(self.otherwise)})"
        yield self.place.store(f"{now}{f' + {constant(self.by)}' * self.times}", constant)

    def __str__(self) -> str:
        return f"{self.place} += {self.by}" + (f" ({self.times} times)" if self.times > 1 else "")


@frozen(eq=False)
class Grow:
    """A list, deque or buffer gets more items, a set more members; a stream is written to."""

    container: Any
    name: str
    new: New

    def lines(self, names: Names, constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        is_stream = isinstance(self.container, io.IOBase)
        method = "update" if isinstance(self.container, set) else "write" if is_stream else "extend"
        yield call_text(self.container, method, self.new.text(names, constants, constant), constant)

    def __str__(self) -> str:
        return f"{self.name} += {self.new}"


@frozen(eq=False)
class Refill:
    """A list, deque or set holds other items from now on, a dict the same in another order."""

    container: Any
    name: str
    new: New

    def lines(self, names: Names, constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        items, own = self.new.text(names, constants, constant), constant(self.container)
        if isinstance(self.container, list) and overridden(self.container, "__setitem__"):
            yield call_text(self.container, "__setitem__", f"{constant(slice(None))}, {items}", constant)
        elif isinstance(self.container, (list, np.ndarray)):
            yield f"{own}[{':' if isinstance(self.container, list) else '...'}] = {items}"
        elif is_buffer(self.container):
            yield f"{constant(put_into)}({own}, {items})"
        elif isinstance(self.container, dict):
            yield f"{constant(_reorder)}({own}, {items})"
        else:
            yield call_text(self.container, "clear", "", constant)
            method = "update" if isinstance(self.container, set) else "extend"
            yield call_text(self.container, method, items, constant)

    def __str__(self) -> str:
        return f"{self.name}[:] = {self.new}"


Effect = Store | Count | Grow | Refill | Print | Log | Warn


def same_effects(first: Sequence[Effect], second: Sequence[Effect]) -> bool:
    """Whether two runs wrote the same."""
    return list(map(_shown, first)) == list(map(_shown, second))


def _shown(effect: Effect) -> str:
    return f"{effect} from {effect.otherwise}" if isinstance(effect, Count) else str(effect)


def _reorder(container: dict[Any, Any], items: Mapping[Any, Any]) -> None:
    """Let a dict hold these items alone, in this order; it is never without what other threads may read of it."""
    for key in [key for key in container if key not in items]:
        call(container, "__delitem__", key)
    for key, value in items.items():
        call(container, "pop", key, None)
        call(container, "__setitem__", key, value)


def refill(container: Any, items: Any) -> None:
    """Let a container hold these items alone."""
    if isinstance(container, list):
        call(container, "__setitem__", slice(None), items)
        return
    call(container, "clear")
    if isinstance(container, dict):
        for key, value in items.items():
            call(container, "__setitem__", key, value)
    else:
        call(container, "extend" if isinstance(container, collections.deque) else "update", items)
