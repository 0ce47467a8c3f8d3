"""Minimum cut of a small network, on scipy's maximum flow (int32 capacities)."""

from __future__ import annotations

import math
from collections.abc import Mapping

_LARGEST = 2**30  # scipy keeps flows in int32


def minimum_cut(edges: Mapping[tuple[int, int], float], source: int, sink: int, n: int) -> set[int]:
    """The nodes on the source side of a minimum cut of ``n`` nodes; ``math.inf`` marks an edge that must not be cut.

    Capacities are finite non-negative numbers (bytes); they are scaled to fit int32, which rounds to 1 part in 2^30 of
    their sum. Raises ``ValueError`` where only infinite edges separate source and sink.
    """
    # scipy.sparse takes 0.15 s to import: a process whose partitions are all known from an earlier one does without
    import numpy as np  # noqa: PLC0415
    from scipy.sparse import csr_matrix  # noqa: PLC0415
    from scipy.sparse.csgraph import breadth_first_order, maximum_flow  # noqa: PLC0415

    total = sum(c for c in edges.values() if c != math.inf)
    scale = min(1.0, (_LARGEST / 2) / total) if total else 1.0
    items = [(a, b, c) for (a, b), c in edges.items() if c > 0]
    if not items:
        return {source}
    rows, columns = np.array([a for a, _, _ in items]), np.array([b for _, b, _ in items])
    capacity = np.array([_LARGEST if c == math.inf else max(1, round(c * scale)) for _, _, c in items], dtype=np.int32)
    network = csr_matrix((capacity, (rows, columns)), shape=(n, n))
    flow = maximum_flow(network, source, sink)
    if flow.flow_value >= _LARGEST:
        raise ValueError("source and sink are joined by a path that must not be cut")
    residual = network - flow.flow
    residual.data[residual.data < 0] = 0
    residual.eliminate_zeros()
    reached = breadth_first_order(residual, source, directed=True, return_predecessors=False)
    return set(map(int, reached))
