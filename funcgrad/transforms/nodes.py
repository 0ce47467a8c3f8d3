"""Pure functions (``pure.py``) at a level of torch.func, or with dual tensors: each call is a node in the graph of its level.

Forward is the compiled function one level below, backward the compiled vector-Jacobian product (``Pulled``, or the two halves where no
level below looks), forward mode the compiled Jacobian-vector product (``Pushed``), and under vmap the batched function (``Mapped``).
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor

from ..capture.memory import overlaps_itself
from ..generators import own_draws, state_of
from ..torch_private import (
    BelowLevel,
    SingleLevelFunction,
    applied_at_level,
    batched_at,
    dual_parts,
    innermost_randomness,
    innermost_size,
    is_legacy_batched,
    is_tracked_wrapper,
    is_transform_wrapper,
    is_zero_tensor,
    legacy_level,
    legacy_unbatched_at,
    make_dual,
    unbatched_at,
    unwrap_dead,
    unwrap_transform,
    unwrapped_at,
    wrapped_at,
    wrapped_value,
)
from .pure import BackwardHalf, ForwardHalf, Pure, backward_half, mapped, pulled_back, pushed_forward

if TYPE_CHECKING:
    from .compiled import Compiled


_drawn_at: ContextVar[int] = ContextVar("funcgrad_drawn_at", default=sys.maxsize)
"""The level at which a function ran that runs again now: a vmap at it (it has ended), or inside of it, did not run then, and all its
samples draw what was drawn."""


def batch_of(leaves: Sequence[Any], level: int) -> tuple[list[Any], tuple[int | None, ...], int | None, str]:
    """The leaves below a level of vmap, where each has its batch dimension, the size if no leaf tells it, and how randomness is treated."""
    pairs = [unbatched_at(level, v) if isinstance(v, Tensor) else (v, None) for v in leaves]
    dims = tuple(d for _, d in pairs)
    size = innermost_size() if all(d is None for d in dims) else None
    return [v for v, _ in pairs], dims, size, randomness_at(level)


def randomness_at(level: int) -> str:
    return "same" if level >= _drawn_at.get() else innermost_randomness()


def pure_call(compiled: Compiled, values: Sequence[Any], kind: str | None, level: int) -> Any:
    """A call of a pure function at a level (``kind`` None: below all levels, where a dual level is open)."""
    if kind == "vmap":
        return _mapped_call(compiled, values, level)
    if kind in ("jvp", None):
        return _pushed(compiled, values, kind, level)
    own = _below(values, level)
    # a tensor of an outer level is a constant of this one: what is known of it there is not this level's
    values = [wrapped_at(level, v) if o is v and isinstance(v, Tensor) else v for v, o in zip(values, own, strict=True)]
    if not torch.is_grad_enabled() or not any(isinstance(v, Tensor) and v.requires_grad for v in values):
        return _one_below(compiled, level, own)
    definition: Any = compiled.definition
    opaque = all(map(_is_opaque, own))
    if definition.exact is not None and not opaque:
        exact, places = definition.exact
        with definition.again():
            return pure_call(compiled.derived("exact", lambda: exact), [values[i] for i in places], kind, level)
    first = {i: values[i].clone() for i in definition.written}  # tracked: a second derivative flows on to what made them
    outs = applied_at_level(_Node, _Call(compiled, level, own, opaque), first, *values)
    return outs if definition.n_outs else ()


def _below(values: Sequence[Any], level: int) -> list[Any]:
    """The values that tensors of a level of autograd wrap."""
    return [unwrapped_at(level, v) if isinstance(v, Tensor) else v for v in values]


def _is_opaque(value: Any) -> bool:
    """Whether no level of autograd below knows a value."""
    if not isinstance(value, Tensor):
        return True
    while is_transform_wrapper(value):
        if is_tracked_wrapper(value):
            return False
        value = wrapped_value(value)
    return not value.requires_grad


@frozen(eq=False)
class _Call:
    compiled: Compiled
    level: int
    own: Sequence[Any]
    """The values below the level."""
    opaque: bool
    """Whether no level below that knows any of them."""


class _Node(SingleLevelFunction):  # type: ignore[misc]
    """A pure compiled function in the graph of one level."""

    @staticmethod
    def forward(ctx: Any, call: _Call, first: dict[int, Tensor], *values: Any) -> Any:
        compiled, definition = call.compiled, call.compiled.definition
        ctx.states = {of: state_of(of) for of in definition.draws}
        ctx.of, ctx.places = definition, None
        kept = [first.get(i, v) for i, v in enumerate(values)]
        wrt = [i for i, needed in enumerate(ctx.needs_input_grad[2:]) if needed]
        ctx.n_saved = None
        knows = isinstance(definition, Pure) and definition.tracks(wrt)
        if knows and definition.halves is not None and call.opaque:
            half = compiled.derived("forward", lambda: ForwardHalf(definition.root, of=definition))
            every = _one_below(half, call.level, call.own)
            outs, saved = every[: definition.n_outs], every[definition.n_outs :]
            kept += saved
            ctx.n_saved = len(saved)
        else:
            forward = definition.reversed()
            target = compiled if forward is definition else compiled.derived("reversed", lambda: forward)
            outs = _one_below(target, call.level, call.own)
        if definition.exact is not None and not definition.is_itself_for(wrt):
            ctx.of, ctx.places = definition.exact
            kept, wrt = [kept[i] for i in ctx.places], [k for k, i in enumerate(ctx.places) if i in wrt]
        ctx.compiled, ctx.level, ctx.wrt, ctx.n = compiled, call.level, tuple(wrt), len(values)
        ctx.save_for_backward(*[v if isinstance(v, Tensor) else None for v in kept])
        ctx.scalars = [None if isinstance(v, Tensor) else v for v in kept]
        ctx.set_materialize_grads(False)
        active = definition.active if knows else range(len(outs))
        ctx.active = tuple(i for i in active if isinstance(outs[i], Tensor) and (outs[i].is_floating_point() or outs[i].is_complex()))
        ctx.like = [(outs[i].shape, outs[i].dtype, outs[i].device) for i in ctx.active] if ctx.n_saved is not None else ()
        ctx.mark_non_differentiable(*[v for i, v in enumerate(outs) if isinstance(v, Tensor) and i not in ctx.active])
        return tuple(outs) or (None,)  # autograd knows of no function without a result

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        found: list[Any] = [None] * (2 + ctx.n)
        active = tuple(i for i in ctx.active if incoming[i] is not None)
        if not active or not ctx.wrt:
            return tuple(found)
        values = [_in_memory(unwrap_dead(v)) if isinstance(v, Tensor) else s for v, s in zip(ctx.saved_tensors, ctx.scalars, strict=True)]
        compiled, wrt, of = ctx.compiled, ctx.wrt, ctx.of
        n = len(values) - (ctx.n_saved or 0)
        if ctx.n_saved is not None:
            like = dict(zip(ctx.active, ctx.like, strict=True))
            cotangents = [unwrap_dead(incoming[i]) if incoming[i] is not None else _zeros(*like[i]) for i in ctx.active]
            pulled = compiled.derived(("backward", wrt), lambda: backward_half(of, wrt, n, ctx.n_saved))
        else:
            cotangents = [unwrap_dead(incoming[i]) for i in active]
            pulled = compiled.derived(("pull", wrt, active, ctx.places), lambda: pulled_back(of, n, wrt, active))
        token = _drawn_at.set(ctx.level)
        try:
            if ctx.states or ctx.n_saved is None:  # the caller's own Python may run again
                with own_draws(ctx.states) if ctx.states else contextlib.nullcontext(), of.again():
                    gradients = pulled(*values, *cotangents)
            else:
                gradients = pulled(*values, *cotangents)
        finally:
            _drawn_at.reset(token)
        for i, gradient in zip(wrt, gradients, strict=True):
            found[2 + (i if ctx.places is None else ctx.places[i])] = gradient
        return tuple(found)


def _in_memory(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, Tensor) and is_zero_tensor(value) else value


class _DualNode(torch.autograd.Function):
    """The same in the graph of autograd's own level, where forward mode knows the values, too."""

    @staticmethod
    def forward(ctx: Any, call: _Call, first: dict[int, Tensor], *values: Any) -> Any:
        ctx.save_for_forward(*[v if isinstance(v, Tensor) else None for v in (first.get(i, v) for i, v in enumerate(values))])
        return _Node.forward(ctx, call, first, *values)

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> Any:
        return _Node.backward(ctx, *incoming)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Any:
        values = [s if v is None else dual_parts(v)[0] for v, s in zip(ctx.saved_tensors, ctx.scalars, strict=True)]
        wrt = tuple(i for i, tangent in enumerate(tangents[2:]) if tangent is not None)
        of, compiled = ctx.compiled.definition.reversed(), ctx.compiled
        pushed = compiled.derived(("push reversed", wrt), lambda: pushed_forward(of, wrt, ctx.n))
        with torch.enable_grad(), of.again():
            found = pushed.run((*values, *(tangents[2 + i] for i in wrt)), {})
        pairs = zip(found[: of.n_outs], found[of.n_outs :], strict=True)
        return tuple(t if isinstance(v, Tensor) and (v.is_floating_point() or v.is_complex()) else None for v, t in pairs) or (None,)


def _zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.zeros(shape, dtype=dtype, device=device)


def _one_below(compiled: Compiled, level: int, own: Sequence[Any]) -> tuple[Any, ...]:
    """A pure function of values below a level; its tensors wrapped for it. What is linear in symbolic zeros is zeros."""
    if level < 0:  # autograd's own
        with torch.enable_grad():
            return compiled.run(tuple(own), {})  # type: ignore[no-any-return]
    of = compiled.definition
    with BelowLevel(tracked=True):
        outs = of.zeros(own) if isinstance(of, BackwardHalf) and of.is_of_zeros(own) else compiled(*map(_in_memory, own))
    return tuple(wrapped_at(level, v) if isinstance(v, Tensor) else v for v in outs)


def _pushed(compiled: Compiled, values: Sequence[Any], kind: str | None, level: int) -> Any:
    """Forward mode: of a level of torch.func, or (``kind`` None) of ``torch.autograd.forward_ad`` below all of them."""
    pairs = [dual_parts(v) if isinstance(v, Tensor) else (v, None) for v in values]
    wrt = tuple(i for i, (_, tangent) in enumerate(pairs) if tangent is not None)
    if not wrt:
        return compiled.run(tuple(values), {}) if kind is None else _one_below(compiled, level, _below(values, level))
    of: Any = compiled.definition
    if of.exact is not None and not (of.is_itself_for(wrt) and all(map(_is_opaque, _below(values, level)))):
        exact, places = of.exact
        with of.again():
            return _pushed(compiled.derived("exact", lambda: exact), [values[i] for i in places], kind, level)
    parts = [*(v if t is None else p for v, (p, t) in zip(values, pairs, strict=True)), *(pairs[i][1] for i in wrt)]
    n = len(values)
    if kind is None and torch.is_grad_enabled() and any(isinstance(v, Tensor) and v.requires_grad for v in values):
        first = {i: values[i].clone() for i in of.written}
        own = [dual_parts(v)[0].detach() if isinstance(v, Tensor) else v for v in values]
        outs: Any = _DualNode.apply(_Call(compiled, level, own, False), first, *values)  # type: ignore[no-untyped-call]
        return outs if of.n_outs else ()
    pushed = compiled.derived(("push", wrt), lambda: pushed_forward(of, wrt, n))
    found = pushed.run(tuple(parts), {}) if kind is None else _one_below(pushed, level, _below(parts, level))
    outs = [_sample(v) if isinstance(v, Tensor) and not any(map(_is_batched, parts[:n])) else v for v in found[: of.n_outs]]
    duals = zip(outs, found[of.n_outs :], strict=True)
    return tuple(_dual(v, t) if t is not None and (v.is_floating_point() or v.is_complex()) else v for v, t in duals)


def _dual(value: Tensor, tangent: Tensor) -> Tensor:
    """A value with a tangent. Where its elements lie over one another torch cannot lay a tangent out alike: then they are apart."""
    if overlaps_itself(unwrap_transform(value)):
        value = value.clone(memory_format=torch.contiguous_format)
    return make_dual(value, tangent)


def _mapped_call(compiled: Compiled, values: Sequence[Any], level: int) -> tuple[Any, ...]:
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
