"""Functions of torch, and of ``math``, that are others in a trace: what a trace cannot see otherwise, or could not
carry out.

All threads read the same attributes of torch's modules and classes, so what stands there while any trace runs asks
first whether it is its own thread that traces: in every other thread it is the original. The first trace to begin puts
it there, the last one to end takes it away. But what code that ``torch.compile`` makes in any thread may have looked at
stays once it is there, and is the original to the compiler: were it another from one call to the next, that code would
be compiled again. What had no original stays, too: another thread may have listed it and be about to read it. And two
modules give functions of their own to a thread that traces, and to others those they have.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import operator
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.overrides
import torch.utils.checkpoint
from torch.utils.hooks import RemovableHandle

from ..generators import initial_seed
from ..inside import having
from ..torch_private.autograd import APPLIES, FORWARD_JACOBIAN, SET_MATERIALIZES, SETS_SAVED_HOOKS
from ..torch_private.functional import AS_THEY_ARE, FunctionalTensor, attributes_held
from ..torch_private.patches import (
    BACKWARD_ENGINE,
    CAUSAL_MASK,
    CHECKPOINT_GENERATOR,
    COMPILED_BY_TORCH,
    ENTER_LEVELS,
    HOOKS_OF_TRACKER,
    LINEAR_FOLDING,
    LINEARIZE_TRACER,
    SWAP,
    TENSOR_TEXT,
    graphs_made_alone,
    set_attribute,
)
from .fast_paths import FORWARDS
from .math_functions import MATH
from .optimiser_steps import PLACES

Replacement = Callable[..., Any]
"""Called with the original, then with the arguments."""


class _Place(NamedTuple):
    """An attribute of torch, and the name of what replaces it. ``stays``: for good, once some thread has traced."""

    owner: Any
    name: str
    key: str
    stays: bool = False


_PLACES = (
    _Place(torch, "cond", "cond", stays=True),
    *(_Place(*place, key, stays=True) for key, place in COMPILED_BY_TORCH.items()),
    _Place(torch.Tensor, "set_", "set_"),
    *(_Place(*place, key) for key, place in APPLIES.items()),
    _Place(*SET_MATERIALIZES, "set_materialize_grads"),
    _Place(*SETS_SAVED_HOOKS, "saved hooks"),
    _Place(RemovableHandle, "remove", "removed hook"),
    _Place(torch.utils.checkpoint, CHECKPOINT_GENERATOR, "checkpoint"),
    _Place(*BACKWARD_ENGINE, "engine"),
    _Place(*FORWARD_JACOBIAN, "forward jacobian"),
    _Place(*CAUSAL_MASK, "causal mask", stays=True),
    *(_Place(module, name, name) for module in (torch, torch.random) for name in ("manual_seed", "seed")),
    _Place(torch.Generator, "manual_seed", "generator seed"),
    *(_Place(torch.Generator, name, "generator set") for name in ("seed", "set_offset", "graphsafe_set_state")),
    _Place(torch.inference_mode, "__enter__", "inference mode"),
    _Place(*HOOKS_OF_TRACKER, "hook of tracker"),
    _Place(*SWAP, "swap"),
    _Place(*LINEARIZE_TRACER, "linearize", stays=True),
    _Place(*LINEAR_FOLDING, "folding", stays=True),
    _Place(*TENSOR_TEXT, "text", stays=True),
    _Place(FunctionalTensor, "__repr__", "own text"),
    _Place(torch.Tensor, "__hash__", "hash"),
    *(_Place(*place, "level", stays=True) for place in ENTER_LEVELS),
    *(_Place(kind, "forward", name, stays=True) for kind, name in FORWARDS.items()),
    *(_Place(*place, stays=True) for place in PLACES),
    _Place(torch.Generator, "initial_seed", "initial seed"),
    _Place(torch.Generator, "clone_state", "generator copy"),
    _Place(torch.Generator, "get_state", "get state"),
    _Place(torch.Generator, "set_state", "set state"),
)
_SEEDS = ("generator seed", "generator set", "set state")


class _Thread(threading.local):
    replacements: Mapping[str, Replacement] | None = None


_own = _Thread()
_lock = threading.Lock()
_running = 0
_seeded = 0
# a table that torch keeps for good: it is made of the originals, whoever asks first
torch.overrides.get_overridable_functions()
_there: list[tuple[_Place, Any, Any]] = []
"""What was replaced (None where it was inherited), and by what."""
_stays: dict[_Place, Any] = {}
"""What stands for good in such places."""
_attribute_there: Any = None
"""What is asked for attributes that a tensor does not have, of which torch has no function."""


def seeds_noted() -> tuple[int, int]:
    """The seed of the default generator, and how often a generator was seeded by any thread while some trace ran."""
    return initial_seed(torch.default_generator), _seeded


@contextlib.contextmanager
def replacing(replacements: Mapping[str, Replacement]) -> Iterator[None]:
    """Inside, in this thread, functions of torch are what is named here (see ``_PLACES``; the others stay as they
    are)."""
    _begin()
    try:
        with having(_own, replacements=replacements):
            yield
    finally:
        _end()


def _begin() -> None:
    global _running, _attribute_there
    with _lock:
        _running += 1
        if _running == 1:
            if _attribute_there is None or vars(torch.Tensor).get("__getattr__") is not _attribute_there:
                _attribute_there = _dispatching("attribute", getattr(torch.Tensor, "__getattr__", _no_attribute))
                set_attribute(torch.Tensor, "__getattr__", _attribute_there)
            for name, is_it in AS_THEY_ARE.items():  # for good: elsewhere they are what they are
                if name not in vars(FunctionalTensor):
                    set_attribute(FunctionalTensor, name, _looking(name, is_it))
            for module in _MODULES:
                module.__class__ = _OfThreads
            made: dict[int, Any] = {}
            for place in _PLACES:
                before = vars(place.owner).get(place.name)
                stays = _stays.get(place)
                is_it = functools.partial(operator.is_, stays)
                if stays is not None and before is not None and inspect.unwrap(before, stop=is_it) is stays:
                    continue
                original = inspect.getattr_static(place.owner, place.name) if before is None else before
                # what was one function is one (torch._dynamo asks)
                now = made.setdefault(id(original), _dispatching(place.key, original))
                set_attribute(place.owner, place.name, now)
                if place.stays:
                    _stays[place] = now
                else:
                    _there.append((place, before, now))


def _end() -> None:
    global _running
    with _lock:
        _running -= 1
        if not _running:
            for module in _MODULES:
                module.__class__ = types.ModuleType
            for place, before, now in _there:
                if vars(place.owner).get(place.name) is not now:
                    continue  # somebody else has replaced it since
                if before is None:
                    delattr(place.owner, place.name)
                else:
                    set_attribute(place.owner, place.name, before)
            _there.clear()


def _no_attribute(tensor: torch.Tensor, name: str) -> Any:
    raise AttributeError(f"'{type(tensor).__name__}' object has no attribute '{name}'", name=name, obj=tensor)


def _dispatching(key: str, original: Any) -> Any:
    """The original, and in a thread that traces, what replaces it there."""
    if isinstance(original, (classmethod, types.ClassMethodDescriptorType)):  # of C in torch 2.15

        def of_class(cls: type, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():
                return original.__get__(None, cls)(*args, **kwargs)
            return _here(key, original.__get__(None, cls))(*args, **kwargs)

        return classmethod(of_class)

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        global _seeded
        if torch.compiler.is_dynamo_compiling():  # asked while torch.compile looks into it: no code that it makes asks
            return original(*args, **kwargs)
        if key in _SEEDS:
            _seeded += 1
        return _here(key, original)(*args, **kwargs)

    return call


def _here(key: str, original: Callable[..., Any]) -> Callable[..., Any]:
    own = (_ELSEWHERE if _own.replacements is None else _own.replacements).get(key)
    return original if own is None else functools.partial(own, original)


def _looking(name: str, as_it_is: Callable[[Any], Any]) -> property:
    """An attribute of what stands for tensors: what it is, and in a thread that traces what ``name`` says."""

    def look(tensor: torch.Tensor) -> Any:
        if _own.replacements is None:
            return as_it_is(tensor)
        return _own.replacements[name](as_it_is, tensor)

    def keep(tensor: torch.Tensor, value: Any) -> None:
        attributes_held(tensor)[name] = value

    return property(look, keep if name == "elem" else None)


class _OfThreads(types.ModuleType):
    """A module, while any thread traces: a thread that does is given other functions of it."""

    def __getattribute__(self, name: str) -> Any:
        # not super(): another thread may have given the class back by now
        held = types.ModuleType.__getattribute__(self, name)
        given = _given.get((self, name)) if _own.replacements is not None else None
        return held if given is None or given.__wrapped__ is not held else given  # somebody may have put another there


_MODULES = math, torch.overrides
_given = {(math, name): _dispatching("math", getattr(math, name)) for name in MATH} | {
    (torch.overrides, "has_torch_function"): _dispatching("overridden", torch.overrides.has_torch_function)
}


def _alone(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with graphs_made_alone():
        return original(*args, **kwargs)


_ELSEWHERE: Mapping[str, Replacement] = {"cond": _alone}
"""In threads that trace nothing: eager ``torch.cond`` notes for the whole process that it traces, as that of a trace
does."""


_original_set = torch.Tensor.set_


def set_(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """``Tensor.set_`` that tells torch-function modes of it, as every other method does."""
    if torch.overrides.has_torch_function((tensor,)):
        return torch.overrides.handle_torch_function(set_, (tensor,), tensor, *args, **kwargs)
    return _original_set(tensor, *args, **kwargs)
