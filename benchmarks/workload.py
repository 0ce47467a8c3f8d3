"""What a workload is: a function of tensors and what is asked of it, with the same function in jax.numpy beside it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from attrs import frozen
from torch import Tensor

try:
    import jax
    import jax.numpy as jnp
except ImportError:  # a peer that need not be there
    jax = jnp = None  # type: ignore[assignment]

Tree = Any
"""A dict, list or tuple of tensors, nested; or a tensor."""

Transform = Literal["value_and_grad", "per_sample", "hvp", "plain"]
"""``value_and_grad``: of ``loss(p, *data)`` by ``p``. ``per_sample``: gradients by ``p``, mapped over the first
dimension of the data. ``hvp``: the derivative of the gradient by ``p`` in a direction, inputs ``(p, direction,
*data)``. ``plain``: the function itself."""


@frozen
class Workload:
    """One row of the benchmark.

    ``inputs(small)`` makes the arguments, the same ones every time; ``small`` ones are for tests. ``loss`` is PyTorch,
    ``jax_loss`` the same in jax.numpy.
    """

    name: str
    inputs: Callable[[bool], tuple[Tree, ...]]
    loss: Callable[..., Any]
    jax_loss: Callable[..., Any]
    transform: Transform = "value_and_grad"


class Draws:
    """Numbers from one seed."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def normal(self, *size: int, scale: float = 1.0) -> Tensor:
        return torch.randn(size, generator=self._generator) * scale

    def integers(self, high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=self._generator)

    def matrix(self, rows: int, columns: int) -> Tensor:
        """Weights that keep the variance of what they are applied to."""
        return self.normal(rows, columns, scale=rows**-0.5)
