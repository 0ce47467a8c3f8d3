"""Stand-ins: the functional fake tensors a function gets in a trace in place of the caller's tensors.

In the dry run they mirror everything autograd knows of the real ones (leaf or computed, view of what, made how), so
that what eager PyTorch forbids is forbidden at once, before anything is touched, and in its own words. In the recorded
run they are *fresh*: a tensor that is written to is another tensor over the same value, so that a recorded function is
pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..autograd_state import family_of, version_of, view_base
from ..subclasses import Wrapping, inner_tensors
from ..torch_private.autograd import creation_meta, set_creation_meta
from ..torch_private.fakes import without_modes
from ..torch_private.functional import from_functional, is_storage_changed, to_functional
from ..torch_private.tensors import is_transform_wrapper, is_wrapper_subclass, storage_id
from .memory import Overlap, neighbours, overlaps_itself, room_around, together, without_subclasses
from .trace import Trace
from .views import ALIAS, Geometry, steps_between, take


class _Fresh(torch.autograd.Function):
    """The identity, to autograd; to functionalisation another tensor, with memory of its own, over the same value."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return copied(tensor)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


class _Computed(torch.autograd.Function):
    """The identity, on the same memory: makes a leaf look computed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.detach()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient


def fresh(tensor: Tensor) -> Tensor:
    """A copy that costs no operation: writing to it leaves ``tensor`` as it is, gradients flow through it."""
    if tensor.requires_grad:
        with torch.enable_grad():
            copy: Tensor = _Fresh.apply(tensor)  # type: ignore[no-untyped-call]
        return copy
    return copied(tensor)


def copied(tensor: Tensor) -> Tensor:
    """The same, without its history."""
    wrapping = Wrapping.of(tensor)
    if wrapping is None:
        return to_functional(from_functional(tensor))
    return wrapping.build(to_functional(from_functional(inner)) for inner in inner_tensors(tensor)).requires_grad_(
        False
    )


@frozen(eq=False)
class Mirrored:
    """What stands for one real tensor in a dry run: ``seen`` is what the function gets, ``family`` what autograd knows
    as its base.

    ``memory`` is a tensor over the same memory that only this module holds, ``leaf`` where gradients arrive.
    """

    seen: Tensor
    family: Tensor
    leaf: Tensor
    memory: Tensor
    version: int
    history: Any
    requires_grad: bool
    inner: tuple[Tensor, ...]
    """The inner tensors of ``seen``, as it was made."""
    wrapping: Wrapping | None

    @property
    def has_other_metadata(self) -> bool:
        """Whether a wrapper subclass is made otherwise than at first."""
        return self.wrapping is not None and not self.wrapping.fits(metadata(self.seen))

    @property
    def has_other_storage(self) -> bool:
        now = inner_tensors(self.seen)
        if [id(t) for t in now] != [id(t) for t in self.inner] or any(map(is_storage_changed, now)):
            return True
        return [storage_id(t) for t in now] != [storage_id(t) for t in inner_tensors(self.memory)]

    def how_written(self, tracked: bool) -> str:
        """``"tracked"`` by autograd; ``"detached"``: its version counter alone; ``"unversioned"``: without its
        knowledge.

        ``tracked``: whether one of the writes that came through this very tensor could be tracked.
        """
        if tracked and self.family.grad_fn is not self.history:
            return "tracked"
        return "detached" if version_of(self.family) != self.version else "unversioned"


def mirror(trace: Trace, named: Sequence[tuple[Hashable, Tensor]], grad: bool) -> dict[int, Mirrored]:
    """A stand-in for each distinct tensor, by the identity of the real one; overlapping ones overlap.

    ``grad``: whether they keep their ``requires_grad``.
    """
    found: dict[int, Mirrored] = {}
    reals = {slot: tensor for slot, tensor in named}
    for group in neighbours(without_subclasses(named)):
        members = [(slot, reals[slot]) for slot in group]
        found |= _mirror_together(trace, together(members, room_around(members, trace.memory_around)), reals, grad)
    for slot, tensor in named:
        room = trace.memory_around.get(id(tensor), 0)
        if id(tensor) not in found and not is_wrapper_subclass(tensor) and (room or overlaps_itself(tensor)):
            found |= _mirror_together(trace, together([(slot, tensor)], room), reals, grad)  # type: ignore[list-item]
        elif id(tensor) not in found:
            found[id(tensor)] = mirror_alone(trace, tensor, grad)
    return found


def mirror_alone(trace: Trace, real: Tensor, grad: bool) -> Mirrored:
    """A stand-in for one tensor, a view where that is one. Where it is one of a tensor that requires grad, that one
    is mirrored, too."""
    base = view_base(real)
    tracked = grad and real.requires_grad
    if base is not None and tracked and base.requires_grad and not is_wrapper_subclass(real):
        memory = trace.plain_stand_in(base)
        leaf, family = _as_tracked(memory, base, True)
        return _mirrored(_view(family, base, real), family, leaf, memory)
    memory = trace.plain_stand_in(real)
    if base is not None and not base.requires_grad and not is_wrapper_subclass(real) and not is_transform_wrapper(real):
        # the call may be in inference mode, whose views of what does not require grad autograd does not know
        with torch.inference_mode(False), torch.enable_grad():
            family = memory.detach()
            seen = take(family, (ALIAS,))
        set_creation_meta(seen, creation_meta(real))
        seen.requires_grad_(tracked)  # a leaf for itself
        return _mirrored(seen, seen if tracked else family, seen, memory)
    leaf, seen = _as_tracked(memory, real, tracked)
    for inner, own in zip(inner_tensors(seen), inner_tensors(real), strict=True):
        if inner is not seen and grad and own.requires_grad:
            # the class works below autograd; who takes an inner tensor out of it is tracked, and refused
            inner.requires_grad_()
    return _mirrored(seen, seen, leaf, memory)


def _mirror_together(trace: Trace, overlap: Overlap, reals: dict[Any, Tensor], grad: bool) -> dict[int, Mirrored]:
    members = [reals[slot] for slot, _ in overlap.views]
    if overlap.at_odds and (len({t.dtype for t in members}) > 1 or any(map(is_transform_wrapper, members))):
        # refused if one of them is written to
        return {id(t): mirror_alone(trace, t, grad) for t in members}
    with without_modes():
        base_of_all = overlap.found(reals[overlap.found.of])
    memory = trace.plain_stand_in(base_of_all)
    found: dict[int, Mirrored] = {}
    for views in [family.views for family in overlap.families] or [overlap.views]:
        base = family_of(reals[views[0][0]])  # whether or not that is an input
        own = memory if base is base_of_all else _look(memory, base_of_all, base)
        leaf, alias = _as_tracked(own, base, grad and base.requires_grad)
        for slot, _ in views:
            real = reals[slot]
            found[id(real)] = _mirrored(alias if real is base else _view(alias, base, real), alias, leaf, memory)
    trace.writes.link([own.seen for own in found.values()])
    return found


def _mirrored(seen: Tensor, family: Tensor, leaf: Tensor, memory: Tensor) -> Mirrored:
    return Mirrored(
        seen,
        family,
        leaf,
        memory,
        version_of(family),
        family.grad_fn,
        seen.requires_grad,
        tuple(inner_tensors(seen)),
        metadata(seen),
    )


def metadata(tensor: Tensor) -> Wrapping | None:
    """How a wrapper subclass is made. Some say there whether they require grad, which is no matter of theirs here."""
    return Wrapping.of(tensor.detach()) if is_wrapper_subclass(tensor) else None


def _as_tracked(memory: Tensor, real: Tensor, tracked: bool) -> tuple[Tensor, Tensor]:
    """A leaf over ``memory``, and what looks to autograd like ``real``: the leaf, or a tensor computed from it."""
    leaf = memory.detach().requires_grad_(tracked)
    if not tracked or real.is_leaf:
        return leaf, leaf
    with torch.enable_grad():
        computed: Tensor = _Computed.apply(leaf)  # type: ignore[no-untyped-call]
    return leaf, computed


def _view(family: Tensor, base: Tensor, real: Tensor) -> Tensor:
    """A view of ``family``, which stands for ``base``, that lies as ``real`` lies, and may be written to where that
    may."""
    with torch.enable_grad():
        view = _look(family, base, real)
    if view_base(view) is not None:
        set_creation_meta(view, creation_meta(real))
    return view


def _look(stand_in: Tensor, base: Tensor, real: Tensor) -> Tensor:
    own = Geometry.of(real)
    steps = steps_between(Geometry.of(base), own)
    if steps is None or base.dtype != real.dtype:
        # it may be looked at; a write to memory around it is refused
        return stand_in.as_strided(own.shape, own.stride, own.offset)
    return take(stand_in, steps)
