"""The recorded run: an inner function on functional fakes becomes a Joint, alone or with its backward pass."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .. import refusals
from ..errors import GraphError
from ..graph_primitives import NumberAsSize, Opaque, Read, has_symbols, on_path
from ..graphs import (
    Graph,
    ancestors,
    as_needed,
    bodies_of,
    has_effect,
    in_order,
    is_path_check,
    is_view,
    looks_at,
    pass_of,
    storages,
    value_of,
    where_of,
)
from ..joint import Constant, Joint, Returned
from ..slots import Final, Signature, Slot
from ..state.conversions import converting_symbols, measuring_symbols
from ..state.new_values import NewObject
from ..state.watch import Watch
from ..symbolic.torch_sizes import shape_of, strides_of
from ..tags import Tag, tag
from ..torch_private.symbols import expression
from .backward import traced_with_backward
from .facts import why_sizes_are_known
from .floats import NotSymbolicError
from .inner import Inner, Ran, inputs_of
from .modes import with_modes
from .passages import NO_PASSAGES
from .regions import whole
from .results import PLAIN
from .trace import Trace
from .unrolled import warn_of_unrolled


def capture(
    inner: Inner, reals: Sequence[Any], grad: bool, with_backward: bool, watch: Watch, at_level: bool = False
) -> Joint:
    """Trace an inner function into one graph. What it writes to Python state, compared with what ``watch`` met, is
    undone.

    ``at_level``: whether transforms may differentiate the graph, in which what stops gradients is kept then.
    ``reals``: a real value for each slot of its signature. ``grad``: whether inputs keep their ``requires_grad``.
    ``with_backward``: trace the gradients of all inputs that require grad, too, given a cotangent for each output that
    has a history. Raises ``TraceError`` if this run meets a tensor the dry run did not, ``BackwardError`` if only
    backward fails.
    """
    trace = with_modes(
        Trace(
            record=True,
            backward_autocast=inner.backward_autocast,
            rng=inner.rng,
            path=inner.facts.path,
            may_be_sizes=inner.inputs.has_symbols_for_sizes and why_sizes_are_known(inner.facts) is None,
        )
    )
    trace.watch, trace.is_split = watch, with_backward
    trace.runs_at_level, trace.keeps_detached = at_level, at_level and not inner.exchanges_values
    trace.draws.expect(inner.facts.generators)
    trace.regions = () if inner.policy is None else (whole(inner.policy),)
    assert trace.graph is not None
    ins = inputs_of(inner, trace, reals, grad)

    has_numbers = bool(trace.symbols) or trace.symbols.may_be_sizes() or has_symbols(inner.facts.path)

    def run() -> tuple[Ran, dict[Slot, Any]]:
        try:
            with (
                measuring_symbols(watch.measuring if has_numbers else ()),
                converting_symbols(watch.converting(has_numbers)),
            ):
                # a gradient enables grad mode itself, and is off outside; jit is traced in the caller's grad mode
                with torch.set_grad_enabled(grad and inner.splits), trace.lifter:
                    ran = inner.run(*ins)
                return ran, (_with_backward(trace, inner, ins, ran) if with_backward else _forward(trace, ran))
        except BaseException:
            watch.forget()
            raise
        finally:
            trace.written().undo()
            watch.take_numbers_back()

    try:
        ran, outs = trace.run(run, (), {})
    finally:
        trace.captured.clear()  # the real tensors: a trace lives until the next garbage collection
    _require_same_reads(inner.facts.reads or (), trace.reads.done)
    guards, names = _checked_inside(trace, tuple(trace.symbols.guards()))
    nodes = {slot: node for slot, node in outs.items() if isinstance(node, fx.Node)}
    outs |= zip(nodes, trace.own(nodes.values()), strict=True)
    trace.graph.output(tuple(outs.values()))
    _keep_first_values(trace, outs)
    slot_of = {node: slot for slot, node in trace.placeholder_of.items()}
    graph = Graph(
        Signature(tuple(slot_of[n] for n in trace.graph.find_nodes(op="placeholder")), tuple(outs)),
        trace.graph,
        trace.constants,
        "joint",
    )
    simplify(graph)
    if trace.reads.done:
        graph = reads_first(graph, with_backward)
    warn_of_unrolled(graph)
    leaves = tuple(
        inner.out_slot(o.path) if o.is_dynamic else _constant(o.constant if isinstance(v, NewObject) else v, inner)
        for o, v in zip(inner.facts.returned, ran.leaves, strict=False)
    )
    symbols, passages = trace.symbols, trace.passages or NO_PASSAGES
    return Joint(
        graph,
        Returned(ran.tree, leaves),
        guards,
        names,
        sizes=symbols.of_sizes,
        wrappings=trace.wrappings,
        by_value=symbols.by_value,
        together=passages.together,
        reached=passages.reached,
        told=passages.told,
        outs=inner.signature.outs,
        is_split=with_backward,
        lines=symbols.lines,
        reads=tuple(trace.reads.done),
        own_rule=trace.own_rule,
        arrivals=tuple(passages.arrivals),
        through=passages.through,
        catches=trace.watch is not None and trace.watch.catches,
    )


def _require_same_reads(dry: Sequence[Read], recorded: Sequence[Read]) -> None:
    """What Python reads in the recorded run is what it has read in the dry run: one after the other."""
    for before, now in zip(dry, recorded, strict=False):
        if before.where != now.where:
            raise GraphError(f"Python reads a value at {now.where}, where the dry run has read one at {before.where}")


def _with_backward(trace: Trace, inner: Inner, ins: Sequence[Any], ran: Ran) -> dict[Slot, Any]:
    """The outputs of a program whose passes run apart. No number that is another in other calls is stored in backward:
    it may be equal to what was there today, so that the dry run has taken nothing for a write."""
    outs = traced_with_backward(trace, inner, ins, ran)
    now = trace.written().numbers if trace.symbols else {}
    for slot in now.keys() | ran.stored.keys():
        if now.get(slot) is not ran.stored.get(slot):
            raise NotSymbolicError(f"backward stores a number into {slot}")
    return outs


def _checked_inside(trace: Trace, guards: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """The conditions that hold for arguments, and their symbols. Those on numbers that Python read become checks in
    the graph."""
    numbers, names = trace.reads.numbers, trace.symbols.floats.names
    before: list[str] = []
    for guard in reversed(guards):  # each goes right after what it is about: in the order in which they were asked
        free = [
            symbol for symbol in re.findall(r"[A-Za-z_]\w*", guard) if symbol in names or symbol in trace.symbols.sizes
        ]
        read = max((numbers[symbol] for symbol in free if symbol in numbers), default=None)
        if read is not None:
            last = [symbol for symbol in numbers if numbers[symbol] == read][-1]
            with trace.right_after(last):  # what is read later counts only where it holds
                trace.call(
                    on_path, (trace.condition(guard, dict.fromkeys(free)), read, trace.reads.values[read]), {}, None
                )
        else:
            before.append(guard)
    return tuple(reversed(before)), {symbol: name for symbol, name in names.items() if symbol not in numbers}


def _constant(value: Any, inner: Inner) -> Slot | Constant:
    """A leaf of the result that is no tensor: the very object among the arguments, where it is one of them."""
    static = () if isinstance(value, PLAIN) else zip(inner.inputs.slots, inner.inputs.leaves, strict=True)
    return next((slot for slot, leaf in static if leaf is value), Constant(value))


def _forward(trace: Trace, ran: Ran) -> dict[Slot, Any]:
    """The outputs of a program that runs as one; what its own backward pass wrote to is final after that."""
    outs: dict[Slot, Any] = {}
    for slot, value in ran.outs:
        late = isinstance(slot, Final) and trace.writes.in_backward(slot.of)  # type: ignore[arg-type]
        outs |= trace.results(Final(slot.of, "backward") if isinstance(slot, Final) and late else slot, value)
    return outs


def _keep_first_values(trace: Trace, outs: dict[Slot, Any]) -> None:
    """Where backward reads an input that forward writes to, it reads a copy: the input itself holds its final value
    by then."""
    assert trace.graph is not None
    written = {slot.of for slot in outs if slot == Final(getattr(slot, "of", None))}  # type: ignore[arg-type]
    for slot, node in trace.placeholder_of.items():
        late = [user for user in node.users if pass_of(user) == "backward"] if slot in written else []
        if late:
            with trace.graph.inserting_after(next(reversed(list(trace.placeholder_of.values())))):
                copy = trace.graph.call_function(torch.ops.aten.clone.default, (node,))
            with trace.fakes:
                copy.meta = {**node.meta, "val": value_of(node).clone(), "pass": "forward"}
            tag(copy, Tag.MUST_SAVE, f"{slot} is written to in forward, and backward needs what it held before")
            for user in late:
                user.replace_input_with(node, copy)


def reads_first(graph: Graph, is_split: bool) -> Graph:
    """The same calls, first the checks of what Python read, with all they need: a call that takes another path is
    told so before anything else is computed. One that waits for a draw, or another effect, stays in its place. Where
    the passes run apart, all are in forward: what backward reads is known there, but for what comes in later, which
    nobody reads."""
    nodes = [n for n in graph.fx.nodes if n.op not in ("placeholder", "output")]
    known = set(nodes)
    before = {n: [i for i in n.all_input_nodes if i in known] for n in nodes}
    checks = [n for n in nodes if is_path_check(n)]
    for node in ancestors(checks) if is_split else ():
        node.meta["pass"] = "forward"
    # sizes of the call: what is read is compared with them
    given = [n for n in nodes if isinstance(n.target, NumberAsSize) and not is_path_check(n)]

    def waits(node: fx.Node) -> bool:
        return any(has_effect(a) and not is_path_check(a) and a not in given for a in ancestors([node]))

    first = [*given, *itertools.takewhile(lambda n: not waits(n), checks)]
    order = list(as_needed((*first, *nodes), before))
    _require_nothing_done(order)
    return in_order(graph, order)


def _require_nothing_done(order: Sequence[fx.Node]) -> None:
    """What the caller's Python does in a call cannot be taken back where the call turns out to take another path."""
    last = max((i for i, node in enumerate(order) if is_path_check(node)), default=0)
    done = next((n for n in order[:last] if isinstance(n.target, Opaque) and not n.target.is_pure), None)
    if done is not None:
        raise refusals.CALL_BEFORE_DRAWN_READ(done.target, where=where_of(order[last]))


def simplify(graph: Graph) -> None:
    """Remove what has no effect: detach and alias (nothing tracks gradients in a graph, but for one that transforms
    differentiate, which says what is ``detached``), views that end where one began
    (a transposition of a transposition), and calls nobody reads.

    A random draw nobody reads stays: it advances the generator, as it does in eager PyTorch. So does a returned alias
    of an input or of another returned value: the caller gets a tensor object of its own, with a gradient of its own or
    none.
    """
    for body in [body for node in graph.fx.nodes for body in bodies_of(node)]:
        simplify(body)
    aliases = {torch.ops.aten.detach.default, torch.ops.aten.alias.default, torch.ops.aten.lift_fresh.default}
    outside = set().union(*(storages(n) for n in graph.fx.nodes if n.op in ("placeholder", "get_attr")), frozenset())
    returned = [r for r in graph.results if isinstance(r, fx.Node)]
    for node in graph.fx.nodes:
        if node.target is torch.ops.aten.empty_like.default:
            _of_its_own(node)
        like = node.args[0] if node.target in aliases else _viewed_before(node)
        if like is None or node.meta.get("detached"):
            continue
        others = outside.union(*(storages(r) for r in returned if r is not node)) if node in returned else frozenset()
        if not storages(node) & others:
            if any(pass_of(look) == "forward" or looks_at(look) for look in _looks(node, like)):
                for user in node.users:
                    user.meta["looks_at"] = {*looks_at(user), like.name}
            node.replace_all_uses_with(like)
            returned = [r for r in graph.results if isinstance(r, fx.Node)]
    for node in reversed(list(graph.fx.nodes)):
        if node.op in ("call_function", "get_attr") and not node.users and not has_effect(node):
            graph.fx.erase_node(node)


def _looks(node: fx.Node, base: fx.Node) -> Iterator[fx.Node]:
    """The views from a node down to what it is a view of."""
    while node is not base:
        yield node
        node = node.args[0]  # type: ignore[assignment]


def _of_its_own(node: fx.Node) -> None:
    """Memory like that of another tensor does not wait for what is in that (the draws of dropout, which keep their
    order, begin so)."""
    value = value_of(node)
    node.target = torch.ops.aten.empty_strided.default
    node.args = (list(shape_of(value)), list(strides_of(value)))
    node.kwargs = {"dtype": value.dtype, "device": value.device}


def _viewed_before(node: fx.Node) -> fx.Node | None:
    """Of what a view is a view of, the first that is the same elements: ``x`` for a transposition of its
    transposition."""
    found, at = None, node
    look = _look(node) if node.op == "call_function" and is_view(node) else None
    while look is not None and at.op == "call_function" and is_view(at):
        base = at.args[0]
        if not isinstance(base, fx.Node) or not storages(base) & storages(node):
            break
        at = base
        found = at if _look(at) == look else found
    return found


def _look(node: fx.Node) -> tuple[Any, ...] | None:
    """Which elements of its memory a tensor is, and as what they are read."""
    value = value_of(node)
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    # symbolic ones by their expressions: that leaves no guard
    sizes = *value.shape, *value.stride(), value.storage_offset()
    return (
        value.ndim,
        *(n if isinstance(n, int) else expression(n) for n in sizes),
        value.dtype,
        value.is_conj(),
        value.is_neg(),
    )
