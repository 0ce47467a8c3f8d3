"""The layers a call needs, outermost first. The order is that of what they may rely on:

leaves (nothing further in sets a gradient, or whether an input requires one) · storage (nor gives a tensor other
memory) · dedupe (names one object once) · restride (nothing further in changes sizes) · outputs (views are taken when
all writes are done) · synthetic base (no two inputs reach one memory) · mutation (no input is written to) · histories
(nothing further in differentiates what is outside; what it does there comes before all other effects) · rng (nothing
further in draws) · ambient state · subclass (none of them is seen by the kernel; where the call is differentiable,
autograd sees them, and the layer stands around each half of it).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from ..capture.facts import Facts
from ..capture.inputs import Inputs, read_all
from ..capture.memory import BaseOf
from ..joint import Joint
from ..levels import is_below
from ..slots import Final, Signature, Slot
from .ambient import grad_mode, no_autocast, untracked
from .dedupe import dedupe
from .effects import CopyBack, Drawn, Effect
from .histories import histories
from .layer import Layer
from .leaves import leaves
from .mutation import mutation
from .outputs import alias_outputs
from .restride import restride
from .rng import rng
from .statements import Make, Run, Statement
from .storage import storage
from .subclass import subclass
from .synthetic_base import synthetic_base

ORDER = (leaves, storage, dedupe, restride, alias_outputs, synthetic_base, mutation, histories, rng)
"""The layers that facts ask for."""


def outer_signature(facts: Facts, out_slot: Callable[[str], Slot]) -> Signature:
    """What a call looks like from outside: its inputs, the leaves of its result that are tensors or symbols, and
    what Python state gets."""
    ins: tuple[Slot, ...] = (*(slot for slot, _, _ in facts.inputs), *(c.slot for c in facts.captured))
    return Signature(ins, (*(out_slot(o.path) for o in facts.returned if o.is_dynamic), *facts.state.stores))


def plan_layers(
    outer: Signature, facts: Facts, autocast_devices: tuple[str, ...], needs_grad_mode: bool, at_level: bool
) -> tuple[Layer, ...]:
    """One layer for each fact that asks for one: none for a pure function of distinct tensors. ``at_level``: the kernel
    says itself what is tracked, in forward mode, too."""
    layers: list[Layer] = []
    signature = outer
    for plan in ORDER:
        layer = plan(signature, facts)
        if layer is not None:
            layers.append(layer)
            signature = layer.inner
    tracked = any(map(facts.requires_grad, outer.ins)) or any(True in calls for calls in facts.switches.values())
    ambient = (
        no_autocast(signature, autocast_devices),
        grad_mode(signature, needs_grad_mode),
        # it would track what requires grad outside
        untracked(signature, not (at_level or facts.differentiable) and (tracked or needs_grad_mode)),
    )
    return (*layers, *(layer for layer in ambient if layer is not None))


def with_subclasses(
    layers: tuple[Layer, ...], joint: Joint, kernel: Signature, differentiable: bool
) -> tuple[Layer, ...]:
    """The layers with the one that takes subclasses apart, which is planned when they have been traced."""
    if differentiable or not joint.wrappings:
        return layers
    wrappings = dict(joint.wrappings) | {_in_the_end(slot): wrapping for slot, wrapping in joint.wrappings.items()}
    layer = subclass(Signature(kernel.ins, tuple(map(_in_the_end, kernel.outs))), wrappings)
    return layers if layer is None else (*layers, layer)


def _in_the_end(slot: Slot) -> Slot:
    """In one program, what its backward pass wrote is what a tensor holds in the end."""
    return Final(slot.of) if isinstance(slot, Final) else slot


def inner_values(statements: Iterable[Statement], inputs: Inputs, facts: Facts) -> list[Any]:
    """The real values of the kernel's inputs in one call: what statements will make of its arguments."""
    values: dict[Slot, Any] = dict(zip(inputs.slots, inputs.leaves, strict=True))
    values.update({slot: place.read() for slot, place in facts.numbers})
    values.update(inputs.dynamic)
    values |= {slot: tensor for slot, tensor in read_all(facts.captured, values).items()}
    for statement in statements:
        match statement:
            case Make(slot, BaseOf() as base):
                values[slot] = base(values[base.of])
            case Make(slot, Drawn()):
                # any number: looking at a program draws none
                values[slot] = torch.zeros((), dtype=torch.int64, device="cpu")
            case Run(ins):
                return [values[slot] for slot in ins]
    raise AssertionError("statements without a kernel")


def writing_at_level(
    layers: tuple[Layer, ...], reals: Mapping[Any, Tensor], facts: Facts, level: int
) -> tuple[Layer, ...]:
    """The layers of a program at a level of torch.func: tensors that belong to none are written to below it. At that of
    duals (-1), all are written to with their tangents; at others, those that are written to with grad mode off, which
    levels below may track."""

    def at_level(effect: Effect) -> Effect:
        if not isinstance(effect, CopyBack):
            return effect
        if level < 0:
            return evolve(effect, by="copy_" if effect.how == "unversioned" or effect.is_subclass else "write_dual")
        if effect.target in reals and is_below(reals[effect.target]):
            return evolve(effect, by="write_below")
        if effect.how == "plain" and effect.target in facts.untracked and not effect.is_subclass:
            return evolve(effect, by="write_dual", how="detached")
        return evolve(effect, by="copy_")

    return tuple(evolve(layer, effects=tuple(map(at_level, layer.effects))) for layer in layers)


def inner_signature(outer: Signature, layers: tuple[Layer, ...]) -> Signature:
    """What the kernel looks like."""
    return layers[-1].inner if layers else outer
