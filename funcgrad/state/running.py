"""What code runs, as far as Python tells."""

from __future__ import annotations

import bdb
import concurrent.futures
import contextlib
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from . import imports
from .lines import HERE
from .names import RUN_BY_TRACING, package, parts_of_member
from .renamed import original

_IMPORTS = ("<frozen importlib", imports.__file__)
_OF_NAMEDTUPLES = "namedtuple_"
"""What makes objects of them runs in a module of its own, of such a name, that nobody can import."""


ENDS_HEARING = {
    threading.Thread.start.__code__,
    concurrent.futures.ThreadPoolExecutor.submit.__code__,
    bdb.Bdb.set_trace.__code__,
}
"""What lets code run of which nobody hears: in other threads, and after a breakpoint."""


@contextlib.contextmanager
def hearing_of_code(begins: Callable[[types.FrameType], None]) -> Iterator[Callable[[], bool]]:
    """Inside, it is told of each frame of this thread that begins, but of those that the garbage collector runs
    (finalizers, and callbacks of ``gc``): when it collects, and what, has nothing to do with what runs here. Who has
    heard of them before, a debugger, or what measures coverage, hears of them, too. Yields what says whether it is told
    still."""
    thread, collects, other = threading.get_ident(), False, sys.gettrace()

    def hear(frame: types.FrameType, event: Any, value: Any) -> Any:
        if not collects:
            begins(frame)
        if other is None:
            return None
        local = other(frame, event, value)
        if sys.gettrace() is not hear:  # what measures coverage takes its place again
            sys.settrace(hear)
        return local

    # the callbacks of others run between these two
    def before(phase: str, _: Any) -> None:
        nonlocal collects
        if phase == "start" and threading.get_ident() == thread:
            collects = True

    def after(phase: str, _: Any) -> None:
        nonlocal collects
        if phase == "stop" and threading.get_ident() == thread:
            collects = False

    gc.callbacks.insert(0, before)
    gc.callbacks.append(after)
    sys.settrace(hear)
    try:
        yield lambda: sys.gettrace() is hear
    finally:
        if sys.gettrace() in (hear, None):  # a breakpoint may have set its own
            sys.settrace(other)
        gc.callbacks.remove(before)
        gc.callbacks.remove(after)


def is_of_tracing(frame: types.FrameType) -> bool:
    """Whether it is code that tracing runs, and not the caller's."""
    if frame.f_code.co_filename.startswith("<funcgrad"):  # it was printed
        return True
    name = str(frame.f_globals.get("__name__", ""))
    return package(name) in RUN_BY_TRACING or (name.startswith(_OF_NAMEDTUPLES) and name not in sys.modules)


def is_in_import(frame: types.FrameType) -> bool:
    """Whether an import runs it, which does so once in a process."""
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith((*_IMPORTS, HERE)):
        caller = caller.f_back
    return caller is not None and caller.f_code.co_filename.startswith(_IMPORTS)


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
