"""The order in which fusion takes library calls and values.

Library calls run in the order of the graph: backward multiplies ``gelu(z).T @ g`` before ``g @ w.T``, of which ``dz``
is made. Where ``gelu(z)`` is computed for that product alone, the product waits until after the other: the kernel that
makes ``dz`` of ``z`` then makes ``gelu(z)``, too. It reads ``z`` once, computes once what both have in common, and may
write both over what it reads.

Of values, what totals are made of comes first: those of one tensor are then added up in one pass over it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from torch import fx

from ..graphs import has_effect
from .costs import ROW
from .lower import Lowering
from .values import Map, Memory, Reduce, Value, below, is_given, whole

_SOON = 16
"""Calls that come before the kernel waited for."""


def in_turn(lowering: Lowering) -> list[fx.Node]:
    """The library calls and the calls with checks, in the order in which they run. A call that others wait for does
    not wait itself: what comes before it may read theirs."""
    nodes = lowering.nodes
    there: set[Value] = set()  # what the calls so far need
    waiting: dict[fx.Node, list[fx.Node]] = {}
    order: list[fx.Node] = []
    for i, node in enumerate(nodes):
        last = None
        if node in lowering.externs:
            needed = _written_for(node, lowering)
            if needed and node not in waiting and not has_effect(node):
                last = _last_before_reader(node, needed, there, nodes[i + 1 : i + 1 + _SOON], lowering)
            there.update(v for v in below(needed, stop=there.__contains__) if not is_given(v))
        if last is not None:
            waiting.setdefault(last, []).append(node)
        elif node in lowering.externs or node in lowering.checks:
            order += [node, *waiting.get(node, ())]
    return order


def totals_first(root: Value, stop: Callable[[Value], bool]) -> list[Value]:
    """All a value is made of, first what totals are made of that wait for fewer others."""
    waits: dict[Value, int] = {}
    for value in below([root], stop):
        waits[value] = max((waits[v] + isinstance(v, Reduce) for v in value.inputs if v in waits), default=0)
    totals = sorted((v for v in waits if isinstance(v, Reduce)), key=waits.__getitem__)
    return below([*totals, root], stop)


def _written_for(call: fx.Node, lowering: Lowering) -> list[Value]:
    """What kernels write to memory for a library call."""
    return [lowering.buffers[b] for n in call.all_input_nodes for b in lowering.bases(n) if b in lowering.buffers]


def _last_before_reader(
    call: fx.Node, needed: Collection[Value], there: Collection[Value], later: Sequence[fx.Node], lowering: Lowering
) -> fx.Node | None:
    """Of the calls before a kernel that reads what something is computed from which ``call`` needs, and they do not,
    the last; if neither they nor that kernel need the result of ``call``."""
    alone, after, of_others, last = set(needed).difference(there), {call}, set[fx.Node](), None
    read = _read_for(alone, there)
    for node in later:
        if not alone:
            break
        inputs = node.all_input_nodes
        if not after.isdisjoint(inputs):
            if node in lowering.externs or node in lowering.checks:
                break
            after.add(node)
        elif node in lowering.externs:
            of_others.add(last := node)
            alone.difference_update(_written_for(node, lowering))
            read = _read_for(alone, there)
        elif not of_others.isdisjoint(inputs):
            of_others.add(node)
            computes = node not in lowering.values or not is_given(lowering.values[node])
            if computes and not read.isdisjoint(whole(lowering.values[n]) for n in inputs if n in lowering.values):
                return last
    return None


def _read_for(needed: Collection[Value], there: Collection[Value]) -> set[Value]:
    """The tensors that values are computed from, but for those that are next to nothing beside them. What is only
    copied has nothing in common with what is computed from the same."""
    found = below(list(needed), stop=there.__contains__)
    made = [
        v.about for v in found if v not in there and not is_given(v) and not (isinstance(v, Map) and v.op == "copy")
    ]
    return {v for v in found if made and (v in there or isinstance(v, Memory)) and v.about * ROW > max(made)}
