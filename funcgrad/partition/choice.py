"""What is saved for backward: as remembered from an earlier process, or chosen anew; as is fastest, or as a budget
allows."""

from __future__ import annotations

from collections.abc import Callable

from attrs import asdict, evolve

from ..cache.store import Store, digest
from ..joint import Joint
from ..loops.lower import Target
from ..options import ENVIRONMENT
from .budget import within
from .cost import fused_costs
from .partition import Limit, Partition, fingerprint, partition

_STORE = Store(ENVIRONMENT.cache_dir)


def choose_partition(
    joint: Joint,
    budget: int | float | None,
    backend: str,
    target: Target,
    peak_of: Callable[[Partition], int],
    where: str | None,
) -> Partition:
    """``target``: what the backend compiles for. ``peak_of``: the most bytes alive at a time, by the schedules of a
    partition. ``where``: the line of the function, for errors."""
    is_split = joint.is_split
    costs = fused_costs(joint.graph, target) if target.fuses and is_split else {}
    text = fingerprint(joint, costs, is_split)
    name = digest(text) if budget is None else digest(text, backend, repr(target.machine), repr(budget))
    known = _STORE.get(name)
    if known is not None:
        split = partition(joint, costs, known["kept"], is_split)
        if budget is None:
            return split
        split = evolve(split, limit=Limit(**known["limit"]) if known["limit"] else None)
        # it may be of a version that schedules otherwise
        if split.limit is not None and peak_of(split) <= split.limit.nbytes:
            return split
    split = partition(joint, costs, None, is_split)
    if budget is not None:
        split = within(joint, budget, split, is_split, target, peak_of, where)
    _STORE.put(name, {"kept": sorted(split.kept), "limit": asdict(split.limit) if split.limit else None})
    return split
