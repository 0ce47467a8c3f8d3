"""The backward halves of a program, one for each choice of incoming gradients."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

from attrs import define, field, frozen

from ..backends.backend import Runnable
from ..errors import RecompileWarning
from ..graphs import Graph
from ..slots import Final, Grad, Slot
from ..state.lines import warn

AT_MOST = 64
_MANY = 16

_TOLD = (
    "backward passes of {} come from other results each time: {} halves of it were compiled, and the last {} are kept. "
    "Differentiate from the same results, or compile what computes each of them apart."
)

Key = tuple[frozenset[Slot], frozenset[Slot]]
"""The outputs for which no gradient comes in, and the inputs of which none is asked for."""


@frozen(eq=False)
class Half:
    """The backward half of a program, for a pass with some of the incoming gradients.

    ``run`` takes what backward is given, without those that are not there, and returns what ``outs`` names: the
    gradients of the inputs at these places, then what is written to inputs and outputs (``Final``).
    """

    run: Runnable
    outs: tuple[Slot, ...]
    gradients: tuple[int, ...]
    graph: Graph

    @staticmethod
    def of(run: Runnable, outs: tuple[Slot, ...], ins: Sequence[Slot], graph: Graph) -> Half:
        """A half that gives ``outs``, of a program of these inputs."""
        return Half(run, outs, tuple(ins.index(slot.of) for slot in outs if isinstance(slot, Grad)), graph)

    @property
    def written(self) -> list[Final]:
        """What it writes to."""
        return [slot for slot in self.outs if isinstance(slot, Final)]


@define(eq=False)
class Halves:
    """Those that were asked for most recently."""

    _made: OrderedDict[Key, Half] = field(factory=OrderedDict)
    _n: int = 0
    """How many were made."""
    _lock: Any = field(factory=threading.Lock)

    def found(self, key: Key, make: Callable[[frozenset[Slot], frozenset[Slot]], Half], name: str) -> Half:
        """The half for a key; made when it is first asked for."""
        if (half := self._made.get(key)) is not None:
            with contextlib.suppress(KeyError):  # another thread may have dropped it since
                self._made.move_to_end(key)
            return half
        with self._lock:
            if key not in self._made:
                half = make(*key)
                if len(self._made) == AT_MOST:
                    self._made.popitem(last=False)
                self._made[key] = half
                self._n += 1
                warn_of_many(self._n, name)
            return self._made[key]


def warn_of_many(n: int, name: str) -> None:
    """Where that is the ``n``-th half of one program."""
    if n == _MANY:
        warn(_TOLD.format(name, n, AT_MOST), RecompileWarning)
