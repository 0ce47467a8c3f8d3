"""The dry run: the function runs once on fakes that mirror the real tensors, and what it does is written down."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .. import refusals
from ..autograd_state import has_history, has_hooks, is_leaf, python_node_below
from ..graph_primitives import Path
from ..graphs import type_text
from ..options import Randomness
from ..slots import Arg, Base, Captured, Slot
from ..state.caches import require_filled, require_kept_by_none
from ..state.effects import same_effects
from ..state.given import into_arguments, is_watched
from ..state.hooks import unheard
from ..state.late import Late
from ..state.renewed import Brought
from ..state.restart import Known, Restart
from ..state.settings import GRAD_MODE
from ..state.state import State, state_of
from ..state.unread import require_unread
from ..state.watch import Watch
from ..state.written import Written
from ..subclasses import inner_tensors
from ..torch_private.functional import from_functional
from ..torch_private.levels import transform_active
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import is_wrapper_subclass, storage_id
from ..trees import Container, flatten_arguments
from .backward import fails_in_eager, run_passes
from .changes import (
    Met,
    changes_of,
    refuse,
    refuse_backward,
    refuse_hidden_backward,
    refuse_inner_tensors,
    refuse_leaves,
    refuse_retained,
    refuse_stores,
    views_that_follow,
)
from .facts import Facts, Source, naming
from .floats import NotSymbolicError
from .inputs import CapturedTensor, GradientOf, Inputs, Symbolic, contents_of, require_none_hidden, require_same
from .late_reads import late_reads
from .left_behind import LeftBehind, gradless, leaves_of, left_behind, switches_of
from .memory import history, neighbours, overlaps, same_objects, without_subclasses
from .modes import with_modes
from .onward import Passes, apart_from, by_slot, calls_of
from .other_places import other_places, require_apart_from_arrays, with_containers, with_homes
from .outputs import look_at_outputs
from .questions import HOOKS, HOOKS_AFTER, IS_VIEW, answer_of, require_bare
from .reads import READS_LATER
from .resolved import resolve
from .results import Opening, flatten_result, require_unhooked, require_visible
from .source_location import user_line_of
from .stand_ins import Mirrored, mirror, mirror_alone
from .tensor_hooks import as_outside
from .trace import Trace


@frozen
class Surroundings:
    """What a function is given in the call that is compiled, and what is asked of its program."""

    inputs: Inputs
    grad: bool
    """Whether grad mode is on outside the function, so that inputs keep their ``requires_grad``."""
    out_slot: Callable[[str], Slot]
    """Names an output by its path."""
    splits: bool
    """Whether a backward pass will be compiled apart; then it is run, too, if it runs Python of the caller's, which may
    write to inputs."""
    rng: Randomness
    hands_over: bool = False
    """Whether the caller's function is given the arguments themselves: no transform wraps them, and it is no run for a
    derivative, which is given captured tensors as arguments."""
    replays: bool = True
    """Whether what it writes to Python state is to happen on each call (else it has happened)."""
    at_level: int = 0
    path: Path | None = None
    varying: frozenset[str] = frozenset()
    """For these three see ``Trace``."""


class DryRun:
    """One run on stand-ins that mirror the real tensors. ``saved``: see ``Trace.saved_outside``."""

    def __init__(self, surroundings: Surroundings, known: Known, saved: dict[int, Tensor]) -> None:
        self._known, self._inputs, self._grad = known, surroundings.inputs, surroundings.grad
        self._out_slot, self._splits = surroundings.out_slot, surroundings.splits
        self._replays, self._hands_over = surroundings.replays, surroundings.hands_over
        captured = ((f"captured {i}", t) for i, t in enumerate(known.tensors))
        self._reals: list[tuple[Any, Tensor]] = [*surroundings.inputs.tensors, *captured]
        gradients = {id(t.grad) for _, t in self._reals if t.is_leaf}  # these are what their owners are asked for
        self._asked_for = frozenset(map(id, known.themselves))
        self._themselves = self._asked_for - gradients
        self.watch: Watch
        """From when it runs."""
        self._mirrored: dict[int, Mirrored] = {}
        self._handles: list[RemovableHandle] = []
        self._left: Written | None = None
        """What the function has written to Python state in its forward pass."""
        self._given: tuple[Container, ...] = ()
        self._backward_writes = False
        self._read_in_forward = set[int]()
        """The captured tensors that forward reads, by identity."""
        trace = Trace(
            record=False, backward_autocast=None, rng=surroundings.rng, stand_in_for=self._meet, path=surroundings.path
        )
        self.trace = with_modes(trace)
        trace.at_level, trace.varying = surroundings.at_level, surroundings.varying
        trace.runs_at_level = bool(surroundings.at_level)
        # what a pullback runs again knows the answers
        trace.ignores_requires_grad = not surroundings.grad and (surroundings.splits or surroundings.replays)
        trace.enables_grad_itself = not surroundings.splits
        trace.saved_outside, trace.memory_around = saved, dict(known.around)
        trace.hooks.begin(() if known.hooks_write else None)
        trace.writes.heard = lambda written: require_kept_by_none(self.watch.caches, written)
        self._passes = Passes()
        self._apart: dict[int, tuple[int, ...]] = {}
        if self._splits:
            self.trace.backward_is_done = lambda *how: self._passes.done(self._mirrored, self._written(), *how)
        self.trace.asked_for_gradients = lambda *what: self._apart.update(
            apart_from(self._reals, self._mirrored, *what)
        )

    def release(self) -> None:
        """Let go of the real tensors: a trace is a ring of references, and lives until the next garbage collection."""
        self._reals.clear()
        self._inputs = self._inputs.released()
        self._left, self._known = None, Known()
        self.trace.captured.clear()
        self.trace.reals.clear()

    def run(self, function: Callable[..., Any], root: Callable[..., Any]) -> Facts:
        """What the function did with its stand-ins: writes, results, Python state that it read and wrote."""
        trace, inputs = self.trace, self._inputs
        stand_ins: dict[Any, Any] = {
            s: trace.symbolic_number(s, v.value) for s, v in inputs.dynamic if isinstance(v, Symbolic)
        }
        self._mirrored = mirror(trace, self._reals, self._grad)
        for own in self._mirrored.values():
            trace.writes.keep_place(own.memory)
        stand_ins |= {slot: self._mirrored[id(t)].seen for slot, t in inputs.tensors}
        for slot, tensor in self._reals:
            if not isinstance(slot, Arg):
                trace.bind(tensor, self._mirrored[id(tensor)].seen)
            self._give_gradient(tensor)
            self._give_hooks(slot, tensor)
        args, kwargs = inputs.rebuild(
            stand_ins | {slot: real for slot, real in inputs.tensors if id(real) in self._themselves}
        )
        leaves_given, paths_given = flatten_arguments(inputs.names, args, kwargs)
        arguments = inputs.objects
        self.watch = trace.watch = self._watch_of(root, arguments, stand_ins)
        containers = inputs.containers(args, kwargs)
        self._given, unseen = self.watch.give(containers), contents_of([c for c in containers if not is_watched(c)])
        trace.reals = {id(self._mirrored[id(real)].seen): real for _, real in self._reals}
        trace.inputs = set(trace.reals)
        raised: BaseException | None = None
        try:
            with self.watch, torch.set_grad_enabled(self._grad), trace.lifter:
                result = function(*args, **kwargs)
                grad_mode = torch.is_grad_enabled()
            for handle in self._handles:
                handle.remove()
            require_same(unseen, refusals.STORES_INTO_ARGUMENT)
            if self._replays:
                require_filled(self.watch.caches)
            trace.writes.spread_versions()
            self._take_written(grad_mode)
            opening = Opening(self.watch, self._left) if self._hands_over and not trace.at_level else None
            leaves, tree, paths = flatten_result(result, containers, opening)
            if opening is not None:
                opening.require_stored_nowhere()
            require_unread(inputs.leaves, leaves)
            require_visible(leaves, paths, tree, self.watch.knows if self._replays else None)
            leaves = [trace.named(v) for v in leaves]
            require_unhooked(trace.hooked, leaves)
            lasting = (self._mirrored[id(t)].seen for _, t in self._reals if t.is_leaf and t.requires_grad)
            self.watch.hooked = {trace.hooked[id(v)] or "" for v in lasting if id(v) in trace.hooked}
            facts = self._facts(leaves, paths, root)
        except BaseException as error:
            self.watch.forget()
            raised = error if trace.runs_again and not trace.symbols else None
            raise
        finally:
            self.watch.close()
            written, drawn = trace.written(), self.watch.put_draws_back()
            if isinstance(raised, Exception) and fails_in_eager(raised):
                self._has_happened(written, raised)
            else:
                written.undo()
            raised = None  # its frames hold this one
            self.watch.take_numbers_back()
        require_none_hidden(leaves_given, paths_given)
        if drawn is not None:
            raise drawn
        if trace.symbols.floats.names and self.watch.asks_types:
            raise NotSymbolicError("the function asks for types, and that of a symbol is another than that of a number")
        state, hooks = self._state(written, arguments), self.trace.hooks.kept
        opens = opening is not None and opening.matters
        facts = evolve(facts, state=state, hooks=hooks, backward_writes=self._backward_writes, opens=opens)
        facts = with_homes(facts, self.watch, inputs)
        all_written = written.effects if self._backward_writes else facts.state.effects
        require_apart_from_arrays(facts, self.watch, inputs, all_written)
        also, apart_from, others = other_places(facts, self.watch, inputs, all_written, self.trace.given_anew)
        held = {slot for _, slot in also} | {self._slot_of(c.tensor) for c in facts.captured}
        for slot, real in inputs.tensors if self._hands_over and self.watch.said.compares_objects else ():
            if slot in held and id(real) not in self._asked_for:
                owners = (t for _, t in self._reals if t.is_leaf and t.grad is real)  # which are asked for it, then
                raise Restart(Known((*owners, real), themselves=(real,)))
        used = {id(c.tensor) for c in facts.captured} | {id(t) for _, t in inputs.tensors}
        apart = {id(g.value()) for g in others if g.how == "tensor" and self.watch.said.compares_objects} - used
        facts = evolve(facts, also=also, apart=frozenset(apart), apart_from=apart_from)
        facts = with_containers(facts, self.watch, inputs, containers if self._hands_over else ())
        guards = (*facts.state.guards, *others)
        late = Late(guards)  # what a derivative of a gradient reads, when that runs
        if self._splits:
            found = late_reads(self.watch, facts, guards, also, self._left, self._read_in_forward)
            late = found if facts.differentiable else Late()
        # what backward reads when it runs, it does not read of an object that stands for others; nor does a derivative
        # write to one
        writes = facts.differentiable and facts.state.writes_to_brought
        brought = Brought() if self._splits and (late or writes) else facts.state.brought
        return evolve(facts, state=evolve(facts.state, guards=guards, late=late, brought=brought))

    def _watch_of(self, root: Callable[..., Any], arguments: Sequence[tuple[str, Any]], stand_ins: Any) -> Watch:
        """What hears of the Python state that the function reads."""
        inputs = self._inputs
        watch = Watch(root, arguments, inputs.numbers(stand_ins), bool(inputs.renewed))
        watch.given_tensors = {id(self._mirrored[id(t)].seen) for _, t in inputs.tensors}
        return watch

    def _take_written(self, grad_mode: bool) -> None:
        """What the function has written to Python state, and in which grad mode it has ended."""
        trace = self.trace
        assert self.watch is not None
        self._left = trace.written() if self._replays or trace.runs_again else None
        if self._left is not None:
            self._left.sets(GRAD_MODE, torch.is_grad_enabled(), grad_mode)  # ``self._grad`` may be on for its sake
        for new in self._left.stores.values() if self._left is not None else ():
            trace.named(new)  # it may be met here for the first time
        self.watch.first = None if self._left is None else self._left.effects

    def _has_happened(self, written: Written, error: Exception) -> None:
        """The backward pass of a pullback raises an error of the caller's: what it has done in Python before stays
        done, as in eager PyTorch."""
        writes = self.trace.writes
        if writes.number_of(self.trace.inputs) > writes.n_again or written.stores or not written.is_replayable:
            written.undo()
            raise refusals.RAISES_AFTER_WRITE(type(error).__name__, error, where=user_line_of(error)) from error
        writes.have_happened = True

    def _slot_of(self, real: Tensor | None) -> Arg | None:
        """The argument that a tensor is."""
        return next((slot for slot, t in self._inputs.tensors if t is real), None)

    def _itself(self, captured: Sequence[CapturedTensor]) -> dict[Arg, Captured]:
        """The arguments that are themselves in the run, and where they live in Python state."""
        of = {id(c.tensor): c.slot for c in captured}
        return {slot: of[id(t)] for slot, t in self._inputs.tensors if id(t) in self._themselves and id(t) in of}

    def _state(self, written: Written, arguments: Sequence[tuple[str, Any]]) -> State:
        """What the run read of Python state, and what it wrote, which is undone by now."""
        self.watch.finish()
        if self._left is None:
            return evolve(state_of(self.watch, written, arguments), effects=(), stores=())
        into = into_arguments(self._given, self._left.owners, self.watch.met, self._inputs.identities)
        self._left.require_replayable()
        if not same_effects(self._left.effects, written.effects):
            self.trace.hooks.require_opaque()
            self._backward_writes = True
        return evolve(state_of(self.watch, self._left, arguments), runs_again=self.trace.runs_again, into=into)

    def _named(self) -> tuple[tuple[CapturedTensor, ...], list[tuple[Source, Tensor]]]:
        """The captured tensors met so far, and all inputs by name. Not what an inner function bound: it gets that by
        value."""
        met = {id(t): self.trace.captured[id(t)] for slot, t in self._reals if not isinstance(slot, Arg)}
        captured = resolve(list(met.values()), self._inputs.tensors, self.watch, self.trace.saved_outside)
        if self.watch.asks_classes:
            self.trace.questions.ask_classes(c.tensor for c in captured if c.tensor is not None)
        return captured, [*self._inputs.tensors, *((c.slot, c.tensor) for c in captured if c.tensor is not None)]

    def _meet(self, real: Tensor) -> Tensor:
        """A stand-in for a captured tensor; where it is entangled with another input, the run starts again, knowing
        it."""
        if any(t is real for _, t in self._reals):  # it is an argument, too
            self._reals.append((f"captured {len(self._reals)}", real))
            return self._mirrored[id(real)].seen
        if any(storage_id(t) == storage_id(real) for _, t in self._reals) or transform_active():
            raise Restart(Known((real,)))
        self._reals.append((f"captured {len(self._reals)}", real))
        own = self._mirrored[id(real)] = mirror_alone(self.trace, real, self._grad)
        self.trace.reals[id(own.seen)] = real
        self.trace.inputs.add(id(own.seen))
        self._give_gradient(real)
        self._give_hooks(None, real)
        return self._mirrored[id(real)].seen

    def _give_hooks(self, slot: Any, real: Tensor) -> None:
        """The stand-in of a leaf has the hooks of the real one, while the function runs."""
        seen = self._mirrored[id(real)].seen
        known = id(real) in self.trace.hooks.of_leaves  # an argument that the function closes over, too
        if self._splits and self._grad and real.is_leaf and has_hooks(real) and is_leaf(seen) and not known:
            self.trace.hooks.of_leaves.add(id(real))
            with without_function_modes():
                hooks = answer_of(HOOKS, real), answer_of(HOOKS_AFTER, real)

            def ran(hook: Any) -> None:
                self.trace.questions.ask(real, HOOKS, HOOKS_AFTER)
                with unheard():  # which one it is, is asked in each call
                    self.watch.see(hook, getattr(hook, "__name__", "hook"))

            self._handles += as_outside(seen, *hooks, seen if isinstance(slot, Arg) else real, self.trace.operand, ran)

    def _give_gradient(self, real: Tensor) -> None:
        """The stand-in of a leaf has a gradient where the real one has, if that is known to be asked for."""
        gradient = self._mirrored.get(id(real.grad)) if real.is_leaf else None
        if gradient is not None:
            with without_function_modes():
                self._mirrored[id(real)].seen.grad = gradient.seen

    def _written(self) -> dict[int, str]:
        """How each real tensor, by identity, has been written to so far."""
        key_of = {id(t): key for key, m in self._mirrored.items() for t in (m.seen, *m.inner)}
        tracked: dict[int, bool] = {}
        for tensor, flag in self.trace.lineage.written(lambda t: id(t) in key_of):
            tracked[key_of[id(tensor)]] = tracked.get(key_of[id(tensor)], False) or flag
        return {key: self._mirrored[key].how_written(flag) for key, flag in tracked.items()}

    def _untracked(self, met: Met, changed: Iterable[Source | Base]) -> frozenset[Source | Base]:
        """See ``Facts``."""
        seen: dict[Any, int] = {slot: id(own.seen) for slot, _, own in met.each}
        known = set(seen.values())
        heard = self.trace.lineage.written_with_grad(lambda t: id(t) in known)
        members = {slot: slot.of if isinstance(slot, Base) else (slot,) for slot in changed}
        return frozenset(slot for slot, of in members.items() if heard.isdisjoint(seen[s] for s in of))

    def _met(self, root: Callable[..., Any]) -> tuple[tuple[CapturedTensor, ...], Met]:
        """The captured tensors met so far, and all inputs."""
        captured, named = self._named()
        return captured, Met(
            self.trace, named, self._mirrored, overlaps(named, self._passes.freed, self.trace.memory_around)
        )

    def _written_in_backward(self, met: Met, left: LeftBehind, sources: bool) -> list[Tensor]:
        """Run backward, and say what it writes to of the memory that inputs are given; see ``_run_backward``. Raises
        where it writes to inputs, and will not be recorded."""
        lineage, slot_of = self.trace.lineage, left.slot_of

        def written(to: Collection[int]) -> list[Tensor]:
            return [t for t, _ in lineage.written(lambda t: id(t) in to)]

        given_now = {id(lineage.current(t)) for t in left.moved.values()}
        n_inputs, n_given = len(written(slot_of)), len(written(given_now))
        failed = self._run_backward([self.trace.current(v) for v in left.leaves if isinstance(v, Tensor)], sources)
        if not sources:
            refuse_hidden_backward([slot_of[id(t)] for t in written(slot_of)[n_inputs:]], failed)
        return written(given_now)[n_given:]

    def _run_backward(self, leaves: Sequence[Tensor], sources: bool) -> Exception | None:
        """For what the caller's own Python writes to in backward; torch's own formulas write to no input. Returns what
        it raises.

        ``sources``: whether an input requires grad; where none does, no backward pass will be recorded.
        """
        written = [self._mirrored[key].family for key in self._written()]
        roots = [v for v in dict.fromkeys([*leaves, *written]) if has_history(v)]
        hooks = self.trace.hooks
        if roots and (python_node_below(roots) or not sources or hooks.found or self.trace.listeners.may_run):
            seeds = [torch.ones_like(v) for v in roots]
            fakes = [from_functional(inner) for seed in seeds for inner in inner_tensors(seed)]
            self.trace.reads.tape.forget(fakes)
            refused = self.trace.refused
            try:
                with self.watch.in_backward(), self.trace.backward_pass(), hooks.watched():
                    run_passes(self.trace, roots, seeds)
            except Exception as error:
                if not fails_in_eager(error):
                    raise
                self.watch.failed_in_backward = True
                self.watch.hears_no_more()
                if self.trace.reads.allowed and isinstance(error, READS_LATER):
                    # of the gradients that come in, which are known when backward is compiled
                    hooks.require_seen()
                    self.trace.refused = refused
                return error
        return None

    def _require_known(self, made: Iterable[Tensor]) -> None:
        """What is returned and is no input."""
        for tensor in made:
            self.trace.forgotten.require_known(self.trace.current(tensor))
            self.trace.forgotten.require_whole([tensor])

    def _facts(self, leaves: list[Any], paths: list[str], root: Callable[..., Any]) -> Facts:
        trace, lineage = self.trace, self.trace.lineage
        captured, met = self._met(root)
        refuse_backward(met.named, self._mirrored, self._splits)
        require_bare({key: m.seen for key, m in self._mirrored.items()}, met.named)
        left = left_behind(met, leaves, paths, self._out_slot, self._splits, self._left)
        self._require_known(leaf for leaf in leaves if isinstance(leaf, Tensor) and id(leaf) not in left.slot_of)
        changed = [m.family for m in self._mirrored.values() if m.family.grad_fn is not m.history]
        with_history = [*left.made.values(), *changed]
        refuse_retained(left.lasting, with_history)
        is_base = (lambda _, root: has_history(root)) if self._splits else None
        names = naming(self._out_slot, left.beside)
        outputs, bases = look_at_outputs(
            left.leaves, left.paths, left.slot_of, lineage, names, is_base, trace.varying, left.firsts
        )
        kinds = tuple(
            (s, type_text(v), isinstance(v, Tensor) and v.requires_grad and self._grad) for s, v in self._inputs.dynamic
        )
        switches = switches_of(met)
        given = any(True in calls for calls in switches.values()) or any(grad for _, _, grad in kinds)
        sources = self._grad and (given or any(c.requires_grad for c in captured))
        in_forward, late = self._written(), list[Tensor]()
        changes = dict(changes_of(met, in_forward, in_forward))
        if self._splits and self._grad:
            self._read_in_forward = {id(c.tensor) for c in captured}
            known, late = len(self._reals), self._written_in_backward(met, left, sources)
            if len(self._reals) > known:  # the caller's Python in backward reads tensors forward did not
                captured, met = self._met(root)
            ever = changes_of(met, in_forward, self._written())
            changes = {slot: change for slot, change in ever if change.in_backward} | changes
        written = {slot for slot, change in changes.items() if change.data or change.in_backward}
        written |= {member for slot in written if isinstance(slot, Base) for member in slot.of}  # type: ignore[misc]
        histories = {slot: history(t) for slot, t in met.named if slot in written}
        read = [c.origin.slot for c in captured if isinstance(c.origin, GradientOf)]
        follows = views_that_follow(met, switches)
        refuse_leaves(met, left.gradients, switches, [*read, *follows], changes, left.stores)
        refuse(met, changes, histories, self._written())
        refuse_inner_tensors(met, changes, left.leaves, outputs)
        tracked = any(o.requires_grad and not o.is_leaf for o in outputs) or bool(bases)
        is_tracked = sources and (tracked or any(c.data == "tracked" for c in changes.values()))
        refuse_stores(met, left.stores, changes, is_tracked, late, left.lent(outputs))
        trace.forgotten.require_saved([*with_history, *map(lineage.current, left.made.values()), *left.leaves])
        trace.forgotten.require_apart()
        groups = tuple(group for group in met.groups if len(group.base.of) > 1 or group.base in changes)
        named, gradients = met.named, left.gradients
        trace.questions.lie(dict(named)[g.found.of] for g in groups if g.found.length and g.base in changes)
        if trace.differentiates:
            for real in (t for slot, t in named if slot in changes and changes[slot].data == "tracked"):
                trace.questions.ask(real, IS_VIEW)
        facts = Facts(
            kinds, captured, same_objects(named), groups, neighbours(without_subclasses(named)), changes, histories,
            outputs, tuple(bases), tuple(slot for slot, t in named if is_wrapper_subclass(t)), is_tracked,
            left.given, {slot: new is not None for slot, new in gradients.items()}, gradless(met, gradients),
            leaves_of(met, gradients, read), switches, trace.draws.met,
            tuple(asked for slot, t in named for asked in trace.questions.of(slot, t)), State(stores=tuple(left.kept)),
            tuple((slot, place) for slot, place, _ in self._inputs.state),
        )  # fmt: skip
        calls, computed, unheard = calls_of(self._passes.found, facts, named, self._mirrored)
        return evolve(
            facts, reads=tuple(trace.reads.done) if trace.reads.allowed else None, backward_calls=calls,
            itself=self._itself(captured), follows=follows, unrelated=by_slot(self._apart, named),
            leaves={**facts.leaves, **dict.fromkeys(computed, False)}, asked=(*facts.asked, *unheard),
            untracked=self._untracked(met, changes),
            result_gradients=tuple(left.of_made), unlike_gradients=left.unlike_gradients,
            generators=tuple(trace.draws.named.values()), has_custom_functions=trace.writes.met_custom_function,
        )  # fmt: skip
