"""What a rewriting makes of a graph, for who wants to see it."""

from __future__ import annotations

from collections.abc import Callable

from ..call_text import call_text
from ..graphs import Graph
from ..options import ENVIRONMENT, log
from ..show.text import elided

_LEVEL, _SHOWN = 5, 240
"""The level of ``FUNCGRAD_LOG``, and how many characters of a call are shown."""


def logged(what: str, graph: Graph, rewrite: Callable[[Graph], Graph]) -> Graph:
    """A graph rewritten; what came of it is logged (``FUNCGRAD_LOG=5``), if anything did."""
    if ENVIRONMENT.log < _LEVEL:
        return rewrite(graph)
    before = _calls_of(graph)  # in the graph itself something may be rewritten, too
    new = rewrite(graph)
    after = _calls_of(new)
    changes = [
        *(f"  - {line}" for line in before if line not in after),
        *(f"  + {line}" for line in after if line not in before),
    ]
    if not changes and before != after:
        changes = ["  the same calls in another order"]
    if changes:
        log(_LEVEL, "\n".join([f"{graph.name} is rewritten: {what}", *changes]))
    return new


def _calls_of(graph: Graph) -> list[str]:
    return [f"{node.name} = {elided(call_text(node), _SHOWN)}" for node in graph.fx.nodes if node.op == "call_function"]
