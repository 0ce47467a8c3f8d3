"""Facts: what one dry run of the function showed, before anything is compiled."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import torch
from attrs import evolve, frozen

from ..graph_primitives import Path, Read
from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..show.units import in_bytes
from ..slots import Arg, Base, Captured, Final, Input, NewGradient, NewMemory, Onward, Out, Rewritten, Slot, Stored
from ..slots import State as StateSlot
from ..state.places import Place
from ..state.said import is_read, shown
from ..state.state import State
from ..state.values import is_plain
from .floats import NotSymbolicError
from .inputs import CapturedTensor, GradientOf
from .memory import Overlap
from .outputs import OutputFact
from .questions import IS_VIEW, Asked
from .views import Given, Step

Source = Arg | Captured


@frozen
class Change:
    """What the function does to one input: ``data`` is how it writes to its memory (``"tracked"`` by autograd,
    ``"detached"``: with its version counter alone, ``"unversioned"``; None: not at all), ``restrides`` how it
    changes its sizes and strides."""

    data: str | None = None
    restrides: tuple[Step, ...] = ()
    in_backward: bool = False
    """Written to by the backward pass alone."""
    moved: bool = False
    """Its version counter moves though nothing is written (a view of it was restrided)."""

    def __str__(self) -> str:
        written = {
            None: "",
            "tracked": "written to",
            "detached": "written to under no_grad",
            "unversioned": "written to through .data",
        }
        late = "written to in backward" if self.in_backward else ""
        return ", ".join(
            filter(
                None, [written[self.data], late, *(f"{s.method}{str(s)[len(s.method) - 1 :]}" for s in self.restrides)]
            )
        )


@frozen
class BackwardCall:
    """A ``.backward()`` that goes on through the histories of inputs of the inner function, and whether it keeps the
    graph for another one.

    ``written``: the inputs whose version counters the function had moved by then.
    """

    slots: tuple[Input, ...]
    keeps_graph: bool
    written: tuple[Input, ...]


def naming(
    out_slot: Callable[[str], Slot], given: Iterable[NewMemory | Rewritten | NewGradient | Stored]
) -> Callable[[str], Slot]:
    """What names an output by its path, what inputs are given among them."""
    own: dict[str, Slot] = {str(slot): slot for slot in given}
    return lambda path: own[path] if path in own else out_slot(path)


def why_sizes_are_known(facts: Facts) -> str | None:
    """Where facts say how tensors lie in one another's memory, they are about these sizes alone."""
    if facts.subclasses or facts.stores or facts.needed_overlaps() or not all(map(facts.lie_anyhow, facts.neighbours)):
        return "inputs that share memory that is written to, or are wrapper subclasses, have sizes that are known"
    if any(change.restrides for change in facts.changes.values()):
        return "inputs that come to lie otherwise have sizes that are known"
    return None


def require_sizes_may_vary(facts: Facts) -> None:
    """``NotSymbolicError`` where they are known."""
    if (why := why_sizes_are_known(facts)) is not None:
        raise NotSymbolicError(why)


@frozen(eq=False, repr=False)
class Facts(Shown):
    """What the dry run showed.

    ``same`` and ``overlap`` say which inputs are one object or share memory, ``changes`` what the function does to them
    (an overlap changes as one), ``histories`` how autograd knows those it writes to.
    """

    inputs: tuple[tuple[Arg | StateSlot, str, bool], ...]
    captured: tuple[CapturedTensor, ...]
    same: tuple[tuple[Source, ...], ...]
    overlap: tuple[Overlap, ...]
    neighbours: tuple[tuple[Source, ...], ...]
    """Distinct inputs over one storage, whether or not they overlap."""
    changes: Mapping[Source | Base, Change]
    histories: Mapping[Source, str]
    outputs: tuple[OutputFact, ...]
    bases: tuple[Base, ...]
    """The intermediates that several outputs are views of; a gradient flows into each."""
    subclasses: tuple[Source, ...]
    """The inputs that are wrapper subclasses."""
    differentiable: bool
    """Whether a program must be differentiable: something it computes depends on an input that requires grad."""
    stores: Mapping[Source, Given]
    """The inputs that are given other memory, and how."""
    gradients: Mapping[Source, bool]
    """The inputs whose ``.grad`` is another in the end: a new tensor (True), or none."""
    gradless: tuple[Source, ...]
    """The inputs whose ``.grad`` the function asked for, or set: they have none before."""
    leaves: Mapping[Source, bool]
    """The inputs whose ``.grad`` the function asked for or set, and whether they are leaves: else, they are computed
    outside."""
    switches: Mapping[Source, tuple[bool, ...]]
    """The inputs for which the function called ``requires_grad_()``, and what leaves them as it does: ``True`` if
    they come to require grad, so that what is computed meanwhile has a history; ``False`` if they do not in the end."""
    draws: bool
    """Whether it draws random numbers that are made of a key (``rng="philox"``)."""
    asked: tuple[Asked, ...]
    """What it asked of inputs that decides nothing in a graph: whether they are leaves, views, parameters; their
    attributes."""
    state: State
    """What it reads of Python state, and what it writes to it."""
    numbers: tuple[tuple[StateSlot, Place], ...]
    """The numbers of Python state that are inputs, and where they live."""
    also: tuple[tuple[Place, Source], ...] = ()
    """Further places in which inputs live: each must hold the tensor that is read from the first."""
    apart: frozenset[int] = frozenset()
    """The identities of tensors that were met and are no inputs, where code compares objects, and of containers: no
    input is one of them."""
    apart_from: tuple[Place, ...] = ()
    """Where those live of which each call may find another one: no input is the one that it finds."""
    one: Mapping[str, str] = {}
    """The variables of containers among the arguments, each with that of the first that must be the same object;
    where code compares objects, the firsts, which must be several, with their own."""
    itself: Mapping[Arg, Captured] = {}
    """The arguments that Python state holds, too, where code compares objects, and the slots of what lives there: the
    function is given these very tensors."""
    backward_calls: tuple[BackwardCall, ...] = ()
    """What goes on through the histories of inputs, in order."""
    unrelated: Mapping[Source, tuple[Source, ...]] = {}
    """The inputs that were computed from none of these, with respect to which the function differentiates them."""
    follows: Mapping[Source, Source] = {}
    """The views among the inputs that come to require grad, to no end, when the input does that they are views of."""
    result_gradients: tuple[Out, ...] = ()
    """What the function made, returns, and has set the ``.grad`` of."""
    unlike_gradients: frozenset[Source | Out] = frozenset()
    """Those whose new gradient has other sizes, or another dtype, in the end than they have themselves."""
    untracked: frozenset[Source | Base] = frozenset()
    """What is written to with grad mode off, or through ``detach()``, each time: levels below hear of none."""
    generators: tuple[torch.Generator, ...] = ()
    """Those it names that are no default ones."""
    backward_writes: bool = False
    """Whether its backward pass writes to Python state, or prints: then that is compiled when it runs, as a call of its
    own."""
    reads: tuple[Read, ...] | None = None
    """The values of tensors that Python reads; None where it may read none."""
    opens: bool = False
    """Whether it returns objects of its own, which each call makes of their attributes."""
    has_custom_functions: bool = False
    """Whether it applies custom ``autograd.Function``s, whose backward may ask for autocast."""
    hooks: tuple[object, ...] | None = None
    """What hooks on tensors close over, where these write to Python state: they run as they are."""

    @property
    def given(self) -> tuple[NewMemory | Rewritten | NewGradient | Stored, ...]:
        """What Python state and inputs are given: the last of ``outputs``, in the order in which layers add them."""
        gradients = (NewGradient(slot) for slot, is_new in self.gradients.items() if is_new)
        made = map(NewGradient, self.result_gradients)
        rewritten = (Rewritten(slot) for slot, given in self.stores.items() if given.tracked)
        return (*self.state.stores, *gradients, *made, *map(NewMemory, self.stores), *rewritten)

    @property
    def onward(self) -> tuple[Onward, ...]:
        """The gradients that are handed on to the histories of inputs."""
        return tuple(Onward(slot, i) for i, call in enumerate(self.backward_calls) for slot in call.slots)

    @property
    def returned(self) -> tuple[OutputFact, ...]:
        """The outputs that are leaves of the function's result."""
        return self.outputs[: len(self.outputs) - len(self.given)]

    @property
    def path(self) -> Path | None:
        """What Python reads of values, in order."""
        return None if self.reads is None else tuple(read.value for read in self.reads)

    @property
    def symbols(self) -> frozenset[str]:
        """The names of numbers of Python state that are inputs."""
        return frozenset(slot.path for slot, _ in self.numbers)

    def assumed(self) -> list[tuple[str, str]]:
        """The plain values that are taken for granted of the Python state that the function reads."""
        read = (guard for guard in self.state.guards if is_read(guard) and is_plain(guard.value))
        return [(str(guard.place), shown(guard)) for guard in read]

    def is_leaf(self, slot: Slot) -> bool:
        """Whether the function does to an input what can only be done to a leaf, so that it must be one in the
        trace."""
        if isinstance(slot, Base):
            return self.leaf_below(slot) is not None
        had = any(isinstance(c.origin, GradientOf) and c.origin.slot == slot for c in self.captured)
        changed = self.change_of(slot) is not None or any(slot in o.alone for o in self.needed_overlaps())
        asked = slot in self.gradients or (slot in self.gradless and changed)
        return had or slot in self.switches or slot in self.follows or (asked and self.leaves[slot])  # type: ignore[index]

    def leaf_below(self, base: Base) -> Slot | None:
        """The input that is the base of others, if it must be a leaf in the trace."""
        own = next((o.itself for o in self.overlap if o.base == base), None)
        return own if own is not None and self.is_leaf(own) else None

    def is_view(self, slot: Slot) -> bool:
        """Whether an input must be a view in the trace, too: one that is written to by a function that runs a
        backward pass, which the history of a view that was written to does not outlive; one that comes to require
        grad, where what it is a view of does not; or one that requires grad as soon as its base does."""
        change = self.change_of(slot)
        matters = slot in self.switches or (change is not None and change.data == "tracked")
        return slot in self.follows or (
            matters and any(a.slot == slot and a.question == IS_VIEW and a.answer for a in self.asked)
        )

    def released(self) -> Facts:
        """The same, without the captured tensors that can be read from where they live: what a program keeps."""
        return evolve(
            self,
            captured=tuple(
                evolve(c, tensor=None) if isinstance(c.origin, (GradientOf, Place)) else c for c in self.captured
            ),
        )

    def requires_grad(self, slot: Slot) -> bool:
        """Whether an input requires grad; a base: whether one of those that share it does, if it is what they are
        views of."""
        if isinstance(slot, Base):
            plain = any(o.base == slot and o.families for o in self.overlap)
            return not plain and any(map(self.requires_grad, slot.of))
        return any(s == slot and grad for s, _, grad in self.inputs) or any(
            c.slot == slot and c.requires_grad for c in self.captured
        )

    def change_of(self, slot: Slot) -> Change | None:
        """What the function does to an input, if anything."""
        return next((change for changed, change in self.changes.items() if changed == slot), None)

    def tracks(self, slot: Slot) -> bool:
        """Whether a gradient may come in for an output: what is written under no_grad passes none on."""
        return not isinstance(slot, Final) or self.changes[slot.of].data == "tracked"  # type: ignore[index]

    def shares_memory(self, slot: Slot) -> bool:
        """Whether an input that is not written to lives in the memory of one that is, elsewhere: they share a
        version counter."""
        own = set(slot.of) if isinstance(slot, Base) else {slot}
        return any(own & set(group) and set(group) - own for group in self.neighbours)

    def lie_anyhow(self, group: Collection[Source]) -> bool:
        """Whether it does not matter where in one memory these inputs lie: nothing is written there, nor done to what
        autograd knows of them."""
        done = {*self.changes, *self.stores, *self.gradients, *self.leaves, *self.switches, *self.follows}
        bases = {overlap.base for overlap in self.overlap if not set(group).isdisjoint(overlap.base.of)}
        return not (done.intersection(group) or bases & done or self.backward_calls)

    @property
    def first_of_same(self) -> dict[Source, Source]:
        """Of the inputs that are one object with an earlier one, which that is."""
        return {slot: group[0] for group in self.same for slot in group[1:]}

    def needed_overlaps(self) -> list[Overlap]:
        """The overlaps that are written to, and so go in as one tensor."""
        return [o for o in self.overlap if o.base in self.changes]

    def goes_in_as(self, slot: Slot) -> Slot:
        """The inner input with the version counter of an outer one."""
        for overlap in self.needed_overlaps():
            if slot in overlap.base.of:
                own = next((f.slot for f in overlap.families if slot in dict(f.views)), overlap.base)
                return own if own in (overlap.base, *self.carriers(overlap)) else overlap.base
        return slot

    def carriers(self, overlap: Overlap) -> list[Slot]:
        """The inputs that go in for the history of a family: of those that require grad, or are written to with a
        version counter."""
        return [f.slot for f in overlap.families if self.requires_grad(f.slot) or f.slot in self.changes]

    def doc(self) -> Doc:
        kinds: dict[Source, str] = {slot: "requires grad" if grad else "" for slot, _, grad in self.inputs}  # type: ignore[misc]
        kinds |= {c.slot: "captured" + (", requires grad" if c.requires_grad else "") for c in self.captured}
        types: dict[Source, str] = {slot: kind for slot, kind, _ in self.inputs} | {
            c.slot: c.type for c in self.captured
        }  # type: ignore[assignment]
        rows = tuple(
            (str(s), types[s], ", ".join(filter(None, [kinds[s], str(self.changes.get(s, ""))]))) for s in kinds
        )
        outs = tuple((f"out{o.path}", o.type, str(o)) for o in self.returned)
        outs += tuple((o.path, o.type, str(o)) for o in self.outputs[len(self.returned) :])
        parts: list[Table] = [Table(("input", "", ""), rows, "inputs"), Table(("output", "", ""), outs, "outputs")]
        shared = [(" is ".join(map(str, group)), "one object") for group in self.same]
        shared += [
            (str(o.base), f"overlap; the base has {in_bytes(o.base_bytes)}, they {in_bytes(o.member_bytes)}")
            for o in self.overlap
        ]
        parts += [Table(("memory", ""), tuple(shared), "memory")] if shared else []
        return Doc(f"facts: {len(rows)} inputs, {len(outs)} outputs", tuple(parts))
