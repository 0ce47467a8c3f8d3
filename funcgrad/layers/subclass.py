"""Tensor subclasses: flattened outside, unflattened inside of a trace. A kernel knows the plain tensors they are
made of."""

from __future__ import annotations

from collections.abc import Mapping

from ..slots import Signature, Slot, inner_path, inner_slot, outer_slot
from ..subclasses import Wrapping
from .effects import InnerOf, Wrapped
from .layer import Layer


def subclass(inner: Signature, wrappings: Mapping[Slot, Wrapping]) -> Layer | None:
    """No inner call sees a tensor subclass."""
    outer = Signature(
        tuple(dict.fromkeys(map(outer_slot, inner.ins))), tuple(dict.fromkeys(map(outer_slot, inner.outs)))
    )
    if outer == inner:
        return None
    makes = {slot: InnerOf(outer_slot(slot), inner_path(slot)) for slot in inner.ins if inner_path(slot)}
    made = {slot: wrappings[slot] for slot in outer.outs if slot in wrappings}
    recover = {slot: Wrapped(w, tuple(inner_slot(slot, path) for path in w.paths())) for slot, w in made.items()}
    # autograd knows the outer tensors; an inner one that requires grad, too, is nobody's business here
    return Layer("subclass", str(subclass.__doc__), outer, inner, makes, recover=recover, context="below_autograd()")
