"""What a function prints, logs and warns of: kept while it is traced, twice, and said on each call.

Standard output, loggers and warnings are everybody's: for other threads they are what they were, as for libraries.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

from attrs import frozen

from .guards import Constant
from .names import LIBRARIES, package

Heard = list[Any]
"""Texts that were printed, records that were logged, each with its logger, and warnings, each with where it stands."""
_heard: ContextVar[Heard | None] = ContextVar("funcgrad_heard", default=None)
_lock = threading.Lock()
_hearing = 0


@frozen(eq=False)
class Say:
    """Something is printed, logged or warned of."""

    heard: Any

    def lines(self, names: MutableMapping[Any, str], constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        yield f"{constant(say)}({constant(self.heard)})"

    def __str__(self) -> str:
        if isinstance(self.heard, str):
            return f"print {self.heard!r}"
        return f"warn {self.heard.message}" if isinstance(self.heard, _Warning) else f"log {self.heard[1].msg!r}"


@frozen
class _Warning:
    """The arguments of ``warnings.warn_explicit``: whether it is shown is up to the filters of each call."""

    message: Any
    category: type[Warning]
    file: str
    line: int
    space: dict[str, Any]

    def again(self) -> None:
        registry = self.space.setdefault("__warningregistry__", {})
        name = self.space.get("__name__", "<string>")
        warnings.warn_explicit(self.message, self.category, self.file, self.line, name, registry)


def say(heard: Any) -> None:
    """Print a text, log a record of now, or warn."""
    if isinstance(heard, str):
        sys.stdout.write(heard)
        return
    if isinstance(heard, _Warning):
        heard.again()
        return
    logger, was = heard
    now = logging.LogRecord(
        was.name, was.levelno, was.pathname, was.lineno, was.msg, (), None, was.funcName, was.stack_info
    )
    vars(now).update({k: v for k, v in vars(was).items() if k not in vars(now) or k == "exc_text"})
    logger.handle(now)


class _Output:
    """Standard output, which keeps what is written where it is heard."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> Any:
        heard = _heard.get()
        if heard is None:
            return self._stream.write(text)
        if heard and isinstance(heard[-1], str):
            heard[-1] += text
        else:
            heard.append(text)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_handle = logging.Logger.handle


def _handled(logger: logging.Logger, record: logging.LogRecord) -> None:
    heard = _heard.get()
    if heard is None or package(record.name) in LIBRARIES:
        _handle(logger, record)
        return
    record.msg, record.args = record.getMessage(), ()  # what it is about may be a tensor of the trace
    if record.exc_info:
        record.exc_text = logging.Formatter().formatException(record.exc_info)
        record.exc_info = None
    heard.append((logger, record))


_warn = warnings.warn


def _warned(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **more: Any) -> None:
    heard, kind = _heard.get(), type(message) if isinstance(message, Warning) else category or UserWarning
    raises = any(f[0] == "error" and issubclass(kind, f[2]) for f in warnings.filters)
    caller = sys._getframe(1)
    if heard is None or raises or more or package(caller.f_globals.get("__name__")) in LIBRARIES:
        _warn(message, category, stacklevel + 1, source, **more)
        return
    frame: Any = caller
    for _ in range(stacklevel - 1):
        frame = frame.f_back or frame
    heard.append(_Warning(message, kind, frame.f_code.co_filename, frame.f_lineno, frame.f_globals))


@contextlib.contextmanager
def hearing(heard: Heard) -> Iterator[None]:
    """Inside, what this thread prints, logs and warns of is kept in ``heard``."""
    global _hearing
    is_first = _heard.get() is None  # else the function itself may have put something there
    token = _heard.set(heard)
    with _lock:
        _hearing += 1
        if is_first and sys.stdout is not None and not isinstance(sys.stdout, _Output):
            sys.stdout = _Output(sys.stdout)
        logging.Logger.handle, warnings.warn = _handled, _warned  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        _heard.reset(token)
        with _lock:
            _hearing -= 1
            if not _hearing:
                logging.Logger.handle, warnings.warn = _handle, _warn  # type: ignore[method-assign]
                if isinstance(sys.stdout, _Output):
                    sys.stdout = sys.stdout._stream
