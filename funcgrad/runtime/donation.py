"""Arguments that a caller gives away (``donate_argnums``): a program may write to their memory, once it has read them.

PyTorch's tensors may be looked at by others: views, graphs of autograd, arrays. What a program is given is therefore
asked, in each call, who holds its memory: where that is not the caller alone, the program is given a copy.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import define, evolve
from torch import Tensor

from ..capture.views import View
from ..errors import DonationError, DonationWarning
from ..executable import Executable
from ..loops.in_place import is_dense
from ..loops.ir import Buffer
from ..memory.steps import Allocate, Call, Launch
from ..options import Options
from ..slots import Arg, Slot
from ..state.lines import warn
from ..torch_private.tensors import is_held_once
from ..trees import Node, count, flatten
from .captured import CapturedCall

_FIX = "pass a tensor of its own that nobody reads again, or leave the argument out of donate_argnums"
UNUSED = "no result, and nothing computed on the way, fits into its memory after it was read last"


# ── what may be taken ────────────────────────────────────────────────────────────────────────────────────────────


def with_donations(found: CapturedCall, options: Options) -> CapturedCall:
    """A call of which the joint graph says which inputs are donated, and why some cannot be."""
    donated: dict[Slot, str] = {slot: _why_kept(found, slot, t) for slot, t in _donated(found, options) if t.numel()}
    return evolve(found, joint=evolve(found.joint, donated=donated))


def _donated(found: CapturedCall, options: Options) -> Iterator[tuple[Arg, Tensor]]:
    """The tensors among the arguments that are donated."""
    inputs = found.inputs
    assert isinstance(inputs.tree, Node) and isinstance(inputs.tree.children[0], Node)
    positional = inputs.tree.children[0].children
    ends = list(itertools.accumulate(map(count, positional), initial=0))
    for i in sorted({i % len(positional) for i in options.donate_argnums}):
        for slot, leaf in zip(inputs.slots[ends[i] : ends[i + 1]], inputs.leaves[ends[i] : ends[i + 1]], strict=True):
            if isinstance(leaf, Tensor):
                yield slot, leaf


def _why_kept(found: CapturedCall, slot: Arg, tensor: Tensor) -> str:
    """Why the memory of a donated tensor cannot be taken in any call with this key; nothing where it may be."""
    facts = found.facts
    shared = [*facts.same, *([of for of, _ in overlap.views] for overlap in facts.overlap), *facts.neighbours]
    written = {*facts.changes, *facts.stores, *facts.gradients, *facts.switches, *facts.follows}
    viewed = {o.view.of for o in facts.outputs if isinstance(o.view, View)}
    if type(tensor) is not Tensor:
        return f"it is a {type(tensor).__name__}, which may be more than its numbers"
    if tensor.requires_grad:
        return "it requires grad"
    if tensor.layout is not torch.strided or tensor.is_conj() or tensor.is_neg():
        return "what it is made of is no plain memory"
    if any(slot in group for group in shared):
        return "another input is the same tensor, or shares its memory"
    looks = Buffer(str(slot), tuple(tensor.shape), tensor.dtype, tuple(tensor.stride()))
    if tensor.untyped_storage().nbytes() != tensor.nbytes or not is_dense(looks):
        return "its memory is part of a larger tensor, or it looks at some of it twice"
    if slot in written:
        return "the function writes to it"
    if slot in viewed:
        return "it is returned, or a view of it is"
    if facts.differentiable:
        return "the call is differentiable, and its backward pass may read what it was given"
    return ""


# ── what is taken ────────────────────────────────────────────────────────────────────────────────────────────────


def donation_of(found: CapturedCall, made: Executable, options: Options) -> Donation | None:
    """What a call does about the inputs that are donated; None where none can be made use of. Warns of those that
    cannot, or raises ``DonationError``."""
    why = dict(made.joint.donated)
    if not why or not made.schedules:
        return None
    graph, steps = made.graphs[0], made.schedules[0].steps
    taken = taken_in(steps)
    for slot, node in graph.given:
        if why.get(slot) == "" and node.name not in taken:
            why[slot] = UNUSED
    kept = {slot: reason or UNUSED for slot, reason in why.items() if reason or slot not in graph.signature.ins}
    name = found.root.__name__ if hasattr(found.root, "__name__") else type(found.root).__name__
    if kept:
        complain(name, {str(slot): reason for slot, reason in kept.items()}, options.donate == "strict")
    slots = tuple(slot for slot in why if slot not in kept)
    return Donation(name, slots, options.donate == "strict") if slots else None


def taken_in(steps: Sequence[object]) -> set[str]:
    """What others are written over."""
    found: set[str] = set()
    for step in steps:
        if isinstance(step, Allocate) and step.over:
            found.add(step.over)
        elif isinstance(step, Launch):
            found.update(step.origins.values())
        elif isinstance(step, Call) and step.into is not None:
            found.add(step.into.name)
    return found


def complain(name: str, kept: Mapping[str, str], is_strict: bool) -> None:
    """Warn that tensors are donated to a function in vain, or raise ``DonationError``."""
    reasons = "; ".join(f"{path}: {reason}" for path, reason in kept.items())
    what = f"{name} cannot make use of what it is donated: {reasons}"
    if is_strict:
        raise DonationError(what, where=next(iter(kept)), fix=_FIX)
    warn(what, DonationWarning)


@define(eq=False)
class Donation:
    """The inputs whose memory a program takes."""

    name: str
    slots: tuple[Slot, ...]
    is_strict: bool
    _is_warned: bool = False

    def take(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """What the program is given: the memory of each under another name, or a copy where anyone but the caller's
        own tensor reaches it."""
        held = [i for i, t in enumerate(tensors) if not is_held_once(t)]
        if held and (self.is_strict or not self._is_warned):
            self._is_warned = True
            what = "its memory is part of a larger tensor, or a view, a graph of autograd or an array looks at it"
            complain(self.name, {str(self.slots[i]): what for i in held}, self.is_strict)
        return tuple(t.clone() if i in held else t.data for i, t in enumerate(tensors))

    def end(self, tensors: Sequence[Tensor], given: Sequence[Tensor]) -> None:
        """The program has run: what it was given is no longer what it was."""
        for slot, tensor, own in zip(self.slots, tensors, given, strict=True):
            if tensor.data_ptr() == own.data_ptr():
                Donated.leave(tensor, f"{slot} of {self.name}")


class Donated(Tensor):
    """What is left of a tensor whose memory was taken: it says so to whoever asks it for more than what it looked
    like (JAX's deleted array)."""

    _given: str

    @staticmethod
    def leave(tensor: Tensor, given: str) -> None:
        """Leave nothing of a tensor but its looks."""
        tensor.data = _nothing(tensor.dtype, tensor.device).expand(tensor.shape)
        tensor.__class__ = Donated
        tensor._given = given  # type: ignore[attr-defined]

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"<donated as {self._given}>"

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _LOOKS:
            return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        given = next((v._given for v in flatten((args, kwargs), "")[0] if isinstance(v, Donated)), "an argument")
        raise DonationError(
            f"a tensor is read that was donated ({given}): results have been written to its memory",
            fix="use what the call returned, pass a clone(), or leave the argument out of donate_argnums",
        )


@functools.cache
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    """One element: a tensor that looks at no other memory."""
    return torch.empty((), dtype=dtype, device=device)


_LOOKS = [getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "layout", "ndim")] + [Tensor.size]
