"""The captured tensors of a function as inputs: a slot for each, by where it lives."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from torch import Tensor

from ..errors import UnresolvedCaptureWarning
from ..graphs import type_text
from ..slots import Arg, Captured
from ..state.lines import warn
from ..state.watch import Watch
from .captures import Lifted
from .facts import Source
from .inputs import CapturedTensor, GradientOf, Unresolved


def resolve(
    lifted: Sequence[Lifted],
    arguments: Sequence[tuple[Arg, Tensor]],
    watch: Watch,
    saved: Mapping[int, Tensor],
) -> tuple[CapturedTensor, ...]:
    """Where captured tensors live; gradients of inputs come last, since they are read from these. Those that a graph
    ``saved`` live there alone; what a tensor of a level that has ended wraps lives in that tensor."""
    gradients = {
        id(t.grad): t
        for t in (*(t for _, t in arguments), *(item.real for item in lifted))
        if t.is_leaf and t.grad is not None
    }
    lifted = sorted(lifted, key=lambda item: id(item.real) in gradients)
    slots: dict[int, Source] = {id(t): slot for slot, t in reversed(arguments)}
    ended = [saved[id(item.real)] for item in lifted if saved.get(id(item.real), item.real) is not item.real]
    places = watch.places_of([*(item.real for item in lifted), *ended])
    watch.held_ended |= {id(wrapper): (places[id(wrapper)], wrapper) for wrapper in ended if id(wrapper) in places}
    found: list[CapturedTensor] = []
    for item in lifted:
        origin = places.get(id(item.real)) or Unresolved()
        if id(item.real) in gradients:
            owner = slots[id(gradients[id(item.real)])]
            slot = _fresh(f"{owner}.grad", found)
            found.append(
                CapturedTensor(slot, item.real, type_text(item.real), item.real.requires_grad, GradientOf(owner))
            )
            continue
        if isinstance(origin, Unresolved) and id(item.real) not in saved:
            warn(
                f"the function uses a tensor {type_text(item.real)} ({item.where}) that could not be traced back to a "
                "variable or attribute: updates in place are seen, a rebinding is not. Pass it as an argument.",
                UnresolvedCaptureWarning,
            )
        slot = _fresh(origin.name or "captured", found)
        slots.setdefault(id(item.real), slot)
        found.append(CapturedTensor(slot, item.real, type_text(item.real), item.real.requires_grad, origin))
    return tuple(found)


def _fresh(name: str, found: Sequence[CapturedTensor]) -> Captured:
    """A slot of this name; numbered where two tensors would read the same."""
    slot, taken = Captured(name), {c.slot for c in found}
    for i in itertools.count(2):
        if slot not in taken:
            break
        slot = Captured(f"{name}#{i}")
    return slot
