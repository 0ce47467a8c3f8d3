"""Metadata mutation (``x.t_()``), taken away up front: nothing further in knows that there is such a thing."""

from __future__ import annotations

from ..capture.facts import Facts
from ..slots import Signature
from .effects import Restride
from .layer import Layer


def restride(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call changes the sizes or strides of an input."""
    written = {member for overlap in facts.needed_overlaps() for member in overlap.base.of}
    effects = tuple(
        Restride(s, change.restrides, s in written) for s, change in facts.changes.items() if change.restrides
    )
    moves = facts.differentiable or any(o.view is not None and o.view.steps for o in facts.outputs)
    moved = [slot for slot, change in facts.changes.items() if change.moved]
    bumped = tuple(e.target for e in effects if e.moves) if moves else ()
    if not effects and not moved:
        return None
    return Layer(
        "restride",
        str(restride.__doc__),
        signature,
        signature,
        effects=effects,
        version_bumps=(*bumped, *moved),
        bumps_within=facts.differentiable,
    )
