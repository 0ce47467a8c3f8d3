"""What the forward pass of a dry run has left behind: results, and beside them what tensors of the caller's, and Python
state, are given: gradients, memory, what they keep."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor

from ..autograd_state import gradient_of, is_leaf
from ..slots import NewGradient, NewMemory, Out, Rewritten, Slot, Stored
from ..state.restart import Known, Restart
from ..state.written import Written
from .changes import Met, unlike_gradients
from .facts import Source
from .inner import kept_apart
from .outputs import OutputFact, results_by_slot
from .questions import IS_HOOKED
from .views import Given, View

Beside = NewMemory | Rewritten | NewGradient | Stored


@frozen(eq=False)
class LeftBehind:
    """What is left of a run with the inputs ``met``. ``slot_of`` names what stands for them, by identity."""

    met: Met
    slot_of: Mapping[int, Source]
    results: Sequence[Any]
    result_paths: Sequence[str]
    made: Mapping[Out, Tensor]
    """The tensors among the results that are neither inputs nor gradients."""
    kept: Mapping[Stored, Any]
    firsts: Collection[Stored]
    """What Python state keeps; and what of that is stored where nothing was."""
    gradients: Mapping[Source, Tensor | None]
    """The inputs whose gradient is another than before, and that."""
    of_made: Mapping[Out, Tensor]
    """Gradients of results."""
    stores: Mapping[Source, Tensor]
    """The memory that inputs were given, once for each object."""
    moved: Mapping[Source, Tensor]
    """What stands for these."""
    beside: Mapping[Beside, Tensor]
    """All that is given to others than the caller."""

    @property
    def leaves(self) -> list[Any]:
        """Results, and what is beside them."""
        return [*self.results, *self.beside.values()]

    @property
    def paths(self) -> list[str]:
        return [*self.result_paths, *map(str, self.beside)]

    @property
    def lasting(self) -> dict[Any, Tensor]:
        """What a caller can ask for its gradient when the call is over."""
        return {**self.made, **{slot: v for slot, v in self.kept.items() if isinstance(v, Tensor)}}

    @property
    def given(self) -> dict[Source, Given]:
        """How inputs were given other memory."""
        return {slot: self.met.trace.lineage.how_given(t) for slot, t in self.moved.items()}

    @property
    def unlike_gradients(self) -> frozenset[Any]:
        """What has other sizes, or another dtype, in the end than the gradient it has."""
        owners = {slot: own.seen for slot, _, own in self.met.each} | dict[Any, Tensor](self.made)
        return unlike_gradients(self.met.trace.lineage, owners, {**self.gradients, **self.of_made})

    def lent(self, outputs: Sequence[OutputFact]) -> dict[Source, View]:
        """How inputs that are given the memory of another tensor look at that."""
        views = {o.path: o.view for o in outputs if o.view is not None}
        return {slot: views[path] for slot in self.stores if (path := str(NewMemory(slot))) in views}


def left_behind(
    met: Met,
    results: Sequence[Any],
    paths: Sequence[str],
    out_slot: Callable[[str], Slot],
    splits: bool,
    state: Written | None,
) -> LeftBehind:
    """What is left of a run that returned ``results``, and wrote to Python state what is to happen on each call."""
    trace, lineage = met.trace, met.trace.lineage
    slot_of = {id(own.seen): slot for slot, _, own in reversed(met.each)}
    made = results_by_slot(results, paths, slot_of, out_slot)
    kept, firsts = ({}, set[Stored]()) if state is None else (state.stores, state.firsts)
    gradients = _gradients(met)
    of_made = {slot: new for slot, leaf in made.items() if (new := lineage.gradient_of(leaf)) is not None}
    seen = {slot: own.seen for slot, _, own in met.each}
    stores = {s: new for s, t in seen.items() if slot_of[id(t)] == s and (new := lineage.given(t)) is not None}
    moved = {slot: seen[slot] for slot in stores}
    beside: dict[Beside, Tensor] = {slot: kept_apart(trace.named(new), splits, lineage) for slot, new in kept.items()}
    for slot, new in itertools.chain(gradients.items(), of_made.items()):
        if new is not None:
            beside[NewGradient(slot)] = trace.named(new)
    beside |= {NewMemory(slot): new for slot, new in stores.items()}
    beside |= {Rewritten(s): lineage.rewritten(t) for s, t in moved.items() if lineage.how_given(t).tracked}
    return LeftBehind(met, slot_of, results, paths, made, kept, firsts, gradients, of_made, stores, moved, beside)


# ── leaves ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gradients(met: Met) -> dict[Source, Tensor | None]:
    """The inputs whose gradient is another than before, and that, once for each object. Where ``.backward()`` adds to
    one, the run starts again."""
    trace, found = met.trace, dict[Source, Tensor | None]()
    given = {id(t) for t in trace.given_gradient}
    # what was written to since may be no leaf any more
    known_to_ask = given | {id(t) for t in trace.asked_for_gradient}
    first = {id(real): slot for slot, real in reversed(met.named)}
    for slot, real, own in met.each:
        if first[id(real)] != slot:
            continue
        before = real.grad if real.is_leaf else None
        asked = before is not None or is_leaf(own.seen) or id(real) in known_to_ask
        now = trace.lineage.gradient_of(own.seen) if asked else None
        known = None if before is None else met.mirrored.get(id(before))
        if before is not None and known is None and now is not None:
            raise Restart(Known((before,)))
        if id(real) in given or now is not (None if known is None else known.seen):
            found[slot] = now
            trace.questions.ask(real, IS_HOOKED)
    return found


def gradless(met: Met, gradients: Mapping[Source, Tensor | None]) -> tuple[Source, ...]:
    """The inputs whose gradient the function asked for, or set, and that had none."""
    asked = {id(t) for t in met.trace.asked_for_gradient}
    found = [(slot, real) for slot, real in met.named if id(real) in asked or (slot in gradients and real.is_leaf)]
    return tuple(slot for slot, real in found if gradient_of(real) is None)


def leaves_of(met: Met, *asked: Iterable[Source]) -> dict[Source, bool]:
    """The inputs that may have a gradient in the eyes of the function, and whether they are leaves."""
    found = {*gradless(met, {}), *itertools.chain(*asked)}
    return {slot: real.is_leaf for slot, real in met.named if slot in found}


def switches_of(met: Met) -> dict[Source, tuple[bool, ...]]:
    """What to call ``requires_grad_`` with, if anything: before what is computed is, and in the end. (See
    ``Facts.switches``.)"""
    found: dict[Source, tuple[bool, ...]] = {}
    for slot, _, own in met.each:
        now = met.trace.current(own.seen)
        called = [on for t, on in met.trace.switched if t is own.seen or t is now]
        if called:
            begins = (True,) if any(called) and not own.requires_grad else ()
            found[slot] = begins if now.requires_grad else (*begins, False)
    return found
