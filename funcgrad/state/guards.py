"""Guards: what a program assumes of Python state, one row for each place that was read: checked, printed, explained.

Every read that leads to an object is itself guarded by identity, so a row needs no chain: the object that holds the
value is a constant, and a guard is one comparison, ``if c7["k"] is not v7: miss``.
"""

from __future__ import annotations

import abc
import operator
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from attrs import evolve, frozen
from torch import Tensor

from .buffers import held_by, holds, is_buffer
from .hooks import length_unhooked, special_names
from .places import MISSING, Constant, Place
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

_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "is": operator.is_,
    "equal": same,
    "fixed": same,
    "items": same_items,
    "entries": same_entries,
    "set": same_set,
    "array": same_array,
    "buffer": lambda was, now: holds(now, was),
    "members": lambda was, now: like_entries(was, members_said(now)),
    "registry": lambda was, now: was == _registered_with(now),
    "special": lambda was, now: was == _special_names_of(now),
    "like items": like_items,
    "like entries": like_entries,
    "tensor": lambda was, now: was() is now,
    "one": lambda was, now: all(now is place.read() for place in was),
    "apart": lambda was, now: all(now is not place.read() for place in was),
    "a tensor": lambda was, now: type(now) is was,
    "present": lambda was, now: True,
    "shape": lambda was, now: same_shape(was, now),
}


_CONTENTS = {"items", "entries", "set", "like items", "like entries"}
"""Comparisons with a copy of a container: where that is empty, whether it is true says it."""


def members_said(kind: type) -> dict[str, Any]:
    """What a class says of itself, but for special methods."""
    return {name: member for name, member in list(kind.__dict__.items()) if not name.startswith("__")}


def _registered_with(kind: type) -> frozenset[Any]:
    """The classes that an abstract one takes for its own, as weak references."""
    return frozenset(abc._get_dump(kind)[0])  # type: ignore[attr-defined]


def _special_names_of(kinds: tuple[type, ...]) -> tuple[frozenset[str], ...]:
    return tuple(map(special_names, kinds))


_COMPARED_AS: dict[str, Callable[[Any], Any]] = {
    "buffer": held_by,
    "members": members_said,
    "registry": _registered_with,
    "special": _special_names_of,
    "fixed": lambda now: now,
}
"""What is compared where that is not the object itself."""


@frozen(eq=False)
class Guard:
    """A program fits only where a place holds ``value``: ``how`` says how they are compared; ``"fixed"``: as
    ``"equal"``, but code that no trace sees reads it, so that no symbol may stand there; ``"absent"``: only
    where it holds nothing; ``"present"``: only where it holds anything; ``"tensor"``: only where it holds what the
    weak reference ``value`` leads to (``"a tensor"``: any one of this type); ``"shape"``: a container of this
    ``shape_of``; ``"one"`` (``"apart"``): the object that the places ``value`` hold (or none of these)."""

    place: Place
    value: Any
    how: str

    @staticmethod
    def of(place: Place, value: Any) -> Guard:
        """That a place holds this very object, or a plain value equal to it."""
        return Guard(place, value, "equal" if is_plain(value) and not isinstance(value, (bool, type(None))) else "is")

    @staticmethod
    def of_library(place: Place, value: Any) -> Guard:
        """The same of what code of a library reads there itself."""
        own = Guard.of(place, value)
        return evolve(own, how="fixed") if own.how == "equal" else own

    @staticmethod
    def members(kind: type) -> Guard:
        """That a class has the members it had, but for tensors, which may be others."""
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
    def special(kinds: Mapping[type, frozenset[str]]) -> Guard:
        """That classes define no more special methods than these: most are looked up by what stands nowhere in code."""
        names = ", ".join(kind.__name__ for kind in kinds)
        place = Place("itself", tuple(kinds), "special", f"special methods of {names}")
        return Guard(place, tuple(kinds.values()), "special")

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
            owner = constant(self.place.owner.__dict__) if is_of_class else self.place.owner_text(constant)
            if self.place.kind in ("item", "class"):
                return f"{self.place.key_text(constant)} in {owner}"
            if self.place.kind == "context":
                return f"{self.place.expression(constant)} is not {constant(MISSING)}"
            if self.place.kind == "cell":
                return f"{owner} != {constant(types.CellType())}"
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
            return f"type({now}) is not {value}"
        if self.how == "tensor":
            return f"{now} is not {value}()"
        if self.how in ("one", "apart"):
            return " or ".join(f"{now} is {'not ' * (self.how == 'one')}{place.look(constant)}" for place in self.value)
        if self.how in ("equal", "fixed"):
            return f"{now} is not {value} and not {constant(same)}({value}, {now})"
        if self.how == "special":  # how many members they have says it nearly always, in a tenth of the time
            kinds = self.place.owner
            held = f"sum(map(len, {constant(tuple(kind.__dict__ for kind in kinds))}))"
            differs = f"not {constant(_COMPARED[self.how])}({value}, {now})"
            return f"{held} != {sum(map(length_unhooked, kinds))} and {differs}"
        if self.how in _CONTENTS and not len(self.value) and says_what_it_holds(self.place._held()):
            return now
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
        if self.how == "special":
            others = [(k, was ^ special_names(k)) for k, was in zip(now, self.value, strict=True)]
            return f"were others: {', '.join(f'{k.__name__}.{name}' for k, own in others for name in sorted(own))}"
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
