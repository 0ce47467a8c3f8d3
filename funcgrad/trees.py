"""Pytrees: take a nest of containers apart into leaves, and put it together again.

dict, list, tuple, ``None``, dataclasses, attrs classes and whatever is registered with ``torch.utils._pytree`` are
containers, and so are subclasses of dict, list and tuple (namedtuples), and UserDict, UserList and ChainMap with
theirs: they come back as the very class with the attributes they have, and none of its code runs. Everything else is a
leaf. A path reads as code (``params['w'][0]``).

``flatten`` / ``unflatten`` carry the meaning; ``printed_trees.py`` prints the same for one known structure.
"""

from __future__ import annotations

import collections
import copyreg
import dataclasses
import enum
import functools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import torch
from attrs import frozen

from .errors import ContainerError, TreeMismatchError
from .torch_private.pytrees import Registered, registered_container


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


_NOTHING: Mapping[int, str] = {}


@frozen
class _Shape:
    """One container taken apart once: its children, the steps that reach them, and its context."""

    children: Sequence[Any]
    steps: tuple[str, ...]
    context: Any = None


def is_namedtuple(kind: type) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


_ITEMS_OF: dict[Any, Callable[[Any], Any]] = {
    collections.defaultdict: dict.items,
    collections.OrderedDict: collections.OrderedDict.items,
    dict: dict.items,
    list: list.__iter__,
    tuple: tuple.__iter__,
}
"""What holds the items of a subclass, the most special first, and what iterates over them whatever the subclass
overrides."""


@frozen
class _Extended:
    """A dict, list or tuple of a class of its own. Its children are its items, then its attributes, but for an
    attribute that is one of its items (a dataclass that subclasses OrderedDict keeps its fields twice): the context
    says which item that is."""

    kind: Any
    holder: Any
    slots: tuple[str, ...]

    def flatten(self, value: Any) -> tuple[Sequence[Any], Any]:
        """The children, and ``(keys, attributes, are attributes items, default factory)``."""
        items: list[Any] = list(_ITEMS_OF[self.holder](value))
        keys = None
        if issubclass(self.holder, dict):
            keys, items = tuple(k for k, _ in items), [v for _, v in items]
        factory = value.default_factory if self.holder is collections.defaultdict else None
        own = value.__dict__ if self.kind.__dictoffset__ else {}
        if own is value:  # self.__dict__ = self
            return items, (keys, (), True, factory)
        own = own | {name: getattr(value, name) for name in self.slots if hasattr(value, name)}
        place = {id(item): i for i, item in reversed(list(enumerate(items)))}
        attributes = tuple((name, place.get(id(v))) for name, v in own.items())
        return items + [v for v in own.values() if id(v) not in place], (keys, attributes, False, factory)

    def unflatten(self, children: Sequence[Any], context: Any) -> Any:
        keys, attributes, is_its_own, factory = context
        n = len(children) - sum(place is None for _, place in attributes)
        if self.holder is tuple:
            value: Any = tuple.__new__(self.kind, children[:n])
        else:
            value = self.holder.__new__(self.kind)
        if self.holder is list:
            list.extend(value, children[:n])
        elif self.holder is collections.defaultdict:
            collections.defaultdict.__init__(value, factory)
        for key, child in zip(keys or (), children, strict=False):
            self.holder.__setitem__(value, key, child)
        if is_its_own:
            object.__setattr__(value, "__dict__", value)
        rest = iter(children[n:])
        for name, place in attributes:
            own = next(rest) if place is None else children[place]
            if name in self.slots:
                object.__setattr__(value, name, own)
            else:
                value.__dict__[name] = own
        return value

    def steps(self, value: Any, n: int) -> Iterator[str]:
        """How each child is reached, as code."""
        keys, attributes, *_ = self.flatten(value)[1]
        names = [f".{name}" for name, place in attributes if place is None]
        if keys is None and is_namedtuple(self.kind):
            return iter([*(f".{name}" for name in self.kind._fields), *names])
        return iter([*(f"[{k!r}]" for k in keys or range(n - len(names))), *names])


@functools.lru_cache(256)
def _extended(kind: Any) -> _Extended | None:
    """How a subclass of dict, list or tuple is taken apart; None for another type, and for one that has more in it
    than these (``time.struct_time``)."""
    holder = next((h for h in _ITEMS_OF if issubclass(kind, h)), None)
    if holder is None or holder is kind or issubclass(kind, enum.Enum):
        return None
    slots = tuple(copyreg._slotnames(kind))  # type: ignore[attr-defined]
    if is_namedtuple(kind) and not slots and not kind.__dictoffset__:
        return None  # its fields are all it has
    try:
        holder.__new__(kind)
    except TypeError:  # its memory is laid out in another way
        return None
    return _Extended(kind, holder, slots)


def container_of(kind: type) -> Registered | _Extended | None:
    """How a type is taken apart that is registered, or a dict, list or tuple with more to it."""
    return _SIZE if kind is torch.Size else registered_container(kind) or _extended(kind)


def _size_of(children: Sequence[Any], _: Any) -> tuple[Any, ...]:
    """A size of numbers; what stands for each of them, in a tree of something else, is in a tuple."""
    are_numbers = all(isinstance(child, (int, torch.SymInt)) for child in children)
    return torch.Size(children) if are_numbers else tuple(children)


_SIZE = Registered(lambda value: (tuple(value), None), _size_of, None)
"""Torch's own registration puts a size together as a tuple."""


_OF_ATTRIBUTES = (collections.UserDict, collections.UserList, collections.ChainMap)
"""Containers written in Python that keep what they hold in attributes."""


@functools.lru_cache(256)
def field_names(kind: Any) -> tuple[str, ...] | None:
    """The fields of a dataclass or attrs class; None for a type that is no container, or cannot be made without code
    of its own."""
    if issubclass(kind, (enum.Enum, torch.nn.Module, torch.Tensor)):
        return None
    if dataclasses.is_dataclass(kind):
        names = tuple(f.name for f in dataclasses.fields(kind))
    elif attrs.has(kind):
        names = tuple(a.name for a in attrs.fields(kind))
    elif issubclass(kind, _OF_ATTRIBUTES):
        names = ()
    else:
        return None
    try:
        object.__new__(kind)
    except TypeError:
        return None
    return names


def _attribute_names(value: Any) -> tuple[str, ...] | None:
    """What a dataclass, an attrs class or a container of attributes is made of: its fields, and what else was stored
    in it."""
    kind: Any = type(value)
    fields = None if isinstance(value, type) else field_names(kind)
    if fields is None:
        return None
    fields = tuple(name for name in fields if hasattr(value, name))
    return (*fields, *(name for name in getattr(value, "__dict__", ()) if name not in fields))


def _open(value: Any) -> _Shape | None:
    """Take one container apart; None for a leaf."""
    kind = type(value)
    if value is None:
        return _Shape((), ())
    if kind is dict:
        return _Shape(tuple(value.values()), tuple(f"[{k!r}]" for k in value), tuple(value))
    if kind is list or kind is tuple:
        return _Shape(tuple(value), tuple(f"[{i}]" for i in range(len(value))))
    container = container_of(kind)
    if container is not None:
        children, context = container.flatten(value)
        return _Shape(tuple(children), tuple(container.steps(value, len(children))), context)
    if is_namedtuple(kind):
        return _Shape(tuple(value), tuple(f".{name}" for name in kind._fields))
    names = _attribute_names(value)
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
    container = container_of(kind)
    if container is not None:
        return container.unflatten(list(children), node.context)
    if is_namedtuple(kind):
        return new_tuple(kind, children)
    return rebuild(kind, node.context, children)


new_tuple = tuple.__new__
"""A namedtuple of items, without running a ``__new__`` of its own."""


def maker_of(kind: type) -> Callable[[type], Any]:
    """What makes an object of a class that nothing has been done to."""
    return types.SimpleNamespace.__new__ if issubclass(kind, types.SimpleNamespace) else object.__new__


def rebuild(kind: type, names: Sequence[str], children: Sequence[Any]) -> Any:
    """An instance of a class with these attributes, without running ``__init__`` (it may validate or compute)."""
    value: Any = maker_of(kind)(kind)
    for name, child in zip(names, children, strict=True):
        object.__setattr__(value, name, child)
    return value


class Given:
    """The kind of a container that is known as a whole: a node of it has no leaves, its context is what printed lines
    call the container."""


Opens = Callable[[Any], Mapping[str, Any] | None]
"""The attributes of an object that is a container of them; None for any other leaf."""


def flatten(
    value: Any,
    root: str = "",
    is_leaf: Callable[[Any], bool] | None = None,
    given: Mapping[int, str] = _NOTHING,
    opens: Opens | None = None,
) -> tuple[list[Any], Tree, list[str]]:
    """Leaves, structure, and the path of every leaf (``root`` in front). ``is_leaf``: containers that are not taken
    apart. ``given``: those that are known as a whole, by identity, and what printed lines call them.

    Raises ``ContainerError`` for a container that holds itself.
    """
    leaves, paths = list[Any](), list[str]()
    return leaves, _take_apart(value, root, leaves, paths, is_leaf, given, {}, opens), paths


def _take_apart(
    value: Any,
    path: str,
    leaves: list[Any],
    paths: list[str],
    is_leaf: Callable[[Any], bool] | None,
    given: Mapping[int, str],
    around: dict[int, str],
    opens: Opens | None,
) -> Tree:
    if id(value) in given:
        return Node(Given, (), given[id(value)], ())
    # No function inside of flatten: one that calls itself is a ring of references, and would keep the leaves until it
    # is collected.
    shape = None if is_leaf is not None and is_leaf(value) else _open(value)
    if shape is None and opens is not None and (own := opens(value)) is not None:
        shape = _Shape(tuple(own.values()), tuple(f".{name}" for name in own), tuple(own))
    if shape is None:
        leaves.append(value)
        paths.append(path)
        return LEAF
    if shape.children:
        if id(value) in around:
            raise ContainerError(
                f"a {type(value).__name__} holds itself: {_from_root(path)} is {_from_root(around[id(value)])}",
                where=_from_root(path),
                fix="leave that out of it: what comes in and goes out is a tree of containers",
            )
        around[id(value)] = path
    pairs = zip(shape.children, shape.steps, strict=True)
    more = leaves, paths, is_leaf, given, around, opens
    children = tuple(_take_apart(child, path + step, *more) for child, step in pairs)
    around.pop(id(value), None)
    return Node(type(value), shape.steps, shape.context, children)


def keyword_names(names: Sequence[str], keywords: Iterable[str]) -> list[str]:
    """What keyword arguments are called beside positional ones of these names: as they are, but where one of these is
    called so, too (``def f(x, /, **others)``, ``def f(*args, **others)``)."""
    taken = {name.partition("[")[0] for name in names}
    return [f"kwargs[{k!r}]" if k in taken else k for k in keywords]


def flatten_arguments(
    names: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], list[str]]:
    """The leaves of the arguments of a call, and the path of each, by the name of its argument."""
    named = zip((*names, *keyword_names(names, kwargs)), (*args, *kwargs.values()), strict=True)
    found = [flatten(value, name) for name, value in named]
    return [leaf for leaves, _, _ in found for leaf in leaves], [path for _, _, paths in found for path in paths]


@frozen(eq=False)
class Container:
    """A container within another; ``variable`` is what ``print_flatten`` calls it, or Python for it of that."""

    value: Any
    path: str
    variable: str


def names_of(containers: Iterable[Container]) -> dict[int, str]:
    """What printed lines call containers, by their identities."""
    return {id(container.value): container.variable for container in containers}


def which_are_one(containers: Iterable[Container]) -> dict[str, str]:
    """The variables of containers, each with that of the first that is the same object. What is known by its values
    alone is left out: a literal is one object or another, as Python likes."""
    first: dict[int, str] = {}
    own = [c for c in containers if not (isinstance(c.value, tuple) and all(map(_is_atom, c.value)))]
    return {c.variable: first.setdefault(id(c.value), c.variable) for c in own}


def _is_atom(value: Any) -> bool:
    return value is None or isinstance(value, (str, bytes, int, float, complex))


def children_of(container: Any) -> tuple[Any, ...]:
    """What a container holds."""
    shape = _open(container)
    assert shape is not None
    return tuple(shape.children)


def index_paths(tree: Tree, root: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    """Of every leaf of a structure, which child to take of which child."""
    if isinstance(tree, Leaf):
        yield root
        return
    for i, child in enumerate(tree.children):
        yield from index_paths(child, (*root, i))


def at_indices(path: Sequence[int], value: Any) -> Any:
    """What stands there in a container."""
    return functools.reduce(lambda container, i: children_of(container)[i], path, value)


def containers_in(value: Any, tree: Tree, path: str, variable: str) -> Iterator[Container]:
    """The containers of a value of this structure, from the outside in."""
    if isinstance(tree, Leaf) or tree.kind is type(None):
        return
    yield Container(value, path, variable)
    for i, (child, step, own) in enumerate(zip(children_of(value), tree.steps, tree.children, strict=True)):
        yield from containers_in(child, own, path + step, f"{variable}__{i}")


def _from_root(path: str) -> str:
    return f"result{path}" if path[:1] in ("", "[", ".") else path


def unflatten(leaves: Sequence[Any], tree: Tree) -> Any:
    """The inverse of ``flatten``. Raises ``TreeMismatchError`` where the number of leaves is not the structure's."""
    if len(leaves) != count(tree):
        raise TreeMismatchError(f"{len(leaves)} leaves for a structure of {count(tree)}: {tree}")
    return put_together(iter(leaves), tree, "", {}, {})


def put_together(
    remaining: Iterator[Any], tree: Tree, variable: str, one: Mapping[str, str], made: dict[str, Any]
) -> Any:
    """The same of the next leaves, with containers that are one with another before them: ``one`` says which, by their
    variables (``Container``), by which they are ``made``."""
    if isinstance(tree, Leaf):
        return next(remaining)
    own = [put_together(remaining, child, f"{variable}__{i}", one, made) for i, child in enumerate(tree.children)]
    first = one.get(variable, variable)
    made[variable] = _close(tree, own) if first == variable else made[first]
    return made[variable]


def count(tree: Tree) -> int:
    """How many leaves a structure has."""
    return 1 if isinstance(tree, Leaf) else sum(map(count, tree.children))


def leaf_paths(tree: Tree, root: str = "") -> list[str]:
    """The path of every leaf of a structure."""
    if isinstance(tree, Leaf):
        return [root]
    return [
        path for step, child in zip(tree.steps, tree.children, strict=True) for path in leaf_paths(child, root + step)
    ]


def tree_map(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """``function`` over the leaves of ``value``, with the leaves of ``others`` (same structure, else
    ``TreeMismatchError``)."""
    leaves, tree, _ = flatten(value, "tree")
    columns = [leaves]
    for other in others:
        more, found, _ = flatten(other, "tree")
        require_same(tree, found)
        columns.append(more)
    return unflatten([function(*row) for row in zip(*columns, strict=True)], tree)


def require_same(
    expected: Tree, found: Tree, root: str = "tree", what: str = "two pytrees have different structure"
) -> None:
    """Raise ``TreeMismatchError`` with the path of the first difference, if there is one."""
    for path, a, b in differences(expected, found, root):
        raise TreeMismatchError(
            f"{what}: expected {_name(a)}, got {_name(b)}", where=path, fix="pass the same structure in both places"
        )


def _name(tree: Tree) -> str:
    if isinstance(tree, Leaf):
        return "a leaf"
    return "None" if tree.kind is type(None) else f"a {tree.kind.__name__} of {', '.join(tree.steps) or 'nothing'}"


def differences(a: Tree, b: Tree, root: str) -> Iterator[tuple[str, Tree, Tree]]:
    """Paths at which two structures part, with the two parts."""
    if (
        isinstance(a, Leaf)
        or isinstance(b, Leaf)
        or (a.kind, a.steps) != (b.kind, b.steps)
        or not _same(a.context, b.context)
    ):
        if a != b:
            yield root, a, b
        return
    for step, x, y in zip(a.steps, a.children, b.children, strict=True):
        yield from differences(x, y, root + step)


def _same(a: Any, b: Any) -> bool:
    return a is b or bool(a == b)
