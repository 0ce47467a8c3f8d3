"""Control flow while tracing: ``torch.cond``, ``scan`` and ``while_loop`` as one call each, with their derivatives and
their batched form.

Each is a frozen value of its bodies and a function of tensors. Its derivative, forward or reverse, is again control
flow, of bodies that are derivatives of its bodies (the functions, not their graphs), and so is its batched form: so
that every order and every nesting exists. Autograd and ``torch.func`` come to these rules by one ``autograd.Function``;
below all levels, the bodies are recorded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from attrs import frozen
from torch import Tensor

from .. import refusals
from ..control_flow import choose, repeat, scan
from ..graph_primitives import Opaque
from ..graphs import Graph, has_effect, is_random, type_text
from ..state.lines import user_line
from ..torch_private.fakes import without_modes
from .applied import apply
from .bodies import no_subclass
from .derived import Function, Gradients, beside, in_batch, is_differentiable, or_zeros, pull, push, spread, vmapped
from .trace import Trace
from .traced_bodies import draws, fake_of, functional, graph_of

# ── choice ───────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class Choice:
    """``torch.cond``. Tensors: the condition, then the operands of both branches. Of a condition for each sample of
    a batch, both branches run (on operands that are all batched), and each sample takes what its own says, also of
    derivatives."""

    has_derivative: ClassVar[bool] = True
    trace: Trace
    if_true: Function
    if_false: Function
    of_samples: bool = False
    is_derivative: bool = False

    def record(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self.of_samples:
            condition, *operands = tensors
            pairs = zip(self.if_true(*operands), self.if_false(*operands), strict=True)
            return tuple(torch.where(beside(condition, t), t, f) for t, f in pairs)
        condition, *fakes = _fakes(self.trace, tensors)
        first, out = graph_of(self.trace, "if_true", self.if_true, fakes)
        second, other = graph_of(self.trace, "if_false", self.if_false, fakes)
        if [type_text(v) for v in out] != [type_text(v) for v in other]:
            raise refusals.BRANCH_TYPES(type_text(out), type_text(other), where=user_line())
        _require_no_draws("a branch of torch.cond", self.is_derivative, first, second)
        outs = [_like(self.trace, t) for t in out]
        if self.trace.graph is not None:
            self.trace.record(choose, (condition, first, second, [*fakes, *self.trace.draws.operands]), {}, tuple(outs))
        return functional(self.trace, outs)

    def _other(self, of: Callable[[Function], Function], **more: Any) -> Choice:
        made: dict[str, Any] = {"of_samples": self.of_samples, "is_derivative": self.is_derivative, **more}
        return Choice(self.trace, of(self.if_true), of(self.if_false), **made)

    def pulled(
        self, tensors: Sequence[Tensor], outs: Sequence[Tensor], cotangents: Gradients, needed: Sequence[bool]
    ) -> Gradients:
        condition, *operands = tensors
        at = [i for i, t in enumerate(operands) if needed[i + 1] and is_differentiable(t)]
        results = [i for i, t in enumerate(cotangents) if t is not None]
        n = len(operands)

        def of(branch: Function) -> Function:
            return lambda *values: pull(branch, values[:n], at, results, values[n:])

        given = [t for t in cotangents if t is not None]
        found = apply(self._other(of, is_derivative=True), [condition, *operands, *given]) if at and results else ()
        return spread(len(tensors), [i + 1 for i in at], found)

    def pushed(self, tensors: Sequence[Tensor], outs: Sequence[Tensor], tangents: Gradients) -> Gradients:
        condition, *operands = tensors
        at = [i for i in range(len(operands)) if tangents[i + 1] is not None]
        results = [i for i, t in enumerate(outs) if is_differentiable(t)]
        n = len(operands)

        def of(branch: Function) -> Function:
            return lambda *values: push(branch, values[:n], at, results, values[n:])

        given = [t for t in tangents if t is not None]
        found = apply(self._other(of, is_derivative=True), [condition, *operands, *given]) if at and results else ()
        return spread(len(outs), results, found)

    def batched(
        self, tensors: Sequence[Tensor], dims: Sequence[int | None], size: int, randomness: str
    ) -> tuple[Any, Any]:
        condition, *operands = tensors
        if dims[0] is None:
            at = tuple(None if d is None else 0 for d in dims[1:])
            moved = [t if d is None else t.movedim(d, 0) for t, d in zip(operands, dims[1:], strict=True)]
        else:
            condition, at = condition.movedim(dims[0], 0), (0,) * len(operands)
            moved = [in_batch(t, d, size) for t, d in zip(operands, dims[1:], strict=True)]
        if self.of_samples and dims[0] is None:  # the batch of this condition is another one
            condition = condition.expand(size, *condition.shape)
            moved, at = [in_batch(t, d, size) for t, d in zip(operands, dims[1:], strict=True)], (0,) * len(operands)

        def of(branch: Function) -> Function:
            return vmapped(branch, at, size, randomness)

        outs = apply(self._other(of, of_samples=self.of_samples or dims[0] is not None), [condition, *moved])
        return outs, (0,) * len(outs)


# ── scan ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class Scan:
    """A body that runs for each slice. Tensors: the first carry, what is sliced, and what each step is given. The
    body returns the next carry, the slices of the results, and in the end the carry it was given: its derivatives
    start from these."""

    has_derivative: ClassVar[bool] = True
    trace: Trace
    body: Function
    n_carry: int
    n_xs: int
    reverse: bool = False
    is_derivative: bool = False

    @staticmethod
    def run(
        trace: Trace,
        body: Function,
        init: Sequence[Tensor],
        xs: Sequence[Tensor],
        constants: Sequence[Tensor],
        **more: Any,
    ) -> tuple[Tensor, ...]:
        """The last carry, and the results, of a body that returns the next carry and slices of results."""
        n = len(init)
        scanned = Scan(trace, lambda *values: (*body(*values), *values[:n]), n, len(xs), **more)
        outs = apply(scanned, [*(t.contiguous() for t in init), *xs, *constants])
        return outs[: len(outs) - n]

    def record(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        trace = self.trace
        fakes = _fakes(trace, tensors)
        init, xs, constants = self._parts(fakes)
        with without_modes(), trace.fakes:
            slices = [x.select(0, 0) for x in xs]
        body, made = graph_of(trace, "body", self.body, [*init, *slices, *constants], own=self.n_carry)
        _require_same_carry("scan", init, made[: self.n_carry])
        _require_no_draws("the body of a scan", self.is_derivative, body)
        outs = [_like(trace, t) for t in made[: self.n_carry]] + [
            _like(trace, t, xs[0].shape[0]) for t in made[self.n_carry :]
        ]
        if trace.graph is not None:
            trace.record(scan, (body, self.reverse, init, xs, [*constants, *trace.draws.operands]), {}, tuple(outs))
        return functional(trace, outs)

    def _parts(self, values: Sequence[Any]) -> tuple[list[Any], list[Any], list[Any]]:
        first, last = self.n_carry, self.n_carry + self.n_xs
        return list(values[:first]), list(values[first:last]), list(values[last:])

    def pulled(
        self, tensors: Sequence[Tensor], outs: Sequence[Tensor], cotangents: Gradients, needed: Sequence[bool]
    ) -> Gradients:
        init, xs, constants = self._parts(tensors)
        n = self.n_carry
        carried = [i for i in range(n) if is_differentiable(init[i])]
        sliced = [i for i in range(n, n + self.n_xs) if needed[i] and is_differentiable(tensors[i])]
        given = [i for i in range(n + self.n_xs, len(tensors)) if needed[i] and is_differentiable(tensors[i])]
        results = [i for i in range(n, len(outs)) if cotangents[i] is not None]
        if all(t is None for t in cotangents):
            return [None] * len(tensors)
        at = [*carried, *sliced, *given]

        def body(*values: Tensor) -> tuple[Tensor, ...]:
            split = iter(values)
            incoming, sums, carry, x, of_results, const = (
                list(itertools.islice(split, k))
                for k in (len(carried), len(given), n, self.n_xs, len(results), len(constants))
            )
            found = pull(self.body, [*carry, *x, *const], at, [*carried, *results], [*incoming, *of_results])
            before = found[: len(carried)]
            of_slices = found[len(carried) : len(at) - len(given)]
            more = found[len(at) - len(given) :]
            return *before, *(total + t for total, t in zip(sums, more, strict=True)), *of_slices

        last = [or_zeros(cotangents[i], outs[i]) for i in carried]
        sums = [torch.zeros_like(tensors[i]) for i in given]
        taken = [*outs[len(outs) - n :], *xs, *(t for i in results if (t := cotangents[i]) is not None)]
        found = Scan.run(
            self.trace, body, [*last, *sums], taken, constants, reverse=not self.reverse, is_derivative=True
        )
        return spread(len(tensors), [*carried, *given, *sliced], found)

    def pushed(self, tensors: Sequence[Tensor], outs: Sequence[Tensor], tangents: Gradients) -> Gradients:
        init, xs, constants = self._parts(tensors)
        n = self.n_carry
        carried = [i for i in range(n) if is_differentiable(init[i])]
        sliced = [i for i in range(n, n + self.n_xs) if tangents[i] is not None]
        given = [i for i in range(n + self.n_xs, len(tensors)) if tangents[i] is not None]
        results = [i for i in range(n, len(outs)) if is_differentiable(outs[i])]

        def body(*values: Tensor) -> Sequence[Tensor]:
            split = iter(values)
            moving, carry, x, of_slices, const, of_given = (
                list(itertools.islice(split, k))
                for k in (len(carried), n, self.n_xs, len(sliced), len(constants), len(given))
            )
            return push(
                self.body,
                [*carry, *x, *const],
                [*carried, *sliced, *given],
                [*carried, *results],
                [*moving, *of_slices, *of_given],
            )

        first = [or_zeros(tangents[i], init[i]) for i in carried]
        taken = [*outs[len(outs) - n :], *xs, *(t for i in sliced if (t := tangents[i]) is not None)]
        constant = [*constants, *(t for i in given if (t := tangents[i]) is not None)]
        found = Scan.run(self.trace, body, first, taken, constant, reverse=self.reverse, is_derivative=True)
        return spread(len(outs), [*carried, *results], found)

    def batched(
        self, tensors: Sequence[Tensor], dims: Sequence[int | None], size: int, randomness: str
    ) -> tuple[Any, Any]:
        init, xs, constants = self._parts(list(zip(tensors, dims, strict=True)))
        at = (*[0] * self.n_carry, *(None if d is None else 0 for _, d in (*xs, *constants)))
        moved = [in_batch(t, d, size) for t, d in init]
        moved += [
            t if d is None else t.movedim(d, 1 if i < self.n_xs else 0) for i, (t, d) in enumerate((*xs, *constants))
        ]
        body = vmapped(self.body, at, size, randomness)
        outs = apply(Scan(self.trace, body, self.n_carry, self.n_xs, self.reverse, self.is_derivative), moved)
        return outs, tuple(0 if i < self.n_carry else 1 for i in range(len(outs)))


# ── while ────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class While:
    """``while_loop``. Tensors: the first carry, and what each step is given. How many steps there will be nobody
    knows: there is no memory to be planned for what reverse mode would need of them."""

    has_derivative: ClassVar[bool] = True
    trace: Trace
    condition: Function
    body: Function
    n_carry: int
    is_derivative: bool = False

    def record(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        trace, n = self.trace, self.n_carry
        fakes = _fakes(trace, tensors)
        condition, (goes_on, *_) = graph_of(trace, "condition", self.condition, fakes)
        if goes_on.numel() != 1:
            raise refusals.CONDITION_TYPE(type_text(goes_on), where=user_line())
        body, made = graph_of(trace, "body", self.body, fakes)
        _require_same_carry("while_loop", fakes[:n], made)
        _require_no_draws("the body of a while_loop", self.is_derivative, condition, body)
        outs = [_like(trace, t) for t in made]
        if trace.graph is not None:
            trace.record(repeat, (condition, body, fakes[:n], [*fakes[n:], *trace.draws.operands]), {}, tuple(outs))
        return functional(trace, outs)

    def pulled(
        self, tensors: Sequence[Tensor], outs: Sequence[Tensor], cotangents: Gradients, needed: Sequence[bool]
    ) -> Gradients:
        raise refusals.WHILE_IN_REVERSE(where=user_line())

    def pushed(self, tensors: Sequence[Tensor], outs: Sequence[Tensor], tangents: Gradients) -> Gradients:
        n = self.n_carry
        carried = [i for i in range(n) if is_differentiable(tensors[i])]
        given = [i for i in range(n, len(tensors)) if tangents[i] is not None]
        split = n + len(carried), len(tensors) + len(carried)

        def body(*values: Tensor) -> tuple[Tensor, ...]:
            primals = [*values[:n], *values[split[0] : split[1]]]
            moving = [*values[n : split[0]], *values[split[1] :]]
            return *self.body(*primals), *push(self.body, primals, [*carried, *given], carried, moving)

        def condition(*values: Tensor) -> Sequence[Tensor]:
            return self.condition(*values[:n], *values[split[0] : split[1]])

        moving = [or_zeros(tangents[i], tensors[i]) for i in carried]
        more = [t for i in given if (t := tangents[i]) is not None]
        twin = While(self.trace, condition, body, split[0], True)
        found = apply(twin, [*tensors[:n], *(t.contiguous() for t in moving), *tensors[n:], *more])
        return spread(len(outs), carried, found[n:])

    def batched(
        self, tensors: Sequence[Tensor], dims: Sequence[int | None], size: int, randomness: str
    ) -> tuple[Any, Any]:
        n = self.n_carry
        at = (*[0] * n, *(None if d is None else 0 for d in dims[n:]))
        moved = [in_batch(t, d, size) for t, d in zip(tensors[:n], dims, strict=False)]
        moved += [t if d is None else t.movedim(d, 0) for t, d in zip(tensors[n:], dims[n:], strict=True)]
        each, step = vmapped(self.condition, at, size, randomness), vmapped(self.body, at, size, randomness)

        def condition(*values: Tensor) -> Sequence[Tensor]:
            return (each(*values)[0].any(),)

        def body(*values: Tensor) -> Sequence[Tensor]:
            goes_on = each(*values)[0].reshape(size)
            return tuple(
                torch.where(beside(goes_on, new), new, old) for new, old in zip(step(*values), values, strict=False)
            )

        outs = apply(While(self.trace, condition, body, n, self.is_derivative), moved)
        return outs, (0,) * len(outs)


# ── recording ────────────────────────────────────────────────────────────────────────────────────────────────────


def _fakes(trace: Trace, tensors: Sequence[Tensor]) -> list[Tensor]:
    return [fake_of(trace, tensor, no_subclass) for tensor in tensors]


def _like(trace: Trace, tensor: Tensor, steps: int | None = None) -> Tensor:
    """A fake of the sizes of another one; of as many of these as there are steps."""
    with without_modes(), trace.fakes:
        return torch.empty(
            tensor.shape if steps is None else (steps, *tensor.shape), dtype=tensor.dtype, device=tensor.device
        )


def _require_same_carry(what: str, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    was, now = [type_text(t) for t in before], [type_text(t) for t in after]
    if was != now:
        raise refusals.CARRY_CHANGES(what, ", ".join(was), ", ".join(now), where=user_line())


def _require_no_draws(what: str, is_derivative: bool, *graphs: Graph | None) -> None:
    once = [
        n
        for graph in graphs
        if graph is not None
        for n in graph.fx.nodes
        if isinstance(n.target, Opaque) and has_effect(n)
    ]
    if is_derivative and once:
        raise refusals.BODY_CALLS_ONCE(what, once[0].name, where=user_line())
    drawn = [graph for graph in graphs if graph is not None and any(map(is_random, graph.fx.nodes))]
    if is_derivative and (drawn or any(map(draws, graphs))):
        raise refusals.BODY_DRAWS(what, where=user_line())
    if "cond" not in what and any(map(draws, graphs)):
        raise refusals.BODY_DRAWS_PHILOX(what, where=user_line())
