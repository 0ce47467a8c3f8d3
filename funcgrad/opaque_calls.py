"""Opaque calls: a Python callable as one call of a graph, which nobody may look into, move across another one, drop, or
run twice. One that is pure may be moved, and is dropped where nobody reads what it returns.

In a graph a call is functional, like any other: it writes to no argument. What the callable writes to it is given in
memory of its own, and the call returns what that holds afterwards; readers of the argument read what it held before,
readers of the result what it holds then. A schedule gives it the argument itself where nobody else reads that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import Tensor, fx

from .graph_primitives import Opaque, getitem, look_of
from .graphs import storages, value_of
from .torch_private.operators import is_operator, is_torchs_own


def call_opaque(
    graph: fx.Graph, function: Callable[..., Any], args: Sequence[Any], like: Sequence[Tensor], *,
    name: str, writes: Sequence[int] = (), during: str = "forward", where: str | None = None, is_pure: bool = False,
    traced: Callable[..., tuple[Any, ...]] | None = None, takes_none: bool = False,
) -> list[fx.Node]:  # fmt: skip
    """Record an opaque call at the insertion point of a graph. Returns the nodes of its results, and of what each
    argument it writes to holds afterwards.

    ``args``: nodes and numbers. ``like``: a fake tensor for each result. ``during``: the pass it belongs to.
    ``is_pure``, ``traced``, ``takes_none``: see ``Opaque``.
    """
    looks = tuple(map(look_of, like))
    made = Opaque(function, name, tuple(writes), returns=looks, is_pure=is_pure, traced=traced, takes_none=takes_none)
    values = (*like, *(value_of(args[i]).clone() for i in writes))
    call = graph.create_node("call_function", made, tuple(args), {}, name=name)
    call.meta = {"val": values, "pass": during, "where": where}
    found = []
    for i, value in enumerate(values):
        node = graph.create_node("call_function", getitem, (call, i), {}, name=f"{name}_{i}")
        node.meta = {**call.meta, "val": value}
        found.append(node)
    return found


def given_whole(call: fx.Node, kernels_read: frozenset[str] = frozenset()) -> frozenset[str]:
    """The arguments that an opaque call writes to and may have as they are: nobody else reads them, or looks at
    their memory, but what they are views of. ``kernels_read``: what kernels read, which may read a value where
    another one of the same number lies."""
    if not isinstance(call.target, Opaque) or not call.target.writes:
        return frozenset()
    looks: dict[int, list[fx.Node]] = {}
    for node in call.graph.nodes:
        for memory in storages(node):
            looks.setdefault(memory, []).append(node)
    found: set[str] = set()
    for i in call.target.writes:
        arg = call.args[i]
        assert isinstance(arg, fx.Node)
        lies = {n for memory in storages(arg) for n in looks[memory]}
        if list(call.args).count(arg) == 1 and all(
            _is_on_the_way(n, call, lies) and n.name not in kernels_read for n in lies
        ):
            found.add(arg.name)
    return frozenset(found)


def _is_on_the_way(node: fx.Node, call: fx.Node, lies: Collection[fx.Node]) -> bool:
    """Whether a value in some memory was made by an operator of torch (others may return an input), and is read by
    the call alone, or by the one view of it that leads there."""
    is_made = node.op == "call_function" and is_operator(node.target) and is_torchs_own(node.target)
    return is_made and len(node.users) == 1 and next(iter(node.users)) in (call, *lies)
