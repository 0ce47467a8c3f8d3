"""What statements mean inside of the kernel: nobody writes the inverse of a layer by hand."""

from __future__ import annotations

from collections.abc import Iterable

from ..capture.inverse import Inverse
from ..capture.views import View
from ..slots import Slot
from .effects import CopyBack, Drawn, Restride, SetStorage
from .statements import Do, Make, Statement, Within


def inverse_of(statements: Iterable[Statement]) -> Inverse:
    """Read the other way: the function writes to what is copied back, and sees what the kernel is not given as what
    it is made of."""
    looks: list[tuple[Slot, View]] = []
    keys: list[Slot] = []
    written: set[Slot] = set()
    elsewhere: set[Slot] = set()
    for statement in statements:
        match statement:
            case Within(slot, view):
                looks.append((slot, view))
            case Make(slot, Drawn()):
                keys.append(slot)
            case Do(SetStorage(target)):
                elsewhere.add(target)  # what is done to it from here on is done to other memory
            case Do((CopyBack() | Restride()) as effect) if effect.target not in elsewhere:
                written.add(effect.target)
    return Inverse(tuple(looks), frozenset(written), tuple(keys))
