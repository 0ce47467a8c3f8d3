"""Which memory is alive as a program goes on: pieces, each under the names that look at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..show.chart import Chart
from ..show.units import in_bytes


class Alive:
    """``history``: bytes alive at each moment, from the first that held memory."""

    def __init__(self) -> None:
        self.now = 0
        self.history: list[int] = []
        self._size: dict[Hashable, int] = {}
        self._names: Counter[Hashable] = Counter()
        self._held: dict[Hashable, Sequence[Hashable]] = {}

    @property
    def peak(self) -> int:
        return max(self.history, default=0)

    def hold(self, name: Hashable, memory: Mapping[Any, int], besides: int = 0) -> None:
        """From this moment a name looks at pieces of memory; ``besides``: bytes that are there at this moment alone."""
        for place, size in memory.items():
            if not self._names[place]:
                self._size[place] = size
                self.now += size
            self._names[place] += 1
        self._held[name] = tuple(memory)
        self.history.append(self.now + besides)

    def drop(self, name: Hashable) -> None:
        """A piece is gone with the last name that looks at it."""
        for place in self._held.pop(name, ()):
            self._names[place] -= 1
            self.now -= 0 if self._names[place] else self._size[place]


def chart_of(history: Sequence[int], border: int | None = None, limit: int | None = None) -> Chart:
    """Bytes over time, as a drawing."""
    label = "" if limit is None else f"budget {in_bytes(limit)}"
    return Chart(tuple(history), f"memory over time, at most {in_bytes(max(history, default=0))}", border, limit, label)
