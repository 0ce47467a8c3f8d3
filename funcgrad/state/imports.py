"""Modules that a function imports first itself: while it is watched, its imports are heard.

What a module does when it is imported is done once, in eager PyTorch, outside of the trace, and stays: tensors that it
makes are the process's, and no stand-ins. From then on it is watched as one that was there before.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ..inside import OfProcess
from ..torch_private.fakes import without_modes
from ..torch_private.levels import outside_transforms
from ..torch_private.modes import without_function_modes
from .hooks import Listener, current_listener, listening


def _is_new(name: str, package: str | None, parts: Sequence[str], level: int) -> bool:
    """Whether an import statement, or one by name, loads something."""
    if level:
        name = f"{(package or '').rsplit('.', level - 1)[0]}{'.' * bool(name)}{name}"
    module = sys.modules.get(name)
    return module is None or not all(part == "*" or hasattr(module, part) for part in parts)


def _statement(
    original: Callable[..., Any],
    name: str,
    globals: dict[str, Any] | None = None,
    locals: dict[str, Any] | None = None,
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    listener = current_listener()
    if listener is None or not _is_new(name, (globals or {}).get("__package__"), fromlist or (), level):
        return original(name, globals, locals, fromlist, level)
    return _loaded(listener, lambda: original(name, globals, locals, fromlist, level))


def _by_name(original: Callable[..., Any], name: str, package: str | None = None) -> Any:
    listener = current_listener()
    stem = name.lstrip(".")
    if listener is None or not _is_new(stem, package, (), len(name) - len(stem)):
        return original(name, package)
    return _loaded(listener, lambda: original(name, package))


def _loaded(listener: Listener, load: Callable[[], Any]) -> Any:
    """What is imported; the listener hears of the modules that are new."""
    before = set(sys.modules)
    with listening(None), without_modes(), without_function_modes(), outside_transforms():
        made = load()
        for name in [own for own in sys.modules if own not in before]:
            listener.imported(sys.modules[name], name)
    return made


@OfProcess
def heard_imports() -> Iterator[None]:
    """Inside, imports that a function makes are told to its listener."""
    statement, by_name = builtins.__import__, importlib.import_module
    builtins.__import__ = functools.update_wrapper(functools.partial(_statement, statement), statement)
    importlib.import_module = functools.update_wrapper(functools.partial(_by_name, by_name), by_name)
    yield
    builtins.__import__, importlib.import_module = statement, by_name
