"""The inverse of what happens around a kernel, which the trace runs: from what the kernel is given to what the
function sees."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..autograd_state import with_history_of
from ..slots import Base, Slot
from .views import View, take


@frozen
class Inverse:
    """What a list of statements means inside of the kernel (``layers.inverse``).

    ``looks``, in the order in which they are taken: the inputs of the function that are none of the kernel's, and the
    memory in between. ``written``: the inputs that the function writes to, or restrides. ``keys``: what all that is
    random in the function is made of.
    """

    looks: tuple[tuple[Slot, View], ...] = ()
    written: frozenset[Slot] = frozenset()
    keys: tuple[Slot, ...] = ()

    def __call__(
        self, given: Mapping[Slot, Any], own: Callable[[Slot, Any], Any]
    ) -> tuple[dict[Any, Any], dict[Slot, Tensor]]:
        """What the function sees, by the caller's slots; and the tensor that holds the memory of each input, by that
        of the input or of what inputs are views of. ``own``: the value of an input of the kernel as the function may
        treat it."""
        # they bring the history of what is looked at alone
        carriers = {slot for slot, look in self.looks if look.computed}
        looked_at = {look.of for _, look in self.looks if look.steps}
        seen = {
            slot: value if slot in carriers else own(slot, value)
            for slot, value in given.items()
            if slot not in self.keys
        }
        memory = {slot: value for slot, value in seen.items() if isinstance(value, Tensor) and slot not in carriers}
        for slot, look in self.looks:
            with torch.enable_grad():
                value = take(memory[look.of], look.steps) if look.steps else seen[look.of]
            if look.leaf:
                seen[slot] = value.detach().requires_grad_(seen[slot].requires_grad)
            else:
                seen[slot] = with_history_of(value, seen[slot]) if look.computed else value
            if slot in looked_at or look.leaf:
                memory.setdefault(slot, seen[slot])
        return {slot: value for slot, value in seen.items() if not isinstance(slot, Base)}, memory
