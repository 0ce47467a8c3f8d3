"""Walks along what follows what: nodes of a graph, nodes of autograd, what a value is made of."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def reached(starts: Iterable[T], following: Callable[[T], Iterable[T]]) -> Iterator[T]:
    """What a walk starts with, and all that follows: each once, before what follows it."""
    pending, seen = [*starts], set[T]()
    while pending:
        one = pending.pop()
        if one not in seen:
            seen.add(one)
            yield one
            pending += following(one)


def after(starts: Iterable[T], following: Callable[[T], Iterable[T]], known: Container[T] = ()) -> Iterator[T]:
    """What a walk starts with, and all that follows but what is ``known``: each once, after what follows it."""
    pending, seen = [(one, False) for one in starts], set[T]()
    while pending:
        one, is_next = pending.pop()
        if is_next:
            yield one
        elif one not in seen and one not in known:
            seen.add(one)
            pending += [(one, True), *((other, False) for other in following(one))]
