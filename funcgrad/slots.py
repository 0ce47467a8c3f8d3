"""Slots: what a value *is*, never where it sits; a Signature lists them, each once.

``str(slot)`` is what messages and printed graphs show; ``identifier(slot)`` is its name in generated code.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import evolve, field, frozen

from .errors import GraphError


@frozen
class Arg:
    """A leaf of the caller's arguments; ``path`` reads as code: ``params['w'][0]``."""

    path: str

    def __str__(self) -> str:
        return self.path


@frozen
class Captured:
    """A tensor the function closes over, an input by reference; ``name`` reads as code: ``model.layer.weight``."""

    name: str

    def __str__(self) -> str:
        return self.name


@frozen
class State:
    """A number that the function reads of Python state, an input as a symbol; ``path`` reads as code:
    ``self.temperature``. ``kind`` is its type."""

    path: str
    kind: type = float

    def __str__(self) -> str:
        return self.path


@frozen
class Out:
    """A leaf of the function's result."""

    path: str

    def __str__(self) -> str:
        return f"out{self.path}"


@frozen
class Base:
    """The memory several inputs, or several outputs, look at: a synthetic base."""

    of: tuple[Slot, ...]

    def __str__(self) -> str:
        return f"base({', '.join(map(str, self.of))})"


@frozen
class InnerTensor:
    """A tensor that the value of a slot, a wrapper subclass, is made of: its attribute ``attr``."""

    of: Slot
    attr: str

    def __str__(self) -> str:
        return f"{self.of}.{self.attr}"


@frozen
class Seed:
    """A number drawn from the default generator of a device for one call: all that is random in the call is made of
    it."""

    device: str

    def __str__(self) -> str:
        return f"seed({self.device})"


Input = Arg | Captured | State | Base | InnerTensor | Seed
"""What can be an input of a forward pass."""


@frozen
class Final:
    """What a tensor that is written to holds in the end: after forward, or after the backward pass that writes to
    it."""

    of: Slot
    during: str = "forward"

    def __str__(self) -> str:
        return f"final({self.of}{'' if self.during == 'forward' else f', {self.during}'})"


@frozen
class NewMemory:
    """What the function gave an input as its memory (``x.data = y``)."""

    of: Input

    def __str__(self) -> str:
        return f"memory({self.of})"


@frozen
class Rewritten:
    """What an input holds in the end in memory that it was given, where what requires grad was written to that."""

    of: Input

    def __str__(self) -> str:
        return f"rewritten({self.of})"


@frozen
class Onward:
    """What a ``.backward()`` inside the function, the ``call``-th, hands on to what an input was computed from: the
    gradient of that input as it was given."""

    of: Input
    call: int

    def __str__(self) -> str:
        return f"onward({self.of}{f', {self.call}' if self.call else ''})"


@frozen
class NewGradient:
    """What the function leaves as the ``.grad`` of an input, where that is another tensor than before; or of what it
    returns."""

    of: Input | Out

    def __str__(self) -> str:
        return f"new({self.of}.grad)"


@frozen
class Stored:
    """A tensor the function leaves in Python state (``self.last = y``); ``name`` reads as code."""

    name: str

    def __str__(self) -> str:
        return f"stored({self.name})"


@frozen
class Late:
    """What an input holds when backward runs: its own value then, not the one forward saw."""

    of: Input

    def __str__(self) -> str:
        return f"late({self.of})"


@frozen
class Grad:
    """The gradient of an input."""

    of: Input

    def __str__(self) -> str:
        return f"grad({self.of})"


@frozen
class Cotangent:
    """The cotangent (incoming gradient) of an output; AOTAutograd calls it a tangent."""

    of: Slot

    def __str__(self) -> str:
        return f"cotangent({self.of})"


@frozen
class Saved:
    """An intermediate value kept between forward and backward; ``name`` is its name in the joint graph."""

    name: str

    def __str__(self) -> str:
        return f"saved({self.name})"


@frozen
class Without:
    """What backward gives (``of``) in a pass that was traced of its own, as no gradient comes in for the ``absent``
    outputs."""

    of: Slot
    absent: frozenset[Slot]

    def __str__(self) -> str:
        return f"{self.of} without {', '.join(sorted(map(str, self.absent)))}"


Given = NewMemory | Rewritten | NewGradient | Onward | Stored
"""What the function gives an input, what that is computed from, or Python state."""

Slot = (
    Arg | Captured | State | Out | Base | InnerTensor | Seed | Final | Given | Late | Grad | Cotangent | Saved | Without
)
_OF_ANOTHER = Final, Late, Grad, Cotangent, Without


def inner_slot(slot: Slot, path: Sequence[str]) -> Slot:
    """An inner tensor of the value of a slot: ``grad(x.a)`` is the ``a`` of the gradient of ``x``."""
    if isinstance(slot, _OF_ANOTHER):
        return evolve(slot, of=inner_slot(slot.of, path))  # type: ignore[arg-type]
    for attr in path:
        slot = InnerTensor(slot, attr)
    return slot


def outer_slot(slot: Slot) -> Slot:
    """The slot whose value an inner tensor is part of; any other is its own."""
    if isinstance(slot, _OF_ANOTHER):
        return evolve(slot, of=outer_slot(slot.of))  # type: ignore[arg-type]
    while isinstance(slot, InnerTensor):
        slot = slot.of
    return slot


def inner_path(slot: Slot) -> tuple[str, ...]:
    """The attributes that lead from the outer slot to this one; none for a slot that is no inner tensor."""
    if isinstance(slot, _OF_ANOTHER):
        return inner_path(slot.of)
    return (*inner_path(slot.of), slot.attr) if isinstance(slot, InnerTensor) else ()


def of_backward(slot: Slot) -> bool:
    """Whether an output slot is computed by the backward pass."""
    return isinstance(slot, (Grad, Without)) or (isinstance(slot, Final) and slot.during == "backward")


def identifier(slot: Slot) -> str:
    """A Python identifier that reads like the slot (not unique: the printer numbers clashes)."""
    return re.sub(r"\W+", "_", str(slot)).strip("_") or "value"


def _once(_: object, attribute: object, slots: tuple[Slot, ...]) -> None:
    seen: set[Slot] = set()
    for slot in slots:
        if slot in seen:
            raise GraphError(f"the slot {slot} appears twice in one signature")
        seen.add(slot)


@frozen
class Signature:
    """The inputs and outputs of a graph, in order; a slot appears once on each side."""

    ins: tuple[Slot, ...] = field(validator=_once)
    outs: tuple[Slot, ...] = field(validator=_once)

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.ins))}) -> ({', '.join(map(str, self.outs))})"
