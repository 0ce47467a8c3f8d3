"""What a function prints, logs and warns of: kept while it is traced, twice, and printed on each call.

Standard output is everybody's, and so are loggers: other threads write to them as before. What goes into a stream that
the function itself has put there (``contextlib.redirect_stdout``) goes there at once; so does what installed packages
log, of what is traced.
"""

from __future__ import annotations

import collections
import contextlib
import copy
import functools
import io
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from typing import Any

from attrs import frozen

from ..slots import Stored
from .names import is_installed, is_installed_file, is_library
from .places import Constant
from .shown import AnyLook, formatted, with_texts, without_marks
from .values import PLAIN
from .warned import Warn, watch_warnings

_lock = threading.Lock()
_keeping = 0
_ends: list[Callable[[], Any]] = []
"""What takes back what was done to each stream that was standard output."""

Texts = tuple[tuple[Stored, AnyLook], ...]


@frozen
class Print:
    """A text is printed. ``texts``: the tensors and numbers whose texts stand in it."""

    text: str
    texts: Texts = ()

    def lines(self, names: MutableMapping[Any, str], constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        text = repr(self.text)
        if self.texts:
            text = f"{constant(with_texts)}({text}, {_written(self.texts, names, constant)})"
        yield f"{constant(put_out)}({text})"

    def __str__(self) -> str:
        return f"print {without_marks(self.text)!r}"


@frozen(eq=False)
class Log:
    """A record is given to a logger: to its filters, and then to handlers. ``texts``: the tensors and numbers whose
    texts stand in it."""

    logger: logging.Logger
    record: logging.LogRecord
    texts: Texts = ()

    @property
    def text(self) -> str:
        return self.record.msg if isinstance(self.record.msg, str) else ""

    def lines(self, names: MutableMapping[Any, str], constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        yield f"{constant(self.put_out)}({_written(self.texts, names, constant) if self.texts else ''})"

    def put_out(self, texts: Sequence[str] = ()) -> None:
        """The same record, of now."""
        record = copy.copy(self.record)
        if isinstance(record.msg, str):
            record.msg = with_texts(record.msg, texts) if texts else without_marks(record.msg)
        now = time.time()
        record.relativeCreated += (now - record.created) * 1000
        record.created, record.msecs = now, int(now % 1 * 1000) + 0.0
        logging.Logger.handle(self.logger, record)

    def __str__(self) -> str:
        return f"log {self.record.levelname} {without_marks(self.record.getMessage())!r}"


def _written(texts: Texts, names: Mapping[Any, str], constant: Constant) -> str:
    """Python that writes them."""
    return f"[{', '.join(f'{constant(look)}({names[slot]})' for slot, look in texts)}]"


Printed = str | Log | Warn


def effects_of(printed: Iterable[Printed]) -> list[Print | Log | Warn]:
    """What is printed side by side is printed at once."""
    groups = itertools.groupby(printed, lambda item: isinstance(item, str))
    return [v for texts, group in groups for v in ([Print("".join(group))] if texts else group)]  # type: ignore[arg-type, misc]


def put_out_again(printed: Sequence[Printed], but: Sequence[Printed] = ()) -> None:
    """Put out what was kept, ``but`` for what is kept elsewhere, too."""
    others = collections.Counter(map(str, but))
    for item in printed:
        if others[str(item)]:
            others[str(item)] -= 1
        elif isinstance(item, str):
            put_out(without_marks(item))
        else:
            item.put_out()


def put_out(text: str) -> None:
    """Write to standard output, where there is one."""
    if sys.stdout is not None:
        sys.stdout.write(text)


class _Output:
    """Standard output, which keeps what is written where it is kept: in the place of a stream of the caller's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._stream)

    def write(self, text: str) -> Any:
        return _write(self._stream.write, text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_kept: ContextVar[list[Printed] | None] = ContextVar("funcgrad_printed", default=None)


def _logging() -> Callable[[], Any]:
    """From now on what the caller's code logs is kept where it is kept. Returns what ends that."""
    original = logging.Logger.handle

    def call(logger: logging.Logger, record: logging.LogRecord) -> None:
        kept = _kept.get()
        if kept is None or is_installed_file(record.pathname):
            return original(logger, record)
        args = record.args.values() if isinstance(record.args, dict) else record.args or ()
        if not all(type(value) in PLAIN for value in (record.msg, *args)):  # the text is of what they are now
            record.msg, record.args = formatted(record), None
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_info = (record.exc_info[0], record.exc_info[1].with_traceback(None), None)
        kept.append(Log(logger, record))

    logging.Logger.handle = call  # type: ignore[method-assign, assignment]

    def end() -> None:
        if logging.Logger.handle is call:
            logging.Logger.handle = original  # type: ignore[method-assign]

    return end


def _write(original: Callable[[str], Any], text: str) -> Any:
    kept = _kept.get()
    if kept is None:
        return original(text)
    kept.append(text)
    return len(text)


def standard_output() -> Any:
    """The caller's own stream, while what is written to it is kept, too."""
    stream: Any = sys.stdout
    return object.__getattribute__(stream, "_stream") if type(stream) is _Output else stream


def is_kept() -> bool:
    """Whether this thread keeps what is printed to standard output."""
    return _kept.get() is not None and (type(sys.stdout) is _Output or keeps(sys.stdout))


def keeps(stream: Any) -> bool:
    """Whether a stream keeps what is written to it, by an attribute that is none of its own."""
    return issubclass(type(stream), io.TextIOBase) and getattr(vars(stream).get("write"), "func", None) is _write


def _begin(stream: Any) -> Callable[[], Any]:
    """From now on what is written to standard output is kept where it is kept. Returns what ends that."""
    if isinstance(stream, io.TextIOBase) and (is_library(type(stream)) or is_installed(type(stream))):
        own: Any = stream  # the stream stays the one it is
        if "write" not in vars(own):
            kept = own.write = functools.partial(_write, own.write)
            return lambda: vars(own).get("write") is kept and vars(own).pop("write")
    output: Any = _Output(stream)
    sys.stdout = output

    def end() -> None:
        if sys.stdout is output:
            sys.stdout = stream

    return end


@contextlib.contextmanager
def keeping(printed: list[Printed] | None) -> Iterator[None]:
    """Inside, what this thread prints is kept in ``printed``; None: it is printed."""
    global _keeping
    is_first = _kept.get() is None  # else the function itself may have put something there
    token = _kept.set(printed)
    with _lock:
        _keeping += 1
        begins = is_first and printed is not None
        if begins and not _ends:
            _ends.extend((_logging(), watch_warnings(_kept.get)))
        if begins and sys.stdout is not None and type(sys.stdout) is not _Output and not keeps(sys.stdout):
            _ends.append(_begin(sys.stdout))
    try:
        yield
    finally:
        _kept.reset(token)
        with _lock:
            _keeping -= 1
            while not _keeping and _ends:
                _ends.pop()()
