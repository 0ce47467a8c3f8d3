"""Histories of inputs: a ``.backward()`` inside the function ends at the inputs of the kernel, whose gradients are
more results; before anything else is done to the caller's tensors, it goes on from these through the graph they were
computed in."""

from __future__ import annotations

from ..capture.facts import Facts
from ..slots import Onward, Signature
from .effects import GoOn
from .layer import Layer, replaced


def histories(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call goes backwards through the history of an input."""
    if not facts.backward_calls:
        return None
    leaves = tuple(slot for slot in signature.ins if facts.leaves.get(slot))  # type: ignore[arg-type]
    effects = tuple(
        GoOn(tuple(Onward(slot, i) for slot in call.slots), call.keeps_graph, call.written, leaves)
        for i, call in enumerate(facts.backward_calls)
    )
    inner = replaced(signature, outs=(*signature.outs, *facts.onward))
    return Layer("histories", str(histories.__doc__), signature, inner, effects=effects)
