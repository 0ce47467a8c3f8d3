"""Definitions made of others: a function under vmap, an inner function as a pure one, and its derivatives, each in
plain PyTorch over values that transforms may wrap. They are compiled and cached like the caller's own; ``levels.py``
says when.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from .. import refusals
from ..capture.autocast import Autocast, autocast_as
from ..capture.inner import Inner
from ..capture.inputs import containers_of_call, contents_of, require_same
from ..capture.runs_again import running_again
from ..capture.trace import active_trace
from ..capture.views import is_dense
from ..generators import Drawn
from ..graph_primitives import Opaque
from ..graphs import Graph, pass_of, where_of
from ..passes.traced_passes import TracedPasses
from ..slots import Cotangent, Out, Saved, Slot
from ..state.guards import Guard
from ..state.places import Place
from ..state.state import as_it_was
from ..torch_private.levels import batched_at, dual_parts, sharing_dual_level, unbatched_at, vmap_level
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import is_zero_tensor
from ..trees import Container, Tree, flatten, unflatten
from .definition import Definition, Of, OfGraph, Pullback, nesting, under_reverse
from .mapped import MAPPED
from .packed import with_values


class _OfValues(Definition):
    """A definition that takes flat values."""

    @property
    def replays(self) -> bool:
        return False

    def argument_names(self, n: int) -> list[str]:
        return [f"values[{i}]" for i in range(n)]


@frozen(eq=False, kw_only=True)
class _OfAnother(_OfValues):
    """One that is made of another definition."""

    of: Any

    @property
    def root(self) -> Callable[..., Any]:
        return self.of.root  # type: ignore[no-any-return]


@contextlib.contextmanager
def stores_refused(containers: Sequence[Container]) -> Iterator[None]:
    """Around a call with containers that a transform has made anew: what is stored into them nobody else would see.
    Raises ``MutationError``."""
    held = contents_of(containers)
    yield
    require_same(held, refusals.STORES_UNDER_LEVEL)


@frozen(eq=False, kw_only=True)
class Batched(_OfAnother):
    """A definition under vmap: of leaves with a batch dimension where ``dims`` has one. Returns its result, and the
    batch dimension of each of its leaves (-1: none)."""

    tree: Tree
    dims: tuple[int | None, ...]
    size: int | None
    randomness: str

    @property
    def replays(self) -> bool:
        return self.of.replays  # type: ignore[no-any-return]

    def __call__(self, *leaves: Any) -> Any:
        size: Any = next((v.shape[d] for v, d in zip(leaves, self.dims, strict=True) if d is not None), self.size)
        with nesting(), vmap_level(size, self.randomness) as level:
            own = [v if d is None else batched_at(level, v, d) for v, d in zip(leaves, self.dims, strict=True)]
            args, kwargs = unflatten(own, self.tree)
            with stores_refused(containers_of_call(args, kwargs, self.tree, self.of.argument_names(len(args)))):
                outs, tree, _ = flatten(self.of(*args, **kwargs))
            given = {id(o): (v, d) for o, v, d in zip(own, leaves, self.dims, strict=True) if isinstance(o, Tensor)}
            pairs = [given.get(id(v)) or unbatched_at(level, v) if isinstance(v, Tensor) else (v, None) for v in outs]
        return unflatten([v for v, _ in pairs], tree), tuple(-1 if d is None else d for _, d in pairs)


@frozen(eq=False, kw_only=True)
class Pure(_OfValues):
    """An inner function as a pure function of flat values, which transforms may wrap: the function itself, run as it
    is, so that derivatives of any order are those of what the caller wrote; where it writes to memory that inputs
    share, its graph."""

    root: Callable[..., Any]
    inner: Inner
    graph: Graph
    active: tuple[int, ...]
    """The outputs that depend on what is differentiated."""
    written: frozenset[int]
    """The inputs whose values are others after the call."""
    draws: tuple[Drawn, ...]
    autocast: Autocast
    halves: tuple[Graph, Graph] | None = None
    """Forward and backward, where they exchange values alone; what forward saves is opaque: no derivative goes
    through it."""
    passes: TracedPasses | None = None
    """All that was traced of the backward half, for cotangents of some outputs alone."""
    own_rule: str | None = None
    """What in it has a derivative of its own, where its graph runs, which does not say so."""
    exact: None = None
    is_reversed: bool = False
    """Whether a level of reverse mode runs it as its forward pass."""

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        with nesting(), under_reverse() if self.is_reversed else contextlib.nullcontext():
            with _again(self.inner.facts.state.guards):
                outs = self.inner.run_pure(*values)
            return _run(self.graph, values) if outs is None else outs

    @property
    def n_outs(self) -> int:
        return len(self.inner.signature.outs)

    @property
    def reads_values(self) -> bool:
        """Whether Python reads values in it: then it is made for one path."""
        return bool(self.inner.facts.reads)

    def tracks(self, wrt: Sequence[int]) -> bool:
        """Whether these inputs were differentiated where it was traced: an outer level may track more of them than
        that level did."""
        ins = self.inner.signature.ins
        return all(self.inner.facts.requires_grad(ins[i]) for i in wrt)  # type: ignore[arg-type]

    def reversed(self) -> Pure:
        """The function as the forward pass of reverse mode: rules for that (``custom_vjp``) apply, whatever levels
        below do."""
        return self if self.is_reversed else evolve(self, is_reversed=True)

    def of_outputs(self, active: tuple[int, ...]) -> Pure:
        """The function where a cotangent comes in for these outputs alone."""
        if self.halves is None or self.passes is None:
            return evolve(self, active=active)
        absent = {self.inner.signature.outs[i] for i in self.active if i not in active}
        return evolve(self, active=active, halves=(self.halves[0], self.passes.half(absent)))

    @contextlib.contextmanager
    def again(self) -> Iterator[None]:
        """Inside, the function may be run once more: autocast and Python state are what they were."""
        require_repeatable(self.graph)
        if self.inner.facts.backward_writes:
            raise refusals.WRITES_STATE_IN_BACKWARD(
                "it, or what it prints, would be lost at a level of torch.func", where="torch.func.grad"
            )
        with autocast_as(self.autocast), as_it_was(self.inner.facts.state):
            yield


@frozen(eq=False, kw_only=True)
class _OfPure(_OfAnother):
    """A pure function made of another one."""

    exact: tuple[Any, tuple[int, ...]] | None = None
    """For a function that takes saved values, and so has no derivatives: the function that has, and which of the
    values it takes."""
    written: frozenset[int] = frozenset()
    """See ``Pure``: the layers of the level it came from write to them."""

    @property
    def draws(self) -> tuple[Drawn, ...]:
        return self.of.draws  # type: ignore[no-any-return]

    @property
    def own_rule(self) -> str | None:
        """See ``Pure``."""
        return self.of.own_rule  # type: ignore[no-any-return]

    def reversed(self) -> Any:
        """See ``Pure.reversed``; a derivative is differentiated itself first."""
        return self

    def again(self) -> contextlib.AbstractContextManager[None]:
        """See ``Pure.again``."""
        return self.of.again()  # type: ignore[no-any-return]

    def is_itself_for(self, wrt: Sequence[int]) -> bool:
        """Whether derivatives with respect to these values alone need no ``exact``: what was saved does not depend
        on them."""
        of = self.of
        return isinstance(of, _OfPure) and of.is_itself_for([i for i in wrt if i < self.n_of_own])

    @property
    def n_of_own(self) -> int:
        """How many of the values are those of the function it is made of, and in its order; what follows it is
        linear in."""
        return 0


@frozen(eq=False, kw_only=True)
class Pulled(_OfPure):
    """The vector-Jacobian product of a pure function: of its values, then of a cotangent for each output in
    ``active``, to a gradient for each value in ``wrt``."""

    n: int
    wrt: tuple[int, ...]
    active: tuple[int, ...]
    late: tuple[Guard, ...] = ()
    """What of Python state its backward pass reads, as it was when that ran."""

    def __call__(self, *values: Any) -> tuple[Tensor, ...]:
        _require_no_own_rule(self.of)
        leaves, cotangents = values[: self.n], values[self.n :]

        def f(*own: Any) -> tuple[Any, ...]:
            outs = self.of(*with_values(leaves, self.wrt, own))
            return tuple(outs[i] for i in self.active)

        with nesting():
            pull: Any = torch.func.vjp(f, *(leaves[i] for i in self.wrt))[1]
            with _again(self.late):
                return pull(tuple(cotangents))  # type: ignore[no-any-return]

    @property
    def n_of_own(self) -> int:
        return self.n

    @property
    def n_outs(self) -> int:
        return len(self.wrt)


@frozen(eq=False, kw_only=True)
class ForwardHalf(_OfPure, OfGraph):
    """The forward half of a pure function: its outputs, then what it saves."""

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        with nesting():
            return _run(self.of.halves[0], values)

    @property
    def n_outs(self) -> int:
        return len(self.of.halves[0].signature.outs)


@frozen(eq=False, kw_only=True)
class Checks(_OfPure, OfGraph):
    """What a pure function checks of values that Python reads in it: a call on another path raises ``PathMiss``."""

    graph: Graph

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        with nesting():
            return _run(self.graph, values)

    @property
    def n_outs(self) -> int:
        return 0


@frozen(eq=False, kw_only=True)
class BackwardHalf(_OfPure, OfGraph):
    """The backward half of a pure function: of its values, what it saved, and a cotangent for each active output, to
    the gradients of the values in ``wrt``."""

    wrt: tuple[int, ...]
    n_before: int
    """How many values there are before the cotangents."""

    def is_itself_for(self, wrt: Sequence[int]) -> bool:
        return all(i >= self.n_before for i in wrt)

    def is_of_zeros(self, values: Sequence[Any]) -> bool:
        """Whether all cotangents are symbolic zeros."""
        return all(isinstance(value, Tensor) and is_zero_tensor(value) for value in values[self.n_before :])

    def zeros(self, values: Sequence[Any]) -> tuple[Tensor, ...]:
        """The gradients of symbolic zeros."""
        return tuple(torch.zeros_like(values[i]) for i in self.wrt)

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        forward, backward = self.of.halves
        ins, outs = forward.signature.ins, forward.signature.outs
        saved = [slot for slot in outs if isinstance(slot, Saved)]
        known: dict[Any, Any] = dict(
            zip((*ins, *saved, *(Cotangent(outs[i]) for i in self.of.active)), values, strict=True)
        )
        with nesting():
            results = _run(backward, [known[slot] for slot in backward.signature.ins])
            found = dict(zip((slot.of for slot in backward.signature.outs), results, strict=True))
            return tuple(torch.zeros_like(values[i]) if found.get(ins[i]) is None else found[ins[i]] for i in self.wrt)

    @property
    def n_outs(self) -> int:
        return len(self.wrt)


@frozen(eq=False, kw_only=True)
class HalfAlone(_OfValues, OfGraph):
    """A backward half of a program, of what backward is given in one pass."""

    root: Callable[..., Any]
    graph: Graph

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        with nesting():
            return _run(self.graph, values)


@frozen(eq=False, kw_only=True)
class Mapped(_OfPure):
    """A pure function under vmap: of values with a batch dimension where ``dims`` has one, to its outputs, and then
    the batch dimension of each (-1: none)."""

    dims: tuple[int | None, ...]
    size: int | None
    randomness: str

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        size: Any = next((v.shape[d] for v, d in zip(values, self.dims, strict=True) if d is not None), self.size)
        with nesting(), vmap_level(size, self.randomness) as level:
            outs = self.of(
                *(v if d is None else batched_at(level, v, d) for v, d in zip(values, self.dims, strict=True))
            )
            pairs = [unbatched_at(level, v) if isinstance(v, Tensor) else (v, None) for v in outs]
        return *(v for v, _ in pairs), *(-1 if d is None else d for _, d in pairs)

    @property
    def n_of_own(self) -> int:
        return len(self.dims)

    def reversed(self) -> Any:
        """See ``Pure.reversed``."""
        of = self.of.reversed()
        return self if of is self.of else evolve(self, of=of)

    @property
    def n_outs(self) -> int:
        return 2 * self.of.n_outs  # type: ignore[no-any-return]


@frozen(eq=False, kw_only=True)
class Pushed(_OfPure):
    """The Jacobian-vector product of a pure function: of its values, then of a tangent for each value in ``wrt``, to
    its outputs, then a tangent for each (None: it has none)."""

    n: int
    wrt: tuple[int, ...]

    def __call__(self, *values: Any) -> Any:
        _require_no_own_rule(self.of)
        leaves, tangents = values[: self.n], values[self.n :]

        def f(*own: Any) -> tuple[Any, ...]:
            return self.of(*with_values(leaves, self.wrt, own))  # type: ignore[no-any-return]

        with nesting():
            return _jvp_of(f, tuple(leaves[i] for i in self.wrt), tuple(tangents))

    @property
    def n_of_own(self) -> int:
        return self.n

    @property
    def n_outs(self) -> int:
        return 2 * self.of.n_outs  # type: ignore[no-any-return]


@frozen(eq=False)
class Given(Of):
    """A definition that is given, before its arguments, what it closes over of an outer level."""

    places: tuple[Place, ...]
    splits = True

    def __call__(self, values: Sequence[Any], /, *args: Any, **kwargs: Any) -> Any:
        trace = active_trace()
        assert trace is not None, "it runs only inside a trace, which knows what stands for what"
        trace.given_anew |= {place.identity for place in self.places}
        with trace.binding(list(zip((place.read() for place in self.places), values, strict=True))):
            return self.of(*args, **kwargs)

    def argument_names(self, n: int) -> list[str]:
        return ["given", *self.of.argument_names(n - 1)]


@frozen(eq=False)
class AtLevel(Of):
    """A definition whose program runs at a level of autograd. A gradient, too, is differentiated there like any
    function: cotangents that are given are inputs like others."""

    splits = True
    replays = True
    at_level = True

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with nesting() if isinstance(self.of, Pullback) else contextlib.nullcontext():
            return self.of(*args, **kwargs)

    def out_slot(self, path: str) -> Slot:
        return Out(path)  # a gradient that is a result is none of this function's own


PURE = (Pure, _OfPure)


def _again(guards: Sequence[Guard]) -> contextlib.AbstractContextManager[None]:
    """See ``running_again``; where nothing is traced, nothing is put back."""
    trace = active_trace()
    return contextlib.nullcontext() if trace is None else running_again(trace, guards)


def require_repeatable(graph: Graph, both: bool = False) -> None:
    """Raise ``UnsupportedTransformError`` where a function makes opaque calls that have effects, in its forward pass,
    or in ``both``: it is about to run once more."""
    once = next(
        (
            n
            for n in graph.fx.nodes
            if isinstance(n.target, Opaque) and not n.target.is_pure and (both or pass_of(n) == "forward")
        ),
        None,
    )
    if once is not None:
        raise refusals.RUNS_ONCE(once.target.name, once.target, where=where_of(once))


def _require_no_own_rule(of: Any) -> None:
    if of.own_rule is not None:
        raise refusals.RULE_NOT_IN_GRAPH(of.own_rule, where=of.own_rule)


def _run(graph: Graph, values: Sequence[Any]) -> tuple[Any, ...]:
    """The results of a graph in the running trace; its constants are made anew there, as the function made them."""
    with without_function_modes():
        constants = {name: torch.ops.aten.lift_fresh_copy.default(value) for name, value in graph.constants.items()}
    return evolve(graph, constants=constants).run(*values, instead=MAPPED)


def _jvp_of(f: Callable[..., Any], primals: tuple[Tensor, ...], tangents: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """What ``f`` returns, then a tangent for each: as ``torch.func.jvp``, of functions that may return what is no
    tensor, or nothing; None where nothing depends on the primals, for which that makes zeros."""
    lasting = primals[0].new_zeros(())
    outs: list[Any] = []
    tensors: list[int] = []
    duals: list[int] = []

    def of_tensors(*own: Any) -> tuple[Tensor, ...]:
        outs[:] = f(*own)
        # a view must have a tangent that lies as it does: one with rules of its own has none where memory is not told
        for i, v in enumerate(outs):
            if isinstance(v, Tensor) and (v.storage_offset() or not is_dense(v)):
                outs[i] = v.clone()
        tensors[:] = [i for i, v in enumerate(outs) if isinstance(v, Tensor)]
        duals[:] = [i for i in tensors if dual_parts(outs[i])[1] is not None]
        return *(outs[i] for i in tensors), lasting

    with sharing_dual_level():
        found: Any = torch.func.jvp(of_tensors, primals, tangents)
    pushed = dict(zip(tensors, found[1], strict=False))
    primals_out = with_values(outs, tensors, found[0][:-1])
    return *primals_out, *with_values([None] * len(outs), duals, [pushed[i] for i in duals])


def mapped(of: Any, dims: tuple[int | None, ...], size: int | None, randomness: str) -> Mapped:
    exact = None
    if of.exact is not None:
        exact = mapped(of.exact[0], tuple(dims[i] for i in of.exact[1]), size, randomness), of.exact[1]
    return Mapped(of=of, dims=dims, size=size, randomness=randomness, exact=exact, written=of.written)


def pushed_forward(of: Any, wrt: tuple[int, ...], n: int) -> Pushed:
    """What is written to has a tangent that is written to."""
    return Pushed(of=of, n=n, wrt=wrt, written=of.written | {n + k for k, i in enumerate(wrt) if i in of.written})


def backward_half(of: Pure, wrt: tuple[int, ...], n: int, n_saved: int) -> BackwardHalf:
    exact = Pulled(of=of, n=n, wrt=wrt, active=of.active, late=of.inner.facts.state.late.guards)
    places = (*range(n), *range(n + n_saved, n + n_saved + len(of.active)))
    return BackwardHalf(of=of, wrt=wrt, n_before=n + n_saved, exact=(exact, places))


def pulled_back(of: Any, n: int, wrt: tuple[int, ...], active: tuple[int, ...], late: tuple[Guard, ...] = ()) -> Pulled:
    """The vector-Jacobian product of a pure function of ``n`` values."""
    exact = None
    if of.exact is not None:  # it is linear in these values
        whole, places = of.exact
        own = pulled_back(whole, len(places), tuple(places.index(i) for i in wrt), active)
        exact = own, (*places, *range(n, n + len(active)))
    return Pulled(of=of, n=n, wrt=wrt, active=active, exact=exact, late=late)
