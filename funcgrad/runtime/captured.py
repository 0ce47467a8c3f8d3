"""What the first half of the pipeline gives: a call as a key, layers, and a joint graph."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from attrs import evolve, frozen
from torch import Tensor

from ..capture.facts import Facts
from ..capture.inner import Inner
from ..capture.inputs import Inputs, Symbolic
from ..joint import Joint
from ..layers.layer import Layer, statements_of
from ..layers.stack import inner_values
from ..layers.statements import Statement
from ..slots import Captured, Signature, Slot
from .key import CallKey


@frozen(eq=False)
class Around:
    """All that stands around the kernel of a call: what the call is printed of.

    ``is_pure``: whether the kernel is all that it does, but for what it prints: nothing is written to outside of it,
    and no generator is used. ``examples``: the leaves and captured tensors of a call that fits.
    """

    root: Callable[..., Any] | None
    grad: bool
    is_pure: bool
    key: CallKey
    facts: Facts
    statements: tuple[Statement, ...]
    joint: Joint
    examples: tuple[Any, ...]

    def released(self) -> Around:
        """The same, without the tensors of a call: what a program keeps."""
        return evolve(self, facts=self.facts.released(), examples=())


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

    def around(self, layers: tuple[Layer, ...], joint: Joint) -> Around:
        """What the call is printed of, with these layers around the kernel of a joint graph."""
        is_pure = not (self.facts.state.written or self.facts.generators or any(layer.effects for layer in self.layers))
        examples = (*self.inputs.leaves, *self.tensors.values())
        statements = statements_of(layers, self.outer)
        return Around(self.root, self.grad, is_pure, self.key, self.facts, statements, joint, examples)

    @property
    def values(self) -> dict[Slot, Any]:
        """What the kernel is given in this call."""
        values = inner_values(statements_of(self.layers, self.outer), self.inputs, self.facts)
        numbers = (v.value if isinstance(v, Symbolic) else v for v in values)
        return dict(zip(self.inner.signature.ins, numbers, strict=True))
