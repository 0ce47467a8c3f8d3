"""How a transform is applied: to a function at once, or, called with options alone, as a decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import ArgumentError


class _Omitted:
    def __repr__(self) -> str:
        return "…"


OMITTED: Any = _Omitted()
"""The default of a transform's function: it comes later."""


def applied(transform: Callable[[Callable[..., Any]], Any], f: Any) -> Any:
    """``transform(f)``, or where ``f`` is omitted the decorator that does so. Raises ``ArgumentError`` for what is
    no function."""

    def decorate(f: Any) -> Any:
        if not callable(f):
            raise ArgumentError(
                f"the first argument must be a function, got a {type(f).__name__}",
                fix="pass the function, not its result",
            )
        return transform(f)

    return decorate if f is OMITTED else decorate(f)
