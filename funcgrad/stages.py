"""The stages of a compilation as they happen: how long each took, and a sign of life after one second.

One mechanism, three readers: ``Program.seconds``, the log (``FUNCGRAD_LOG=1``), and the progress line on stderr, which
``watch_compile`` replaces by a callback.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from attrs import frozen
from rich.console import Console

from .garbage import full_collections_are_rare
from .inside import set_to
from .options import ENVIRONMENT, log
from .show.units import in_seconds

_PATIENCE = 1.0
"""Seconds of silence before a first call shows what it does."""


@frozen
class StageEvent:
    """A stage of a compilation began (``seconds`` is None) or ended (``seconds`` it took)."""

    function: str
    stage: str
    seconds: float | None


_watcher: ContextVar[Callable[[StageEvent], None] | None] = ContextVar("funcgrad_watcher", default=None)


@contextlib.contextmanager
def watch_compile(callback: Callable[[StageEvent], None]) -> Iterator[None]:
    """Inside, ``callback`` is told of every stage of every compilation, and funcgrad prints no progress of its own."""
    with set_to(_watcher, callback):
        yield


class Stages:
    """The clock of one compilation; use as ``with stages("capture"): ...``."""

    def __init__(self, function: str) -> None:
        self.function = function
        self.seconds: dict[str, float] = {}
        self._current = ""
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        watcher = _watcher.get()
        self._current = stage
        if watcher:
            watcher(StageEvent(self.function, stage, None))
        start = time.perf_counter()
        try:
            yield
        finally:
            took = time.perf_counter() - start
            self.seconds[stage] = self.seconds.get(stage, 0.0) + took
            if watcher:
                watcher(StageEvent(self.function, stage, took))

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """The compilation runs inside: a line on stderr says so if it takes longer than a second."""
        with full_collections_are_rare(), contextlib.nullcontext() if _watcher.get() is not None else self._progress():
            yield

    @contextlib.contextmanager
    def _progress(self) -> Iterator[None]:
        done = threading.Event()
        line = threading.Thread(target=self._show, args=(done,), daemon=True)
        line.start()
        try:
            yield
        finally:
            done.set()
            line.join()
            if ENVIRONMENT.log >= 1:
                log(1, f"compiled {self.function} in {in_seconds(self.total)}: {self.summary()}")

    @property
    def total(self) -> float:
        return time.perf_counter() - self._started

    def summary(self) -> str:
        return " · ".join(f"{stage} {in_seconds(s)}" for stage, s in self.seconds.items())

    def _show(self, done: threading.Event) -> None:
        if done.wait(_PATIENCE):
            return
        console = Console(stderr=True)
        if console.is_terminal:
            with console.status(self._text()) as status:
                while not done.wait(0.1):
                    status.update(self._text())
        else:
            print(self._text(), file=sys.stderr, flush=True)
            done.wait()
            print(f"funcgrad: compiled {self.function} in {in_seconds(self.total)}", file=sys.stderr, flush=True)

    def _text(self) -> str:
        return f"funcgrad: compiling {self.function}: {self._current} ({in_seconds(self.total)})"
