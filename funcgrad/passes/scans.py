"""Loops of a joint graph: results that nobody reads are not computed, and what backward would compute of each step
again, forward keeps.

As it is recorded, the backward pass of a scan starts each step from the carry before it, and computes all of the step
again. That is what runs where memory is short, or a policy asks for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from attrs import frozen
from torch import Tensor, fx

from ..control_flow import scan
from ..graph_primitives import getitem
from ..graphs import Graph, ancestors, copy_nodes, has_effect, is_getitem, is_view, pass_of, value_of
from ..joint import Joint
from ..loops.lower import lower
from ..loops.values import Reduce, below
from ..slots import Arg, Out
from ..tags import Tag, said_of


@frozen(eq=False)
class _Loop:
    """A scan: its body, and what it reads, in the order of the body's placeholders."""

    node: fx.Node
    body: Graph
    reverse: bool
    init: Sequence[fx.Node]
    xs: Sequence[fx.Node]
    constants: Sequence[fx.Node]

    @staticmethod
    def of(node: fx.Node) -> _Loop:
        body, reverse, init, xs, constants = node.args
        return _Loop(node, body, reverse, init, xs, constants)  # type: ignore[arg-type]

    @property
    def given(self) -> Sequence[fx.Node]:
        return [*self.init, *self.xs, *self.constants]


def with_steps(joint: Joint, keep: bool) -> Joint:
    """A joint graph, with loops of which each computes what is read. ``keep``: forward keeps what is dear to compute
    again."""
    graph = joint.graph.fx
    _prune_all(graph)
    for after in graph.find_nodes(op="call_function", target=scan) if keep else ():
        before = _forward_of(_Loop.of(after)) if pass_of(after) == "backward" else None
        if before is not None and not any(said.flag is Tag.PREFER_RECOMPUTE for said in said_of(before.node)):
            _keep(graph, before, _Loop.of(after))
    _prune_all(graph)
    return joint


def _prune_all(graph: fx.Graph) -> None:
    for node in reversed(graph.find_nodes(op="call_function", target=scan)):
        _prune(graph, _Loop.of(node))


# ── what nobody reads ────────────────────────────────────────────────────────────────────────────────────────────


def _prune(graph: fx.Graph, loop: _Loop) -> None:
    """Leave out the results that nobody reads, and all that only these need."""
    read = {int(user.args[1]) for user in loop.node.users if is_getitem(user) and user.users}  # type: ignore[arg-type]
    results, places = loop.body.results, loop.body.placeholders
    effects = [n for n in loop.body.fx.nodes if has_effect(n)]
    while True:  # a carry is needed if it is read in the end, or what is needed is computed of it
        needed = ancestors([*(results[i] for i in sorted(read)), *effects])
        more = {i for i in range(len(loop.init)) if places[i] in needed} - read
        if not more:
            break
        read |= more
    if not (read or effects):
        return
    kept = [i for i in range(len(results)) if i in read]
    taken = [place in needed or i in read for i, place in enumerate(places)]
    n, m = len(loop.init), len(loop.init) + len(loop.xs)
    if not any(taken[n:m]):  # something says how many steps there are
        taken[n] = True
    if len(kept) < len(results) or not all(taken):
        ins = [place for place, take in zip(places, taken, strict=True) if take]
        given = [
            [v for v, take in zip(loop.given[a:b], taken[a:b], strict=True) if take]
            for a, b in ((0, n), (n, m), (m, None))
        ]
        body = _body(loop.body, ins, [results[i] for i in kept])
        _replace(graph, loop, (body, loop.reverse, *given), [value_of(loop.node)[i] for i in kept], kept)


def _body(body: Graph, ins: Sequence[fx.Node], results: Sequence[Any]) -> Graph:
    effects = [n for n in body.fx.nodes if has_effect(n)]
    needed = ancestors([*results, *effects])
    keep = [n for n in body.fx.nodes if n in needed and n.op != "placeholder"]
    slots = [(Arg(f"operand{i}"), node) for i, node in enumerate(ins)]
    return copy_nodes(body, keep, slots, [(Out(f"[{i}]"), v) for i, v in enumerate(results)], body.name)  # type: ignore[arg-type]


def _replace(
    graph: fx.Graph, loop: _Loop, args: tuple[Any, ...], values: Sequence[Tensor], kept: Sequence[int | None]
) -> fx.Node:
    """Another scan in the place of one; ``kept``: of which result of that one each of its own is the value (None: of
    none)."""
    with graph.inserting_before(loop.node):
        new = graph.create_node("call_function", scan, args, {}, name="scan")
        new.meta = {**loop.node.meta, "val": tuple(values)}
    number = {old: i for i, old in enumerate(kept) if old is not None}
    for user in list(loop.node.users):
        if user.args[1] in number:
            user.args = (new, number[user.args[1]])  # type: ignore[index]
        else:
            graph.erase_node(user)
    graph.erase_node(loop.node)
    return new


# ── what forward keeps ───────────────────────────────────────────────────────────────────────────────────────────


def _forward_of(after: _Loop) -> _Loop | None:
    """The scan of forward whose steps one of backward goes back."""
    found = {x.args[0] for x in after.xs if is_getitem(x) and x.args[0].target is scan}  # type: ignore[union-attr]
    loops = [_Loop.of(node) for node in found if isinstance(node, fx.Node) and pass_of(node) == "forward"]
    return next((loop for loop in loops if loop.reverse is not after.reverse and _same_in_both(loop, after)), None)


def _same_in_both(before: _Loop, after: _Loop) -> dict[fx.Node, fx.Node]:
    """The placeholders of the body in backward that are given what one of the body in forward is given, or computes."""
    results = before.body.results
    slices = dict(zip(before.xs, before.body.placeholders[len(before.init) :], strict=False))
    known = dict(zip(before.constants, before.body.placeholders[len(before.init) + len(before.xs) :], strict=True))
    places = iter(after.body.placeholders)
    found: dict[fx.Node, fx.Node] = {}
    for i, (place, given) in enumerate(zip(places, after.given, strict=True)):
        if i >= len(after.init) + len(after.xs):
            same: Any = known.get(given)
        elif i < len(after.init):
            same = None
        elif is_getitem(given) and given.args[0] is before.node and given.args[1] >= len(before.init):  # type: ignore[operator]
            same = results[given.args[1]]  # type: ignore[index]
        else:
            same = slices.get(given)
        if isinstance(same, fx.Node):
            found[place] = same
    return found


def _keep(graph: fx.Graph, before: _Loop, after: _Loop) -> None:
    """What backward computes of a step from what forward knew, forward keeps where the library computes it, or a
    loop of its own."""
    same = _same_in_both(before, after)
    again = [n for n in after.body.fx.nodes if n.op == "call_function" and not has_effect(n)]
    known: dict[Hashable, fx.Node] = {_call(n, {}): n for n in before.body.fx.nodes if n.op == "call_function"}
    dear = _dear(after.body)
    is_dear: dict[fx.Node, bool] = dict.fromkeys(same, False)
    for node in again:
        if node.all_input_nodes and all(n in is_dear for n in node.all_input_nodes):
            is_dear[node] = node in dear or any(is_dear[n] for n in node.all_input_nodes)
    chosen = [
        n for n in is_dear if is_dear[n] and _is_worth_keeping(n) and any(user not in is_dear for user in n.users)
    ]
    if not chosen:
        return
    made = dict(same)
    for node in again:
        if node in is_dear:
            found = known.get(_call(node, made))
            if found is None:
                with before.body.fx.inserting_before(before.body.fx.output_node()):
                    found = before.body.fx.node_copy(node, made.__getitem__)
                    found.meta = {**found.meta, "pass": "forward"}
                known[_call(found, {})] = found
            made[node] = found
    steps = value_of(before.xs[0]).shape[0]
    values = [value_of(n).new_empty((steps, *value_of(n).shape)) for n in chosen]
    results = [*before.body.results, *(made[n] for n in chosen)]
    body = _body(before.body, before.body.placeholders, results)
    kept: list[int | None] = [*range(len(before.body.results)), *[None] * len(chosen)]
    args = (body, before.reverse, before.init, before.xs, before.constants)
    first = _replace(graph, before, args, [*value_of(before.node), *values], kept)
    stacked = list(_items(graph, first, len(before.body.results), values))
    taken = [len(after.init) + len(after.xs) + i for i in range(len(chosen))]
    with after.body.fx.inserting_before(after.body.placeholders[taken[0] - 1].next):
        places = [after.body.fx.placeholder(f"kept{i}") for i in range(len(chosen))]
    for place, node in zip(places, chosen, strict=True):
        place.meta = {**node.meta}
        node.replace_all_uses_with(place)
    ins = after.body.placeholders
    loop = _Loop(after.node, after.body, after.reverse, after.init, [*after.xs, *stacked], after.constants)
    second = (_body(after.body, ins, after.body.results), loop.reverse, loop.init, loop.xs, loop.constants)
    _replace(graph, loop, second, value_of(after.node), range(len(after.body.results)))


def _items(graph: fx.Graph, loop: fx.Node, first: int, values: Sequence[Tensor]) -> Iterator[fx.Node]:
    with graph.inserting_after(loop):
        for i, value in enumerate(values):
            item = graph.create_node("call_function", getitem, (loop, first + i), {}, name=f"kept_{i}")
            item.meta = {**loop.meta, "val": value}
            yield item


def _call(node: fx.Node, made: dict[fx.Node, fx.Node]) -> Hashable:
    """A call, by what it is computed of."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: made.get(n, n))
    return node.target, repr(args), repr(kwargs)


def _dear(body: Graph) -> set[fx.Node]:
    """The calls that are no arithmetic on elements, which would be done again in the kernel that reads it."""
    lowering = lower(body)
    dear = {n for n in lowering.externs if not is_view(n) and not is_getitem(n)}
    return dear | {
        n
        for n, v in lowering.values.items()
        if n.op == "call_function" and any(isinstance(b, Reduce) for b in below([v]))
    }


def _is_worth_keeping(node: fx.Node) -> bool:
    value = value_of(node)
    return isinstance(value, Tensor) and not is_view(node) and value.is_contiguous()
