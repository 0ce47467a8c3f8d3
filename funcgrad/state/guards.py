"""Guards: what a program assumes of Python state, one row for each place that was read: checked, printed, explained.

Every read that leads to an object is itself guarded by identity, so a row needs no chain: the object that holds the
value is a constant, and a guard is one comparison, ``if c7["k"] is not v7: miss``.
"""

from __future__ import annotations

import abc
import operator
import types
import weakref
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from .buffers import held_by, holds, is_buffer
from .builtin_methods import call, overridden
from .renamed import original
from .values import (
    copied,
    is_plain,
    like_entries,
    like_items,
    same,
    same_array,
    same_entries,
    same_items,
    same_set,
    same_shape,
    says_what_it_holds,
)


class _Missing:
    def __repr__(self) -> str:
        return "missing"

    def __reduce__(self) -> str:
        return "MISSING"  # the one of its module


MISSING: Any = _Missing()
"""What a place holds where there is nothing."""

GONE = (AttributeError, KeyError, IndexError, ValueError, TypeError)
"""What it raises to read a place of which nothing is left; ``TypeError``, where what led there is of another type."""
GONE_TEXT = f"except ({', '.join(kind.__name__ for kind in GONE)}):"

Constant = Callable[[Any], str]
"""A name by which printed code finds an object."""


@frozen(eq=False)
class Place:
    """Where a value lives: ``key`` of ``owner``, which ``kind`` says how to read. ``name`` is what a reader writes for
    it. The owner is an object, or what lives at another place: containers of tensors are looked into anew on each call.

    ``"item"``: of a dict or list (the attributes of an object are items of its ``__dict__``) · ``"class"``: an
    attribute of a class · ``"slot"``: an attribute that no dict holds · ``"default"``: of an argument of a function ·
    ``"cell"`` · ``"environ"`` · ``"context"``: a ``ContextVar`` · ``"type"``: of an object · ``"itself"``: the object.
    """

    kind: str
    owner: Any
    key: Any
    name: str

    @property
    def identity(self) -> tuple[str, Any, Any]:
        owner = self.owner.identity if isinstance(self.owner, Place) else id(self.owner)
        return self.kind, owner, _identity_of(self.key)

    @property
    def location(self) -> tuple[str, Any, Any]:
        """Where it is now: the same for places that are reached in different ways."""
        if self._tuple is not None:  # another one with each item that is put there
            return self.kind, self.owner.location, self.identity[2]
        return self.kind, id(self._held()), self.identity[2]

    def is_renewed(self, stored: Collection[Any], refilled: Collection[int]) -> bool:
        """Whether what lives there, or leads to it, is another one when these locations were stored to, and these
        containers refilled."""
        if self.location in stored or id(self._held()) in refilled:
            return True
        return isinstance(self.owner, Place) and self.owner.is_renewed(stored, refilled)

    def is_below(self, other: Place) -> bool:
        """Whether ``other`` is on the way to it."""
        return isinstance(self.owner, Place) and (self.owner is other or self.owner.is_below(other))

    @property
    def root(self) -> Any:
        """The object from which it is read."""
        return self.owner.root if isinstance(self.owner, Place) else self.owner

    def read(self) -> Any:
        """What lives there now, or ``MISSING``."""
        if (owner := self._held()) is MISSING:
            return MISSING
        try:
            return _READ[self.kind](owner, self.key)
        except GONE:
            return MISSING

    def _held(self) -> Any:
        return self.owner.read() if isinstance(self.owner, Place) else self.owner

    @property
    def _tuple(self) -> tuple[Any, ...] | None:
        """The tuple that it is an item of, if that lives at a place."""
        held = self.owner.read() if self.kind == "item" and isinstance(self.owner, Place) else None
        return held if type(held) is tuple else None

    @property
    def is_writable(self) -> bool:
        """Whether another value can be put there, and nothing else happens: what a tuple holds stays, and a class of
        the caller's may say what it is to put an item into a container. Where a tuple lives, another one can."""
        if self._tuple is not None:
            return bool(self.owner.is_writable)
        if self.kind == "item":
            return isinstance(getattr(type(self._held()), "__setitem__", None), types.WrapperDescriptorType)
        return self.kind in ("slot", "cell")

    def write(self, value: Any) -> None:
        """Put a value there; ``MISSING`` takes away what is there."""
        if (held := self._tuple) is not None:
            self.owner.write((*held[: self.key], value, *held[self.key + 1 :]))
        elif value is MISSING:
            _DELETE[self.kind](self._held(), self.key)
        else:
            _WRITE[self.kind](self._held(), self.key, value)

    def expression(self, constant: Constant) -> str:
        """Python that reads it; ``constant`` names objects."""
        if self.kind == "class" and isinstance(self.owner, type):  # a live view, where each __dict__ makes another one
            return f"{constant(self.owner.__dict__)}[{self.key_text(constant)}]"
        key = self.key if self.kind == "slot" else self.key_text(constant)
        return _TEXT[self.kind].format(owner=self._owner_text(constant), key=key)

    def _owner_text(self, constant: Constant) -> str:
        return self.owner.expression(constant) if isinstance(self.owner, Place) else constant(self.owner)

    def _overridden(self, of_slot: str, of_item: str) -> Any:
        """What puts a value there, or takes it away, where the owner's class overrides that by code of its own, which
        has run."""
        if self.kind == "slot":
            is_own = isinstance(getattr(type(self._held()), of_slot), types.FunctionType)
            return getattr(object, of_slot) if is_own else None
        return overridden(self._held(), of_item) if self.kind == "item" else None

    def look(self, constant: Constant) -> str:
        """Python that reads it, and makes nothing where nothing is: ``collections.defaultdict`` would."""
        if self.kind == "item" and isinstance(self.owner, dict) and hasattr(type(self.owner), "__missing__"):
            return f"{constant(dict.get)}({constant(self.owner)}, {self.key_text(constant)}, {constant(MISSING)})"
        return self.expression(constant)

    def key_text(self, constant: Constant) -> str:
        """Python for the key."""
        return repr(self.key) if type(self.key) in (str, int, bytes) or self.kind == "slot" else constant(self.key)

    def store(self, value: str, constant: Constant) -> str:
        """Python that puts the value of an expression there."""
        if self.kind == "class":
            return f"setattr({constant(self.owner)}, {self.key!r}, {value})"
        if self.kind == "environ":
            return f"{constant(self.owner)}[{self.key!r}] = {value}"
        if self.kind == "context":
            return f"{constant(self.owner)}.set({value})"
        if (by := self._overridden("__setattr__", "__setitem__")) is not None:
            return f"{constant(by)}({self._owner_text(constant)}, {self.key_text(constant)}, {value})"
        return f"{self.expression(constant)} = {value}"

    def delete(self, constant: Constant) -> str:
        """Python that takes away what is there."""
        if self.kind == "class":
            return f"delattr({constant(self.owner)}, {self.key!r})"
        if (by := self._overridden("__delattr__", "__delitem__")) is not None:
            return f"{constant(by)}({self._owner_text(constant)}, {self.key_text(constant)})"
        if self.kind == "environ":
            return f"del {constant(self.owner)}[{self.key!r}]"
        return f"del {self.expression(constant)}"

    def __str__(self) -> str:
        return self.name


def _identity_of(key: Any) -> Any:
    """What is equal for equal keys alone; tensors are keys by their identity, and ``==`` of them is a tensor."""
    if type(key) is tuple:
        return tuple, tuple(map(_identity_of, key))
    by_value = isinstance(key, Hashable) and not isinstance(key, Tensor)
    return (type(key), key) if by_value else (Tensor, id(key))


def _item_of(owner: Any, key: Any) -> Any:
    """An item of a container; a tensor that has taken its place is none, and would warn of a key that is no index."""
    if isinstance(owner, dict):
        return dict.get(owner, key, MISSING)
    return MISSING if isinstance(owner, Tensor) else owner[key]


_TEXT = {
    "item": "{owner}[{key}]",
    "class": "{owner}.__dict__[{key}]",
    "slot": "{owner}.{key}",
    "default": "{owner}.__defaults__[{key}]",
    "cell": "{owner}.cell_contents",
    "environ": "{owner}.get({key})",
    "context": "{owner}.get({key})",
    "type": "type({owner})",
    "itself": "{owner}",
}
_READ: dict[str, Callable[[Any, Any], Any]] = {
    "item": _item_of,
    "class": lambda owner, key: owner.__dict__[key],
    "slot": lambda owner, key: original(getattr(owner, key)),
    "default": lambda owner, key: owner.__defaults__[key],
    "cell": lambda owner, key: owner.cell_contents,
    "environ": lambda owner, key: owner.get(key),
    "context": lambda owner, key: owner.get(key),
    "type": lambda owner, key: type(owner),
    "itself": lambda owner, key: owner,
}
_WRITE: dict[str, Callable[[Any, Any, Any], None]] = {
    "item": lambda owner, key, value: call(owner, "__setitem__", key, value),
    "class": lambda owner, key, value: setattr(owner, key, value),
    "slot": lambda owner, key, value: (type if isinstance(owner, type) else object).__setattr__(owner, key, value),
    "cell": lambda owner, key, value: setattr(owner, "cell_contents", value),
    "context": lambda owner, key, value: owner.set(value),
    # what is not set reads as None
    "environ": lambda owner, key, value: owner.pop(key, None) if value is None else operator.setitem(owner, key, value),
}
_DELETE: dict[str, Callable[[Any, Any], None]] = {
    "item": lambda owner, key: call(owner, "__delitem__", key),
    "class": lambda owner, key: delattr(owner, key),
    "slot": lambda owner, key: object.__delattr__(owner, key),
    "cell": lambda owner, key: delattr(owner, "cell_contents"),
    "environ": lambda owner, key: operator.delitem(owner, key),
    # none can be unset: in the copied context of a trace, it reads as missing
    "context": lambda owner, key: owner.set(key),
}
_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "is": operator.is_,
    "equal": same,
    "items": same_items,
    "entries": same_entries,
    "set": same_set,
    "array": same_array,
    "buffer": lambda was, now: holds(now, was),
    "members": lambda was, now: same_entries(was, members_said(now)),
    "registry": lambda was, now: was == _registered_with(now),
    "like items": like_items,
    "like entries": like_entries,
    "tensor": lambda was, now: was() is now,
    "one": lambda was, now: all(now is place.read() for place in was),
    "apart": lambda was, now: all(now is not place.read() for place in was),
    "a tensor": lambda was, now: isinstance(now, Tensor),
    "present": lambda was, now: True,
    "shape": lambda was, now: same_shape(was, now),
}


_CONTENTS = {"items", "entries", "set", "array", "like items", "like entries"}
"""Comparisons with a copy of a container: where that is empty, whether it is true says it."""


def members_said(kind: type) -> dict[str, Any]:
    """What a class says of itself, but for special methods."""
    return {name: member for name, member in list(kind.__dict__.items()) if not name.startswith("__")}


def _registered_with(kind: type) -> frozenset[Any]:
    """The classes that an abstract one takes for its own, as weak references."""
    return frozenset(abc._get_dump(kind)[0])  # type: ignore[attr-defined]


_COMPARED_AS: dict[str, Callable[[Any], Any]] = {
    "buffer": held_by,
    "members": members_said,
    "registry": _registered_with,
}
"""What is compared where that is not the object itself."""


@frozen(eq=False)
class Guard:
    """A program fits only where a place holds ``value``: ``how`` says how they are compared; ``"absent"``: only
    where it holds nothing; ``"present"``: only where it holds anything; ``"tensor"``: only where it holds what the
    weak reference ``value`` leads to (``"a tensor"``: any one); ``"shape"``: a container of this ``shape_of``;
    ``"one"`` (``"apart"``): the object that the places ``value`` hold (or none of these)."""

    place: Place
    value: Any
    how: str

    @staticmethod
    def of(place: Place, value: Any) -> Guard:
        """That a place holds this very object, or a plain value equal to it."""
        return Guard(place, value, "equal" if is_plain(value) and not isinstance(value, (bool, type(None))) else "is")

    @staticmethod
    def members(kind: type) -> Guard:
        """That a class has the members it had."""
        return Guard(Place("itself", kind, "members", f"vars({kind.__name__})"), members_said(kind), "members")

    @staticmethod
    def registry(kind: type) -> Guard:
        """That an abstract class takes the classes for its own that it took."""
        return Guard(
            Place("itself", kind, "registry", f"classes registered with {kind.__name__}"),
            _registered_with(kind),
            "registry",
        )

    @staticmethod
    def absent(place: Place) -> Guard:
        return Guard(place, MISSING, "absent")

    @staticmethod
    def contents(owner: Any, copy: Any, name: str) -> Guard:
        """That a container holds what it held, but for tensors, which may be others."""
        place = Place("itself", owner, None, name)
        if isinstance(owner, np.ndarray):
            return Guard(place, copy, "array")
        if is_buffer(owner):
            return Guard(place, copy, "buffer")
        if isinstance(owner, (set, frozenset)):
            return Guard(place, copy, "set")
        is_mapping = isinstance(owner, Mapping)
        tensors = any(isinstance(v, Tensor) for v in (copy.values() if is_mapping else copy))
        return Guard(place, copy, f"{'like ' if tensors else ''}{'entries' if is_mapping else 'items'}")

    @property
    def is_outer(self) -> bool:
        """Whether it is on the class of an object, or on which dict holds its attributes."""
        return self.place.kind == "type" or (self.place.kind == "slot" and self.place.key == "__dict__")

    def of_now(self) -> Guard:
        """The same of what is there now."""
        if (now := self.place.read()) is MISSING:
            return Guard.absent(self.place)
        if self.how in _COMPARED_AS:
            return Guard(self.place, _COMPARED_AS[self.how](now), self.how)
        if self.place.kind == "itself":
            return Guard.contents(now, copied(now), self.place.name)
        return Guard(self.place, weakref.ref(now), "tensor") if isinstance(now, Tensor) else Guard.of(self.place, now)

    def holds(self) -> bool:
        now = self.place.read()
        if self.how == "absent" or now is MISSING:
            return now is self.value
        return _COMPARED[self.how](self.value, now)

    def fails(self, constant: Constant) -> str:
        """Python that is true where it does not hold; what is among ``GONE`` means so, too."""
        if self.how == "absent":
            is_of_class = self.place.kind == "class"
            owner = constant(self.place.owner.__dict__ if is_of_class else self.place.owner)
            if self.place.kind in ("item", "class"):
                return f"{self.place.key_text(constant)} in {owner}"
            if self.place.kind == "context":
                return f"{self.place.expression(constant)} is not {constant(MISSING)}"
            return f"hasattr({owner}, {self.place.key!r})"
        now, value = self.place.look(constant), constant(self.value)
        if self.how == "present":
            return f"{now} is {constant(MISSING)}"  # where nothing is, most places raise
        if self.how == "is":
            # the code of a function that another thread traces
            of_code = f" and {constant(original)}({now}) is not {value}" * isinstance(self.value, types.CodeType)
            return f"{now} is not {value}{of_code}"
        if self.how == "shape":
            return f"not {constant(same_shape)}({value}, {now})"
        if self.how == "a tensor":
            return f"not isinstance({now}, {constant(Tensor)})"
        if self.how == "tensor":
            return f"{now} is not {value}()"
        if self.how in ("one", "apart"):
            return " or ".join(f"{now} is {'not ' * (self.how == 'one')}{place.look(constant)}" for place in self.value)
        if self.how == "equal":
            return f"{now} is not {value} and not {constant(same)}({value}, {now})"
        if self.how in _CONTENTS and not len(self.value) and says_what_it_holds(self.place._held()):
            return f"len({now})" if self.how == "array" else now
        return f"not {constant(_COMPARED[self.how])}({value}, {now})"

    @property
    def value_shown(self) -> str:
        if self.how in ("absent", "present"):
            return self.how
        if self.how in ("one", "apart"):
            return f"{'what is in' if self.how == 'one' else 'not what is in'} {', '.join(map(str, self.value))}"
        return _shown(self.value)

    def explain(self) -> str:
        """What was there, and what is there now."""
        if self.how in ("tensor", "one", "apart"):
            return "is another tensor"
        now = self.place.read()
        if self.how in ("a tensor", "shape", "present"):
            return f"is {_shown(now)}"
        was, now = _shown(self.value), _shown(_COMPARED_AS[self.how](now) if self.how in _COMPARED_AS else now)
        return f"was {was}, now {now if now != was else 'another one that looks like it'}"


def _shown(value: Any) -> str:
    if isinstance(value, types.CodeType):
        return f"{value.co_qualname} of line {value.co_firstlineno}, {len(value.co_code)} bytes"
    try:
        text = type(value).__name__ if isinstance(value, (torch.nn.Module, Tensor)) else repr(value)
    except Exception:  # the caller's own code, which may ask for what is gone
        text = object.__repr__(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


@frozen(eq=False)
class Met:
    """A container, or the attributes of an object, as it was when it was met. ``of`` is the object whose attributes
    they are."""

    container: Any
    before: Any
    name: str
    of: Any = None

    @property
    def items(self) -> list[tuple[Any, Any]]:
        """What it held, by key or index; of a set, under no key."""
        if isinstance(self.before, (set, frozenset)):
            return [(None, value) for value in self.before]
        return list(self.before.items() if isinstance(self.before, Mapping) else enumerate(self.before))
