"""The aten backend: the graph as one straight-line Python function of ATen calls.

A pointwise call whose first operand dies writes its result there; every other value is freed right after its last
reader. Nothing is fused, so the results are bit-equal to eager PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from attrs import evolve
from torch import Tensor, fx

from ..graph_primitives import Opaque
from ..graphs import (
    Graph,
    has_effect,
    is_expanded,
    is_getitem,
    is_random,
    storages,
    value_of,
)
from ..lifetimes import Lifetimes
from ..loops.lower import Target
from ..machine import CPU, Machine
from ..memory.schedule import Kernels, Schedule
from ..memory.steps import Call, Extern, Free, Step
from ..opaque_calls import given_whole
from ..source import Source, compile_function
from ..torch_private.operators import is_operator, is_torchs_own
from ..torch_private.symbols import known_same
from .backend import Runnable, compiled_bodies
from .fused_python import address, empty_on_cpu, print_python
from .printer import in_place_form


class AtenBackend:
    """See the module's docstring."""

    name = "aten"
    rewritings: Mapping[str, Callable[[Graph], Graph]] = {}

    def __init__(self, machine: Machine = CPU) -> None:
        self.target = Target(machine, fuses=False)

    def lower(self, graph: Graph) -> Kernels:
        calls = [n for n in graph.fx.nodes if n.op == "call_function"]
        return Kernels(graph, tuple(Extern(n, "the aten backend fuses nothing") for n in calls))

    def schedule(self, kernels: Kernels) -> Schedule:
        graph = kernels.graph
        nodes = [extern.node for extern in kernels.steps if isinstance(extern, Extern)]
        lasting = {r for r in (*graph.results, *graph.fx.find_nodes(op="get_attr")) if isinstance(r, fx.Node)}
        donated = [n for n in graph.placeholders if n.name in graph.donated]
        # what raises leaves what it was given as it was
        uses = [(*n.all_input_nodes, n, *(donated if has_effect(n) else ())) for n in nodes]
        lives = Lifetimes.of(uses, lasting)
        sharers = _sharers(graph)
        steps: list[Step] = []
        for node, dead in zip(nodes, lives.dying, strict=True):
            into = next((d for d in dead if _can_write_into(d, node, sharers, graph.donated)), None)
            steps.append(Call(node, into, whole=given_whole(node)))
            gone = tuple(d.name for d in dead if d is not into)
            if gone:
                steps.append(Free(gone))
        return Schedule(graph, tuple(steps))

    def emit(self, schedule: Schedule) -> tuple[Source, ...]:
        return (print_python(schedule, empty_on_cpu, address),)

    def build(self, sources: Sequence[Source]) -> Runnable:
        function: Runnable = compile_function(evolve(sources[0], names=compiled_bodies(self, sources[0].names)))
        return function


# ── in place ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _sharers(graph: Graph) -> dict[int, list[fx.Node]]:
    """Memory → the nodes that look at it, in order."""
    sharers: dict[int, list[fx.Node]] = {}
    for node in graph.fx.nodes:
        for storage in storages(node):
            sharers.setdefault(storage, []).append(node)
    return sharers


def _can_write_into(dying: fx.Node, node: fx.Node, sharers: dict[int, list[fx.Node]], donated: Collection[str]) -> bool:
    """Whether ``node`` may write its result over ``dying``.

    It is the first operand of an op that has an in-place form, looks exactly like the result, is memory of this
    program alone, and no other value that looks at that memory is alive.
    """
    if not node.args or node.args[0] is not dying or is_random(node) or in_place_form(node.target) is None:
        return False
    before, after = value_of(dying), value_of(node)
    if not isinstance(before, Tensor) or not isinstance(after, Tensor) or not _look_alike(before, after):
        return False
    if (
        list(node.all_input_nodes).count(dying) != 1
        or sum(a is dying for a in (*node.args, *node.kwargs.values())) != 1
    ):
        return False
    if is_expanded(before) or any(_may_return(user) for user in dying.users):
        return False
    (memory,) = storages(dying)
    # a custom operator may return its own input, whatever its fake says
    maker = dying.all_input_nodes[0] if is_getitem(dying) else dying
    is_own = is_operator(maker.target) and is_torchs_own(maker.target)
    return sharers[memory] == [dying] and (is_own or dying.name in donated)


def _may_return(user: fx.Node) -> bool:
    """Whether a call may hold on to what it is given, or return it: the caller's Python, and operators that are not
    torch's own."""
    return isinstance(user.target, Opaque) or (is_operator(user.target) and not is_torchs_own(user.target))


def _look_alike(a: Tensor, b: Tensor) -> bool:
    """At every size."""
    kinds_alike = (a.dtype, a.device, a.dim()) == (b.dtype, b.device, b.dim())
    return kinds_alike and known_same(a.shape, b.shape) and known_same(a.stride(), b.stride())
