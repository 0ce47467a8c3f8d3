"""What a dry run did to its inputs: the changes, and a named error for each that cannot be carried out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from torch import Tensor

from ..errors import AliasContractError, MutationError
from ..graphs import is_expanded
from ..histories import has_history, is_leaf
from ..slots import Base
from .facts import Change, Source
from .memory import Overlap
from .stand_ins import Mirrored
from .trace import Trace
from .views import Lineage, detaches


def changes_of(
    lineage: Lineage,
    named: Sequence[tuple[Source, Tensor]],
    mirrored: Mapping[int, Mirrored],
    groups: Sequence[Overlap],
    in_forward: Mapping[int, str],
    ever: Mapping[int, str],
) -> Iterator[tuple[Source | Base, Change]]:
    """What is done to each input, and to each overlap as one.

    ``in_forward`` and ``ever`` say how the real tensors, by identity, were written to in the forward pass, and in both.
    """
    shared = {slot: group for group in groups for slot in group.base.of}
    tensors = dict(named)
    for group in groups:
        keys = [id(tensors[slot]) for slot, _ in group.views]
        if any(key in in_forward for key in keys):
            yield group.base, Change("unversioned" if group.families else _most([in_forward[key] for key in keys if key in in_forward]))
            for family in group.families:
                data = _of_family([id(tensors[slot]) for slot, _ in family.views], mirrored, in_forward)
                if data != "unversioned" and isinstance(family.slot, Base):
                    yield family.slot, Change(data)
        elif any(id(tensors[slot]) in ever for slot, _ in group.views):
            yield group.base, Change(in_backward=True)
    families = {f.slot: f for group in groups for f in group.families}
    written = {g.base for g in groups if any(id(tensors[slot]) in in_forward for slot, _ in g.views)}
    done: set[int] = set()
    for slot, tensor in named:
        own = mirrored[id(tensor)]
        alone = slot not in shared or slot in families
        how = in_forward.get(id(tensor))
        if slot in families and shared[slot].base in written:
            how = _of_family([id(tensor)], mirrored, in_forward)
        own_data = None if not alone or (how == "unversioned" and slot in families) else how
        restrides = lineage.restrides(own.seen)
        late = slot not in shared and id(tensor) in ever and not own_data
        untouched = (slot not in shared or shared[slot].base not in written) and not own_data and not restrides and ever is in_forward
        moved = untouched and own.how_written(False) == "detached"
        if id(tensor) not in done and (own_data or restrides or late or moved):
            yield slot, Change(own_data, restrides, late, moved)
        done.add(id(tensor))


def _of_family(keys: Sequence[int], mirrored: Mapping[int, Mirrored], in_forward: Mapping[int, str]) -> str:
    """How members of one of several families are written to: through themselves, or seen by the version counter they share."""
    ways = [in_forward[key] for key in keys if key in in_forward]
    return _most(ways) if "tracked" in ways else mirrored[keys[0]].how_written(False)


def _most(ways: Sequence[str]) -> str:
    """The way of several that autograd knows most of."""
    return next(way for way in ("tracked", "detached", "unversioned") if way in ways)


def refuse_gradient(slot: Source, own: Mirrored) -> None:
    """Raise where the function set the gradient of an input."""
    if any(is_leaf(t) and t.grad is not None for t in (own.leaf, own.seen)):
        raise MutationError(
            f"the function sets the gradient of {slot} (.backward() inside, or .grad =)",
            where=str(slot),
            fix="compile the loss with grad_compiled, or call torch.autograd.grad inside, and assign gradients outside",
        )


def _keys(slot: Source, groups: Sequence[Overlap]) -> list[Source | Base]:
    """The slots under which the changes of an input are found: its family's before its own."""
    return [f.slot for g in groups for f in g.families if slot in dict(f.views)] + [slot]


def refuse(
    trace: Trace,
    named: Sequence[tuple[Source, Tensor]],
    mirrored: Mapping[int, Mirrored],
    changes: Mapping[Source | Base, Change],
    histories: Mapping[Source, str],
    groups: Sequence[Overlap],
    written: Mapping[int, str],
) -> None:
    """Raise for a change that cannot be carried out, or that eager PyTorch refuses where a trace does not see it."""
    for slot, tensor in named:
        own = mirrored[id(tensor)]
        if own.has_other_storage:
            raise MutationError(f"the function gives {slot} other memory (set_, resize_)", where=str(slot), fix="return the new tensor")
        detached = detaches(changes.get(slot, Change()).restrides)
        if own.seen.requires_grad != own.requires_grad and is_leaf(own.seen) and not detached:
            raise MutationError(
                f"the function calls requires_grad_() on {slot}", where=str(slot), fix=f"call {slot}.requires_grad_() before"
            )
        how = next((changes[key].data for key in _keys(slot, groups) if key in changes), None)
        if how == "tracked" and "leaf" in histories.get(slot, ""):
            raise MutationError(
                f"{histories[slot]} that requires grad is being used in an in-place operation: {slot}",
                where=str(slot),
                fix="write under torch.no_grad(), or into a copy: x = x.clone()",
            )
        if trace.lineage.is_unknown(own.seen):
            raise MutationError(
                f"the function changes the sizes of {slot} where the trace does not see it (in a custom autograd.Function)",
                where=str(slot),
                fix="return a view instead",
            )
        if detached and has_history(trace.current(own.seen)):
            raise MutationError(f"the function detaches {slot} in place and writes to it in grad mode", where=str(slot), fix="return it")
        if histories.get(slot) == "an inference tensor":
            raise MutationError(
                f"Inplace update to inference tensor outside InferenceMode is not allowed: {slot}",
                where=str(slot),
                fix="call it in inference mode, or pass a clone",
            )
        if id(tensor) in written and is_expanded(tensor):
            raise MutationError(
                "unsupported operation: more than one element of the written-to tensor refers to a single memory location: "
                f"{slot} is expanded",
                where=str(slot),
                fix="clone() the tensor before performing the operation",
            )
    for group in groups:
        if group.base in changes and group.at_odds:
            raise AliasContractError(
                f"the function writes to memory that {' and '.join(map(str, group.base.of))} share, but {group.at_odds}",
                where=str(group.base.of[0]),
                fix="pass views of one tensor, or a clone",
            )
