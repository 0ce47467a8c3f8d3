"""Synthetic bases: inputs that overlap in memory, where it is written to, go in as one tensor they are all views of."""

from __future__ import annotations

import warnings

from ..capture.facts import Facts
from ..capture.memory import BaseOf
from ..capture.views import View
from ..errors import LargeBaseWarning
from ..show.units import in_bytes
from ..slots import Signature, Slot
from .effects import Recipe
from .layer import Layer, replaced

_WARN_ABOVE = 8
"""How many times larger than the views a base may be before it is worth a word: all of it is computed and copied."""


def synthetic_base(signature: Signature, facts: Facts) -> Layer | None:
    """No memory an inner call writes to is reached through two inputs."""
    needed = facts.needed_overlaps()
    if not needed:
        return None
    ins: list[Slot] = list(signature.ins)
    makes: dict[Slot, BaseOf] = {}
    recover: dict[Slot, Recipe] = {}
    for overlap in needed:
        if overlap.base_bytes > _WARN_ABOVE * overlap.member_bytes:
            warnings.warn(
                f"{' and '.join(map(str, overlap.base.of))} overlap and are written to: all of their base "
                f"({in_bytes(overlap.base_bytes)}) is computed and copied, for {in_bytes(overlap.member_bytes)}: "
                "pass views of a smaller tensor",
                LargeBaseWarning,
                stacklevel=2,
            )
        members = [slot for slot, _ in overlap.views]
        at, carriers = min(map(ins.index, members)), facts.carriers(overlap)
        ins[at:at] = [overlap.base, *carriers]
        ins = [slot for i, slot in enumerate(ins) if slot not in members or at < i <= at + len(carriers)]
        makes[overlap.base] = overlap.found
        makes |= {f.slot: f.found for f in overlap.families if f.found is not None and f.slot in carriers}
        recover |= {slot: View(overlap.base, steps or ()) for slot, steps in overlap.views}
    return Layer("synthetic base", str(synthetic_base.__doc__), signature, replaced(signature, ins=tuple(ins)), makes, recover)
