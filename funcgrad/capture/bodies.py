"""Bodies of control flow while tracing: functions of tensors, each recorded as a graph of its own.

A body may use tensors that are none of its operands: those of the function around it, and real ones. It is run once to
find them (which has no effect); from then on they are operands, too, so that autograd, ``vmap`` and the graph hear of
them.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import define, field, frozen
from torch import Tensor, fx

from ..errors import MutationError, UnsupportedTensorError
from ..graphs import Graph, has_effect, tensors_in, type_text
from ..philox import philox
from ..subclasses import inner_tensors, is_traced
from ..torch_private.fakes import fake_below, without_modes
from ..torch_private.functional import FunctionalTensor, from_functional, mutation_count, to_functional
from ..torch_private.modes import function_modes
from ..torch_private.tensors import storage_id, unwrap_transform
from .source_location import user_line

if TYPE_CHECKING:
    from .trace import Trace


@define(eq=False)
class _Search:
    """A body runs to see which tensors it uses that are neither its operands nor made in it. What is ``made`` in it
    are fakes by identity, and memory: a view of that may be taken anew as one asks."""

    made: dict[int, Any] = field(factory=dict)
    memory: set[int] = field(factory=set)
    asks: bool = False
    found: dict[int, tuple[Tensor, Tensor, int]] = field(factory=dict)
    """By identity: as the body knows it, as it is computed with (a view may be taken anew), and how often it was
    written to before."""

    def met(self, known: Tensor, tensor: Tensor) -> None:
        bottom = unwrap_transform(tensor)
        if is_traced(bottom) and not isinstance(bottom, FunctionalTensor):
            raise no_subclass(bottom)
        self.asks = True
        fake = fake_below(bottom)
        self.asks = False
        if fake is not None and id(fake) not in self.made and storage_id(fake) not in self.memory:
            self.found.setdefault(id(known), (known, tensor, mutation_count(bottom)))


Given = Mapping[int, Tensor]
"""What a body is given for each tensor that it closes over, by identity."""


class Bodies:
    """The body that runs now, and the searches for what bodies close over."""

    def __init__(self) -> None:
        self.given: tuple[Given, ...] = ()
        """By the bodies around the one that runs as well, the outermost first: what one is given the next may close
        over."""
        self.searches: list[_Search] = []

    def met(self, known: Tensor, tensor: Tensor) -> Tensor:
        """What a call is made with for an argument that the function knows, and that is this tensor where no body is
        given another one."""
        own = known
        for given in self.given:
            own = given.get(id(own), own)
        if own is not known:
            tensor = own
        for search in self.searches:
            search.met(own, tensor)
        return tensor

    def made(self, args: Sequence[Any], out: Any) -> None:
        """Told of what each operator makes."""
        for search in self.searches:
            if not search.asks:
                search.made.update((id(t), t) for t in tensors_in(out))
                given = {storage_id(t) for arg in args for t in tensors_in(arg)}
                search.memory |= {memory for t in tensors_in(out) if (memory := storage_id(t)) not in given}

    def entered(self, tensor: Tensor) -> None:
        """Told of a tensor that stands for a real one from now on, whatever operators made it."""
        for search in self.searches:
            for fake in map(from_functional, inner_tensors(tensor)):
                search.made.pop(id(fake), None)
                search.memory.discard(storage_id(fake))

    @contextlib.contextmanager
    def running(self, given: tuple[Given, ...]) -> Iterator[None]:
        before, self.given = self.given, given
        try:
            yield
        finally:
            self.given = before

    @contextlib.contextmanager
    def searching(self) -> Iterator[_Search]:
        self.searches.append(_Search())
        try:
            yield self.searches[-1]
        finally:
            self.searches.pop()


@frozen(eq=False)
class Closed:
    """The tensors that bodies close over, as these know them, and as they are given to them."""

    known: tuple[Tensor, ...]
    tensors: tuple[Tensor, ...]

    def __or__(self, other: Closed) -> Closed:
        pairs = {id(k): (k, t) for one in (self, other) for k, t in zip(one.known, one.tensors, strict=True)}
        return Closed(tuple(k for k, _ in pairs.values()), tuple(t for _, t in pairs.values()))


class Body:
    """A function of tensors; after its own operands it is given those that it closes over. It may run again for a
    derivative, when the body it stands in has returned: it knows what that was given."""

    def __init__(self, trace: Trace, function: Callable[..., Any], closed: Closed) -> None:
        self._trace, self._function, self._closed = trace, function, closed.known
        self._around = trace.bodies.given

    def __call__(self, *operands: Tensor) -> tuple[Tensor, ...]:
        own = operands[: len(operands) - len(self._closed)]
        given = dict(zip(map(id, self._closed), operands[len(own) :], strict=True))
        with self._trace.bodies.running((*self._around, given)):
            with _lifting(self._trace):
                outs = self._function(*own)
            return tuple(self._trace.lifting().stand_in(out) for out in outs)


def closed_over(trace: Trace, what: str, function: Callable[..., Any], like: Sequence[Callable[[], Tensor]]) -> Closed:
    """The tensors a function uses, or returns, besides its operands, each of which ``like`` makes one for."""
    with _without_effect(trace), trace.bodies.searching() as search:
        operands = [make() for make in like]
        before = [mutation_count(unwrap_transform(t)) for t in operands]
        with _lifting(trace):
            outs = function(*operands)
        for out in outs:
            trace.lifting().stand_in(out)
        _require_unwritten(what, [(t, n) for t, n in zip(operands, before, strict=True)])
    found = list(search.found.values())
    _require_unwritten(what, [(tensor, before) for _, tensor, before in found])
    return Closed(tuple(known for known, _, _ in found), tuple(tensor for _, tensor, _ in found))


def graph_of(
    trace: Trace, name: str, function: Callable[..., Sequence[Tensor]], like: Sequence[Tensor], own: int | None = None
) -> tuple[Graph | None, list[Tensor]]:
    """What a function of operands like these fakes records (None where nothing is recorded), and the fakes it
    returns, each of contiguous memory of its own; those from ``own`` on, which are copied where they go, as they
    are."""
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

    graph, found = trace.inner_graph(name, [*fakes, *trace.draws.operands], run)
    return graph, found


def functional(trace: Trace, fakes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Functional tensors over fakes that no operator has made."""
    trace.bodies.made((), list(fakes))
    with trace.fakes, trace.functional, torch.no_grad():
        return tuple(to_functional(fake) for fake in fakes)


def draws(graph: Graph | None) -> bool:
    """Whether a body draws random numbers."""
    return graph is not None and any(node.target is philox for node in graph.fx.nodes)


def no_subclass(tensor: Tensor) -> UnsupportedTensorError:
    """For a wrapper subclass where control flow takes plain tensors."""
    return UnsupportedTensorError(
        f"torch.cond takes no tensor subclass, and no loop does: this is a {type_text(tensor)}",
        where=user_line(),
        fix="choose between values with torch.where, or pass the inner tensors",
    )


def _require_unwritten(what: str, tensors: Any) -> None:
    for tensor, before in tensors:
        if mutation_count(unwrap_transform(tensor)) != before:
            raise MutationError(
                f"{what} writes to a tensor {type_text(tensor)} that it is given, or closes over",
                where=user_line(),
                fix="write to a copy, x = x.clone(), and return it",
            )


@contextlib.contextmanager
def _without_effect(trace: Trace) -> Iterator[None]:
    """What runs inside has no effect on the program: draws and checks leave no nodes. Others stay: what is outside
    may be looked at anew there (functionalisation takes views again after a write), and is what it is from then on;
    what nobody reads is removed in the end."""
    last = None if trace.graph is None else next(reversed(trace.graph.nodes), None)
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
    lifter = trace.lifting()
    return contextlib.nullcontext() if any(type(mode) is type(lifter) for mode in function_modes()) else lifter
