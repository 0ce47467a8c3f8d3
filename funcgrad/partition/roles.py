"""What each node of a joint graph is to the partition: which pass it belongs to, whether its value may be saved, or
computed again."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor, fx

from ..errors import PartitionError
from ..graphs import Graph, ancestors, has_effect, is_view, nbytes, pass_of, storages, value_of, where_of
from ..slots import Final, Seed, of_backward
from ..tags import Tag, tags_of

RECOMPUTED = Tag.PREFER_RECOMPUTE | Tag.MUST_RECOMPUTE


class Roles:
    """Which nodes depend on incoming gradients, which the function's outputs need, and which the gradients need."""

    def __init__(self, graph: Graph, is_split: bool) -> None:
        outs = graph.gives
        nodes = list(graph.fx.nodes)
        self.incoming: set[fx.Node] = set()
        for node in nodes:
            if Tag.MUST_BE_IN_BACKWARD in tags_of(node).flags or any(i in self.incoming for i in node.all_input_nodes):
                self.incoming.add(node)
        pinned = [n for n in nodes if Tag.MUST_BE_IN_FORWARD in tags_of(n).flags]
        # a program that runs as one may go on after its backward pass: a view of a gradient is taken when it is read
        late = {
            v
            for s, v in outs
            if isinstance(v, fx.Node) and v in self.incoming and (pass_of(v) == "backward" or not is_split)
        }
        self.backward_outs = {s for s, v in outs if of_backward(s) or (v in late and not is_split)}
        """Gradients; in a program that runs as one, what its own backward pass wrote to, or stores, too."""
        self.forward = ancestors([v for s, v in outs if not of_backward(s) and v not in late] + pinned)
        self.effects = [n for n in nodes if n in self.incoming and has_effect(n)]
        """What backward does besides computing gradients: it draws, seeds, checks."""
        self.backward = ancestors([v for s, v in outs if of_backward(s) or v in late] + self.effects)
        self.written = {n for s, n in graph.given if Final(s) in graph.signature.outs}
        self.is_split = is_split
        self._callers = {
            place for s, v in outs if not of_backward(s) and isinstance(v, fx.Node) for place in storages(v)
        }
        self.drawn = made_of_seeds(graph) if is_split else set()
        for node in self.forward & self.incoming:
            because = tags_of(node).reason(Tag.MUST_BE_IN_FORWARD) or "an output of the function needs it"
            root = next((n for n in ancestors([node]) if Tag.MUST_BE_IN_BACKWARD in tags_of(n).flags), node)
            raise PartitionError(
                f"{node.name} must be in forward ({because}) but needs {root.name}, which must be in backward "
                f"({tags_of(root).reason(Tag.MUST_BE_IN_BACKWARD)})",
                where=where_of(node),
            )

    def is_late(self, node: fx.Node) -> bool:
        """Whether the node is of backward whatever is saved: it needs an incoming gradient, or was recorded in the
        backward pass."""
        return node in self.incoming or pass_of(node) == "backward"

    def is_safe(self, node: fx.Node) -> bool:
        """Whether the value is the same when backward runs: what forward writes to holds another one by then; what
        eager PyTorch does not keep, the caller may write to."""
        return node not in self.written and (not self.is_callers(node) or _is_read_late(node))

    def is_callers(self, node: fx.Node) -> bool:
        """Whether the caller may write to the value before backward runs: an input, or in the memory of an output."""
        if not self.is_split or not isinstance(value_of(node), Tensor):
            return False
        return (node.op == "placeholder" and node not in self.drawn) or storages(node) <= self._callers


def made_of_seeds(graph: Graph) -> set[fx.Node]:
    """Seeds, and what is computed from them alone."""
    found = {n for s, n in graph.given if isinstance(s, Seed)}
    for node in graph.fx.nodes:
        if node.op == "call_function" and node.all_input_nodes and found.issuperset(node.all_input_nodes):
            found.add(node)
    return found


def _is_read_late(node: fx.Node) -> bool:
    """Whether eager PyTorch keeps the value: its backward pass reads it, or a call that it makes again."""
    return any(
        _is_read_late(user) if is_view(user) else pass_of(user) == "backward" or tags_of(user).flags & RECOMPUTED
        for user in node.users
        if user.op != "output"
    )


def price_of_saving(node: fx.Node, view: bool) -> float:
    """Bytes that saving a node keeps alive: an input is alive anyway; a view is computed again from what it looks
    at."""
    if node.op in ("placeholder", "get_attr"):
        return 1
    value = value_of(node)
    if not isinstance(value, Tensor):
        return 1 if not isinstance(value, (list, tuple)) else math.inf
    return math.inf if view or Tag.MUST_RECOMPUTE in tags_of(node).flags else nbytes(value) + 1


def price_again(node: fx.Node, view: bool, roles: Roles, costs: Mapping[fx.Node, float]) -> float:
    """What computing a node in backward costs, in bytes: nothing where forward does not need it, infinity where it
    must run once."""
    flags = tags_of(node).flags
    if node.op == "get_attr" or view:
        return 0
    if Tag.MUST_SAVE in flags:
        return math.inf
    if not isinstance(value_of(node), (Tensor, list, tuple)):
        return 0
    is_free = node not in roles.forward or flags & RECOMPUTED or (node in roles.drawn and (node in costs or not costs))
    return 0 if is_free else costs.get(node, math.inf)
