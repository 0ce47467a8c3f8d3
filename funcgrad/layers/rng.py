"""Random numbers: drawn outside, once for each call, as a seed that everything random in the kernel is made of."""

from __future__ import annotations

from ..capture.facts import Facts
from ..slots import Seed, Signature
from .effects import Drawn
from .layer import Layer, replaced


def rng(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call draws a random number: it is given a seed."""
    if not facts.draws:
        return None
    # drawing it advances the generator: the next call gets another, and a generator set back the same one again
    seed = Seed("cpu")
    return Layer(
        "rng", str(rng.__doc__), signature, replaced(signature, ins=(*signature.ins, seed)), makes={seed: Drawn()}
    )
