"""Sobol sequences. PyTorch computes them where tensors lie, by functions of which no mode hears below; in a trace they
are operators that return what they would have written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..generators import define
from ..torch_private.quasirandom import DRAW, FAST_FORWARD, INITIALIZE_STATE, SCRAMBLE


def _written(by: Callable[..., Tensor], takes: str) -> Callable[..., Tensor]:
    """A function that writes to its first argument, by an operator that returns what it writes."""
    returned = define(
        f"sobol{by.__name__.removeprefix('_sobol_engine').rstrip('_')}(Tensor state, {takes}) -> Tensor",
        lambda state, *rest: by(state.clone(memory_format=torch.contiguous_format), *rest),
        lambda state, *_: torch.empty_like(state, memory_format=torch.contiguous_format),
    )
    return lambda state, *rest: state.copy_(returned(state, *rest))


_drawn = define(
    "sobol_draw(Tensor quasi, SymInt n, Tensor state, int dimension, SymInt before, ScalarType? dtype) "
    "-> (Tensor, Tensor)",
    lambda quasi, n, state, dimension, before, dtype: DRAW(quasi.clone(), n, state, dimension, before, dtype=dtype),
    lambda quasi, n, state, dimension, before, dtype: (
        quasi.new_empty(n, dimension, dtype=dtype),
        torch.empty_like(quasi, memory_format=torch.contiguous_format),
    ),
)
SOBOL_SEQUENCES: dict[Any, Callable[..., Any]] = {
    INITIALIZE_STATE: _written(INITIALIZE_STATE, "int dimension"),
    SCRAMBLE: _written(SCRAMBLE, "Tensor matrices, int dimension"),
    FAST_FORWARD: _written(FAST_FORWARD, "SymInt n, Tensor directions, int dimension, SymInt before"),
    DRAW: lambda quasi, n, state, dimension, before, dtype: _drawn(quasi, n, state, dimension, before, dtype),
}
"""What is called instead while tracing."""
