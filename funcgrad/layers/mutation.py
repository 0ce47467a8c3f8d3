"""Data mutation: the inner call computes what inputs hold in the end, and the caller's tensors get it afterwards."""

from __future__ import annotations

from ..capture.facts import Facts
from ..slots import Final, Signature, Slot
from ..subclasses import HowWritten
from .effects import CopyBack
from .layer import Layer, replaced


def mutation(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call writes to an input."""
    written = {slot: change.data for slot, change in facts.changes.items() if change.data and slot in signature.ins}
    if not written:
        return None
    effects = tuple(
        CopyBack(
            slot,
            Final(slot),
            _how(slot, data, facts),
            slot in facts.subclasses,
            data == "tracked" and not facts.differentiable,
        )
        for slot, data in written.items()
    )
    inner = replaced(signature, outs=(*signature.outs, *(e.source for e in effects)))
    early = {e.target for e in effects if facts.shares_memory(e.target) or facts.changes[e.target].restrides}  # type: ignore[index]
    version_bumps = tuple(
        e.target for e in effects if e.how != "unversioned" and facts.differentiable and e.target in early
    )
    return Layer(
        "mutation",
        str(mutation.__doc__),
        signature,
        inner,
        effects=effects,
        version_bumps=version_bumps,
        bumps_within=facts.differentiable,
    )


def _how(slot: Slot, data: str, facts: Facts) -> HowWritten:
    if data == "unversioned":
        return "unversioned"
    # a tensor that requires grad, written to under no_grad, keeps its history: a leaf stays a leaf. So does one in
    # memory of others: once one of these has a history, so has their base
    tracked = (
        facts.requires_grad(slot) or slot in facts.switches or (facts.differentiable and facts.shares_memory(slot))
    )
    return "detached" if data == "detached" and tracked else "plain"
