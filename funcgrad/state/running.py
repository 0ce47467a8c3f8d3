"""What code runs, as far as Python tells."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

from .lines import HERE
from .names import RUN_BY_TRACING, package

_IMPORTS = "<frozen importlib"
_OF_NAMEDTUPLES = "namedtuple_"
"""What makes objects of them runs in a module of its own, of such a name, that nobody can import."""


def may_be_heard() -> bool:
    """Whether nobody else hears of what runs in this thread: a debugger does, or what measures coverage."""
    return sys.gettrace() is None


@contextlib.contextmanager
def hearing_of_code(begins: Callable[[types.FrameType], None]) -> Iterator[None]:
    """Inside, it is told of each frame of this thread that begins, but of those that the garbage collector runs
    (finalizers, and callbacks of ``gc``): when it collects, and what, has nothing to do with what runs here."""
    thread, collects = threading.get_ident(), False

    def hear(frame: types.FrameType, *_: Any) -> None:
        if not collects:
            begins(frame)

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
        yield
    finally:
        if sys.gettrace() is hear:  # a breakpoint may have set its own
            sys.settrace(None)
        gc.callbacks.remove(before)
        gc.callbacks.remove(after)


def is_of_caller(frame: types.FrameType) -> bool:
    """Whether code of the caller's begins, and not what tracing runs, or an import, which does so once in a process."""
    name = str(frame.f_globals.get("__name__", ""))
    if package(name) in RUN_BY_TRACING or (name.startswith(_OF_NAMEDTUPLES) and name not in sys.modules):
        return False
    caller = frame.f_back
    while caller is not None and not caller.f_code.co_filename.startswith((_IMPORTS, HERE)):
        caller = caller.f_back
    return caller is None or not caller.f_code.co_filename.startswith(_IMPORTS)
