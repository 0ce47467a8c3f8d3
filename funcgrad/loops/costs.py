"""What operations on elements cost, in additions. Partition, fusion, rematerialisation, stages and thread counts read
it here."""

from __future__ import annotations

import math
from collections.abc import Mapping

from attrs import frozen

from .gather import Gather
from .scan import Scan
from .scatter import Scatter
from .values import Map, Reduce, Value, Within


@frozen
class Cost:
    """``alone``: of one element that is computed where it is needed; ``in_lanes``: of one of many in a row of a loop,
    as vectors; ``is_dear``: whether so much that a value is worth a loop, or memory, of its own."""

    alone: float = 1.0
    in_lanes: int = 1
    is_dear: bool = False


_GATHERED = 4.0
"""Reading an element at an index that is data."""

_ADDITION = Cost()
_FUNCTION = Cost(20.0, 8, is_dear=True)
_DIVISION = Cost(8.0)

COSTS: Mapping[str, Cost] = dict.fromkeys(
    (
        "exp log sin cos tan tanh sigmoid erf erfc expm1 log1p log2 log10 exp2 asin acos atan sinh cosh asinh acosh "
        "atanh pow atan2 hypot "
        "philox0 philox1"
    ).split(),
    _FUNCTION,
) | dict.fromkeys("div reciprocal sqrt rsqrt fmod remainder erfcx".split(), _DIVISION)
"""Of all operations but those that cost what an addition does."""


def cost_of(op: str) -> Cost:
    """The cost of an operation by its name."""
    return COSTS.get(op, _ADDITION)


def own_cost(value: Value, in_lanes: bool = False) -> float:
    """What an element of a value costs that is made of others at hand; infinite where that takes a loop of its own.
    A tensor of many is computed ``in_lanes`` where kernels are fused."""
    if isinstance(value, (Reduce, Scan, Scatter)):
        return math.inf
    if isinstance(value, Map):
        return cost_of(value.op).in_lanes if in_lanes else cost_of(value.op).alone
    if isinstance(value, Gather):
        return _GATHERED
    return _ADDITION.alone if isinstance(value, Within) else 0.0  # whether it is within bounds is one comparison


def is_dear(value: Value) -> bool:
    """Whether a value is the result of one dear operation."""
    return isinstance(value, Map) and cost_of(value.op).is_dear
