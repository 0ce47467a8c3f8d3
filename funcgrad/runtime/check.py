"""``FUNCGRAD_VERIFY=1``: on a first call every value of a program is compared with eager PyTorch's, and the first that
differs is named.

The graph is compiled once more with all of its values as results, in the same groups, and run beside an interpreter
that calls ATen node by node. It costs what a first call costs, and memory for every value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from ..backends.backend import Backend, Runnable
from ..errors import VerificationError
from ..generators import own_draws
from ..graph_primitives import Opaque
from ..graphs import Graph, call_text, copy_nodes, value_of, where_of
from ..slots import Cotangent, Saved, Slot
from ..symbolic.sizes import hint

_ROUNDING = {
    torch.float64: 1e-9, torch.complex128: 1e-9, torch.float32: 1e-3, torch.complex64: 1e-3, torch.bfloat16: 5e-2,
    torch.float16: 1e-2,
}  # fmt: skip
"""Of the largest element: far more than rounding, far less than a wrong value."""


_VALUES = (Tensor, torch.SymInt, torch.SymFloat)


def require_same(
    graphs: Sequence[Graph], runnables: Sequence[Runnable], inputs: Mapping[Slot, Any], backend: Backend
) -> None:
    """Run each graph both ways on the inputs (incoming gradients are random). Raises ``VerificationError``, with the
    caller's line."""
    opaque = [n for graph in graphs for n in graph.fx.nodes if isinstance(n.target, Opaque)]
    if opaque:
        raise VerificationError(
            f"{opaque[0].name} is an opaque call, which runs once: this program cannot be run beside eager PyTorch",
            where=where_of(opaque[0]),
            fix="unset FUNCGRAD_VERIFY",
        )
    known = dict(inputs)
    for graph, runnable in zip(graphs, runnables, strict=True):
        values = [known[s] if s in known else _made_up(s, n) for s, n in graph.given]
        nodes = [n for n in graph.fx.nodes if n.op == "call_function" and isinstance(value_of(n), _VALUES)]
        outs: list[tuple[Slot, Any]] = [(Saved(n.name), n) for n in nodes]
        every = copy_nodes(graph, graph.fx.nodes, graph.given, outs, graph.name)
        with torch.no_grad():
            with own_draws():  # the same for each of them
                expected = every.run(*values)
            with own_draws():
                found = backend.build(backend.emit(backend.schedule(backend.lower(every))))(*values)
            with own_draws():
                given = zip(graph.placeholders, values, strict=True)
                own = [v.clone() if node.name in graph.donated else v for node, v in given]
                results = runnable(own) if graph.is_boxed else runnable(*own)
        for node, a, b in zip(nodes, found, expected, strict=True):
            if isinstance(b, Tensor):
                _require_close(graph, node, a, b)
        value_by_node = dict(zip(nodes, expected, strict=True))
        for node, a in zip(graph.results, results, strict=True):  # fused otherwise, as nothing else has to be stored
            if isinstance(value_by_node.get(node), Tensor):
                _require_close(graph, node, a, value_by_node[node])
        known |= {Saved(n.name): b for n, b in zip(nodes, expected, strict=True)}


def _made_up(slot: Slot, node: fx.Node) -> Any:
    fake = value_of(node)
    if not isinstance(slot, Cotangent):
        raise VerificationError(
            f"the input {slot} is not known before the call, so this program cannot be verified",
            fix="unset FUNCGRAD_VERIFY",
        )
    return torch.randn([hint(n) for n in fake.shape], generator=torch.Generator()).to(fake.dtype)


def _require_close(graph: Graph, node: fx.Node, found: Tensor, expected: Tensor) -> None:
    if "empty" in str(node.target):
        return  # it may hold anything
    limit = _ROUNDING.get(expected.dtype, 0.0)
    largest = float(expected[expected.isfinite()].abs().max()) if limit and bool(expected.isfinite().any()) else 0.0
    try:
        torch.testing.assert_close(
            found, expected, rtol=limit, atol=limit * max(1.0, largest), equal_nan=True, check_stride=False
        )
    except AssertionError as error:
        raise VerificationError(
            f"{node.name} = {call_text(node)} of {graph.name} differs from eager PyTorch: {error}",
            where=where_of(node),
            fix='use backend="aten", and report this',
        ) from error
