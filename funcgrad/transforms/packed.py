"""Pytrees without their tensors, which go into a ``torch.autograd.Function`` and come out of it one by one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from ..errors import CustomDerivativeError
from ..trees import Leaf, Node, Tree, flatten, leaf_paths, unflatten
from .definition import definition_line, name_of


@frozen
class Place:
    """Which of the tensors stands at a leaf."""

    index: int
    path: str


@frozen(eq=False)
class Packed:
    """A pytree without its tensors: its leaves are places, and what is no tensor."""

    tree: Tree
    leaves: tuple[Any, ...]

    @property
    def places(self) -> list[Place]:
        """The leaves at which tensors stand."""
        return [leaf for leaf in self.leaves if isinstance(leaf, Place)]

    def with_leaves(self, value: Callable[[Any], Any]) -> Any:
        """The pytree of what ``value`` makes of each leaf."""
        return unflatten([value(leaf) for leaf in self.leaves], self.tree)

    def of(self, tensors: Sequence[Any]) -> Any:
        """The pytree with its tensors."""
        return self.with_leaves(lambda leaf: tensors[leaf.index] if isinstance(leaf, Place) else leaf)

    def tangents(self, of: Callable[[int], Any]) -> Any:
        """The pytree of what is a tangent ``of`` each tensor; those of numbers are zero, and nothing else has one."""

        def tangent(leaf: Any) -> Any:
            if isinstance(leaf, Place):
                return of(leaf.index)
            return type(leaf)(0) if isinstance(leaf, (float, complex)) else None

        return self.with_leaves(tangent)

    def once(self, values: Sequence[Any], zeros: Callable[[int], Any]) -> Any:
        """The pytree of one value for each tensor; where a tensor stands a second time, its zeros: values are
        summed."""
        pending = dict(enumerate(values))

        def value(leaf: Any) -> Any:
            if isinstance(leaf, Place):
                return pending.pop(leaf.index) if leaf.index in pending else zeros(leaf.index)
            return None

        return self.with_leaves(value)


def pack(value: Any, tensors: list[Tensor], root: str = "", known: dict[int, int] | None = None) -> Packed:
    """A pytree packed, its tensors added to ``tensors``; those ``known``, by identity, stand there already."""
    leaves, tree, paths = flatten(value, root)
    packed: list[Any] = []
    for leaf, path in zip(leaves, paths, strict=True):
        if not isinstance(leaf, Tensor):
            packed.append(leaf)
            continue
        index = None if known is None else known.get(id(leaf))
        if index is None:
            index = len(tensors)
            tensors.append(leaf)
            if known is not None:
                known[id(leaf)] = index
        packed.append(Place(index, path))
    return Packed(tree, tuple(packed))


def returned(rule: Callable[..., Any], what: str, fix: str) -> CustomDerivativeError:
    """The error where a rule returned what it may not."""
    return CustomDerivativeError(f"{name_of(rule)} returned {what}", where=definition_line(rule), fix=fix)


def leaves_like(expected: Packed, found: Any, rule: Callable[..., Any], what: str) -> list[Any]:
    """The leaves of what a rule returned, in the order of a pytree it must be like; None where it has None for a
    part of that."""
    leaves, tree, paths = flatten(found)
    for path, a, b in _differences(expected.tree, tree, ""):
        given = f"{what} of structure {b}{f' at {path}' if path else ''}, not {a}"
        raise returned(rule, given, "return the same structure, or None for what is zero")
    by_path = dict(zip(paths, leaves, strict=True))
    return [by_path.get(path) for path in leaf_paths(expected.tree)]


def _differences(a: Tree, b: Tree, path: str) -> Iterator[tuple[str, Tree, Tree]]:
    """Paths at which two structures part, whatever the order of the items of a dict; None stands for any part."""
    if isinstance(b, Node) and b.kind is type(None):
        return
    if isinstance(a, Leaf) or isinstance(b, Leaf) or a.kind is not b.kind or {*a.steps} != {*b.steps}:
        if a != b:
            yield path, a, b
        return
    below = dict(zip(b.steps, b.children, strict=True))
    for step, child in zip(a.steps, a.children, strict=True):
        yield from _differences(child, below[step], path + step)


def with_values(values: Sequence[Any], places: Sequence[int], own: Sequence[Any]) -> list[Any]:
    """The values, with others in some places."""
    found = list(values)
    for i, v in zip(places, own, strict=True):
        found[i] = v
    return found
