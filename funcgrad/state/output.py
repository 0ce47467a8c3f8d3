"""What a function prints: kept while it is traced, twice, and printed on each call.

Standard output is everybody's: other threads write to it as before. What goes into a stream that the function itself
has put there (``contextlib.redirect_stdout``), or is printed in a backward pass, goes there at once.
"""

from __future__ import annotations

import contextlib
import functools
import io
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

from attrs import frozen

from .guards import Constant
from .names import is_installed, is_library

_kept: ContextVar[list[str] | None] = ContextVar("funcgrad_printed", default=None)
_lock = threading.Lock()
_keeping = 0
_ends: list[Callable[[], Any]] = []
"""What takes back what was done to each stream that was standard output."""


@frozen
class Print:
    """A text is printed."""

    text: str

    def lines(self, names: MutableMapping[Any, str], constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        yield f"{constant(put_out)}({self.text!r})"

    def __str__(self) -> str:
        return f"print {self.text!r}"


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


def _write(original: Callable[[str], Any], text: str) -> Any:
    kept = _kept.get()
    if kept is None:
        return original(text)
    kept.append(text)
    return len(text)


def keeps(stream: Any) -> bool:
    """Whether a stream keeps what is written to it, by an attribute that is none of its own."""
    return isinstance(stream, io.TextIOBase) and getattr(vars(stream).get("write"), "func", None) is _write


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
def keeping(printed: list[str] | None) -> Iterator[None]:
    """Inside, what this thread prints is kept in ``printed``; None: it is printed."""
    global _keeping
    is_first = _kept.get() is None  # else the function itself may have put something there
    token = _kept.set(printed)
    with _lock:
        _keeping += 1
        begins = is_first and printed is not None and sys.stdout is not None
        if begins and type(sys.stdout) is not _Output and not keeps(sys.stdout):
            _ends.append(_begin(sys.stdout))
    try:
        yield
    finally:
        _kept.reset(token)
        with _lock:
            _keeping -= 1
            while not _keeping and _ends:
                _ends.pop()()
