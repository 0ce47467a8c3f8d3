"""What only leaves have: a gradient (``.backward()`` inside, ``x.grad = g``), and whether they require one
(``requires_grad_()``).

A new gradient is one more result, which the caller's tensor, or another result, gets at the end. Whoever comes to
require grad does so before the kernel runs, so that what is computed has a history.
"""

from __future__ import annotations

from ..capture.facts import Facts, Source
from ..slots import NewGradient, Signature
from .effects import RequireGrad, SetGradient
from .layer import Layer, replaced


def leaves(signature: Signature, facts: Facts) -> Layer | None:
    """No inner call sets the gradient of an input, or whether it requires one."""
    if not facts.gradients and not facts.switches and not facts.result_gradients:
        return None
    gradients = tuple(
        SetGradient(slot, NewGradient(slot) if is_new else None, is_new and _is_earlier(facts, slot))
        for slot, is_new in facts.gradients.items()
    )
    switches = tuple(RequireGrad(slot, on) for slot, calls in facts.switches.items() for on in calls)
    given = [e.source for e in gradients if e.source is not None]
    inner = replaced(signature, outs=(*signature.outs, *given, *map(NewGradient, facts.result_gradients)))
    return Layer("leaves", str(leaves.__doc__), signature, inner, effects=(*gradients, *switches))


def _is_earlier(facts: Facts, slot: Source) -> bool:
    change = facts.change_of(slot)
    changes_sizes = slot in facts.stores or (change is not None and bool(change.restrides))
    return changes_sizes or slot in facts.unlike_gradients
