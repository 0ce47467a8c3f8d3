"""What code runs, as far as Python tells: functions of installed packages are looked into when they begin to run, as a
large library has thousands that can be reached, and never do."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any, cast

from .code import with_nested
from .code_events import ends_hearing, hearing_of_code
from .environment import Environment
from .hooks import current_listener, module_of, unheard
from .identities import Identities, keyed_by_tensors
from .names import LIBRARIES, RUN_BY_TRACING, is_installed_function, is_library, package, parts_of_member
from .renamed import original

_OF_NAMEDTUPLES = "namedtuple_"
"""What makes objects of them runs in a module of its own, of such a name, that nobody can import."""
_MEMBERS = (types.FunctionType, classmethod, staticmethod, property, functools.cached_property)
"""What members of modules and classes have functions."""


def is_of_tracing(frame: types.FrameType) -> bool:
    """Whether it is code that tracing runs, and not the caller's."""
    if frame.f_code.co_filename.startswith("<funcgrad"):  # it was printed
        return True
    name = str(frame.f_globals.get("__name__", ""))
    return package(name) in RUN_BY_TRACING or (name.startswith(_OF_NAMEDTUPLES) and name not in sys.modules)


def functions_of(frame: types.FrameType) -> list[types.FunctionType]:
    """The functions whose code begins, as far as its name tells, and its first argument: those of a module, or of
    classes that stand in one."""
    code, held = original(frame.f_code), frame.f_globals
    owner, _, name = code.co_qualname.rpartition(".")
    for part in owner.split(".") if owner else ():
        held = vars(held.get(part)) if isinstance(held.get(part), type) else {}  # type: ignore[arg-type, assignment]
    members = [held.get(name), *(member for kind in receivers_of(frame) for member in vars(kind).values())]
    parts = (part for member in members if isinstance(member, _MEMBERS) for part in parts_of_member(member))
    return list({id(part): part for part in parts if original(part.__code__) is code}.values())


def receivers_of(frame: types.FrameType) -> list[type]:
    """The classes of which code that begins may be a method, as its first argument tells: those that stand in modules,
    and none of a library's."""
    code, first = frame.f_code, cast(Any, None)
    if code.co_argcount:
        first = frame.f_locals.get(code.co_varnames[0])
    elif code.co_flags & inspect.CO_VARARGS:
        first = next(iter(frame.f_locals.get(code.co_varnames[code.co_kwonlyargcount], ())), None)
    of_class = first.__mro__ if issubclass(type(first), type) else ()
    return [kind for kind in (*of_class, *type(first).__mro__) if not is_library(kind) and _stands_in_module(kind)]


def _stands_in_module(kind: type) -> bool:
    """Whether a class can be found by its name, as one that a function makes cannot."""
    held: Any = sys.modules.get(module_of(kind))
    for part in kind.__qualname__.split("."):
        held = vars(held).get(part) if isinstance(held, (type, types.ModuleType)) else None
    return held is kind


class Running(Environment):
    """Hears what code runs."""

    def __init__(self, root: Callable[..., Any], hears_identities: bool) -> None:
        super().__init__(root)
        self._waiting: dict[types.CodeType, list[tuple[types.FunctionType, str]]] = {}
        """By their code, functions of installed packages that can be reached and have not run yet, with their names."""
        self._waits, self._ran = True, set()
        self._told: set[tuple[int, int]] = set()
        """The code that was looked into, and that this makes, by identity, as code of other files may equal it, with
        that of its globals."""
        self._failed: Exception | None = None
        """What was raised where one of them began."""
        self.identities = Identities(hears_identities, lambda: keyed_by_tensors(self.met.values(), True) is not None)

    @contextlib.contextmanager
    def hearing(self) -> Iterator[None]:
        """Inside, code that begins to run is noted, and what waited for it is looked into."""
        sets = [ran for ran in (self._ran, self.ran_in_backward if self._is_in_backward else None) if ran is not None]

        def note(frame: types.FrameType) -> bool:
            if package(frame.f_globals.get("__name__")) != "funcgrad" and ends_hearing(frame.f_code):
                self.hears_no_more()
            if is_of_tracing(frame):
                return True
            if current_listener() is None:
                return False
            for ran in sets:
                ran.add(original(frame.f_code))
            is_alone = self._begins(frame)
            module = sys.modules.get(str(frame.f_globals.get("__name__")))
            return is_alone and getattr(module, "__dict__", None) is frame.f_globals  # exec may run it among others

        waiting = (function for functions in self._waiting.values() for function, _ in functions)
        with self.identities.heard([*self._functions, *waiting]), hearing_of_code(note) as is_heard:
            yield
            if not is_heard():
                self.hears_no_more()
        if self._failed is not None:  # the function has caught it
            raise self._failed

    def hears_no_more(self) -> None:
        """Code may run of which nobody hears: all that can be reached is looked into."""
        self._waits, self._ran, self.ran_in_backward = False, None, None
        with self._looking():
            while self._waiting:
                for function, name in self._waiting.pop(next(iter(self._waiting))):
                    super()._reach(function, name)

    def _begins(self, frame: types.FrameType) -> bool:
        """Code of the caller's, or of an installed package, runs for the first time: what waited for it is looked into,
        and so is what no name has led to. Returns whether no other function of this code may close over other things,
        as a method can that is made for several classes."""
        with self._looking():
            for function, name in self._waiting.pop(original(frame.f_code), ()):
                super()._reach(function, name)
            unreached = self._unreached(frame)
            for function in unreached:
                self.see(function, function.__name__)
        return not (unreached and frame.f_code.co_freevars)

    @contextlib.contextmanager
    def _looking(self) -> Iterator[None]:
        """Around what looks into functions: what it raises may be caught by those that run."""
        try:
            with unheard():
                yield
        except Exception as error:
            self._failed = error
            raise

    def _unreached(self, frame: types.FrameType) -> list[types.FunctionType]:
        """The functions whose code begins, where no name has led to one of this code, or they may close over what
        others do not."""
        code = original(frame.f_code)
        if not code.co_flags & inspect.CO_OPTIMIZED:  # of a module, or of a class
            return []
        is_told = (id(code), id(frame.f_globals)) in self._told
        found = functions_of(frame) if code.co_freevars or not is_told else []
        if not (found or is_told):  # a decorator has it
            cells = tuple(types.CellType() for _ in code.co_freevars)
            return [types.FunctionType(code, frame.f_globals, closure=cells)]
        return found

    def _function(self, function: types.FunctionType, name: str) -> None:
        made = with_nested(original(function.__code__))
        self._told.update((id(code), id(function.__globals__)) for code in made)
        super()._function(function, name)

    def _reach(self, function: types.FunctionType, name: str) -> None:
        """A function can be reached: it is looked into, or waits for that until it runs."""
        self.identities.listen(function)
        code, module = original(function.__code__), function.__globals__.get("__name__")
        may_wait = self._waits and is_installed_function(function) and package(module) not in LIBRARIES
        if may_wait and not (self._ran and code in self._ran):
            self._waiting.setdefault(code, []).append((function, name))
        else:
            super()._reach(function, name)
