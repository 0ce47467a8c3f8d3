"""Objects of C that hold plain values and say which: arrays of Python's, texts and bytes that are written to. What
they hold is compared and put back as one plain value."""

from __future__ import annotations

import array
import io
from typing import Any

BUFFERS = (array.array, bytearray, io.StringIO, io.BytesIO)


def held_by(buffer: Any) -> tuple[Any, ...]:
    """What a buffer holds; of a stream, also where it is read and written, and nothing where it is closed."""
    if isinstance(buffer, array.array):
        return buffer.typecode, buffer.tobytes()
    if isinstance(buffer, bytearray):
        return (bytes(buffer),)
    return () if buffer.closed else (buffer.getvalue(), buffer.tell())


def put_into(buffer: Any, held: tuple[Any, ...]) -> None:
    """Let a buffer hold what one held."""
    if isinstance(buffer, array.array):
        buffer[:] = array.array(*held)
    elif isinstance(buffer, bytearray):
        buffer[:] = held[0]
    elif not held:
        buffer.close()
    else:
        buffer.seek(0)
        buffer.truncate()
        buffer.write(held[0])
        buffer.seek(held[1])
