"""The backward half of a program for a pass in which no gradient comes in for some outputs: what depends on these is
not computed, as eager PyTorch does not run those nodes of autograd.

An incoming gradient that is not there is a *symbolic zero*, and so is what depends on incoming gradients only through
symbolic zeros, whatever it computes. A sum of one and something is that something. A node of autograd that is given
both takes zeros for it: such a call does, too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from attrs import define, evolve, field
from torch import Tensor, fx

from ..errors import GraphError
from ..graph_primitives import Opaque, scalar, size
from ..graphs import (
    Graph,
    Passage,
    ancestors,
    has_effect,
    is_constant_gradient,
    pass_of,
    passage_of,
    storages,
    value_of,
    verify,
    write_of,
)
from ..slots import Cotangent, Final, Grad, Signature, Slot, outer_slot
from ..torch_private.fakes import without_modes
from ..torch_private.symbols import expression, is_size, python_text
from .rewriting import view_what_stands

_aten = torch.ops.aten


def without(graph: Graph, absent: Collection[Slot], unasked: Collection[Slot]) -> Graph:
    """The backward half where no gradient comes in for the ``absent`` outputs, nor is asked for of the ``unasked``
    inputs. It takes what the half takes but for those gradients, and gives those that are there, and what is
    written."""
    return _Narrowing(graph, frozenset(absent), frozenset(unasked)).narrowed()


@define(eq=False)
class _Narrowing:
    old: Graph
    absent: frozenset[Slot]
    unasked: frozenset[Slot]
    new: fx.Graph = field(factory=fx.Graph)
    env: dict[fx.Node, fx.Node] = field(factory=dict)
    """What stands for each node that is there."""
    incoming: set[fx.Node] = field(factory=set)
    """What depends on incoming gradients."""
    zeros: set[fx.Node] = field(factory=set)
    """The symbolic zeros among it."""
    marked: set[fx.Node] = field(factory=set)
    """What depends on a write."""
    written: set[fx.Node] = field(factory=set)
    """What depends on one that is made in this pass."""
    gone: set[int] = field(factory=set)
    """Memory of what something else stands for."""
    lost: set[fx.Node] = field(factory=set)
    """What depends on what a tensor held before one that is not made, which nobody has kept."""
    by_name: dict[str, fx.Node] = field(init=False)

    def narrowed(self) -> Graph:
        old, ins = self.old, list[Slot]()
        self.by_name = {node.name: node for node in old.fx.nodes}
        for slot, node in old.given:
            if isinstance(slot, Cotangent):
                self.incoming.add(node)
                if outer_slot(slot.of) in self.absent:
                    self.zeros.add(node)
                    continue
            self.env[node] = self.new.node_copy(node)
            ins.append(slot)
        for node in old.fx.nodes:
            if node.op in ("call_function", "get_attr"):
                self._enter(node)
        outs = self._outs()
        lost = [r for r in outs.values() if r in self.lost]
        lost += [n for n in self.lost if has_effect(n) and self._runs(passage_of(n))]
        if lost:
            raise GraphError(f"{self.old.name}: {lost[0].name} needs what a tensor held before a write, which is gone")
        self.new.output(tuple(self.env[r] if isinstance(r, fx.Node) else r for r in outs.values()))
        self._drop_what_nobody_needs()
        with without_modes():
            view_what_stands(self.new, self.gone)
        used = {n.target for n in self.new.nodes if n.op == "get_attr"}
        constants = {name: value for name, value in old.constants.items() if name in used}
        return verify(evolve(old, signature=Signature(tuple(ins), tuple(outs)), fx=self.new, constants=constants))

    def _runs(self, passage: Passage | None) -> bool:
        """Whether a node of autograd runs in this pass; True where it is not known."""
        if passage is None:
            return True
        return not passage.outs <= self.absent and not (self.unasked and passage.inputs <= self.unasked)

    def _enter(self, node: fx.Node) -> None:
        operands, passage, write = node.all_input_nodes, passage_of(node), write_of(node)
        if write is not None and not self._runs(write.passage):
            self.marked.add(node)
            before = self.by_name.get(write.before)
            self.lost |= {node} if before is None else set()
            if before is not None:
                self._stand_for(node, before)
            return
        if not self.lost.isdisjoint(operands):
            self.lost.add(node)
            return
        self._follow_writes(node, operands, is_own=write is not None)
        if is_constant_gradient(node) or not self.incoming.isdisjoint(operands):
            self.incoming.add(node)
        gone = [n for n in operands if n in self.zeros]
        by_python = is_constant_gradient(node) or (passage is not None and passage.is_python)
        if by_python and node in self.incoming and not self._runs(passage):
            self.zeros.add(node)
        elif not gone:
            self.env[node] = self.new.node_copy(node, self.env.__getitem__)
        elif passage is not None and passage.takes_zeros and self._runs(passage):
            self._with_zeros(node, gone)
        elif self.incoming.isdisjoint(set(operands) - self.zeros):
            self.zeros.add(node)
            self._call_without(node, passage)
        elif (other := self._other_of_sum(node, gone)) is not None:
            self._stand_for(node, other)
        else:
            self._with_zeros(node, gone)

    def _follow_writes(self, node: fx.Node, operands: Collection[fx.Node], is_own: bool) -> None:
        if is_own or not self.marked.isdisjoint(operands):
            self.marked.add(node)
        if is_own or not self.written.isdisjoint(operands):
            self.written.add(node)

    def _stand_for(self, node: fx.Node, other: fx.Node) -> None:
        """``other`` takes the place of a node."""
        for found in (self.incoming, self.zeros, self.written, self.marked, self.lost):
            if other in found:
                found.add(node)
        self.gone |= storages(node) - storages(other)
        if other in self.env:
            self.env[node] = self.env[other]

    def _other_of_sum(self, node: fx.Node, gone: Collection[fx.Node]) -> fx.Node | None:
        """The other of two gradients, where that is their sum."""
        if node.target is not _aten.add.Tensor or node.kwargs.get("alpha", 1) != 1 or len(node.all_input_nodes) != 2:
            return None
        (other,) = set(node.all_input_nodes) - set(gone)
        return other if _look(other) == _look(node) else None

    def _call_without(self, node: fx.Node, passage: Passage | None) -> None:
        """A hook is called without a gradient, where another result of what computed its tensor has one."""
        if isinstance(node.target, Opaque) and node.target.takes_none and self._runs(passage):
            args = [None if a in self.zeros else fx.map_arg(a, self.env.__getitem__) for a in node.args]
            called = self.new.create_node("call_function", evolve(node.target, returns=()), tuple(args), {}, node.name)
            called.meta = {**node.meta, "val": ()}

    # ── zeros ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _with_zeros(self, node: fx.Node, gone: Collection[fx.Node]) -> None:
        env = self.env | {n: self._zero(n) for n in gone}
        self.env[node] = self.new.node_copy(node, env.__getitem__)

    def _zero(self, like: fx.Node) -> fx.Node:
        """Zeros that lie like a value."""
        value = value_of(like)
        if not isinstance(value, Tensor):
            raise GraphError(f"{self.old.name}: {like.name} is not there, and is no tensor")
        self.gone |= storages(like)
        sizes, strides = ([self._size(n) for n in numbers] for numbers in (value.shape, value.stride()))
        options = {"dtype": value.dtype, "device": value.device}
        if value.is_contiguous():
            return self._call(like, _aten.full.default, (sizes, 0), options)
        memory = self._call(like, _aten.empty_strided.default, (sizes, strides), options)
        return self._call(like, _aten.fill.Scalar, (memory, 0), {})

    def _call(self, like: fx.Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> fx.Node:
        made = self.new.create_node("call_function", target, args, kwargs, name=f"{like.name}_zero")
        value = value_of(like)
        with without_modes(), value.fake_mode:
            fake = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
        made.meta = {"val": fake, "pass": pass_of(like), "where": None}
        return made

    def _size(self, n: Any) -> Any:
        """A size: a number, or what computes it of sizes that are there."""
        if not is_size(n):
            return n
        known = {str(value_of(node)): node for node in self.new.nodes if is_size(node.meta.get("val"))}
        if str(n) in known:
            return known[str(n)]
        expr = expression(n)
        symbols: dict[str, Any] = {str(symbol): self._symbol(str(symbol), known) for symbol in expr.free_symbols}
        if [str(expr)] == list(symbols):
            return symbols[str(expr)]
        made = self.new.create_node("call_function", scalar, (python_text(expr),), symbols, name="scalar")
        made.meta = {"val": n, "pass": "backward", "where": None}
        return made

    def _symbol(self, symbol: str, known: dict[str, fx.Node]) -> fx.Node:
        if symbol in known:
            return known[symbol]
        if (found := sized_by(self.new, symbol)) is None:
            raise GraphError(f"{self.old.name}: nothing that is there has a size of {symbol}")
        return size_along(*found, "size", "backward")

    # ── results ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _outs(self) -> dict[Slot, Any]:
        """What comes out: the inner tensors of a wrapper subclass all, or none."""
        found, several = dict[Slot, Any](), dict[Slot, list[tuple[Slot, Any]]]()
        for slot, r in self.old.gives:
            several.setdefault(outer_slot(slot), []).append((slot, r))
        for outer, pairs in several.items():
            if any(self._comes_out(outer, r) for _, r in pairs):
                for slot, r in pairs:
                    if r in self.zeros:
                        self.env[r] = self._zero(r)
                    found[slot] = r
        return found

    def _comes_out(self, outer: Slot, result: Any) -> bool:
        if not isinstance(result, fx.Node):
            return True
        if isinstance(outer, Grad):
            return outer.of not in self.unasked and result not in self.zeros
        assert isinstance(outer, Final)
        return result not in self.zeros and (result in self.written or result not in self.marked)

    def _drop_what_nobody_needs(self) -> None:
        """What eager PyTorch does though nobody reads it, it does where that node of autograd runs."""
        effects = [n for n in self.new.nodes if has_effect(n) and self._runs(passage_of(n))]
        needed = ancestors([*self.new.output_node().all_input_nodes, *effects])
        for node in reversed(list(self.new.nodes)):
            if node.op in ("call_function", "get_attr") and node not in needed:
                self.new.erase_node(node)


def sized_by(graph: fx.Graph, symbol: str) -> tuple[fx.Node, int | None] | None:
    """What is of this size: a number, or a dimension of a tensor."""
    for node in graph.nodes:
        value = node.meta.get("val")
        for d, n in enumerate(value.shape if isinstance(value, Tensor) else (value,)):
            if is_size(n) and str(n) == symbol:
                return node, d if isinstance(value, Tensor) else None
    return None


def size_along(node: fx.Node, dim: int | None, name: str, during: str) -> fx.Node:
    """A call that asks for it, where it is no number: before the present place."""
    if dim is None:
        return node
    made = node.graph.create_node("call_function", size, (node, dim), {}, name=name)
    made.meta = {"val": value_of(node).shape[dim], "pass": during, "where": None}
    return made


def _look(node: fx.Node) -> tuple[Any, ...]:
    value = value_of(node)
    return (str(value.shape), str(value.stride()), value.dtype) if isinstance(value, Tensor) else ()
