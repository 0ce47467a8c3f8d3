"""Live ranges: from when to when the things live that a sequence of moments uses."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Mapping
from typing import Generic, TypeVar

from attrs import frozen

T = TypeVar("T", bound=Hashable)


@frozen(eq=False)
class Lifetimes(Generic[T]):
    """At which moment each thing is used ``first``, and ``last``; and what is ``dying`` at each moment, in the order
    in which it is used there: what is used last then, and is not ``lasting``."""

    first: Mapping[T, int]
    last: Mapping[T, int]
    dying: tuple[tuple[T, ...], ...]

    @staticmethod
    def of(uses: Iterable[Iterable[T]], lasting: Container[T] = ()) -> Lifetimes[T]:
        """``uses``: what each moment reads and makes."""
        used = [tuple(dict.fromkeys(things)) for things in uses]
        first: dict[T, int] = {}
        last: dict[T, int] = {}
        for moment, things in enumerate(used):
            last.update(dict.fromkeys(things, moment))
            for thing in things:
                first.setdefault(thing, moment)
        dying = (
            tuple(t for t in things if last[t] == moment and t not in lasting) for moment, things in enumerate(used)
        )
        return Lifetimes(first, last, tuple(dying))
