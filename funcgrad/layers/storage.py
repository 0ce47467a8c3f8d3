"""Other memory (``x.data = y``, ``x.set_(y)``): what is in it is one more result, and the caller's
tensor takes it at the end. What requires grad and was written there is written once more, so that autograd hears of
it."""

from __future__ import annotations

from ..capture.facts import Facts
from ..slots import NewMemory, Rewritten, Signature
from .effects import CopyBack, Restride, SetStorage
from .layer import Layer, replaced


def storage(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call gives an input other memory, nor changes its sizes or strides from then on."""
    if not facts.stores:
        return None
    effects = tuple(SetStorage(slot, NewMemory(slot), given.how) for slot, given in facts.stores.items())
    restrides = tuple(Restride(slot, given.restrides) for slot, given in facts.stores.items() if given.restrides)
    rewritten = tuple(CopyBack(s, Rewritten(s), "plain") for s, given in facts.stores.items() if given.tracked)
    late = [slot for slot, given in facts.stores.items() if given.how != "data" or given.restrides]
    moved = [slot for slot, given in facts.stores.items() if given.how == "data" and given.written]
    version_bumps = tuple(dict.fromkeys([*moved, *late]) if facts.differentiable else moved)
    inner = replaced(signature, outs=(*signature.outs, *(e.source for e in effects), *(e.source for e in rewritten)))
    return Layer(
        "storage",
        str(storage.__doc__),
        signature,
        inner,
        effects=(*effects, *restrides, *rewritten),
        version_bumps=version_bumps,
        bumps_within=facts.differentiable,
    )
