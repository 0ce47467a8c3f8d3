"""What a function made and stores, made again on each call: trees of tensors, of plain values, and of objects of its
own."""

from __future__ import annotations

import array
import collections
import copy
import functools
import gc
import sys
import types
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
from attrs import define, evolve, frozen
from torch import SymFloat, SymInt

from ..printed_trees import print_unflatten
from ..slots import Stored
from ..trees import Leaf, Tree, at_indices, index_paths, maker_of
from .names import attributes_of, slots_of
from .places import Constant
from .values import is_plain, plain_key

Names = MutableMapping[Any, str]
"""The variables of a printed call that hold the values of slots, and the objects that it makes."""
_CONTAINERS = (list, dict)
_OF_FUNCTION = ("__defaults__", "__kwdefaults__", "__qualname__", "__doc__", "__module__", "__annotations__")


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

    @property
    def n_items(self) -> int:
        """How many items there are in a container that is more than a leaf."""
        inside = self.leaves[0].inside.tree if isinstance(self.tree, Leaf) else self.tree
        return len(inside.children)

    def slots(self) -> Iterator[tuple[Stored, Callable[[Any], Any]]]:
        """The slots in it, and how to find what another run of the function has made there."""
        for leaf, path in zip(self.leaves, index_paths(self.tree), strict=True):
            within = functools.partial(at_indices, path)
            if isinstance(leaf, Stored):
                yield leaf, within
            elif isinstance(leaf, NewObject):
                yield from ((slot, _composed(find, within)) for slot, find in leaf.slots())

    def __str__(self) -> str:
        return ", ".join(map(repr_of, self.leaves)) or str(self.tree)


@define(eq=False)
class NewObject:
    """An object that the function made, which is made anew on each call: a list or dict of such items, a copy of
    ``like``, what ``like`` makes of such arguments, a function with such cells, or an object of its class with such
    attributes, whose ``__init__`` does not run. Where it stands in several places, or in itself, it is one there, too.
    """

    kind: type
    inside: New | None = None
    is_shared: bool = False
    like: Any = None
    cells: tuple[Any, ...] = ()

    def text(self, names: Names, constants: dict[str, Any], constant: Constant) -> str:
        """Python that makes it, where it is not made already."""
        if self in names:
            return names[self]
        if self.kind is types.CellType:  # a function fills it
            return f"({self._named(names)} := {constant(self.kind)}())"
        inside = self.inside
        if inside is None or self.is_plain:
            if inside is None:
                made = f"{constant(copy.copy)}({constant(self.like)})"
            else:
                made = inside.text(names, constants, constant)
            if inside is not None and self.like is not None:
                made = f"{constant(self.like)}(*{made})"
            return f"({self._named(names)} := {made})" if self.is_shared else made
        name = self._named(names)
        made, held = f"{constant(maker_of(self.kind))}({constant(self.kind)})", ""
        if self.kind is types.FunctionType:
            new = [cell for cell in self.cells if isinstance(cell, NewObject)]
            full = [(cell, cell.inside) for cell in new if cell not in names and cell.inside is not None]
            cells = [c.text(names, constants, constant) if c in new else constant(c) for c in self.cells]
            made = f"{constant(self.like)}(closure=({''.join(f'{cell}, ' for cell in cells)}))"
            held = "".join(f"({names[cell]}, {own.text(names, constants, constant)}), " for cell, own in full)
        attributes = inside.text(names, constants, constant)
        return f"{constant(_with_attributes)}({name} := {made}, ({held}), {attributes})"

    def slots(self) -> Iterator[tuple[Stored, Callable[[Any], Any]]]:
        """See ``New.slots``; of an object that stands in several places, or is made of more than what is within it,
        nobody knows."""
        if self.inside is None or self.is_shared or self.like is not None:
            return
        for slot, find in self.inside.slots():
            yield slot, find if self.kind in _CONTAINERS else _composed(find, attributes_made)

    def _named(self, names: Names) -> str:
        """A name of its own: the objects within it have theirs."""
        names[self] = f"new_{sum(isinstance(other, NewObject) for other in names)}"
        return names[self]

    @property
    def is_plain(self) -> bool:
        """Whether it is made of what is within it, which must be there before."""
        return self.kind in (*_CONTAINERS, *CALLED)

    def __str__(self) -> str:
        if self.inside is None:
            return repr(self.like)
        return str(self.inside) if self.kind in _CONTAINERS else f"a new {self.kind.__name__}"


def _composed(outer: Callable[[Any], Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: outer(inner(value))


def repr_of(leaf: Any) -> str:
    """A stored value as a reader knows it; an object that cannot say what it is (one that holds itself), by its
    class."""
    try:
        return str(leaf) if isinstance(leaf, (Stored, NewObject)) or not is_plain(leaf) else repr(leaf)
    except Exception:
        return object.__repr__(leaf)


def is_new(value: Any) -> bool:
    """Whether a value is a list, a dict or an object that is no more than its attributes: it is one wherever it is
    met."""
    return type(value) in _CONTAINERS or (is_made_of_attributes(value) and not isinstance(value, (SymInt, SymFloat)))


def _with_attributes(value: Any, cells: Sequence[tuple[types.CellType, Any]], attributes: Mapping[str, Any]) -> Any:
    """An object that was just made, with its attributes; cells that were made for it, with what they hold."""
    for cell, held in cells:
        cell.cell_contents = held
    own = attributes_of(value)
    slots = slots_of(type(value)) if not isinstance(value, types.FunctionType) else _OF_FUNCTION
    for name, item in attributes.items():
        if own is None or name in slots:
            object.__setattr__(value, name, item)
        else:
            own[name] = item
    return value


def attributes_made(value: Any) -> dict[str, Any]:
    """What attributes an object has, those that no dict holds among them."""
    if isinstance(value, types.FunctionType):
        return {**vars(value), **{name: getattr(value, name) for name in _OF_FUNCTION}}
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


def _partial(function: Any, arguments: Any, keywords: Any, attributes: Any) -> functools.partial[Any]:
    made = functools.partial(function, *arguments, **keywords)
    vars(made).update(attributes)
    return made


CALLED: Mapping[type, tuple[Callable[..., Any], Callable[[Any], tuple[Any, ...]]]] = {
    types.MappingProxyType: (types.MappingProxyType, lambda proxy: (gc.get_referents(proxy)[0],)),
    types.MethodType: (types.MethodType, lambda method: (method.__func__, method.__self__)),
    functools.partial: (_partial, lambda own: (own.func, own.args, own.keywords, vars(own))),
}
"""What makes objects of these types, and what of."""


def is_lasting(function: types.FunctionType) -> bool:
    """Whether a function is there for good: one that a call makes is found nowhere."""
    of_module = vars(sys.modules.get(function.__module__, types)).get(function.__name__)
    return of_module is function or "<locals>" not in function.__code__.co_qualname


def is_copied(value: Any, is_kept: Callable[[Any], bool]) -> bool:
    """Whether a value is made again by copying it, where what it holds is stored as it is."""
    if isinstance(value, np.ndarray):
        return bool(value.dtype != object)
    return type(value) in (array.array, bytearray) or (
        type(value) in (set, collections.deque) and all(map(is_kept, value))
    )


def with_plain_keys(tree: Tree) -> Tree:
    """A structure in which no symbol is a key."""
    if isinstance(tree, Leaf):
        return tree
    children = tuple(map(with_plain_keys, tree.children))
    return evolve(tree, context=plain_key(tree.context), children=children)
