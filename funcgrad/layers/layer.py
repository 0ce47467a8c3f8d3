"""A layer is data: one sentence about every inner call, and what must happen around the kernel for it to be true.

``outer`` and ``inner`` are signatures over slots. ``makes`` says how the inner inputs that are no outer ones are made,
``looks`` what the outer ones that are no inner ones are within the kernel, ``effects`` what happens to the caller's
tensors when the kernel has run, ``recover`` how outer outputs are had from inner ones. A stack of layers is one list of
statements (``statements_of``), which is printed as one flat function (``printing.py``), or read the other way
(``inverse.py``). Layers compose as decorators: ``layer(kernel)`` puts the statements of one layer around those that
stand around the kernel already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from ..capture.views import View
from ..show.parts import Doc, Table, Text
from ..show.shown import Shown
from ..slots import NewMemory, Signature, Slot
from ..source import compile_function
from .effects import LAST, Effect, GoOn, Recipe, RequireGrad, SetGradient, SetStorage, Wrapped
from .printing import print_wrapper
from .statements import FROM_INSIDE, Bump, Do, Make, Moment, NoteVersions, Run, Statement, Within


@frozen(eq=False, repr=False)
class Layer(Shown):
    """See the module's docstring. ``context``: Python entered around the kernel.

    ``version_bumps``: inputs whose version counters move on before the kernel saves anything for backward, and by no
    effect: what it saves may share these counters. ``bumps_within``: the kernel moves them itself.
    """

    name: str
    sentence: str
    outer: Signature
    inner: Signature
    makes: Mapping[Slot, Recipe] = {}
    looks: tuple[tuple[Slot, View], ...] = ()
    recover: Mapping[Slot, Recipe] = {}
    effects: tuple[Effect, ...] = ()
    context: str = ""
    version_bumps: tuple[Slot, ...] = ()
    bumps_within: bool = False

    def __call__(self, kernel: Callable[..., Sequence[Any]]) -> Callable[..., tuple[Any, ...]]:
        """The kernel with this layer around it: takes the outer inputs, returns the outer outputs."""
        return wrap((self,), self.outer, kernel)

    def boxed(self, kernel: Callable[[list[Any]], Sequence[Any]]) -> Callable[[list[Any]], tuple[Any, ...]]:
        """The same for a kernel that takes its inputs in a list, and empties it: so does the result."""
        return wrap((self,), self.outer, kernel, is_boxed=True)

    def doc(self) -> Doc:
        rows = [(str(slot), f"= {recipe}") for slot, recipe in self.makes.items()]
        rows += [(str(slot), f"= {recipe}") for slot, recipe in (*self.looks, *self.recover.items())]
        rows += [("afterwards", str(effect)) for effect in self.effects]
        rows += [("around", self.context)] if self.context else []
        signature = Text(f"outer {self.outer}\ninner {self.inner}")
        return Doc(
            f"layer {self.name}", (Text(self.sentence), signature, *((Table(("", ""), tuple(rows)),) if rows else ()))
        )


def replaced(
    signature: Signature, *, ins: tuple[Slot, ...] | None = None, outs: tuple[Slot, ...] | None = None
) -> Signature:
    """The same signature with other inputs or outputs."""
    return Signature(signature.ins if ins is None else ins, signature.outs if outs is None else outs)


def wrap(
    layers: Sequence[Layer], outer: Signature, kernel: Callable[..., Any], is_boxed: bool = False
) -> Callable[..., Any]:
    """``kernel`` with layers around it (``print_wrapper``); with those around it already, where it has some, as one
    stack."""
    within, kernel = getattr(kernel, "wrapped", ((), kernel))
    layers = (*layers, *within)
    function: Any = compile_function(print_wrapper(statements_of(layers, outer), outer, kernel, is_boxed))
    function.wrapped = layers, kernel
    return function  # type: ignore[no-any-return]


_MOMENT_OF = {"first": Moment.FIRST, "before": Moment.BEFORE, "after": Moment.WRITES}


def statements_of(layers: Sequence[Layer], outer: Signature) -> tuple[Statement, ...]:
    """All that happens in a call with these layers, outermost first."""
    found: dict[Moment, list[Statement]] = {moment: [] for moment in Moment}
    quiet = {slot for layer in layers for slot in layer.version_bumps}
    for layer in layers:
        own: dict[Moment, list[Statement]] = {moment: [] for moment in Moment}
        for moment, statement in _of_layer(layer, outer, quiet):
            own[moment].append(statement)
        for moment, statements in own.items():
            found[moment] = statements + found[moment] if moment in FROM_INSIDE else found[moment] + statements
    moved = {slot for layer in layers if not layer.bumps_within for slot in layer.version_bumps}
    if moved:
        found[Moment.VERSIONS].append(Bump(_sorted(moved)))
    for moment in (Moment.RETURNED, Moment.WRITTEN):
        found[moment] += _bumps(found[moment])
    inner = layers[-1].inner if layers else outer
    found[Moment.KERNEL].append(Run(inner.ins, inner.outs, tuple(layer.context for layer in layers if layer.context)))
    return tuple(statement for moment in Moment for statement in found[moment])


def _of_layer(layer: Layer, outer: Signature, quiet: set[Slot]) -> Iterator[tuple[Moment, Statement]]:
    for slot, recipe in layer.makes.items():
        yield Moment.INPUTS, Make(slot, recipe)
    for slot, look in layer.looks:
        yield Moment.WITHIN, Within(slot, look)
    if any(isinstance(effect, GoOn) for effect in layer.effects):
        yield Moment.VERSIONS, NoteVersions(layer.inner.ins)
    for slot, recipe in layer.recover.items():
        if isinstance(recipe, Wrapped):
            yield Moment.WRAPPED, Make(slot, recipe)
    for slot in layer.outer.outs:
        recipe = layer.recover.get(slot)  # type: ignore[assignment]
        if isinstance(recipe, View):
            yield from _views(slot, recipe, outer)
    given = {effect.target for effect in layer.effects if isinstance(effect, SetStorage)}
    for effect in layer.effects:
        if isinstance(effect, RequireGrad) and effect.on and effect.target in outer.ins:
            yield Moment.REQUIRED, Do(effect)  # before the kernel runs, so that what that computes has a history
        elif isinstance(effect, LAST):
            yield Moment.LAST, Do(effect)
        elif isinstance(effect, SetGradient):
            yield Moment.GRADIENTS if effect.target in outer.ins else Moment.LAST, Do(effect)
        elif isinstance(effect, SetStorage) or effect.target in given:
            yield Moment.GIVEN, Do(effect, effect.target in quiet)
        else:
            yield Moment.WRITES, Do(effect, effect.target in quiet)


def _views(slot: Slot, view: View, outer: Signature) -> Iterator[tuple[Moment, Make]]:
    """A view of what the caller has; its last steps may be taken later than the others, but before an input is given
    what they make."""
    in_the_end = Moment.LOOKED if isinstance(slot, NewMemory) else Moment.WRITTEN
    moment = in_the_end if view.when == "last" else _MOMENT_OF[view.when]
    if moment is Moment.BEFORE and view.of not in outer.ins:
        moment = Moment.RETURNED
    yield moment, Make(slot, evolve(view, steps=view.steps[: len(view.steps) - view.late]))
    if view.late:
        yield in_the_end, Make(slot, View(slot, view.steps[-view.late :]))


def _bumps(made: Sequence[Statement]) -> list[Statement]:
    """After views that autograd forbids to use, the counters of what they are views of."""
    stale = {s.recipe.of for s in made if isinstance(s, Make) and isinstance(s.recipe, View) and s.recipe.stale}
    return [Bump(_sorted(stale))] if stale else []


def _sorted(slots: set[Slot]) -> tuple[Slot, ...]:
    return tuple(sorted(slots, key=str))
