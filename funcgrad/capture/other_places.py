"""Where tensors live in Python state, besides the place from which a call takes them."""

from __future__ import annotations

import array
import weakref
from collections.abc import Sequence, Set
from typing import Any

import numpy as np
from attrs import evolve
from torch import Tensor

from .. import refusals
from ..slots import Base
from ..state.effects import Effect, Grow, Refill, Store
from ..state.guards import Guard
from ..state.places import Place
from ..state.state import with_brought
from ..state.watch import Watch
from ..torch_private.tensors import storage_bytes
from ..trees import Container
from .facts import Facts, Source
from .inputs import Inputs


def with_homes(facts: Facts, watch: Watch, inputs: Inputs) -> Facts:
    """Facts that say of what is read whether there may be another one of it in each call."""
    origins = [watch.lasting(c.origin) if isinstance(c.origin, Place) else c.origin for c in facts.captured]
    captured = tuple(evolve(c, origin=at) for c, at in zip(facts.captured, origins, strict=True))
    if not inputs.renewed:
        return evolve(facts, captured=captured)
    read = [*(g.place for g in facts.state.guards), *(place for place, _ in watch.tensors.values())]
    read += [*(at for at in origins if isinstance(at, Place)), *(place for _, place in facts.numbers)]
    return evolve(facts, captured=captured, state=with_brought(facts.state, watch, read, inputs.renewed))


def with_containers(facts: Facts, watch: Watch, inputs: Inputs, containers: Sequence[Container]) -> Facts:
    """Facts that say which containers among the arguments are one object, and that none is one of Python state, where
    code may compare them: that of the ``containers`` that it is given."""
    shared = {own: first for own, first in inputs.one.items() if own != first}
    facts = evolve(facts, one=inputs.one if watch.said.compares_objects else shared)
    if not containers or not watch.compares_identities:
        return facts
    given = {inputs.identities[variable] for variable in inputs.one}
    renewed = {id(guard.place.read()): guard.place for guard in facts.state.guards if guard.how == "shape"}
    kinds = {type(own.value) for own in containers}
    known = frozenset(id(value) for value in watch.known if type(value) in kinds) - renewed.keys()
    if given & (known | renewed.keys()):
        where = next((str(g.place) for g in facts.state.guards if id(g.place.read()) in given), "Python state")
        raise refusals.COMPARES_CONTAINERS(where, where=where)
    apart_from = (*facts.apart_from, *renewed.values())
    return evolve(facts, one=inputs.one, apart=facts.apart | known, apart_from=apart_from)


def require_apart_from_arrays(facts: Facts, watch: Watch, inputs: Inputs, written: Sequence[Effect]) -> None:
    """Raise where an array of Python state, NumPy's or of bytes, lies in the memory of an input, and one of them is
    written to: a program has read the other by then."""
    arrays = [met for met in watch.met.values() if isinstance(met.container, _ARRAYS)]
    refilled = {id(effect.container) for effect in written if isinstance(effect, (Refill, Grow))}
    changed: set[Any] = {slot for slot, change in facts.changes.items() if change.data or change.in_backward}
    changed |= {member for slot in changed if isinstance(slot, Base) for member in slot.of}
    tensors = [*inputs.tensors, *((c.slot, c.tensor) for c in facts.captured if c.tensor is not None)]
    for met in (met for met in arrays if watch.uses(met.container, met.name)):
        for slot, tensor in tensors:
            if (slot in changed or id(met.container) in refilled) and _share_memory(met.container, tensor):
                raise refusals.SHARED_WITH_ARRAY(met.name, slot, where=met.name)


_ARRAYS = (np.ndarray, bytearray, array.array)


def _share_memory(held: Any, tensor: Tensor) -> bool:
    own = held if isinstance(held, np.ndarray) else np.frombuffer(held or b"\0", np.uint8)
    while isinstance(own.base, np.ndarray):
        own = own.base
    memory, start = storage_bytes(tensor), own.ctypes.data
    return memory.start < start + own.nbytes and start < memory.stop


def other_places(
    facts: Facts, watch: Watch, inputs: Inputs, written: Sequence[Effect], given: Set[Any]
) -> tuple[tuple[tuple[Place, Source], ...], tuple[Place, ...], tuple[Guard, ...]]:
    """Where inputs live besides the place they are read from; where code that compares objects found tensors that are
    no inputs, and may find others; and guards for tensors that were met, and are no inputs. ``written``: what the
    function has written to Python state, in its backward pass, too; ``given``: the identities of places at which what
    is given by value lives."""
    slot_of: dict[int, Source] = {id(c.tensor): c.slot for c in facts.captured}
    slot_of |= {id(t): slot for slot, t in reversed(inputs.tensors)}
    first = {c.origin.identity for c in facts.captured if isinstance(c.origin, Place)}
    held = [(p, t) for p, t in watch.tensors.values() if p.identity not in first and p.read() is t]
    met = slot_of.keys() | {id(t) for _, t in held}
    left = [(p, t) for key, (p, t) in watch.assigned.items() if key not in watch.tensors and p.identity not in first]
    held += [(place, t) for place, t in left if id(t) in met]
    also = tuple((place, slot_of[id(t)]) for place, t in held if id(t) in slot_of)
    stored = {effect.place.location for effect in written if isinstance(effect, Store)}
    refilled = {id(effect.container) for effect in written if isinstance(effect, Refill)}
    refilled |= {owner for kind, owner, _ in stored if kind == "item"}  # the next call may store under another key
    unused = [(place, t) for place, t in held if id(t) not in slot_of]
    # another one in each call, or after it
    stored |= {p.location for p, _ in unused if id(p.root) in facts.state.brought.parts}
    renewed = {id(t) for place, t in unused if place.identity in given or place.is_renewed(stored, refilled)}
    renewed -= watch.keys.keys()
    guards = [Guard(p, *((type(t), "a tensor") if id(t) in renewed else (weakref.ref(t), "tensor"))) for p, t in unused]
    origins = [(c.origin, c.tensor) for c in facts.captured if isinstance(c.origin, Place)]
    compares, kept = watch.said.compares_objects, {place.identity for place, _ in left}
    for place, t in unused:
        if id(t) not in renewed:
            continue
        others = [
            (p, o is t)
            for p, o in (*held, *origins)
            # a store that changes nothing: it does where they are two
            if p.identity != place.identity and (compares or (o is t and kept & {p.identity, place.identity}))
        ]
        for how, is_one in (("one", True), ("apart", False)):
            if own := tuple(p for p, one in others if one == is_one):
                guards.append(Guard(place, own, how))
    guards += [guard for place, t in unused for guard in watch.lacking(place, t)]
    used = [(place, t) for place, t in (*origins, *held) if id(t) in slot_of and id(t) in watch.keys]
    guards += [Guard(place, weakref.ref(t), "tensor") for place, t in used]
    return also, tuple(place for place, t in unused if compares and id(t) in renewed), tuple(guards)
