"""Where in the caller's code Python state is read, and anything else happens: for readers, who know it by its line."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from attrs import frozen

from .code import with_nested
from .names import is_installed_file, taken_apart
from .uses import ATTRIBUTE, CELL, GLOBAL, use_at, without_padding

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
"""Where funcgrad's own source files lie, and torch's."""
_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_SHOWN = 3
"""Lines that are shown of one piece of state."""


@functools.cache
def is_user_file(filename: str) -> bool:
    """Whether a source file is neither torch's nor funcgrad's."""
    return not filename.startswith((HERE, TORCH, "<")) and filename != contextlib.__file__


def is_users(code: types.CodeType) -> bool:
    """Whether code is of such a file, or typed in: of no file, and no special method, as dataclasses make them."""
    is_typed_in = code.co_filename.startswith("<") and not code.co_name.startswith("__")
    return is_user_file(code.co_filename) or is_typed_in


def short_name(filename: str) -> str:
    """The name of a source file as a reader knows it; the file of a notebook cell has no name worth showing."""
    return "cell" if "ipykernel" in filename else os.path.basename(filename)


def user_frame(frame: types.FrameType) -> types.FrameType:
    """The innermost frame, from this one on, that is neither torch's nor funcgrad's; the outermost, if there is
    none."""
    while frame.f_back is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def warn(message: str, category: type[Warning]) -> None:
    """A warning at the caller's line."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and not is_user_file(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def user_line(is_meant: Callable[[str], bool] = is_user_file) -> str | None:
    """``file:line in function`` of the innermost frame of a source file that ``is_meant``."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_meant(frame.f_code.co_filename):
            return line_of(frame.f_code, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def reading_line() -> str | None:
    """The same, past Python's own library: ``dataclasses.asdict`` and the like read for who calls them."""
    return user_line(_reads)


@functools.cache
def _reads(filename: str) -> bool:
    return is_user_file(filename) and (not filename.startswith(_STANDARD) or is_installed_file(filename))


def line_of(code: types.CodeType, line: int | None) -> str:
    return f"{short_name(code.co_filename)}:{line} in {code.co_name}"


@frozen(eq=False)
class Lines:
    """The lines that read state. ``heard``: those of which a hook heard, by what a reader calls what is read. Of all
    else, they are looked for in the code that ran when somebody asks."""

    heard: Mapping[str, Sequence[str]] = {}
    codes: tuple[types.CodeType, ...] = ()

    def of(self, name: str) -> str:
        """The lines that read what is called ``name``; none where PyTorch reads it for itself."""
        while True:
            found = list(dict.fromkeys(self.heard.get(name) or self._mentioning(name)))
            above = name.rpartition("[")[0]
            if found or not above:
                return ", ".join((*found[:_SHOWN], *(["..."] if len(found) > _SHOWN else [])))
            name = above

    def _mentioning(self, name: str) -> Iterator[str]:
        base, keys = taken_apart(name)
        loads = ATTRIBUTE if "." in name.partition("[")[0] else GLOBAL | CELL
        for code in map(with_nested, self.codes):
            for own in code:
                if base in own.co_varnames[: own.co_argcount + own.co_kwonlyargcount] and "." not in name:
                    yield line_of(own, own.co_firstlineno)  # a default
                steps = without_padding(own) if base in (*own.co_names, *own.co_freevars, *own.co_cellvars) else []
                for at, step in enumerate(steps):
                    is_named = step.opname in loads and step.argval == base
                    if is_named and (keys is None or use_at(steps, at).at(keys) is not None):
                        yield line_of(own, step.positions.lineno if step.positions else None)
