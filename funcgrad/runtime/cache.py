"""The programs of one compiled function, most recently used first."""

from __future__ import annotations

import threading
from collections import namedtuple
from typing import Any

from .call import MISS, Call
from .program import Program

CacheInfo = namedtuple("CacheInfo", "hits misses maxsize currsize")
"""As ``functools.lru_cache`` reports: calls that found a program, calls that compiled, the bound, the programs held."""

_AT_MOST = 64


class ProgramCache:
    """At most 64 programs; the one used least recently goes first. ``find`` runs the first program that fits.

    A list of entries never changes: other threads may be walking it. Who puts a new one in its place holds the lock.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Call, Program]] = []
        self._lock = threading.Lock()
        self.hits = 0
        self.misses = 0

    def find(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the program that fits, or ``MISS``."""
        for i, entry in enumerate(self._entries):
            result = entry[0](args, kwargs)
            if result is not MISS:
                self.hits += 1
                if i:
                    with self._lock:
                        if entry in self._entries:  # not if it had to go meanwhile
                            self._entries = [entry, *(e for e in self._entries if e is not entry)]
                return result
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
