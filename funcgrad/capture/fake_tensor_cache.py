"""What operators make of fake tensors, asked once for each kind of arguments: a long trace asks the same again and
again."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ..torch_private.fakes import (
    FakeTensor,
    FakeTensorMode,
    ambient_kind,
    fake_kind,
    is_known_by_kinds,
    is_known_look,
    lookalikes,
    on_fakes,
    size_kind,
)
from ..torch_private.modes import without_function_modes

_BY_VALUE = (int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)


class Results:
    """Calls operators on the fake tensors of one trace.

    PyTorch keeps such results, too, but its key for a call and its copy of a result take ten times as long as these. As
    there, what is known is known to every trace, but for what is known of sizes that are symbols.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode
        self._own: dict[Hashable, Maker | None] = {}

    def __call__(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        looks = is_known_look(op) and isinstance(args[0], FakeTensor)
        kind = _kind_of_call(op, args, kwargs, looks) if looks or is_known_by_kinds(op) else None
        if kind is None:
            return on_fakes(op, args, kwargs)
        known = makers if self._mode.shape_env is None else self._own
        make = known.get(kind)
        if make is not None:
            with without_function_modes():
                return make(self._mode, args[0] if looks else None)
        out = on_fakes(op, args, kwargs)
        if kind not in known:
            if len(known) >= _AT_MOST:
                known.clear()
            with without_function_modes():
                known[kind] = _maker(out, args[0] if looks else None)
        return out


Maker = Callable[[FakeTensorMode, Any], Any]
makers: dict[Hashable, Maker | None] = {}
"""What makes the result of a kind of call (None: nothing does), for a mode and, of a view, the tensor it looks at."""

_AT_MOST = 1 << 15


def _kind_of_call(op: Any, args: Sequence[Any], kwargs: dict[str, Any], looks: bool) -> Hashable:
    """All that the kind of result depends on; None where an argument is of no kind."""
    with without_function_modes():  # sizes are read of the fakes themselves
        try:
            named = tuple((name, _kind(value)) for name, value in kwargs.items())
            offset = _kind(args[0].storage_offset()) if looks else None
            return op, ambient_kind(), offset, *map(_kind, args), named
        except _NoKindError:
            return None


class _NoKindError(Exception):
    """An argument that is told from others by what it is, not by how it looks."""


def _kind(value: Any) -> Hashable:
    if isinstance(value, FakeTensor):
        kind = fake_kind(value)
        if kind is not None:
            return kind
    elif isinstance(value, (list, tuple)):
        return tuple(map(_kind, value))
    elif isinstance(value, torch.SymInt):
        if (size := size_kind(value)) is not None:
            return size
    elif type(value) in _BY_VALUE:
        return type(value), value  # 1 and 1.0 are equal, and promoted otherwise
    raise _NoKindError


def _maker(out: Any, base: Any) -> Callable[[FakeTensorMode, Any], Any] | None:
    """Makes results like this one."""
    if not isinstance(out, (list, tuple)):
        return lookalikes(out, base)
    makers = [lookalikes(v, base) for v in out]
    if any(make is None for make in makers):
        return None
    return lambda mode, base: type(out)(make(mode, base) for make in makers if make is not None)
