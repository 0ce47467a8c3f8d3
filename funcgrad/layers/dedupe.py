"""Dedupe: one tensor object, one inner input."""

from __future__ import annotations

from ..capture.facts import Facts
from ..capture.views import View
from ..slots import Signature
from .layer import Layer, replaced


def dedupe(signature: Signature, facts: Facts) -> Layer | None:
    """Inner inputs are distinct objects."""
    first = facts.first_of_same
    if not first:
        return None
    inner = replaced(signature, ins=tuple(s for s in signature.ins if s not in first))
    return Layer(
        "dedupe", str(dedupe.__doc__), signature, inner, looks=tuple((slot, View(of)) for slot, of in first.items())
    )
