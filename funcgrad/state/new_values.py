"""What a function made and stores, made again on each call: trees of tensors, of plain values, and of objects of its
own."""

from __future__ import annotations

import array
import collections
import copy
import functools
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any

import numpy as np
from attrs import define, frozen
from torch import SymFloat, SymInt

from ..printed_trees import print_unflatten
from ..slots import Stored
from ..trees import Tree, maker_of
from .guards import Constant
from .names import attributes_of, slots_of
from .values import is_plain

Names = MutableMapping[Any, str]
"""The variables of a printed call that hold the values of slots, and the objects that it makes."""
_CONTAINERS = (list, dict)


@frozen(eq=False)
class New:
    """A value to be stored: a tree of tensors, each an output of the program, and of what is the same on each call."""

    tree: Tree
    leaves: tuple[Any, ...]

    def text(self, names: Names, constants: dict[str, Any], constant: Constant) -> str:
        """Python that makes it."""

        def text_of(leaf: Any) -> str:
            if isinstance(leaf, NewObject):
                return leaf.text(names, constants, constant)
            return names[leaf] if isinstance(leaf, Stored) else constant(leaf)

        return print_unflatten(self.tree, map(text_of, self.leaves), constants)

    def __str__(self) -> str:
        return ", ".join(map(repr_of, self.leaves)) or str(self.tree)


@define(eq=False)
class NewObject:
    """An object that the function made, which is made anew on each call: a list or dict of such items, a copy of
    ``like``, or one of its class, without running ``__init__``, with such attributes. Where it stands in several
    places, or in itself, it is one there, too."""

    kind: type
    inside: New | None = None
    is_shared: bool = False
    like: Any = None

    def text(self, names: Names, constants: dict[str, Any], constant: Constant) -> str:
        """Python that makes it, where it is not made already."""
        if self in names:
            return names[self]
        name = f"new_{sum(isinstance(other, NewObject) for other in names)}"
        if self.inside is None or self.is_container:
            again = f"{constant(copied)}({constant(self.like)})"
            made = again if self.inside is None else self.inside.text(names, constants, constant)
            if self.is_shared:
                names[self] = name
            return f"({name} := {made})" if self.is_shared else made
        names[self] = name
        made = f"{name} := {constant(maker_of(self.kind))}({constant(self.kind)})"
        return f"{constant(_with_attributes)}({made}, {self.inside.text(names, constants, constant)})"

    @property
    def is_container(self) -> bool:
        return self.kind in _CONTAINERS

    def __str__(self) -> str:
        if self.inside is None:
            return repr(self.like)
        return str(self.inside) if self.is_container else f"a new {self.kind.__name__}"


def repr_of(leaf: Any) -> str:
    """A stored value as a reader knows it."""
    return str(leaf) if isinstance(leaf, (Stored, NewObject)) or not is_plain(leaf) else repr(leaf)


def is_new(value: Any) -> bool:
    """Whether a value is a list, a dict or an object that is no more than its attributes: it is one wherever it is
    met."""
    return type(value) in _CONTAINERS or (is_made_of_attributes(value) and not isinstance(value, (SymInt, SymFloat)))


def _with_attributes(value: Any, attributes: Mapping[str, Any]) -> Any:
    """An object that was just made, with its attributes."""
    own = attributes_of(value)
    slots = slots_of(type(value))
    for name, item in attributes.items():
        if own is None or name in slots:
            object.__setattr__(value, name, item)
        else:
            own[name] = item
    return value


def attributes_made(value: Any) -> dict[str, Any]:
    """What attributes an object has, those that no dict holds among them."""
    slots = {name: getattr(value, name) for name in slots_of(type(value)) if hasattr(value, name)}
    return {**(attributes_of(value) or {}), **slots}


def is_made_of_attributes(value: Any) -> bool:
    """Whether an object is no more than its attributes: nothing in C belongs to it."""
    try:
        maker_of(type(value))(type(value))
    except TypeError:
        return False
    has_any = attributes_of(value) is not None or bool(slots_of(type(value)))
    return has_any and not isinstance(value, BaseException)


def copied(value: Any) -> Any:
    """A value of ``is_copied``, made again: ``copy.copy`` of a partial would share its keywords."""
    if type(value) is not functools.partial:
        return copy.copy(value)
    made = functools.partial(value.func, *value.args, **value.keywords)
    vars(made).update(vars(value))
    return made


def is_copied(value: Any, is_kept: Callable[[Any], bool]) -> bool:
    """Whether a value is made again by copying it, where what it holds is stored as it is."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    if type(value) is functools.partial:
        return all(map(is_kept, (value.func, *value.args, *value.keywords.values())))
    return type(value) in (array.array, bytearray) or (
        type(value) in (set, collections.deque) and all(map(is_kept, value))
    )
