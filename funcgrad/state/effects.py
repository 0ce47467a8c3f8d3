"""Effects: what a function writes to Python state, as statements of the printed call.

What is written must be the same on each call in which the guards hold: plain values, objects that were there before,
tensors the function computed (``Stored`` slots of the program), containers of these. A number that is only ever
increased in place is increased (``Count``), without a guard on its value; a list or set that is only ever added to is
added to (``Grow``).
"""

from __future__ import annotations

import collections
import contextlib
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import evolve, frozen

from ..slots import Stored
from .buffers import holds_now, is_buffer, put_into
from .builtin_methods import call, call_text, overridden
from .names import item_name
from .new_values import Names, New
from .output import Log, Print
from .places import MISSING, Constant, Place
from .values import copied, keys_of
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

    def stored(self) -> Iterator[tuple[Stored, Callable[[], Any]]]:
        """The slots of what is stored, and how to find what is there after another run of the function."""
        for slot, find in () if self.new is None else self.new.slots():
            yield slot, lambda find=find: find(self.place.read())  # type: ignore[misc]

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
    """A list, deque or buffer gets more items, a set more members; a stream is written to. ``first``: the items come
    before those that are there."""

    container: Any
    name: str
    new: New
    first: bool = False

    def lines(self, names: Names, constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        is_stream = isinstance(self.container, io.IOBase)
        items = self.new.text(names, constants, constant)
        if self.first and isinstance(self.container, list):
            yield call_text(self.container, "__setitem__", f"{constant(slice(0, 0))}, {items}", constant)
            return
        method = "update" if isinstance(self.container, set) else "write" if is_stream else "extend"
        if self.first:
            method, items = "extendleft", f"reversed({items})"
        yield call_text(self.container, method, items, constant)

    def stored(self) -> Iterator[tuple[Stored, Callable[[], Any]]]:
        """See ``Store.stored``; what stands where in a set, nobody knows."""
        more = [*self.new.slots()] if isinstance(self.container, (list, collections.deque)) else []
        for slot, find in more:
            yield slot, lambda find=find: find(self._of_new())  # type: ignore[misc]

    def _of_new(self) -> list[Any]:
        return [*self.container][: self.new.n_items] if self.first else [*self.container][-self.new.n_items :]

    def __str__(self) -> str:
        return f"{self.name}[:0] = {self.new}" if self.first else f"{self.name} += {self.new}"


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

    def stored(self) -> Iterator[tuple[Stored, Callable[[], Any]]]:
        """See ``Grow.stored``."""
        for slot, find in () if isinstance(self.container, set) else self.new.slots():
            kind = dict if isinstance(self.container, dict) else list
            yield slot, lambda find=find, kind=kind: find(kind(self.container))  # type: ignore[misc]

    def __str__(self) -> str:
        return f"{self.name}[:] = {self.new}"


Effect = Store | Count | Grow | Refill | Print | Log | Warn


@contextlib.contextmanager
def taken_back(effects: Iterable[Effect]) -> Iterator[None]:
    """Around a function that runs once more, and writes what it has written before: afterwards, all is as it was."""
    written = [effect for effect in effects if isinstance(effect, (Store, Count, Grow, Refill))]
    places = [(e.place, e.place.read()) for e in written if isinstance(e, (Store, Count))]
    containers = [(e.container, holds_now(e.container)) for e in written if isinstance(e, (Grow, Refill))]
    try:
        yield
    finally:
        for container, held in containers:
            refill(container, held)
        for place, held in places:
            if place.read() is not held:
                place.write(held)


def in_containers(effects: Iterable[Effect], now: Mapping[int, Any]) -> Iterator[Effect]:
    """The same effects, on the containers that stand for others, by their identities."""
    for effect in effects:
        if isinstance(effect, (Store, Count)) and id(effect.place.owner) in now:
            yield evolve(effect, place=evolve(effect.place, owner=now[id(effect.place.owner)]))
        elif isinstance(effect, (Grow, Refill)) and id(effect.container) in now:
            yield evolve(effect, container=now[id(effect.container)])
        else:
            yield effect


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


def put_in_order(container: dict[Any, Any], before: Mapping[Any, Any]) -> None:
    """Give a dict the order it had; it is never without what other threads may read of it."""
    keys = keys_of(container)
    if len(keys) == len(before) and any(a is not b for a, b in zip(keys, before, strict=True)):  # keys may be tensors
        for key in before:
            call(container, "__setitem__", key, call(container, "pop", key))


FILLED = dict, list, collections.deque
"""Containers that ``store_into`` stores into."""


def refilled_places(effects: Iterable[Effect], kinds: tuple[type, ...] = FILLED) -> list[Place]:
    """Where the items live of containers of these kinds that are given other contents."""
    found = [e for e in effects if isinstance(e, Refill) and isinstance(e.container, kinds)]
    keyed = ((e, keys_of(e.container) if isinstance(e.container, dict) else range(len(e.container))) for e in found)
    return [Place("item", e.container, key, item_name(e.name, key)) for e, keys in keyed for key in keys]


def store_into(container: Any, copy: Any, before: Any) -> None:
    """What was stored into a copy of a container, since that held ``before``, is stored into the container; the rest
    stays the very object."""
    now, has = copied(copy), copied(container)
    were, values, held = ([*c.values()] if isinstance(c, dict) else [*c] for c in (before, now, has))
    keys_stay = not isinstance(now, dict) or [*now] == [*before]
    if keys_stay and len(values) == len(were) and all(a is b for a, b in zip(values, were, strict=True)):
        return
    same = {id(was): own for was, own in zip(were, held, strict=True)}
    items = [same.get(id(value), value) for value in values]
    refill(container, dict(zip(now, items, strict=True)) if isinstance(now, dict) else items)


def refill(container: Any, items: Any) -> None:
    """Let a container or a buffer hold these items alone."""
    if isinstance(container, np.ndarray):
        np.copyto(container, items)
    elif is_buffer(container):
        put_into(container, items)
    elif isinstance(container, list):
        call(container, "__setitem__", slice(None), items)
    else:
        call(container, "clear")
        if isinstance(container, dict):
            for key, value in items.items():
                call(container, "__setitem__", key, value)
        else:
            call(container, "extend" if isinstance(container, collections.deque) else "update", items)
