"""Where what was found lives: the place from which a call takes it."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve
from torch import Tensor

from .found import Found
from .names import attributes_of, item_name, joined
from .places import Place


class Homes(Found):
    """Says where tensors live that were found."""

    def places_of(self, wanted: Sequence[Tensor]) -> dict[int, Place]:
        """By identity, the first place of each tensor that was read from one that is known, or lies in a container
        that was met."""
        found = {id(tensor): place for place, tensor in reversed(self.tensors.values())}
        missing = {id(t) for t in wanted} - found.keys()
        for met in self.met.values() if missing else ():
            if isinstance(met.container, (dict, list, collections.deque)):
                for key, value in met.items:
                    if id(value) in missing or isinstance(value, tuple):
                        name = item_name(met.name, key) if met.of is None else joined(met.name, str(key))
                        inside = _in_tuples(Place("item", met.container, key, name), value)
                        found = {id(v): place for place, v in inside if id(v) in missing} | found
        for kind, had in self.classes.items():
            for name, value in had.items():
                if id(value) in missing:
                    found.setdefault(id(value), Place.on_class(kind, name))
        return found

    def lasting(self, place: Place) -> Place:
        """Where a tensor lives that was found in a container, if there may be another one in each call."""
        places: Sequence[Place] = self._places.get(id(place.owner), ())
        is_one = not places or id(place.owner) in self.written or isinstance(place.owner, Place)
        return place if is_one else evolve(place, owner=places[0])

    def from_root(self, place: Place) -> Place:
        """The same place, where its owner may be another object in each call."""
        known = {id(attributes_of(g.value)): g.place for g in reversed(self._guards.values()) if g.how == "is"}
        if (of := known.get(id(place.owner))) is None or of.owner is place.owner:
            return self.lasting(place)
        return evolve(place, owner=Place("slot", self.from_root(of), "__dict__", of.name))


def _in_tuples(place: Place, value: Any) -> Iterator[tuple[Place, Any]]:
    """A value, and what is in it if it is a tuple."""
    yield place, value
    for i, item in enumerate(value) if isinstance(value, tuple) else ():
        yield from _in_tuples(Place("item", place, i, item_name(place.name, i)), item)
