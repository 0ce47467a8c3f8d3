"""Metadata mutation (``x.t_()``), taken away up front: nothing further in knows that there is such a thing."""

from __future__ import annotations

from ..capture.facts import Facts
from ..slots import Signature
from .layer import Layer, Restride


def restride(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call changes the sizes or strides of an input."""
    effects = tuple(Restride(slot, change.restrides) for slot, change in facts.changes.items() if change.restrides)
    return Layer("restride", str(restride.__doc__), signature, signature, effects=effects) if effects else None
