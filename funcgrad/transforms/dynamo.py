"""A neighbour of ``torch.compile``: a backend for the graphs that it captures, and what it makes of compiled functions
that it meets.

``torch.compile(model, backend="funcgrad")`` compiles each graph with ``jit``: a graph is a function of tensors,
differentiable and with its writes. A compiled function that is called inside of ``torch.compile`` is one call that is
not looked into: a graph ends there.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .grad import jit


def compile_graph(
    graph: fx.GraphModule, inputs: Sequence[Any], options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend: a graph of ``torch.compile``'s as ``jit`` compiles it. ``options`` are those of ``jit``."""
    module, given = _with_sizes_of_tensors(graph)
    compiled = jit(module, **(options or {}))
    return lambda *values: compiled(*(values[i] for i in given))


def _with_sizes_of_tensors(graph: fx.GraphModule) -> tuple[fx.GraphModule, list[int]]:
    """The graph without the sizes among its inputs that tensors among them have, so that one program serves all; and
    which of its inputs are left."""
    module = copy.copy(graph)
    module.graph = copy.deepcopy(graph.graph)
    places = module.graph.find_nodes(op="placeholder")
    sizes: dict[str, tuple[fx.Node, int]] = {}
    for node in places:
        value = node.meta.get("example_value")
        for d, n in enumerate(value.shape if isinstance(value, Tensor) else ()):
            if isinstance(n, torch.SymInt):
                sizes.setdefault(str(n), (node, d))
    given = []
    for i, node in enumerate(places):
        value = node.meta.get("example_value")
        if not isinstance(value, torch.SymInt) or str(value) not in sizes:
            given.append(i)
            continue
        with module.graph.inserting_before(places[-1].next):
            own = module.graph.call_method("size", sizes[str(value)])
        node.replace_all_uses_with(own)
        module.graph.erase_node(node)
    module.recompile()
    return module, given
