"""Whether a program fits a call, and if not, why: the reasons a miss gives.

The hot path asks the printed call (``call.py``); this is the same question asked slowly, for an answer one can read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import Tensor

from ..autograd_state import gradient_of, lead_to
from ..capture.inputs import Inputs
from ..joint import Broken
from ..slots import Captured
from ..state.places import GONE, Place
from ..state.renewed import Now
from ..state.state import of_numbers, writes_to
from .key import Difference, StaticSpec, explain, key_of, sizes_in
from .program import Program


def captured_by(program: Program, inputs: Inputs, now: Now) -> list[tuple[Captured, Any]]:
    """What lives where a program reads the tensors that it closes over, or the exception that says it is gone.
    ``now``: see ``objects_of``."""
    found: list[tuple[Captured, Any]] = []
    for c in program.facts.captured:
        own = evolve(c, origin=now.place(c.origin)) if isinstance(c.origin, Place) else c
        found.append((c.slot, _read(lambda: own.read(dict(inputs.dynamic) | dict(found)))))  # noqa: B023
    return found


def objects_of(program: Program, inputs: Inputs, every: bool = False) -> Now:
    """What a call brings in the places of objects that a program was compiled with, of those that may be others in
    each call, or in this one (``every``: of all that are others)."""
    state, here = program.facts.state, inputs.by_path
    if not (every or state.brought.renewed or inputs.renewed):
        return Now()
    arguments = {own.at: own.value for own in state.brought.renewed if isinstance(own.at, str)}
    leaves = zip(program.key.paths, program.key.leaves, strict=True)
    arguments |= {path: spec.object for path, spec in leaves if isinstance(spec, StaticSpec)}
    # programs for a module that is an argument belong to it (cache.py)
    pairs = {p: (was, here[p]) for p, was in arguments.items() if p in here and not isinstance(was, torch.nn.Module)}
    renewed = {id(own.value) for own in inputs.renewed}
    return Now.find(state.guards, state.brought, pairs, lambda now: every or id(now) in renewed)


def why_not(program: Program, inputs: Inputs) -> list[Difference]:
    """Why a program does not fit a call; empty if it does."""
    now = objects_of(program, inputs)
    return differences_to(program, inputs, now, captured_by(program, inputs, now))


def differences_to(
    program: Program, inputs: Inputs, now: Now, every: Sequence[tuple[Captured, Any]]
) -> list[Difference]:
    """The same, of what the call brings (``objects_of``) and closes over (``captured_by``)."""
    captured = [(slot, tensor) for slot, tensor in every if isinstance(tensor, Tensor)]
    found = [
        Difference(str(slot), f"is no tensor any more: {value!r}")
        for slot, value in every
        if not isinstance(value, Tensor)
    ]
    if not found:
        key = key_of(inputs, captured, program.facts)
        brought = {own.at for own in now.renewed}
        found += [difference for difference in explain(program.key, key) if difference.where not in brought]
    if not found and program.facts.one.items() - inputs.one.items():
        found.append(Difference("arguments", "other containers are one object than before"))
    numbers = {slot.path: now.place(place).read() for slot, place in program.facts.numbers}
    others = [slot for slot, _ in program.facts.numbers if type(numbers[slot.path]) is not slot.kind]
    found += [Difference(s.path, f"is no {s.kind.__name__} any more: {numbers[s.path]!r}", "state") for s in others]
    if not found:
        values = {slot.path: leaf for slot, leaf in zip(inputs.slots, inputs.leaves, strict=True)} | numbers
        broken = program.joint.broken_guards(values, sizes_in(program.key, key))
        sizes = set() if program.joint.sizes is None else set(program.joint.sizes.symbols)
        on_numbers = () if program.joint.sizes is None else program.joint.sizes.guards_of_numbers
        by_value = {*program.joint.by_value, *filter(_IS_NUMBER.match, on_numbers)}
        fixed = {b.where for b in broken if b.guard in by_value and b.where in values}
        of_fixed = {where: "state" if where in numbers else "value" for where in fixed}
        about = ["sizes" if sizes.issuperset(b.symbols) else of_fixed.get(b.where, "") for b in broken]
        found += [
            Difference(b.where, f"{b} no longer holds", a, fixed_in=b.line or "" if _is_fixed(b, a, program) else "")
            for b, a in zip(broken, about, strict=True)
        ]
        tensors = dict(inputs.tensors) | dict(captured)
        changed = [slot for slot, is_leaf in program.facts.leaves.items() if tensors[slot].is_leaf is not is_leaf]
        found += [
            Difference(str(slot), "is a leaf" if tensors[slot].is_leaf else "is no leaf any more") for slot in changed
        ]
        found += [
            Difference(str(slot), "has a gradient")
            for slot in program.facts.gradless
            if gradient_of(tensors[slot]) is not None
        ]
        found += [
            Difference(str(slot), f"was computed from {' or '.join(map(str, targets))}")
            for slot, targets in program.facts.unrelated.items()
            if lead_to([tensors[slot]], [tensors[t] for t in targets])
        ]
    known = {str(slot): tensor for slot, tensor in (*inputs.tensors, *captured)}
    return [*found, *_closed_over(program, now, known), *_one_with(program, now, known, inputs)]


_IS_NUMBER = re.compile(r"(?!.*(%| or )).* == -?\d+(\.\d+)?$")
"""Not ``n % 2 == 0``, which is one of few."""


def _is_fixed(broken: Broken, about: str, program: Program) -> bool:
    """Whether a guard on sizes, or on a number that is given, says which number one is, or what is made of it."""
    is_number = broken.guard in program.joint.by_value or bool(_IS_NUMBER.match(broken.guard))
    return about in ("sizes", "value") and is_number


def _closed_over(program: Program, now: Now, tensors: Mapping[str, Tensor]) -> Iterator[Difference]:
    """What the function closes over besides captured tensors, where it is not what the trace baked in."""
    for where in program.facts.state.brought.clashes(now):
        yield Difference(where, "is one object with another that the function reads", "state")
    for was in now.one_by_one(program.facts.state.guards):
        guard = now.guard(was)
        if was.how == "tensor" and guard is not was:
            continue  # another object has another tensor
        if not guard.holds():
            for own in of_numbers(guard) or [guard]:
                place = own.place if type(own.value) in (float, int) and own.how != "fixed" else None
                at = own.place if guard is was else was.place
                is_own = any(writes_to(effect, at) for effect in program.facts.state.effects)
                yield Difference(str(own.place), own.explain(), "state", place, is_own=is_own)
    for place, slot in program.facts.also:
        if _read(now.place(place).read) is not tensors.get(str(slot)):
            yield Difference(str(place), f"is another tensor than {slot}")


def _one_with(program: Program, now: Now, tensors: Mapping[str, Tensor], inputs: Inputs) -> Iterator[Difference]:
    """The inputs that are one object with something that they must not be."""
    facts, containers = program.facts, [inputs.identities.get(own) for own in program.facts.one]
    tensors_too = [(name, id(tensor)) for name, tensor in tensors.items()]
    for name, identity in (*tensors_too, *(("an argument", own) for own in containers)):
        if identity in facts.apart:
            yield Difference(name, "is one object with what the function read elsewhere, and did not compute with")
        for place in facts.apart_from:
            if id(_read(now.place(place).read)) == identity:
                yield Difference(str(place), f"is one object with {name}")


def _read(read: Callable[[], Any]) -> Any:
    """What lives somewhere, or the exception that says it is gone."""
    try:
        return read()
    except GONE as gone:
        return gone
