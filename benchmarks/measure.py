"""How calls are timed: interleaved between the contestants, medians. It knows nothing of a checkout, so that two can
be compared."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any


def interleaved_medians(
    contestants: Mapping[str, Callable[[], Any]], rounds: int = 30, calls: int = 1
) -> dict[str, float]:
    """Median seconds a call, each contestant timed in turn in every round (so that drift of the machine hits all
    alike)."""
    for call in contestants.values():
        call()
        call()
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, call in contestants.items():
            times[name].append(seconds_of(call, calls))
    return {name: statistics.median(t) for name, t in times.items()}


def budgeted_medians(
    contestants: Mapping[str, Callable[[], Any]], rounds: int = 30, turn: float = 0.01, budget: float = 1.0
) -> dict[str, float]:
    """As ``interleaved_medians``, of contestants that may be far apart: a turn repeats a call for about ``turn``
    seconds, and one whose turns would take more than ``budget`` seconds in all takes part in fewer rounds (at least
    five), spread over all. The order is another one in each round, and before a turn all rest for a moment: threads
    of one that wait by spinning would take the time of the next (``jax.jit``'s made the one that always came next up
    to 2.7 times slower)."""
    calls, share = {}, {}
    for name, call in contestants.items():
        call()
        seconds = min(seconds_of(call, 1), seconds_of(call, 1))
        calls[name] = max(1, round(turn / seconds))
        share[name] = max(5, min(rounds, int(budget / (seconds * calls[name]))))
    times: dict[str, list[float]] = {name: [] for name in contestants}
    shuffle = random.Random(0)
    for i in range(rounds):
        for name, call in shuffle.sample(sorted(contestants.items()), len(contestants)):
            if (i * share[name]) // rounds == ((i + 1) * share[name]) // rounds:
                continue
            time.sleep(_REST)
            if calls[name] > 1:
                call()  # what ran before has left its own data in the caches
            times[name].append(seconds_of(call, calls[name]))
    return {name: statistics.median(t) for name, t in times.items()}


_REST = 0.03


def seconds_of(call: Callable[[], Any], calls: int) -> float:
    """Seconds of one of so many calls, on average."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls
