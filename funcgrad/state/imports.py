"""Modules that a function imports first itself: while it is watched, its imports are heard.

What a module does when it is imported is done once, in eager PyTorch, outside of the trace, and stays: tensors that it
makes are the process's, and no stand-ins. From then on it is watched as one that was there before.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from attrs import frozen

from ..inside import OfProcess
from ..torch_private.fakes import without_modes
from ..torch_private.levels import outside_transforms
from ..torch_private.modes import without_function_modes
from .hooks import Listener, current_listener, unheard


@contextlib.contextmanager
def _outside() -> Iterator[None]:
    """Outside of the trace."""
    with unheard(), without_modes(), without_function_modes(), outside_transforms():
        yield


with _outside():  # PyTorch imports what these need when they are first entered: not within an import that is heard
    pass


@frozen(eq=False)
class _Outside(Loader):
    """Loads a module outside of the trace, and tells the listener of it, and of those that it imports."""

    loader: Any
    listener: Listener

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self.loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self.loader
        before = sys.modules.keys() - {module.__name__}
        with _outside():
            with self.listener.importing():
                self.loader.exec_module(module)
            for name in [own for own in sys.modules if own not in before]:
                self.listener.imported(sys.modules[name], name)


class _Finder(MetaPathFinder):
    """Asks the others, first of all."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        listener = current_listener()
        if listener is None:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        with unheard():
            spec = next((found for finder in others if (found := finder.find_spec(name, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            spec.loader = _Outside(spec.loader, listener)
        return spec


_FINDER = _Finder()


@OfProcess
def heard_imports() -> Iterator[None]:
    """Inside, imports that a function makes are told to its listener."""
    sys.meta_path.insert(0, _FINDER)
    yield
    sys.meta_path.remove(_FINDER)
