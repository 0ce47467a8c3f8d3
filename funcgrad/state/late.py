"""What a backward pass reads of Python state. Eager PyTorch reads it when the pass runs, not when the function is
called: between the two, anybody may have written to it.

Hooks tell which attributes are read. Of what no hook hears of it is known what code runs in the pass, and what that
mentions; where containers go, nobody knows.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..slots import Slot
from ..torch_private.modules import HOOKS_OF_ALL_MODULES
from .code import Mentions, mentions, together
from .found import Found
from .guards import Guard
from .hooks import can_be_hooked
from .names import HOOK_TABLES, TABLES, taken_apart
from .places import Place
from .reached import CONTAINERS
from .settings import Setting
from .values import copied, same


@frozen(eq=False)
class Late:
    """What a backward half takes for granted. ``guards``: those among the guards of the call that are on what backward
    reads, too; ``numbers``: inputs that it reads from these places; ``tensors``: inputs, each with a place where it
    reads them, or what leads to that; ``alone``: those that forward does not read; ``left``: places that forward has
    written to."""

    guards: tuple[Guard, ...] = ()
    numbers: tuple[tuple[Slot, Place], ...] = ()
    tensors: tuple[tuple[Slot, Any], ...] = ()
    alone: frozenset[Slot] = frozenset()
    left: tuple[Place, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.guards or self.numbers or self.tensors or self.left)

    @property
    def first(self) -> Any:
        """A place of all this."""
        numbers, tensors = ([place for _, place in own] for own in (self.numbers, self.tensors))
        return (*(guard.place for guard in self.guards), *numbers, *tensors, *self.left)[0]

    @property
    def checked(self) -> list[Guard]:
        """The guards that hold after the call, too: not those on what forward writes to."""
        stored = {place.location for place in self.left}
        refilled = {id(place.owner) for place in self.left if place.kind == "itself"}
        return [
            g for g in self.guards if not g.place.is_renewed(stored, refilled) and id(g.place.owner) not in refilled
        ]


class ReadInBackward:
    """What the backward passes of a run have read, or may write to, which for a derivative is not to be as forward has
    found it; asked of what was found of its state."""

    def __init__(self, found: Found) -> None:
        self._found, self._ran = found, found.ran_in_backward
        said = together([mentions(code) for code in (found._codes if self._ran is None else self._ran)])
        self._said: Mentions = said
        self._names = said.globals | said.attributes | said.strings | said.imports | said.uses.keys()
        self._writes = said.sets | said.stored | said.replaced
        modules = [met.of for met in found.met.values() if isinstance(met.of, torch.nn.Module)]
        own = [vars(module).get(table) for module in modules for table in (*HOOK_TABLES, *TABLES)]
        self._tables = {id(table) for table in (*own, *HOOKS_OF_ALL_MODULES.values())}

    def __bool__(self) -> bool:
        """Whether any code of the caller's runs there."""
        return self._ran is None or bool(self._ran) or self._found.failed_in_backward

    def guard(self, guard: Guard) -> bool:
        """Whether a guard is on what they read, or may have read."""
        return self._found.failed_in_backward or self.place(guard.place) or self._runs(guard.value)

    def place(self, place: Place) -> bool:
        """Whether what lives there is."""
        found = self._found
        if found.failed_in_backward or place.identity in found.read_in_backward:
            return True
        if isinstance(place.owner, (Place, Setting)):  # no hook hears of what asks for a setting
            return True
        if place.kind == "item":
            return self._item(place)
        if place.kind == "type":
            return id(place.owner) in self._found.read_in_backward
        if place.kind == "environ":  # what is read is heard
            return place.key in self._said.strings
        if place.kind == "slot":
            is_unheard = place.key in self._names and not can_be_hooked(type(place.owner))
            return is_unheard or place.key in self._writes or self._runs(place.owner)
        if place.kind == "default":
            return self._runs(place.owner)
        if place.kind in ("cell", "class"):
            return (place.name if place.kind == "cell" else place.key) in self._names | self._writes
        return id(place.owner) not in self._tables

    def _item(self, place: Place) -> bool:
        owner, met = place.owner, self._found.met.get(id(place.owner))
        if id(owner) in self._tables:
            return False
        if met is not None and met.of is not None:
            by_hand = self._said.past_hooks or "vars" in self._names or "__dict__" in self._names
            is_read = place.key in self._names and (by_hand or not can_be_hooked(type(met.of)))
            return is_read or place.key in self._writes
        is_namespace = isinstance(owner, dict) and "__name__" in owner
        return place.key in self._names | self._writes if is_namespace or not isinstance(owner, CONTAINERS) else True

    def container(self, container: Any) -> bool:
        """Whether they name a container."""
        return any(taken_apart(name)[0] in self._names for name in self._found._names.get(id(container), ()))

    def _runs(self, value: Any) -> bool:
        """Whether a value is a function that runs there, or its code."""
        code = getattr(getattr(value, "__func__", value), "__code__", value)
        return isinstance(code, types.CodeType) and (self._ran is None or code in self._ran)


def _token(value: Any) -> Any:
    """What tells a value from another one; a tensor is not kept, whose history may lead back to who does."""
    return weakref.ref(value) if isinstance(value, Tensor) else value


def _is(token: Any, now: Any) -> bool:
    return token() is now if isinstance(token, weakref.ReferenceType) else same(token, now)


@frozen(eq=False)
class Left:
    """What lives at some places when a call is done: which object it is, and what it holds, if it is a container."""

    tokens: Sequence[tuple[Place, Any, Any]]

    @staticmethod
    def at(places: Sequence[Place]) -> Left:
        return Left([(place, _token(now := place.read()), _held(now)) for place in places])

    def is_there(self) -> bool:
        """Whether it lives there still."""
        for place, token, held in self.tokens:
            if not _is(token, now := place.read()):
                return False
            if len(held) != len(own := _held(now)) or not all(map(_holds, held, own)):
                return False
        return True


def _holds(was: Any, now: Any) -> bool:
    now = now() if isinstance(now, weakref.ReferenceType) else now
    return _is(was, now)


def _held(value: Any) -> list[Any]:
    if not isinstance(value, CONTAINERS):
        return []
    items = copied(value)
    return [*map(_token, items), *map(_token, items.values() if isinstance(items, Mapping) else ())]
