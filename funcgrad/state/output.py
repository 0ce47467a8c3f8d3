"""What a function prints: kept while it is traced, twice, and printed on each call.

Standard output is everybody's: other threads write to it as before. What goes into a stream that the function itself
has put there (``contextlib.redirect_stdout``), or is printed in a backward pass, goes there at once.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterable, Iterator, MutableMapping
from contextvars import ContextVar
from typing import Any

from attrs import frozen

from .guards import Constant

_kept: ContextVar[list[str] | None] = ContextVar("funcgrad_printed", default=None)
_lock = threading.Lock()
_keeping = 0


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
    """Standard output, which keeps what is written where it is kept."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return type(self._stream)

    def write(self, text: str) -> Any:
        kept = _kept.get()
        if kept is None:
            return self._stream.write(text)
        kept.append(text)
        return len(text)

    def writelines(self, texts: Iterable[str]) -> None:
        for text in texts:
            self.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def keeping(printed: list[str] | None) -> Iterator[None]:
    """Inside, what this thread prints is kept in ``printed``; None: it is printed."""
    global _keeping
    is_first = _kept.get() is None  # else the function itself may have put something there
    token = _kept.set(printed)
    with _lock:
        _keeping += 1
        if is_first and printed is not None and sys.stdout is not None and type(sys.stdout) is not _Output:
            sys.stdout = _Output(sys.stdout)  # type: ignore[assignment]
    try:
        yield
    finally:
        _kept.reset(token)
        with _lock:
            _keeping -= 1
            if not _keeping and type(sys.stdout) is _Output:
                sys.stdout = sys.stdout._stream
