"""What a ``functools.lru_cache`` keeps: it shows that to nobody but the garbage collector."""

from __future__ import annotations

import gc
import types
from collections.abc import Sequence, Set
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from .. import refusals
from ..subclasses import is_traced
from ..torch_private.tensors import storage_id, unwrap_transform
from ..trees import flatten
from .lines import user_line

_LINK = "_lru_list_elem"
"""The type of what holds the result, in a cache that keeps so many at most."""


@frozen
class Cache:
    """A function with an ``lru_cache`` that was met, by this name, with the results it kept, by their arguments, and
    how often it had been asked."""

    function: Any
    name: str
    before: dict[Any, Any]
    calls: int

    @staticmethod
    def of(function: Any, name: str) -> Cache:
        return Cache(function, name, dict(entries_of(function)), calls_of(function))

    @property
    def was_asked(self) -> bool:
        """Since then."""
        return calls_of(self.function) != self.calls

    def keeps(self, tensor: Tensor) -> bool:
        """Whether it keeps memory of a tensor's."""
        memory = storage_id(tensor)
        return any(isinstance(leaf, Tensor) and storage_id(leaf) == memory for leaf in _leaves(self.function))

    @property
    def keeps_symbols(self) -> bool:
        """Whether one of the arguments by which it keeps more since then is a symbol: what it kept by the number, it
        has not found."""
        return any(isinstance(v, (torch.SymFloat, torch.SymInt)) for v in self.new_arguments)

    @property
    def new_arguments(self) -> list[Any]:
        """The leaves of the arguments by which it keeps more since then."""
        return flatten([tuple(key) if isinstance(key, (tuple, list)) else key for key in self._new])[0]

    @property
    def _new(self) -> Set[Any]:
        """The keys of what it keeps more since then."""
        return {key for key, kept in entries_of(self.function).items() if self.before.get(key) is not kept}

    @property
    def has_dropped(self) -> bool:
        """Whether it has dropped something since then to keep that: it keeps so many at most."""
        most = self.function.cache_parameters()["maxsize"]
        return most is not None and len(self.before.keys() | self._new) > most

    def forget(self) -> None:
        """Drop what it keeps since then. It has no way to forget one result; what it looks for is in a dict."""
        entries = entries_of(self.function)
        for key in self._new:
            del entries[key]

    @property
    def was_filled(self) -> bool:
        """Whether it keeps more since then."""
        return bool(self._new)


def require_kept_by_none(caches: Sequence[Cache], written: Tensor) -> None:
    """Raise for a write to a tensor that one keeps since it was met: in eager PyTorch the next call finds what was
    written, and a program makes it anew."""
    for cache in caches:
        if cache.was_filled and cache.keeps(written):
            raise refusals.WRITES_TO_CACHED(cache.name, where=user_line())


def require_filled(caches: Sequence[Cache]) -> None:
    """Raise where one keeps something of the trace since it was met, by arguments that the next calls may have, too:
    what eager PyTorch made (and drew) for it once, they find there; and where one has dropped what it kept, which
    nothing puts back. The call that fills it is one of eager PyTorch."""
    for cache in caches:
        if cache.has_dropped:
            raise refusals.DROPS_CACHED(cache.name, where=cache.name)
        is_of_trace = cache.was_filled and keeps_traced(cache.function)
        if is_of_trace and not any(isinstance(v, Tensor) for v in cache.new_arguments):
            raise refusals.FILLS_CACHE_FIRST(cache.name, where=cache.name)


def entries_of(cache: Any) -> dict[Any, Any]:
    """What a cache keeps, by the arguments: results, or links to them."""
    own, count = vars(cache), cache.cache_info().currsize
    dicts = [v for v in gc.get_referents(cache) if type(v) is dict and v is not own and len(v) == count]
    links = cache.cache_parameters()["maxsize"] is not None
    return next((v for v in dicts if not links or all(type(link).__name__ == _LINK for link in v.values())), {})


def calls_of(cache: Any) -> int:
    """How often it was asked."""
    return int(cache.cache_info().hits + cache.cache_info().misses)


def results_of(cache: Any) -> list[Any]:
    """The results it keeps, and maybe their arguments."""
    held = [
        v for v in gc.get_referents(cache) if v is not vars(cache) and not isinstance(v, (type, types.FunctionType))
    ]
    entries = entries_of(cache)
    links = [v for item in held if item is entries for v in item.values()]
    return [
        v
        for v in (*(item for item in held if item is not entries), *links)
        if type(v).__name__ != _LINK and type(v) is not object
    ]


def keeps_traced(cache: Any) -> bool:
    """Whether it keeps a tensor or a number of a trace."""
    return any(is_traced(leaf) or isinstance(leaf, (torch.SymFloat, torch.SymInt)) for leaf in _leaves(cache))


def _leaves(cache: Any) -> list[Any]:
    """Leaves of what it keeps; of what a transform has wrapped, what is below."""
    leaves = [leaf for value in results_of(cache) for leaf in flatten(value)[0]]
    leaves += [t for own in leaves if isinstance(own, torch.nn.Module) for t in (*own.parameters(), *own.buffers())]
    return [unwrap_transform(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
