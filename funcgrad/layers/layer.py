"""A layer is data: one sentence about every inner call, and what must happen around the kernel for it to be true.

``outer`` and ``inner`` are signatures over slots. ``makes`` says how the inner inputs that are no outer ones are made,
``effects`` what happens to the caller's tensors when the kernel has run, ``recover`` how outer inputs (in the trace) and
outer outputs (in the call) are had from inner ones. A stack of layers is one list of statements (``statements_of``), which is
printed as one flat function (``printing.py``); ``layer(kernel)`` prints and builds that function for one layer alone, so that
layers also compose as decorators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NewType

from attrs import evolve, frozen

from ..capture.views import View
from ..show.parts import Doc, Table, Text
from ..show.shown import Shown
from ..slots import Signature, Slot
from ..source import compile_function
from .effects import LAST, Effect, GoOn, Recipe, RequireGrad, SetGradient, Wrapped
from .printing import print_wrapper
from .statements import Bump, Do, Make, Moment, NoteVersions, Run, Statement

OuterIndex = NewType("OuterIndex", int)
"""The position of a value in a layer's outer signature."""

InnerIndex = NewType("InnerIndex", int)
"""The position of a value in a layer's inner signature: never where an ``OuterIndex`` is asked for (checked by type)."""


@frozen(eq=False, repr=False)
class Layer(Shown):
    """See the module's docstring. ``context``: Python entered around the kernel.

    ``version_bumps``: inputs whose version counters the kernel moves on, before it saves anything for backward, and no effect does: what
    it saves may share these counters.
    """

    name: str
    sentence: str
    outer: Signature
    inner: Signature
    makes: Mapping[Slot, Recipe] = {}
    recover: Mapping[Slot, Recipe] = {}
    effects: tuple[Effect, ...] = ()
    context: str = ""
    version_bumps: tuple[Slot, ...] = ()

    def outer_index(self, slot: Slot) -> OuterIndex:
        """Where an input stands in the outer signature."""
        return OuterIndex(self.outer.ins.index(slot))

    def inner_index(self, slot: Slot) -> InnerIndex:
        """Where an input stands in the inner signature."""
        return InnerIndex(self.inner.ins.index(slot))

    def inner_of(self, index: OuterIndex) -> InnerIndex | None:
        """Where the inner call has the value of an outer input: under its own slot, or as the one it is recovered from."""
        slot: Slot = self.outer.ins[index]
        while slot in self.recover and isinstance(recipe := self.recover[slot], View):
            slot = recipe.of
        return self.inner_index(slot) if slot in self.inner.ins else None

    def __call__(self, kernel: Callable[..., Sequence[Any]]) -> Callable[..., tuple[Any, ...]]:
        """The kernel with this layer around it: takes the outer inputs, returns the outer outputs."""
        return wrap((self,), self.outer, kernel)

    def boxed(self, kernel: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The same for a kernel that takes its inputs in a list, and empties it: so does the result."""
        return wrap((self,), self.outer, kernel, is_boxed=True)

    def doc(self) -> Doc:
        rows = [(str(slot), f"= {recipe}") for slot, recipe in self.makes.items()]
        rows += [(str(slot), f"= {recipe}") for slot, recipe in self.recover.items()]
        rows += [("afterwards", str(effect)) for effect in self.effects]
        rows += [("around", self.context)] if self.context else []
        signature = Text(f"outer {self.outer}\ninner {self.inner}")
        return Doc(f"layer {self.name}", (Text(self.sentence), signature, *((Table(("", ""), tuple(rows)),) if rows else ())))


def replaced(signature: Signature, *, ins: tuple[Slot, ...] | None = None, outs: tuple[Slot, ...] | None = None) -> Signature:
    """The same signature with other inputs or outputs."""
    return Signature(signature.ins if ins is None else ins, signature.outs if outs is None else outs)


def wrap(layers: Sequence[Layer], outer: Signature, kernel: Callable[..., Any], is_boxed: bool = False) -> Callable[..., Any]:
    """``kernel`` with layers around it (``print_wrapper``)."""
    function: Callable[..., Any] = compile_function(print_wrapper(statements_of(layers, outer), outer, kernel, is_boxed))
    return function


_MOMENT_OF = {"first": Moment.FIRST, "before": Moment.BEFORE, "after": Moment.WRITES, "last": Moment.WRITTEN}


def statements_of(layers: Sequence[Layer], outer: Signature, bumps_inside: bool = False) -> tuple[Statement, ...]:
    """All that happens in a call with these layers, outermost first. ``bumps_inside``: the kernel moves version counters itself."""
    found: dict[Moment, list[Statement]] = {moment: [] for moment in Moment}
    quiet = {slot for layer in layers for slot in layer.version_bumps}
    writes: list[Statement] = []
    for layer in layers:
        own: list[Statement] = []
        for moment, statement in _of_layer(layer, outer, quiet):
            (own if moment is Moment.WRITES else found[moment]).append(statement)
        writes = own + writes  # from inside
    found[Moment.WRITES] = writes
    if quiet and not bumps_inside:
        found[Moment.VERSIONS].append(Bump(_sorted(quiet)))
    for moment in (Moment.RETURNED, Moment.WRITTEN):
        found[moment] += _bumps(found[moment])
    inner = layers[-1].inner if layers else outer
    found[Moment.KERNEL].append(Run(inner.ins, inner.outs, tuple(layer.context for layer in layers if layer.context)))
    return tuple(statement for moment in Moment for statement in found[moment])


def _of_layer(layer: Layer, outer: Signature, quiet: set[Slot]) -> Iterator[tuple[Moment, Statement]]:
    for slot, recipe in layer.makes.items():
        yield Moment.INPUTS, Make(slot, recipe)
    if any(isinstance(effect, GoOn) for effect in layer.effects):
        yield Moment.VERSIONS, NoteVersions(layer.inner.ins)
    for slot, recipe in layer.recover.items():
        if isinstance(recipe, Wrapped):
            yield Moment.WRAPPED, Make(slot, recipe)
    for slot in layer.outer.outs:
        recipe = layer.recover.get(slot)  # type: ignore[assignment]
        if isinstance(recipe, View):
            yield from _views(slot, recipe, outer)
    for effect in layer.effects:
        if isinstance(effect, RequireGrad) and effect.on and effect.target in outer.ins:
            yield Moment.REQUIRED, Do(effect)  # before the kernel runs, so that what that computes has a history
        elif isinstance(effect, LAST):
            yield Moment.LAST, Do(effect)
        elif isinstance(effect, SetGradient):
            yield Moment.GRADIENTS, Do(effect)
        else:
            yield Moment.WRITES, Do(effect, effect.target in quiet)


def _views(slot: Slot, view: View, outer: Signature) -> Iterator[tuple[Moment, Make]]:
    """A view of what the caller has; its last steps may be taken later than the others."""
    moment = _MOMENT_OF[view.when]
    if moment is Moment.BEFORE and view.of not in outer.ins:
        moment = Moment.RETURNED
    yield moment, Make(slot, evolve(view, steps=view.steps[: len(view.steps) - view.late]))
    if view.late:
        yield Moment.WRITTEN, Make(slot, View(slot, view.steps[-view.late :]))


def _bumps(made: Sequence[Statement]) -> list[Statement]:
    """After views that autograd forbids to use, the counters of what they are views of."""
    stale = {s.recipe.of for s in made if isinstance(s, Make) and isinstance(s.recipe, View) and s.recipe.stale}
    return [Bump(_sorted(stale))] if stale else []


def _sorted(slots: set[Slot]) -> tuple[Slot, ...]:
    return tuple(sorted(slots, key=str))
