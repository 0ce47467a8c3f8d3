"""What operations on elements cost, in additions. Partition, fusion, rematerialisation, stages and thread counts read
it here, for the machine that they choose for.
"""

from __future__ import annotations

import math

from ..machine import Cost, Machine
from .gather import Gather
from .scan import Scan
from .scatter import Scatter
from .values import Map, Reduce, Value, Within

_ADDITION = Cost()

ROW = 16
"""Elements of a row for which one more number is nothing to read, or to keep."""

FUNCTIONS = frozenset(
    (
        "exp log sin cos tan tanh sigmoid erf erfc expm1 log1p log2 log10 exp2 asin acos atan sinh cosh asinh acosh "
        "atanh pow atan2 hypot "
        "philox0 philox1"
    ).split()
)
"""Operations that are dear: a value is worth a loop, or memory, of its own."""

TURNS = ("sin", "cos")
"""Functions of an angle: most of the work on both is the same."""

DIVISIONS = frozenset("div reciprocal sqrt rsqrt fmod remainder erfcx".split())
"""With them, all operations but those that cost what an addition does."""


def cost_of(op: str, machine: Machine) -> Cost:
    """The cost of an operation by its name."""
    return machine.function if op in FUNCTIONS else machine.division if op in DIVISIONS else _ADDITION


def own_cost(value: Value, machine: Machine, in_lanes: bool = False) -> float:
    """What an element of a value costs that is made of others at hand; infinite where that takes a loop of its own.
    A tensor of many is computed ``in_lanes`` where kernels are fused."""
    if isinstance(value, (Reduce, Scan, Scatter)):
        return math.inf
    if isinstance(value, Map):
        cost = cost_of(value.op, machine)
        return cost.in_lanes if in_lanes else cost.alone
    if isinstance(value, Gather):
        return machine.gathered
    return _ADDITION.alone if isinstance(value, Within) else 0.0  # whether it is within bounds is one comparison


def is_dear(value: Value) -> bool:
    """Whether a value is the result of one dear operation."""
    return isinstance(value, Map) and value.op in FUNCTIONS
