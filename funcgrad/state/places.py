"""Places: where a value of Python state lives, how it is read, stored and deleted, and the Python that does so."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Collection, Hashable
from typing import Any

from attrs import evolve, frozen
from torch import Tensor

from .builtin_methods import call, overridden
from .renamed import original


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

    @staticmethod
    def on_class(kind: type, name: str) -> Place:
        """A member of a class, which a reader asks the class for."""
        return Place("class", kind, name, f"{kind.__name__}.{name}")

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
    def later_names(self) -> tuple[Place, ...]:
        """The names that come after it in the dict where it is a name, as which attributes are."""
        held = self._held()
        if self.kind != "item" or not isinstance(held, dict) or type(self.key) is not str:
            return ()
        names = [key for key in held if type(key) is str]
        return tuple(evolve(self, key=name) for name in names[names.index(self.key) + 1 :])

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
        """Put a value there; ``MISSING`` takes away what is there, if anything is."""
        if (held := self._tuple) is not None:
            self.owner.write((*held[: self.key], value, *held[self.key + 1 :]))
        elif value is MISSING:
            if self.read() is not MISSING:
                _DELETE[self.kind](self._held(), self.key)
        else:
            _WRITE[self.kind](self._held(), self.key, value)

    def expression(self, constant: Constant) -> str:
        """Python that reads it; ``constant`` names objects."""
        if self.kind == "class" and isinstance(self.owner, type):  # a live view, where each __dict__ makes another one
            return f"{constant(self.owner.__dict__)}[{self.key_text(constant)}]"
        key = self.key if self.kind == "slot" else self.key_text(constant)
        return _TEXT[self.kind].format(owner=self.owner_text(constant), key=key)

    def owner_text(self, constant: Constant) -> str:
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
            return f"{constant(by)}({self.owner_text(constant)}, {self.key_text(constant)}, {value})"
        return f"{self.expression(constant)} = {value}"

    def delete(self, constant: Constant) -> str:
        """Python that takes away what is there."""
        if self.kind == "class":
            return f"delattr({constant(self.owner)}, {self.key!r})"
        if (by := self._overridden("__delattr__", "__delitem__")) is not None:
            return f"{constant(by)}({self.owner_text(constant)}, {self.key_text(constant)})"
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
