"""Objects of C that hold plain values and say which: arrays of Python's, texts and bytes that are written to. What
they hold is compared and put back as one plain value.

Classes of others that are made of these may hold, write and say something else: they are no buffers.
"""

from __future__ import annotations

import array
import io
from typing import Any

from .values import copied

BUFFERS = (array.array, bytearray, io.StringIO, io.BytesIO)


def is_buffer(value: Any) -> bool:
    return type(value) in BUFFERS


def holds_now(container: Any) -> Any:
    """What a container or a buffer holds, to compare with later, or to put back."""
    return held_by(container) if is_buffer(container) else copied(container)


def held_by(buffer: Any) -> tuple[Any, ...]:
    """What a buffer holds; of a stream, also where it is read and written, and nothing where it is closed."""
    if isinstance(buffer, array.array):
        return buffer.typecode, buffer.tobytes()
    if isinstance(buffer, bytearray):
        return (bytes(buffer),)
    return () if buffer.closed else buffer.__getstate__()[:-1]


def holds(buffer: Any, held: tuple[Any, ...]) -> bool:
    """Whether a buffer holds that, without a copy of it."""
    if isinstance(buffer, array.array):
        return bool(buffer.typecode == held[0] and memoryview(buffer).cast("B") == held[1])
    return bool(buffer == held[0] if isinstance(buffer, bytearray) else held_by(buffer) == held)


def put_into(buffer: Any, held: tuple[Any, ...]) -> None:
    """Let a buffer hold what one held."""
    if isinstance(buffer, array.array):
        buffer[:] = array.array(*held)
    elif isinstance(buffer, bytearray):
        buffer[:] = held[0]
    elif not held:
        buffer.close()
    else:
        buffer.__setstate__((*held, None))


def added(before: tuple[Any, ...], now: tuple[Any, ...]) -> Any:
    """What a buffer that held ``before`` has been given, if that is all that happened to it, one after the other: at
    its end, in a stream where it is written. None where it may be something else."""
    if type(before[0]) is bytes and len(before) == 1:  # a bytearray
        return now[0][len(before[0]) :] if now[0].startswith(before[0]) else None
    if type(before[1]) is bytes:
        is_longer = before[0] == now[0] and now[1].startswith(before[1])
        return array.array(now[0], now[1][len(before[1]) :]) if is_longer else None
    (was, *how, start), (held, *how_now, end) = before, now
    is_written = start <= min(len(was), end) and held == was[:start] + held[start:end] + was[end:]
    return held[start:end] if is_written and how == how_now and how in ([], ["\n"], [""]) else None
