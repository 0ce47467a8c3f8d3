"""What happens around a kernel: a list of statements, in the order in which they happen.

A layer says at which moment each of its statements takes place; a stack is one list, by moments. Whoever reads the list (the printer
of the call is one of them) decides about no order.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from attrs import evolve, frozen

from ..capture.views import View
from ..slots import Signature, Slot
from .effects import LAST, Effect, GoOn, Recipe, RequireGrad, SetGradient, Wrapped

if TYPE_CHECKING:
    from .layer import Layer


class Moment(enum.IntEnum):
    """When a statement takes place. Those of one moment follow the layers from outside, those of ``WRITES`` from inside."""

    INPUTS = enum.auto()
    """The kernel's inputs that are none of the call."""
    FIRST = enum.auto()
    """Nothing has come to require grad."""
    REQUIRED = enum.auto()
    """Inputs come to require grad."""
    BEFORE = enum.auto()
    """Views of inputs are taken that nothing has been written to."""
    VERSIONS = enum.auto()
    """Version counters are read, and those are moved which the kernel's saved values share."""
    KERNEL = enum.auto()
    WRAPPED = enum.auto()
    """What the kernel returned is put together."""
    RETURNED = enum.auto()
    """Views are taken of what the kernel returned."""
    WRITES = enum.auto()
    """The caller's tensors get what they hold in the end."""
    WRITTEN = enum.auto()
    """Views are taken of what inputs look like in the end."""
    GRADIENTS = enum.auto()
    """Inputs get gradients, which may be such views."""
    LAST = enum.auto()
    """Outputs become leaves, parameters, get gradients."""


@frozen
class Make:
    """``slot`` is what ``recipe`` makes."""

    slot: Slot
    recipe: Recipe

    def __str__(self) -> str:
        return f"{self.slot} = {self.recipe}"


@frozen
class Bump:
    """Version counters move on, as those of tensors do that are written to."""

    slots: tuple[Slot, ...]

    def __str__(self) -> str:
        return f"bump the versions of {', '.join(map(str, self.slots))}"


@frozen
class NoteVersions:
    """The version counters of inputs are read, before any is moved."""

    slots: tuple[Slot, ...]

    def __str__(self) -> str:
        return f"note the versions of {', '.join(map(str, self.slots))}"


@frozen
class Run:
    """The kernel runs, in contexts."""

    ins: tuple[Slot, ...]
    outs: tuple[Slot, ...]
    contexts: tuple[str, ...] = ()

    def __str__(self) -> str:
        outs, ins = (", ".join(map(str, slots)) for slots in (self.outs, self.ins))
        within = f" in {', '.join(self.contexts)}" if self.contexts else ""
        return f"{outs} = kernel({ins}){within}" if outs else f"kernel({ins}){within}"


@frozen
class Do:
    """An effect on a tensor of the caller's; ``quiet``: its version counter has been moved before."""

    effect: Effect
    quiet: bool = False

    def __str__(self) -> str:
        return str(self.effect)


Statement = Make | Bump | NoteVersions | Run | Do

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
