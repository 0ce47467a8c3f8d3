"""Warnings that a function gives: kept while it is traced, twice, and given on each call, to the filters of then.

Those of installed packages are given while the function is traced: they may be of the trace; but for those of torch's
modules, losses and optimisers. So are those that the
function itself looks at, or for which it has put filters of its own (``warnings.catch_warnings``).
"""

from __future__ import annotations

import os
import sys
import types
import warnings
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from attrs import frozen

from .lines import HERE, TORCH, user_frame
from .names import is_installed_file
from .places import Constant

_OF_MODULES = tuple(os.path.join(TORCH, *file) for file in (("nn", ""), ("optim", ""), ("utils", "hooks.py")))
"""Where torch's own code warns of what the caller does, with modules, losses and hooks: never of a trace."""
_OVERRIDES = os.path.join(TORCH, "overrides.py")


@frozen(eq=False)
class Warn:
    """A warning is given. ``space``: the globals of the line it is given for; None: the line that calls."""

    message: Warning | str
    category: type[Warning]
    filename: str = ""
    line: int = 0
    space: dict[str, Any] | None = None

    def lines(self, names: MutableMapping[Any, str], constants: dict[str, Any], constant: Constant) -> Iterator[str]:
        yield f"{constant(self.put_out)}()"

    def put_out(self) -> None:
        filename, line, space = self.filename, self.line, self.space
        if space is None:
            frame = user_frame(sys._getframe(1))
            filename, line, space = frame.f_code.co_filename, frame.f_lineno, frame.f_globals
        warnings.warn_explicit(
            self.message,
            self.category,
            filename,
            line,
            space.get("__name__") or "<string>",
            space.setdefault("__warningregistry__", {}),
        )

    @property
    def is_error(self) -> bool:
        """Whether the filters make an error of it."""
        module = str((self.space or {}).get("__name__") or "<string>")
        for action, text, category, where, line in warnings.filters:
            fits = _fits(text, str(self.message)) and _fits(where, module) and line in (0, self.line)
            if fits and issubclass(self.category, category):
                return action == "error"
        return False

    def __str__(self) -> str:
        return f"warn {self.category.__name__} {str(self.message)!r}"


def _fits(pattern: Any, text: str) -> bool:
    """Whether what a filter says fits: a compiled pattern, or, of filters that Python makes at its start, a text."""
    return pattern is None or (pattern == text if isinstance(pattern, str) else pattern.match(text) is not None)


def watch_warnings(kept: Callable[[], list[Any] | None]) -> Callable[[], Any]:
    """From now on the warnings of the caller's code are kept where ``kept`` says. Returns what ends that."""
    original = warnings.warn
    filters = warnings.filters
    before = [*filters]

    def warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None, **options: Any) -> None:
        into = kept()
        caller = sys._getframe(1)
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        own_filters = warnings.filters is not filters or warnings.filters != before
        is_warning = isinstance(kind, type) and issubclass(kind, Warning)
        if into is None or own_filters or not is_warning or not _is_callers(caller):
            return original(message, category, max(stacklevel, 1) + 1, source, **options)
        given = _given(message, kind, caller, stacklevel, tuple(options.get("skip_file_prefixes", ())))
        if given.is_error:
            raise message if isinstance(message, Warning) else kind(message)
        into.append(given)

    warnings.warn = warn

    def end() -> None:
        if warnings.warn is warn:
            warnings.warn = original

    return end


def _is_callers(frame: types.FrameType) -> bool:
    filename = frame.f_code.co_filename
    return filename.startswith(_OF_MODULES) or (not filename.startswith(HERE) and not is_installed_file(filename))


def _above(frame: Any) -> Any:
    """The frame that calls, but for what stands between a function of torch and who calls it while it is traced: the
    function itself, which has asked modes."""
    code, frame = frame.f_code, frame.f_back
    is_asked = False
    while frame is not None and (
        frame.f_code.co_name == "__torch_function__" or frame.f_code.co_filename == _OVERRIDES
    ):
        frame, is_asked = frame.f_back, True
    return frame.f_back if is_asked and frame is not None and frame.f_code is code else frame


def _given(message: Any, kind: type[Warning], frame: Any, level: int, skipped: tuple[str, ...]) -> Warn:
    """A warning for the line that ``level`` says, as ``warnings.warn`` finds it."""
    text = message if isinstance(message, Warning) else str(message)
    for _ in range(max(level, 2 if skipped else 1) - 1):
        frame = _above(frame)
        while frame is not None and skipped and frame.f_code.co_filename.startswith(skipped):
            frame = frame.f_back
        if frame is None or frame.f_code.co_filename.startswith(HERE):
            return Warn(text, kind)
    return Warn(text, kind, frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
