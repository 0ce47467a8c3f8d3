"""What a dry run did to its inputs: the changes, and a named error for each that cannot be carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from torch import Tensor

from .. import refusals
from ..autograd_state import (
    depends_on,
    has_history,
    has_hooks,
    is_leaf,
    is_stale,
    leaves_below,
    retains_grad,
    version_of,
    view_base,
)
from ..slots import Base
from ..subclasses import inner_tensors
from ..torch_private.autograd import creation_meta
from ..torch_private.tensors import is_wrapper_subclass, storage_id
from .around import with_memory_looked_at
from .facts import Change, Source
from .lineage import Lineage
from .memory import Overlap, entangled, lies_within, neighbours, overlaps_itself
from .outputs import OutputFact
from .questions import HAS_MOVED
from .stand_ins import Mirrored
from .trace import Trace
from .views import Geometry, View, detaches


@frozen(eq=False)
class Met:
    """The inputs that a dry run has met, by name, what stands for them, by identity, and which overlap."""

    trace: Trace
    named: Sequence[tuple[Source, Tensor]]
    mirrored: Mapping[int, Mirrored]
    groups: Sequence[Overlap]

    @property
    def each(self) -> list[tuple[Source, Tensor, Mirrored]]:
        """Each input, its tensor, and what stands for that."""
        return [(slot, tensor, self.mirrored[id(tensor)]) for slot, tensor in self.named]


def changes_of(
    met: Met, in_forward: Mapping[int, str], ever: Mapping[int, str]
) -> Iterator[tuple[Source | Base, Change]]:
    """What is done to each input, and to each overlap as one.

    ``in_forward`` and ``ever`` say how the real tensors, by identity, were written to in the forward pass, and in both.
    """
    lineage, groups, mirrored = met.trace.lineage, met.groups, met.mirrored
    shared = {slot: group for group in groups for slot in group.base.of}
    tensors = dict(met.named)
    for group in groups:
        keys = [id(tensors[slot]) for slot, _ in group.views]
        if any(key in in_forward for key in keys):
            yield (
                group.base,
                Change(
                    "unversioned" if group.families else _most([in_forward[key] for key in keys if key in in_forward])
                ),
            )
            for family in group.families:
                data = _of_family([id(tensors[slot]) for slot, _ in family.views], mirrored, in_forward)
                if data != "unversioned" and isinstance(family.slot, Base):
                    yield family.slot, Change(data)
        elif any(id(tensors[slot]) in ever for slot, _ in group.views):
            yield group.base, Change(in_backward=True)
        elif group.is_around:
            yield group.base, Change()
    families = {f.slot: f for group in groups for f in group.families}
    written = {g.base for g in groups if any(id(tensors[slot]) in in_forward for slot, _ in g.views)}
    done: set[int] = set()
    for slot, tensor, own in met.each:
        alone = slot not in shared or slot in families
        how = in_forward.get(id(tensor))
        if slot in families and shared[slot].base in written:
            how = _of_family([id(tensor)], mirrored, in_forward)
        own_data = None if not alone or (how == "unversioned" and slot in families) else how
        restrides = lineage.restrides(own.seen)
        if own_data == "tracked" and not met.trace.forgotten.holds(lineage.current(own.seen)):
            # what gets a history, autograd must follow
            restrides = tuple(evolve(step, tracked=True) for step in restrides)
        if (
            not tensor.requires_grad and view_base(tensor) is not None and creation_meta(tensor).name != "DEFAULT"
        ):  # once it requires grad, autograd would forbid it
            restrides = tuple(evolve(step, tracked=False) for step in restrides)
        late = slot not in shared and id(tensor) in ever and not own_data
        untouched = (
            (slot not in shared or shared[slot].base not in written)
            and not own_data
            and not restrides
            and ever is in_forward
        )
        moved = untouched and own.how_written(False) == "detached"
        if own_data == "detached" and slot in families and overlaps_itself(tensor):
            own_data, moved = None, True  # its memory is written to as that of its base
        if id(tensor) not in done and (own_data or restrides or late or moved):
            yield slot, Change(own_data, restrides, late, moved)
        done.add(id(tensor))


def _of_family(keys: Sequence[int], mirrored: Mapping[int, Mirrored], in_forward: Mapping[int, str]) -> str:
    """How members of one of several families are written to through themselves. Where families share a version
    counter, it moves with one of them; where they do not (``a.data = b``), it must not."""
    ways = [in_forward[key] for key in keys if key in in_forward]
    return _most(ways) if "tracked" in ways or not ways else mirrored[keys[0]].how_written(False)


def _most(ways: Sequence[str]) -> str:
    """The way of several that autograd knows most of."""
    return next((way for way in ("tracked", "detached") if way in ways), "unversioned")


def _keys(slot: Source, groups: Sequence[Overlap]) -> list[Source | Base]:
    """The slots under which the changes of an input are found: its family's before its own."""
    return [f.slot for g in groups for f in g.families if slot in dict(f.views)] + [slot]


def refuse(
    met: Met,
    changes: Mapping[Source | Base, Change],
    histories: Mapping[Source, str],
    written: Mapping[int, str],
) -> None:
    """Raise for a change that cannot be carried out, or that eager PyTorch refuses where a trace does not see it."""
    trace, groups = met.trace, met.groups
    with_memory_looked_at(trace, met.named, written)
    kin = {slot for group in groups if not group.families for slot in group.base.of}
    for slot, tensor, own in met.each:
        if own.has_other_storage:
            raise refusals.STORAGE_SET(slot, where=str(slot))
        if own.has_other_metadata:
            raise refusals.METADATA_OF_SUBCLASS(slot, type(tensor).__name__, where=str(slot))
        detached = detaches(changes.get(slot, Change()).restrides)
        how = next((changes[key].data for key in _keys(slot, groups) if key in changes), None)
        if how == "tracked" and "leaf" in histories.get(slot, ""):
            raise refusals.IN_PLACE_ON_LEAF(histories[slot], slot, where=str(slot))
        if any(map(trace.lineage.is_unknown, (own.seen, *own.inner))):
            raise refusals.RESIZED_UNFOLLOWED(slot, where=str(slot))
        if detached and has_history(trace.current(own.seen)):
            raise refusals.DETACHED_AND_WRITTEN(slot, where=str(slot))
        if histories.get(slot) == "an inference tensor":
            raise refusals.INFERENCE_TENSOR(slot, where=str(slot))
        if how == "tracked" and overlaps_itself(tensor):
            raise refusals.TRACKED_ONTO_ITSELF(slot, where=str(slot))
        # what it gets is a history of the elements it had, which goes on through each of its looks
        looks = [own.seen, *(t for t in trace.lineage.looks(own.seen) if storage_id(t) == storage_id(own.seen))]
        if how == "tracked" and slot not in kin and not all(map(lies_within, looks[1:], looks)):
            raise refusals.RESIZED_AROUND(where=str(slot))
        if how == "tracked" and slot not in kin:
            for view in trace.lineage.strided_and_written(own.seen):
                if not lies_within(view, own.seen):
                    raise refusals.AROUND_A_VIEW(where=str(slot))
    for group in groups:
        if group.is_around and not group.families and changes[group.base].data == "tracked":
            raise refusals.RESIZED_AROUND(where=str(group.base.of[0]))
        if group.base in changes and group.at_odds:
            raise refusals.SHARED_AT_ODDS(
                " and ".join(map(str, group.base.of)), group.at_odds, where=str(group.base.of[0])
            )


def views_that_follow(met: Met, switches: Iterable[Source]) -> dict[Source, Source]:
    """The views among the inputs that have come to require grad, to no end, with the input that they are views of; once
    for each object."""
    switched = {id(t): slot for slot, t in reversed(met.named) if slot in switches}
    once = {id(t): (slot, own.seen, view_base(t)) for slot, t, own in reversed(met.each) if not t.requires_grad}
    bases = [(slot, seen, switched.get(id(base))) for slot, seen, base in once.values()]
    return {slot: base for slot, seen, base in bases if base is not None and seen.requires_grad and is_leaf(seen)}


def refuse_backward(named: Sequence[tuple[Source, Tensor]], mirrored: Mapping[int, Mirrored], splits: bool) -> None:
    """Raise where ``.backward()`` inside the function went past an input, on to what the caller computed it from,
    which nothing hands on: in a gradient transform, or within another backward pass."""
    seen = {id(own.seen) for own in mirrored.values()} if splits else ()
    for slot, tensor in named:
        own = mirrored[id(tensor)]
        if own.leaf is not own.seen and is_leaf(own.leaf) and id(own.leaf) not in seen and own.leaf.grad is not None:
            raise refusals.ONWARD(slot, where=str(slot))


def refuse_leaves(
    met: Met,
    gradients: Mapping[Source, Tensor | None],
    switches: Mapping[Source, tuple[bool, ...]],
    read: Sequence[Source],
    changes: Mapping[Source | Base, Change],
    stores: Mapping[Source, Any],
) -> None:
    """Raise where what is done to a leaf (``.grad =``, ``.backward()``, ``requires_grad_()``) cannot be told from
    what else is done."""
    trace, named, tensors = met.trace, met.named, dict(met.named)
    now = {slot: trace.lineage.current(own.seen) for slot, _, own in met.each}
    # they go in as what all that overlap with them are views of, or with a history of their own
    bases = {slot for group in met.groups for slot in (group.itself, *group.alone)}
    together = {slot for key in changes if isinstance(key, Base) for slot in key.of}
    # where no gradient arrives, what is set is set, and nothing else
    arrives = {s: s in switches or (t.is_leaf and (t.requires_grad or now[s].requires_grad)) for s, t in named}
    fits = {s for s in (*gradients, *read) if not arrives[s]}
    # where the version moves, autograd gives their views the history of what comes to require grad; in a program, they
    # are inputs of their own
    renewed = {id(view_base(t)) for _, t, own in met.each if t.is_leaf and own.version != version_of(own.family)}
    # which of them were taken before it moved last, nobody can say
    bases_of_views = {id(view_base(t)) for _, t in named if t._is_view() and creation_meta(t).name == "DEFAULT"}
    for slot in dict.fromkeys([*gradients, *switches, *read]):
        what = "calls requires_grad_() on" if slot in switches else "sets or reads the gradient of"
        apart = slot in bases and slot not in switches
        faults = ["writes to one that overlaps with it"] if slot in together and arrives[slot] and not apart else []
        if slot in switches and id(tensors[slot]) in renewed and not faults:
            faults.append("moves its version counter, by which a view of it comes to follow it")
        if (
            True in switches.get(slot, ())
            and id(tensors[slot]) in bases_of_views
            and trace.questions.ask(tensors[slot], HAS_MOVED)
        ):
            faults.append(
                "has a view of it that may have been taken before it was written to, which comes to follow it"
            )
        faults += ["changes its sizes"] if changes.get(slot, Change()).restrides and slot not in fits else []
        given = slot in stores and (slot in gradients or slot in switches) and slot not in fits
        was, is_ = ((t[slot].shape, t[slot].dtype) for t in (tensors, now))
        alike = slot not in switches and is_ == was
        faults += ["gives it other memory"] if given and not alike else []
        tracked = changes.get(slot, Change()).data == "tracked"
        faults += ["writes to it, a leaf, what requires grad"] if tracked and slot in switches else []
        is_run = id(tensors[slot]) in trace.hooks.of_leaves
        if gradients.get(slot) is not None and has_hooks(tensors[slot]) and not is_run:
            faults.append("hooks of it would have to run")
        made = gradients.get(slot)
        if made is not None and has_history(made) and any(c.restrides or c.moved for c in changes.values()):
            faults.append("changes sizes, while that gradient has a history that goes by them")
        if faults:
            is_hooked = faults[-1].startswith("hooks")
            refusal = refusals.HOOKED_GRADIENT_OF_INPUT if is_hooked else refusals.GRADIENT_OF_INPUT
            raise refusal(what, slot, " and ".join(faults), where=str(slot))


def unlike_gradients(
    lineage: Lineage, owners: Mapping[Any, Tensor], gradients: Mapping[Any, Tensor | None]
) -> frozenset[Any]:
    """The slots of those which have another shape, or another dtype, in the end than the gradient that was set."""

    def look(tensor: Tensor) -> tuple[Any, Any]:
        now = lineage.current(lineage.named(tensor))
        return now.shape, now.dtype

    new = {slot: gradient for slot, gradient in gradients.items() if gradient is not None}
    return frozenset(slot for slot, gradient in new.items() if look(owners[slot]) != look(gradient))


def refuse_retained(made: Mapping[Any, Tensor], others: Sequence[Tensor]) -> None:
    """Raise for a result that is to keep the gradient that comes to it, where some comes from other results: within
    the program."""
    for slot, tensor in made.items():
        if retains_grad(tensor) and depends_on([t for t in others if t is not tensor], tensor):
            raise refusals.RETURNS_RETAINED(slot, where=str(slot))


def refuse_hidden_backward(in_backward: Sequence[Source], failed: Exception | None) -> None:
    """Raise for a backward pass that writes to inputs, or fails, though none of them requires grad: it ends in a
    leaf the function made."""
    if failed is not None:
        raise refusals.BACKWARD_OF_OWN_LEAF() from failed
    for slot in in_backward:
        raise refusals.WRITES_IN_BACKWARD_OF_OWN_LEAF(slot, where=str(slot))


def refuse_stores(
    met: Met,
    stores: Mapping[Source, Any],
    changes: Mapping[Source | Base, Change],
    differentiable: bool,
    in_backward: Sequence[Tensor],
    lent: Mapping[Source, View],
) -> None:
    """Raise where an input is given other memory and something else goes by the memory it had.

    ``in_backward``: what a backward pass writes to; ``lent``: how inputs that are given the memory of another tensor
    look at that.
    """
    tensors, lineage, forgotten = dict(met.named), met.trace.lineage, met.trace.forgotten

    def looks_at(tensor: Tensor) -> Callable[[Tensor], bool]:
        return lambda t: lineage.path(t, lambda u: u is tensor, True)[0] is tensor

    for slot in stores:
        mirror, faults = met.mirrored[id(tensors[slot])], []
        own = mirror.seen
        change = changes.get(slot, Change())
        if change.in_backward:
            faults.append("writes to the one it had in a backward pass")
        now = lineage.current(own)
        if any(t is now for t in in_backward):
            faults.append("writes to it in a backward pass")
        look = lent.get(slot)
        if look is not None and look.when == "last" and look.of in stores:
            faults.append("changes how the one looks whose memory it is given")
        # what the version counter of what stands for it does not hear of
        ways = ((t, *lineage.path(t, lambda u, now=now: u is now, True)) for t, _ in lineage.written(lambda t: True))  # type: ignore[misc]
        elsewhere = (t for t, root, steps, _ in ways if root is not now or detaches(steps))
        shares = any(storage_id(t) == storage_id(stores[slot]) for t in elsewhere)
        # eager PyTorch's own backward may read the new values, or the old ones
        if differentiable and tensors[slot].numel() and forgotten.is_saved(looks_at(now)) and shares:
            faults.append("its result is differentiated")
        given = lineage.how_given(own)
        if given.tracked and own.requires_grad and is_leaf(own):
            faults.append("then writes to it in grad mode, though it is a leaf that requires grad")
        written = lineage.written(lambda t, own=own: lineage.named(t) is own and t is not own)  # type: ignore[misc]
        tracked = given.how != "set_, tracked" and any(tracked for _, tracked in written)
        moved = given.how == "data" and version_of(mirror.family) != mirror.version
        # autograd finds its history again, by how it lies in memory when that is asked for: who computes with it asks
        renewed = given.restrides or tracked or (moved and any(forgotten.is_used(looks_at(t)) for t in (own, now)))
        renewed = renewed and not is_stale(now)  # which nobody may ask, however it lies
        shared = any(slot in group for group in neighbours(met.named))
        if own.requires_grad and view_base(own) is not None and (mirror.requires_grad or shared) and renewed:
            faults.append("writes to it, or changes its sizes, a view that requires grad")
        # its views, and its base, have its history from then on, though they do not share its memory any more
        steps = (lineage.path(view, lambda t, own=own: t is own)[1] for view in lineage.views_of(own))  # type: ignore[misc]
        shared = shared or any(way and not detaches(way) for way in steps)
        as_it_was = not own.requires_grad and Geometry.of(now) == Geometry.of(own)
        if given.tracked and (look or given.restrides or shared or not (as_it_was or view_base(own) is None)):
            faults.append("writes to it what depends on a tensor that requires grad")
        if faults:
            raise refusals.OTHER_MEMORY(slot, " and ".join(faults), where=str(slot))


def refuse_inner_tensors(
    met: Met, changes: Mapping[Source | Base, Change], leaves: Sequence[Any], outputs: Sequence[OutputFact]
) -> None:
    """Raise for what cannot be carried out of what a function does to wrapper subclasses and the tensors they are
    made of."""
    subclasses = {slot: own for slot, t, own in met.each if is_wrapper_subclass(t)}
    tangled = entangled(met.named)
    for slot, tensor in met.named:
        change = changes.get(slot, Change())
        if slot in tangled and (change.data or change.in_backward):
            raise refusals.SUBCLASS_SHARES_MEMORY(slot, tangled[slot], where=str(slot))
        forbidden = view_base(tensor) is not None and creation_meta(tensor).name != "DEFAULT"
        if slot in subclasses and change.data == "tracked" and forbidden:
            raise refusals.WRITES_INTO_LEAF(where=str(slot))
    inner_of = {id(inner): slot for slot, own in subclasses.items() for inner in own.inner}
    plain = {id(own.seen): slot for slot, _, own in met.each if slot not in subclasses}
    for leaf, output in zip(leaves, outputs, strict=True):
        if not isinstance(leaf, Tensor):
            continue
        if {id(t) for t in leaves_below([t for t in (leaf, *inner_tensors(leaf)) if has_history(t)])} & inner_of.keys():
            raise refusals.GRADIENT_INTO_INNER(output.path, where=f"out{output.path}")
        known = inner_of if not is_wrapper_subclass(leaf) else inner_of | plain
        roots = [met.trace.lineage.path(inner, lambda t: id(t) in known, True)[0] for inner in inner_tensors(leaf)]  # noqa: B023
        changed = {slot for slot, change in changes.items() if change.data or (change.restrides and slot in subclasses)}
        shared = [known[id(root)] for root in roots if id(root) in known and known[id(root)] in changed]
        # else it is taken again, of the caller's tensor
        if shared and (output.view is None or isinstance(output.view.of, Base)):
            raise refusals.RETURNS_OVER_INNER(shared[0], output.path, where=f"out{output.path}")
