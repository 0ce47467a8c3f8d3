"""Other memory (``x.data = y``, ``x.set_(y)``, ``x.resize_(n)``): what is in it is one more result, and the caller's tensor takes it at
the end."""

from __future__ import annotations

from ..capture.facts import Facts
from ..slots import NewMemory, Signature
from .effects import SetStorage
from .layer import Layer, replaced


def storage(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call gives an input other memory."""
    if not facts.stores:
        return None
    effects = tuple(SetStorage(slot, NewMemory(slot), how) for slot, how in facts.stores.items())
    inner = replaced(signature, outs=(*signature.outs, *(e.source for e in effects)))
    return Layer("storage", str(storage.__doc__), signature, inner, effects=effects)
