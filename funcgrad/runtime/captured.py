"""What the first half of the pipeline gives: a call as a key, layers, and a joint graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import frozen
from torch import Tensor

from ..capture.facts import Facts
from ..capture.inner import Inner
from ..capture.inputs import Inputs, Symbolic
from ..joint import Joint
from ..layers.layer import Layer, statements_of
from ..layers.stack import inner_values
from ..slots import Captured, Signature, Slot
from .key import CallKey


@frozen(eq=False)
class CapturedCall:
    """A call for ``inputs``: the ``key`` of calls it holds for, ``layers`` around a kernel, and the ``joint`` graph of
    that kernel.

    ``root``: the caller's function. ``grad``: whether what it returns may have a history. ``tensors``: those it reads
    that are no arguments. ``refused``: what calling ``backward()`` will raise, where the function cannot be
    differentiated, as in eager PyTorch.
    """

    root: Callable[..., Any]
    grad: bool
    inputs: Inputs
    tensors: Mapping[Captured, Tensor]
    facts: Facts
    key: CallKey
    outer: Signature
    layers: tuple[Layer, ...]
    inner: Inner
    joint: Joint
    refused: Exception | None

    @property
    def is_pure(self) -> bool:
        """Whether its kernel is all it does, but for what it prints: nothing is written to outside of it, and no
        generator is used."""
        return not (self.facts.state.written or self.facts.generators or any(layer.effects for layer in self.layers))

    @property
    def values(self) -> dict[Slot, Any]:
        """What the kernel is given in this call."""
        values = inner_values(statements_of(self.layers, self.outer), self.inputs, self.facts)
        numbers = (v.value if isinstance(v, Symbolic) else v for v in values)
        return dict(zip(self.inner.signature.ins, numbers, strict=True))
