"""What a budget costs at least, by an integer program: an oracle for the search of ``funcgrad.partition.budget``.

After Jain et al., Checkmate (MLSys 2020), for programs that compute a value again at most once. A relaxation: of what
computing a value again takes only the value itself is counted, and forward takes nothing, so that no choice costs less
than its optimum.
"""

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix


def least_cost(model, budget, seconds=20.0):
    """A lower bound of the cost of every choice whose peak is within ``budget``; 0 where the solver finds none in
    time."""
    base = model.run(model.always)
    moments = {i: t for t, i in enumerate(base.order) if model._late[i]}
    late = sorted(moments)
    steps, last = len(late), len(late) - 1
    alive = np.zeros(steps)
    for t, i in enumerate(late):
        alive[t] = sum(
            p.nbytes for p in base.pieces if p.is_again and model._late[p.node] and p.start <= moments[i] <= p.end
        )
    reads = [set(model.sources(i, ())) - set(late) for i in late]
    values, pending = set(), set().union(*reads)
    while pending:
        i = pending.pop()
        if i not in values and not model._given[i]:
            values.add(i)
            if model.repeatable[i]:
                pending |= set(model.sources(i, ()))
    values = sorted(values)
    size = {i: sum(model.sizes[p] for p in set(model.places[i])) for i in values}
    direct = {i: max((t for t in range(steps) if i in reads[t]), default=-1) for i in values}
    saved = {i: k for k, i in enumerate(values)}
    again = {(i, t): len(values) + k * steps + t for k, i in enumerate(values) for t in range(steps)}
    there = {key: v + len(values) * steps for key, v in again.items()}
    n = len(values) * (1 + 2 * steps)
    rows, columns, entries, lows = [], [], [], []

    def at_least(low, *terms):
        for variable, factor in terms:
            rows.append(len(lows))
            columns.append(variable)
            entries.append(factor)
        lows.append(low)

    for i in values:
        for t in range(steps):
            if t:
                at_least(0, (again[i, t], 1), (again[i, t - 1], -1))
            if i in reads[t]:
                at_least(1, (saved[i], 1), (again[i, t], 1))
            if t <= direct[i]:
                at_least(0, (there[i, t], 1), (saved[i], -1))
                at_least(0, (there[i, t], 1), (again[i, t], -1))
            for p in set(model.sources(i, ())) & saved.keys():
                at_least(0, (saved[p], 1), (again[p, t], 1), (again[i, t], -1))
                late_child = [(again[i, last], -1), (again[i, t - 1], 1)] if t else [(again[i, last], -1)]
                at_least(-1, (there[p, t], 1), (saved[p], -1), *late_child)
                at_least(-1, (there[p, t], 1), (again[p, t], -1), (again[i, last], -1), (again[i, t], 1))
    for t in range(steps):
        at_least(alive[t] - budget, *((there[i, t], -size[i]) for i in values))
    cost = np.zeros(n)
    upper = np.ones(n)
    for i in values:
        cost[again[i, last]] = model.cost(i)
        if not model.repeatable[i]:
            upper[[again[i, t] for t in range(steps)]] = 0
    scale = max(cost.max(), 1)
    matrix = coo_matrix((entries, (rows, columns)), shape=(len(lows), n))
    integral = np.zeros(n)
    integral[: len(values) * (1 + steps)] = 1
    found = milp(
        cost / scale, integrality=integral, bounds=Bounds(0, upper), constraints=LinearConstraint(matrix, lows, np.inf),
        options={"time_limit": seconds, "mip_rel_gap": 0.01},
    )  # fmt: skip
    bound = found.mip_dual_bound if found.mip_dual_bound is not None else 0.0
    return bound * scale
