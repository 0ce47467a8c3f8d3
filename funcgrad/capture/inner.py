"""The inner function: a definition as a pure function of flat values, which is what is traced, differentiated and
compiled.

Its inputs are distinct and do not overlap where anything is written to; it writes to none of them; none of its outputs
is an input or, where autograd would have to know, a view of another. What that takes away (duplicates, views, writes)
the layers give back around the compiled kernel.
"""

from __future__ import annotations

import contextlib
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import SymFloat, SymInt, Tensor
from torch.utils.hooks import RemovableHandle

from .. import refusals
from ..autograd_state import has_history, is_leaf, leaves_below
from ..checkpoint_policies import Policy
from ..errors import FuncgradError
from ..options import BackwardAutocast, Randomness
from ..slots import Arg, Captured, Final, NewGradient, NewMemory, Rewritten, Signature, Slot, State, Stored
from ..state.effects import Effect, Grow, Refill, Store, in_containers, refilled_places, same_effects, taken_back
from ..state.places import MISSING, Place
from ..state.watch import Watch
from ..state.written import Written
from ..subclasses import inner_tensors
from ..torch_private.modes import without_function_modes
from ..trees import Tree
from .facts import Facts, naming
from .floats import NotSymbolicError, VaryingNumbersError
from .inputs import CapturedTensor, GradientOf, Inputs
from .inverse import Inverse
from .lineage import Lineage
from .onward import Handing
from .outputs import OutputFact, look_at_outputs, require_views_by_no_size, results_by_slot
from .questions import HOOKS, HOOKS_AFTER
from .results import Opening, flatten_result, require_the_same, require_visible
from .stand_ins import copied, fresh
from .tensor_hooks import as_outside
from .trace import Trace, active_trace
from .views import ALIAS, take


@frozen(eq=False)
class Ran:
    """What one run of an inner function gave: a value for each output slot, the memory of each input as the function
    left it, and its result as it was."""

    outs: tuple[tuple[Slot, Any], ...]
    memory: dict[Slot, Tensor]
    """By slot; so is ``own_leaves``, where gradients of inputs arrive that the function treats as leaves."""
    own_leaves: dict[Slot, Tensor]
    leaves: tuple[Any, ...]
    tree: Tree
    stored: dict[Stored, SymInt | SymFloat]
    """The numbers that it has left in Python state which are others in other calls."""


@frozen(eq=False)
class Inner:
    """See the module's docstring. ``signature`` names the flat values and what is returned for them; ``inverse``
    says what the definition sees of them."""

    definition: Callable[..., Any]
    inputs: Inputs
    facts: Facts
    signature: Signature
    inverse: Inverse
    out_slot: Callable[[str], Slot]
    splits: bool
    backward_autocast: BackwardAutocast
    policy: Policy | None
    rng: Randomness

    def run(self, *values: Any, again: Mapping[Slot, Any] | None = None) -> Ran:
        """Call the definition on values of the running trace, one for each slot of ``signature.ins``. ``again``: for a
        backward pass, which reads from where that lives then: what it alone reads, and tensors that are no longer
        those given then (``again``: of which ``values`` are made)."""
        trace = active_trace()
        assert trace is not None, "an inner function runs only inside a trace"
        given = dict(zip(self.signature.ins, values, strict=True))
        for key in self.inverse.keys:
            trace.draws.begin(given[key])
        seen, memory = self.inverse(given, self._own)
        seen = self._with_views(seen, memory)
        late, then = self.facts.state.late, again or {}
        here, read_again = contextlib.ExitStack(), {slot for slot, _ in late.tensors if slot in then}
        for captured in self.facts.captured:
            if again and captured.slot in late.alone:
                continue
            if isinstance(captured.origin, GradientOf):
                seen[captured.origin.slot].grad = seen[captured.slot]
            elif captured.slot in read_again and not trace.stands_for(then[captured.slot], captured.read({})):
                here.enter_context(trace.binding([(captured.read({}), seen[captured.slot])]))
            else:
                trace.bind(_there(captured), seen[captured.slot])
        trace.questions.known = _answers(self.facts, seen)
        trace.hooks.begin(self.facts.hooks)
        with without_function_modes():  # it is not the function that asks
            leaves_seen = {s: v for s, v in seen.items() if isinstance(v, Tensor) and is_leaf(v)}
            gradients = {slot: value.grad for slot, value in leaves_seen.items()}
        known = {output.view.of for output in self.facts.outputs if output.view is not None and output.view.steps}
        is_base = (lambda base, _: base in known) if self.splits else None
        slot_of = {id(value): slot for slot, value in reversed(seen.items()) if isinstance(value, Tensor)}
        trace.writes.watch(memory)
        trace.inputs = set(slot_of)
        for group in self.facts.neighbours:
            tensors = list({id(seen[slot]): seen[slot] for slot in group}.values())
            trace.in_one_memory |= {id(t): id(tensors[0]) for t in tensors}
            trace.writes.link(tensors)
        for slot, base in self.facts.follows.items():
            trace.switched_with.setdefault(id(seen[base]), []).append(memory[slot])
        args, kwargs = self._arguments(seen)
        handing = Handing(
            self.facts, {s: v for s, v in zip(self.signature.ins, values, strict=True) if isinstance(v, Tensor)}
        )
        trace.backward_begins, trace.backward_is_done = handing.begins, lambda *_: handing.done()
        assert trace.watch is not None
        numbers = {slot: trace.symbols.floats.object(value) for slot, value in seen.items() if isinstance(slot, State)}
        trace.numbers_put = (*trace.numbers_put, *trace.watch.put_numbers(self.inputs.numbers(numbers)))
        containers = self.inputs.containers(args, kwargs)
        trace.watch.give(containers)
        handles = self._hooks_of_leaves(trace, seen)
        with here:
            result = self.definition(*args, **kwargs)
            written = trace.written()
            opening = Opening(trace.watch, written) if self.facts.opens else None
            leaves, tree, paths = flatten_result(result, containers, opening)
            own = {slot: trace.named(value) for slot, value in (written.plain | written.stores).items()}
        for handle in handles:
            handle.remove()
        require_visible(leaves, paths, tree, trace.watch.knows if self.facts.state.effects else None)
        leaves = [trace.named(v) for v in leaves]
        for slot, value in seen.items():
            new = trace.lineage.given(value) if isinstance(value, Tensor) else None
            if (new is None) == (slot in self.facts.stores) and slot_of.get(id(value)) == slot:
                raise refusals.MEMORY_IN_TWO_RUNS(slot, where=str(slot))
        self._require_same_gradients(trace.lineage, seen, gradients)
        handing.require_all()
        _require_same_effects(trace.watch, written.effects)
        owners: dict[Any, Any] = {**seen, **results_by_slot(leaves, paths, slot_of, self.out_slot)}
        if again is not None:
            own = self._stored_before(trace, own) | own
        leaves += [self._given(trace, slot, owners, own) for slot in self.facts.given]
        paths = [*paths, *map(str, self.facts.given)]
        outputs, bases = look_at_outputs(leaves, paths, slot_of, trace.lineage, self.named, is_base)
        varies = bool(self.inputs.sizes) or self.inputs.has_symbols_for_sizes
        if [_kind(o, varies) for o in outputs] != [_kind(o, varies) for o in self.facts.outputs]:
            raise _another_result(self.facts, outputs, varies)
        if trace.symbols.may_be_sizes():
            require_views_by_no_size(outputs, self.facts.outputs)
        self._require_constant(leaves, written, bool(again))
        first = [leaf if o.is_dynamic else o.constant for leaf, o in zip(leaves, self.facts.outputs, strict=True)]
        require_the_same(leaves, paths, first)
        tensors = [(slot, value) for slot, value in reversed(seen.items()) if isinstance(value, Tensor)]
        inner_of = {id(inner): slot for slot, tensor in tensors for inner in inner_tensors(tensor)}
        self._require_known_writes(trace, slot_of | inner_of)
        values_of: dict[Slot, Any] = {**handing.values} | {
            self.named(p): trace.current(leaf) for p, leaf in zip(paths, leaves, strict=True)
        }
        values_of.update((base, root) for base, root in bases.items())
        values_of |= {Final(slot): tensor for slot, tensor in memory.items()}
        shared = {family.slot for overlap in self.facts.needed_overlaps() for family in overlap.families}
        own_leaves: dict[Slot, Tensor] = {s: seen.get(s, value) for s, value in memory.items() if self.facts.is_leaf(s)}  # type: ignore[call-overload]
        memory = {slot: tensor for slot, tensor in memory.items() if slot not in shared}
        outs = tuple((s, values_of[s]) for s in self.signature.outs)
        return Ran(outs, memory, own_leaves, tuple(leaves), tree, written.numbers)

    def _hooks_of_leaves(self, trace: Trace, seen: Mapping[Any, Any]) -> list[RemovableHandle]:
        """Give the leaves the hooks that have run in the dry run."""
        found: dict[Any, dict[str, Any]] = {}
        for asked in self.facts.asked:
            if asked.question in (HOOKS, HOOKS_AFTER):
                found.setdefault(asked.slot, {})[asked.question] = asked.answer
        real: dict[Any, Any] = {c.slot: c.read({}) for c in self.facts.captured if c.slot in found}
        return [
            handle
            for slot, hooks in found.items()
            for handle in as_outside(
                seen[slot], hooks[HOOKS], hooks[HOOKS_AFTER], real.get(slot, seen[slot]), trace.operand
            )
        ]

    @property
    def exchanges_values(self) -> bool:
        """Whether nothing but values goes in and out (see ``run_pure``)."""
        facts = self.facts
        more = (
            set(facts.given) - _stored_by(self._replayed).keys()
            or facts.gradients
            or facts.leaves
            or facts.switches
            or facts.bases
            or facts.onward
        )
        restrides = any(change.restrides for change in facts.changes.values())
        return not (facts.needed_overlaps() or more or restrides or self.inverse.keys)

    @property
    def _replayed(self) -> Sequence[Effect]:
        """What it writes to Python state, where that is found after one more run, and taken back. What a gradient
        transform stores is of a level that has ended by then; what backward reads is to stay."""
        state = self.facts.state
        return state.effects if self.splits and not state.late.left else ()

    @property
    def _moved(self) -> list[tuple[Place, Slot]]:
        """Where it reads tensors, and stores others: where it runs once more, these may be there."""
        facts, effects = self.facts, self.facts.state.effects
        stored = {effect.place.location for effect in effects if isinstance(effect, Store)}
        refilled = {id(effect.container) for effect in effects if isinstance(effect, Refill)}
        read = [*((c.origin, c.slot) for c in facts.captured if isinstance(c.origin, Place)), *facts.also]
        return [(place, slot) for place, slot in read if place.is_renewed(stored, refilled)]

    def run_pure(self, *values: Any) -> tuple[Any, ...] | None:
        """As ``run``, of values that transforms of the trace may wrap: what is written to is a copy, and the values
        of ``signature.outs`` alone are returned, what it stores in Python state among them. None where more than values
        goes in or out: memory that inputs share, other memory, gradients, what is printed."""
        facts, trace = self.facts, active_trace()
        assert trace is not None and trace.watch is not None
        if not self.exchanges_values:
            return None
        written = self.inverse.written
        seen, _ = self.inverse(
            dict(zip(self.signature.ins, values, strict=True)),
            lambda slot, value: value.clone() if slot in written else value,
        )
        trace.numbers_put = (*trace.numbers_put, *trace.watch.put_numbers(self.inputs.numbers(seen)))
        trace.questions.known = _answers(self.facts, seen)
        trace.questions.tracked = {
            id(v): self.facts.requires_grad(slot)
            for slot, v in seen.items()
            if isinstance(v, Tensor) and self.facts.requires_grad(slot) != v.requires_grad
        }
        args, kwargs = self._arguments(seen)
        alone, moved = facts.state.late.alone, self._moved
        given = zip(facts.state.into.given, self.inputs.containers(args, kwargs), strict=bool(facts.state.into.given))
        effects = [*in_containers(self._replayed, {id(was.value): now.value for was, now in given})]
        places = _stored_by(effects)
        bound = {
            c.slot: (_there(c), seen[c.slot])
            for c in facts.captured
            if c.slot not in alone and not any(c.origin is place for place, _ in moved)
        }
        for effect in facts.state.effects if moved else ():
            if isinstance(effect, Refill):  # which is undone: as it is now
                trace.watch.see(effect.container, effect.name)
        with (
            trace.binding([*bound.values()], [bound[slot] for slot in bound if slot in written]),
            _put(trace.watch, [(place, seen[slot]) for place, slot in moved]),
            taken_back(effects) if places else contextlib.nullcontext(),
        ):
            result = self.definition(*args, **kwargs)
            opening = Opening(trace.watch, trace.written()) if self.facts.opens else None
            leaves, _, paths = flatten_result(result, (), opening)
            stored = {slot: find() for slot, find in places.items()}
        of: dict[Slot, Any] = {self.named(path): leaf for path, leaf in zip(paths, leaves, strict=True)} | stored
        of |= {Final(slot): value for slot, value in seen.items()}
        return (
            tuple(of[slot] for slot in self.signature.outs) if all(slot in of for slot in self.signature.outs) else None
        )

    def _arguments(self, seen: Mapping[Any, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What the definition is called with."""
        trace = active_trace()
        assert trace is not None and trace.watch is not None
        trace.watch.see_arguments((path, value) for path, value in self.inputs.objects if value is not None)
        real = {c.slot: c.read({}) for c in self.facts.captured if c.slot in self.facts.itself.values()}
        return self.inputs.rebuild({**seen, **{arg: real[slot] for arg, slot in self.facts.itself.items()}})

    def named(self, path: str) -> Slot:
        """The slot of an output, by its path."""
        return naming(self.out_slot, self.facts.given)(path)

    def _given(
        self,
        trace: Trace,
        slot: NewMemory | Rewritten | NewGradient | Stored,
        seen: Mapping[Any, Tensor],
        stored: Mapping[Stored, Tensor],
    ) -> Tensor | None:
        """What the function gave an input, or Python state."""
        if isinstance(slot, Stored):
            if slot not in stored:
                raise refusals.STORE_IN_TWO_RUNS(slot.name, where=slot.name)
            return kept_apart(stored[slot], self.splits, trace.lineage)  # type: ignore[no-any-return]
        if isinstance(slot, Rewritten):
            return trace.lineage.rewritten(seen[slot.of])
        return (
            trace.lineage.given(seen[slot.of])
            if isinstance(slot, NewMemory)
            else trace.named(trace.lineage.gradient_of(seen[slot.of]))
        )

    def _stored_before(self, trace: Trace, stored: Mapping[Stored, Any]) -> dict[Stored, Any]:
        """What a function that runs once more stores where it is already, since the function was called; not where it
        has read another tensor before. A number may be equal to what it stores."""
        missing = {slot.name: slot for slot in self.facts.given if isinstance(slot, Stored) and slot not in stored}
        read = {c.origin.location for c in self.facts.captured if isinstance(c.origin, Place)}
        places = [effect.place for effect in self.facts.state.effects if isinstance(effect, Store)]
        held = {missing[p.name]: p.read() for p in places if p.name in missing and p.location not in read}
        tensors = {slot: trace.named(trace.operand(v)) for slot, v in held.items() if isinstance(v, Tensor)}
        items = refilled_places(self.facts.state.effects)
        held |= {missing[p.name]: p.read() for p in items if p.name in missing}
        return tensors | {slot: v for slot, v in held.items() if type(v) in (int, float)}

    def _require_constant(self, leaves: Sequence[Any], written: Written, again: bool) -> None:
        """What the dry run took for constants, this run must: sizes are symbols here alone."""
        constant = [(o.path, v) for o, v in zip(self.facts.outputs, leaves, strict=True) if not o.is_dynamic]
        stored = written.numbers.keys() - self.facts.state.stores if not again else ()  # it is stored already, then
        varying = frozenset(path for path, value in constant if isinstance(value, (SymInt, SymFloat)))
        varying |= set(map(str, stored))
        if varying:
            raise VaryingNumbersError(varying)
        for _, value in constant:
            for size in value if isinstance(value, torch.Size) else ():
                operator.index(size)  # fixes it

    def _require_same_gradients(
        self, lineage: Lineage, seen: Mapping[Any, Any], before: Mapping[Any, Tensor | None]
    ) -> None:
        """What this run leaves as gradients, the dry run must have seen."""
        first = self.facts.first_of_same
        for slot, value in seen.items():
            given = first.get(slot, slot) in self.facts.gradients
            if isinstance(value, Tensor) and (given or is_leaf(value)):
                with without_function_modes():
                    now = lineage.gradient_of(value)
                found = None if now is before.get(slot) and not given else now is not None
                if found != self.facts.gradients.get(first.get(slot, slot)):
                    raise refusals.GRADIENT_IN_TWO_RUNS(slot, where=str(slot))

    def _require_known_writes(self, trace: Trace, slot_of: Mapping[int, Arg | Captured]) -> None:
        """What this run writes to, the dry run must have seen: else the write would be lost."""
        bases = {member: overlap.base for overlap in self.facts.overlap for member in overlap.base.of}
        for tensor, _ in trace.lineage.written(lambda t: id(t) in slot_of):
            slot = slot_of[id(tensor)]
            if not any((change := self.facts.change_of(s)) and change.data for s in (slot, bases.get(slot, slot))):
                raise refusals.WRITE_IN_TWO_RUNS(slot, where=str(slot))

    def _own(self, slot: Slot, value: Any) -> Any:
        """The value, or for a tensor that forward changes, one that may be changed; a leaf where it must be one."""
        if isinstance(value, Tensor) and self.facts.is_leaf(slot):
            own = copied(value).requires_grad_(value.requires_grad)
        elif slot in self.inverse.written:
            own = fresh(value)
        else:
            return value
        trace = active_trace()
        assert trace is not None
        trace.writes.keep_place(own)
        return own

    def _with_views(self, seen: Mapping[Any, Any], memory: Mapping[Slot, Tensor]) -> dict[Any, Any]:
        """What the function sees, where inputs that must be views in the trace, too, are views of their memory."""
        looked_at = dict(self.inverse.looks)
        slots = [
            slot
            for slot, value in memory.items()
            if slot not in looked_at and seen.get(slot) is value and self.facts.is_view(slot)
        ]
        with torch.enable_grad():
            views = {id(memory[slot]): take(memory[slot], (ALIAS,)) for slot in slots}
        return {slot: views.get(id(value), value) for slot, value in seen.items()}


def _stored_by(effects: Iterable[Effect]) -> dict[Stored, Callable[[], Any]]:
    """What effects store, and how to find that after a run."""
    return {slot: find for e in effects if isinstance(e, (Store, Grow, Refill)) for slot, find in e.stored()}


@contextlib.contextmanager
def _put(watch: Watch, values: Iterable[tuple[Place, Any]]) -> Iterator[None]:
    """Inside, these are in their places, until the function stores others there. What the ``watch`` meets there for the
    first time held what is put back."""
    held = [(place, place.read(), value) for place, value in values]
    for place, was, value in held:
        if not isinstance(was, Tensor):
            raise refusals.REBOUND_BEFORE_BACKWARD(place, where=str(place))
        place.write(value)
    try:
        yield
    finally:
        for place, was, value in held:
            if place.read() is not MISSING:  # else the function has taken it away, which is undone with all it did
                place.write(was)
            watch.held_before(place, value, was)


def _there(captured: CapturedTensor) -> Tensor:
    """The tensor that lives in its place: there may be none any more where the function runs once more."""
    if not isinstance(tensor := captured.read({}), Tensor):
        raise refusals.REBOUND_BEFORE_BACKWARD(captured.slot, where=str(captured.slot))
    return tensor


def kept_apart(stored: Any, splits: bool, lineage: Lineage) -> Any:
    """What a function stores under a gradient transform has no history that ends in the transform's own variables
    alone; what also depends on a tensor from outside that requires grad keeps its history, like a result."""
    if splits or not isinstance(stored, Tensor) or not has_history(stored):
        return stored
    is_outside = any(id(leaf) not in lineage.variables for leaf in leaves_below([stored]))
    return stored if is_outside and not lineage.frees_graph else stored.detach()


def _answers(facts: Facts, seen: Mapping[Any, Any]) -> dict[int, dict[str, Any]]:
    """What the dry run answered to questions, by the tensors that are asked now."""
    found: dict[int, dict[str, Any]] = {}
    for asked in facts.asked:
        if asked.again is not NotImplemented:
            found.setdefault(id(seen[asked.slot]), {})[asked.question] = asked.again
    return found


def _kind(output: OutputFact, sizes_vary: bool) -> tuple[Any, ...]:
    """What must be the same in both runs, and in a derivative at other sizes. How a view is taken may differ by a
    ``detach`` where only one run tracks gradients."""
    look = re.sub(r"[^\[,]+(?=[,\]])", "n", output.type) if sizes_vary else output.type
    return output.path, look, output.view and output.view.of


def _require_same_effects(watch: Watch, second: Sequence[Effect]) -> None:
    """A result that ``functools.lru_cache`` keeps is made by the first run alone, and what the second writes to it
    stays."""
    if any(cache.keeps_symbols for cache in watch.caches):
        raise NotSymbolicError("a functools.lru_cache keeps what it made by a number that is a symbol")
    first, cache = watch.first, watch.filled
    if first is not None and cache is not None and not same_effects(first, second):
        was, now = list(map(str, first)), list(map(str, second))
        effect = next((e for e in (*was, *now) if (e in was) != (e in now)), "in another order")
        raise refusals.FILLS_CACHE(effect, cache, where=cache)
    for name, written in watch.keeping_traced if second else ():  # nothing: forgotten after each run, it does all again
        if (own := next((e for e in second if not written.isdisjoint(re.findall(r"\w+", str(e)))), None)) is not None:
            raise refusals.FILLS_CACHE(own, name, where=name)


def _another_result(facts: Facts, outputs: Sequence[Any], sizes_vary: bool) -> FuncgradError:
    was, now = {o.path: o for o in facts.outputs}, {o.path: o for o in outputs}
    if was.keys() != now.keys():
        return refusals.STRUCTURE_IN_TWO_RUNS()
    path = next(p for p in was if _kind(was[p], sizes_vary) != _kind(now[p], sizes_vary))
    return refusals.RESULT_IN_TWO_RUNS(
        path, was[path].type, was[path] or "computed", now[path].type, now[path] or "computed"
    )


def inputs_of(inner: Inner, trace: Trace, reals: Sequence[Any], grad: bool) -> list[Any]:
    """A stand-in of the trace for each real value; a ``Symbolic`` becomes a symbol."""
    stand_ins: list[Any] = []
    paths = {slot.path for slot in inner.inputs.slots}
    for slot, real in zip(inner.signature.ins, reals, strict=True):
        if isinstance(real, Tensor):
            may_vary = isinstance(slot, Arg) or (isinstance(slot, Captured) and slot.name not in paths)
            dims = inner.inputs.sizes.get(str(slot), ()) if may_vary else ()
            stand_ins.append(trace.input(slot, real, grad and inner.facts.requires_grad(slot), dims))  # type: ignore[arg-type]
        else:
            assert isinstance(slot, (Arg, State))
            stand_ins.append(trace.symbolic_number(slot, real.value))
    return stand_ins
