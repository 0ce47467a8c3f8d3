"""Which nodes of autograd make the calls of a program's own backward pass: in one from some of the outputs alone, eager
PyTorch runs some of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import define, evolve, field
from torch import Tensor, fx

from ..autograd_state import ends_above, has_history, next_nodes
from ..graphs import Passage, Write, is_constant_gradient, last_node
from ..joint import Told
from ..slots import Slot
from ..torch_private.autograd import custom_function_of, is_freed, running_node
from ..torch_private.functional import FunctionalTensor
from ..torch_private.modes import without_function_modes
from .listeners import Listeners

Mark = tuple[Tensor, fx.Node, fx.Node, Passage]
"""A tensor that is about to be written to, the node that computes it, the last of the graph, who writes."""


@define(eq=False)
class Passages:
    """The nodes of a backward pass, each with what is known of it. ``node_of``: what computes a tensor; None while a
    graph inside is recorded, of which nothing is marked."""

    _node_of: Callable[[Tensor], fx.Node | None]
    _found: dict[Any, Passage] = field(factory=dict)
    together: dict[Slot, frozenset[Slot]] = field(factory=dict)
    """For each output those from which a backward pass runs some of the same nodes of which it frees something;
    nothing where all do."""
    reached: dict[Slot, frozenset[Slot]] = field(factory=dict)
    """The inputs to which some of the outputs do not lead, each with those that do."""
    through: dict[Slot, frozenset[Slot]] = field(factory=dict)
    """The outputs through which passes from others go, each with these."""
    told: Told = field(factory=Told)
    absent: frozenset[Slot] = frozenset()
    """The outputs for which no gradient comes in, in the pass that is recorded."""
    arrivals: dict[Slot, None] = field(factory=dict)
    """The inputs, in the order in which gradients come to them."""
    _last: Passage | None = None
    _body: Passage | None = None
    """That of the custom function whose own backward runs: hooks on its results come before."""
    _marks: list[Mark] = field(factory=list)
    _incoming: dict[fx.Node, bool] = field(factory=dict)

    def begin(self, seeds: Sequence[fx.Node]) -> None:
        """The pass begins with these gradients."""
        self._incoming = dict.fromkeys(seeds, True)

    @contextlib.contextmanager
    def noting_arrivals(self, targets: Sequence[tuple[Slot, Tensor]]) -> Iterator[None]:
        """Inside, a pass goes on to inputs."""
        with contextlib.ExitStack() as stack:
            with without_function_modes():
                for slot, x in targets:
                    stack.enter_context(x.register_hook(functools.partial(self._arrives, slot)))  # type: ignore[no-untyped-call]
            yield

    def _arrives(self, slot: Slot, _: Any) -> None:
        self.arrivals.setdefault(slot)

    @staticmethod
    def of(
        ends: Sequence[tuple[Slot, Any, int]],
        targets: Sequence[tuple[Slot, Tensor]],
        node_of: Callable[[Tensor], fx.Node | None],
        listeners: Listeners,
    ) -> Passages:
        """Of the pass from the nodes that computed outputs, each as its result of that number, to what computed
        inputs."""
        outs = ends_above([end for _, end, _ in ends])
        slots = [slot for slot, _, _ in ends], [slot for slot, _ in targets]
        targets_at: dict[int, int] = {}
        for i, (_, x) in enumerate(targets):
            key = id(x.grad_fn if has_history(x) else x)
            targets_at[key] = targets_at.get(key, 0) | 1 << i
        inputs: dict[Any, int] = {}
        for node in reversed(outs):
            own = targets_at.get(id(node.variable if hasattr(node, "variable") else node), 0)
            inputs[node] = functools.reduce(int.__or__, (inputs[n] for n in next_nodes(node)), own)

        @functools.cache
        def named(mask: int, of_inputs: bool) -> frozenset[Slot]:
            return frozenset(slot for i, slot in enumerate(slots[of_inputs]) if mask >> i & 1)

        def passage(node: Any) -> Passage:
            return Passage(named(outs[node], False), named(inputs[node], True))

        shared = {named(mask, False) for node, mask in outs.items() if is_freed(node)}
        together = {slot: frozenset[Slot]().union(*(own for own in shared if slot in own)) for slot in slots[0]}
        differ = any(len(own) < len(ends) for own in together.values())
        led_to = dict.fromkeys((slot for slot, _ in targets), frozenset[Slot]())
        for node, mask in outs.items():
            own = targets_at.get(id(node.variable if hasattr(node, "variable") else node), 0)
            led_to |= dict.fromkeys(named(own, True), named(mask, False))
        reached = {slot: own for slot, own in led_to.items() if len(own) < len(ends)}
        at = arriving_at(ends, outs)
        further = {
            slot: named(at[node][k], False) - {other for other, *end in ends if end == [node, k]}
            for slot, node, k in ends
        }
        through = {slot: others for slot, others in further.items() if others}
        told = told_of(ends, outs, at, listeners)
        found = Passages(
            node_of, {node: passage(node) for node in outs}, together if differ else {}, reached, through, told
        )
        if len(ends) > 1:
            found._hear_of_python(listeners)
        return found

    def has_arrived(self, target: Slot) -> None:
        """A gradient has come to an input: where no output leads to it, from a pass that Python started within this
        one, whichever outputs that is for."""
        if self.reached.get(target) == frozenset():
            del self.reached[target]

    def _hear_of_python(self, listeners: Listeners) -> None:
        """When the backward of a custom ``autograd.Function`` runs: what it gives may depend on no gradient that
        comes in."""
        for node, passage in self._found.items():
            if custom_function_of(node) is not None:
                body = evolve(passage, is_python=True, takes_zeros=listeners.materializes(node))
                node.register_prehook(functools.partial(self._begins, body))
                node.register_hook(self._is_done)

    def _begins(self, body: Passage, _: Any) -> None:
        self._body = body

    def _is_done(self, given: Sequence[Tensor | None], _: Any) -> tuple[Tensor | None, ...]:
        found = tuple(map(self.as_gradient, given))
        self._body = None
        return found

    def as_gradient(self, value: Tensor | None) -> Tensor | None:
        """A gradient that Python gives, marked as one where it depends on none that comes in."""
        node = self._node_of(value) if isinstance(value, FunctionalTensor) else None
        if value is None or node is None or self._is_incoming(node):
            return value
        own = value.clone()
        if (node := self._node_of(own)) is not None:
            node.meta["is_gradient"] = True
        return own

    def _is_incoming(self, node: fx.Node) -> bool:
        """Whether something is computed of a gradient that comes in."""
        pending = [node]
        while pending:
            last = pending[-1]
            unknown = [n for n in last.all_input_nodes if n not in self._incoming]
            if not unknown:
                self._incoming[last] = is_constant_gradient(last) or any(
                    self._incoming[n] for n in last.all_input_nodes
                )
                pending.pop()
            pending += unknown
        return self._incoming[node]

    @property
    def now(self) -> Passage | None:
        """That of the node that runs, or in which another pass runs."""
        node = running_node()
        if node is None:
            return None
        self._last = self._found.get(node, self._last)
        return self._body or self._last

    def is_done(self) -> None:
        """A pass is; another one may follow."""
        self._last = self._body = None

    def begin_write(self, tensors: Sequence[Tensor]) -> None:
        """The node that runs is about to write to tensors."""
        self.end_writes()
        passage = self.now
        for tensor in tensors:
            before = self._node_of(tensor)
            if passage is not None and before is not None:
                self._marks.append((tensor, before, last_node(before.graph), passage))

    def end_writes(self) -> None:
        """Mark what is written by now."""
        marks, self._marks = self._marks, []
        for tensor, before, last, passage in marks:
            after = self._node_of(tensor)
            if after is None:
                self._marks.append((tensor, before, last, passage))
            elif after > last:
                after.meta["write"] = Write(before.name, passage)


def arriving_at(ends: Sequence[tuple[Slot, Any, int]], outs: Mapping[Any, int]) -> Mapping[Any, Mapping[int, int]]:
    """The results of nodes to which a pass comes, by number, each with the outputs that lead to it, a bit for each;
    ``outs``: the same of nodes."""
    edges = [(end, at, 1 << i) for i, (_, end, at) in enumerate(ends)]
    edges += [(below, at, mask) for node, mask in outs.items() for below, at in node.next_functions]
    arriving: dict[Any, dict[int, int]] = {}
    for below, at, mask in edges:
        own = arriving.setdefault(below, {})
        own[at] = own.get(at, 0) | mask
    return arriving


def told_of(
    ends: Sequence[tuple[Slot, Any, int]],
    outs: Mapping[Any, int],
    arriving: Mapping[Any, Mapping[int, int]],
    listeners: Listeners,
) -> Told:
    """What Python hears of it where a gradient is not there (see ``Passages.of``); ``outs``: the nodes of a pass, each
    with the outputs that lead to it, a bit for each; ``arriving``: the same of their results."""
    hearing = listeners.hearing(outs) if len(ends) > 1 else ()
    masks = {frozenset(arriving[node].values()): None for node in hearing}

    def named(mask: int) -> frozenset[Slot]:
        return frozenset(slot for i, (slot, _, _) in enumerate(ends) if mask >> i & 1)

    return Told(tuple(tuple(map(named, own)) for own in masks if len(own) > 1))


NO_PASSAGES = Passages(lambda _: None)
"""Of a function that is traced without a backward pass."""
