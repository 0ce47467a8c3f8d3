"""Which code begins to run, as Python tells: by ``sys.monitoring`` from Python 3.12 on, by ``sys.settrace`` before."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import multiprocessing.pool
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any

Hear = Callable[[types.FrameType], bool]
"""Told of a frame that begins; says whether it need not hear of such code again."""
_STARTS = {threading.Thread.start.__code__, concurrent.futures.ThreadPoolExecutor.submit.__code__}
"""What lets code run in other threads, of which nobody hears."""
_WAKES = {
    threading.Condition.notify.__code__,  # of queues, events, and semaphores, too
    multiprocessing.pool.Pool._check_running.__code__,  # type: ignore[attr-defined]
    asyncio.BaseEventLoop.call_soon_threadsafe.__code__,
}
"""What lets it run in threads that are there."""
_SETS_TRACE = {"settrace", "setprofile", "start_new_thread"}
"""By which names code, of a debugger's too, has code run of which nobody hears."""


def ends_hearing(code: types.CodeType) -> bool:
    """Whether code that begins may let code run of which nobody hears."""
    if code in _STARTS or not _SETS_TRACE.isdisjoint(code.co_names):
        return True
    # a queue of C tells nobody that something is put into it
    return (code in _WAKES or "put" in code.co_names) and threading.active_count() > 1


def set_trace(trace: Any) -> None:
    """``sys.settrace`` for this thread, also while another thread's runs.

    Before Python 3.12 a flag of the whole process says that one runs, and whoever comes then is refused: a hook of
    ``sys.audit`` in Python (``files.py`` has one) is called meanwhile, and other threads may have their turn in it.
    Who is refused clears the flag, so that the next attempt has to meet another such turn to fail."""
    for _ in range(20):
        try:
            return sys.settrace(trace)
        except RuntimeError:
            pass
    sys.settrace(trace)  # a hook of the caller's may forbid it


@contextlib.contextmanager
def hearing_of_code(begins: Hear) -> Iterator[Callable[[], bool]]:
    """Inside, ``begins`` is told of the frames of this thread that begin, but of those that the garbage collector runs
    (finalizers, and callbacks of ``gc``): when it collects, and what, has nothing to do with what runs here. Whoever
    else hears of code, a debugger, or what measures coverage, goes on to. Yields what says whether it is told still."""
    thread, collects = threading.get_ident(), False

    def hear(frame: types.FrameType) -> bool:
        return not collects and begins(frame)

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
    try:
        with _telling(hear) as is_heard:
            yield is_heard
    finally:
        gc.callbacks.remove(before)
        gc.callbacks.remove(after)


@contextlib.contextmanager
def _traced(hear: Hear) -> Iterator[Callable[[], bool]]:
    """By ``sys.settrace``, which one alone can have: who had it is told, too."""
    other = sys.gettrace()
    known = dict[int, types.CodeType]()  # code has a hash that takes longer than it may here

    def trace(frame: types.FrameType, event: Any, value: Any) -> Any:
        code = frame.f_code
        if id(code) not in known and hear(frame):
            known[id(code)] = code
        if other is None:
            return None
        local = other(frame, event, value)
        if sys.gettrace() is not trace:  # what measures coverage takes its place again
            set_trace(trace)
        return local

    trace.is_alone = other is None  # type: ignore[attr-defined]
    set_trace(trace)
    try:
        yield lambda: sys.gettrace() is trace
    finally:
        if sys.gettrace() in (trace, None):  # a breakpoint may have set its own
            set_trace(other)


if sys.version_info >= (3, 12):
    _hearers: dict[int, list[Hear]] = {}
    """Who is told by ``sys.monitoring``, by threads."""
    _lock = threading.Lock()
    _NUMBERS = (3, 4)
    """Those of tools that Python leaves to anybody."""

    def _telling(hear: Hear) -> contextlib.AbstractContextManager[Callable[[], bool]]:
        numbers = {sys.monitoring.get_tool(n): n for n in _NUMBERS}
        tool = numbers.get("funcgrad", numbers.get(None))
        return _traced(hear) if tool is None else _monitored(hear, tool)  # others may have taken all numbers

    def _starts(code: types.CodeType, offset: int) -> Any:
        own = _hearers.get(threading.get_ident())
        if own is None:
            return None
        frame = sys._getframe(1)
        is_known = all([hear(frame) for hear in own])
        return sys.monitoring.DISABLE if is_known and len(_hearers) == 1 else None

    @contextlib.contextmanager
    def _monitored(hear: Hear, tool: int) -> Iterator[Callable[[], bool]]:
        """By ``sys.monitoring``: of code that need not be heard of again Python tells no more, which costs nothing."""
        thread, starts = threading.get_ident(), sys.monitoring.events.PY_START
        with _lock:
            if not _hearers:
                sys.monitoring.use_tool_id(tool, "funcgrad")
                sys.monitoring.register_callback(tool, starts, _starts)
                sys.monitoring.set_events(tool, starts)
            _hearers.setdefault(thread, []).append(hear)
            sys.monitoring.restart_events()
        try:
            yield lambda: True
        finally:
            with _lock:
                _hearers[thread].pop()
                if not _hearers[thread]:
                    del _hearers[thread]
                if not _hearers:
                    sys.monitoring.set_events(tool, 0)
                    sys.monitoring.free_tool_id(tool)

else:
    _telling = _traced
