"""Results of a call from which others are computed, while Python listens to them (a hook, ``retain_grad()``).

All results are of one node of autograd, and the gradient of a result does not go through another one: who listens
there would hear of a part of it.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .. import refusals
from ..autograd_state import has_hooks

Results = dict[int, weakref.ref[Tensor]]
"""Of a call, by their places among its outputs."""


def require_unheard(ctx: Any, incoming: Sequence[Tensor | None]) -> None:
    """Raise ``ResultError`` where a gradient comes in for what is computed of a result to which somebody listens.
    ``ctx``: the node of the call."""
    for i, others in ctx.program.at.through.items():
        result = ctx.results[i]() if any(incoming[k] is not None for k in others) else None
        if result is not None and (result.retains_grad or has_hooks(result)):
            raise refusals.HEARD_THROUGH_RESULT(where=f"the backward pass of a call, result {i}")
