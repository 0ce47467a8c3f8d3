"""The backward pass of a program that runs as two halves, recorded for gradients of all outputs; and once more for each
pass in which Python hears of it that some of them are not there (``Joint.told``)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import define
from torch import Tensor, fx

from ..autograd_state import ends_above, has_dead_end, has_history, leaves_below, python_node_below
from ..errors import FuncgradError
from ..graphs import value_of
from ..slots import Base, Final, Grad, Out, Slot, Without
from ..subclasses import inner_tensors, parts
from ..symbolic.sizes import SizeError
from ..torch_private.functional import from_functional, replace_value
from ..torch_private.tensors import storage_id
from .error_translation import named_error
from .floats import NotSymbolicError
from .inner import Inner, Ran
from .passages import Passages, arriving_at, told_of
from .source_location import is_defect
from .trace import Trace


class BackwardError(Exception):
    """Differentiating failed where calling did not; the cause is what eager PyTorch would raise in ``backward()``."""


def fails_in_eager(error: Exception) -> bool:
    """Whether eager PyTorch may raise, too, what came out of a backward pass that was traced: an error of the caller's
    Python, or of PyTorch's; or it knows then what a trace asked for. Not what is refused whatever runs, nor a
    defect."""
    if isinstance(error, (NotSymbolicError, SizeError)):
        return False
    return isinstance(error, RuntimeError) or not (isinstance(error, FuncgradError) or is_defect(error))


def traced_with_backward(trace: Trace, inner: Inner, ins: Sequence[Any], ran: Ran) -> dict[Slot, Any]:
    """Outputs, gradients, and what backward writes to. Outputs are read off now: backward may write to what they look
    at."""
    outs: dict[Slot, Any] = {own: node for slot, value in ran.outs for own, node in trace.results(slot, value).items()}
    memory = [part for slot, value in ran.memory.items() for part in parts(slot, value)]
    before = {slot: trace.result(value) for slot, value in memory}
    # inputs are leaves in this run: what is computed of a view that has no history may have one here
    without = {inner.named(o.path) for o in inner.facts.outputs if o.view is None and not o.requires_grad}
    active = [
        (slot, v)
        for slot, v in ran.outs
        if isinstance(v, Tensor) and has_history(v) and inner.facts.tracks(slot) and slot not in without
    ]
    leaves = [
        (slot, ran.own_leaves.get(slot, x))
        for slot, x in zip(inner.signature.ins, ins, strict=True)
        if isinstance(x, Tensor)
    ]
    targets = [(slot, x) for slot, x in leaves if x.requires_grad]
    trace.rereads = {storage_id(value): (slot, value) for slot, value in memory}  # type: ignore[misc]
    # asked now: once backward has written, autograd may forbid to ask
    ends = [(slot, v.grad_fn, v.output_nr) for slot, v in active]
    graph = trace.graph

    def node_of(tensor: Tensor) -> fx.Node | None:
        return trace.result(tensor) if trace.graph is graph else None  # type: ignore[no-any-return]

    passages = trace.passages = trace.writes.passages = Passages.of(ends, targets, node_of, trace.listeners)
    made = [(slot, value) for slot, value in ran.outs if isinstance(slot, (Out, Base)) and isinstance(value, Tensor)]
    with trace.backward_pass():
        seeds = [(s, v, trace.mark_start_of_backward(trace.cotangent(s, v))) for s, v in active]  # type: ignore[arg-type]
        passages.begin([trace.result(t) for _, _, seed in seeds for t in inner_tensors(seed)])
        passes = _Passes(trace, passages, seeds, targets, [*ran.memory.items(), *made], outs | before)
        try:
            outs |= passes.run()
        except Exception as error:
            if not fails_in_eager(error):
                raise
            raise BackwardError from error
        for absent in passages.told.passes([slot for slot, _ in active]):
            outs |= passes.run_without(absent)
    return outs


@define(eq=False)
class _Passes:
    """Backward passes from the same outputs, which are recorded into one graph."""

    trace: Trace
    passages: Passages
    seeds: Sequence[tuple[Slot, Tensor, Tensor]]
    """The outputs, each with its incoming gradient."""
    targets: Sequence[tuple[Slot, Tensor]]
    held: Sequence[tuple[Slot, Tensor]]
    """What a pass may write to."""
    before: dict[Slot, Any]
    """What that held before any."""

    def run(self, absent: frozenset[Slot] = frozenset()) -> dict[Slot, Any]:
        """What a pass gives in which no gradient comes in for the ``absent``."""
        trace, outs = self.trace, dict[Slot, Any]()
        seeds = [(v, seed) for slot, v, seed in self.seeds if slot not in absent]
        self.passages.absent = absent
        try:
            with self.passages.noting_arrivals(self.targets):
                targets, told = [x for _, x in self.targets], bool(self.passages.told)
                found = gradients([v for v, _ in seeds], targets, [t for _, t in seeds], told, bool(trace.hooks.found))
            for (slot, _), gradient in zip(self.targets, found, strict=True):
                if gradient is not None:
                    outs |= trace.results(_named(Grad(slot), absent), gradient)  # type: ignore[arg-type]
                    self.passages.has_arrived(slot)
            self.passages.end_writes()
            late = trace.late_nodes()
            for slot, value in self.held:
                now = {own: trace.result(inner) for own, inner in parts(slot, value)}
                if any(node is not late.get(own, self.before.get(own)) for own, node in now.items()):  # type: ignore[call-overload]
                    outs |= trace.results(_named(Final(slot, "backward"), absent), value)
        finally:
            self.passages.is_done()
            if self.passages.told:
                self._as_before()
        return outs

    def run_without(self, absent: frozenset[Slot]) -> dict[Slot, Any]:
        """The same of a pass that somebody may ask for."""
        outs, told = dict[Slot, Any](), self.passages.told

        def keep(error: Exception) -> None:
            reads = self.trace.reads
            found = named_error(error, reads.allowed, reads.callback) or error
            found.__cause__ = found.__context__ = None  # their frames hold the trace
            told.traced[absent] = found.with_traceback(None)

        told.traced[absent] = None
        with _raised_when_asked_for(self.trace, keep):
            outs = self.run(absent)
        return outs

    def _as_before(self) -> None:
        """What a pass has written to holds what it held before: the next one is another, not a later one."""
        late = self.trace.late_nodes()
        for slot, value in self.held:
            for own, inner in parts(slot, value):
                node = late.get(own, self.before.get(own))  # type: ignore[call-overload]
                if isinstance(node, fx.Node) and from_functional(inner) is not value_of(node):
                    replace_value(inner, value_of(node))


def _named(slot: Slot, absent: frozenset[Slot]) -> Slot:
    return Without(slot, absent) if absent else slot


def gradients(
    outs: Sequence[Tensor],
    targets: Sequence[Tensor],
    seeds: Sequence[Tensor],
    keeps_graph: bool,
    calls_hooks: bool = False,
) -> Sequence[Tensor | None]:
    """The gradients of leaves. ``autograd.grad`` runs only what leads to a target; where there is more (the caller's
    Python, which may have effects, another leaf, what leads nowhere and may find that what it saved was written to),
    all of it runs, as in ``backward()``."""
    known = {id(target) for target in targets}
    more = (
        calls_hooks
        or python_node_below(outs)
        or has_dead_end([out.grad_fn for out in outs])
        or not all(id(leaf) in known for leaf in leaves_below(outs))
    )
    if not more:
        return torch.autograd.grad(outs, targets, seeds, retain_graph=keeps_graph, allow_unused=True)
    for target in targets:
        target.grad = None  # it may be the function's own
    torch.autograd.backward(outs, seeds, retain_graph=keeps_graph)
    return [target.grad for target in targets]


def run_passes(trace: Trace, roots: Sequence[Tensor], seeds: Sequence[Tensor]) -> None:
    """A backward pass from all roots; and those from some that are recorded, too: Python may read other tensors
    there."""
    ends = [(Out(str(i)), v.grad_fn, v.output_nr) for i, v in enumerate(roots)]
    outs = ends_above([end for _, end, _ in ends])
    told = told_of(ends, outs, arriving_at(ends, outs), trace.listeners)
    torch.autograd.backward(roots, seeds, retain_graph=bool(told))
    for absent in told.passes([slot for slot, _, _ in ends]):
        here = [i for i, (slot, _, _) in enumerate(ends) if slot not in absent]
        with _raised_when_asked_for(trace):
            torch.autograd.backward([roots[i] for i in here], [seeds[i] for i in here], retain_graph=True)


@contextlib.contextmanager
def _raised_when_asked_for(trace: Trace, keep: Callable[[Exception], None] = lambda error: None) -> Iterator[None]:
    """Around a pass that somebody may ask for: what it raises, it raises then."""
    refused = trace.refused
    try:
        yield
    except (NotSymbolicError, SizeError):
        raise
    except Exception as error:
        trace.refused = refused
        keep(error)
