"""Output aliasing: an output that is an input, a view of one, or a view of memory several outputs share, is taken
from the caller's own tensors when everything that is written to them has been written."""

from __future__ import annotations

from ..capture.facts import Facts
from ..capture.views import View
from ..slots import NewGradient, Signature, Slot
from .effects import (
    DeadEnd,
    Effect,
    MakeInference,
    MakeParameter,
    RequireGrad,
    RetainGrad,
    SetAttribute,
    SetGradient,
)
from .layer import Layer, replaced


def alias_outputs(signature: Signature, facts: Facts) -> Layer | None:
    """Inner outputs are neither inputs nor views of inputs, and autograd need not know that any two share memory."""
    slots = dict(zip(signature.outs, (o for o in facts.outputs if o.is_dynamic), strict=True))
    views: dict[Slot, View] = {slot: output.view for slot, output in slots.items() if output.view is not None}
    # the others are another one
    made = {slot: output for slot, output in slots.items() if slot not in views or views[slot].steps}
    parameters = tuple(MakeParameter(slot, output.is_leaf) for slot, output in made.items() if output.is_parameter)
    inference = tuple(MakeInference(slot) for slot, output in made.items() if output.is_inference)
    leaves = tuple(RequireGrad(slot) for slot, output in made.items() if output.is_leaf and not output.is_parameter)
    attributes = tuple(
        SetAttribute(slot, name, value) for slot, output in made.items() for name, value in output.attributes
    )
    ends = tuple(DeadEnd(slot) for slot, o in slots.items() if o.requires_grad and not o.is_leaf and slot not in views)
    ends = () if facts.differentiable else ends
    retained = tuple(RetainGrad(slot) for slot, output in made.items() if output.retains_grad)
    gradients = tuple(
        SetGradient(slot, NewGradient(slot), slot in facts.unlike_gradients) for slot in facts.result_gradients
    )
    outs = (*(s for s in signature.outs if s not in views or views[s].computed), *facts.bases)
    effects: tuple[Effect, ...] = (*leaves, *ends, *parameters, *inference, *attributes, *retained, *gradients)
    if not views and not effects:
        return None
    return Layer(
        "outputs", str(alias_outputs.__doc__), signature, replaced(signature, outs=outs), recover=views, effects=effects
    )
