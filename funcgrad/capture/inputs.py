"""What goes into a trace: the arguments of a call taken apart, and the tensors the function closes over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from torch import Tensor

from .. import refusals
from ..errors import Refusal
from ..slots import Arg, Captured, State
from ..state.places import Place
from ..state.renewed import Renewed
from ..state.unread import is_unread
from ..trees import Container, Node, Tree, children_of, containers_in, keyword_names, put_together
from .results import hidden_tensor


@frozen
class Symbolic:
    """Stands in the place of a float argument, or a number of Python state, that is traced as a symbol; ``value``:
    that of this call."""

    value: float


@frozen(eq=False)
class Inputs:
    """The arguments of one call taken apart: the leaves with their slots, and the structure of ``(args, kwargs)``.

    A tensor leaf is an input, a ``Symbolic`` leaf a symbolic float, an ``Unread`` one any of its type; any other leaf
    is static. ``names`` are those of the positional arguments. ``sizes``: the dimensions of tensors that are traced as
    symbols, by the tensors' paths.
    ``state``: the numbers of Python state that are. ``may_be_sizes``: whether numbers that are symbols may be sizes.
    ``identities``: of the containers of the call, and of what these keep items and attributes in, by their variables;
    ``one``: which of them are one object (``which_are_one``).
    """

    names: tuple[str, ...]

    leaves: tuple[Any, ...]
    slots: tuple[Arg, ...]
    tree: Tree
    sizes: Mapping[str, frozenset[int]] = {}
    state: tuple[tuple[State, Place, Symbolic], ...] = ()
    may_be_sizes: bool = False
    identities: Mapping[str, int] = {}
    one: Mapping[str, str] = {}
    renewed: tuple[Renewed, ...] = ()
    """The objects that were others in other calls."""
    static: frozenset[str] = frozenset()
    """The arguments that are meant to be compared (``static_argnums``)."""

    @property
    def dynamic(self) -> list[tuple[Arg | State, Any]]:
        """The leaves that are inputs of the graph, and the numbers of Python state that are."""
        leaves = [(s, v) for s, v in zip(self.slots, self.leaves, strict=True) if isinstance(v, (Tensor, Symbolic))]
        return [*leaves, *((slot, number) for slot, _, number in self.state)]

    @property
    def tensors(self) -> list[tuple[Arg, Tensor]]:
        return [(s, v) for s, v in zip(self.slots, self.leaves, strict=True) if isinstance(v, Tensor)]

    @property
    def objects(self) -> list[tuple[str, Any]]:
        """The leaves that are no inputs of the graph, by their paths."""
        pairs = zip(self.slots, self.leaves, strict=True)
        return [(s.path, v) for s, v in pairs if not (is_unread(v) or isinstance(v, (Tensor, Symbolic)))]

    @property
    def unread(self) -> frozenset[str]:
        """The paths of what the function is not to read."""
        return frozenset(s.path for s, v in zip(self.slots, self.leaves, strict=True) if is_unread(v))

    @property
    def has_symbols(self) -> bool:
        """Whether any number of the call is a symbol."""
        return bool(self.sizes) or any(isinstance(v, Symbolic) for _, v in self.dynamic)

    @property
    def has_symbols_for_sizes(self) -> bool:
        """Whether there are symbols of which a number that is a size may be made."""
        return self.may_be_sizes and self.has_symbols

    def numbers(self, stand_ins: Mapping[Any, Any]) -> list[tuple[Place, Any]]:
        """Where numbers of Python state live, each with what stands for it."""
        return [(place, stand_ins[slot]) for slot, place, _ in self.state]

    @property
    def by_path(self) -> dict[str, Any]:
        return dict(zip((slot.path for slot in self.slots), self.leaves, strict=True))

    def released(self) -> Inputs:
        """The same, without the tensors: what a program keeps."""
        return evolve(self, leaves=tuple(None if isinstance(v, Tensor) else v for v in self.leaves))

    def rebuild(self, stand_ins: Mapping[Any, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """``(args, kwargs)`` with each dynamic leaf replaced by its stand-in."""
        leaves = [stand_ins.get(slot, leaf) for slot, leaf in zip(self.slots, self.leaves, strict=True)]
        assert isinstance(self.tree, Node)
        remaining, made = iter(leaves), dict[str, Any]()
        args, kwargs = (
            put_together(remaining, tree, variable, self.one, made)
            for tree, variable in zip(self.tree.children, ("args", "kwargs"), strict=True)
        )
        return args, kwargs

    def containers(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Container]:
        """The containers in arguments of this structure."""
        return containers_of_call(args, kwargs, self.tree, self.names)


def containers_of_call(
    args: Sequence[Any], kwargs: Mapping[str, Any], tree: Tree, names: Sequence[str]
) -> list[Container]:
    """The containers in the arguments of a call of this structure; ``names``: of the positional ones."""
    assert isinstance(tree, Node)
    positional, keywords = tree.children
    assert isinstance(positional, Node) and isinstance(keywords, Node)
    own = zip(args, positional.children, names, strict=True)
    given = [(value, tree, name, f"args__{i}") for i, (value, tree, name) in enumerate(own)]
    named = zip(kwargs.values(), keywords.children, keyword_names(names, kwargs), strict=True)
    given += [(value, tree, name, f"kwargs__{i}") for i, (value, tree, name) in enumerate(named)]
    return [found for value, tree, name, variable in given for found in containers_in(value, tree, name, variable)]


@frozen
class Unresolved:
    """No place is known."""

    name: str = ""


@frozen
class GradientOf:
    """The ``.grad`` of another input."""

    slot: Arg | Captured


@frozen(eq=False)
class CapturedTensor:
    """A tensor the function closes over, and where it lives. A program reads it from there, so it does not keep
    ``tensor``."""

    slot: Captured
    tensor: Tensor | None
    type: str
    requires_grad: bool
    origin: Place | GradientOf | Unresolved

    def read(self, known: Mapping[Any, Any]) -> Any:
        """The tensor that lives there now. ``known`` are the inputs by their slots: a gradient is read from one of
        them."""
        if isinstance(self.origin, GradientOf):
            return known[self.origin.slot].grad
        return self.origin.read() if isinstance(self.origin, Place) else self.tensor


def read_all(captured: Iterable[CapturedTensor], arguments: Mapping[Any, Any]) -> dict[Captured, Any]:
    """The captured tensors that live there now, in a call with these arguments."""
    found: dict[Any, Any] = dict(arguments)
    for c in captured:
        found[c.slot] = c.read(found)
    return {c.slot: found[c.slot] for c in captured}


def contents_of(containers: Iterable[Container]) -> list[tuple[Container, tuple[Any, ...]]]:
    """What containers hold."""
    return [(own, children_of(own.value)) for own in containers]


def require_same(before: Iterable[tuple[Container, tuple[Any, ...]]], otherwise: Refusal[Any]) -> None:
    """Containers hold what they held: a store into a copy of them would be lost."""
    for container, held in before:
        now = children_of(container.value)
        if len(now) != len(held) or any(a is not b for a, b in zip(now, held, strict=True)):
            raise otherwise(container.path, where=container.path)


def require_none_hidden(given: Sequence[Any], names: Sequence[str]) -> None:
    """No object among the arguments holds a tensor of the trace when what is known of is undone."""
    for name, leaf in zip(names, given, strict=True):
        if (hidden := hidden_tensor(leaf)) is not None:
            raise refusals.STORES_INTO_ARGUMENT(f"{name}{hidden}", where=f"{name}{hidden}")
