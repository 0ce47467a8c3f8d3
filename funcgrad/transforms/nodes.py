"""Pure functions (``pure.py``) at a level of torch.func, or with dual tensors: each call is a node in the graph of its
level.

Forward is the compiled function one level below, backward the compiled vector-Jacobian product (``Pulled``, or the two
halves where no level below looks), forward mode the compiled Jacobian-vector product (``Pushed``), and under vmap the
batched function (``Mapped``).
"""

from __future__ import annotations

import contextlib
import functools
import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from .. import refusals
from ..capture.memory import overlaps_itself
from ..capture.trace import active_trace
from ..generators import own_draws, state_of
from ..graphs import checks_alone
from ..levels import below_levels
from ..runtime.call import MISS
from ..runtime.late_state import LateState
from ..state.guards import Guard
from ..torch_private.levels import (
    BelowLevel,
    SingleLevelFunction,
    alive,
    applied_at_level,
    batched_at,
    dual_parts,
    innermost_randomness,
    innermost_size,
    innermost_transform,
    is_legacy_batched,
    legacy_level,
    legacy_unbatched_at,
    make_dual,
    transforms_or_duals,
    unbatched_at,
    unwrap_dead,
    unwrapped_at,
    wrapped_at,
)
from ..torch_private.modes import foreign_trace_active
from ..torch_private.tensors import (
    in_memory,
    unwrap_transform,
)
from .definition import has_derivative
from .mapped import is_opaque
from .packed import with_values
from .peel import AT_MOST, At, Crossing, print_crossing
from .programs import Programs
from .pure import (
    BackwardHalf,
    Checks,
    ForwardHalf,
    Pure,
    backward_half,
    mapped,
    pulled_back,
    pushed_forward,
)

_STATES = 16
"""So many states of what backward passes read have programs of their own."""
_drawn_at: ContextVar[int] = ContextVar("funcgrad_drawn_at", default=sys.maxsize)
"""The level at which a function ran that runs again now: a vmap at it (it has ended), or inside of it, did not run
then, and all its samples draw what was drawn."""


def batch_of(leaves: Sequence[Any], level: int) -> tuple[list[Any], tuple[int | None, ...], int | None, str]:
    """The leaves below a level of vmap, where each has its batch dimension, the size if no leaf tells it, and how
    randomness is treated."""
    pairs = [unbatched_at(level, v) if isinstance(v, Tensor) else (v, None) for v in leaves]
    dims = tuple(d for _, d in pairs)
    size = innermost_size() if all(d is None for d in dims) else None
    return [v for v, _ in pairs], dims, size, randomness_at(level)


def randomness_at(level: int) -> str:
    return "same" if level >= _drawn_at.get() else innermost_randomness()


def called_at_level(compiled: Programs, *values: Any) -> Any:
    """A call of a pure function by the program around it, which runs at a level. What that reads of Python state may be
    of a level that has ended."""
    own = [alive(v) if isinstance(v, Tensor) else v for v in values]
    return pure_call(compiled, own, *innermost_transform())


def pure_call(compiled: Programs, values: Sequence[Any], kind: str | None, level: int) -> Any:
    """A call of a pure function at a level (``kind`` None: below all levels, where a dual level is open)."""
    if kind == "vmap":
        return _mapped_call(compiled, values, level)
    if kind in ("jvp", None):
        return _pushed(compiled, values, kind, level)
    for peel in compiled.peels:
        if (result := peel(values, level)) is not MISS:
            return result
    own, here, tracked, opaque = [], [], [], True
    for i, value in enumerate(values):
        below = value
        if isinstance(value, Tensor):
            below = unwrapped_at(level, value)
            # of an outer level, it is a constant of this one: what is known of it there is not this level's
            if below is value:
                value = wrapped_at(level, value)
            elif value.requires_grad:
                tracked.append(i)
            opaque = opaque and is_opaque(below)
        own.append(below)
        here.append(value)
    definition: Any = compiled.definition
    if not tracked or not definition.n_outs or not torch.is_grad_enabled():
        _require_path(compiled, own, kind)
        return _one_below(compiled, level, own)
    if definition.exact is not None and not opaque:
        exact, places = definition.exact
        with definition.again():
            return pure_call(compiled.derived("exact", lambda: exact), [here[i] for i in places], kind, level)
    if definition.written:
        here = _with_copies(here, definition.written)
    rule = _rule(compiled, tuple(tracked), len(here), opaque)
    if rule.requires_path:
        _require_path(compiled, own, kind)
    elif opaque and not definition.written and not definition.draws:
        _print_peel(rule, values, own)
    return applied_at_level(_Node, rule, level, _ran(rule, level, own, here), *[here[i] for i in tracked])


def _print_peel(rule: ReverseRule, values: Sequence[Any], own: Sequence[Any]) -> None:
    """The next call with such values is printed. ``own``: what they are below the level."""
    compiled = rule.compiled
    pairs = enumerate(zip(values, own, strict=True))
    are = tuple(_at(v, below, i in rule.tracked) for i, (v, below) in pairs)
    if are in compiled.reverse_rules:
        return
    definition: Any = compiled.definition
    compiled.reverse_rules[are] = rule
    linear_in = range(definition.n_before, rule.n) if isinstance(definition, BackwardHalf) else ()
    kept = range(rule.n) if rule.places is None else rule.places
    peel = print_crossing(
        Crossing(are, kept, definition.n_outs, linear_in),
        rule.forward.run_first_fit,
        functools.partial(_called, rule.forward),
        is_opaque,
        functools.partial(applied_at_level, _Node, rule),
    )
    compiled.peels = [peel, *compiled.peels][:AT_MOST]


def _at(value: Any, below: Any, tracked: bool) -> At:
    if not isinstance(value, Tensor):
        return "other"
    return "tracked" if tracked else "below" if below is value else "wrapped"


def _below(values: Sequence[Any], level: int) -> list[Any]:
    """The values that tensors of a level of autograd wrap."""
    return [unwrapped_at(level, v) if isinstance(v, Tensor) else v for v in values]


def _with_copies(values: Sequence[Any], written: Collection[int]) -> list[Any]:
    """The values, of which some are written to after the call: copies, which are tracked, so that a second
    derivative flows on to what made them."""
    return [v.clone() if i in written else v for i, v in enumerate(values)]


def _is_tracked(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


# ── reverse mode ─────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class ReverseRule:
    """How a pure function passes a level of reverse mode where some of its values are tracked: found once, for each
    choice of them."""

    compiled: Programs
    tracked: tuple[int, ...]
    n: int
    """How many values it has."""
    forward: Programs
    """What runs below the level."""
    requires_path: bool
    """Whether that is a program for any path through the function, of which the layers are those of one."""
    backward: Programs | None
    """The backward half, of all values and what ``forward`` saves; None: there is none, and ``of`` is pulled back."""
    of: Any
    places: tuple[int, ...] | None
    """The values that ``of`` takes; None: all."""
    wrt: tuple[int, ...]
    """Which of these are differentiated."""
    gives: tuple[int, ...]
    """For each of those: where it stands in ``tracked``."""
    active: tuple[int, ...] | None
    """The outputs that depend on them; None: all may."""
    late: LateState | None
    """What backward reads of Python state; None: nothing."""
    in_other_states: list[tuple[tuple[Guard, ...], dict[tuple[int, ...], Programs]]] = field(factory=list)
    """The vector-Jacobian products where that was another than when the function was called, by the outputs."""

    def pulled(self, active: tuple[int, ...]) -> Programs:
        """The vector-Jacobian product, of a cotangent for each of these outputs: of the backward half, where there is
        one, what does not depend on others alone."""
        if self.backward is not None:
            if active == self.active:
                return self.backward
            of: Any = self.compiled.definition
            half: Any = self.backward.definition
            return self.compiled.derived(
                ("backward", self.tracked, active),
                lambda: backward_half(of.of_outputs(active), self.tracked, self.n, half.n_before - self.n),
                of_results=True,
            )
        n = self.n if self.places is None else len(self.places)
        key = "pull", self.wrt, active, self.places
        make = functools.partial(pulled_back, self.of, n, self.wrt, active)
        found: Programs = self.compiled.derived(key, make, of_results=True)
        return found


def _pulled_now(rule: ReverseRule, active: tuple[int, ...]) -> Programs:
    """The vector-Jacobian product in the state of now, of values and of a cotangent for each of these outputs."""
    of: Any = rule.compiled.definition
    late = of.inner.facts.state.late
    if not of.inner.exchanges_values:
        raise refusals.CHANGED_AT_LEVEL(late.first, where=str(late.first))
    known = next((own for own in rule.in_other_states if all(guard.holds() for guard in own[0])), None)
    if known is None:
        numbers = (Guard.of(place, place.read()) for _, place in late.numbers)
        known = (*(guard.of_now() for guard in late.guards), *numbers), {}
        rule.in_other_states.insert(0, known)
        del rule.in_other_states[_STATES:]
    guards, made = known
    if active not in made:
        product = pulled_back(of, rule.n, rule.tracked, active, guards)
        made[active] = rule.compiled.compiled_of(product, rule.compiled._options)
    return made[active]


def _rule(compiled: Programs, tracked: tuple[int, ...], n: int, opaque: bool) -> ReverseRule:
    """``opaque``: whether no level below knows any of the values."""
    found: ReverseRule | None = compiled.reverse_rules.get((tracked, opaque))
    if found is None:
        found = compiled.reverse_rules[tracked, opaque] = _new_rule(compiled, tracked, n, opaque)
    return found


def _new_rule(compiled: Programs, tracked: tuple[int, ...], n: int, opaque: bool) -> ReverseRule:
    definition: Any = compiled.definition
    of, places, wrt = definition, None, tracked
    if definition.exact is not None and not definition.is_itself_for(tracked):
        of, places = definition.exact
        wrt = tuple(k for k, i in enumerate(places) if i in tracked)
    gives = tuple(tracked.index(k if places is None else places[k]) for k in wrt)
    knows = isinstance(definition, Pure) and definition.tracks(tracked)
    forward, backward = compiled, None
    if knows and definition.halves is not None and opaque:
        half = ForwardHalf(of=definition)
        forward = compiled.derived("forward", lambda: half)
        n_saved = half.n_outs - definition.n_outs
        make = functools.partial(backward_half, definition, tracked, n, n_saved)
        backward = compiled.derived(("backward", tracked), make, of_results=True)
    elif (reverse := definition.reversed()) is not definition:
        forward = compiled.derived("reversed", lambda: reverse)
    late, requires_path = None, False
    if isinstance(definition, Pure):
        requires_path = definition.reads_values and backward is None
        late = LateState.of(definition.inner.facts.state.late, definition.inner.signature.ins)
    return ReverseRule(
        compiled,
        tracked,
        n,
        forward,
        requires_path,
        backward,
        of,
        places,
        wrt,
        gives,
        definition.active if knows else None,
        late,
    )


def _ran(rule: ReverseRule, level: int, own: Sequence[Any], values: Sequence[Any]) -> tuple[Any, ...]:
    """The outputs of a function that has run below a level (``own``: its values there), what its backward pass
    needs, and, of what it drew from, the states before."""
    definition: Any = rule.compiled.definition
    states = {of: state_of(of) for of in definition.draws} if definition.draws else None
    outs = _run_below(rule.forward, own)
    kept = values if rule.places is None else [values[i] for i in rule.places]
    if rule.backward is not None:
        kept = [*kept, *outs[definition.n_outs :]]
        outs = outs[: definition.n_outs]
    return _wrapped(level, outs), kept, states


class _Node(SingleLevelFunction):  # type: ignore[misc]
    """A pure compiled function in the graph of one level."""

    @staticmethod
    def forward(ctx: Any, rule: ReverseRule, level: int, ran: tuple[Any, ...], *_: Tensor) -> Any:
        """The last arguments are those that are tracked."""
        return _recorded(ctx, rule, level, *ran)

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        return None, None, None, *_gradients(ctx, incoming)


def _recorded(
    ctx: Any, rule: ReverseRule, level: int, outs: tuple[Any, ...], kept: Sequence[Any], states: Any
) -> tuple[Any, ...]:
    """The outputs of the function, with what its backward pass needs kept in ``ctx``."""
    ctx.rule, ctx.level, ctx.states = rule, level, states
    ctx.given = () if rule.late is None else tuple(map(_reference, kept[: rule.n]))
    ctx.scalars = {i: v for i, v in enumerate(kept) if not isinstance(v, Tensor)}
    ctx.save_for_backward(*[None if i in ctx.scalars else v for i, v in enumerate(kept)] if ctx.scalars else kept)
    ctx.set_materialize_grads(False)
    active = range(len(outs)) if rule.active is None else rule.active
    ctx.active = [i for i in active if has_derivative(outs[i])]
    if len(ctx.active) < len(outs):
        ctx.mark_non_differentiable(*[v for i, v in enumerate(outs) if isinstance(v, Tensor) and i not in ctx.active])
    return outs


def _gradients(ctx: Any, incoming: Sequence[Any]) -> list[Any]:
    """The gradients of the values that are tracked."""
    rule: ReverseRule = ctx.rule
    found: list[Any] = [None] * len(rule.tracked)
    active = tuple(i for i in ctx.active if incoming[i] is not None)
    if not active or not rule.wrt:
        return found
    values = [v if v is None else unwrap_dead(v) for v in ctx.saved_tensors]
    for i, scalar in ctx.scalars.items():
        values[i] = scalar
    token = _drawn_at.set(ctx.level)
    try:
        if rule.late is not None and not rule.late.is_as_traced(values, ctx.given, None):
            values = values[: rule.n]
            pulled, runs_again = _pulled_now(rule, active), True
        else:
            pulled, runs_again = rule.pulled(active), rule.backward is None or bool(ctx.states)
        values += [unwrap_dead(incoming[i]) for i in active]
        if not runs_again:
            gradients = _called(pulled, values)
        else:  # the caller's own Python may run again
            with own_draws(ctx.states) if ctx.states else contextlib.nullcontext(), rule.of.again():
                gradients = _called(pulled, values)
    finally:
        _drawn_at.reset(token)
    return with_values(found, rule.gives, gradients)


def _reference(value: Any) -> Callable[[], Any]:
    """What leads to the numbers of a tensor, as long as they are there."""
    below = below_levels(value) if isinstance(value, Tensor) else None
    return (lambda: None) if below is None else weakref.ref(below)


def _called(compiled: Programs, values: Sequence[Any]) -> Any:
    """A call with values of which some may be symbolic zeros: programs take those in memory."""
    if not transforms_or_duals():
        if (found := compiled.run_first_fit(tuple(values), {})) is not MISS:
            return found
    elif active_trace() is None and not foreign_trace_active(()):
        kind, level = innermost_transform()
        if kind == "grad":
            return pure_call(compiled, values, kind, level)
    return compiled(*map(in_memory, values))


def _one_below(compiled: Programs, level: int, own: Sequence[Any]) -> tuple[Any, ...]:
    """A pure function of values below a level; its tensors wrapped for it."""
    return _wrapped(level, _run_below(compiled, own))


def _wrapped(level: int, values: Sequence[Any]) -> tuple[Any, ...]:
    """Values from below a level."""
    return tuple([wrapped_at(level, v) if isinstance(v, Tensor) else v for v in values])


def _run_below(compiled: Programs, own: Sequence[Any]) -> Sequence[Any]:
    """A pure function of values below a level. What is linear in symbolic zeros is zeros."""
    of = compiled.definition
    with BelowLevel(tracked=True):
        if isinstance(of, BackwardHalf) and of.is_of_zeros(own):
            return of.zeros(own)
        return _called(compiled, own)  # type: ignore[no-any-return]


def _pushed(compiled: Programs, values: Sequence[Any], kind: str | None, level: int) -> Any:
    """Forward mode: of a level of torch.func, or (``kind`` None) of ``torch.autograd.forward_ad`` below all of them."""
    pairs = [dual_parts(v) if isinstance(v, Tensor) else (v, None) for v in values]
    primals = [v if t is None else p for v, (p, t) in zip(values, pairs, strict=True)]
    wrt = tuple(i for i, (_, tangent) in enumerate(pairs) if tangent is not None)
    of: Any = compiled.definition
    if not wrt or not of.n_outs:
        return compiled.run(tuple(primals), {}) if kind is None else _one_below(compiled, level, _below(primals, level))
    if of.exact is not None and not (of.is_itself_for(wrt) and all(map(is_opaque, _below(values, level)))):
        exact, places = of.exact
        with of.again():
            return _pushed(compiled.derived("exact", lambda: exact), [values[i] for i in places], kind, level)
    _require_path(compiled, primals if kind is None else _below(primals, level), kind)
    if kind is None and torch.is_grad_enabled() and any(_is_tracked(v) or _is_tracked(t) for v, t in pairs):
        return _pushed_and_tracked(compiled, values, wrt)
    n = len(values)
    parts = [*primals, *(pairs[i][1] for i in wrt)]
    pushed = compiled.derived(("push", wrt, False), lambda: pushed_forward(of, wrt, n))
    found = pushed.run(tuple(parts), {}) if kind is None else _one_below(pushed, level, _below(parts, level))
    outs = [
        _sample(v) if isinstance(v, Tensor) and not any(map(_is_batched, parts[:n])) else v for v in found[: of.n_outs]
    ]
    return _duals(outs, found[of.n_outs :])


def _require_path(compiled: Programs, own: Sequence[Any], kind: str | None) -> None:
    """Raise ``PathMiss`` where Python reads other values than when a pure function was made: the function itself would
    go another way; what depends on its inputs, what the layers around it do, and write to Python state, would be that
    of the former."""
    of = compiled.definition
    if not isinstance(of, Pure) or not of.reads_values:
        return
    checks = compiled.derived("checks", lambda: Checks(of=of, graph=checks_alone(of.graph)))
    states = {drawn: state_of(drawn) for drawn in of.draws}
    with own_draws(states) if states else contextlib.nullcontext():  # the function draws the same numbers after it
        if kind is None:
            checks.run(tuple(own), {})
        else:
            _run_below(checks, own)


def _pushed_and_tracked(compiled: Programs, values: Sequence[Any], wrt: tuple[int, ...]) -> tuple[Any, ...]:
    """Forward mode where autograd's own level knows the values, too: backward is one of values that have tangents."""
    definition: Any = compiled.definition
    tracked, n = tuple(i for i, v in enumerate(values) if _is_tracked(v)), len(values)
    of = definition.reversed() if tracked else definition
    values = _with_copies(values, definition.written)
    primals = [dual_parts(v)[0] if isinstance(v, Tensor) else v for v in values]
    states = {drawn: state_of(drawn) for drawn in definition.draws} if definition.draws else None
    pushed = compiled.derived(("push", wrt, bool(tracked)), lambda: pushed_forward(of, wrt, n))
    found = pushed.run((*primals, *(dual_parts(values[i])[1] for i in wrt)), {})
    own = tuple(v.detach() if isinstance(v, Tensor) else v for v in found[: of.n_outs])
    if tracked:
        rule = _rule(compiled, tracked, n, False)
        kept = values if rule.places is None else [values[i] for i in rule.places]
        own = applied_at_level(_Node, rule, -1, (own, kept, states), *[primals[i] for i in tracked])
    return _duals(own[: of.n_outs], found[of.n_outs :])


def _duals(values: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, ...]:
    pairs = zip(values, tangents, strict=True)
    return tuple(_dual(v, t) if t is not None and has_derivative(v) else v for v, t in pairs)


def _dual(value: Tensor, tangent: Tensor) -> Tensor:
    """A value with a tangent. Where its elements lie over one another torch cannot lay a tangent out alike: then
    they are apart."""
    if overlaps_itself(unwrap_transform(value)):
        value = value.clone(memory_format=torch.contiguous_format)
    return make_dual(value, tangent)


def _mapped_call(compiled: Programs, values: Sequence[Any], level: int) -> tuple[Any, ...]:
    """A pure function under vmap."""
    of: Any = compiled.definition
    own, dims, size, randomness = batch_of(values, level)
    target = compiled.derived(("vmap", dims, size, randomness), lambda: mapped(of, dims, size, randomness))
    with BelowLevel():
        found = target(*own)
    outs, out_dims = found[: of.n_outs], found[of.n_outs :]
    return tuple(v if d < 0 else batched_at(level, v, d) for v, d in zip(outs, out_dims, strict=True))


def _is_batched(value: Any) -> bool:
    return isinstance(value, Tensor) and is_legacy_batched(value)


def _sample(value: Tensor) -> Tensor:
    """A tensor that is the same for all samples, without its batch dimension: where tangents alone have one."""
    return legacy_unbatched_at(legacy_level(), value)[0] if is_legacy_batched(value) else value
