"""What code runs, as far as Python tells."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any


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
