"""Values of Python: which are plain, when two are the same, what a container holds."""

from __future__ import annotations

import dataclasses
import operator
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), type(NotImplemented), range, slice)
TORCH_PLAIN = (torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format)


def is_plain(value: Any) -> bool:
    """Whether a value is immutable and known by what it is equal to, not by which object it is."""
    return (
        type(value) in PLAIN
        or isinstance(value, TORCH_PLAIN)
        or (isinstance(value, np.generic) and not getattr(value, "__dict__", None))
        or (type(value) in (tuple, frozenset) and all(map(is_plain, value)))
    )


def same(was: Any, now: Any) -> bool:
    """Whether ``now`` is the object ``was``, or a plain value of the same type and equal to it. NaN is NaN, 0.0 is
    not -0.0."""
    if was is now:
        return True
    if type(was) is not type(now):
        return False
    if isinstance(was, (float, complex, np.generic)):
        return repr(was) == repr(now)
    if isinstance(was, tuple) and type(was) is not torch.Size:
        return len(was) == len(now) and all(map(same, was, now))
    if isinstance(was, frozenset):
        return _typed(was) == _typed(now)
    return is_plain(was) and bool(was == now)


def holds_symbols(value: Any) -> bool:
    """Whether a tuple holds what stands for a number."""
    return type(value) is tuple and any(isinstance(item, (torch.SymFloat, torch.SymInt)) for item in value)


def holds_tensors(value: Any, within: tuple[int, ...] = ()) -> bool:
    """Whether a builtin container holds a tensor, at any depth; not one that holds itself."""
    if isinstance(value, Tensor):
        return True
    is_dict = type(value) is dict and all(type(k) in (str, int) for k in value)
    if id(value) in within or not (is_dict or type(value) is list or isinstance(value, tuple)):
        return False
    return any(holds_tensors(item, (*within, id(value))) for item in (value.values() if is_dict else value))


def shape_of(container: Any, kind: type | None = None) -> tuple[Any, ...]:
    """The type of a container (``kind``, where it is a copy of one), and how many items it has, or under which keys."""
    return kind or type(container), tuple(keys_of(container)) if isinstance(container, dict) else len(container)


def same_shape(was: tuple[Any, ...], now: Any) -> bool:
    """Whether a container has the ``shape_of`` it had; keys that are equal may be others (``1``, ``True``)."""
    kind, keys = was
    if type(now) is not kind:  # it may be None, which has no length
        return False
    _, here = shape_of(now)
    return same_items(keys, here) if isinstance(keys, tuple) else bool(keys == here)


def compared_fields(kind: type) -> tuple[str, ...]:
    """The fields that ``==`` compares of a dataclass or an attrs class."""
    if dataclasses.is_dataclass(kind) and kind.__eq__ is not object.__eq__:
        return tuple(f.name for f in dataclasses.fields(kind) if f.compare)
    if attrs.has(kind) and kind.__eq__ is not object.__eq__:
        return tuple(a.name for a in attrs.fields(kind) if a.eq)
    return ()


def _typed(values: Any) -> set[tuple[type, Any]]:
    return {(type(v), v) for v in values}


def same_items(was: Any, now: Any) -> bool:
    """Whether a list or deque holds what it held."""
    return len(was) == len(now) and (all(map(operator.is_, was, now)) or all(map(same, was, now)))


def same_entries(was: Mapping[Any, Any], now: Mapping[Any, Any]) -> bool:
    """Whether a dict has the keys it had, in that order, and the values."""
    now = entries_of(now)
    if len(was) == len(now) and all(map(operator.is_, was, now)):
        of_was, of_now = was.values(), now.values()
        return all(map(operator.is_, of_was, of_now)) or all(map(same, of_was, of_now))
    return same_items([*was], [*now]) and same_items([*was.values()], [*now.values()])


def same_set(was: Any, now: Any) -> bool:
    """Whether a set holds what it held."""
    return len(was) == len(now) and _typed(was) == _typed(now)


def same_array(was: np.ndarray[Any, Any], now: np.ndarray[Any, Any]) -> bool:
    """Whether two arrays are equal to the last bit."""
    return was.dtype == now.dtype and was.shape == now.shape and was.tobytes() == now.tobytes()


def like_items(was: Any, now: Any) -> bool:
    """The same but for tensors, each of which may be another: the program reads it from where it lives."""
    return len(was) == len(now) and all(map(like, was, now))


def like_entries(was: Mapping[Any, Any], now: Mapping[Any, Any]) -> bool:
    """The same for a dict."""
    now = entries_of(now)
    return same_items([*was], [*now]) and like_items([*was.values()], [*now.values()])


def like(was: Any, now: Any) -> bool:
    """The same, or both tensors."""
    return same(was, now) or (isinstance(was, Tensor) and isinstance(now, Tensor))


def keys_of(container: dict[Any, Any]) -> list[Any]:
    """What keys a dict has, in order, whatever a class of the caller's says."""
    return list(OrderedDict.__iter__(container) if isinstance(container, OrderedDict) else dict.__iter__(container))


def plain_key(key: Any) -> Any:
    """A key of a dict (or a list of them), with its value in the place of a symbol, of which that was asked."""
    if isinstance(key, (torch.SymInt, torch.SymFloat)):
        return (int if isinstance(key, torch.SymInt) else float)(key)
    if isinstance(key, slice):
        return slice(*map(plain_key, (key.start, key.stop, key.step)))
    if type(key) not in (list, frozenset) and not isinstance(key, tuple):
        return key
    made = [plain_key(inner) for inner in key]
    if all(map(operator.is_, key, made)):
        return key
    own = type(key)
    return own(made) if own in (list, frozenset, torch.Size) else tuple.__new__(own, made)


def says_what_it_holds(container: Any) -> bool:
    return not isinstance(container, dict) or type(container) in (dict, OrderedDict, defaultdict)


def entries_of(container: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """What a dict holds, whatever a class of the caller's says, and does when it is asked."""
    return container if says_what_it_holds(container) else copied(container)  # type: ignore[no-any-return]


def length_of(container: Any) -> int:
    """How many items a container has, whatever a class of the caller's says, or raises."""
    kind = next((base for base in (dict, tuple, list, set, frozenset, deque) if isinstance(container, base)), None)
    return len(container) if kind is None else kind.__len__(container)  # type: ignore[arg-type]


def with_changes(before: Any, was: Any, now: Any) -> Any:
    """What a container held ``before``, with what made ``now`` of what it ``was``; ``before`` itself where nothing
    did."""
    if isinstance(before, dict):
        gone = was.keys() - now.keys()
        new = {key: value for key, value in now.items() if key not in was or not same(was[key], value)}
        return {key: value for key, value in before.items() if key not in gone} | new if gone or new else before
    if isinstance(before, set):
        return before if was == now else (before | (now - was)) - (was - now)
    if isinstance(before, np.ndarray):
        return before if same_array(was, now) else now
    if not isinstance(before, (list, deque)):  # of a buffer
        return before if was == now else now
    if len(now) < len(was) or not all(map(same, was, now)):
        return now
    return type(before)([*before, *[*now][len(was) :]]) if len(now) > len(was) else before


def copied(container: Any) -> Any:
    """A shallow copy of a container, to compare with later: of what a dict holds, whatever a class of the caller's
    makes of it."""
    if isinstance(container, dict):
        return {key: dict.__getitem__(container, key) for key in keys_of(container)}
    if isinstance(container, Mapping):
        return dict(container)
    if isinstance(container, np.ndarray):
        return container.copy()
    if isinstance(container, (set, frozenset)):
        return set(container)
    return deque(container) if isinstance(container, deque) else list(iter(container))  # list() asks for the length
