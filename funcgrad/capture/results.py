"""Leaves of a result that are no tensors: a compiled call returns them as they were when the function was traced.

That is right for immutable values, and for objects that were there before the call. A tensor hidden in an object that
is no pytree would be the traced one; an object the function makes would be one object for all calls. Both are refused
by name.
"""

from __future__ import annotations

import enum
import functools
import gc
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from inspect import getattr_static
from typing import Any

import torch
from attrs import define, field
from torch import SymBool, SymFloat, SymInt, Tensor

from .. import refusals
from ..state.hooks import module_of
from ..state.new_values import NewObject, attributes_made, is_made_of_attributes
from ..state.unread import Unread
from ..state.watch import Watch
from ..state.written import Written
from ..subclasses import is_traced
from ..torch_private.functional import FunctionalTensor
from ..trees import Container, Leaf, Tree, flatten, names_of

_IMMUTABLE = (
    bool, int, float, complex, str, bytes, type(None), type(...), type(NotImplemented), range, slice, type,
    types.ModuleType, enum.Enum, torch.dtype, torch.device, torch.layout, torch.memory_format, types.CodeType,
    Unread,
)  # fmt: skip
"""Values nobody can tell from equal ones but by ``is``."""

PLAIN = (bool, int, float, complex, str, bytes)
_SYMBOLIC = (SymInt, SymFloat, SymBool)
_FUNCTIONS = (
    types.FunctionType,
    types.MethodType,
    types.BuiltinFunctionType,
    types.MethodWrapperType,
    functools.partial,
)
# in which a module has its programs
_OPAQUE = (types.ModuleType, types.FrameType, types.CodeType, type, weakref.WeakKeyDictionary)
_AT_MOST = 100_000

_Child = tuple[str, Any]


def require_unhooked(hooked: Mapping[int, str | None], leaves: Sequence[Any]) -> None:
    """A hook on an input hears of gradients that come by way of the function; where that returns the input itself,
    they do not."""
    for leaf in leaves:
        if id(leaf) in hooked:
            raise refusals.HOOK_ON_RESULT(where=hooked[id(leaf)])


@define(eq=False)
class Opening:
    """Objects of the result that are no pytrees, and were made in the call, as containers of their attributes: each
    call makes others, without running ``__init__``."""

    watch: Watch
    written: Written | None
    made: list[Any] = field(factory=list)
    kept: bool = False
    """Whether a container is returned that Python state holds."""

    def __call__(self, value: Any) -> Mapping[str, Any] | None:
        """The attributes of one that holds a tensor of the trace; None for what was there before, stands in two places,
        or is more than its attributes."""
        if isinstance(value, (Tensor, *_SYMBOLIC, *_IMMUTABLE, *_FUNCTIONS, *_OPAQUE, torch.nn.Module)):
            return None
        met = self.watch.knows(value) or any(value is other for other in self.made)
        if met or not is_made_of_attributes(value) or hidden_tensor(value) is None:
            return None
        attributes = attributes_made(value)
        # as they stand in the class: what is computed once is an attribute (lazy_property)
        if any(isinstance(getattr_static(type(value), name, None), property) for name in attributes):
            return None
        self.made.append(value)
        return attributes

    def is_leaf(self, value: Any) -> bool:
        """Whether Python state holds a list or a dict: it is that very one in each call, with what is written to it.
        So is any other container in an object that is made, if no tensor of the trace is in it."""
        if isinstance(value, (list, dict)) and (self.watch.keeps(value) or self._stored(value) is not None):
            self.kept = True
            return True
        return bool(self.made) and self.watch.knows(value) and hidden_tensor(value) is None

    def _stored(self, value: Any) -> NewObject | None:
        return None if self.written is None else self.written.container_made(value)

    def leaf(self, value: Any) -> Any:
        """A leaf of the result; what stands for a container that the call made, and stored."""
        return (self._stored(value) or value) if isinstance(value, (list, dict)) else value

    @property
    def matters(self) -> bool:
        """Whether a result is more than what is in it."""
        return self.kept or bool(self.made)

    def require_stored_nowhere(self) -> None:
        """Raise ``ResultError`` for an object of the result that is stored, too: it would be two objects."""
        for value in self.made if self.written is not None else ():
            if id(value) in self.written.made:  # type: ignore[union-attr]
                raise refusals.RESULT_IS_STORED(type(value).__name__, where="result")


def flatten_result(
    result: Any, containers: Iterable[Container], opening: Opening | None
) -> tuple[list[Any], Tree, list[str]]:
    """The leaves, structure and paths of what a function returns; ``containers``: those that it was given."""
    is_leaf = None if opening is None else opening.is_leaf
    leaves, tree, paths = flatten(result, "", is_leaf, names_of(containers), opening)
    if opening is not None:
        leaves = [*map(opening.leaf, leaves)]
    # what the class of a tensor is in the trace
    return [Tensor if leaf is FunctionalTensor else leaf for leaf in leaves], tree, paths


def require_visible(
    leaves: Sequence[Any], paths: Sequence[str], tree: Tree, is_written: Callable[[Any], bool] | None
) -> None:
    """Raise ``ResultError`` for a tensor of the trace that hides in a leaf of the result, or in what its pytree
    takes for constant. ``is_written``: whether an object was there before the call, if what is stored in such ones is
    stored on each call."""
    for kind, context in contexts(tree):
        hidden = hidden_tensor((context,))
        if hidden is not None:
            raise refusals.CONSTANT_OF_PYTREE(kind.__name__, hidden.removeprefix("[0]"), where="result")
    for leaf, path in zip(leaves, paths, strict=True):
        hidden = None if is_written is not None and is_written(leaf) else hidden_tensor(leaf)
        if hidden is not None:
            raise refusals.RESULT_HIDES_TENSOR(
                type(leaf).__name__, path, hidden, _instead_of(leaf), where=f"result{path}"
            )


def require_the_same(leaves: Sequence[Any], paths: Sequence[str], first: Sequence[Any]) -> None:
    """Raise an error for a leaf that two runs (``first``: the leaves of the other one) made anew and that may
    change, or is another."""
    for leaf, path, before in zip(leaves, paths, first, strict=True):
        if leaf is before or isinstance(leaf, (Tensor, NewObject, *_SYMBOLIC)):
            continue
        if isinstance(leaf, PLAIN) and repr(leaf) != repr(before):
            raise refusals.VALUE_IN_TWO_RUNS(path, before, leaf, where=f"result{path}")
        if not _is_immutable(leaf):
            raise refusals.RETURNS_NEW_OBJECT(type(leaf).__name__, _instead_of(leaf), where=f"result{path}")


def hidden_tensor(value: Any) -> str | None:
    """The path from an object that is no tensor to a tensor of the trace in it; None where none is found."""
    if isinstance(value, (Tensor, *_SYMBOLIC, *_IMMUTABLE)):
        return None
    pending: deque[_Child] = deque([("", value)])
    seen = {id(value)}
    alive: list[Any] = []  # what a generator or a property made on the way keeps its identity until the end
    while pending and len(seen) < _AT_MOST:
        path, item = pending.popleft()
        for step, child in _inside(item):
            if id(child) in seen or isinstance(child, _OPAQUE):
                continue
            if is_traced(child) or isinstance(child, _SYMBOLIC):
                return path + step
            if not isinstance(child, (Tensor, *_IMMUTABLE)):
                seen.add(id(child))
                alive.append(child)
                pending.append((path + step, child))
    return None


def _inside(value: Any) -> Iterator[_Child]:
    """What an object holds, by name where it has one; what the garbage collector knows besides (the frame of a
    generator, say)."""
    named: list[_Child] = []
    if isinstance(value, dict):
        named += ((f"[{k!r}]" if isinstance(k, _IMMUTABLE) else "[…]", v) for k, v in value.items())
        named += ((".keys()", k) for k in value)
    elif isinstance(value, (list, tuple, deque)):
        named += ((f"[{i}]", v) for i, v in enumerate(value))
    elif isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            named += ((f" closing over {name}", held) for held in gc.get_referents(cell))
        named += ((f".__defaults__[{i}]", v) for i, v in enumerate(value.__defaults__ or ()))
        named += ((f".__kwdefaults__[{k!r}]", v) for k, v in (value.__kwdefaults__ or {}).items())
        yield from named
        return  # not into its globals
    elif isinstance(value, functools.partial):
        named += [(".func", value.func), (".args", value.args), (".keywords", value.keywords)]
    elif isinstance(value, types.GeneratorType) and value.gi_frame is not None:
        named += ((f" running with {name}", v) for name, v in value.gi_frame.f_locals.items())
    attributes = getattr(value, "__dict__", None)
    if type(attributes) is dict:
        named += ((f".{name}", v) for name, v in attributes.items())
    slots = [n for kind in type(value).__mro__ for n in _names(getattr(kind, "__slots__", ()))]
    named += (
        (f".{name}", getattr(value, name)) for name in slots if not name.startswith("__") and hasattr(value, name)
    )
    known = {id(child) for _, child in named} | {id(attributes)}
    yield from named
    yield from (
        ("{…}" if isinstance(value, (set, frozenset)) else " …", v)
        for v in gc.get_referents(value)
        if id(v) not in known
    )


def contexts(tree: Tree) -> Iterator[tuple[type, Any]]:
    """What containers need besides their children to be put together, each with its type."""
    if not isinstance(tree, Leaf):
        yield tree.kind, tree.context
        for child in tree.children:
            yield from contexts(child)


def _names(slots: Any) -> Sequence[str]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _is_immutable(value: Any) -> bool:
    """Whether a value cannot be changed; a function is taken for one, since it is what it computes that counts."""
    if isinstance(value, frozenset):
        return all(map(_is_immutable, value))
    return isinstance(value, (*_IMMUTABLE, *_FUNCTIONS))


def _instead_of(value: Any) -> str:
    kind = type(value)
    if isinstance(value, (set, frozenset, deque)):
        return f"return a list or a tuple: list({kind.__name__}), or make the {kind.__name__} of it outside"
    if isinstance(value, (types.GeneratorType, Iterator)):
        return "return what it gives as a list: list(generator)"
    if isinstance(value, _FUNCTIONS):
        return "return the tensors, and make the function outside"
    if isinstance(value, torch.nn.Module):
        return "make the module outside, or return its parameters: dict(module.named_parameters())"
    if module_of(kind) == "builtins":
        return f"return its parts in a tuple, a list or a dict, and make the {kind.__name__} outside"
    name = kind.__qualname__
    return (
        f"register the class: torch.utils._pytree.register_pytree_node({name}, flatten, unflatten), where "
        "flatten(value) returns "
        f"(children, context) and unflatten(children, context) a {name}; or return the tensors themselves"
    )
