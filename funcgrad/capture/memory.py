"""Which inputs are one object, and which overlap in memory: read off the real tensors, before anything runs.

Inputs that autograd knows as views of one tensor are a *family*: a write through one reaches the history of all. Whether two
strided views overlap is decided exactly (by NumPy's solver of the bounded Diophantine problem behind it).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from ..slots import Arg, Base, Captured
from ..torch_private import creation_meta, storage_id, view_base
from .views import Geometry, Step, steps_between

Named = Sequence[tuple[Arg | Captured, Tensor]]


@frozen
class BaseOf:
    """How a call finds the memory some of its inputs share: the tensor autograd knows as their base, one of them itself,
    or (``span``: first element and length) a flat look at the part of the storage they cover."""

    of: Arg | Captured
    is_itself: bool
    span: tuple[int, int] | None = None

    def __call__(self, tensor: Tensor) -> Tensor:
        if self.span is not None:
            start, length = self.span
            return torch.as_strided(tensor.detach(), (length,), (1,), start)
        base = tensor if self.is_itself else view_base(tensor)
        assert base is not None
        return base


@frozen
class Overlap:
    """Inputs that overlap in memory: how to find a base they are all views of, the views, and the bytes of both."""

    base: Base
    found: BaseOf
    views: tuple[tuple[Arg | Captured, tuple[Step, ...]], ...]
    base_bytes: int
    member_bytes: int
    at_odds: str | None
    """Why no one tensor can stand for them all, where none can."""


def needs_strides(views: Sequence[tuple[object, tuple[Step, ...]]]) -> bool:
    """Whether a view can only be taken by ``as_strided``, whose offsets count from the start of the memory."""
    return any(step.op is torch.ops.aten.as_strided.default for _, steps in views for step in steps)


def same_objects(named: Named) -> tuple[tuple[Arg | Captured, ...], ...]:
    """The groups of slots that hold one tensor object."""
    groups: dict[int, list[Arg | Captured]] = {}
    for slot, tensor in named:
        groups.setdefault(id(tensor), []).append(slot)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def overlaps(named: Named) -> tuple[Overlap, ...]:
    """The groups of distinct objects that overlap, directly or through one another."""
    distinct = {id(t): (slot, t) for slot, t in reversed(named)}
    members = sorted(distinct.values(), key=lambda pair: [id(t) for _, t in named].index(id(pair[1])))
    by_storage: dict[int, list[tuple[Arg | Captured, Tensor]]] = {}
    for slot, tensor in members:
        by_storage.setdefault(storage_id(tensor), []).append((slot, tensor))
    found: list[Overlap] = []
    for group in by_storage.values():
        if len(group) > 1:
            found += [_overlap(component) for component in _components(group) if len(component) > 1]
    return tuple(found)


def share_elements(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors over one storage have a byte in common."""
    if not a.numel() or not b.numel():
        return False
    return bool(np.shares_memory(np.asarray(_Window(a)), np.asarray(_Window(b))))


class _Window:
    """A strided window for NumPy, at an address that is never read: the offset alone matters."""

    def __init__(self, t: Tensor) -> None:
        size = t.element_size()
        self.__array_interface__ = {
            "version": 3,
            "typestr": f"|V{size}",
            "shape": tuple(t.shape),
            "strides": tuple(s * size for s in t.stride()),
            "data": (4096 + int(t.storage_offset()) * size, True),
        }


def _components(group: list[tuple[Arg | Captured, Tensor]]) -> list[list[tuple[Arg | Captured, Tensor]]]:
    components: list[list[tuple[Arg | Captured, Tensor]]] = []
    for slot, tensor in group:
        touching = [c for c in components if any(share_elements(tensor, other) for _, other in c)]
        merged = [pair for c in touching for pair in c] + [(slot, tensor)]
        components = [c for c in components if c not in touching] + [merged]
    return components


def family_of(t: Tensor) -> Tensor:
    """The tensor autograd knows a view to be a view of, and itself for any other."""
    base = view_base(t)
    return t if base is None else base


def _overlap(members: list[tuple[Arg | Captured, Tensor]]) -> Overlap:
    slots = tuple(slot for slot, _ in members)
    families = {id(family_of(t)): family_of(t) for _, t in members}
    first, tensor = members[0]
    if len(families) == 1:
        (base,) = families.values()
        own = next((slot for slot, t in members if t is base), None)
        found = BaseOf(own or first, own is not None)
        geometry = Geometry.of(base)
    else:
        start = min(Geometry.of(t).offset for _, t in members)
        end = max(Geometry.of(t).end for _, t in members)
        found = BaseOf(first, False, (start, end - start))
        geometry = Geometry((end - start,), (1,), start, tensor.dtype)
    views = tuple((slot, steps_between(geometry, Geometry.of(t))) for slot, t in members)
    return Overlap(
        Base(slots),
        found,
        views,
        geometry.numel * tensor.element_size(),
        sum(t.numel() * t.element_size() for _, t in members),
        _at_odds([t for _, t in members], list(families.values()))
        or ("their base is not contiguous" if needs_strides(views) and not geometry.is_contiguous else None),
    )


def _at_odds(members: Sequence[Tensor], families: Sequence[Tensor]) -> str | None:
    def differ(values: Iterable[object]) -> bool:
        return len(set(values)) > 1

    everything = [*members, *families]
    if differ(t.dtype for t in everything):
        return "they look at the same bytes with different dtypes"
    if differ((t.is_conj(), t.is_neg()) for t in everything):
        return "one of them is a conjugated or negated look at the other"
    if differ(t.requires_grad for t in everything) and len(families) > 1:
        return "autograd tracks one of them and does not know that it shares memory with the other (detach, .data)"
    if len(families) > 1 and any(t.requires_grad for t in everything):
        return "autograd tracks them without knowing that they share memory"
    return None


def history(t: Tensor) -> str:
    """What decides whether autograd allows a write to a tensor; part of the call key of a tensor that is written to."""
    if t.is_inference() and not torch.is_inference_mode_enabled():
        return "an inference tensor"
    if not t.requires_grad:
        return "untracked"
    base = view_base(t)
    if base is None:
        return "a leaf" if t.is_leaf else "computed"
    meta = creation_meta(t).name
    whose = "a view of a leaf" if base.is_leaf and base.requires_grad else "a view"
    return whose if meta == "DEFAULT" else f"{whose} ({meta})"
