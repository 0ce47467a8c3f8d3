"""Regions of ``fg.jit`` in a captured backward pass: the graphs of their backward halves, copied node by node in the
place of calls.

A region comes in three parts. The prologue is an opaque call: it looks whether what was saved is what it was, and takes
the tensors that are read as they are then. The graph is copied under names of its own (``aot3_mul``), so that what
stands around it is fused with it, and what nobody reads is not computed. The epilogue, where backward writes to
tensors, is an opaque call that does.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor, fx

from ..capture.floats import NotSymbolicError
from ..capture.trace import Trace
from ..graph_primitives import SIZES, Opaque, again, getitem, scalar
from ..graphs import Graph, value_of, where_of
from ..inside import having
from ..runtime.execute import Differentiable, differentiable_of, is_as_compiled, reads_as_traced, require_saved_versions
from ..runtime.given_tensors import write_back
from ..slots import Cotangent, Late, Slot, inner_path, inner_slot, outer_slot
from ..torch_private.fakes import without_modes
from ..torch_private.operators import is_operator
from ..torch_private.symbols import expression, is_size, python_text
from .statements import Function, Kind, Statement
from .tokens import Ref


class Inlinable(Function):
    """The backward of a compiled function, which may be copied. ``sizes``: the ints among what it has saved, then
    ``sizes_beside``, as the engine hands them over. ``reads_state``, ``runs_python``: what the caller's Python does
    in it."""

    def __init__(self, given: Sequence[bool], sizes: Sequence[Ref], program: Differentiable) -> None:
        super().__init__(given)
        self.sizes = tuple(sizes)
        self.reads_state = program.late is not None and program.late.more_than_code
        self.runs_python = program.has_effects

    @property
    def call(self) -> Function:
        """The same as a call."""
        made = Function(self.given)
        made.asked = self.asked
        return made


def with_calls(statements: Sequence[Statement]) -> list[Statement]:
    """A region that reads Python state is a call where the caller's Python, which may write to it, runs before. That a
    hook exchanges the code of a function that runs later in the same pass, is not looked for."""
    found, has_run = list[Statement](), False
    for s in statements:
        if isinstance(s.run, Inlinable) and s.run.reads_state and has_run:
            s = evolve(s, run=s.run.call, may_be_none=True)
        has_run = has_run or (s.kind is Kind.CALL and (not isinstance(s.run, Inlinable) or s.run.runs_python))
        found.append(s)
    return found


def function_of(given: Sequence[bool], context: Any, refs: Callable[[Any], Any]) -> tuple[Function, str | None]:
    """What runs the backward of an ``autograd.Function``; and of a compiled region, why it stays a call, if it does."""
    program = differentiable_of(context)
    if program is None:
        return Function(given), None
    if program.why_apart is not None:
        return Function(given), f"{program.name}, which {program.why_apart}"
    if not reads_as_traced(context):
        why = "whose backward pass reads Python state that has changed since the call"
        return Function(given), f"{program.name}, {why}"
    if not is_as_compiled(context):
        return Function(given), f"{program.name}, whose inputs lie in other memory since the call"
    return Inlinable(given, refs(context._get_compiled_autograd_symints()), program), None


def floats_of(context: Any) -> list[float]:
    """The floats among what a region has saved."""
    return [v for v in context.scalars.values() if type(v) is float]


def written_by(context: Any, saved: Sequence[Any], read: Callable[[Ref], Any]) -> list[Tensor]:
    """What the backward of a region writes to. ``saved``: what stands for what it has saved, of which outputs that
    it writes to come last; what the caller's Python unpacks is its own."""
    outs = saved[len(saved) - len(context.program.at.writes_outs) :]
    return [*context.written, *(read(ref) for ref in outs if ref.of == "inputs")]


@frozen(eq=False)
class _Prologue:
    """Where a backward half begins. ``at``: where among the hooks of a run its node of autograd is; ``late``: which
    of the tensors that it has kept are read as they are then, or what leads to parts of them."""

    at: int
    late: tuple[tuple[int, tuple[str, ...]], ...]

    def __call__(self, hooks: Sequence[Any], *_: Any) -> tuple[Tensor, ...]:
        context = hooks[self.at]
        require_saved_versions(context)
        # the caller's Python may write to them afterwards
        return tuple(_part(context.late[i], path).clone() for i, path in self.late)


@frozen(eq=False)
class _Epilogue:
    """Where it ends. ``written``: which of the tensors it writes to, of those that the program may; of these, the
    last, ``n_outs`` outputs, are given, followed by what is written."""

    at: int
    n_outs: int
    written: tuple[int, ...]

    def __call__(self, hooks: Sequence[Any], *values: Tensor) -> None:
        targets = (*hooks[self.at].written, *values[: self.n_outs])
        write_back([targets[i] for i in self.written], values[self.n_outs : self.n_outs + len(self.written)])


def _part(value: Any, path: Sequence[str]) -> Any:
    """An inner tensor of a wrapper subclass, to which a path leads; of a plain tensor, itself."""
    return functools.reduce(getattr, path, value)


class Copy:
    """The backward half of one region, about to be copied into a trace. ``context``: its node of autograd in this
    run, the ``at``-th of its hooks. ``prefix``: what names of nodes begin with. ``beside``: its ``sizes_beside``;
    ``cotangents``: the gradients that come in; ``asked``: of which inputs gradients are asked for."""

    def __init__(
        self, trace: Trace, hooks: fx.Node, at: int, context: Any, prefix: str, beside: Sequence[Any],
        cotangents: Sequence[Tensor | None], asked: Sequence[bool],
    ) -> None:  # fmt: skip
        self._trace, self._hooks, self._at, self._prefix = trace, hooks, at, prefix
        self._cotangents = cotangents
        self._program: Differentiable = context.program
        here = [cotangents[i] is not None for i in self._program.at.differentiable]
        self._half = self._program.half(here, asked if self._program.has_effects else None)
        self._graph: Graph = self._half.graph
        self._symbols: dict[str, Any] = {}
        self._values: dict[fx.Node, Any] = {}
        self._parts: dict[Slot, list[tuple[tuple[str, ...], fx.Node]]] = {}
        """For each tensor that it is given, what stands for it, or for the parts of it that are read."""
        for slot, node in self._graph.given:
            self._parts.setdefault(outer_slot(slot), []).append((inner_path(slot), node))
        self._late: list[Slot] = [slot for slot in self._parts if isinstance(slot, Late)]
        sizes = iter(beside)
        for slot, shape in zip(self._late, (t.shape for t in context.late), strict=True):
            (path, node), *_ = self._parts[slot]
            for old, new in zip(shape if path else value_of(node).shape, sizes, strict=False):
                self._name(old, new)

    @property
    def has_effects(self) -> bool:
        """Whether it runs Python that may look around."""
        opaque = any(isinstance(n.target, Opaque) and not n.target.is_pure for n in self._graph.fx.nodes)
        return opaque or self._program.has_prologue or bool(self._half.written)

    def __call__(
        self, kept: Sequence[Any], functional: Callable[[Tensor], Tensor], readers: Callable[[], Sequence[fx.Node]]
    ) -> dict[int, Tensor | None]:
        """Copy it. ``kept``: what was saved; ``readers``: what is computed before anything is written. Returns
        gradients by input."""
        program, trace = self._program, self._trace
        n_kept = len(kept) - len(program.at.writes_outs)
        given = [slot for slot in self._parts if slot not in self._late]
        for slot, value in zip(given, kept[:n_kept], strict=False):
            self._take(slot, value)
        for (slot, layout), i in zip(program.cotangents.items(), program.at.differentiable, strict=True):
            value = self._cotangents[i]
            if value is not None:
                self._take(Cotangent(slot), layout(value))
        if program.has_prologue:
            late = [(i, path, node) for i, slot in enumerate(self._late) for path, node in self._parts[slot]]
            with without_modes(), trace.fakes:
                like = [self._like(value_of(node)).clone() for _, _, node in late]
            prologue = _Prologue(self._at, tuple((i, path) for i, path, _ in late))
            found = trace.opaque(prologue, (self._hooks,), like, name=f"{self._prefix}prologue")
            for (_, _, node), fake in zip(late, found, strict=True):
                self._enter(node, fake)
        outs = self._copied(functional)
        if self._half.written:
            new = [self._own(v) for v in outs[len(self._half.gradients) :]]
            old = [self._own(v) for v in kept[n_kept:]]
            args = (self._hooks, *old, *new, *readers())
            epilogue = _Epilogue(self._at, len(old), program.writes_of(self._half))
            trace.opaque(epilogue, args, (), name=f"{self._prefix}epilogue")
        return dict(zip(self._half.gradients, outs, strict=False))

    def _own(self, value: Any) -> Any:
        """A tensor of the trace as its graph knows it."""
        return value_of(self._trace.result(value)) if isinstance(value, Tensor) else value

    def _take(self, slot: Slot, value: Any) -> None:
        for path, node in self._parts[slot]:
            self._enter(node, self._own(_part(value, path)))

    def _enter(self, node: fx.Node, value: Any) -> None:
        """What stands for an input, and for the symbols among its sizes."""
        self._values[node] = value
        known = value_of(node)
        pairs = zip(known.shape, value.shape, strict=True) if isinstance(known, Tensor) else ((known, value),)
        for old, new in pairs:
            self._name(old, new)

    def _name(self, old: Any, new: Any) -> None:
        if is_size(old):  # for one that is computed from symbols, nobody asks
            self._symbols.setdefault(str(expression(old)), new)

    def _copied(self, functional: Callable[[Tensor], Tensor]) -> list[Any]:
        """What it gives: wrapper subclasses are made of the results of its graph."""
        trace, origin = self._trace, self._trace.origin
        with having(trace, prefix=self._prefix, origin=origin), without_modes(), trace.fakes:
            for node in self._graph.fx.nodes:
                if node.op in ("get_attr", "call_function"):
                    trace.origin = where_of(node) or origin
                    self._values[node] = self._copy(node)
        found = dict[Slot, Any]()
        for slot, r in self._graph.gives:
            value = self._values[r] if isinstance(r, fx.Node) else r
            found[slot] = functional(value) if isinstance(value, Tensor) else value
        wrappings = self._program.wrappings

        def whole(slot: Slot) -> Any:
            wrapping = wrappings.get(slot)
            if wrapping is None:
                return found[slot]
            return wrapping.build(found[inner_slot(slot, path)] for path in wrapping.paths())

        return list(map(whole, dict.fromkeys(map(outer_slot, found))))

    def _copy(self, node: fx.Node) -> Any:
        """What stands for the result of a call (or for a constant), once it is recorded."""
        trace = self._trace
        if node.op == "get_attr":
            constant = self._graph.constants[node.target]  # type: ignore[index]
            lift_fresh: Any = torch.ops.aten.lift_fresh_copy.default
            return trace.tracer.__torch_dispatch__(lift_fresh, (), (constant,), {})  # type: ignore[no-untyped-call]
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._values.__getitem__)
        target: Any = node.target
        if target in (getitem, again, scalar, *SIZES):
            return args[0] if target is again else target(*args, **kwargs)
        if is_operator(target):
            return trace.tracer.__torch_dispatch__(target, (), args, kwargs)  # type: ignore[no-untyped-call]
        value = value_of(node)
        if isinstance(target, Opaque):
            like = [self._like(v) for v in value[: len(target.returns)]]
            more = {
                "name": f"{self._prefix}{target.name}",
                "writes": target.writes,
                "is_pure": target.is_pure,
                "traced": target.traced,
                "takes_none": target.takes_none,
            }
            return trace.opaque(target.function, args, like, **more)
        if not isinstance(value, (Tensor, list, tuple)):  # a check
            trace.call(target, args, kwargs, value)
            return None
        made = self._like(value) if isinstance(value, Tensor) else type(value)(map(self._like, value))
        trace.record(target, args, kwargs, made)
        return made

    def _like(self, value: Any) -> Any:
        """A fake tensor as the region's own trace knew it, in this one."""
        if not isinstance(value, Tensor):
            return value
        shape, stride = ([self._size(n) for n in numbers] for numbers in (value.shape, value.stride()))
        return torch.empty_strided(shape, stride, dtype=value.dtype, device=value.device)

    def _size(self, n: Any) -> Any:
        if not is_size(n):
            return n
        expr = expression(n)
        names = {str(symbol) for symbol in expr.free_symbols}
        if not names <= self._symbols.keys():
            raise NotSymbolicError("a size in a region is of a tensor that its backward half is not given")
        return scalar(python_text(expr), **{name: self._symbols[name] for name in names})
