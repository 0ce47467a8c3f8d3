"""Containers among the arguments of a call. A trace is given copies; what the function stores into these, a program
stores into those of each call."""

from __future__ import annotations

import collections
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import frozen

from .. import refusals
from ..trees import Container
from .names import attributes_of, slots_of
from .places import Constant

ATTRIBUTES = ".__dict__"
OF_ITEMS = (dict, list, collections.deque)


def given_of(container: Container) -> Iterator[Container]:
    """What stores into a container are seen in: itself, for its items and slots, and the dict of its attributes. Those
    into a tuple, of which a class may have attributes, are not."""
    if isinstance(container.value, tuple):
        return
    value, attributes = container.value, attributes_of(container.value)
    if isinstance(value, OF_ITEMS) or slots_of(type(value)):
        yield container
    if attributes is not None and attributes is not value:
        yield Container(attributes, container.path + ATTRIBUTES, container.variable + ATTRIBUTES)


def with_parts(container: Container) -> Iterator[Container]:
    """A container, and what stores into it are seen in."""
    yield container
    yield from (own for own in given_of(container) if own is not container)


def is_watched(container: Container) -> bool:
    """Whether all that is stored into a container is seen: other code takes apart what is registered."""
    return any(True for _ in given_of(container))


@frozen(eq=False)
class IntoArguments:
    """The containers that a call brings, of which ``written`` are stored into: no two may be one, and none that Python
    state holds (``held``, identities), of which ``stored`` are stored into: none of those that are given."""

    given: Sequence[Container] = ()
    written: Sequence[Container] = ()
    held: frozenset[int] = frozenset()
    stored: frozenset[int] = frozenset()

    def lines(self, constant: Constant, otherwise: str) -> Iterator[str]:
        """Python lines that run ``otherwise`` where a store would be seen in another place, too."""
        texts = [given.variable for given in self.given if not isinstance(given.value, tuple)]
        if self.written and len(texts) > 1:
            yield f"if len({{*map(id, ({', '.join(texts)}))}}) != {len(texts)}: {otherwise}"
        for held, names in ((self.held, [own.variable for own in self.written]), (self.stored, texts)):
            if held and names:
                yield f"if not {constant(held)}.isdisjoint(map(id, ({', '.join(names)},))): {otherwise}"


def into_arguments(
    given: Sequence[Container], stored_into: Iterable[Any], held: Iterable[int], identities: Mapping[str, int]
) -> IntoArguments:
    """What a program stores into its arguments. ``held``: the identities of containers of Python state;
    ``identities``: those of the call, by their variables.

    Raises ``MutationError`` for a container that is in two places.
    """
    into = set(map(id, stored_into))
    written = tuple(own for own in given if id(own.value) in into)
    held = frozenset(held)
    stored = held & into
    times = Counter(identities.values())
    for own in given if written or stored else ():
        real = identities[own.variable]
        if (id(own.value) in into and (times[real] > 1 or real in held)) or real in stored:
            raise refusals.STORES_INTO_SHARED(own.path, where=own.path)
    return IntoArguments(given, written, held, stored) if written or (stored and given) else IntoArguments()
