"""What a program assumes of Python state, as one reads it."""

from __future__ import annotations

import re

from .guards import Guard
from .hooks import module_of
from .names import package
from .settings import Setting


def shown(guard: Guard) -> str:
    return re.sub(r" at 0x[0-9a-f]+", "", guard.value_shown)


def is_read(guard: Guard) -> bool:
    """Whether a guard is on what the function reads, not on which object or class it is read of, or what code runs."""
    place = guard.place
    if place.kind == "class":
        return guard.how != "absent" and not hasattr(type(guard.value), "__get__")
    if place.kind == "slot":  # not the derivatives that an opaque call was given
        is_derivative = package(module_of(type(place.owner))) == "funcgrad" and not isinstance(place.owner, Setting)
        return not place.key.startswith("__") and not is_derivative
    return place.kind != "type" and guard.how != "special"
