"""Other memory (``x.data = y``, ``x.set_(y)``): what is in it is one more result, and the caller's
tensor takes it at the end."""

from __future__ import annotations

from ..capture.facts import Facts
from ..slots import NewMemory, Signature
from .effects import Restride, SetStorage
from .layer import Layer, replaced


def storage(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call gives an input other memory, nor changes its sizes or strides from then on."""
    if not facts.stores:
        return None
    effects = tuple(SetStorage(slot, NewMemory(slot), given.how) for slot, given in facts.stores.items())
    restrides = tuple(Restride(slot, given.restrides) for slot, given in facts.stores.items() if given.restrides)
    late = [slot for slot, given in facts.stores.items() if given.how != "data" or given.restrides]
    moved = [slot for slot, given in facts.stores.items() if given.how == "data" and given.written]
    version_bumps = tuple(dict.fromkeys([*moved, *late]) if facts.differentiable else moved)
    inner = replaced(signature, outs=(*signature.outs, *(e.source for e in effects)))
    return Layer(
        "storage",
        str(storage.__doc__),
        signature,
        inner,
        effects=(*effects, *restrides),
        version_bumps=version_bumps,
        bumps_within=facts.differentiable,
    )
