"""Opaque calls: a Python callable as one call of a graph, which nobody may look into, move across another one, drop, or run twice. One
that is pure may be moved, and is dropped where nobody reads what it returns.

In a graph a call is functional, like any other: it writes to no argument. What the callable writes to it is given in memory of its own,
and the call returns what that holds afterwards; readers of the argument read what it held before, readers of the result what it holds
then. A schedule gives it the argument itself where nobody else reads that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, fx

from .graph_primitives import Opaque, getitem, look_of
from .graphs import storages, value_of
from .torch_private import is_operator, is_torchs_own


def call_opaque(
    graph: fx.Graph, function: Callable[..., Any], args: Sequence[Any], like: Sequence[Tensor], *,
    name: str, writes: Sequence[int] = (), during: str = "forward", where: str | None = None, is_pure: bool = False,
    traced: Callable[..., tuple[Any, ...]] | None = None,
) -> list[fx.Node]:  # fmt: skip
    """Record an opaque call at the insertion point of a graph. Returns the nodes of its results, and of what each argument it writes to
    holds afterwards.

    ``args``: nodes and numbers. ``like``: a fake tensor for each result. ``during``: the pass it belongs to. ``is_pure``, ``traced``: see
    ``Opaque``.
    """
    made = Opaque(function, name, tuple(writes), returns=tuple(map(look_of, like)), is_pure=is_pure, traced=traced)
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
    """The arguments that an opaque call writes to and may have as they are: nobody else reads them, or looks at their memory.
    ``kernels_read``: what kernels read, which may read a value where another one of the same number lies."""
    if not isinstance(call.target, Opaque):
        return frozenset()
    found: set[str] = set()
    for i in call.target.writes:
        arg = call.args[i]
        assert isinstance(arg, fx.Node)
        is_made = arg.op == "call_function" and is_operator(arg.target) and is_torchs_own(arg.target)  # others may return an input
        alone = list(arg.users) == [call] and list(call.args).count(arg) == 1 and arg.name not in kernels_read
        if is_made and alone and not any(storages(arg) & storages(n) for n in call.graph.nodes if n is not arg):
            found.add(arg.name)
    return frozenset(found)
