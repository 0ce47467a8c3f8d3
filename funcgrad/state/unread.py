"""Arguments that a function is given and does not read: the name of a file beside its image, the words of which the
batch has the tokens. Every call brings others."""

from __future__ import annotations

import datetime
import pathlib
import uuid
from collections.abc import Iterable
from typing import Any

KINDS = (
    str, bytes, pathlib.PosixPath, pathlib.WindowsPath, datetime.datetime, datetime.date, uuid.UUID,
)  # fmt: skip
"""The types of such values: immutable, compared by what they say, no numbers."""

_ASKS = (
    "str", "repr", "format", "bytes", "hash", "bool", "len", "iter", "next", "reversed", "contains", "getitem", "eq",
    "ne", "lt", "le", "gt", "ge", "int", "float", "complex", "index", "trunc", "round", "add", "radd", "sub", "rsub",
    "mul", "rmul", "mod", "rmod", "truediv", "rtruediv", "and", "rand", "or", "ror", "xor", "rxor", "fspath", "dir",
    "sizeof", "reduce", "reduce_ex", "copy", "deepcopy", "setattr", "delattr",
)  # fmt: skip


class TextReadError(Exception):
    """The function reads, or returns, what it was not to: it is traced once more, with the value."""


class Unread:
    """Stands for such an argument while the function is traced. It is of the argument's class; whatever asks for more
    is told that it must not."""

    __slots__ = ("_path", "_value", "_was_read")

    def __init__(self, value: Any, path: str) -> None:
        for name, own in (("_path", path), ("_value", value), ("_was_read", False)):
            object.__setattr__(self, name, own)

    def __getattribute__(self, name: str) -> Any:
        return type(value_of(self)) if name == "__class__" else _read(self)


def _of(unread: Unread, name: str) -> Any:
    return object.__getattribute__(unread, name)


def value_of(unread: Unread) -> Any:
    """The argument for which it stands."""
    return _of(unread, "_value")


def _read(unread: Unread, *_: Any, **__: Any) -> Any:
    object.__setattr__(unread, "_was_read", True)
    raise TextReadError(f"the function reads {_of(unread, '_path')}")


for _name in _ASKS:
    setattr(Unread, f"__{_name}__", _read)


def note_stored(value: Any) -> None:
    """Of what the function stores, each call stores its own: that it has read."""
    if is_unread(value):
        object.__setattr__(value, "_was_read", True)


def is_unread(value: Any) -> bool:
    return type(value) is Unread


def read_of(leaves: Iterable[Any]) -> frozenset[str]:
    """The paths of those that were read."""
    return frozenset(_of(leaf, "_path") for leaf in leaves if is_unread(leaf) and _of(leaf, "_was_read"))


def require_unread(leaves: Iterable[Any], results: Iterable[Any]) -> None:
    """Raise ``TextReadError`` where a function that was given these leaves has read one, whatever it has made of
    that, or returns one."""
    for leaf in filter(is_unread, leaves):
        if _of(leaf, "_was_read") or any(result is leaf for result in results):
            _read(leaf)
