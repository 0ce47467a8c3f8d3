"""Inputs that lie in other memory when backward runs than forward saw (``x.data = y`` between the two). As in eager
PyTorch, a saved variable is what it is then, whatever it looks like; what forward made of it, a view that was saved, is
of the memory as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from attrs import define, evolve, field, frozen
from torch import Tensor, fx

from .. import refusals
from ..graphs import Graph, copied, looks_at, pass_of, value_of
from ..slots import Input, Late, Signature, Slot
from ..torch_private.tensors import looks_like
from .halves import Half

Look = tuple[torch.Size, tuple[int, ...], torch.dtype]
Runner = Callable[[list[Any]], Sequence[Any]]


@frozen
class Variables:
    """The inputs that a backward half is for, as long as they lie where they did."""

    saved: tuple[Slot, ...] = ()
    """Those that it reads itself, which autograd saves; of those ``looked_at``, no more than what forward made of
    them."""
    looked_at: frozenset[Slot] = frozenset()
    held: frozenset[Slot] = frozenset()
    """Those of which backward reads, besides, what forward made of them."""
    early: frozenset[Slot] = frozenset()
    """Those of which it is given what backward computes in eager PyTorch, or a copy."""
    followed: Mapping[Slot, Look | None] = {}
    """All that a pass reads which runs the function again, with what it looks like; None where sizes vary."""

    @staticmethod
    def of(recorded: Graph, halves: Sequence[Graph], needed: Collection[Slot], is_plain: bool) -> Variables:
        """``recorded``: the joint graph that was rewritten and split into ``halves``, if it was; ``needed``: what a
        pass reads that runs the function again; ``is_plain``: these take what they are given as it is."""
        followed = {slot: _known_look(value_of(node)) for slot, node in _given(recorded) if slot in needed}
        if len(halves) == 1:
            return Variables(followed=followed)
        calls = {node.name for node in recorded.fx.nodes if node.op == "call_function"}
        read = {s for s, node in _given(recorded) if any(u.name in calls and _rereads(u, node) for u in node.users)}
        kept = {slot: node for slot, node in _given(halves[1]) if slot in followed and is_plain}
        saved = [slot for slot, node in kept.items() if any(_rereads(user, node) for user in node.users)]
        remade = {s for s, node in kept.items() if any(u.name not in calls and u.op != "output" for u in node.users)}
        return Variables(
            saved=tuple(saved),
            looked_at=frozenset(kept.keys() - read - {*saved}),
            held=frozenset(s for s in saved if not all(_rereads(user, kept[s]) for user in kept[s].users)),
            early=frozenset((read & followed.keys()) - ({*saved} - remade)),
            followed=followed,
        )


def _given(graph: Graph) -> list[tuple[Slot, fx.Node]]:
    """The tensors that come from the caller, each with what stands for it."""
    return [(s, n) for s, n in graph.given if isinstance(v := value_of(n), Tensor) and v.layout is torch.strided]


def _rereads(user: fx.Node, node: fx.Node) -> bool:
    """Whether backward reads an input itself there."""
    return user.op == "output" or (pass_of(user) == "backward" and node.name not in looks_at(user))


@define(eq=False)
class Places:
    """Some of the inputs that are followed."""

    inputs: tuple[int, ...]
    among: tuple[int, ...]
    """Where they stand among all that are."""
    _looks_alike: Callable[..., bool] | None = field(default=None, init=False)
    """Says quickly, of those that once were found to look as they should, whether they do."""

    def moved(self, context: Any) -> list[int]:
        """Which of a node's lie or look otherwise than when forward saw them."""
        if not self.inputs:
            return []
        now, pointers = [context.inputs[i] for i in self.inputs], [context.pointers[k] for k in self.among]
        lie_there = [tensor.data_ptr() for tensor in now] == pointers
        if lie_there and self._looks_alike is not None and self._looks_alike(*now):
            return []
        looks = context.looks
        rows = zip(self.inputs, now, pointers, strict=True)
        found = [i for i, v, pointer in rows if v.data_ptr() != pointer or look_of(v) != looks[i]]
        if not found and looks is context.program.at.followed.looks:
            self._looks_alike = looks_like(now)
        return found

    def require_in_place(self, context: Any) -> None:
        """``MutationError`` where one of them does, and nobody can say any more what eager PyTorch's pass would
        read."""
        if found := self.moved(context):
            name = str(context.program.ins[found[0]])
            raise refusals.OTHER_MEMORY_BEFORE_BACKWARD(name, where=name)


@frozen
class Followed:
    """The same by the places of inputs, and what is noted of them when forward has run."""

    all: Places
    looks: Mapping[int, Look]
    varying: tuple[int, ...]
    """Those whose look is noted, too."""
    variables: Mapping[int, int]
    """Those that backward reads as they are then, and their places among what is kept; ``looked_at``: those of which
    it reads what forward made of them."""
    looked_at: Mapping[int, int]
    held: tuple[int, ...]
    """Those whose memory is held: what forward saw is made of it again."""
    early: Places
    read: Places

    @staticmethod
    def of(variables: Variables, ins: Mapping[Slot, int], kept: Sequence[Slot]) -> Followed:
        looks = {ins[slot]: look for slot, look in variables.followed.items() if slot in ins}
        saved = {ins[slot]: k for k, slot in enumerate(kept) if slot in variables.saved}
        looked_at = {ins[slot]: k for k, slot in enumerate(kept) if slot in variables.looked_at}
        number = {i: k for k, i in enumerate(looks)}

        def places(inputs: Iterable[int]) -> Places:
            return Places(tuple(inputs), tuple(number[i] for i in inputs))

        return Followed(
            all=places(looks),
            looks={i: look for i, look in looks.items() if look is not None},
            varying=tuple(i for i, look in looks.items() if look is None),
            variables=saved,
            looked_at=looked_at,
            held=tuple(ins[slot] for slot in variables.held | variables.looked_at if slot in ins),
            early=places([ins[slot] for slot in variables.early if slot in ins]),
            read=places([*saved, *looked_at]),
        )

    def note(self, context: Any, inputs: Sequence[Any]) -> None:
        """Keep, for the node of a call, where they lie. What costs less than an alias of each."""
        context.pointers = [inputs[i].data_ptr() for i in self.all.inputs]
        context.memory = {i: inputs[i].untyped_storage() for i in self.held} if self.held else {}
        looks = self.looks
        context.looks = {**looks, **{i: look_of(inputs[i]) for i in self.varying}} if self.varying else looks

    def moved(self, context: Any) -> bool:
        """Whether one is elsewhere that the half of a node reads."""
        return bool(self.read.moved(context) or self.early.moved(context))


def look_of(tensor: Tensor) -> Look:
    """What a tensor is but for where it lies."""
    return tensor.shape, tensor.stride(), tensor.dtype


def _known_look(value: Tensor) -> Look | None:
    look = look_of(value)
    return look if all(type(n) is int for part in look[:2] for n in part) else None


def as_they_are(context: Any, half: Half, run: Runner, values: list[Any], gone: Collection[int]) -> Runner:
    """What runs a half, as ``run`` does, for a pass in which inputs are elsewhere; of what forward looked at, its
    ``values`` become what they were. Where it reads variables, it runs call by call, and is given them twice: as they
    were, and in the end as they are."""
    at = context.program.at.followed
    for i in gone:
        if i in at.looked_at:
            values[at.looked_at[i]] = _as_it_was(context, i)
    if at.variables.keys().isdisjoint(gone):
        return run
    values += [values[k] for k in at.variables.values()]
    for i, k in at.variables.items():
        if i in context.memory:
            values[k] = _as_it_was(context, i)
    graph = _given_twice(half.graph, [context.program.ins[i] for i in at.variables])
    return lambda own: graph.run(*own)


def _as_it_was(context: Any, i: int) -> Tensor:
    """An input as forward saw it."""
    memory, (shape, strides, dtype) = context.memory[i], context.looks[i]
    at = context.pointers[context.program.at.followed.all.inputs.index(i)]
    offset = (at - memory.data_ptr()) // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=memory.device).set_(memory, offset, shape, strides)


def _given_twice(backward: Graph, variables: Sequence[Input]) -> Graph:
    """A half whose calls that forward would make have other inputs in place of these ``variables``, the last."""
    new = copied(backward)
    last, given = new.placeholders[-1], dict(new.given)
    for slot in variables:
        node = given[slot]
        with new.fx.inserting_after(last):
            last = new.fx.placeholder(f"{node.name}_late")
        last.meta = dict(node.meta)
        node.replace_all_uses_with(last, functools.partial(_rereads, node=node))
    late = [Late(slot) for slot in variables]
    return evolve(new, signature=Signature((*new.signature.ins, *late), new.signature.outs))
