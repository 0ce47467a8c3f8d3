"""What is saved for backward: as remembered from an earlier process, or chosen anew; as is fastest, or as a budget allows."""

from __future__ import annotations

from collections.abc import Callable

from attrs import asdict, evolve

from ..backends.backend import Backend
from ..graphs import Joint
from ..options import ENVIRONMENT, Options
from ..partition.budget import within
from ..partition.cost import fused_costs
from ..partition.partition import Limit, Partition, fingerprint, partition
from ..runtime.store import Store, digest
from .definition import Definition, definition_line

_STORE = Store(ENVIRONMENT.cache_dir)


def split_joint(
    joint: Joint, definition: Definition, options: Options, backend: Backend, fuses: bool, peak_of: Callable[[Partition], int]
) -> Partition:
    """``fuses``: a value may be computed again in the kernel that reads it. ``peak_of``: the most bytes alive at a time, by the schedules
    of a partition."""
    apart, budget = definition.splits, options.memory_budget
    costs = fused_costs(joint.graph) if fuses else {}
    text = fingerprint(joint, costs, apart)
    name = digest(text) if budget is None else digest(text, backend.name, repr(budget))
    known = _STORE.get(name)
    if known is not None:
        split = partition(joint, costs, known["kept"], apart)
        if budget is None:
            return split
        split = evolve(split, limit=Limit(**known["limit"]) if known["limit"] else None)
        if split.limit is not None and peak_of(split) <= split.limit.nbytes:  # it may be of a version that schedules otherwise
            return split
    split = partition(joint, costs, None, apart)
    if budget is not None:
        split = within(joint, budget, split, apart, backend.fuses, peak_of, definition_line(definition.root))
    _STORE.put(name, {"kept": sorted(split.kept), "limit": asdict(split.limit) if split.limit else None})
    return split
