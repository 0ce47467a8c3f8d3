"""The split: a minimum cut over bytes, under tags, gives what is saved; the two halves are copied out of the joint graph.

A node of the joint graph is *backward* if it needs an incoming gradient (or is tagged so), *forward* if an output of the
function needs it, and *free* otherwise: a free node may stand in either half. A forward node is not computed a second time
in backward unless it is a view, which costs nothing; a free node may be computed from saved values in backward, where that
saves bytes (the classic case: save the mask, not the float it was compared from).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from attrs import frozen
from torch import Tensor, fx

from ..errors import PartitionError
from ..graphs import Graph, Joint, ancestors, call_text, copy_nodes, is_view, nbytes, pass_of, type_text, value_of, verify, where_of
from ..show import Doc, Shown, Table, Text, in_bytes
from ..slots import Arg, Base, Captured, Final, Input, Saved, Slot, of_backward
from ..tags import Tag, tags_of
from .cut import minimum_cut

_RULES = "minimum cut 1"
"""Part of every fingerprint: changed whenever the rules below choose differently."""


@frozen
class Kept:
    """One value kept from forward to backward: bytes it keeps alive on its own account, and the reason."""

    slot: Input | Saved
    type: str
    nbytes: int
    where: str | None
    why: str


@frozen(eq=False)
class Partition(Shown):
    """Two graphs whose composition is the joint graph.

    ``forward`` takes the joint inputs that are known in forward and returns the function's outputs followed by the
    ``saved`` values; ``backward`` takes the saved values and the incoming gradients, and returns the gradients.
    """

    forward: Graph
    backward: Graph
    saved: tuple[Kept, ...]
    kept: frozenset[str]
    """The names of the nodes the cut goes through."""

    @property
    def saved_bytes(self) -> int:
        return sum(k.nbytes for k in self.saved)

    def doc(self) -> Doc:
        rows = tuple((str(k.slot), k.type, in_bytes(k.nbytes), k.where or "", k.why) for k in self.saved)
        return Doc(
            f"partition: {len(self.saved)} values saved, {in_bytes(self.saved_bytes)}",
            (
                Table(("saved", "type", "bytes", "from", "why"), rows) if rows else Text("nothing is saved"),
                self.forward.doc(),
                self.backward.doc(),
            ),
        )


def partition(joint: Joint, known: Sequence[str] | None = None) -> Partition:
    """Split at the cut of fewest bytes. Raises ``PartitionError`` where the tags leave no split.

    ``known``: the names of the values an earlier ``partition`` of a graph with the same ``fingerprint`` chose to keep.
    """
    graph = joint.graph
    roles = _Roles(graph)
    by_name = {n.name: n for n in graph.fx.nodes}
    reuse = known is not None and by_name.keys() >= set(known)
    kept = {by_name[name] for name in known or ()} if reuse else _choose(graph, roles)
    return split(graph, roles.incoming, kept)


def fingerprint(joint: Joint) -> str:
    """All a partition depends on, as text: calls, types, tags, what is returned, and the rules themselves."""
    lines: list[str] = []
    for node in joint.graph.fx.nodes:
        call = call_text(node) if node.op == "call_function" else f"{node.op} {node.args}"
        lines.append(f"{node.name} = {call} {type_text(node.meta.get('val'))} {tags_of(node).flags.value}")
    return "\n".join([_RULES, str(joint.signature), *lines])


class _Roles:
    """Which nodes depend on incoming gradients, which the function's outputs need, and which the gradients need."""

    def __init__(self, graph: Graph) -> None:
        outs = list(zip(graph.signature.outs, graph.results, strict=True))
        nodes = list(graph.fx.nodes)
        self.incoming: set[fx.Node] = set()
        for node in nodes:
            if Tag.MUST_BE_IN_BACKWARD in tags_of(node).flags or any(i in self.incoming for i in node.all_input_nodes):
                self.incoming.add(node)
        pinned = [n for n in nodes if Tag.MUST_BE_IN_FORWARD in tags_of(n).flags]
        # in a program that runs as one, an output may be a tensor that its own backward pass wrote to
        late = {v for s, v in outs if isinstance(v, fx.Node) and v in self.incoming and pass_of(v) == "backward"}
        self.forward = ancestors([v for s, v in outs if not of_backward(s) and v not in late] + pinned)
        self.backward = ancestors([v for s, v in outs if of_backward(s) or v in late])
        self.written = {n for s, n in zip(graph.signature.ins, graph.placeholders, strict=True) if Final(s) in graph.signature.outs}
        for node in self.forward & self.incoming:
            because = tags_of(node).reason(Tag.MUST_BE_IN_FORWARD) or "an output of the function needs it"
            root = next((n for n in ancestors([node]) if Tag.MUST_BE_IN_BACKWARD in tags_of(n).flags), node)
            raise PartitionError(
                f"{node.name} must be in forward ({because}) but needs {root.name}, which must be in backward "
                f"({tags_of(root).reason(Tag.MUST_BE_IN_BACKWARD)})",
                where=where_of(node),
            )


def _choose(graph: Graph, roles: _Roles) -> set[fx.Node]:
    """The values to save: a minimum vertex cut between what forward knows and what backward needs."""
    known = [n for n in graph.fx.nodes if n in roles.backward and n not in roles.incoming]
    source, sink = 0, 1
    entry = {n: 2 + 2 * i for i, n in enumerate(known)}
    edges: dict[tuple[int, int], float] = {}
    for node in known:
        into, out = entry[node], entry[node] + 1
        # what forward writes to holds another value by the time backward runs
        edges[into, out] = math.inf if node in roles.written else _price(node)
        if node.op == "placeholder" or _stays_in_forward(node, roles):
            edges[source, into] = math.inf
        for user in node.users:
            if user in entry:
                edges[out, entry[user]] = math.inf
            elif user in roles.backward and user.op != "output":
                edges[out, sink] = math.inf
    for result, slot in zip(graph.results, graph.signature.outs, strict=True):
        if of_backward(slot) and isinstance(result, fx.Node) and result in entry:
            edges[entry[result] + 1, sink] = math.inf
    try:
        reached = minimum_cut(edges, source, sink, 2 + 2 * len(known))
    except ValueError as error:
        raise PartitionError(f"no value that may be saved separates forward from backward in {graph.name}") from error
    return {n for n in known if entry[n] in reached and entry[n] + 1 not in reached}


def _price(node: fx.Node) -> float:
    """Bytes that saving a node keeps alive: an input is alive anyway; a view is computed again from what it looks at."""
    if node.op in ("placeholder", "get_attr"):
        return 1
    value = value_of(node)
    if not isinstance(value, Tensor):
        return 1 if not isinstance(value, (list, tuple)) else math.inf
    return math.inf if is_view(node) else nbytes(value) + 1


def _stays_in_forward(node: fx.Node, roles: _Roles) -> bool:
    """Whether backward may not compute the node: it would run a second time, or draw a second time."""
    if node.op == "get_attr" or is_view(node) or not isinstance(value_of(node), (Tensor, list, tuple)):
        return False
    return Tag.MUST_SAVE in tags_of(node).flags or node in roles.forward


def split(graph: Graph, incoming: set[fx.Node], kept: set[fx.Node]) -> Partition:
    """Copy the two halves out of the joint graph, given what is saved in between."""
    ins = list(zip(graph.signature.ins, graph.placeholders, strict=True))
    outs = list(zip(graph.signature.outs, graph.results, strict=True))
    gradients = [(s, v) for s, v in outs if of_backward(s)]
    backward_nodes = ancestors([v for _, v in gradients], kept)
    slot_of: dict[fx.Node, Slot] = {node: slot for slot, node in ins}
    saved: list[tuple[Input | Saved, fx.Node]] = []
    for node in graph.fx.nodes:  # in the order of the joint graph, so that printed halves are stable
        if node in kept and node in backward_nodes:
            own = slot_of.get(node)
            saved.append((own if isinstance(own, (Arg, Captured, Base)) else Saved(node.name), node))
    inputs = [(s, n) for s, n in ins if n not in incoming]
    forward_outs: list[tuple[Slot, object]] = [(s, v) for s, v in outs if not of_backward(s)]
    forward_outs += [(s, n) for s, n in saved if isinstance(s, Saved)]
    pinned = [n for n in graph.fx.nodes if Tag.MUST_BE_IN_FORWARD in tags_of(n).flags]
    forward_nodes = ancestors([v for _, v in forward_outs] + pinned)
    tangents = [(s, n) for s, n in ins if n in incoming]
    return Partition(
        verify(copy_nodes(graph, forward_nodes, list(inputs), forward_outs, "forward")),
        verify(copy_nodes(graph, backward_nodes, [*saved, *tangents], list(gradients), "backward")),
        tuple(_kept(slot, node) for slot, node in saved),
        frozenset(n.name for n in kept),
    )


def _kept(slot: Input | Saved, node: fx.Node) -> Kept:
    value = value_of(node)
    if isinstance(slot, Captured):
        why, size = "captured: alive anyway", 0
    elif isinstance(slot, (Arg, Base)):
        why, size = "an argument: alive anyway", 0
    elif node.users and any(u.op == "output" for u in node.users):
        why, size = "an output: alive anyway", 0
    else:
        size = nbytes(value)
        why = tags_of(node).reason(Tag.MUST_SAVE) or "fewest bytes from which backward can be computed"
    return Kept(slot, type_text(value), size, where_of(node), why)
