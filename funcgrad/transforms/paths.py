"""Paths of what Python reads: which numbers on one are symbols, and what tells paths apart."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..graph_primitives import (
    AnyNumber,
    Path,
    PathMiss,
    Read,
    has_symbols,
    is_same_value,
    numbers_replaced,
    sizes_varied,
)
from ..runtime.cache import leaves_path


def paths_to_try(path: Path, known: Sequence[Sequence[Read]], sizes: bool) -> list[Path]:
    """A path with symbols for numbers that are others in other calls, if there are any, and as it is. ``known``: what
    other programs read; ``sizes``: whether sizes may be symbols, too."""
    last = _last_with_symbols(path, known if sizes else ()) if path else None
    likely = _with_first_float(path, known) if not path or last is path[-1] else (*path[:-1], last)
    return [path] if likely is path else [likely, path]


def _last_with_symbols(path: Path, known: Sequence[Sequence[Read]]) -> Any:
    """The last that is read on a path, with symbols for numbers: of sizes, for those that are others on a path that
    is ``known``."""
    value, i = path[-1], len(path) - 1
    if type(value) in (float, int):
        return AnyNumber(type(value), value)
    if type(value) is tuple:
        for reads in known:
            if i < len(reads) and type(reads[i].value) is tuple and not leaves_path(reads[:i], path[:i]):
                value = sizes_varied(value, reads[i].value)
    return value


def _with_first_float(path: Path, known: Sequence[Sequence[Read]]) -> Path:
    """A path with a symbol where programs on other paths, or for other state, read a float first, if none is on it:
    no two calls read the same."""
    if has_symbols(path):
        return path
    later = [(i, read.value) for reads in known for i, read in enumerate(reads) if i >= len(path)]
    floats = [i for i, value in later if type(value) is float or value == AnyNumber(float)]
    return (*path, *[None] * (min(floats) - len(path)), AnyNumber(float)) if floats else path


def with_numbers(path: Path, read: dict[int, Any]) -> Path:
    """A path with the numbers on it that are symbols as kernels found them in this call; ``read`` remembers the
    last."""
    if path:
        read[len(path) - 1] = path[-1]
    return tuple(
        numbers_replaced(lambda number, now: AnyNumber(number.kind, now), v, read.get(i)) for i, v in enumerate(path)
    )


def differs(read: Read, paths: Sequence[Sequence[Read]]) -> bool:
    """Whether some of the paths are told apart by what is read in the line of this read."""
    return len({repr(other.value) for reads in paths for other in reads if other.where == read.where}) > 1


class PathsLeft:
    """Where what a definition is made of goes another way: a half, of which the layers around it know one path, raises
    ``PathMiss`` when it is traced on another. That is found once, and not by tracing it in each call."""

    def __init__(self) -> None:
        self._known = OrderedDict[Any, None]()

    def note(self, path: Path, args: Sequence[Any], miss: PathMiss) -> None:
        """Tracing a call on a path has raised, having read no more than that."""
        is_known = not has_symbols(path) and None not in path
        if is_known and len(path) == miss.read + 1 and is_same_value(path[-1], miss.value):
            self._known[_key(path, args)] = None
            if len(self._known) > _LEFT:
                self._known.popitem(last=False)

    def require_own(self, path: Path, args: Sequence[Any]) -> None:
        """Raise what tracing such a call raises."""
        if self._known and _key(path, args) in self._known:
            raise PathMiss(len(path) - 1, path[-1])


_LEFT = 64
"""So many are known."""


def _key(path: Path, args: Sequence[Any]) -> Any:
    """What decides: conditions on what is read may be on sizes and numbers of the call, too."""
    return repr(path), *(tuple(v.shape) if isinstance(v, Tensor) else repr(v) for v in args)
