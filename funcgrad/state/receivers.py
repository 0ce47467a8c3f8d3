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
from .names import attributes_of, is_library, package
from .output import Printed, standard_output
from .warned import Warn


def too_late(printed: Iterable[Printed], uses: Callable[[Any, str], bool]) -> Iterator[tuple[str, str]]:
    """What output comes to, and the name of what that writes to and the function ``uses`` itself: it would be written
    to when the function has used it."""
    for receiver in {id(own): own for output in printed for own in _receivers_of(output)}.values():
        called = getattr(receiver, "__name__", type(receiver).__name__)
        yield from ((called, name) for held, name in _filled_by(receiver) if uses(held, name))


def _receivers_of(output: Printed) -> Iterator[Any]:
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


def _filled_by(receiver: Any) -> Iterator[tuple[Any, str]]:
    """What the code of a receiver writes to: containers, and dicts of attributes and globals in which it gives a name
    another value; with that name."""
    yield receiver, "its text"  # a buffer
    for function in _functions_of(receiver):
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        held = {name: cell.cell_contents for name, cell in cells if cell != types.CellType()}
        for name in sorted(written_by(function.__code__)):
            for namespace in (held, attributes_of(receiver) or {}, function.__globals__):
                if name in namespace and not isinstance(namespace[name], io.IOBase):
                    yield namespace, name
                    yield namespace[name], name


def _functions_of(receiver: Any) -> list[types.FunctionType]:
    if isinstance(receiver, types.FunctionType):
        return [] if package(receiver.__module__) == "warnings" else [receiver]
    members = [v for c in type(receiver).__mro__ if not is_library(c) for v in vars(c).values()]
    return [v for v in members if isinstance(v, types.FunctionType)]
