"""What a backward pass reads that forward may have read, or written, before it, and anybody since."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ..slots import Slot
from ..state.guards import Guard
from ..state.late import Late, ReadInBackward
from ..state.places import Place
from ..state.watch import Watch
from ..state.written import Written
from .facts import Facts, Source


def late_reads(
    watch: Watch,
    facts: Facts,
    guards: Sequence[Guard],
    also: Sequence[tuple[Place, Source]],
    left: Written | None,
    read_in_forward: Collection[int],
) -> Late:
    """Of a run that a watch has followed. ``also``: where inputs live besides; ``left``: what its forward pass has
    written to; ``read_in_forward``: the captured tensors that this reads, by identity."""
    read = ReadInBackward(watch)
    if not read:
        return Late()
    alone = [c for c in facts.captured if id(c.tensor) not in read_in_forward]
    places = {id(c.tensor): c.slot for c in facts.captured if id(c.tensor) in read_in_forward}
    held = [(places[id(t)], place) for place, t in watch.tensors.values() if id(t) in places]
    tensors: list[tuple[Slot, Any]] = [(c.slot, c.origin) for c in alone if isinstance(c.origin, Place)]
    tensors += [(slot, place) for slot, place in (*held, *((s, p) for p, s in also)) if read.place(place)]
    stores = [] if left is None else list(left.places)
    contents = [] if left is None else [own for own in left.containers if read.container(own)]
    stored = {place.location for place in stores}
    return Late(
        tuple(filter(read.guard, guards)),
        tuple((slot, place) for slot, place in facts.numbers if not place.is_renewed(stored, ()) and read.place(place)),
        tuple(tensors),
        frozenset(c.slot for c in alone),
        (*filter(read.place, stores), *(Place("itself", own, None, "") for own in contents)),
    )
