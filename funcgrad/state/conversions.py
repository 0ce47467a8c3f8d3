"""``len``, ``float`` and ``int`` of symbols.

Python makes a number of what ``__len__``, ``__float__`` and ``__int__`` return, so that no symbol comes out of its own
functions. The recorded run has others among the globals of the code that calls them: ``length`` where the dry run has
heard it asked of a tensor, ``Converted`` where all code that was reached does nothing with the class but to call it,
or to look at it. What the process has under these names is not touched.
"""

from __future__ import annotations

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
from torch import SymFloat, SymInt, Tensor

from ..torch_private.fakes import fake_below
from ..torch_private.symbols import is_size
from .code import GLOBAL, without_padding
from .names import LIBRARIES, package

Globals = dict[str, Any]
_lock = threading.Lock()
_there: Counter[tuple[int, str]] = Counter()
"""By the identity of globals, and the name, how often runs have put something there."""


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
            number = given[0].item() if _is_traced(given[0]) else given[0]
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
    """Whether a value is a tensor of which Python reads a number, and a trace sees that."""
    return isinstance(value, Tensor) and fake_below(value) is not None


class _Float(metaclass=Converted):
    of = float
    symbol = staticmethod(lambda number: number / 1)  # rounds an int as float() does


class _Int(metaclass=Converted):
    of = int
    symbol = staticmethod(lambda number: number if isinstance(number, SymInt) else number.__trunc__())


_CONVERTED: dict[str, Any] = {"float": _Float, "int": _Int}
_TAKE_CLASSES = {"isinstance", "issubclass", "map"}
_STAND_INS = {"len": length, **_CONVERTED}


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


def converting(functions: Iterable[types.FunctionType]) -> Iterator[tuple[Globals, str]]:
    """Among which globals these functions call ``float`` and ``int``, and no code of theirs does more with them."""
    spaces: dict[int, Globals] = {}
    used: dict[tuple[int, str], bool] = {}
    for function in functions:
        space = function.__globals__
        if package(space.get("__name__")) in LIBRARIES:
            continue
        for name, is_called in _conversions(function.__code__):
            spaces[id(space)] = space
            used[id(space), name] = is_called and used.get((id(space), name), True)
    for (space_id, name), is_called in used.items():
        if is_called and spaces[space_id].get(name, _CONVERTED[name]) is _CONVERTED[name]:
            yield spaces[space_id], name


@functools.lru_cache(maxsize=8192)
def _conversions(code: types.CodeType) -> tuple[tuple[str, bool], ...]:
    """What code loads of these, nested code included, and whether it is called, or looked at, at once."""
    steps = without_padding(code)
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


@contextlib.contextmanager
def standing_in(places: Iterable[tuple[Globals, str]]) -> Iterator[None]:
    """Inside, what converts symbols stands under these names among these globals."""
    places = list(places)
    with _lock:
        for space, name in places:
            _there[id(space), name] += 1
            space.setdefault(name, _STAND_INS[name])
    try:
        yield
    finally:
        with _lock:
            for space, name in places:
                _there[id(space), name] -= 1
                if not _there[id(space), name]:
                    del _there[id(space), name]
                    if space.get(name) is _STAND_INS[name]:
                        del space[name]


def is_stand_in(name: str, value: Any) -> bool:
    """Whether a trace has put a value among globals."""
    return name in _STAND_INS and value is _STAND_INS[name]


def own_names(space: Globals) -> Globals:
    """A copy of globals, without what a trace has put there."""
    return {name: value for name, value in space.items() if not is_stand_in(name, value)}
