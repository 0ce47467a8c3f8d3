"""The split: a minimum cut over bytes, under tags, gives what is saved; the two halves are copied out of the joint
graph.

A node of the joint graph is *backward* if it needs an incoming gradient (or is tagged so), *forward* if an output of
the function needs it, and *free* otherwise: a free node may stand in either half, and is computed in backward where
that saves bytes (the classic case: save the mask, not the float it was compared from). A forward node is computed a
second time in backward if it is a view, which costs nothing; if it is random numbers made of a seed, or made of them
alone: no mask is saved; if a checkpoint policy says so; or if it fuses into what reads it, and the bytes it would take
are worth more than its operations.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from attrs import frozen
from torch import fx

from ..errors import PartitionError
from ..graphs import (
    Graph,
    ancestors,
    as_needed,
    call_text,
    copy_nodes,
    is_view,
    nbytes,
    storages,
    tensors_in,
    type_text,
    value_of,
    verify,
    where_of,
)
from ..joint import Joint
from ..lifetimes import Lifetimes
from ..memory.liveness import alive_in, chart_of
from ..memory.schedule import Schedule
from ..memory.steps import Call, Free
from ..show.chart import Chart
from ..show.parts import Doc, Table, Text
from ..show.shown import Shown
from ..show.units import in_bytes
from ..slots import Captured, Input, Saved, Seed, Slot, outer_slot
from ..tags import Tag, tags_of
from .cut import minimum_cut
from .kept_sizes import with_sizes
from .roles import RECOMPUTED, Roles, made_of_seeds, price_again, price_of_saving

_RULES = "minimum cut 11"
"""Part of every fingerprint: changed whenever the rules below choose differently, or what is remembered has another
form."""


@frozen
class Kept:
    """One value kept from forward to backward: bytes it keeps alive on its own account, and the reason."""

    slot: Input | Saved
    type: str
    nbytes: int
    where: str | None
    why: str


@frozen
class Again:
    """One value that forward has computed and backward computes again, by its name in the joint graph, and the
    reason."""

    name: str
    type: str
    where: str | None
    why: str


@frozen
class Limit:
    """The budget that a partition keeps: ``peak`` is simulated; ``cost`` is what is computed again, as a part of
    forward, and no choice costs less than ``bound``."""

    nbytes: int
    peak: int
    cost: float
    bound: float

    def __str__(self) -> str:
        return (
            f"budget {in_bytes(self.nbytes)}, peak {in_bytes(self.peak)}: {self.cost:.1%} of forward is computed again "
            f"(at least {self.bound:.1%} has to be)"
        )


@frozen(eq=False, repr=False)
class Partition(Shown):
    """Two graphs whose composition is the joint graph.

    ``forward`` takes the joint inputs that are known in forward and returns the function's outputs followed by the
    ``saved`` values; ``backward`` takes the saved values and the incoming gradients, and returns the gradients.
    """

    forward: Graph
    backward: Graph
    saved: tuple[Kept, ...]
    again: tuple[Again, ...]
    kept: frozenset[str]
    """The names of the nodes the cut goes through."""
    limit: Limit | None = None
    is_split: bool = True
    """Whether the two run apart. Else the joint graph runs, and the cut says what is computed again in it, if
    anything."""

    @property
    def saved_bytes(self) -> int:
        return sum(k.nbytes for k in self.saved)

    def headline(self) -> str:
        if self.is_split:
            return f"partition: {len(self.saved)} values saved, {in_bytes(self.saved_bytes)}"
        return f"partition: runs as one program, {len(self.again) or 'no'} values are computed again"

    def doc(self) -> Doc:
        return Doc(self.headline(), (*self.listed(), *((self.forward.doc(), self.backward.doc()) * self.is_split)))

    def listed(self) -> tuple[Text | Table | Chart, ...]:
        """The parts of its ``doc`` without the two graphs."""
        if not self.is_split and not self.again:
            return (Text("the joint graph runs as it was recorded"),)
        rows = tuple((str(k.slot), k.type, in_bytes(k.nbytes), k.where or "", k.why) for k in self.saved)
        again = tuple((a.name, a.type, a.where or "", a.why) for a in self.again)
        return (
            *((Text(str(self.limit)),) if self.limit else ()),
            _memory_over_time(self),
            Table(("saved", "type", "bytes", "from", "why"), rows, "saved") if rows else Text("nothing is saved"),
            *((Table(("computed again", "type", "from", "why"), again, "computed again"),) if again else ()),
        )


def partition(
    joint: Joint,
    costs: Mapping[fx.Node, float] | None = None,
    known: Sequence[str] | None = None,
    is_split: bool = True,
) -> Partition:
    """Split at the cut of fewest bytes. Raises ``PartitionError`` where the tags leave no split.

    ``costs``: the forward values that may be computed again, each with the bytes that saving it must save for that to
    be worth it. ``known``: the names of the values an earlier ``partition`` of a graph with the same ``fingerprint``
    chose to keep. ``is_split``: the halves run apart, and the caller may write to tensors in between.
    """
    graph = joint.graph
    roles = Roles(graph, is_split)
    by_name = {n.name: n for n in graph.fx.nodes}
    reuse = known is not None and by_name.keys() >= set(known)
    kept = {by_name[name] for name in known or ()} if reuse else _choose(graph, roles, costs or {})
    return split(graph, roles, kept)


def fingerprint(joint: Joint, costs: Mapping[fx.Node, float], is_split: bool = True) -> str:
    """All a partition depends on, as text: calls, types, tags, costs, what is returned, and the rules themselves."""
    lines: list[str] = []
    for node in joint.graph.fx.nodes:
        call = call_text(node) if node.op == "call_function" else f"{node.op} {node.args}"
        lines.append(
            f"{node.name} = {call} {type_text(node.meta.get('val'))} {tags_of(node).flags.value} {costs.get(node, '')}"
        )
    return "\n".join([_RULES, str(joint.signature), f"is_split: {is_split}", *lines])


def _choose(graph: Graph, roles: Roles, costs: Mapping[fx.Node, float]) -> set[fx.Node]:
    """The values to save. What only backward needs is computed there, once, unless something that is saved is made
    of it: then it is of forward, and the choice is made again."""
    while True:
        kept = cut(graph, roles, costs)
        of_forward = ancestors(kept) - roles.forward
        if not of_forward:
            return kept
        roles.forward |= of_forward


def cut(graph: Graph, roles: Roles, costs: Mapping[fx.Node, float], price: float = 1.0) -> set[fx.Node]:
    """A minimum cut between what forward knows and what backward needs, where a byte that is saved has a price.

    Each value is two nodes, *can be computed in backward* and *is there in backward*. The edge between them is cut
    where the value is saved, the edge from the source to the first where it is computed again.
    """
    known = [n for n in graph.fx.nodes if n in roles.backward and n not in roles.incoming]
    source, sink = 0, 1
    entry = {n: 2 + 2 * i for i, n in enumerate(known)}
    needed = {node for slot, node in graph.computed if slot in roles.backward_outs}
    tails, heads, capacities = list[int](), list[int](), list[float]()

    def edge(tail: int, head: int, capacity: float) -> None:
        tails.append(tail)
        heads.append(head)
        capacities.append(capacity)

    for node, into in entry.items():
        view = is_view(node)
        edge(into, into + 1, price * price_of_saving(node, view) if roles.is_safe(node) else math.inf)
        again = math.inf if node.op == "placeholder" else price_again(node, view, roles, costs)
        if again:
            edge(source, into, again)
        readers = {entry.get(user, sink) for user in node.users if user in roles.backward}
        for reader in readers | {sink} if node in needed else readers:
            edge(into + 1, reader, math.inf)
    try:
        reached = minimum_cut(tails, heads, capacities, source, sink, 2 + 2 * len(known))
    except ValueError as error:
        raise PartitionError(f"no value that may be saved separates forward from backward in {graph.name}") from error
    return {n for n, into in entry.items() if reached[into] and not reached[into + 1]}


def split(graph: Graph, roles: Roles, kept: set[fx.Node]) -> Partition:
    """Copy the two halves out of the joint graph, given what is saved in between."""
    ins = graph.given
    outs = graph.gives
    gradients = [(s, v) for s, v in outs if s in roles.backward_outs]
    results = [v for _, v in gradients]
    backward_nodes = ancestors([*results, *roles.effects], kept)
    slot_of: dict[fx.Node, Slot] = {node: slot for slot, node in ins}
    saved: list[tuple[Input | Saved, fx.Node]] = []
    for node in graph.fx.nodes:  # in the order of the joint graph, so that printed halves are stable
        if node in kept and node in backward_nodes:
            own = slot_of.get(node)
            saved.append((own if isinstance(own, Input) else Saved(node.name), node))
    inputs = [(s, n) for s, n in ins if n not in roles.incoming]
    forward_outs: list[tuple[Slot, object]] = [(s, v) for s, v in outs if s not in roles.backward_outs]
    forward_outs += [(s, n) for s, n in saved if isinstance(s, Saved)]
    pinned = [n for n in graph.fx.nodes if Tag.MUST_BE_IN_FORWARD in tags_of(n).flags]
    forward_needs = ancestors([v for _, v in forward_outs] + pinned)
    forward_nodes = [n for n in graph.fx.nodes if n in forward_needs]
    returned = [v for s, v in outs if s not in roles.backward_outs and isinstance(v, fx.Node)]
    own_memory = {place for v in returned for place in storages(v)}
    made_in_backward = backward_nodes - kept
    again = [n for n in forward_nodes if n in made_in_backward and n.op == "call_function"]
    cotangents, drawn = [(s, n) for s, n in ins if n in roles.incoming], made_of_seeds(graph)
    in_time = _in_time(graph, roles, backward_nodes, kept)
    forward = verify(copy_nodes(graph, forward_nodes, list(inputs), forward_outs, "forward"))
    backward = verify(copy_nodes(graph, in_time, [*saved, *cotangents], list(gradients), "backward"))
    if roles.is_split:
        forward, backward = with_sizes(forward, backward)
    return Partition(
        forward,
        backward,
        tuple(_kept(slot, node, own_memory) for slot, node in saved),
        tuple(_again(n, drawn) for n in again if tensors_in(value_of(n)) and not is_view(n)),
        frozenset(n.name for n in kept),
        is_split=roles.is_split,
    )


def _in_time(graph: Graph, roles: Roles, nodes: set[fx.Node], kept: set[fx.Node]) -> Iterator[fx.Node]:
    """The nodes of backward in the order of the joint graph, but what forward has computed before only when it is
    first needed: computed any sooner, it would take memory in vain."""
    before = {
        n: [i for i in n.all_input_nodes if i in nodes and i not in kept]
        for n in graph.fx.nodes
        if n in nodes and n not in kept
    }
    return as_needed((*filter(roles.is_late, before), *before), before)


def _memory_over_time(split: Partition) -> Chart:
    """Call by call, before anything is fused."""
    halves = [_unfused(half) for half in (split.forward, split.backward)]
    border = sum(isinstance(step, Call) for step in halves[0].steps)
    return chart_of(alive_in(halves).history, border, split.limit.nbytes if split.limit else None)


def _unfused(graph: Graph) -> Schedule:
    """Its calls in order, each value dropped after its last reader."""
    calls = [node for node in graph.fx.nodes if node.op == "call_function"]
    uses = [(node, *node.all_input_nodes) for node in calls]
    lives = Lifetimes.of(uses, {r for r in graph.results if isinstance(r, fx.Node)})
    pairs = ((Call(node), Free(tuple(n.name for n in dying))) for node, dying in zip(calls, lives.dying, strict=True))
    return Schedule(graph, tuple(itertools.chain.from_iterable(pairs)))


def _kept(slot: Input | Saved, node: fx.Node, outputs: set[int]) -> Kept:
    """``outputs``: the memory of what the function returns."""
    value = value_of(node)
    if isinstance(outer_slot(slot), Captured):
        why, size = "captured: alive anyway", 0
    elif isinstance(slot, Seed):
        why, size = "what forward drew is made of it again", nbytes(value)
    elif node.op == "placeholder":
        why, size = "an argument: alive anyway", 0
    elif storages(node) and storages(node) <= outputs:
        why, size = "an output: alive anyway", 0
    else:
        size = nbytes(value)
        why = tags_of(node).reason(Tag.MUST_SAVE) or "fewest bytes from which backward can be computed"
    return Kept(slot, type_text(value), size, where_of(node), why)


def _again(node: fx.Node, drawn: set[fx.Node]) -> Again:
    cheap = (
        "made of the seed alone: the numbers of forward"
        if node in drawn
        else "it fuses into what reads it: cheaper than keeping it"
    )
    why = tags_of(node).reason(RECOMPUTED) or cheap
    return Again(node.name, type_text(value_of(node)), where_of(node), why)
