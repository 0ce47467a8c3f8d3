"""Temporary hooks on classes: while a function is watched, attribute reads of their instances are told to its watch.

A hook stands on the class, so that other threads run through it, too: for them it does nothing. Where several threads
watch at once, the last one to let go of a class takes its hook away.
"""

from __future__ import annotations

import contextlib
import enum
import functools
import logging
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from torch import Tensor

from ..inside import OfProcess, set_to
from .code_events import set_trace
from .places import MISSING


class Listener(Protocol):
    """Who is told of reads."""

    def got(self, owner: Any, name: str, value: Any) -> None: ...
    def lacked(self, owner: Any, name: str) -> None: ...
    def environment(self, variables: Any, key: Any) -> None: ...
    def whole_environment(self, variables: Any) -> None: ...
    def asked_identity(self, of: Any) -> None: ...
    def asked_level(self, logger: logging.Logger) -> None: ...
    def asked_for(self, manager: logging.Manager, name: Any) -> None: ...
    def sets_level(self, logger: logging.Logger) -> None: ...
    def sets_up(self, logger: logging.Filterer, name: str) -> None: ...
    def looked_into(self, path: str) -> None: ...
    def done_outside(self, what: str) -> None: ...
    def importing(self) -> contextlib.AbstractContextManager[None]: ...
    def imported(self, module: types.ModuleType, name: str) -> None: ...


_listener: ContextVar[Listener | None] = ContextVar("funcgrad_listener", default=None)
_lock = threading.Lock()
_hooked: dict[type, list[Any]] = {}
"""For each hooked class, how many hold on to its hook, and what it had in the hook's place."""

_WITH_STATE = (
    "torch.nn.", "torch.optim.", "torch.amp.", "torch.cuda.amp.", "torch.distributions.", "torch.quasirandom.",
    "torch.utils.data.", "torch.utils.weak.",
)  # fmt: skip
"""Where torch has classes whose objects keep state for those who use them: optimisers, schedulers, scalers of
gradients, datasets."""
HEAP_TYPE, _IMMUTABLE_TYPE = 1 << 9, 1 << 8


def listening(listener: Listener) -> contextlib.AbstractContextManager[None]:
    """Inside, this thread's reads of hooked objects are told to ``listener``."""
    return set_to(_listener, listener)


def unheard() -> contextlib.AbstractContextManager[None]:
    """Inside, what runs is a trace's own doing: nobody is told of reads of hooked objects, nor of code that begins."""
    return _Unheard()


class _Unheard(contextlib.AbstractContextManager[None]):
    """A debugger goes on to hear of code."""

    def __enter__(self) -> None:
        hear = sys.gettrace()
        self._hear = hear if getattr(hear, "is_alone", False) else None
        if self._hear is not None:
            set_trace(None)
        self._token = _listener.set(None)

    def __exit__(self, *_: Any) -> None:
        _listener.reset(self._token)
        if self._hear is not None:
            set_trace(self._hear)


def current_listener() -> Listener | None:
    """Whom this thread tells of what it reads."""
    return _listener.get()


def module_of(kind: type) -> str:
    """The module that a class says it is of; one that was made where there was none (``exec``) may not say, and one
    of C may say it of its objects alone."""
    module = getattr(kind, "__module__", "")
    return module if isinstance(module, str) else "builtins"


def says_what_it_has(kind: type) -> bool:
    """Whether a class of the caller's says what the attributes of its objects are (``__getattribute__``)."""
    return any(isinstance(unhooked(c), types.FunctionType) for c in kind.__mro__)


def can_be_hooked(kind: type) -> bool:
    """Whether a class takes a hook: not those of C, those torch itself works with, enums, nor what forbids
    attributes to be set on it."""
    plain_meta = type(kind).__setattr__ is type.__setattr__ and type(kind).__delattr__ is type.__delattr__
    is_python = bool(kind.__flags__ & HEAP_TYPE) and not kind.__flags__ & _IMMUTABLE_TYPE
    if not plain_meta or not is_python or issubclass(kind, (enum.Enum, Tensor, BaseException)):
        return False
    name = module_of(kind)
    return name.partition(".")[0] != "torch" or f"{name}.".startswith(_WITH_STATE) or issubclass(kind, torch.nn.Module)


def hook(kind: type) -> type | None:
    """Hook a class, or hold on to the hook it inherits; returns the class to ``unhook``, None where it takes none."""
    with _lock:
        defines = next(c for c in kind.__mro__ if "__getattribute__" in c.__dict__)
        if defines in _hooked:
            _hooked[defines][0] += 1
            return defines
        had = kind.__dict__.get("__getattribute__", MISSING)
        original: Callable[[Any, str], Any] = kind.__getattribute__  # type: ignore[assignment]

        def read(self: Any, name: str) -> Any:
            listener = _listener.get()
            if listener is None:
                return original(self, name)
            try:
                value = original(self, name)
            except AttributeError:
                listener.lacked(self, name)
                raise
            listener.got(self, name, value)
            return value

        try:
            kind.__getattribute__ = read  # type: ignore[method-assign, assignment]
        except TypeError:
            return None
        _hooked[kind] = [1, had]
        return kind


def unhooked(kind: type) -> Any:
    """How a class reads attributes, but for its hook."""
    own = kind.__dict__.get("__getattribute__", MISSING)
    return _hooked[kind][1] if kind in _hooked else own


APPLIED = ("forward", "backward", "setup_context", "vmap", "jvp")
"""What torch calls of an ``autograd.Function`` where it is applied."""


def special_names(kind: type) -> frozenset[str]:
    """The special methods, and other descriptors and functions of such names, that a class has itself, and what comes
    before the attributes of its objects (a property)."""
    members = list(kind.__dict__.items())
    own = [name for name, member in members if hasattr(type(member), "__set__")]
    own += [name for name, member in members if name.startswith("__") and _is_special(member)]
    own += [name for name in APPLIED if name in kind.__dict__ and issubclass(kind, torch.autograd.Function)]
    return frozenset(own) - (frozenset() if isinstance(unhooked(kind), types.FunctionType) else {"__getattribute__"})


def _is_special(member: Any) -> bool:
    """Not what is kept there: ``__slotnames__``, ``__annotations__``. None forbids what a base does."""
    return member is None or callable(member) or hasattr(type(member), "__get__")


def length_unhooked(kind: type) -> int:
    """How many members a class has itself."""
    return len(kind.__dict__) - (kind in _hooked and _hooked[kind][1] is MISSING)


def unhook(kind: type) -> None:
    """Let go of a class."""
    with _lock:
        entry = _hooked[kind]
        entry[0] -= 1
        if entry[0] == 0:
            del _hooked[kind]
            if entry[1] is MISSING:
                type.__delattr__(kind, "__getattribute__")
            else:
                type.__setattr__(kind, "__getattribute__", entry[1])


def _is_torch(frame: Any) -> bool:
    """Whether torch's own code asks, for what it was started with, or logs."""
    while frame.f_globals.get("__name__") in ("os", "collections.abc", "logging"):
        frame = frame.f_back
    return str(frame.f_globals.get("__name__")).partition(".")[0] in ("torch", "funcgrad")


def _sets_attribute(listener: Listener, logger: logging.Logger, name: str) -> None:
    if name in ("propagate", "disabled") and name in vars(logger):  # not while it is made
        listener.sets_up(logger, name)


_Environment: Any = type(os.environ)
_HEARD: tuple[tuple[Any, str, Callable[[Listener, Any, Any], None]], ...] = (
    (_Environment, "__getitem__", lambda listener, variables, key: listener.environment(variables, key)),
    # it may leave it as it was
    (_Environment, "__setitem__", lambda listener, variables, key: listener.environment(variables, key)),
    (_Environment, "__iter__", lambda listener, variables, _: listener.whole_environment(variables)),
    (_Environment, "__len__", lambda listener, variables, _: listener.whole_environment(variables)),
    (logging.Manager, "getLogger", lambda listener, manager, name: listener.asked_for(manager, name)),
    (logging.Logger, "setLevel", lambda listener, logger, _: listener.sets_level(logger)),
    (logging.Logger, "addHandler", lambda listener, logger, _: listener.sets_up(logger, "handlers")),
    (logging.Logger, "removeHandler", lambda listener, logger, _: listener.sets_up(logger, "handlers")),
    (logging.Filterer, "addFilter", lambda listener, logger, _: listener.sets_up(logger, "filters")),
    (logging.Filterer, "removeFilter", lambda listener, logger, _: listener.sets_up(logger, "filters")),
    (logging.Logger, "__setattr__", _sets_attribute),
    (logging.Logger, "isEnabledFor", lambda listener, logger, _: listener.asked_level(logger)),
    (logging.Logger, "getEffectiveLevel", lambda listener, logger, _: listener.asked_level(logger)),
)


@OfProcess
def hooked_process() -> Iterator[None]:
    """Inside, reads of environment variables, and of what loggers let pass, are told, too; and writes of these,
    before they happen."""
    originals = [(getattr(kind, name), name in vars(kind)) for kind, name, _ in _HEARD]

    def told(original: Callable[..., Any], tell: Callable[[Listener, Any, Any], None]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(owner: Any, *args: Any, **keywords: Any) -> Any:
            listener = _listener.get()
            if listener is not None and not _is_torch(sys._getframe(1)):
                tell(listener, owner, args[0] if args else None)
            return original(owner, *args, **keywords)

        return call

    for (kind, name, tell), (original, _) in zip(_HEARD, originals, strict=True):
        setattr(kind, name, told(original, tell))
    yield
    for (kind, name, _), (original, is_own) in zip(_HEARD, originals, strict=True):
        if is_own:
            setattr(kind, name, original)
        else:
            delattr(kind, name)
