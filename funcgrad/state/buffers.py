"""Objects of C that hold plain values and say which: arrays of Python's, texts and bytes that are written to. What
they hold is compared and put back as one plain value.

Classes of others that are made of these may hold, write and say something else: they are no buffers.
"""

from __future__ import annotations

import array
import io
from typing import Any

BUFFERS = (array.array, bytearray, io.StringIO, io.BytesIO)


def is_buffer(value: Any) -> bool:
    return type(value) in BUFFERS


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
