"""What the engine hands over with a run of a captured backward pass, and which of its sizes are symbols."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..subclasses import inner_tensors
from ..torch_private.tensors import is_wrapper_subclass, storage_id
from .tokens import Ref


@frozen(eq=False)
class Run:
    """What the engine hands over with a run."""

    inputs: list[Any]
    sizes: Sequence[int]
    scalars: Sequence[Any]
    hooks: Sequence[Any]
    packed: Sequence[Any]

    def read(self, ref: Ref) -> Any:
        return getattr(self, str(ref.of))[ref.at]

    def number(self, place: tuple[int, int]) -> float:
        """What the node of a region among the hooks has saved at a position."""
        context, i = place
        return float(self.hooks[context].scalars[i])


@frozen(eq=False)
class Symbolic:
    """Which sizes are symbols. ``dims``: by input, each symbolic dimension with the first ``(input, dimension)`` of
    its size; ``sizes``: the same for the sizes the engine hands over; those in ``alone`` are sizes of no input."""

    dims: Mapping[int, Mapping[int, tuple[int, int]]] = {}
    sizes: Mapping[int, tuple[int, int]] = {}
    alone: tuple[int, ...] = ()
    numbers: bool = True
    """Whether the floats that regions have saved are symbols."""
    inlines: bool = True
    """Whether the backward halves of regions are part of the graph, and no calls."""

    @property
    def varies(self) -> bool:
        """Whether any size is a symbol."""
        return bool(self.dims or self.alone)


def has_wrapped(run: Run) -> bool:
    """Whether a run is given wrapper subclasses."""
    return any(map(is_wrapper_subclass, run.inputs))


def memory_ids(tensor: Tensor) -> list[int]:
    """The memory that a tensor lies in: of a wrapper subclass, that of its inner tensors."""
    if type(tensor) in (Tensor, torch.nn.Parameter):
        return [storage_id(tensor)]
    return list(map(storage_id, inner_tensors(tensor)))
