"""What is otherwise inside of a ``with`` statement: attributes of an object, a context variable, the process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, TypeVar

_T = TypeVar("_T")


@contextlib.contextmanager
def having(owner: object, **values: Any) -> Iterator[None]:
    """Inside, attributes of an object are these."""
    before = {name: getattr(owner, name) for name in values}
    for name, value in values.items():
        setattr(owner, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(owner, name, value)


@contextlib.contextmanager
def set_to(variable: ContextVar[_T], value: _T) -> Iterator[None]:
    """Inside, a context variable has this value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class OfProcess:
    """A change of the process, there while anybody is inside, in whatever thread: ``change`` makes it up to its
    ``yield``, for the first to enter, and takes it back for the last to leave."""

    def __init__(self, change: Callable[[], Iterator[None]]) -> None:
        self._change, self._lock, self._inside = change, threading.Lock(), 0

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if not self._inside:
                self._made = self._change()
                next(self._made)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1
                if not self._inside:
                    next(self._made, None)
