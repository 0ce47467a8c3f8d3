"""What is otherwise inside of a ``with`` statement: attributes of an object, a context variable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
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
