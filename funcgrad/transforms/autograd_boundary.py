"""The halves of a program as a differentiable call, and the inner function as a pure one, which transforms apply to."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from attrs import evolve
from torch import Tensor, fx

from .. import refusals
from ..backends.backend import Runnable
from ..capture.autocast import autocast_as
from ..capture.inner import Inner
from ..capture.inputs import CapturedTensor
from ..executable import Executable, compile_narrowed
from ..generators import Drawn
from ..graph_primitives import require_of_autograd
from ..graphs import (
    Graph,
    bodies_of,
    copy_nodes,
    drawn_from,
    has_effect,
    is_path_check,
    is_random,
    is_view,
    pass_of,
    restrict,
    storage_map,
    value_of,
)
from ..joint import Joint
from ..layers.layer import Layer
from ..layers.subclass import subclass
from ..options import Options
from ..passes.traced_passes import TracedPasses, of_pass
from ..runtime.captured import CapturedCall
from ..runtime.cotangents import CotangentLayout, Outline
from ..runtime.execute import Differentiable
from ..runtime.halves import Half
from ..runtime.late_state import LateState
from ..runtime.other_memory import Variables
from ..slots import Cotangent, Final, Grad, Late, NewMemory, Saved, Seed, Slot, inner_path, outer_slot
from ..state.places import Place
from ..state.state import as_it_was
from ..subclasses import Wrapping
from ..torch_private.operators import generator_id
from ..walks import reached
from .definition import Pullback, name_of
from .programs import Programs
from .pure import HalfAlone, Pure, require_repeatable

_BATCH_NORM = torch.ops.aten._native_batch_norm_legit_functional.default


def _over_saved(forward: Graph) -> set[Slot]:
    """The outputs that look at memory of what is saved, and are not what is saved: autograd does not know that they
    do."""
    lies, results = storage_map(forward), forward.computed
    saved = {node.name for slot, node in results if isinstance(slot, Saved)}
    places = {place for name in saved for place in lies[name].values()}
    return {slot for slot, node in results if node.name not in saved and places & set(lies[node.name].values())}


def differentiable(
    found: CapturedCall, made: Executable, pullback: Programs, active: Sequence[Slot], options: Options
) -> Differentiable:
    """The program as an autograd Function of its flat inputs; ``pullback`` is compiled when a derivative of it is
    asked for. ``active``: the outputs an incoming gradient is expected for."""
    inner, joint, graphs, autocast = found.inner, made.joint, made.graphs, found.key.ambient.autocast
    before = [slot for layer in found.layers for slot in layer.version_bumps]
    ins, outs = inner.signature.ins, inner.signature.outs
    wrapped = [subclass(graph.signature, joint.wrappings) for graph in graphs]
    runnables = [_in_layer(layer, graph, r) for layer, graph, r in zip(wrapped, graphs, made.runnables, strict=True)]
    backward = None
    if len(graphs) == 2:
        backward = graphs[1].signature if wrapped[1] is None else wrapped[1].outer
    needed = _needed(inner, joint, graphs)
    over_saved = _over_saved(graphs[0]) if backward else set()
    same, late = inner.facts.first_of_same, inner.facts.state.late
    reads_late = isinstance(inner.definition, Pullback) and inner.definition.reads_late
    restrided = {slot: change.restrides for slot, change in inner.facts.changes.items() if change.restrides}
    changed = restrided.keys() | inner.facts.stores.keys()
    apart = {slot: () for slot in inner.facts.stores if slot in ins and backward and Grad(slot) not in backward.outs}
    read_again, kept_for = {slot for slot, _ in late.tensors}, needed - late.alone

    def derivative(
        given: Sequence[Any], values: Sequence[Any], incoming: Sequence[Tensor | None]
    ) -> Sequence[Tensor | None]:
        """Runs the function again, so what it closes over must be what it was."""
        differentiated = "the backward pass that is differentiated (create_graph=True)"
        leaf = next((slot for slot in ins if inner.facts.is_leaf(slot)), None)
        if leaf is not None:
            raise refusals.SECOND_DERIVATIVE_OF_GRADIENT(leaf, where=differentiated)
        if inner.facts.onward:
            raise refusals.SECOND_DERIVATIVE_ONWARD(inner.facts.onward[0].of, where=differentiated)
        require_repeatable(joint.graph, both=len(graphs) == 1)
        values_then = dict(zip(ins, given, strict=True))
        # an argument that lives in Python state may be read there again
        slots = [(c, same.get(c.slot, c.slot) if reads_late else c.slot) for c in inner.facts.captured]
        own = [(c, values_then[slot]) for c, slot in slots if slot in values_then and slot in kept_for]
        # what forward read may be gone by now: then nothing can be put in its place
        kept = [(c, then) for c, then in own if c.slot not in read_again]
        rebound = [(now, then) for c, then in kept if then is not None and (now := c.read({})) is not then]
        places = [c.origin for c, _ in kept if isinstance(c.origin, Place)]
        with autocast_as(autocast), as_it_was(inner.facts.state, rebound, places):
            _require_as_they_were(own, read_again)
            if reads_late:
                _require_where_they_were(inner, values_then, read_again)
            return pullback(tuple(values), tuple(incoming))  # type: ignore[no-any-return]

    def narrowed(absent: frozenset[Slot], unasked: frozenset[Slot]) -> Half:
        assert passes is not None
        graph = passes.half(absent, unasked)
        layer = subclass(graph.signature, _wrappings(joint, joint.told.traced_for(absent)))
        signature = graph.signature if layer is None else layer.outer
        return Half.of(_in_layer(layer, graph, compile_narrowed(graph, joint, options)), signature.outs, ins, graph)

    passes = _passes(made) if len(graphs) == 2 else None
    copied = {slot for slot in needed if Final(slot) in outs or slot in changed}
    followed = needed - copied - changed - joint.wrappings.keys()
    variables = Variables.of(found.joint.graph, graphs, followed, is_plain=not joint.wrappings)
    layouts = dict(zip(active, _cotangents(joint, active), strict=True))
    return Differentiable(
        forward=runnables[0],
        backward=None if backward is None else Half.of(runnables[1], backward.outs, ins, graphs[1]),
        narrowed=narrowed,
        ins=ins,
        outs=outs,
        backward_ins=backward.ins if backward else (),
        gives=() if passes is None else tuple(dict.fromkeys(map(outer_slot, passes.outs))),
        cotangents=layouts,
        together={slot: joint.together[slot] for slot in active} if joint.together else {},
        reached=joint.reached,
        arrivals=joint.arrivals,
        through=joint.through,
        has_effects=passes is not None and _has_effects(passes.graph),
        pullback=derivative,
        mapped=None if backward is None or joint.wrappings else _mapped(graphs[1], pullback, found.root),
        requires_grad=[slot for slot in ins if inner.facts.requires_grad(slot)],  # type: ignore[arg-type]
        needed=needed,
        copied=copied,
        restrided=changed,
        unnoticed={
            s: steps for s, steps in (restrided | apart).items() if s in ins and not any(step.tracked for step in steps)
        },
        watched=_watched(inner, joint, graphs, before) | dict.fromkeys(over_saved, 0),
        bumps=list(dict.fromkeys(map(inner.facts.goes_in_as, before))),
        wrappings=joint.wrappings,
        refused=found.refused,
        draws=_draws(graphs[0], inner),
        name=name_of(found.root),
        passes=passes,
        variables=variables,
        late=LateState.of(inner.facts.state.late, ins) if inner.splits else None,
        why_apart=_why_apart(found, made, options),
    )


def _mapped(
    backward: Graph, pullback: Programs, root: Callable[..., Any]
) -> Callable[[Graph], Callable[[list[Any]], Sequence[Any]]] | None:
    """What runs a backward half, or what is narrowed of it, under a vmap; None for one that does more than compute."""

    def mapped(graph: Graph) -> Callable[[list[Any]], Sequence[Any]]:
        half = pullback.derived(
            ("mapped", graph), lambda: HalfAlone(root=root, graph=_at_level(graph)), of_results=True
        )
        return lambda values: half(*values)  # type: ignore[no-any-return]

    return None if _has_effects(backward, {require_of_autograd}) else mapped


def _passes(made: Executable) -> TracedPasses:
    """What was traced of backward; where that is one pass, the half itself, in the order in which it runs."""
    half, told = made.graphs[1], made.joint.told
    of_all = evolve(made.partition.backward, is_boxed=half.is_boxed, handed_over=half.handed_over)
    return TracedPasses(of_all if told else half, told)


def _wrappings(joint: Joint, absent: frozenset[Slot]) -> dict[Slot, Wrapping]:
    """How wrapper subclasses are made in the pass that was traced without these."""
    return {own: w for slot, w in joint.wrappings.items() if (own := of_pass(slot, absent) or slot)}


def _has_effects(graph: Graph, besides: Collection[Any] = ()) -> bool:
    """Whether a backward half writes, or does what Python may hear of, ``besides`` calls of these."""
    calls = (node for node in graph.fx.nodes if node.target not in besides)
    return any(isinstance(slot, Final) for slot in graph.signature.outs) or any(map(has_effect, calls))


def _require_as_they_were(own: Sequence[tuple[CapturedTensor, Any]], read_again: Collection[Slot]) -> None:
    """Raise ``TraceError`` where a captured tensor is not the one that forward read. Where backward reads it again,
    the forward pass that runs once more takes whatever stands in its place for it."""
    now = [captured.read({}) for captured, _ in own]
    for (captured, then), other in zip(own, now, strict=True):
        is_known = captured.slot in read_again and isinstance(other, Tensor) and sum(v is other for v in now) == 1
        if other is not then and not is_known:
            raise refusals.REBOUND_BEFORE_BACKWARD(captured.slot, where=str(captured.slot))


def _require_where_they_were(inner: Inner, given: Mapping[Any, Any], read_again: Collection[Slot]) -> None:
    """Raise ``TraceError`` where Python state holds another tensor than the input that was there as well."""
    for place, slot in inner.facts.also:
        if slot in given and slot not in read_again and place.read() is not given[slot]:
            raise refusals.REBOUND_BEFORE_BACKWARD(place, where=str(place))


def _why_apart(found: CapturedCall, made: Executable, options: Options) -> str | None:
    """Why the graph of the backward half may not be copied into that of a larger backward pass; None where it may."""
    if options.numerics == "eager":
        return 'is compiled with numerics="eager", which other kernels would not keep'
    if options.memory_budget is not None:
        return "has a memory_budget of its own"
    if found.refused is not None:
        return "cannot be differentiated"
    if len(made.graphs) != 2:
        return "is itself a gradient"
    backward = made.graphs[1]
    if any(isinstance(slot, Final) and inner_path(slot) for slot in backward.signature.outs):
        return "writes to wrapper subclasses in its backward pass"
    if any(map(is_path_check, backward.fx.nodes)):
        return "reads values in its backward pass"
    for slot, node in backward.given:
        value = value_of(node)
        if not isinstance(value, (Tensor, int, float, torch.SymInt, torch.SymFloat)) or isinstance(value, bool):
            return f"saves {slot}, a {type(value).__name__}"
        if isinstance(slot, Late) and isinstance(value, Tensor) and value.clone().stride() != value.stride():
            return f"reads {slot}, which does not lie densely"
    if made.joint.sizes is not None and any(bodies_of(node) for node in backward.fx.nodes):
        return "has control flow over sizes that vary"
    return None


def _draws(graph: Graph, inner: Inner) -> tuple[Drawn, ...]:
    """What a graph draws from; but for generators that the function makes, which begin anew when it runs again."""
    outside = {generator_id(g) for g in inner.facts.generators}
    found: dict[object, Drawn] = {}
    for node in filter(is_random, graph.fx.nodes):
        for of in drawn_from(node):
            if not isinstance(of, torch.Generator):
                found[of] = of
            elif generator_id(of) in outside:
                found[generator_id(of)] = of
    return tuple(found.values())


def _in_layer(layer: Layer | None, graph: Graph, runnable: Runnable) -> Runnable:
    """A half with the subclass layer around it; one that takes a list still does."""
    if layer is None:
        return runnable
    return layer.boxed(runnable) if graph.is_boxed else layer(runnable)


def _cotangents(joint: Joint, active: Sequence[Slot]) -> tuple[CotangentLayout, ...]:
    """How the incoming gradient of each of these outputs is made and laid out: as traced, or (not traced yet) as the
    output is."""
    slots = (*joint.signature.outs, *joint.signature.ins)
    values = zip(slots, (*joint.graph.results, *joint.graph.placeholders), strict=True)
    inner: dict[Slot, list[Outline]] = {}
    for slot, node in values:
        if isinstance(node, fx.Node) and isinstance(value_of(node), Tensor):
            inner.setdefault(outer_slot(slot), []).append(Outline.of(value_of(node)))
    like = [Cotangent(slot) if Cotangent(slot) in inner else slot for slot in active]
    return tuple(CotangentLayout(joint.wrappings.get(slot), tuple(inner[slot])) for slot in like)


def _needed(inner: Inner, joint: Joint, graphs: Sequence[Graph]) -> set[Slot]:
    """The inputs whose values a second derivative may need: those that backward reads itself, and those from which
    anything but incoming gradients is computed that a gradient depends on, or that has an effect (a generator is set
    to it, a draw refuses it): that is done again, too. The others need not outlive the forward pass. Where backward is
    compiled when it runs, nobody knows yet what it reads."""
    if len(graphs) == 1 and inner.splits and inner.facts.differentiable:
        return set(inner.signature.ins)
    late = {outer_slot(s.of) for s in graphs[-1].signature.ins if isinstance(s, Late)}
    if len(graphs) == 2:
        names = {n.name for s, n in graphs[1].given if not isinstance(s, (Cotangent, Late))}
        roots = [n for n in joint.graph.fx.nodes if n.name in names]
    else:
        roots = [node for slot, node in joint.graph.computed if not isinstance(slot, Final)]
    roots += (n for n in joint.graph.fx.nodes if has_effect(n) and pass_of(n) == "forward")
    found = {*reached(roots, _read)}
    return late | {outer_slot(slot) for slot, node in joint.graph.given if node in found}


def _watched(inner: Inner, joint: Joint, graphs: Sequence[Graph], before: Collection[Slot]) -> dict[Slot, int]:
    """The inputs whose final values, in their own memory or in other, autograd saves, so that nobody may write to
    them until backward is done; and how far writing them back moves their version counters (those of ``before`` have
    moved already). Backward may read a value by another view than that which is written back."""
    found: dict[Slot, int] = {}
    for slot, node in joint.graph.computed if len(graphs) == 2 else ():
        if not isinstance(slot, NewMemory) and not (isinstance(slot, Final) and slot.during == "forward"):
            continue
        of = slot.of
        looks = [_viewed(node)]
        for look in looks:
            looks += [user for user in look.users if is_view(user)]
        if of in inner.signature.ins and any(pass_of(u) == "backward" for look in looks for u in look.users):
            change = inner.facts.change_of(of)
            moves = isinstance(slot, Final) and change is not None and change.data != "unversioned"
            found[of] = int(moves and of not in before)
    return found


def _viewed(node: fx.Node) -> fx.Node:
    """What was computed last, which a node is a view of."""
    while is_view(node) and node.args and isinstance(node.args[0], fx.Node) and node.args[0].op == "call_function":
        node = node.args[0]
    return node


def _read(node: fx.Node) -> list[fx.Node]:
    """The arguments that more depends on than what an op returns in their place: in training, not the running
    statistics."""
    unread = node.args[3:5] if node.target is _BATCH_NORM and node.args[5] else ()
    return [n for n in node.all_input_nodes if n not in unread]


def pure_of(found: CapturedCall, made: Executable) -> Pure:
    """The inner function as a pure function, which transforms apply to."""
    inner, joint, graphs = found.inner, made.joint, made.graphs
    outs = inner.signature.outs
    active = tuple(outs.index(slot) for slot in active_outs(inner, joint))
    written = frozenset(i for i, slot in enumerate(inner.signature.ins) if Final(slot) in outs)
    whole = restrict(graphs[0], [slot for slot in graphs[0].signature.outs if not isinstance(slot, Saved)])
    draws = _draws(whole, inner)
    halves, passes = None, None
    if (
        len(graphs) == 2
        and not joint.wrappings
        and _exchange_values_alone(*graphs)
        and not any(map(_averages_instances, graphs[0].fx.nodes))
    ):
        passes = evolve(traced := _passes(made), graph=_at_level(traced.graph))
        halves = graphs[0], _at_level(graphs[1])
    autocast = found.key.ambient.autocast
    return Pure(
        root=found.root,
        inner=inner,
        graph=whole,
        active=active,
        written=written,
        draws=draws,
        autocast=autocast,
        halves=halves,
        passes=passes,
        own_rule=joint.own_rule,
    )


def _averages_instances(node: fx.Node) -> bool:
    """Whether a call is that of an instance norm whose running statistics are averages of those of all instances.
    Under vmap, the function itself says what these are (``running_statistics.py``); of one batch, a graph would make
    the batch's own."""
    running: Any = node.args[3] if node.target is _BATCH_NORM else None
    return isinstance(running, fx.Node) and running.target is torch.ops.aten.repeat.default


def _at_level(backward: Graph) -> Graph:
    """The backward half as a level runs it: what autograd's engine alone asks of values, nobody asks."""
    calls = [n for n in backward.fx.nodes if n.op != "output" and n.target is not require_of_autograd]
    return restrict(copy_nodes(backward, calls, backward.given, backward.gives, backward.name), backward.signature.outs)


def _exchange_values_alone(forward: Graph, backward: Graph) -> bool:
    known = {*forward.signature.ins, *forward.signature.outs}
    takes = all(slot in known or isinstance(slot, Cotangent) for slot in backward.signature.ins)
    return (
        takes
        and all(isinstance(slot, Grad) for slot in backward.signature.outs)
        and not any(isinstance(s, Seed) for s in known)
    )


def pullback_of(found: CapturedCall, made: Executable) -> Pullback:
    """The vector-Jacobian product of an inner function with respect to every input that requires grad."""
    inner = found.inner
    wrt = tuple(i for i, slot in enumerate(inner.signature.ins) if inner.facts.requires_grad(slot))  # type: ignore[arg-type]
    return Pullback(inner, wrt, active_outs(inner, made.joint), found.root)


def active_outs(inner: Inner, joint: Joint) -> tuple[Slot, ...]:
    """The outputs an incoming gradient is expected for."""
    cotangents = {outer_slot(s.of) for s in joint.signature.ins if isinstance(s, Cotangent)}
    if cotangents:
        return tuple(slot for slot in inner.signature.outs if slot in cotangents)
    facts = {inner.named(o.path): o.requires_grad and not o.is_leaf for o in inner.facts.outputs}
    facts |= dict.fromkeys(inner.facts.bases, True)
    return tuple(
        slot for slot in inner.signature.outs if facts.get(slot, isinstance(slot, Final) and inner.facts.tracks(slot))
    )
