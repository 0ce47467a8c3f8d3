"""Pytrees: take a nest of containers apart into leaves, put it together again, and print both as Python.

dict, list, tuple, namedtuple, ``None``, dataclasses, attrs classes and whatever is registered with
``torch.utils._pytree`` are containers; everything else is a leaf. A path reads as code (``params['w'][0]``).

``flatten`` / ``unflatten`` carry the meaning; ``print_flatten`` / ``print_unflatten`` write the same as straight-line
Python for one known structure, because a generic walk costs 30 µs for ten leaves and the printed one 1 µs.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
from attrs import frozen

from .errors import TreeMismatchError
from .torch_private import registered_container


@frozen
class Leaf:
    """A place where a value stands."""

    def __str__(self) -> str:
        return "*"


@frozen
class Node:
    """A container: its exact type, how its children are reached, what else it needs to be rebuilt, and the children."""

    kind: type
    steps: tuple[str, ...]
    context: Any
    children: tuple[Tree, ...]

    def __str__(self) -> str:
        if self.kind is type(None):
            return "None"
        inside = ", ".join(f"{step}: {child}" for step, child in zip(self.steps, self.children, strict=True))
        return f"{self.kind.__name__}({inside})"


Tree = Leaf | Node
LEAF = Leaf()


@frozen
class _Shape:
    """One container taken apart once: its children, the steps that reach them, and its context."""

    children: Sequence[Any]
    steps: tuple[str, ...]
    context: Any = None


def _is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _field_names(kind: type) -> tuple[str, ...] | None:
    """The constructor fields of a dataclass or attrs class, or None."""
    if dataclasses.is_dataclass(kind):
        return tuple(f.name for f in dataclasses.fields(kind))
    if attrs.has(kind):
        return tuple(a.name for a in attrs.fields(kind))
    return None


def _open(value: Any) -> _Shape | None:
    """Take one container apart; None for a leaf."""
    kind = type(value)
    if value is None:
        return _Shape((), ())
    if kind is dict:
        return _Shape(tuple(value.values()), tuple(f"[{k!r}]" for k in value), tuple(value))
    if kind is list or kind is tuple:
        return _Shape(tuple(value), tuple(f"[{i}]" for i in range(len(value))))
    registered = registered_container(kind)
    if registered is not None:
        children, context = registered.flatten(value)
        return _Shape(tuple(children), tuple(registered.steps(value, len(children))), context)
    if _is_namedtuple(kind):
        return _Shape(tuple(value), tuple(f".{name}" for name in kind._fields))
    names = None if isinstance(value, type) else _field_names(kind)
    if names is not None:
        return _Shape(tuple(getattr(value, n) for n in names), tuple(f".{n}" for n in names), names)
    return None


def _close(node: Node, children: Sequence[Any]) -> Any:
    """Put one container together."""
    kind = node.kind
    if kind is type(None):
        return None
    if kind is dict:
        return dict(zip(node.context, children, strict=True))
    if kind is list or kind is tuple:
        return kind(children)
    registered = registered_container(kind)
    if registered is not None:
        return registered.unflatten(list(children), node.context)
    if _is_namedtuple(kind):
        return kind(*children)
    return rebuild(kind, node.context, children)


def rebuild(kind: type, names: Sequence[str], children: Sequence[Any]) -> Any:
    """An instance of a dataclass or attrs class with these fields, without running ``__init__`` (it may validate or compute)."""
    value: Any = object.__new__(kind)
    for name, child in zip(names, children, strict=True):
        object.__setattr__(value, name, child)
    return value


def flatten(value: Any, root: str = "", is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], Tree, list[str]]:
    """Leaves, structure, and the path of every leaf (``root`` in front). ``is_leaf``: containers that are not taken apart."""
    leaves: list[Any] = []
    paths: list[str] = []

    def walk(value: Any, path: str) -> Tree:
        shape = None if is_leaf is not None and is_leaf(value) else _open(value)
        if shape is None:
            leaves.append(value)
            paths.append(path)
            return LEAF
        children = tuple(walk(child, path + step) for child, step in zip(shape.children, shape.steps, strict=True))
        return Node(type(value), shape.steps, shape.context, children)

    tree = walk(value, root)
    return leaves, tree, paths


def unflatten(leaves: Sequence[Any], tree: Tree) -> Any:
    """The inverse of ``flatten``. Raises ``TreeMismatchError`` where the number of leaves is not the structure's."""
    remaining = iter(leaves)

    def walk(tree: Tree) -> Any:
        return next(remaining) if isinstance(tree, Leaf) else _close(tree, [walk(child) for child in tree.children])

    if len(leaves) != count(tree):
        raise TreeMismatchError(f"{len(leaves)} leaves for a structure of {count(tree)}: {tree}")
    return walk(tree)


def count(tree: Tree) -> int:
    """How many leaves a structure has."""
    return 1 if isinstance(tree, Leaf) else sum(map(count, tree.children))


def leaf_paths(tree: Tree, root: str = "") -> list[str]:
    """The path of every leaf of a structure."""
    if isinstance(tree, Leaf):
        return [root]
    return [path for step, child in zip(tree.steps, tree.children, strict=True) for path in leaf_paths(child, root + step)]


def tree_map(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """``function`` over the leaves of ``value``, with the leaves of ``others`` (same structure, else ``TreeMismatchError``)."""
    leaves, tree, _ = flatten(value)
    columns = [leaves]
    for other in others:
        more, found, _ = flatten(other)
        require_same(tree, found)
        columns.append(more)
    return unflatten([function(*row) for row in zip(*columns, strict=True)], tree)


def require_same(expected: Tree, found: Tree, root: str = "tree", what: str = "two pytrees have different structure") -> None:
    """Raise ``TreeMismatchError`` with the path of the first difference, if there is one."""
    for path, a, b in differences(expected, found, root):
        raise TreeMismatchError(f"{what}: expected {_name(a)}, got {_name(b)}", where=path, fix="pass the same structure in both places")


def _name(tree: Tree) -> str:
    if isinstance(tree, Leaf):
        return "a leaf"
    return "None" if tree.kind is type(None) else f"a {tree.kind.__name__} of {', '.join(tree.steps) or 'nothing'}"


def differences(a: Tree, b: Tree, root: str) -> Iterator[tuple[str, Tree, Tree]]:
    """Paths at which two structures part, with the two parts."""
    if isinstance(a, Leaf) or isinstance(b, Leaf) or (a.kind, a.steps) != (b.kind, b.steps) or not _same(a.context, b.context):
        if a != b:
            yield root, a, b
        return
    for step, x, y in zip(a.steps, a.children, b.children, strict=True):
        yield from differences(x, y, root + step)


def _same(a: Any, b: Any) -> bool:
    return a is b or bool(a == b)


# ── the same, printed ────────────────────────────────────────────────────────────────────────────────────────────


def print_flatten(tree: Tree, name: str, leaf_names: Sequence[str], constants: dict[str, Any], otherwise: str) -> list[str]:
    """Python lines that take the container in variable ``name`` apart, binding its leaves to ``leaf_names``.

    Objects the lines refer to are added to ``constants`` (name → object); where the structure differs, ``otherwise`` runs.
    What stands at a leaf is not looked at: whoever compares leaves with a key sees a container there.
    Variables for containers inside have a double underscore, which ``leaf_names`` must not have.
    """
    if isinstance(tree, Leaf):
        return [f"{leaf_names[0]} = {name}"]
    if tree.kind is type(None):
        return [f"if {name} is not None: {otherwise}"]
    ends = list(itertools.accumulate(map(count, tree.children), initial=0))
    names = [leaf_names[start:end] for start, end in itertools.pairwise(ends)]
    parts = [own[0] if isinstance(child, Leaf) else f"{name}__{i}" for i, (child, own) in enumerate(zip(tree.children, names, strict=True))]
    unpack = "".join(f"{part}, " for part in parts)
    registered = registered_container(tree.kind) if tree.kind not in (dict, list, tuple) else None
    lines = [f"if type({name}) is not {_constant(constants, tree.kind)}: {otherwise}"]
    if tree.kind is dict:
        lines.append(f"if list({name}) != {_constant(constants, list(tree.context))}: {otherwise}")
        lines += [f"{unpack}= {name}.values()"] if parts else []
    elif tree.kind in (list, tuple) or (registered is None and _is_namedtuple(tree.kind)):
        lines.append(f"if len({name}) != {len(parts)}: {otherwise}")
        lines += [f"{unpack}= {name}"] if parts else []
    elif registered is not None:
        children, context = f"{name}__children", f"{name}__context"
        lines.append(f"{children}, {context} = {_constant(constants, registered.flatten)}({name})")
        lines.append(f"if len({children}) != {len(parts)} or {context} != {_constant(constants, tree.context)}: {otherwise}")
        lines += [f"{unpack}= {children}"] if parts else []
    else:
        lines += [f"{part} = {name}.{field}" for part, field in zip(parts, tree.context, strict=True)]
    for part, child, own in zip(parts, tree.children, names, strict=True):
        if not isinstance(child, Leaf):
            lines += print_flatten(child, part, own, constants, otherwise)
    return lines


def print_unflatten(tree: Tree, leaf_names: Iterator[str], constants: dict[str, Any]) -> str:
    """A Python expression that puts the structure together from variables ``leaf_names``."""
    if isinstance(tree, Leaf):
        return next(leaf_names)
    if tree.kind is type(None):
        return "None"
    parts = [print_unflatten(child, leaf_names, constants) for child in tree.children]
    inside = ", ".join(parts)
    if tree.kind is dict:
        keys = [repr(k) if type(k) in (str, int) else _constant(constants, k) for k in tree.context]
        return "{" + ", ".join(f"{key}: {part}" for key, part in zip(keys, parts, strict=True)) + "}"
    if tree.kind is list:
        return f"[{inside}]"
    if tree.kind is tuple:
        return f"({inside},)" if parts else "()"
    kind = _constant(constants, tree.kind)
    registered = registered_container(tree.kind)
    if registered is not None:
        return f"{_constant(constants, registered.unflatten)}([{inside}], {_constant(constants, tree.context)})"
    if _is_namedtuple(tree.kind):
        return f"{kind}({inside})"
    return f"{_constant(constants, rebuild)}({kind}, {_constant(constants, tree.context)}, ({inside}{',' if parts else ''}))"


def _constant(constants: dict[str, Any], value: Any) -> str:
    """A name under which generated code finds ``value``."""
    builtins = {dict: "dict", list: "list", tuple: "tuple"}
    if isinstance(value, type) and value in builtins:
        return builtins[value]
    for name, known in constants.items():
        if known is value:
            return name
    name = f"{getattr(value, '__name__', type(value).__name__)}_{len(constants)}"
    name = "".join(c if c.isalnum() else "_" for c in name)
    constants[name] = value
    return name
