"""How a transform is applied: to a function at once, or, called with options alone, as a decorator."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, SupportsIndex

from ..errors import ArgumentError


class _Omitted:
    def __repr__(self) -> str:
        return "…"


OMITTED: Any = _Omitted()
"""The default of a transform's function: it comes later."""


def applied(transform: Callable[[Callable[..., Any]], Any], f: Any) -> Any:
    """``transform(f)``, or where ``f`` is omitted the decorator that does so; of a static or class method, one of the
    transformed function. Raises ``ArgumentError`` for what is no function."""

    def decorate(f: Any) -> Any:
        if isinstance(f, (staticmethod, classmethod)):
            return type(f)(decorate(f.__func__))
        if not callable(f):
            is_property = isinstance(f, property)
            raise ArgumentError(
                f"the first argument must be a function, got a {type(f).__name__}",
                fix="write @property above, not below" if is_property else "pass the function, not its result",
            )
        return transform(f)

    return decorate if f is OMITTED else decorate(f)


def name_in_module(made: Any) -> str | None:
    """What a transform returned is called where it stands in a module (or in a class of it) under its function's name,
    as decorated functions do: it is pickled by that name."""
    place: Any = sys.modules.get(made.__module__)
    for name in made.__qualname__.split("."):
        place = getattr(place, name, None)
    return str(made.__qualname__) if place is made else None


class Decorated:
    """A function that is wrapped in an object, pickled by its name where it has one."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        return name_in_module(self) or super().__reduce_ex__(protocol)
