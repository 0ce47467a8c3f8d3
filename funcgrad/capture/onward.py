"""``.backward()`` inside a function whose inputs were computed outside: the gradient of such an input is handed on to
its history.

Each call that gets so far is one ``BackwardCall``: when a program has run, it goes on through the caller's own graph,
as autograd would have gone on, with the gradients the call ended in. So that graph is freed or kept, its hooks run, and
a second pass raises as in eager PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen
from torch import Tensor

from .. import refusals
from ..autograd_state import has_history, has_hooks, is_leaf, lead_to, leaves_below, version_of
from ..graphs import type_text
from ..slots import Onward
from ..state.lines import user_line
from .facts import BackwardCall, Facts, Source
from .questions import Asked
from .stand_ins import Mirrored


@frozen(eq=False)
class _Pass:
    keeps_graph: bool
    reached: frozenset[int]
    moved: frozenset[int]
    """Of which real tensors the version counters had moved."""
    hidden: bool
    """Whether something was written to of which autograd does not know."""
    switched: bool
    """Whether an input, a leaf, required grad by then where it did not before, or the other way round."""


@frozen(eq=False)
class Passes:
    """The ``.backward()`` calls of a dry run that came to the history of an input: to what autograd knows as the
    base of which real tensors, by identity."""

    found: list[_Pass] = field(factory=list)

    @property
    def freed(self) -> frozenset[int]:
        """The tensors whose histories are freed by then."""
        return frozenset().union(*(one.reached for one in self.found if not one.keeps_graph))

    def done(
        self,
        mirrored: Mapping[int, Mirrored],
        written: Mapping[int, str],
        keeps_graph: bool,
        again: bool,
        targets: Sequence[Any],
    ) -> None:
        """A ``.backward()`` has run; ``again``: so that it can be differentiated; ``targets``: to these alone."""
        for own in mirrored.values():
            if any(own.seen is target for target in targets) and not is_leaf(own.seen):
                raise refusals.BACKWARD_INPUTS(type_text(own.seen), where=user_line())
        seen = {id(own.seen) for own in mirrored.values()}
        above = {key: own for key, own in mirrored.items() if id(own.leaf) not in seen and own.leaf.grad is not None}
        if above and again:
            own = next(iter(above.values()))
            raise refusals.ONWARD_CREATE_GRAPH(type_text(own.seen), where=user_line())
        for own in above.values():
            own.leaf.grad = None
        if above:
            moved = frozenset(key for key, own in mirrored.items() if version_of(own.family) != own.version)
            seen_now = [(own.seen.requires_grad, own.requires_grad) for own in mirrored.values() if is_leaf(own.seen)]
            switched = any(now != before for now, before in seen_now)
            self.found.append(_Pass(keeps_graph, frozenset(above), moved, "unversioned" in written.values(), switched))


def apart_from(
    reals: Sequence[tuple[Source, Tensor]],
    mirrored: Mapping[int, Mirrored],
    outputs: Sequence[Any],
    targets: Sequence[Any],
) -> dict[int, tuple[int, ...]]:
    """The inputs of which the function differentiates something with respect to others, by identity: none of them may
    have been computed from these outside, as eager PyTorch would go on through that history. Raises ``MutationError``
    where one was."""
    own = {id(v) for v in targets}
    asked = {id(t): t for _, t in reals if not own.isdisjoint({id(t), id(mirrored[id(t)].seen)})}
    if not asked:
        return {}
    roots = [v for v in outputs if isinstance(v, Tensor)]
    reached = {id(leaf) for leaf in (*roots, *leaves_below(list(filter(has_history, roots))))}
    found: dict[int, tuple[int, ...]] = {}
    for slot, tensor in reals:
        if tensor.requires_grad and id(tensor) not in asked and id(mirrored[id(tensor)].leaf) in reached:
            if lead_to([tensor], list(asked.values())):
                raise refusals.ONWARD_TO_TARGET(slot, where=str(slot))
            found[id(tensor)] = tuple(asked)
    return found


def by_slot(
    apart: Mapping[int, Sequence[int]], named: Sequence[tuple[Source, Tensor]]
) -> dict[Source, tuple[Source, ...]]:
    """The same, as the inputs are called in the end."""
    slots = {id(tensor): slot for slot, tensor in reversed(named)}
    return {slots[own]: tuple(slots[target] for target in targets) for own, targets in apart.items()}


_HEARD = "bool({0}._backward_hooks or {0}.retains_grad)"
"""Whether somebody hears of the gradient of a tensor that is computed."""


def calls_of(
    passes: Sequence[_Pass], facts: Facts, named: Sequence[tuple[Source, Tensor]], mirrored: Mapping[int, Mirrored]
) -> tuple[tuple[BackwardCall, ...], tuple[Source, ...], tuple[Asked, ...]]:
    """What those calls may hand on, by the inputs of the inner function; the inputs that must be computed outside for
    that; and those of whose gradient nobody must hear.

    Raises ``MutationError`` where that would not be what eager PyTorch does.
    """
    calls: list[BackwardCall] = []
    seen = {id(own.seen) for own in mirrored.values()} if facts.gradients else set()
    computed = {s: None for s, t in named if t.requires_grad and not t.is_leaf and id(mirrored[id(t)].leaf) in seen}
    unheard: dict[Source, Asked] = {}
    slots = {id(t): slot for slot, t in reversed(named)}
    for one in passes:
        found: dict[Any, None] = {}
        written = tuple(dict.fromkeys(facts.goes_in_as(slots[key]) for key in slots if key in one.moved))
        for slot, tensor in named:
            if id(tensor) not in one.reached or slots[id(tensor)] != slot:
                continue
            goes_in = facts.goes_in_as(slot)
            faults = ["after a write through .data, of which autograd does not know"] if one.hidden else []
            # it goes on when the program has run, and what a leaf is told is told it after that
            faults += ["after requires_grad_() of a leaf, where it may arrive"] * one.switched
            if goes_in != slot:  # its own gradient is not known, only that of what it is a view of
                faults += ["though it is written to, and has hooks, or its gradient retained"] * (
                    has_hooks(tensor) or tensor.retains_grad
                )
                unheard[slot] = Asked(slot, _HEARD, False, NotImplemented)
            if faults:
                raise refusals.ONWARD_WITH_FAULTS(slot, " and ".join(faults), where=str(slot))
            found[goes_in] = computed[slot] = None
        calls.append(BackwardCall(tuple(found), one.keeps_graph, written))  # type: ignore[arg-type]
    return tuple(calls), tuple(computed), tuple(unheard.values())


@frozen(eq=False)
class Handing:
    """The gradients that the calls of a recorded run hand on; ``leaves`` are the inputs of the inner function, where
    they arrive."""

    facts: Facts
    leaves: Mapping[Any, Tensor]
    values: dict[Onward, Tensor | None] = field(factory=dict)
    """A gradient, or None, for each input that it may arrive at."""
    _set: dict[Any, Tensor | None] = field(factory=dict)

    @property
    def _computed(self) -> set[Any]:
        """The inputs that are leaves in this run alone."""
        called = {s for call in self.facts.backward_calls for s in call.slots}
        return called | {s for s in self.leaves if self.facts.leaves.get(s) is False}

    def begins(self) -> None:
        """A ``.backward()`` is about to run: what it finds is not added to what the function has set, as these are
        no leaves outside."""
        for slot in self._computed:
            self._set[slot], self.leaves[slot].grad = self.leaves[slot].grad, None

    def done(self) -> None:
        """It has run."""
        try:
            self._hand_on({slot for slot in self._computed if self.leaves[slot].grad is not None})
        finally:
            for slot, gradient in self._set.items():
                self.leaves[slot].grad = gradient

    def _hand_on(self, reached: set[Any]) -> None:
        if not reached:
            return
        calls = self.facts.backward_calls
        n = len({slot.call for slot in self.values})
        expected = calls[n].slots if n < len(calls) else ()
        for slot in reached - set(expected):
            raise refusals.ONWARD_TO_BASE(slot, where=str(slot))
        for slot in expected:
            gradient = self.leaves[slot].grad
            # what is written to it later, it had then
            self.values[Onward(slot, n)] = None if gradient is None else gradient.clone()

    def require_all(self) -> None:
        """Raises ``TraceError`` where the dry run met calls that this run did not make."""
        for slot in self.facts.onward:
            if slot not in self.values:
                raise refusals.ONWARD_IN_TWO_RUNS(slot.of, where=str(slot.of))
