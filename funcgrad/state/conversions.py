"""``len``, ``float``, ``int`` and ``type`` of symbols.

Python makes a number of what ``__len__``, ``__float__`` and ``__int__`` return, so that no symbol comes out of its own
functions, and what stands for a number, or for a tensor, has a type of its own. The recorded run calls others, and each
run another ``type``, wherever code calls it or gives it to who may. ``length`` stands
among the globals of the code of which the dry run has heard that it asks a tensor. ``Converted`` is what functions
load, by a name that nobody else has, where all code that was reached does nothing with the class but to call it, or to
look at it: to all other code, and to other threads, ``float`` and ``int`` are the classes they are. In the same way a
watch hears of whose ``id`` is asked.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import functools
import itertools
import sys
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from attrs import define
from torch import SymFloat, SymInt, Tensor

from ..torch_private.fakes import fake_below
from ..torch_private.functional import FunctionalTensor
from ..torch_private.modes import function_modes
from ..torch_private.optimisers import CONVERTING
from ..torch_private.symbols import is_size
from .code import asks_type, asks_type_otherwise, mentions, with_nested
from .hooks import current_listener
from .names import LIBRARIES, package
from .renamed import original, renamed
from .unread import Unread
from .uses import GLOBAL, without_padding

Globals = dict[str, Any]
_lock = threading.Lock()
_there: Counter[int] = Counter()
"""By the identity of globals, how often runs have put ``length`` there."""


def length(of: Any, /) -> Any:
    """``len``; of a tensor whose size is a symbol, that symbol. No other thread has such a tensor; its compiler
    reads ``len`` alone."""
    if torch.compiler.is_dynamo_compiling() or not isinstance(of, Tensor) or not of.dim():
        return len(of)
    size = of.shape[0]
    return size if is_size(size) else len(of)


class Converted(type):
    """A class that stands for one of Python's numbers: called with a symbol, or with a tensor of which one is read, it
    makes one."""

    of: type
    symbol: Callable[[Any], Any]

    def __call__(cls, *given: Any, **options: Any) -> Any:
        if len(given) == 1 and not options:
            number = given[0].item() if _is_traced(given[0]) else _answer(given[0], cls.of)
            if isinstance(number, (SymInt, SymFloat)):
                return cls.symbol(number)
            given = (number,)
        return cls.of(*given, **options)

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.of)

    def __subclasscheck__(cls, kind: type) -> bool:
        return issubclass(kind, cls.of)

    def __getattr__(cls, name: str) -> Any:
        return getattr(cls.of, name)


def _is_traced(value: Any) -> bool:
    """Whether a value is a tensor of which Python reads a number, and a trace sees that: of this very one, or of what
    the function closes over."""
    if not isinstance(value, Tensor):
        return False
    return fake_below(value) is not None or (bool(function_modes()) and value.numel() == 1)


def _answer(value: Any, kind: type) -> Any:
    """What an object of the caller's says to be as a number, which may be a symbol; of any other, the value."""
    method = getattr(type(value), f"__{kind.__name__}__", None)
    if isinstance(value, (SymInt, SymFloat)) or not isinstance(method, types.FunctionType):
        return value
    answer = method(value)
    return answer if isinstance(answer, (kind, SymInt, SymFloat)) else value  # then Python says what is wrong with it


class _Float(metaclass=Converted):
    of = float
    symbol = staticmethod(lambda number: number / 1)  # rounds an int as float() does


class _Int(metaclass=Converted):
    of = int
    symbol = staticmethod(lambda number: number if isinstance(number, SymInt) else number.__trunc__())


class TypeOf(Converted):
    """What stands for ``type``: that of a symbol, a tensor of a trace, or an unread text is the one it says. A table
    finds ``type`` by it."""

    def __call__(cls, *given: Any, **options: Any) -> Any:
        stands_in = len(given) == 1 and isinstance(given[0], (SymInt, SymFloat, FunctionalTensor, Unread))
        return given[0].__class__ if stands_in else type(*given, **options)

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is type

    def __hash__(cls) -> int:
        return hash(type)


class _Type(metaclass=TypeOf):
    of = type


def identity(of: Any, /) -> int:
    """``id``."""
    if (listener := current_listener()) is not None:
        listener.asked_identity(of)
    return id(of)


_CONVERTED: dict[str, Any] = {"float": _Float, "int": _Int}
_TAKE_CLASSES = {"isinstance", "issubclass", "map"}
_STAND_INS = {**_CONVERTED, "id": identity, "type": _Type}
_NAMES = {name: f"{name} of funcgrad" for name in _STAND_INS}
"""Under which the code of a recorded run finds them among Python's builtins; they stay there, as functions that a run
has made may be called after it."""


def asking_globals() -> Globals | None:
    """The globals of the code that asks for a ``len`` which is Python's, where ``Tensor.__len__`` runs for it; None
    for any other."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not Tensor.__len__.__code__:
        frame = frame.f_back
    caller = None if frame is None else frame.f_back
    if caller is None or "len" not in caller.f_code.co_names or caller.f_globals.get("len", length) is not length:
        return None
    return caller.f_globals  # type: ignore[no-any-return]


def converting(functions: Iterable[types.FunctionType]) -> Iterator[tuple[types.FunctionType, frozenset[str]]]:
    """Which of these functions, and of optimisers, call ``float`` and ``int``, where no code among the same globals
    does more with them."""
    used: dict[tuple[int, str], bool] = {}
    calling: list[tuple[types.FunctionType, frozenset[str]]] = []
    own = [function for function in functions if package(function.__globals__.get("__name__")) not in LIBRARIES]
    for function in (*own, *CONVERTING):
        space, found = function.__globals__, _conversions(original(function.__code__))
        for name, is_called in found:
            is_pythons = name not in space and function.__builtins__ is vars(builtins)  # type: ignore[attr-defined]
            used[id(space), name] = is_called and is_pythons and used.get((id(space), name), True)
        if found:
            calling.append((function, frozenset(name for name, _ in found)))
    for function, names in calling:
        if of_these := frozenset(name for name in names if used[id(function.__globals__), name]):
            yield function, of_these


def asks_identities(function: types.FunctionType) -> bool:
    """Whether a function loads Python's ``id``."""
    return _loads("id", function)


def asks_types(function: types.FunctionType) -> bool:
    """Whether a function asks Python's ``type``, and is answered with those of what symbols and tensors stand for."""
    return _loads("type", function)


def asks_types_otherwise(code: types.CodeType) -> bool:
    """Whether code does something else with ``type``, which is the one of what stands for a number there."""
    return any(
        (step.opname in GLOBAL and step.argval == "type" and asks_type_otherwise(steps, at))
        for steps in [without_padding(code)]
        for at, step in enumerate(steps)
    ) or any(asks_types_otherwise(c) for c in code.co_consts if isinstance(c, types.CodeType))


def _loads(name: str, function: types.FunctionType) -> bool:
    """Whether a function loads one of Python's functions."""
    code = original(function.__code__)
    if not any(name in own.co_names for own in with_nested(code)):  # most do not: it need not be taken apart
        return False
    is_named = name in mentions(code).globals
    return is_named and name not in function.__globals__ and function.__builtins__ is vars(builtins)  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=1 << 16)
def _conversions(code: types.CodeType) -> tuple[tuple[str, bool], ...]:
    """What code loads of these, nested code included, and whether it is called, or looked at, at once."""
    steps = without_padding(code) if not _CONVERTED.keys().isdisjoint(code.co_names) else ()
    own = [
        (step.argval, _is_called(steps, at))
        for at, step in enumerate(steps)
        if step.argval in _CONVERTED and step.opname in GLOBAL
    ]
    nested = [found for c in code.co_consts if isinstance(c, types.CodeType) for found in _conversions(c)]
    return (*own, *nested)


def _is_called(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether what is loaded at ``at`` is called at once, or given to ``isinstance``, or to ``map``."""
    if "NULL" in steps[at].argrepr:
        return True
    before = itertools.takewhile(lambda step: step.opname.startswith("LOAD_"), reversed(steps[:at]))
    return any(step.opname in GLOBAL and step.argval in _TAKE_CLASSES for step in before)


def _is_meant(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether what is loaded at ``at`` is to be another: to compare ``type`` with something, it is Python's."""
    return steps[at].argval != "type" or asks_type(steps, at)


@define(eq=False)
class _Renamed:
    """A function that loads other names, for so many runs."""

    code: types.CodeType
    names: frozenset[str] = frozenset()
    runs: int = 0


_renamed: dict[int, _Renamed] = {}
"""By the identity of the function."""


@contextlib.contextmanager
def converting_symbols(functions: Sequence[tuple[types.FunctionType, frozenset[str]]]) -> Iterator[None]:
    """Inside, these functions load what converts symbols under these names."""
    with _lock:
        for function, names in functions:
            for name in names:
                vars(builtins).setdefault(_NAMES[name], _STAND_INS[name])
            code = original(function.__code__)
            now = _renamed.setdefault(id(function), _Renamed(code))
            now.runs += 1
            now.code, now.names = code, now.names | names
            function.__code__ = renamed(code, {name: _NAMES[name] for name in now.names}, _is_meant)
    try:
        yield
    finally:
        with _lock:
            for function, _ in functions:
                now = _renamed[id(function)]
                now.runs -= 1
                if not now.runs:
                    del _renamed[id(function)]
                    if original(function.__code__) is now.code:  # else somebody has given it another
                        function.__code__ = now.code


@contextlib.contextmanager
def measuring_symbols(spaces: Sequence[Globals]) -> Iterator[None]:
    """Inside, ``length`` stands for ``len`` among these globals."""
    with _lock:
        for space in spaces:
            _there[id(space)] += 1
            space.setdefault("len", length)
    try:
        yield
    finally:
        with _lock:
            for space in spaces:
                _there[id(space)] -= 1
                if not _there[id(space)]:
                    del _there[id(space)]
                    if space.get("len") is length:
                        del space["len"]


def is_stand_in(name: str, value: Any) -> bool:
    """Whether a trace has put a value among globals."""
    return name == "len" and value is length


def own_names(space: Globals) -> Globals:
    """A copy of globals, without what a trace has put there."""
    return {name: value for name, value in space.items() if not is_stand_in(name, value)}
