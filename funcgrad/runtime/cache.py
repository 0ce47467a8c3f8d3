"""The programs of one compiled function, most recently used first."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Sequence
from typing import Any

from ..graph_primitives import Path, PathMiss, Read, is_same_value
from .call import MISS, Call
from .program import Program

CacheInfo = namedtuple("CacheInfo", "hits misses maxsize currsize")
"""As ``functools.lru_cache`` reports: calls that found a program, calls that compiled, the bound, the programs held."""

_AT_MOST = 64


def leaves_path(reads: Sequence[Read], path: Path) -> bool:
    """Whether a program with these reads is for calls in which Python reads something else first."""
    return not all(is_same_value(read.value, value) for read, value in zip(reads, path, strict=False))


class ProgramCache:
    """At most 64 programs; the one used least recently goes first. ``find`` runs the first program that fits.

    A list of entries never changes: other threads may be walking it. Who puts a new one in its place holds the lock.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Call, Program]] = []
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any], met: list[Path] | None = None) -> Any:
        """The result of the program that fits, or ``MISS``. ``met`` is told what Python reads first of values in this call, where programs
        that fit but for that have read it."""
        path: Path = ()
        for i, entry in enumerate(self._entries):
            if path and leaves_path(entry[1].joint.reads, path):
                continue
            try:
                result = entry[0](args, kwargs)
            except PathMiss as miss:
                path = (*(read.value for read in entry[1].joint.reads[: miss.read]), miss.value)
                continue
            if result is not MISS:
                self.hits += 1
                if i:
                    with self._lock:
                        if entry in self._entries:  # not if it had to go meanwhile
                            self._entries = [entry, *(e for e in self._entries if e is not entry)]
                return result
        if met is not None:
            met.append(path)
        return MISS

    def add(self, program: Program) -> None:
        with self._lock:
            self.misses += 1
            self._entries = [(program.run, program), *self._entries][:_AT_MOST]

    @property
    def programs(self) -> list[Program]:
        return [program for _, program in self._entries]

    def info(self) -> CacheInfo:
        return CacheInfo(self.hits, self.misses, _AT_MOST, len(self._entries))
