"""Which inputs are one object, and which overlap in memory: read off the real tensors, before anything runs.

Inputs that autograd knows as views of one tensor are a *family*: a write through one reaches the history of all.
Whether two strided views overlap is decided exactly (by NumPy's solver of the bounded Diophantine problem behind it).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from ..autograd_state import family_of, view_base
from ..slots import Arg, Base, Captured
from ..subclasses import inner_tensors
from ..torch_private.autograd import creation_meta
from ..torch_private.tensors import is_transform_wrapper, is_wrapper_subclass, storage_id, unwrap_transform
from .views import Geometry, Step, steps_between

Named = Sequence[tuple[Arg | Captured, Tensor]]
Views = tuple[tuple[Arg | Captured, tuple[Step, ...] | None], ...]


@frozen
class BaseOf:
    """How a call finds the memory some of its inputs share: the tensor autograd knows as their base, one of them
    itself, or (``length`` elements) a flat look at all of their storage, which may have to grow first; or, of one that
    overlaps itself, at its ``own`` part of that."""

    of: Arg | Captured
    is_itself: bool
    length: int | None = None
    own: bool = False
    grows: bool = False

    def __call__(self, tensor: Tensor) -> Tensor:
        """What a call finds; of a storage that has to grow, a copy that is large enough."""
        if self.length is not None:
            length = min(self.length, storage_length(tensor)) if self.grows else self.length
            found = torch.as_strided(tensor.detach(), (length,), (1,), tensor.storage_offset() if self.own else 0)
            return torch.cat([found, found.new_zeros(self.length - length)]) if self.grows else found
        base = tensor if self.is_itself else view_base(tensor)
        assert base is not None
        return base


@frozen
class Family:
    """Inputs that autograd knows as views of one tensor, among others it does not know to share memory with them.

    ``slot`` is the input whose history is theirs: the only one there is, or a base, had by ``found``. ``steps`` lead to
    it from the memory all families share, the views from it to the inputs.
    """

    slot: Arg | Captured | Base
    found: BaseOf | None
    steps: tuple[Step, ...] | None
    views: Views


@frozen
class Overlap:
    """Inputs that overlap in memory: how to find a base they are all views of, the views, and the bytes of both.

    ``families``, where there are several: then the base is plain memory, of which autograd knows nothing.
    """

    base: Base
    found: BaseOf
    views: Views
    families: tuple[Family, ...]
    base_bytes: int
    member_bytes: int
    at_odds: str | None
    """Why no one tensor can stand for them all, where none can."""
    is_around: bool = False
    """Whether the function looks at memory around them, so that their base is all of that."""

    @property
    def alone(self) -> tuple[Arg | Captured | Base, ...]:
        """Those of them that autograd does not know to share memory with any."""
        return tuple(f.slot for f in self.families if f.found is None and len(self.base.of) > 1)

    @property
    def itself(self) -> Arg | Captured | None:
        """The one of them that all are views of, to autograd, too."""
        return self.found.of if self.found.is_itself and not self.families and len(self.base.of) > 1 else None


def same_objects(named: Named) -> tuple[tuple[Arg | Captured, ...], ...]:
    """The groups of slots that hold one tensor object."""
    groups: dict[int, list[Arg | Captured]] = {}
    for slot, tensor in named:
        groups.setdefault(id(tensor), []).append(slot)
    return tuple(tuple(group) for group in groups.values() if len(group) > 1)


def neighbours(named: Named) -> tuple[tuple[Arg | Captured, ...], ...]:
    """The groups of distinct objects that live in one storage."""
    groups: dict[int, dict[int, Arg | Captured]] = {}
    for slot, tensor in named:
        groups.setdefault(storage_id(tensor), {}).setdefault(id(tensor), slot)
    return tuple(tuple(group.values()) for group in groups.values() if len(group) > 1)


def entangled(named: Named) -> dict[Arg | Captured, Arg | Captured]:
    """The inputs that share memory with another (or whose own inner tensors do), one of both being a wrapper
    subclass; each with that other."""
    owners: dict[int, list[tuple[Arg | Captured, Tensor]]] = {}
    for slot, tensor in named:
        for storage in [storage_id(tensor)] * is_wrapper_subclass(tensor) + [
            storage_id(inner) for inner in inner_tensors(tensor)
        ]:
            owners.setdefault(storage, []).append((slot, tensor))
    found: dict[Arg | Captured, Arg | Captured] = {}
    for sharing in owners.values():
        for i, (slot, tensor) in enumerate(sharing):
            for other, its in sharing[:i]:
                if (is_wrapper_subclass(tensor) or is_wrapper_subclass(its)) and (slot == other or tensor is not its):
                    found |= {slot: other, other: slot}
    return found


def overlaps(named: Named, freed: frozenset[int], around: Mapping[int, int]) -> tuple[Overlap, ...]:
    """For each storage, the distinct objects that overlap with another, or with themselves; or all, where memory
    ``around`` one of them (by identity) is looked at: so many elements of the storage.

    Views of one tensor through whose history the function goes backwards, and which it does not keep (``freed``, by
    identity), are no less one: what is written to one of them is in the history of all, and is freed with it.
    """
    named = without_subclasses(named)
    tensors = dict(named)
    found: list[Overlap] = []
    for group in neighbours(named):
        members = [(slot, tensors[slot]) for slot in group]
        if room := room_around(members, around):
            found.append(together(members, room))
            continue
        components = _components(members, freed)
        # one for each storage: two bases over one would each carry an old copy of what the other writes
        shared = [
            pair
            for component in components
            if len(component) > 1 or overlaps_itself(component[0][1])
            for pair in component
        ]
        found += [together(shared)] if shared else []
    grouped = {id(tensors[slot]) for group in neighbours(named) for slot in group}
    alone = {id(t): (slot, t) for slot, t in reversed(named) if id(t) not in grouped}
    for slot, t in alone.values():
        if room := room_around([(slot, t)], around):
            found.append(together([(slot, t)], room))
        elif overlaps_itself(t):
            found.append(_with_itself(slot, t))
    return tuple(found)


def room_around(members: Named, around: Mapping[int, int]) -> int:
    """How many elements of the storage of some tensors are looked at ``around`` them; 0 where none is."""
    return max(around.get(id(t), 0) for _, t in members)


def storage_length(tensor: Tensor) -> int:
    """How many elements the storage of a tensor holds."""
    return unwrap_transform(tensor).untyped_storage().nbytes() // tensor.element_size()


def grown_storage(tensor: Tensor, length: int) -> Tensor:
    """All of the storage of a tensor, which grows where it holds fewer elements; what is new is not initialised."""
    storage = tensor.untyped_storage()
    if storage.nbytes() < length * tensor.element_size():
        storage.resize_(length * tensor.element_size())
    return torch.as_strided(tensor.detach(), (length,), (1,), 0)


def without_subclasses(named: Sequence[tuple[Any, Tensor]]) -> list[tuple[Any, Tensor]]:
    """The tensors that have memory of their own: no wrapper subclass has."""
    return [(slot, tensor) for slot, tensor in named if not is_wrapper_subclass(tensor)]


def overlaps_itself(t: Tensor | Geometry) -> bool:
    """Whether several elements are one in memory."""
    reach = 0
    for stride, size in sorted(
        (s, n) for n, s in zip(t.shape, t.stride if isinstance(t, Geometry) else t.stride(), strict=True) if n > 1
    ):
        if stride <= reach:  # the smaller dimensions reach so far: it may be, but need not
            own = t if isinstance(t, Geometry) else Geometry.of(t)
            if 0 in own.shape or stride == 0:  # an expanded tensor may be larger than memory
                return 0 not in own.shape
            return np.unique(positions(own)).size < own.numel
        reach += (size - 1) * stride
    return False


def positions(own: Geometry) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where in memory each element is."""
    found = np.array(own.offset)
    for size, stride in zip(own.shape, own.stride, strict=True):
        found = found[..., None] + np.arange(size) * stride
    return found


def lies_within(t: Tensor | Geometry, other: Tensor) -> bool:
    """Whether each element of a tensor is one of another one, where both lie in one memory."""
    own = t if isinstance(t, Geometry) else Geometry.of(t)
    return bool(np.isin(positions(own), positions(Geometry.of(other))).all())


def _with_itself(slot: Arg | Captured, tensor: Tensor) -> Overlap:
    """How a tensor that overlaps itself can be had as a view of one that does not."""
    own = Geometry.of(tensor)
    memory = Geometry(
        (1 + sum((n - 1) * s for n, s in zip(own.shape, own.stride, strict=True)),), (1,), own.offset, own.dtype
    )
    family, nbytes = _family(memory, [(slot, tensor)]), memory.numel * tensor.element_size()
    found = BaseOf(slot, False, memory.numel, own=True)
    return Overlap(Base((slot,)), found, family.views, (family,), nbytes, nbytes, _at_odds([tensor]))


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


def _components(group: Named, freed: frozenset[int]) -> list[list[tuple[Arg | Captured, Tensor]]]:
    def touch(a: Tensor, b: Tensor) -> bool:
        return share_elements(a, b) or ({id(a), id(b)} <= freed and family_of(a) is family_of(b))

    components: list[list[tuple[Arg | Captured, Tensor]]] = []
    for slot, tensor in group:
        touching = [c for c in components if any(touch(tensor, other) for _, other in c)]
        merged = [pair for c in touching for pair in c] + [(slot, tensor)]
        components = [c for c in components if c not in touching] + [merged]
    return components


def together(members: Named, room: int = 0) -> Overlap:
    """How distinct tensors over one storage can be had as views of one tensor; of all of the storage, where so much
    ``room`` of it is needed."""
    tensors = [t for _, t in members]
    families: dict[int, list[tuple[Arg | Captured, Tensor]]] = {}
    for slot, t in members:
        families.setdefault(id(family_of(t)), []).append((slot, t))
    kin: tuple[Family, ...] = ()
    if len(families) == 1 and not room and not overlaps_itself(family_of(tensors[0])):
        found, geometry, views = _base_of(members)
    else:
        # all of the storage: what is cut out of a part of it might not be a combination of slices
        now = storage_length(tensors[0])
        length = max(now, room)
        found = BaseOf(members[0][0], False, length, grows=length > now)
        geometry = Geometry((length,), (1,), 0, tensors[0].dtype)
        if room and len(families) == 1:
            views = _views_of(geometry, members)
        else:
            kin = tuple(_family(geometry, own) for own in families.values())
            views = tuple(view for family in kin for view in family.views)
    steps = [s for _, s in views] + [family.steps for family in kin]
    return Overlap(
        Base(tuple(slot for slot, _ in members)),
        found,
        views,
        kin,
        geometry.numel * tensors[0].element_size(),
        sum(t.numel() * t.element_size() for t in tensors),
        _at_odds([*tensors, *map(family_of, tensors)], len(families))
        or ("one of them is no combination of slices of their base" if None in steps else None),
        bool(room),
    )


def _base_of(members: Named) -> tuple[BaseOf, Geometry, Views]:
    """For members of one family: how their base is found, how it lies, and how they are views of it."""
    (first, tensor), *_ = members
    base = family_of(tensor)
    own, geometry = next((slot for slot, t in members if t is base), None), Geometry.of(base)
    return BaseOf(own or first, own is not None), geometry, _views_of(geometry, members)


def _views_of(memory: Geometry, members: Named) -> Views:
    return tuple((slot, steps_between(memory, Geometry.of(t))) for slot, t in members)


def _family(memory: Geometry, members: Named) -> Family:
    if len(members) == 1:
        ((slot, tensor),) = members
        own = Geometry.of(tensor)
        return Family(slot, None, steps_between(memory, own), _views_of(own, members))
    found, own, views = _base_of(members)
    return Family(Base(tuple(slot for slot, _ in members)), found, steps_between(memory, own), views)


def _at_odds(tensors: Sequence[Tensor], families: int = 1) -> str | None:
    if families > 1 and any(map(is_transform_wrapper, tensors)):
        return "a transform of torch.func does not know of it: to it they are tensors of their own"
    if len({t.dtype for t in tensors}) > 1:
        return "they look at the same bytes with different dtypes"
    if len({(t.is_conj(), t.is_neg()) for t in tensors}) > 1:
        return "one of them is a conjugated or negated look at the other"
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
