"""What happens around a kernel: a list of statements, in the order in which they happen.

A layer says at which moment each of its statements takes place; a stack is one list, by moments. Whoever reads the list
(the printer of the call is one of them) decides about no order.
"""

from __future__ import annotations

import enum

from attrs import frozen

from ..capture.views import View
from ..slots import Slot
from .effects import Effect, Recipe


class Moment(enum.IntEnum):
    """When a statement takes place. Those of one moment follow the layers from outside, those ``FROM_INSIDE`` the
    other way."""

    INPUTS = enum.auto()
    """The kernel's inputs that are none of the call."""
    FIRST = enum.auto()
    """Nothing has come to require grad."""
    REQUIRED = enum.auto()
    """Inputs come to require grad."""
    BEFORE = enum.auto()
    """Views of inputs are taken that nothing has been written to."""
    VERSIONS = enum.auto()
    """Version counters are read, and those are moved which the kernel's saved values share."""
    WITHIN = enum.auto()
    """What the kernel is not given is said."""
    KERNEL = enum.auto()
    WRAPPED = enum.auto()
    """What the kernel returned is put together."""
    RETURNED = enum.auto()
    """Views are taken of what the kernel returned."""
    WRITES = enum.auto()
    """The caller's tensors get what they hold in the end."""
    LOOKED = enum.auto()
    """Views are taken of that, and of what inputs look like in the end, which inputs are given."""
    GIVEN = enum.auto()
    """Inputs are given other memory."""
    WRITTEN = enum.auto()
    """Views are taken of what inputs look like in the end."""
    GRADIENTS = enum.auto()
    """Inputs get gradients, which may be such views."""
    LAST = enum.auto()
    """Outputs become leaves, parameters, get gradients."""


FROM_INSIDE = (Moment.WITHIN, Moment.WRITES)


@frozen
class Make:
    """``slot`` is what ``recipe`` makes."""

    slot: Slot
    recipe: Recipe

    def __str__(self) -> str:
        return f"{self.slot} = {self.recipe}"


@frozen
class Bump:
    """Version counters move on, as those of tensors do that are written to."""

    slots: tuple[Slot, ...]

    def __str__(self) -> str:
        return f"bump the versions of {', '.join(map(str, self.slots))}"


@frozen
class NoteVersions:
    """The version counters of inputs are read, before any is moved."""

    slots: tuple[Slot, ...]

    def __str__(self) -> str:
        return f"note the versions of {', '.join(map(str, self.slots))}"


@frozen
class Within:
    """The kernel is not given ``slot``: within it, that is ``view``. So it is in the call, too, and nothing happens
    there."""

    slot: Slot
    view: View

    def __str__(self) -> str:
        return f"within, {self.slot} is {self.view}"


KERNEL = "kernel"
"""What the kernel is called in printed calls."""


@frozen
class Run:
    """The kernel runs, in contexts."""

    ins: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    contexts: tuple[str, ...] = ()

    def __str__(self) -> str:
        outs, ins = (", ".join(map(str, slots)) for slots in (self.outs, self.ins))
        within = f" in {', '.join(self.contexts)}" if self.contexts else ""
        call = f"{KERNEL}({ins}){within}"
        return f"{outs} = {call}" if outs else call


@frozen
class Do:
    """An effect on a tensor of the caller's; ``quiet``: its version counter has been moved before."""

    effect: Effect
    quiet: bool = False

    def __str__(self) -> str:
        return str(self.effect)


Statement = Make | Bump | NoteVersions | Within | Run | Do
