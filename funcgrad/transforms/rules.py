"""A call of a function with rules of its own for derivatives: a ``torch.autograd.Function`` of the call's flat tensors,
which autograd, torch.func and the trace know how to differentiate and to batch.

What a rule computes is plain PyTorch, so a derivative of a derivative is that of the rule. Residuals are results of
that Function: what reaches them in a second derivative is pulled through ``fwd``, as it is written. Reverse mode of a
``custom_jvp`` is the transpose of its rule, which is linear in the tangents.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from .. import refusals
from ..capture.callbacks import Like
from ..capture.trace import active_trace
from ..errors import CustomDerivativeError, NonDifferentiableArgumentError
from ..generators import mark_of
from ..levels import level_of_call
from ..state.lines import user_line
from ..torch_private.levels import (
    FORWARD_MODE,
    dual_parts,
    innermost_transform,
    sharing_dual_level,
    tracking_level,
    unwrap_dead,
    wrapping_level,
)
from ..torch_private.modes import TorchFunctionMode
from ..trees import flatten
from .definition import definition_line, name_of, under_reverse
from .packed import Packed, Place, leaves_like, pack, returned, with_values

Fn = Callable[..., Any]

# ── one call ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class RuledCall:
    """A call of a function with rules, but for its tensors."""

    rules: tuple[Fn, ...]
    args: tuple[Packed, ...]
    nondiff: tuple[int, ...]
    tracks: bool
    """Whether grad mode is on."""
    levels: frozenset[int] | None
    """The levels of torch.func's reverse mode; None where no transform runs."""
    level: int
    """The innermost level of reverse mode that differentiates it; -1: none does."""

    @property
    def reverse(self) -> bool:
        """Whether it is differentiated in reverse mode."""
        return self.level >= 0

    @property
    def free(self) -> list[Packed]:
        """The arguments that may be differentiated."""
        return [arg for i, arg in enumerate(self.args) if i not in self.nondiff]

    @property
    def fixed(self) -> list[Place]:
        """The tensors that may not be."""
        return [place for i in self.nondiff for place in self.args[i].places]

    def arguments(self, tensors: Sequence[Any]) -> list[Any]:
        """The arguments of the function."""
        return [arg.of(tensors) for arg in self.args]

    def given(self, tensors: Sequence[Any]) -> list[Any]:
        """The arguments that a rule takes first."""
        return [self.args[i].of(tensors) for i in self.nondiff]


@frozen(eq=False)
class _Layout:
    """How results and residuals are made of what the Function returns: tensors of the result, then those that
    residuals alone have."""

    out: Packed
    residuals: Packed
    n_outs: int


def kind_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return "a tensor"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if isinstance(value, (tuple, list)) else "")


def results_of(made: Sequence[Any]) -> Any:
    *tensors, layout = made
    return layout.out.of(tensors)


def not_differentiable(call: RuledCall, place: Place) -> NonDifferentiableArgumentError:
    return NonDifferentiableArgumentError(
        f"{place.path} of {name_of(call.rules[0])} is differentiated, and is among its nondiff_argnums",
        where=user_line(),
        fix=f"pass {place.path}.detach(), or let the rules have a derivative for it and take it out of nondiff_argnums",
    )


def _ran(call: RuledCall, tensors: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor], _Layout]:
    """Run the function, or ``fwd`` where residuals are asked for: tensors of its result, tensors that residuals
    alone have, and how both are put together."""
    rule = call.rules[1] if call.reverse and len(call.rules) == 3 else call.rules[0]
    with under_reverse(False):
        out, residuals = rule(*call.arguments(tensors)), ()
    if rule is not call.rules[0]:
        if not isinstance(out, tuple) or len(out) != 2:
            raise returned(rule, f"{kind_of(out)}, not a pair", "return (out, residuals)")
        out, residuals = out
    outs: list[Tensor] = []
    kept = list(tensors)
    own = {id(tensor): i for i, tensor in enumerate(tensors)}
    layout = _Layout(pack(out, outs, known={}), pack(residuals, kept, known=own), len(outs))
    known = {id(tensor) for tensor in outs}
    extras = [tensor.view_as(tensor) if id(tensor) in known else tensor for tensor in kept[len(tensors) :]]
    return (
        [tensor.clone() if id(tensor) in own and own[id(tensor)] < len(tensors) else tensor for tensor in outs],
        extras,
        layout,
    )


def _forward(call: RuledCall, *tensors: Tensor) -> tuple[Any, ...]:
    own = [tensor.detach() if tracking_level(tensor) >= 0 else tensor for tensor in tensors]
    levels = None if call.levels is None else _OwnLevels(call.levels)
    with torch.set_grad_enabled(call.tracks), levels or contextlib.nullcontext():
        outs, extras, layout = _ran(call, own)
    if any(tracking_level(tensor) >= 0 for tensor in (*outs, *extras)) or (levels and levels.met):
        raise CustomDerivativeError(
            f"{name_of(call.rules[0])} closes over a tensor that is differentiated, for which its rules have no "
            "derivative",
            where=definition_line(call.rules[0]),
            fix="pass it as an argument, or close over its detach()",
        )
    return *outs, *extras, layout


class _OwnLevels(TorchFunctionMode):
    """Under transforms of torch.func, notes whether what runs below them meets what one of them differentiates."""

    def __init__(self, levels: frozenset[int]) -> None:
        super().__init__()
        self._reverse = levels
        self._compiles_at = level_of_call()
        self.met = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _, level = innermost_transform()
        if (called := level_of_call()) != self._compiles_at:
            # a call inside compiles, where no level runs: it is one of its own level
            level = max(level, called)
        for value in flatten((args, kwargs))[0]:
            if isinstance(value, Tensor) and (of := wrapping_level(value)) > level:
                self.met = self.met or of not in self._reverse or value.requires_grad
        return func(*args, **(kwargs or {}))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    """Of both Functions: all arguments, which a second derivative needs, and what residuals have besides."""
    (ctx.call, *tensors), (*made, ctx.layout) = inputs, output
    saved = *tensors, *made[ctx.layout.n_outs :]
    ctx.save_for_backward(*saved)
    ctx.save_for_forward(*saved)
    ctx.mark_non_differentiable(*[tensor for tensor in made if not Like.of(tensor).is_active])
    ctx.set_materialize_grads(False)
    ctx.n, ctx.like = len(tensors), [Like.of(tensor) for tensor in made]


def _filled(ctx: Any, values: Sequence[Any]) -> list[Any]:
    """A cotangent or tangent of each tensor that was made."""
    return [like.filled(v) for v, like in zip(values, ctx.like, strict=True)]


@contextlib.contextmanager
def _again(ctx: Any, rule: Fn) -> Iterator[None]:
    """A rule runs once more inside: what it draws would be other numbers than before."""
    trace, devices = active_trace(), {like.device for like in ctx.like} | {torch.device("cpu")}
    before = trace.draws.drawn if trace else [mark_of(device) for device in devices]
    yield
    if before != (trace.draws.drawn if trace else [mark_of(device) for device in devices]):
        raise CustomDerivativeError(
            f"{name_of(rule)} draws random numbers, and runs again for a derivative",
            where=definition_line(rule),
            fix="draw outside, and pass what was drawn as an argument",
        )


@contextlib.contextmanager
def _primals(ctx: Any) -> Iterator[list[Tensor]]:
    """Of what is kept, what the innermost level of forward mode pushes forward at. What is computed of it inside,
    the levels below differentiate, in either mode."""
    with torch.set_grad_enabled(ctx.call.tracks), FORWARD_MODE(True), sharing_dual_level():
        yield [dual_parts(tensor)[0] for tensor in ctx.saved_tensors]


_NONE = "return None: it has no derivative"


def require_like(found: Any, like: Like, rule: Fn, what: str) -> Any:
    """A cotangent or tangent that a rule returned for a tensor, of the very shape and dtype."""
    if found is None or (
        isinstance(found, Tensor) and like.is_active and (found.shape, found.dtype) == (like.shape, like.dtype)
    ):
        return found
    fix = "return a tensor of that shape and dtype, or None for zero" if like.is_active else _NONE
    given = Like.of(found) if isinstance(found, Tensor) else repr(found)
    raise returned(rule, f"{given} as {what}, which is {like}", fix)


class _Ruled(torch.autograd.Function):
    """A call with rules of its own."""

    generate_vmap_rule = True

    @staticmethod
    def forward(call: RuledCall, *tensors: Tensor) -> tuple[Any, ...]:
        return _forward(call, *tensors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _keep(ctx, inputs, output)


# ── reverse mode ─────────────────────────────────────────────────────────────────────────────────────────────────────


class VjpFunction(_Ruled):
    """A call of a ``custom_vjp``."""

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> tuple[Any, ...]:
        call, layout = ctx.call, ctx.layout
        saved = [unwrap_dead(tensor) for tensor in ctx.saved_tensors]
        found: list[Any] = [None] * ctx.n
        if any(cotangent is not None for cotangent in incoming[: layout.n_outs]):
            cotangents = layout.out.once(_filled(ctx, incoming[:-1]), lambda i: ctx.like[i].filled(None))
            given = call.rules[2](*call.given(saved), layout.residuals.of(saved), cotangents)
            meant = "argument that is not in nondiff_argnums"
            found = gradients_of(call.free, saved[: ctx.n], given, call.rules[2], meant)
        reached = [i for i in range(layout.n_outs, len(ctx.like)) if incoming[i] is not None]
        if reached:
            wrt = [place.index for arg in call.free for place in arg.places if ctx.needs_input_grad[1 + place.index]]

            def made(*own: Tensor) -> tuple[Tensor, ...]:
                outs, extras, _ = _ran(call, with_values(saved[: ctx.n], wrt, own))
                return tuple((*outs, *extras)[i] for i in reached)

            with _again(ctx, call.rules[1]):
                more: Any = torch.func.vjp(made, *(saved[i] for i in wrt))[1](tuple(incoming[i] for i in reached))
            for i, gradient in zip(wrt, more, strict=True):
                found[i] = gradient if found[i] is None else found[i] + gradient
        return None, *found

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        call, tangents = ctx.call, tangents[1:]
        _, at = innermost_transform()
        # a level of reverse mode inside of this one takes the rule; of autograd's own it may be either
        if call.level < max(at + 1, 0):
            raise refusals.NO_FORWARD_RULE(name_of(call.rules[0]), where=user_line())
        wrt = [i for i, tangent in enumerate(tangents) if tangent is not None]
        active = [i for i, like in enumerate(ctx.like) if like.is_active]

        def made(*own: Tensor) -> tuple[Tensor, ...]:
            outs, extras, _ = _ran(call, with_values(saved[: ctx.n], wrt, own))
            return tuple((*outs, *extras)[i] for i in active)

        with _primals(ctx) as saved, _again(ctx, call.rules[1]):
            _, pushed = torch.func.jvp(  # type: ignore[misc]
                made, tuple(saved[i] for i in wrt), tuple(tangents[i] for i in wrt)
            )
        return *with_values([None] * len(ctx.like), active, pushed), None


def gradients_of(
    args: Sequence[Packed], tensors: Sequence[Tensor], cotangents: Any, rule: Fn, meant: str = "argument"
) -> list[Any]:
    """The ``cotangents`` of arguments that a rule returned, by tensor. ``meant``: which arguments these are."""
    if not isinstance(cotangents, (tuple, list)) or len(cotangents) != len(args):
        given = f"{kind_of(cotangents)}, not a tuple of {len(args)} cotangents"
        raise returned(rule, given, f"return a tuple with a cotangent for each {meant}, None for zero")
    found: list[Any] = [None] * len(tensors)
    for arg, cotangent in zip(args, cotangents, strict=True):
        for leaf, value in zip(arg.leaves, leaves_like(arg, cotangent, rule, "a cotangent"), strict=True):
            if isinstance(leaf, Place):
                like = Like.of(tensors[leaf.index])
                found[leaf.index] = require_like(value, like, rule, f"the cotangent of {leaf.path}")
    return found


# ── forward mode ─────────────────────────────────────────────────────────────────────────────────────────────────────


class JvpFunction(_Ruled):
    """A call of a ``custom_jvp``."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        for place in ctx.call.fixed:
            if tangents[1 + place.index] is not None:
                raise not_differentiable(ctx.call, place)
        with _primals(ctx) as saved, _again(ctx, ctx.call.rules[1]):
            return *_filled(ctx, _pushed(ctx, saved, tangents[1:])), None

    @staticmethod
    def backward(ctx: Any, *incoming: Any) -> tuple[Any, ...]:
        """The transpose of the rule, at any tangents."""
        saved = [unwrap_dead(tensor) for tensor in ctx.saved_tensors]
        wrt = [place.index for arg in ctx.call.free for place in arg.places if ctx.needs_input_grad[1 + place.index]]
        reached: list[int] = []

        def tangents(*own: Tensor) -> tuple[Tensor, ...]:
            found = _pushed(ctx, saved, with_values([None] * ctx.n, wrt, own))
            reached[:] = [i for i, tangent in enumerate(found) if tangent is not None and incoming[i] is not None]
            return tuple(found[i] for i in reached)

        gradients: Any = [None] * len(wrt)
        zeros = [Like.of(saved[i]).zeros() for i in wrt]
        with _again(ctx, ctx.call.rules[1]):
            pull: Any = torch.func.vjp(tangents, *zeros)[1]
        if reached:
            gradients = pull(tuple(incoming[i] for i in reached))
        return None, *with_values([None] * ctx.n, wrt, gradients)


def _pushed(ctx: Any, tensors: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """What the rule says of the tangent of each tensor of the result; None for zero."""
    call, rule = ctx.call, ctx.call.rules[1]
    with under_reverse(False):
        own = tuple(arg.tangents(lambda i: Like.of(tensors[i]).filled(tangents[i])) for arg in call.free)
        pair = rule(*call.given(tensors), tuple(arg.of(tensors) for arg in call.free), own)
    if not isinstance(pair, tuple) or len(pair) != 2:
        raise returned(rule, f"{kind_of(pair)}, not a pair", "return (out, tangent_out)")
    found: list[Any] = [None] * len(ctx.like)
    for part, what in zip(pair, ("a result", "a tangent"), strict=True):
        for leaf, value in zip(ctx.layout.out.leaves, leaves_like(ctx.layout.out, part, rule, what), strict=True):
            if isinstance(leaf, Place) and (what == "a tangent" or ctx.like[leaf.index].is_active):
                found[leaf.index] = require_like(
                    value, ctx.like[leaf.index], rule, f"{what} for {leaf.path or 'the result'}"
                )
    return found
