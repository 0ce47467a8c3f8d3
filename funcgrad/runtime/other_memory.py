"""Inputs that lie in other memory when backward runs than forward saw (``x.data = y`` between the two). As in eager
PyTorch, a saved variable is what it is then, whatever it looks like; what forward made of it, a view that was saved, is
of the memory as it was.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx

from .. import refusals
from ..graphs import Graph, copied, looks_at, pass_of, value_of
from ..slots import Input, Late, Signature, Slot


@frozen
class Variables:
    """The inputs that a backward half is for, as long as they lie where they did."""

    saved: tuple[Slot, ...] = ()
    """Those that it reads itself, which autograd saves; of those ``looked_at``, no more than what forward made of
    them."""
    looked_at: frozenset[Slot] = frozenset()
    early: frozenset[Slot] = frozenset()
    """Those of which it is given what backward computes in eager PyTorch, or a copy."""
    followed: frozenset[Slot] = frozenset()
    """All that a pass reads which runs the function again."""

    @staticmethod
    def of(recorded: Graph, halves: Sequence[Graph], needed: Collection[Slot], is_plain: bool) -> Variables:
        """``recorded``: the joint graph that was rewritten and split into ``halves``, if it was; ``needed``: what a
        pass reads that runs the function again; ``is_plain``: these take what they are given as it is."""
        followed = frozenset(slot for slot, _ in _given(recorded) if slot in needed)
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
            early=frozenset((read & followed) - ({*saved} - remade)),
            followed=followed,
        )


def _given(graph: Graph) -> list[tuple[Slot, fx.Node]]:
    """The tensors that come from the caller, each with what stands for it."""
    pairs = zip(graph.signature.ins, graph.placeholders, strict=True)
    return [(s, n) for s, n in pairs if isinstance(v := value_of(n), Tensor) and v.layout is torch.strided]


def _rereads(user: fx.Node, node: fx.Node) -> bool:
    """Whether backward reads an input itself there."""
    return user.op == "output" or (pass_of(user) == "backward" and node.name not in looks_at(user))


def as_they_are(context: Any, half: Graph, values: list[Any]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """What runs a half, call by call, for a pass in which variables are elsewhere: it is given them twice, among its
    ``values`` as forward saw them, and in the end as they are."""
    places = context.program.at.variables
    values += [values[k] for k in places.values()]
    for i, k in places.items():
        values[k] = context.before[i]
    graph = _given_twice(half, [context.program.ins[i] for i in places])
    return lambda own: graph.run(*own)


def _given_twice(backward: Graph, variables: Sequence[Input]) -> Graph:
    """A half whose calls that forward would make have other inputs in place of these ``variables``, the last."""
    new = copied(backward)
    last, given = new.placeholders[-1], dict(zip(new.signature.ins, new.placeholders, strict=True))
    for slot in variables:
        node = given[slot]
        with new.fx.inserting_after(last):
            last = new.fx.placeholder(f"{node.name}_late")
        last.meta = dict(node.meta)
        node.replace_all_uses_with(last, functools.partial(_rereads, node=node))
    late = [Late(slot) for slot in variables]
    return evolve(new, signature=Signature((*new.signature.ins, *late), new.signature.outs))


def moved(context: Any, places: Iterable[int]) -> list[int]:
    """Which inputs of a node, of those at ``places``, lie or look otherwise than when forward saw them."""
    now, before = context.inputs, context.before
    return [i for i in places if not (now[i].is_set_to(before[i]) and now[i].dtype == before[i].dtype)]


def require_in_place(context: Any, places: Iterable[int]) -> None:
    """``MutationError`` where one of them does, and nobody can say any more what eager PyTorch's pass would read."""
    if found := moved(context, places):
        name = str(context.program.ins[found[0]])
        raise refusals.OTHER_MEMORY_BEFORE_BACKWARD(name, where=name)
