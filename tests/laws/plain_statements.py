"""Statements as plain data, and back: what a file, another process or another printer can be given.

Operators, dtypes and everything of our own vocabulary are written out. What has no name outside of this process (a
subclass, what an attribute is set to) is an object of the call, and stands there as its number in a list beside the
data.
"""

from __future__ import annotations

import functools
from collections.abc import MutableSequence, Sequence
from types import ModuleType
from typing import Any

import attrs
import torch

from funcgrad import slots, subclasses
from funcgrad.capture import memory, views
from funcgrad.layers import effects, statements
from funcgrad.torch_private.operators import is_operator, operator_named

_ROOMS: tuple[ModuleType, ...] = (slots, views, memory, subclasses, effects, statements)


_SEQUENCES = {"list": list, "size": torch.Size}


@functools.cache
def _vocabulary() -> dict[str, Any]:
    """Frozen classes by name."""
    every = [
        v
        for room in _ROOMS
        for v in vars(room).values()
        if isinstance(v, type) and attrs.has(v) and v.__module__ == room.__name__
    ]
    return {kind.__name__: kind for kind in every}


def to_data(value: Any, objects: MutableSequence[Any]) -> Any:
    """Lists, dicts, texts and numbers. ``objects`` gets what is none of these and cannot be written out."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if type(value) is tuple:
        return [to_data(v, objects) for v in value]
    if type(value) in _SEQUENCES.values():
        return {name: [to_data(v, objects) for v in value] for name, kind in _SEQUENCES.items() if type(value) is kind}
    if is_operator(value):
        return {"operator": value.name()}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if _vocabulary().get(type(value).__name__) is type(value):
        fields = {field.name: to_data(getattr(value, field.name), objects) for field in attrs.fields(type(value))}
        return {"kind": type(value).__name__, **fields}
    number = next((i for i, known in enumerate(objects) if known is value), len(objects))
    if number == len(objects):
        objects.append(value)
    return {"object": number}


def from_data(data: Any, objects: Sequence[Any]) -> Any:
    """What ``to_data`` was given. ``objects``: those it found, or what stands for them here."""
    if isinstance(data, list):
        return tuple(from_data(v, objects) for v in data)
    if not isinstance(data, dict):
        return data
    for name, kind in _SEQUENCES.items():
        if name in data:
            return kind(from_data(v, objects) for v in data[name])
    if "operator" in data:
        return operator_named(data["operator"])
    if "dtype" in data:
        return getattr(torch, data["dtype"])
    if "object" in data:
        return objects[data["object"]]
    fields = {name: from_data(v, objects) for name, v in data.items() if name != "kind"}
    return _vocabulary()[data["kind"]](**fields)
