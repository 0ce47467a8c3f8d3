"""Minimum cut of a network, on scipy's maximum flow (int32 capacities)."""

from __future__ import annotations

import math
from collections.abc import Sequence

_LARGEST = 2**30  # scipy keeps flows in int32


def minimum_cut(
    tails: Sequence[int], heads: Sequence[int], capacities: Sequence[float], source: int, sink: int, n: int
) -> Sequence[bool]:
    """For each of ``n`` nodes, whether it is on the source side of a minimum cut; ``math.inf`` marks an edge that must
    not be cut.

    An edge (``tails[i]``, ``heads[i]``) is given once. Capacities are non-negative (bytes); they are scaled to fit
    int32, which rounds to 1 part in 2^28 of the sum of the finite ones. Raises ``ValueError`` where only infinite edges
    separate source and sink.
    """
    # scipy.sparse takes 0.15 s to import: a process whose partitions are all known from an earlier one does without
    import numpy as np  # noqa: PLC0415
    from scipy.sparse import csr_matrix  # noqa: PLC0415
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # noqa: PLC0415

    exact = np.array(capacities, dtype=np.float64)
    finite = exact != math.inf
    total = exact[finite].sum()
    scale = min(1.0, (_LARGEST / 2) / total) if total else 1.0
    rounded = np.where(exact > 0, np.maximum(1, np.rint(np.where(finite, exact, 0) * scale)), 0)
    capacity = np.where(finite, rounded, _LARGEST).astype(np.int32)
    network = csr_matrix((capacity, (np.array(tails, dtype=np.int32), np.array(heads, dtype=np.int32))), shape=(n, n))
    flow = maximum_flow(network, source, sink)
    if flow.flow_value >= _LARGEST:
        raise ValueError("source and sink are joined by a path that must not be cut")
    residual = network - flow.flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    on_source_side = np.zeros(n, dtype=bool)
    on_source_side[breadth_first_order(residual, source, directed=True, return_predecessors=False)] = True
    found: Sequence[bool] = on_source_side.tolist()
    return found
