"""A layer is data: one sentence about every inner call, and what must happen around the kernel for it to be true.

``outer`` and ``inner`` are signatures over slots. ``makes`` says how the inner inputs that are no outer ones are made,
``effects`` what happens to the caller's tensors when the kernel has run, ``recover`` how outer inputs (in the trace) and
outer outputs (in the call) are had from inner ones. The layers of a call are printed as one flat function (``printing.py``);
``layer(kernel)`` prints and builds that function for one layer alone, so that layers also compose as decorators.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NewType

from attrs import frozen

from ..capture.views import View
from ..show.parts import Doc, Table, Text
from ..show.shown import Shown
from ..slots import Signature, Slot
from .effects import Effect, Recipe
from .printing import wrap

OuterIndex = NewType("OuterIndex", int)
"""The position of a value in a layer's outer signature."""

InnerIndex = NewType("InnerIndex", int)
"""The position of a value in a layer's inner signature: never where an ``OuterIndex`` is asked for (checked by type)."""


@frozen(eq=False, repr=False)
class Layer(Shown):
    """See the module's docstring. ``context``: Python entered around the kernel.

    ``version_bumps``: inputs whose version counters the kernel moves on, before it saves anything for backward, and no effect does: what
    it saves may share these counters.
    """

    name: str
    sentence: str
    outer: Signature
    inner: Signature
    makes: Mapping[Slot, Recipe] = {}
    recover: Mapping[Slot, Recipe] = {}
    effects: tuple[Effect, ...] = ()
    context: str = ""
    version_bumps: tuple[Slot, ...] = ()

    def outer_index(self, slot: Slot) -> OuterIndex:
        """Where an input stands in the outer signature."""
        return OuterIndex(self.outer.ins.index(slot))

    def inner_index(self, slot: Slot) -> InnerIndex:
        """Where an input stands in the inner signature."""
        return InnerIndex(self.inner.ins.index(slot))

    def inner_of(self, index: OuterIndex) -> InnerIndex | None:
        """Where the inner call has the value of an outer input: under its own slot, or as the one it is recovered from."""
        slot: Slot = self.outer.ins[index]
        while slot in self.recover and isinstance(recipe := self.recover[slot], View):
            slot = recipe.of
        return self.inner_index(slot) if slot in self.inner.ins else None

    def __call__(self, kernel: Callable[..., Sequence[Any]]) -> Callable[..., tuple[Any, ...]]:
        """The kernel with this layer around it: takes the outer inputs, returns the outer outputs."""
        return wrap((self,), self.outer, kernel)

    def boxed(self, kernel: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The same for a kernel that takes its inputs in a list, and empties it: so does the result."""
        return wrap((self,), self.outer, kernel, is_boxed=True)

    def doc(self) -> Doc:
        rows = [(str(slot), f"= {recipe}") for slot, recipe in self.makes.items()]
        rows += [(str(slot), f"= {recipe}") for slot, recipe in self.recover.items()]
        rows += [("afterwards", str(effect)) for effect in self.effects]
        rows += [("around", self.context)] if self.context else []
        signature = Text(f"outer {self.outer}\ninner {self.inner}")
        return Doc(f"layer {self.name}", (Text(self.sentence), signature, *((Table(("", ""), tuple(rows)),) if rows else ())))


def replaced(signature: Signature, *, ins: tuple[Slot, ...] | None = None, outs: tuple[Slot, ...] | None = None) -> Signature:
    """The same signature with other inputs or outputs."""
    return Signature(signature.ins if ins is None else ins, signature.outs if outs is None else outs)
