"""Code of the caller's to which a program's output comes: handlers of its loggers, a stream in the place of standard
output, what stands for ``warnings.showwarning``. It runs when the output is put out, after the program."""

from __future__ import annotations

import io
import logging
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .code import written_by
from .names import attributes_of, brought_along, is_library, package
from .output import Printed, standard_output
from .warned import Warn


def too_late(printed: Iterable[Printed], uses: Callable[[Any, str], bool]) -> Iterator[tuple[str, str]]:
    """What output comes to, and the name of what that writes to and the function ``uses`` itself: it would be written
    to when the function has used it."""
    for listener in {id(own): own for output in printed for own in _listeners_to(output)}.values():
        called = getattr(listener, "__name__", type(listener).__name__)
        yield from ((called, name) for held, name in _filled_by(listener) if uses(held, name))


def _listeners_to(output: Printed) -> Iterator[Any]:
    if isinstance(output, str):
        yield standard_output()
    elif isinstance(output, Warn):
        yield warnings.showwarning
    else:
        logger: logging.Logger | None = output.logger
        while logger is not None:
            yield from logger.filters
            for handler in logger.handlers:
                yield from (handler, handler.formatter, *handler.filters)
            logger = logger.parent if logger.propagate else None


def _filled_by(listener: Any) -> Iterator[tuple[Any, str]]:
    """What the code of a listener writes to: containers, and dicts of attributes and globals in which it gives a name
    another value; with that name."""
    yield listener, "its text"  # a buffer
    for function in _functions_of(listener):
        held = dict(zip(function.__code__.co_freevars, brought_along(function), strict=False))
        for name in sorted(written_by(function.__code__)):
            for namespace in (held, attributes_of(listener) or {}, function.__globals__):
                if name in namespace and not isinstance(namespace[name], io.IOBase):
                    yield namespace, name
                    yield namespace[name], name


def _functions_of(listener: Any) -> list[types.FunctionType]:
    if isinstance(listener, types.FunctionType):
        return [] if package(listener.__module__) == "warnings" else [listener]
    members = [v for c in type(listener).__mro__ if not is_library(c) for v in vars(c).values()]
    return [v for v in members if isinstance(v, types.FunctionType)]
