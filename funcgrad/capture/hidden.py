"""Tensors inside of what is no container: an object that came in, or goes out, as one value that nobody takes apart."""

from __future__ import annotations

import gc
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..errors import ArgumentError, ContainerError
from ..state.hooks import can_be_hooked
from ..state.names import attributes_of, is_library

_DEEP, _MANY = 4, 1000
"""How far from an object, and among how many, a tensor is looked for."""

_ATOMS = (type, types.ModuleType, types.BuiltinFunctionType, str, bytes, int, float, complex, torch.nn.Module)


def _held(value: Any) -> list[Any]:
    """What an object refers to; of a function, what it closes over."""
    if isinstance(value, _ATOMS):
        return []
    if isinstance(value, types.FunctionType):
        cells = [c for c in value.__closure__ or () if c is not None]
        return [*cells, value.__defaults__, value.__kwdefaults__]
    return gc.get_referents(value)


def _holds_tensor(value: Any) -> bool:
    seen = {id(value)}
    pending = deque([(value, 0)])
    while pending and len(seen) < _MANY:
        holder, depth = pending.popleft()
        for inner in _held(holder):
            if isinstance(inner, Tensor):
                return True
            if depth < _DEEP and id(inner) not in seen:
                seen.add(id(inner))
                pending.append((inner, depth + 1))
    return False


_BY_IDENTITY = (set, frozenset, types.MethodType, types.BuiltinMethodType, *_ATOMS)
"""What is equal to itself alone, whatever tensors are in it."""


_IDENTITY: Any = object.__eq__


def _compares_tensors(value: Any) -> bool:
    compares = type(value).__eq__ is not _IDENTITY and not isinstance(value, _BY_IDENTITY)
    return compares and _holds_tensor(value)


def _is_heard_of(value: Any) -> bool:
    """Whether what is read of an object is heard of: then it is Python state, and not compared."""
    kind = type(value)
    return can_be_hooked(kind) and not is_library(kind) and attributes_of(value) is not None


@frozen(eq=False)
class Itself:
    """An object that is compared by which it is, as what it would be compared by is tensors."""

    value: Any

    def __repr__(self) -> str:
        return repr(self.value)


def comparable(value: Any) -> Any:
    """What a static value is compared with."""
    return Itself(value) if _is_heard_of(value) and _compares_tensors(value) else value


def require_comparable(value: Any, path: str) -> None:
    """Raise ``ContainerError`` for an argument that is compared by what is in it, if that is tensors."""
    if _is_heard_of(value) or not _compares_tensors(value):
        return
    kind = type(value).__name__
    static = type(value) in (dict, list, tuple)
    raise ContainerError(
        f"a {kind} that holds tensors is "
        + ("a static argument" if static else "no pytree: its tensors would be no inputs"),
        where=path,
        fix="leave it out of static_argnums" if static else _registering(value),
    )


def equal(baked: Any, now: Any) -> bool:
    """Whether two static values of one type are equal. Raises ``ArgumentError`` where the type cannot say."""
    try:
        return bool(baked == now)
    except Exception as error:
        raise ArgumentError(
            f"a {type(now).__name__} is a static value, and cannot be compared: {error}",
            fix="pass what it holds in a dict or a dataclass",
        ) from error


_PLAIN = (set, frozenset, types.FunctionType, types.GeneratorType, types.MethodType, Iterator)


def _registering(value: Any) -> str:
    if isinstance(value, _PLAIN):
        return "use a list or a dict of the tensors themselves"
    kind = type(value).__name__
    registration = f"torch.utils._pytree.register_pytree_node({kind}, flatten, unflatten)"
    return f"use a dict or a dataclass, or register it: {registration}"
