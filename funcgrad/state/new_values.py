"""What a function made and stores, made again on each call: trees of tensors, of plain values, and of objects of its
own."""

from __future__ import annotations

import collections
from collections.abc import Mapping, MutableMapping
from typing import Any

import numpy as np
from attrs import define, frozen

from ..slots import Stored
from ..trees import Tree, print_unflatten
from .guards import Constant, is_plain
from .names import attributes_of, slots_of

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
            return names[leaf] if isinstance(leaf, Stored) else constant(leaf) + (".copy()" if is_copied(leaf) else "")

        return print_unflatten(self.tree, map(text_of, self.leaves), constants)

    def __str__(self) -> str:
        return ", ".join(map(repr_of, self.leaves)) or str(self.tree)


@define(eq=False)
class NewObject:
    """An object that the function made, which is made anew on each call: a list or dict of such items, or one of its
    class, without running ``__init__``, with such attributes. Where it stands in several places, or an object in
    itself, it is one there, too."""

    kind: type
    inside: New | None = None
    is_shared: bool = False

    def text(self, names: Names, constants: dict[str, Any], constant: Constant) -> str:
        """Python that makes it, where it is not made already."""
        if self in names:
            return names[self]
        assert self.inside is not None
        name = f"new_{sum(isinstance(other, NewObject) for other in names)}"
        if self.is_container:
            made = self.inside.text(names, constants, constant)
            if self.is_shared:
                names[self] = name
            return f"({name} := {made})" if self.is_shared else made
        names[self] = name
        made = f"{name} := {constant(object.__new__)}({constant(self.kind)})"
        return f"{constant(_with_attributes)}({made}, {self.inside.text(names, constants, constant)})"

    @property
    def is_container(self) -> bool:
        return self.kind in _CONTAINERS

    def __str__(self) -> str:
        return str(self.inside) if self.is_container else f"a new {self.kind.__name__}"


def repr_of(leaf: Any) -> str:
    """A stored value as a reader knows it."""
    return str(leaf) if isinstance(leaf, (Stored, NewObject)) or not is_plain(leaf) else repr(leaf)


def is_new(value: Any) -> bool:
    """Whether a value is a list or a dict, which is stored as one wherever it is met."""
    return type(value) in _CONTAINERS


def _with_attributes(value: Any, attributes: Mapping[str, Any]) -> Any:
    """An object that was just made, with its attributes."""
    value.__dict__.update(attributes)
    return value


def is_made_of_attributes(value: Any) -> bool:
    """Whether an object is no more than its attributes: nothing in C belongs to it."""
    try:
        object.__new__(type(value))
    except TypeError:
        return False
    return attributes_of(value) is not None and not slots_of(type(value)) and not isinstance(value, BaseException)


def is_copied(value: Any) -> bool:
    """Whether a value is made again by copying it."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    return type(value) in (set, collections.deque) and all(map(is_plain, value))
