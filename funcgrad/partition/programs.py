"""The graphs that run: the joint graph as one program, with what the partition computes again, or its two halves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from attrs import evolve

from ..graphs import Graph, restrict, storage_map
from ..joint import Joint
from ..passes.traced_passes import TracedPasses
from ..slots import Final, Saved, Slot
from .join import join
from .order import in_less_memory
from .partition import Partition


def graphs_to_run(joint: Joint, split: Partition, peak_of: Callable[[tuple[Graph, ...]], int]) -> tuple[Graph, ...]:
    """One graph or two, their calls in an order in which less is alive at a time. ``peak_of``: the most bytes, by
    schedules."""
    return in_less_memory(_halves(joint, split) if joint.is_split else _whole(joint, split), peak_of)


def _whole(joint: Joint, split: Partition) -> tuple[Graph, ...]:
    outs = [slot for outer in joint.outs for slot in joint.inner_outs(_final(joint, outer))]
    whole = restrict(join(joint, split), outs)
    donated = _donated(joint, whole) if joint.donated else frozenset()
    return (evolve(whole, is_boxed=joint.graph.is_boxed, donated=donated),)


def _donated(joint: Joint, graph: Graph) -> frozenset[str]:
    return frozenset(node.name for slot, node in graph.given if joint.donated.get(slot) == "")


def _halves(joint: Joint, split: Partition) -> tuple[Graph, ...]:
    saved = [s for s in split.forward.signature.outs if isinstance(s, Saved)]
    forward = restrict(split.forward, [*(slot for outer in joint.outs for slot in joint.inner_outs(outer)), *saved])
    own = frozenset[str]() if joint.wrappings else _made_for_backward(forward, split.backward)
    backward = evolve(split.backward, is_boxed=True, handed_over=own)
    return forward, TracedPasses(backward, joint.told).half()


def _made_for_backward(forward: Graph, backward: Graph) -> frozenset[str]:
    """What backward is given in memory that forward makes, and does not return: nothing else looks at it."""
    lies = storage_map(forward)
    given = {place for n in forward.fx.nodes if n.op in ("placeholder", "get_attr") for place in lies[n.name].values()}
    results = [(slot, set(lies[node.name].values())) for slot, node in forward.computed]
    users = Counter(place for _, places in results for place in places)
    own = {s for s, places in results if isinstance(s, Saved) and all(users[p] == 1 and p not in given for p in places)}
    return frozenset(n.name for s, n in backward.given if s in own)


def _final(joint: Joint, slot: Slot) -> Slot:
    """In one program, what a tensor holds in the end may be what its backward pass wrote."""
    late = Final(slot.of, "backward") if isinstance(slot, Final) else slot
    return late if late in joint.wrappings or late in joint.signature.outs else slot
