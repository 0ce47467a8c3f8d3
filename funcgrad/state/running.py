"""What code runs, as far as Python tells: functions of installed packages are looked into when they begin to run, as a
large library has thousands that can be reached, and never do."""

from __future__ import annotations

import contextlib
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

from .code_events import ENDS_HEARING, hearing_of_code
from .environment import Environment
from .hooks import current_listener, unheard
from .identities import Identities, keyed_by_tensors
from .names import RUN_BY_TRACING, is_installed_function, package, parts_of_member
from .renamed import original

_OF_NAMEDTUPLES = "namedtuple_"
"""What makes objects of them runs in a module of its own, of such a name, that nobody can import."""


def is_of_tracing(frame: types.FrameType) -> bool:
    """Whether it is code that tracing runs, and not the caller's."""
    if frame.f_code.co_filename.startswith("<funcgrad"):  # it was printed
        return True
    name = str(frame.f_globals.get("__name__", ""))
    return package(name) in RUN_BY_TRACING or (name.startswith(_OF_NAMEDTUPLES) and name not in sys.modules)


def function_of(frame: types.FrameType) -> types.FunctionType | None:
    """The function whose code begins, as far as its name tells: of a module, or of a class of one. One that is made
    inside another is None: what it reads, the other one's code mentions."""
    code, space = original(frame.f_code), frame.f_globals
    owner, _, name = code.co_qualname.rpartition(".")
    if "<" in code.co_qualname:
        return None
    held: Any = space
    for part in owner.split(".") if owner else ():
        held = vars(held.get(part)) if isinstance(held.get(part), type) else {}
    for function in parts_of_member(held.get(name)):
        if original(function.__code__) is code:
            return function
    if code.co_freevars:
        return None
    return types.FunctionType(code, space)  # a decorator has it


class Running(Environment):
    """Hears what code runs."""

    def __init__(self, root: Callable[..., Any], hears_identities: bool) -> None:
        super().__init__(root)
        self._waiting: dict[types.CodeType, list[tuple[types.FunctionType, str]]] = {}
        """By their code, functions of installed packages that can be reached and have not run yet, with their names."""
        self._waits, self._ran = True, set()
        self._failed: Exception | None = None
        """What was raised where one of them began."""
        self.identities = Identities(hears_identities, lambda: keyed_by_tensors(self.met.values(), True) is not None)

    @contextlib.contextmanager
    def hearing(self) -> Iterator[None]:
        """Inside, code that begins to run is noted, and what waited for it is looked into."""
        sets = [ran for ran in (self._ran, self.ran_in_backward if self._is_in_backward else None) if ran is not None]

        def note(frame: types.FrameType) -> bool:
            if is_of_tracing(frame):
                if frame.f_code in ENDS_HEARING:
                    self.hears_no_more()
                return True
            if current_listener() is None:
                return False
            for ran in sets:
                ran.add(original(frame.f_code))
            self._begins(frame)
            return True

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
        while self._waiting:
            for function, name in self._waiting.pop(next(iter(self._waiting))):
                super()._reach(function, name)

    def _begins(self, frame: types.FrameType) -> None:
        """Code of the caller's, or of an installed package, runs for the first time: what waited for it is looked into,
        and so is what no name has led to."""
        code = original(frame.f_code)
        try:
            with unheard():
                for function, name in self._waiting.pop(code, ()):
                    super()._reach(function, name)
                if code not in self._codes and (unreached := function_of(frame)) is not None:
                    self.see(unreached, unreached.__name__)
        except Exception as error:
            self._failed = error
            raise

    def _reach(self, function: types.FunctionType, name: str) -> None:
        """A function can be reached: it is looked into, or waits for that until it runs."""
        self.identities.listen(function)
        code, module = original(function.__code__), function.__globals__.get("__name__")
        may_wait = self._waits and is_installed_function(function) and package(module) not in RUN_BY_TRACING
        if may_wait and not (self._ran and code in self._ran):
            self._waiting.setdefault(code, []).append((function, name))
        else:
            super()._reach(function, name)
