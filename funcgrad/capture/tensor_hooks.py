"""Hooks that a function registers on tensors it computes (``y.register_hook``).

One that makes another gradient is traced like any code. One that writes to Python state (it keeps gradients,
counts them) does so in each backward pass, so that it is an opaque call there, of the gradient itself: as it may write
to that, or return another, the call returns the gradient that goes on.
"""

from __future__ import annotations

import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from attrs import define, field
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .. import refusals
from ..state.lines import user_line
from ..state.names import brought_along
from ..state.restart import Known, Restart
from ..state.values import PLAIN, same
from ..subclasses import is_traced
from ..torch_private.modes import without_function_modes

Hook = Callable[[Tensor], Tensor | None]

_FUNCTIONS = functools.partial, types.MethodType, types.BuiltinFunctionType, types.FunctionType


def as_outside(
    leaf: Tensor,
    hooks: Sequence[Hook],
    after: Sequence[Callable[[Tensor], None]],
    named: Tensor,
    operand: Callable[[Any], Any],
    ran: Callable[[Any], None] = lambda hook: None,
) -> list[RemovableHandle]:
    """Give what stands for a leaf the hooks that the leaf has: a ``.backward()`` of the function's runs them, and
    ``ran`` is told of each before. ``after``: those that run when a gradient was added to it, which the function calls
    ``named``."""

    def with_gradient(hook: Hook) -> Hook:
        def called(gradient: Tensor) -> Tensor | None:
            ran(hook)
            found: Tensor | None = operand(hook(gradient))
            return found

        return called

    def with_leaf(hook: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        def called(_: Tensor) -> None:
            ran(hook)
            return hook(named)  # PyTorch raises where that is not None

        return called

    with without_function_modes():
        own: Any = leaf
        handles = [own.register_hook(with_gradient(hook)) for hook in hooks]
        return [*handles, *(own.register_post_accumulate_grad_hook(with_leaf(hook)) for hook in after)]


@define(eq=False)
class TensorHooks:
    """Those of one run. ``are_opaque``: whether they run as they are, when a backward pass of the program does."""

    are_opaque: bool = False
    found: list[Hook] = field(factory=list)
    traced: list[Hook] = field(factory=list)
    """Those that are, so far."""
    closed_over: list[Any] = field(factory=list)
    """What they close over, in order; ``first``: what those of the dry run did."""
    first: Sequence[Any] = ()
    of_leaves: set[int] = field(factory=set)
    """The real leaves whose hooks run where the function goes backwards, by identity."""

    def begin(self, closed_over: Sequence[Any] | None) -> None:
        """What the hooks of the dry run close over, if they are opaque."""
        self.are_opaque, self.first = closed_over is not None, closed_over or ()

    @property
    def kept(self) -> tuple[object, ...] | None:
        """What those close over that are opaque; None where they are traced."""
        return tuple(self.closed_over) if self.are_opaque else None

    def is_registered_opaque(self, hook: Any) -> bool:
        """Note a hook; whether it is to be an opaque call. One that closes over what the function computes is
        traced."""
        self.found.append(hook)
        held = _held(hook)
        if not self.are_opaque or any(map(is_traced, _tensors_in(held))):
            self.traced.append(hook)
            return False
        self._require_held_before(held)
        functions = [f for f in (hook, *held) if isinstance(f, types.FunctionType)]
        if any("register_hook" in f.__code__.co_names for f in functions):  # nobody sees on what, once it runs
            raise refusals.HOOK_IN_BACKWARD(where=user_line())
        return True

    def _require_held_before(self, held: Sequence[Any]) -> None:
        """Raise ``MutationError`` for an object that the function makes for its hook: the program would have the one
        of the run that was recorded, in all its calls."""
        n = len(self.closed_over)
        self.closed_over += held
        for was, now in zip(self.first[n:], held, strict=False):
            if not isinstance(now, types.FunctionType) and not same(was, now):
                raise refusals.HOOK_OF_OWN_OBJECT(type(now).__name__, where=user_line())

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Around a backward pass; raises ``Restart`` where a hook writes to what it closes over."""
        before = self._contents()
        yield
        for (held, was), (_, now) in zip(before, self._contents(), strict=False):
            if was != now:
                self.require_opaque()
                raise refusals.HOOK_OF_OWN_OBJECT(type(held).__name__, where=type(held).__name__)

    def require_opaque(self) -> None:
        """Raise ``Restart`` if there are hooks, and they are traced."""
        if self.found and not self.are_opaque:
            raise Restart(Known(hooks_write=True))

    def require_seen(self) -> None:
        """A backward pass reads a value that is known when it runs, so that nobody has seen what hooks do with it.
        Raise ``Restart`` where one may write, and ``MutationError`` if that one can be no opaque call."""
        writing = next(filter(_may_write, self.traced), None)
        if writing is not None:
            self.require_opaque()
            what = f"a hook that reads values, {getattr(writing, '__qualname__', type(writing).__name__)}"
            raise refusals.WRITES_STATE_IN_BACKWARD(what, where=what)

    def _contents(self) -> list[tuple[Any, tuple[Any, ...]]]:
        return [(value, _contents(value)) for hook in self.found for value in _held(hook)]


def _may_write(hook: Hook) -> bool:
    """Whether a hook holds or names anything that it may write to: an object, a function, ``print``."""
    held = [hook, *_held(hook)]
    code = [f for f in held if isinstance(f, types.FunctionType)]
    named = {name: f.__globals__[name] for f in code for name in f.__code__.co_names if name in f.__globals__}
    unknown = [v for v in (*held[1:], *named.values()) if not isinstance(v, (*PLAIN, Tensor, types.ModuleType))]
    prints = any({"print", "setattr"} & set(f.__code__.co_names) for f in code)
    is_seen = isinstance(hook, types.FunctionType) and all(any(v is f for f in code) for v in unknown)
    return prints or not is_seen


def _contents(value: Any) -> tuple[Any, ...]:
    if isinstance(value, dict):
        return *value, *map(id, value.values())
    if isinstance(value, (list, set)):
        return tuple(map(id, value))
    return tuple(map(id, getattr(value, "__dict__", {}).values()))


def _held(hook: Any) -> list[Any]:
    """What a function closes over, and what functions there do; the object that a method is of, or that is the hook
    itself, with what it has."""
    is_object = not isinstance(hook, (*_FUNCTIONS, type)) and hasattr(hook, "__dict__")
    found, pending = [hook, *vars(hook).values()] if is_object else [], [hook]
    while pending:
        value = pending.pop()
        held: Sequence[Any] = ()
        if isinstance(value, functools.partial):
            held = (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, types.MethodType):
            held = (value.__self__, value.__func__)
        elif isinstance(value, types.BuiltinMethodType) and not isinstance(value.__self__, types.ModuleType):
            held = (value.__self__,)
        elif isinstance(value, types.FunctionType):
            held = brought_along(value)
        new = [v for v in held if not any(v is known for known in found)]
        found += new
        pending += new
    return found


def _tensors_in(held: Sequence[Any]) -> list[Tensor]:
    items = [held, *(v for v in held if isinstance(v, (list, tuple))), *(v.values() for v in held if type(v) is dict)]
    return [v for several in items for v in several if isinstance(v, Tensor)]
