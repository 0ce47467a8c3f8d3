"""The op table: one row for each ATen operator that becomes loops. Whoever must know something of an operator reads it
here.

A row is a function from the operator's arguments (tensors as values) to the value of its result, or ``NotImplemented``
where this call is better left to the library. An operator without a row runs as ATen.
"""

from . import (  # noqa: F401
    rows_formulas,
    rows_gather,
    rows_linalg,
    rows_losses,
    rows_norms,
    rows_pointwise,
    rows_pool,
    rows_products,
    rows_put,
    rows_random,
    rows_reads,
    rows_reduce,
    rows_scan,
    rows_scatter,
    rows_views,
)
from .rows import TABLE

__all__ = ["TABLE"]
