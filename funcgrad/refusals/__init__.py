"""All that a trace refuses, one row each: the class of the error, what it says, and what to do instead.

The tests read the rows (each has a call that comes to it, and a call as its fix says, which works), and so do the
ceilings of random programs and ``docs/refusals.md``.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..errors import FuncgradError, Refusal
from . import memory, random_numbers, tracing
from .memory import *  # noqa: F403 # who refuses says refusals.NAME
from .random_numbers import *  # noqa: F403
from .tracing import *  # noqa: F403

REFUSALS: Mapping[str, Refusal[FuncgradError]] = {
    name: row
    for module in (memory, tracing, random_numbers)
    for name, row in vars(module).items()
    if isinstance(row, Refusal)
}
"""By name."""
