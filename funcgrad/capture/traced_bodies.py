"""Bodies of control flow while tracing: functions of tensors, each recorded as a graph of its own.

A body may use tensors that are none of its operands: those of the function around it, and real ones. It is run once to
find them (which has no effect); from then on they are operands, too, so that autograd, ``vmap`` and the graph hear of
them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from .. import refusals
from ..graphs import Graph, has_effect, last_node, type_text
from ..inside import having
from ..philox import philox
from ..state.lines import user_line
from ..torch_private.fakes import without_modes
from ..torch_private.functional import FunctionalTensor, from_functional, mutation_count, to_functional
from ..torch_private.modes import function_modes
from ..torch_private.tensors import storage_id, unwrap_transform
from .bodies import Search
from .trace import Trace

Closed = dict[int, tuple[Tensor, Tensor]]
"""The tensors that bodies close over, by identity: as these know them, and as they are given to them."""


class Body:
    """A function of tensors; after its own operands it is given those that it closes over. It may run again for a
    derivative, when the body it stands in has returned: it knows what that was given."""

    def __init__(self, trace: Trace, function: Callable[..., Any], closed: Closed) -> None:
        self._trace, self._function, self._closed = trace, function, closed
        self._around = trace.bodies.given

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        own = operands[: len(operands) - len(self._closed)]
        given = dict(zip(self._closed, operands[len(own) :], strict=True))
        with having(self._trace.bodies, given=(*self._around, given)):
            with _lifting(self._trace):
                outs = self._function(*own)
            return tuple(self._trace.operand(out) for out in outs)


def closed_over(trace: Trace, what: str, function: Callable[..., Any], like: Sequence[Callable[[], Tensor]]) -> Closed:
    """The tensors a function uses, or returns, besides its operands, each of which ``like`` makes one for."""
    search = Search()
    with _without_effect(trace), having(trace.bodies, searches=[*trace.bodies.searches, search]):
        operands = [make() for make in like]
        before = [mutation_count(unwrap_transform(t)) for t in operands]
        with _lifting(trace):
            outs = function(*operands)
        for out in outs:
            trace.operand(out)
        _require_unwritten(what, zip(operands, before, strict=True))
    _require_unwritten(what, [(tensor, before) for _, tensor, before in search.found.values()])
    return {key: (known, tensor) for key, (known, tensor, _) in search.found.items()}


def graph_of(
    trace: Trace, name: str, function: Callable[..., Sequence[Tensor]], like: Sequence[Tensor], own: int | None = None
) -> tuple[Graph | None, list[Tensor]]:
    """What a function of operands like these fakes records (None where nothing is recorded), and the fakes it returns,
    each of contiguous memory of its own; those from ``own`` on, which are copied where they go, as they are."""
    with without_modes(), trace.fakes:
        fakes = [torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device) for t in like]
    operands = functional(trace, fakes)

    def run() -> list[Tensor]:
        outs = function(*operands)
        _require_unwritten(name, [(t, 0) for t in operands])
        taken = {storage_id(fake) for fake in fakes}
        found = []
        for i, out in enumerate(map(trace.stand_in, outs)):
            fake = from_functional(out if own is not None and i >= own else out.contiguous())
            if storage_id(fake) in taken and (own is None or i < own):
                fake = from_functional(out.clone(memory_format=torch.contiguous_format))
            taken.add(storage_id(fake))
            found.append(fake)
        return found

    return trace.inner_graph(name, [*fakes, *trace.draws.operands], run)


def fake_of(trace: Trace, tensor: Tensor, refusal: Callable[[Tensor], Exception]) -> Tensor:
    """The fake of a plain tensor of the trace; a wrapper subclass is refused."""
    own = trace.stand_in(tensor)
    if not isinstance(own, FunctionalTensor):
        raise refusal(own)
    return from_functional(own)


def functional(trace: Trace, fakes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Functional tensors over fakes that no operator has made."""
    trace.bodies.made((), list(fakes))
    with trace.fakes, trace.functional, torch.no_grad():
        return tuple(to_functional(fake) for fake in fakes)


def draws(graph: Graph | None) -> bool:
    """Whether a body draws random numbers."""
    return graph is not None and any(node.target is philox for node in graph.fx.nodes)


def _require_unwritten(what: str, tensors: Any) -> None:
    for tensor, before in tensors:
        if mutation_count(unwrap_transform(tensor)) != before:
            raise refusals.BODY_WRITES(what, type_text(tensor), where=user_line())


@contextlib.contextmanager
def _without_effect(trace: Trace) -> Iterator[None]:
    """What runs inside has no effect on the program: draws and checks leave no nodes. Others stay: what is outside may
    be looked at anew there (functionalisation takes views again after a write), and is what it is from then on; what
    nobody reads is removed in the end."""
    last = last_node(trace.graph) if trace.graph is not None and len(trace.graph.nodes) else None
    with trace.draws.undone():
        yield
    if trace.graph is not None:
        new = list(itertools.takewhile(lambda node: node is not last, reversed(trace.graph.nodes)))
        lost: set[fx.Node] = set()
        for node in reversed(new):
            if node.op == "call_function" and (has_effect(node) or not lost.isdisjoint(node.all_input_nodes)):
                lost.add(node)
        for node in new:
            if node in lost:
                trace.graph.erase_node(node)


def _lifting(trace: Trace) -> contextlib.AbstractContextManager[Any]:
    """Inside, the trace sees all calls; a backward pass sees them already."""
    return contextlib.nullcontext() if trace.lifter in function_modes() else trace.lifter
