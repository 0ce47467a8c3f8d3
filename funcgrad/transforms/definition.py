"""Definitions: what each transform means, in plain differentiable PyTorch over pytrees.

A definition can be called as it is: that is what a compiled function does inside another trace, and where a call must
be eager. The pipeline traces a definition like any function; all it asks besides is how results are named, and whose
closure to search for captured tensors.
"""

from __future__ import annotations

import contextlib
import inspect
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

import torch
from attrs import frozen
from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from .. import refusals
from ..autograd_state import has_dead_end, has_history, is_leaf, next_nodes, with_history_of
from ..capture.gradients import gradients_of, with_accumulated
from ..capture.inner import Inner
from ..capture.runs_again import copies_at_own_level, running_again
from ..capture.trace import active_trace
from ..errors import ArgumentError, AuxError, NonDifferentiableArgumentError, NonScalarOutputError
from ..inside import having, set_to
from ..slots import Arg, Grad, Out, Slot
from ..torch_private.levels import outside_inference_mode, transforms_or_duals
from ..torch_private.modes import without_function_modes
from ..torch_private.tensors import is_wrapper_subclass
from ..trees import Tree, flatten, unflatten
from ..walks import after


class Definition(Protocol):
    """What the pipeline needs to know of a transform."""

    @property
    def root(self) -> Callable[..., Any]:
        """The caller's function."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...

    @property
    def splits(self) -> bool:
        """Whether a result that must be differentiable is computed in two halves (else its derivative is compiled
        when asked for)."""
        return True

    @property
    def replays(self) -> bool:
        """Whether what the function writes to Python state happens on each call; not where it runs again for a
        derivative."""
        return True

    @property
    def at_level(self) -> bool:
        """Whether its program runs at a level of torch.func, whose tensors it reads and writes."""
        return False

    def argument_names(self, n: int) -> list[str]:
        """Names of ``n`` positional arguments."""
        return argument_names(self.root, n)

    def out_slot(self, path: str) -> Slot:
        """What the leaf of the result at ``path`` is."""
        return Out(path)


def name_of(function: Callable[..., Any]) -> str:
    """A readable name for messages."""
    inner = getattr(function, "func", function)  # functools.partial
    return str(getattr(inner, "__name__", type(inner).__name__))


def argument_names(function: Callable[..., Any], n: int) -> list[str]:
    """The names of ``n`` positional arguments as the function's signature has them; ``args[i]`` where it has none."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "args")
    return [names[i] if i < len(names) else f"{rest}[{i - len(names)}]" for i in range(n)]


def checked_argnums(argnums: Any) -> int | tuple[int, ...]:
    """``argnums`` of a transform; raises ``ArgumentError`` for what is none."""
    if type(argnums) is int:
        return argnums
    if isinstance(argnums, (tuple, list)) and argnums and all(type(i) is int for i in argnums):
        return tuple(argnums)
    raise ArgumentError(f"argnums={argnums!r}", fix="pass an int, or a tuple of ints with at least one")


def positions_of(argnums: int | tuple[int, ...], root: Callable[..., Any], n: int) -> list[int]:
    """Which of ``n`` positional arguments of ``root`` they name."""
    wanted = argnums if isinstance(argnums, tuple) else (argnums,)
    for i in wanted:
        if not -n <= i < n:
            raise ArgumentError(
                f"argnums={argnums!r}, but {name_of(root)} was called with {n} positional arguments",
                where=definition_line(root),
                fix="name the argument to differentiate by its position; keyword arguments are not differentiated",
            )
    positions = [i % n for i in wanted]
    if len(set(positions)) != len(positions):
        raise ArgumentError(f"argnums={argnums!r} names an argument twice", fix="name each argument once")
    return positions


def has_derivative(leaf: Any) -> bool:
    """Whether it is a tensor of real or complex numbers."""
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def require_differentiable(leaf: Any, path: str, fix: str | None = None) -> None:
    """Raise ``NonDifferentiableArgumentError`` for an argument's leaf that has no gradient."""
    if not has_derivative(leaf):
        raise NonDifferentiableArgumentError(
            f"{path} is {describe(leaf)}, which has no gradient",
            where=path,
            fix=fix or "make it a floating-point tensor, or pass it as an argument that is not in argnums",
        )


class OfGraph:
    """A definition that runs a graph, and so nothing of the caller's Python: it reads no Python state."""

    __slots__ = ()


def runs_graph(definition: Any) -> bool:
    """Whether a definition, or what it is a transform of, is one of a graph."""
    while definition is not None and not isinstance(definition, OfGraph):
        definition = getattr(definition, "of", None)
    return definition is not None


@frozen
class Plain(Definition):
    """The function itself (``jit``)."""

    root: Callable[..., Any]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with nesting():
            return self.root(*args, **kwargs)


@frozen
class Of(Definition):
    """A definition that is another one but for how that is called."""

    of: Definition

    @property
    def root(self) -> Callable[..., Any]:
        return self.of.root

    @property
    def splits(self) -> bool:
        return self.of.splits

    @property
    def replays(self) -> bool:
        return self.of.replays

    @property
    def at_level(self) -> bool:
        return self.of.at_level

    def argument_names(self, n: int) -> list[str]:
        return self.of.argument_names(n)

    def out_slot(self, path: str) -> Slot:
        return self.of.out_slot(path)


@frozen
class Untracked(Of):
    """A definition that is called where grad mode is off, as one that switches it off itself: where grad mode is on
    again inside, what comes of that is differentiable, as it is for any part of a function. Whoever calls it puts grad
    mode back, and so knows in which the function has ended."""

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        torch.set_grad_enabled(False)
        return self.of(*args, **kwargs)


@frozen
class Inferring(Of):
    """A definition that is called in inference mode and leaves it inside, as one that enters it itself, called
    outside."""

    grad_mode: bool

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        with torch.inference_mode(), torch.set_grad_enabled(self.grad_mode):
            return self.of(*args, **kwargs)


@frozen
class Gradient(Definition):
    """Reverse-mode gradient of a scalar function; ``order`` says which of ``"value"`` and ``"grads"`` are returned.

    With ``has_aux``, ``aux`` goes with the value if there is one (``((value, aux), grads)``), else with the gradients;
    torch.func's order ``("grads", "value")`` gives ``(grads, (value, aux))``.
    """

    root: Callable[..., Any]
    argnums: int | tuple[int, ...]
    has_aux: bool
    order: tuple[str, ...]
    splits = False

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Forward and backward, by ``torch.autograd.grad``: the trace records both."""
        if torch.is_inference_mode_enabled():  # which torch.func's transforms leave from 2.13 on
            with outside_inference_mode():
                return self._by_torch_func(*args, **kwargs)
        # inlined in a vmap, grad or jvp of the traced function: torch.func knows those levels
        if transforms_or_duals():
            return self._by_torch_func(*args, **kwargs)
        differentiable = torch.is_grad_enabled()
        with nesting() as traced, torch.enable_grad(), _own_variables() as own:
            positions = positions_of(self.argnums, self.root, len(args))
            prepared, wrt, trees, given = list(args), [], [], dict[int, Any]()
            for i in positions:
                leaves, tree, paths = flatten(args[i], argument_names(self.root, len(args))[i])
                fresh = [_variable(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
                prepared[i] = unflatten(fresh, tree)
                given |= {id(v): leaf for v, leaf in zip(fresh, leaves, strict=True)}
                wrt.append(fresh)
                trees.append(tree)
            variables = [(v, v.grad_fn) for fresh in wrt for v in fresh]
            own |= {id(v): v for v, history in variables if history is None}
            _note_variables(own, [v for v, history in variables if history is not None], traced and not differentiable)
            value, aux = self._split(self.root(*prepared, **kwargs))
            # autograd forbids that of leaves alone
            if any(variable.grad_fn is not was for variable, was in variables):
                raise refusals.WRITES_INTO_LEAF(where=definition_line(self.root))
            grads = self._gradients(value, wrt, trees, differentiable, traced)
            result = self._arrange(value, aux, grads)
        return _detach_unless(result, given, own, differentiable)

    def out_slot(self, path: str) -> Slot:
        """``grads`` leaves are gradients of the arguments they belong to; all others are outputs."""
        inside = path
        if len(self.order) == 2 or self.has_aux:
            first = "grads" if self.order[0] == "grads" else "value"
            if inside.startswith("[0]") != (first == "grads"):
                return Out(path)
            inside = inside[3:]
        if isinstance(self.argnums, tuple):
            k, _, inside = inside[1:].partition("]")
            return Grad(Arg(self._argument_name(self.argnums[int(k)]) + inside))
        return Grad(Arg(self._argument_name(self.argnums) + inside))

    def _argument_name(self, i: int) -> str:
        return argument_names(self.root, i + 1)[i] if i >= 0 else f"args[{i}]"

    def _split(self, result: Any) -> tuple[Tensor, Any]:
        aux = None
        if self.has_aux:
            if not isinstance(result, tuple) or len(result) != 2:
                raise AuxError(
                    f"has_aux=True, but {name_of(self.root)} returned {describe(result)}",
                    where=definition_line(self.root),
                    fix="return (loss, aux)",
                )
            result, aux = result
        if not isinstance(result, Tensor) or result.ndim != 0 or not result.is_floating_point():
            advice = "has_aux=True for a pair (loss, aux), .sum() or .mean() for many losses"
            raise NonScalarOutputError(
                f"only a scalar floating-point tensor has a gradient, but {name_of(self.root)} returned "
                f"{describe(result)}",
                where=definition_line(self.root),
                fix=advice,
            )
        return result, aux

    def _by_torch_func(self, /, *args: Any, **kwargs: Any) -> Any:
        positions_of(self.argnums, self.root, len(args))

        def checked(*args: Any, **kwargs: Any) -> Any:
            with copies_at_own_level():
                value, aux = self._split(self.root(*args, **kwargs))
            return (value, aux) if self.has_aux else value

        grads, found = torch.func.grad_and_value(checked, self.argnums, self.has_aux)(*args, **kwargs)
        value, aux = found if self.has_aux else (found, None)
        return self._arrange(value, aux, grads)

    def _gradients(
        self, value: Tensor, wrt: list[list[Tensor]], trees: list[Tree], differentiable: bool, traced: bool
    ) -> Any:
        flat, trace = [leaf for leaves in wrt for leaf in leaves], active_trace()
        with (
            contextlib.nullcontext() if trace is None else having(trace, is_as_torch_func=True),
            _backward_pass(traced) as mark,
        ):
            if value.requires_grad and flat:
                seed = mark(_one_for(value))
                found: Sequence[Tensor | None] = torch.autograd.grad(
                    value, flat, seed, create_graph=differentiable, allow_unused=True
                )
            else:
                found = [None for _ in flat]
            filled = iter([torch.zeros_like(x) if g is None else g for x, g in zip(flat, found, strict=True)])
        grads = [unflatten([next(filled) for _ in leaves], tree) for leaves, tree in zip(wrt, trees, strict=True)]
        return tuple(grads) if isinstance(self.argnums, tuple) else grads[0]

    def _arrange(self, value: Tensor, aux: Any, grads: Any) -> Any:
        if self.order == ("grads",):
            return (grads, aux) if self.has_aux else grads
        parts = {"value": (value, aux) if self.has_aux else value, "grads": grads}
        return tuple(parts[name] for name in self.order)


def _one_for(value: Tensor) -> Tensor:
    """The gradient of a number with respect to itself. It is not made of the number, so that backward need not wait
    for it."""
    if is_wrapper_subclass(value):
        return torch.ones_like(value)
    return torch.full(value.shape, 1, dtype=value.dtype, device=value.device)


@frozen
class Pullback(Definition):
    """The vector-Jacobian product of an inner function: ``(values, cotangents) → gradients``.

    ``values`` has one for each of its inputs; ``wrt`` are the positions of those to differentiate. ``active`` are the
    outputs a cotangent comes in for, or None: then the output is not differentiated. A gradient is None where nothing
    depends on the value.
    """

    inner: Inner
    wrt: tuple[int, ...]
    active: tuple[Slot, ...]
    root: Callable[..., Any]
    splits = False
    replays = False

    @property
    def reads_late(self) -> bool:
        """Whether a backward pass of the function reads Python state."""
        of = self.inner.definition
        return bool(self.inner.facts.state.late) or (isinstance(of, Pullback) and of.reads_late)

    def __call__(self, values: Sequence[Any], cotangents: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
        trace = active_trace()
        assert trace is not None, "a pullback runs only inside a trace, which knows the captured tensors"
        if transforms_or_duals():
            return self._by_torch_func(values, cotangents)
        differentiable = torch.is_grad_enabled()
        slots = self.inner.signature.ins
        with nesting() as traced, torch.enable_grad(), _own_variables() as own:
            variables = list(values)
            for i in self.wrt:
                variables[i] = _variable(variables[i], str(slots[i]))
                own |= {id(variables[i]): variables[i]} if is_leaf(variables[i]) else {}
            with running_again(trace, self.inner.facts.state.guards, happened=True):
                ran = self.inner.run(*variables, again=dict(zip(slots, values, strict=True)))
                outs = dict(ran.outs)
                with without_function_modes():  # what was returned, not what has come to stand for it (t_)
                    pairs = [
                        (outs[s], t)
                        for s, t in zip(self.active, cotangents, strict=True)
                        if t is not None and has_history(outs[s])
                    ]
                    edges = [get_gradient_edge(v) for v, _ in pairs]
            with _backward_pass(traced) as mark:
                seeds = [mark(t) for _, t in pairs]
                targets = [variables[i] for i in self.wrt]
                if not differentiable and all(map(is_leaf, targets)) and has_dead_end([edge.node for edge in edges]):
                    # eager PyTorch runs that, too, which may find that what it saved was written to
                    torch.autograd.backward(edges, seeds)
                    return tuple(target.grad for target in targets)
                before = gradients_of(targets)
                found = torch.autograd.grad(edges, targets, seeds, create_graph=differentiable, allow_unused=True)
                return with_accumulated(targets, before, found)

    def _by_torch_func(self, values: Sequence[Any], cotangents: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """The same of values that transforms of the trace may wrap."""
        outs = self.inner.signature.outs

        def f(*own: Tensor) -> tuple[Tensor, ...]:
            variables = list(values)
            for i, value in zip(self.wrt, own, strict=True):
                variables[i] = value
            results = self.inner.run_pure(*variables)
            if results is None:
                raise refusals.FORWARD_OVER_WRITES(where=definition_line(self.root))
            return tuple(
                results[outs.index(slot)] for slot, t in zip(self.active, cotangents, strict=True) if t is not None
            )

        with nesting():
            pull: Any = torch.func.vjp(f, *(values[i] for i in self.wrt))[1]
            return pull(tuple(t for t in cotangents if t is not None))  # type: ignore[no-any-return]

    def argument_names(self, n: int) -> list[str]:
        return ["values", "cotangents"]

    def out_slot(self, path: str) -> Slot:
        (i,) = (int(number) for number in re.findall(r"\[(\d+)\]", path))
        return Grad(self.inner.signature.ins[self.wrt[i]])  # type: ignore[arg-type]


@contextlib.contextmanager
def nesting() -> Iterator[bool]:
    """Marks that a definition runs; True for the one a trace was started for."""
    trace = active_trace()
    with contextlib.nullcontext(False) if trace is None else trace.nesting() as traced:
        yield traced


_under_reverse: ContextVar[bool] = ContextVar("funcgrad_under_reverse", default=False)


def is_under_reverse() -> bool:
    """Whether what runs is the forward pass of a level of reverse mode that is not among those of torch.func that
    run."""
    return _under_reverse.get()


def under_reverse(on: bool = True) -> contextlib.AbstractContextManager[None]:
    """Inside, what runs is such a forward pass, or is none."""
    return set_to(_under_reverse, on)


@contextlib.contextmanager
def _backward_pass(traced: bool) -> Iterator[Callable[[Tensor], Tensor]]:
    """If the definition is the traced one, tells the trace that backward begins; yields what marks its first
    tensors."""
    trace = active_trace()
    if trace is not None and traced:
        with trace.backward_pass():  # forward to a backward pass through what comes of it
            yield (lambda tensor: tensor) if trace.is_split else trace.mark_start_of_backward
    else:
        yield lambda tensor: tensor


def _variable(leaf: Any, path: str) -> Tensor:
    """A fresh tensor to differentiate with respect to: gradients do not reach it by any other way. It is no view, of
    which autograd makes another history where it is written to under no_grad."""
    require_differentiable(leaf, path)
    return with_history_of(leaf, leaf) if leaf.requires_grad else leaf.detach().requires_grad_()


_variables: ContextVar[dict[int, Tensor] | None] = ContextVar("funcgrad_variables", default=None)


@contextlib.contextmanager
def _own_variables() -> Iterator[dict[int, Tensor]]:
    """Inside, the leaves that are variables of this derivative, and of those that ended in it: to what is around it,
    all of them are from inside."""
    own = dict[int, Tensor]()
    token = _variables.set(own)
    try:
        yield own
    finally:
        _variables.reset(token)
        if (around := _variables.get()) is not None:
            around |= own


def _note_variables(leaves: Mapping[int, Tensor], others: Iterable[Tensor], frees_graph: bool) -> None:
    """To a trace, what is a leaf among the variables is nothing from outside."""
    if (trace := active_trace()) is not None:
        trace.lineage.frees_graph = frees_graph or trace.lineage.frees_graph
        trace.lineage.variables |= leaves
        trace.lineage.with_history |= {id(v): v for v in others}


def _detach_unless(result: Any, given: Mapping[int, Any], own: Container[int], differentiable: bool) -> Any:
    """The result without the history that ends in its ``own`` variables alone; where it is not ``differentiable``,
    without any. A variable that is returned is what was ``given`` for it (by their identities).

    What also depends on a tensor from outside that requires grad keeps its history: it can be differentiated again.
    """
    leaves, tree, _ = flatten(result)
    known: dict[Any, bool] = {}

    def from_outside(tensor: Tensor) -> bool:
        return differentiable and (tensor.grad_fn is None or _reaches_other(tensor.grad_fn, own, known))

    def outer(value: Any) -> Any:
        if id(value) in given:
            return given[id(value)]
        return (
            value.detach() if isinstance(value, Tensor) and value.requires_grad and not from_outside(value) else value
        )

    return unflatten(list(map(outer, leaves)), tree)


def _reaches_other(start: Any, own: Container[int], known: dict[Any, bool]) -> bool:
    """Whether the autograd graph below a node ends in a leaf that is not one of ``own`` (ids). ``known`` is filled."""
    for node in after([start], next_nodes, known):
        leaf = getattr(node, "variable", None)
        known[node] = any(known[n] for n in next_nodes(node)) or (leaf is not None and id(leaf) not in own)
    return known[start]


def describe(value: Any) -> str:
    """A value, in a few words."""
    if isinstance(value, Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return f"{'an' if dtype.startswith('i') else 'a'} {dtype} tensor of shape {list(value.shape)}"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}" + (
        f" of {len(value)}" if isinstance(value, (tuple, list)) else ""
    )


def definition_line(function: Callable[..., Any]) -> str | None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    return None if code is None else f"{code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno} in {code.co_name}"
