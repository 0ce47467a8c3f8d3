"""Synthetic bases: inputs that overlap in memory, where it is written to, go in as one tensor they are all views of."""

from __future__ import annotations

from ..capture.facts import Facts
from ..capture.memory import BaseOf
from ..capture.views import Step, View
from ..errors import LargeBaseWarning
from ..show.units import in_bytes
from ..slots import Signature, Slot
from ..state.lines import warn
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
    looks: list[tuple[Slot, View]] = []
    for overlap in needed:
        if overlap.base_bytes > _WARN_ABOVE * overlap.member_bytes:
            warn(
                f"{' and '.join(map(str, overlap.base.of))} overlap and are written to: all of their base "
                f"({in_bytes(overlap.base_bytes)}) is computed and copied, for {in_bytes(overlap.member_bytes)}: "
                "pass views of a smaller tensor",
                LargeBaseWarning,
            )
        members = [slot for slot, _ in overlap.views]
        at, carriers = min(map(ins.index, members)), facts.carriers(overlap)
        ins[at:at] = [overlap.base, *carriers]
        ins = [slot for i, slot in enumerate(ins) if slot not in members or at < i <= at + len(carriers)]
        makes[overlap.base] = overlap.found
        makes |= {f.slot: f.found for f in overlap.families if f.found is not None and f.slot in carriers}
        looks += [
            (f.slot, _look(overlap.base, f.steps, f.slot in carriers, facts.is_leaf(f.slot))) for f in overlap.families
        ]
        families = [(f.slot, f.views) for f in overlap.families] or [(overlap.base, overlap.views)]
        itself = overlap.itself if overlap.itself is not None and not facts.is_view(overlap.itself) else None
        looks += [
            (slot, View(of) if slot == itself or (slot == of and facts.is_leaf(slot)) else _look(of, steps))
            for of, views in families
            for slot, steps in views
        ]
    return Layer(
        "synthetic base",
        str(synthetic_base.__doc__),
        signature,
        replaced(signature, ins=tuple(ins)),
        makes,
        tuple(looks),
    )


def _look(of: Slot, steps: tuple[Step, ...] | None, is_carried: bool = False, is_leaf: bool = False) -> View:
    assert steps is not None, "an overlap without such views is refused when it is written to"
    return View(of, steps, computed=is_carried, leaf=is_carried and is_leaf)
