"""How often Python's garbage collector looks at all objects of the process, while something is compiled."""

from __future__ import annotations

import gc
from collections.abc import Iterator

from .inside import OfProcess

_TIMES = 10
_of_caller: tuple[int, int, int] | None = None
"""The thresholds that the caller has set, where others stand in for them."""


def _rare(thresholds: tuple[int, int, int]) -> tuple[int, int, int]:
    young, middle, old = thresholds
    return young, middle, _TIMES * old


@OfProcess
def full_collections_are_rare() -> Iterator[None]:
    """A compilation makes objects by the hundred thousand and keeps them until it ends: full collections took a seventh
    of its time, and found nothing. Whoever calls ``gc.collect`` has one."""
    global _of_caller
    _of_caller = gc.get_threshold()
    gc.set_threshold(*_rare(_of_caller))
    yield
    as_the_caller_has_set()


def thresholds_of_caller() -> tuple[int, int, int]:
    """What ``gc.get_threshold`` would say if nothing were compiled."""
    now = gc.get_threshold()
    # else the caller's code has set others since
    return _of_caller if _of_caller is not None and now == _rare(_of_caller) else now


def as_the_caller_has_set() -> None:
    """They are as rare as the caller has said again: code is to run that asks for it."""
    global _of_caller
    gc.set_threshold(*thresholds_of_caller())
    _of_caller = None
