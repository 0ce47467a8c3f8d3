"""How a program runs where its result must be differentiable: as an autograd Function of its flat inputs.

The forward half returns outputs and saved values, the backward half takes them back. A backward pass that must itself
be differentiable (``create_graph=True``) goes through ``pullback``: the compiled vector-Jacobian product as a function
of the inputs and the incoming gradients, differentiable like any other compiled function, so that every order exists.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from .. import refusals
from ..autograd_state import bump_version, has_hooks, version_counters, version_of
from ..backends.backend import Runnable
from ..capture.autocast import autocast_as
from ..capture.views import Step
from ..errors import FuncgradError
from ..generators import Drawn, OwnDraws, mark_of, own_draws, state_of
from ..graphs import Graph
from ..passes.traced_passes import TracedPasses
from ..slots import Cotangent, Final, Grad, Late, Slot
from ..state.late import Left
from ..subclasses import Wrapping
from ..torch_private.autograd import (
    any_autocast,
    applied_directly,
    called_below_autograd,
    graph_is_kept,
    is_executed,
)
from ..torch_private.levels import any_mapped
from ..torch_private.tensors import in_memory
from .cotangents import Blank, CotangentLayout, Hollow
from .gates import applied
from .given_tensors import ahead, is_heard, require_versions, write_back
from .halves import Half, Halves
from .heard_results import Results, require_unheard
from .late_state import LateState
from .other_memory import Followed, Runner, Variables, as_they_are
from .passed_over import add_zeros

Pullback = Callable[[Sequence[Any], Sequence[Any], Sequence[Tensor | None]], Sequence[Tensor | None]]
"""Takes the inputs as forward was given them (None for one that is gone), their values then, and the incoming
gradients."""
Given = tuple[Mapping[int, Tensor], Sequence[Any], Results | None]
"""Copies of inputs that a call writes to, all inputs, and where results are noted, if it matters."""

_KEYS = 1 << 40
"""From here on, keys are those of programs: PyTorch numbers classes of autograd Functions from 0 on."""


@frozen(eq=False)
class Differentiable:
    """The two halves of a program, and what becomes of the values of each slot.

    ``forward`` takes ``ins`` and returns ``outs``, then saved values. ``backward`` takes, in a list that it empties,
    what ``backward_ins`` names: inputs of forward, which are kept as they are, saved values, one incoming gradient per
    differentiable output (those in ``cotangents``, laid out as these say), and inputs as they are then (``Late``).
    ``backward`` is None for a program that is itself a gradient (its derivative is compiled when it is first asked
    for), and where differentiating all outputs failed: then ``refused`` is the error, and what some of them lead to is
    differentiated when a gradient comes in for these alone.
    """

    forward: Runnable
    backward: Half | None
    narrowed: Callable[[frozenset[Slot], frozenset[Slot]], Half]
    """The backward half where no gradient comes in for some outputs, and none is asked for of some inputs."""
    ins: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    backward_ins: tuple[Slot, ...]
    gives: tuple[Slot, ...]
    """What backward may give, in some of its passes."""
    cotangents: Mapping[Slot, CotangentLayout]
    together: Mapping[Slot, frozenset[Slot]]
    """For each of these outputs those from which a backward pass finds something freed that one from it frees;
    nothing where that are all."""
    reached: Mapping[Slot, frozenset[Slot]]
    """The inputs to which some of them do not lead, each with those that do."""
    arrivals: tuple[Slot, ...]
    """The inputs, in the order in which gradients come to them in eager PyTorch."""
    through: Mapping[Slot, frozenset[Slot]]
    """The outputs from which others are computed, each with these."""
    has_effects: bool
    """Whether backward writes, or calls what may: then it matters which gradients are asked for."""
    pullback: Pullback
    """Returns a gradient or None for every input that ``requires_grad``. It may read inputs that are ``needed`` alone,
    as forward saw them: of those that are ``copied``, which the call writes to or restrides, a copy is kept."""
    mapped: Callable[[Graph], Runner] | None
    """What runs a half under the vmap that is around a pass; None where halves exchange more than values."""
    requires_grad: Collection[Slot]
    needed: Collection[Slot]
    copied: Collection[Slot]
    restrided: Collection[Slot]
    """Inputs that will look otherwise after the call."""
    unnoticed: Mapping[Slot, tuple[Step, ...]]
    """Leaves among these that do so by these steps, unknown to autograd (by none: they are given other memory, and no
    gradient comes to them)."""
    watched: Mapping[Slot, int]
    """Inputs whose values at the end of the call backward needs, each with how far its version counter moves until
    then; and outputs that look at what is saved."""
    bumps: Collection[Slot]
    """Inputs whose version counters move."""
    wrappings: Mapping[Slot, Wrapping]
    """How the wrapper subclasses among what is given, and comes out, are made of the tensors that the graphs know."""
    refused: Exception | None
    draws: tuple[Drawn, ...]
    """What forward draws random numbers from: a derivative that runs it again must draw the same."""
    name: str
    passes: TracedPasses | None
    """All that was traced of backward; None where nothing was."""
    variables: Variables
    late: LateState | None
    """What backward reads of Python state; None: nothing."""
    why_apart: str | None
    """Why the graph of its backward half may not be copied into another one; None where it may."""
    number: int = field(factory=functools.partial(next, itertools.count()), init=False)
    """It tells the program apart from all others."""
    at: _Positions = field(init=False)

    @at.default
    def _positions(self) -> _Positions:
        return _Positions.of(self)

    _halves: Halves = field(factory=Halves, init=False)
    _read: dict[frozenset[int], frozenset[Slot] | None] = field(factory=dict, init=False)
    called: threading.local = field(factory=threading.local, init=False)
    """The node of the call that runs in a thread."""

    def note_left(self) -> None:
        """A call is done: what it has left where backward reads."""
        if self.late is not None and (node := self.called.__dict__.pop("node", lambda: None)()) is not None:
            node.state_left = Left.at(self.late.left)

    @property
    def written(self) -> list[Final]:
        """What backward writes to: inputs, then outputs."""
        found = [slot for slot in self.gives if isinstance(slot, Final)]
        return [s for s in found if s.of in self.ins] + [s for s in found if s.of in self.outs]

    def half(self, arrived: Sequence[bool], asked: Sequence[bool] | None = None) -> Half:
        """The backward half for a pass in which these gradients come in, of those that may; ``asked``: of which
        inputs a gradient is asked for, if that matters."""
        assert self.backward is not None
        if asked is None and all(arrived):
            return self.backward
        unasked = frozenset[Slot]()
        if asked is not None and not all(asked[i] for i in self.at.gradients):
            unasked = frozenset(slot for slot, is_asked in zip(self.ins, asked, strict=True) if not is_asked)
        if all(arrived) and not unasked:
            return self.backward
        key = frozenset(s for s, here in zip(self.cotangents, arrived, strict=True) if not here), unasked
        return self._halves.found(key, self.narrowed, self.name)

    def without_values(self, gone: frozenset[int], kept: Sequence[Tensor | None]) -> list[Tensor | None]:
        """What was saved, without the values that no pass from other outputs than these reads."""
        if gone not in self._read:
            absent = [slot for i, slot in enumerate(self.cotangents) if i in gone]
            self._read[gone] = None if self.passes is None else self.passes.reads_without(absent)
        read, slots = self._read[gone], self.at.kept_slots
        if read is None:
            return list(kept)
        is_read = [i >= len(slots) or slots[i] in read for i in range(len(kept))]
        # of the others a pass may read sizes
        return [v if v is None or is_read[i] else v.new_empty(()).expand(v.shape) for i, v in enumerate(kept)]

    def unreached(self, incoming: Sequence[Tensor | None]) -> list[int]:
        """The inputs to which a backward pass with these gradients of outputs does not come."""
        return [i for i, outs in self.at.reached.items() if all(incoming[k] is None for k in outs)]

    def writes_of(self, half: Half) -> tuple[int, ...]:
        """Which of what is ``written`` a half writes to."""
        return tuple(map(self.written.index, half.written))

    @property
    def has_prologue(self) -> bool:
        """Whether backward looks at more than what was saved: at versions, and at what inputs hold when it runs."""
        return bool(self.at.watched_inputs or self.at.watched_outs or self.at.late)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if unnoticed := self.at.unnoticed:
            inputs = tuple(ahead(v, unnoticed[i]) if i in unnoticed else v for i, v in enumerate(inputs))
        at, seen = self.at, inputs
        # tracked: a second derivative flows on to what made them
        first = {i: inputs[i].clone() for i in at.copied} if at.copied else {}
        if at.unused:
            seen = tuple(ahead(v, ()) if i in at.unused else v for i, v in enumerate(inputs))
        results = Results() if at.through else None
        apart = {i: s for i, s in at.reached.items() if is_heard(inputs[i])} if at.reached else {}
        is_several = len(at.arrivals) > 1
        hooked = [i for i in at.arrivals if (v := inputs[i]) is not None and has_hooks(v)] if is_several else ()
        if apart or len(hooked) > 1:
            outs = self._gated((first, inputs, results), seen, apart, hooked)
        else:
            outs = _apply(self, (first, inputs, results), *seen)
        if results is not None:
            results.update((i, weakref.ref(outs[i])) for i in at.through)
        return outs

    def _gated(
        self,
        given: Given,
        seen: Sequence[Any],
        apart: Mapping[int, frozenset[int]],
        hooked: Sequence[int],
    ) -> tuple[Any, ...]:
        """A call where Python may hear of the gradients of inputs ``apart``, to which not all outputs lead, or of
        several that are ``hooked``, in this order."""

        def gradients(ctx: Any, incoming: Sequence[Tensor | None], asked: Callable[[], Sequence[bool]]) -> list[Any]:
            result = _gradients(ctx, incoming, asked)
            add_zeros(ctx, result, [i for i in self.unreached(incoming) if i not in apart])
            return result

        return applied(
            lambda ctx: _ran(ctx, self, given), gradients, seen, apart, hooked, self.at.differentiable, len(self.outs)
        )


@frozen
class _Positions:
    """Where the values of slots stand, found once: of inputs, of outputs, and of what backward returns."""

    n_outs: int
    differentiable: tuple[int, ...]
    kept: tuple[int, ...]
    kept_slots: tuple[Slot, ...]
    """These, and what forward saves beside its outputs."""
    gradients: tuple[int, ...]
    """The inputs that may get one."""
    late: tuple[int, ...]
    requires_grad: tuple[int, ...]
    leaves: tuple[Callable[[Tensor], Blank | Hollow] | None, ...]
    """What is left of each input when the call is done; None for one that is kept."""
    copied: tuple[int, ...]
    restrided: frozenset[int]
    followed: Followed
    """The inputs of which it matters where they lie when backward runs."""
    bumps: tuple[int, ...]
    unnoticed: Mapping[int, tuple[Step, ...]]
    watched_inputs: tuple[tuple[int, int], ...]
    watched_outs: tuple[int, ...]
    together: tuple[frozenset[int], ...]
    """For each differentiable output those, by number, whose backward passes find something freed after its own."""
    reached: Mapping[int, frozenset[int]]
    """The inputs that not all outputs lead to, each with those that do."""
    through: Mapping[int, frozenset[int]]
    """The outputs that others are computed from, each with these."""
    arrivals: tuple[int, ...]
    unused: frozenset[int]
    """The inputs that require grad and get none: a backward pass must not go on to what computed them."""
    writes_inputs: tuple[int, ...]
    writes_outs: tuple[int, ...]
    is_alone: bool
    """Whether backward reads nothing but what was saved, and writes to nothing."""
    others: tuple[int, ...]
    """The outputs through which no gradient flows."""
    layouts: tuple[CotangentLayout, ...]
    strides: tuple[tuple[int, ...] | None, ...]
    """Of plain incoming gradients whose sizes are known: with these they are as they should be."""

    @staticmethod
    def of(program: Differentiable) -> _Positions:
        ins, outs = ({slot: i for i, slot in enumerate(slots)} for slots in (program.ins, program.outs))
        active = {slot: i for i, slot in enumerate(program.cotangents)}

        def among(places: Mapping[Slot, int], slots: Iterable[Slot]) -> tuple[int, ...]:
            return tuple(places[slot] for slot in slots if slot in places)

        kept = [slot for slot in program.backward_ins if slot in ins]
        saved = [slot for slot in program.backward_ins if slot not in ins and not isinstance(slot, (Cotangent, Late))]
        gradients = among(ins, (slot.of for slot in program.gives if isinstance(slot, Grad)))
        requires_grad = tuple(sorted(among(ins, program.requires_grad)))
        late = tuple(ins[s.of] for s in program.backward_ins if isinstance(s, Late))
        watched_inputs = tuple((ins[slot], moves) for slot, moves in program.watched.items() if slot in ins)
        watched_outs = among(outs, program.watched)
        writes_inputs, writes_outs = (among(places, (s.of for s in program.written)) for places in (ins, outs))
        return _Positions(
            n_outs=len(outs),
            differentiable=among(outs, program.cotangents),
            kept=among(ins, program.backward_ins),
            kept_slots=(*kept, *saved),
            gradients=gradients,
            late=late,
            requires_grad=requires_grad,
            leaves=tuple(
                None if slot in program.needed else Hollow.of if slot in program.wrappings else Blank.of
                for slot in program.ins
            ),
            copied=tuple(sorted(among(ins, program.copied))),
            restrided=frozenset(among(ins, program.restrided)),
            followed=Followed.of(program.variables, ins, kept),
            bumps=tuple(ins[slot] for slot in program.bumps),
            unnoticed={ins[slot]: steps for slot, steps in program.unnoticed.items()},
            watched_inputs=watched_inputs,
            watched_outs=watched_outs,
            reached={ins[s]: frozenset(among(outs, of)) for s, of in program.reached.items() if of},
            through={outs[s]: frozenset(among(outs, of)) for s, of in program.through.items()},
            arrivals=among(ins, program.arrivals),
            unused=frozenset(ins[s] for s, of in program.reached.items() if not of) if gradients else frozenset(),
            together=tuple(frozenset(among(active, others)) for others in program.together.values()),
            writes_inputs=writes_inputs,
            writes_outs=writes_outs,
            is_alone=not (late or watched_inputs or watched_outs or writes_inputs),
            others=tuple(i for slot, i in outs.items() if slot not in program.cotangents),
            layouts=tuple(program.cotangents.values()),
            strides=tuple(layout.known_strides for layout in program.cotangents.values()),
        )


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: Differentiable, given: Given, *_: Any) -> tuple[Any, ...]:
        outs, at = _ran(ctx, program, given), program.at
        ctx.set_materialize_grads(False)  # here, where a captured pass looks for it
        if at.others:
            ctx.mark_non_differentiable(*[v for i in at.others if isinstance(v := outs[i], Tensor)])
        return outs

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
        """What tells graphs of autograd apart that are captured: the program; sizes may vary."""
        number = 2 * ctx.program.number + is_as_compiled(ctx)
        return (_KEYS + number, *(v for v in ctx.scalars.values() if type(v) is int), *sizes_beside(ctx))

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Any, ...]:
        result = _gradients(ctx, incoming, lambda: _asked(ctx))
        if ctx.program.at.reached:
            add_zeros(ctx, result, ctx.program.unreached(incoming))
        return (None, None, *result)


_apply = applied_directly(_Apply)


def _ran(ctx: Any, program: Differentiable, given: Given) -> tuple[Any, ...]:
    """Run forward: its outputs. What backward needs is kept in ``ctx``."""
    at, (first, inputs, ctx.results) = program.at, given
    if program.draws:
        ctx.generators = {of: state_of(of) for of in program.draws}
    # Below autograd nothing is tracked, but grad mode is on as it was in the trace: some kernels ask for it
    # (oneDNN's RNN).
    values = called_below_autograd(program.forward, inputs)
    if program.draws:
        ctx.generators_then = {of: mark_of(of) for of in program.draws}
    for i in at.bumps:
        bump_version(inputs[i])
    outs = tuple(values[: at.n_outs])
    # as they lie now: the caller may be about to change how an input looks (t_)
    kept = [inputs[i].detach() if i in at.restrided else inputs[i] for i in at.kept] if at.kept else []
    kept += values[at.n_outs :]
    if at.writes_outs:
        kept += [outs[i] for i in at.writes_outs]
    ctx.program = program
    at.followed.note(ctx, inputs)
    scalars = ctx.scalars = {i: v for i, v in enumerate(kept) if not isinstance(v, Tensor)}
    ctx.save_for_backward(*([None if i in scalars else v for i, v in enumerate(kept)] if scalars else kept))
    if at.is_alone:
        ctx.late = ctx.written = ctx.watched = ()
    else:
        ctx.late = [inputs[i].detach() for i in at.late]
        ctx.written = [inputs[i].detach() for i in at.writes_inputs]
        ctx.watched = [(inputs[i].detach(), version_of(inputs[i]) + moves) for i, moves in at.watched_inputs]
        ctx.watched += [(outs[i].detach(), version_of(outs[i])) for i in at.watched_outs]
    # For a pass that runs the function again (a second derivative; a first one, where backward is compiled when it
    # runs). Not among the saved tensors: eager PyTorch lets a bias be updated before
    # backward. An input whose values no derivative needs may die when the caller lets it go.
    then = [first.get(i, v) for i, v in enumerate(inputs)] if first else inputs
    ctx.inputs = [
        v if leave is None or not isinstance(v, Tensor) else leave(v) for v, leave in zip(then, at.leaves, strict=True)
    ]
    ctx.given = [weakref.ref(v) if isinstance(v, Tensor) else None for v in inputs]
    ctx.versions = version_counters(ctx.inputs)
    if at.together:
        ctx.left, ctx.gone = None, frozenset[int]()
    ctx.state_left = None
    if program.late is not None and program.late.left:
        program.called.node = weakref.ref(ctx)
    return outs


def _gradients(ctx: Any, incoming: Sequence[Tensor | None], asked: Callable[[], Sequence[bool]]) -> list[Any]:
    """The gradients of all inputs. ``ctx``: the node that keeps what backward needs; ``asked`` says of which inputs
    gradients are asked for."""
    program: Differentiable = ctx.program
    at = program.at
    cotangents = [in_memory(incoming[i]) for i in at.differentiable]
    here = [t is not None for t in cotangents]
    result: list[Any] = [None] * len(ctx.inputs)
    if not any(here):
        return result
    if at.through:
        require_unheard(ctx, incoming)
    as_traced = reads_as_traced(ctx)
    refused = program.refused if all(here) and as_traced else None
    if isinstance(refused, FuncgradError):
        raise refused
    # raises, as in eager PyTorch, if a value was changed in place or freed
    saved = _saved(ctx, here) if at.together else ctx.saved_tensors
    if ctx.watched:
        require_saved_versions(ctx)
    # kernels take no tensors of a vmap that is around this backward pass (is_grads_batched, torch.func.vmap)
    is_mapped = any_mapped(cotangents)
    again = torch.is_grad_enabled() or program.backward is None or not as_traced
    if again or (is_mapped and program.mapped is None):
        at.followed.all.require_in_place(ctx)
        require_versions(
            (v, version) for v, version in zip(ctx.inputs, ctx.versions, strict=True) if isinstance(v, Tensor)
        )
        places = at.requires_grad
        values = [v.empty() if isinstance(v, (Blank, Hollow)) else v for v in ctx.inputs]
        given = [None if one is None else one() for one in ctx.given]
        try:
            with own_draws(ctx.generators, ctx.generators_then) if program.draws else nullcontext() as own:
                gradients = program.pullback(given, values, cotangents)
            if own is not None:
                _require_same_draws(own)
        except FuncgradError:
            if refused is not None:  # what the trace met comes before what is refused of running it again
                raise refused from None
            raise
    else:
        half = program.half(here, asked()) if program.has_effects else program.half(here)
        laid_out = [
            t if strides is not None and type(t) is Tensor and t.stride() == strides else layout(t)
            for layout, strides, t in zip(at.layouts, at.strides, cotangents, strict=True)
            if t is not None
        ]
        values = [*saved]
        for i, scalar in ctx.scalars.items():
            values[i] = scalar
        written = ctx.written
        if at.writes_outs:
            n_kept = len(values) - len(at.writes_outs)
            written = (*written, *values[n_kept:])
            del values[n_kept:]
        values += laid_out
        values += ctx.late
        at.followed.early.require_in_place(ctx)
        gone = at.followed.read.moved(ctx)
        run = program.mapped(half.graph) if is_mapped and program.mapped is not None else half.run
        run = as_they_are(ctx, half, run, values, gone) if gone else run
        del saved, cotangents, laid_out, incoming
        # unless the graph is kept: then the list holds all there is, and backward empties it
        ctx.maybe_clear_saved_tensors()
        if any_autocast():  # its casts are in its graph
            with autocast_as(()):
                results = run(values)
        else:
            results = run(values)
        places, gradients = half.gradients, results[: len(half.gradients)]
        if written:
            write_back([written[i] for i in program.writes_of(half)], results[len(half.gradients) :])
    for i, gradient in zip(places, gradients, strict=True):
        result[i] = gradient
    return result


def _asked(ctx: Any) -> Sequence[bool]:
    """Of which inputs this pass asks for a gradient: whether the engine goes on to what computed them."""
    if (known := getattr(ctx, "_asked", None)) is not None:  # in a pass that was recorded
        return known[2:]  # type: ignore[no-any-return]
    edges = iter(ctx.next_functions)
    return [given is not None and (node := next(edges)[0]) is not None and is_executed(node) for given in ctx.given]


def _saved(ctx: Any, here: Sequence[bool]) -> Sequence[Tensor | None]:
    """What forward has saved. Where backward passes from some outputs need nothing that those from others free, what
    they read is kept for these when the graph is freed: in eager PyTorch other nodes of that have it, or none."""
    run = {i for i, arrived in enumerate(here) if arrived}
    saved, versions = ctx.left or (None, ())
    if saved is None or run & ctx.gone:
        saved = ctx.saved_tensors
    require_versions(versions)
    if not graph_is_kept():
        gone = ctx.gone = ctx.gone.union(*(ctx.program.at.together[i] for i in run))
        left = ctx.program.without_values(gone, saved) if len(gone) < len(here) else None
        # detached: what was an output has this node as its history, and would keep itself
        own = None if left is None else [None if v is None else v.detach() for v in left]
        ctx.left = None if own is None else (own, [(v, version_of(v)) for v in own if v is not None])
    return saved  # type: ignore[no-any-return]


def differentiable_of(context: Any) -> Differentiable | None:
    """The program of a node of autograd; None if it is no program's."""
    return context.program if context._forward_cls is _Apply else None


def reads_as_traced(context: Any) -> bool:
    """Whether what the backward half of a node reads of Python state is what it was compiled for."""
    late = context.program.late
    return late is None or late.is_as_traced(context.inputs, context.given, context.state_left)


def is_as_compiled(context: Any) -> bool:
    """Whether the half itself runs: all that it reads is where it was."""
    return reads_as_traced(context) and not context.program.at.followed.moved(context)


def sizes_beside(context: Any) -> list[int]:
    """Sizes that a node needs of what is neither given nor saved: of what it reads late."""
    return [n for t in context.late for n in t.shape]


def require_saved_versions(context: Any) -> None:
    """``RuntimeError``, as in eager PyTorch, where somebody has written to what a node needs, and autograd does not
    know that it does."""
    require_versions(context.watched)


def _require_same_draws(own: OwnDraws) -> None:
    if own.not_passed:
        raise refusals.DRAWN_BY_ANOTHER_THREAD(where="the backward pass that is differentiated (create_graph=True)")
