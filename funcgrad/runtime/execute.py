"""How a program runs where its result must be differentiable: as an autograd Function of its flat inputs.

The forward half returns outputs and saved values, the backward half takes them back. A backward pass that must itself
be differentiable (``create_graph=True``) goes through ``pullback``: the compiled vector-Jacobian product as a function
of the inputs and the incoming gradients, differentiable like any other compiled function, so that every order exists.
"""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from ..autograd_state import bump_version, is_leaf, version_of
from ..backends.backend import Runnable
from ..capture.autocast import autocast_as
from ..capture.views import Step, take
from ..errors import MutationError, UnsupportedTransformError
from ..generators import Drawn, OwnDraws, mark_of, own_draws, state_of
from ..graphs import Graph
from ..slots import Slot
from ..subclasses import Wrapping, inner_tensors, overwrite
from ..torch_private.autograd import any_autocast, below_autograd, versions_kept
from ..torch_private.levels import is_mapped
from ..torch_private.tensors import is_wrapper_subclass
from .cotangents import CotangentLayout, Outline

Pullback = Callable[[Sequence[Any], Sequence[Any], Sequence[Tensor]], Sequence[Tensor | None]]
"""Takes the inputs as forward was given them (None for one that is gone), their values then, and the incoming
gradients."""

_KEYS = 1 << 40
"""From here on, keys are those of programs: PyTorch numbers the classes of autograd Functions from 0 on."""


@frozen(eq=False)
class Differentiable:
    """The two halves of a program and how their values are laid out. All ints are positions.

    ``forward`` returns ``n_outs`` outputs, then saved values; ``differentiable`` are the outputs that require grad.
    ``backward`` takes, in a list that it empties, the inputs at ``kept_inputs``, the saved values, one incoming
    gradient per differentiable output (laid out as ``cotangents`` say), and the inputs at ``late_inputs`` as they are
    then; it returns the gradients of the inputs at ``backward_gradients``, then what it writes: ``(input, result)`` in
    ``writes_inputs``, ``(output, result)`` in ``writes_outs``; the nodes of autograd that write are those that an
    incoming gradient of a differentiable output ``runs``. ``backward`` is None for a program that is itself a gradient
    (its derivative is compiled when it is first asked for), and where differentiating all outputs failed: then
    ``refused`` is the error, and what some of them lead to is differentiated when a gradient comes in for these alone.
    ``pullback`` returns a gradient or None for every input that requires grad: those at ``gradient_inputs``. It may
    read the inputs at ``needed_inputs`` alone, as forward saw them: of those at ``copied_inputs``, which the call
    writes to or restrides, a copy is kept. Those at ``restrided_inputs`` will look otherwise after the call; leaves
    among ``restrided_leaves`` do so by these steps, unknown to autograd (by none: they are given other memory, and no
    gradient comes to them). The version counters of those at ``bumps`` move. ``watched_inputs`` are those whose values
    at the end of the call backward needs, each with how far its version counter moves until then; ``watched_outs`` are
    outputs that look at what is saved.
    """

    forward: Runnable
    backward: Runnable | None
    n_outs: int
    differentiable: tuple[int, ...]
    cotangents: tuple[CotangentLayout, ...]
    kept_inputs: tuple[int, ...]
    late_inputs: tuple[int, ...]
    backward_gradients: tuple[int, ...]
    writes_inputs: tuple[tuple[int, int], ...]
    writes_outs: tuple[tuple[int, int], ...]
    runs: tuple[frozenset[int], ...]
    gradient_inputs: tuple[int, ...]
    needed_inputs: tuple[int, ...]
    copied_inputs: tuple[int, ...]
    watched_inputs: tuple[tuple[int, int], ...]
    watched_outs: tuple[int, ...]
    restrided_inputs: tuple[int, ...]
    restrided_leaves: Mapping[int, tuple[Step, ...]]
    bumps: tuple[int, ...]
    subclass_inputs: tuple[int, ...]
    makes_zeros: bool
    """Whether an output is a subclass (the zeros autograd makes for one that nothing depends on would be plain), or
    it matters which outputs got a gradient."""
    pullback: Pullback
    refused: Exception | None
    draws: tuple[Drawn, ...]
    """What forward draws random numbers from: a derivative that runs it again must draw the same."""
    name: str
    copied: Graph | str
    """What ``backward`` runs, as a graph that may be copied into another one; or why it may not."""
    wrappings: Mapping[Slot, Wrapping]
    """How the wrapper subclasses that it is given, and gives, are made of the tensors which that graph knows."""
    number: int = field(factory=functools.partial(next, itertools.count()), init=False)
    """It tells the program apart from all others."""

    @property
    def has_prologue(self) -> bool:
        """Whether backward looks at more than what was saved: at versions, and at what inputs hold when it runs."""
        return bool(self.watched_inputs or self.watched_outs or self.late_inputs)

    @property
    def n_written(self) -> int:
        """How many tensors backward writes to."""
        return len(self.writes_inputs) + len(self.writes_outs)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self.restrided_leaves:
            inputs = tuple(
                _ahead(v, self.restrided_leaves[i]) if i in self.restrided_leaves else v for i, v in enumerate(inputs)
            )
        # tracked: a second derivative flows on to what made them
        first = {i: inputs[i].clone() for i in self.copied_inputs}
        outs: tuple[Any, ...] = _Apply.apply(self, first, *inputs)  # type: ignore[no-untyped-call]
        return outs

    def writes_now(self, arrived: Sequence[bool]) -> bool:
        """Whether backward writes where some differentiable outputs, and not others, got a gradient: what none of these
        leads to does not run in eager PyTorch.

        Raises ``MutationError`` where some of what writes would run, and some not.
        """
        every = frozenset[int]().union(*self.runs)
        run = frozenset[int]().union(*(own for own, here in zip(self.runs, arrived, strict=True) if here))
        if run and run != every:
            raise MutationError(
                "several hooks or custom autograd.Functions of a compiled function write in backward, and some of "
                "them would not run in "
                "this backward pass: the results that they made have no gradient here",
                where="the backward pass",
                fix="call backward from all results at once, or compile the parts as functions of their own",
            )
        return bool(run)


class _Apply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: Differentiable, first: Mapping[int, Tensor], *inputs: Any) -> tuple[Any, ...]:
        ctx.generators = {of: state_of(of) for of in program.draws}
        # Below autograd nothing is tracked, but grad mode is on as it was in the trace: some kernels ask for it
        # (oneDNN's RNN).
        with below_autograd(), torch.enable_grad():
            values = program.forward(*inputs)
        ctx.generators_then = {of: mark_of(of) for of in program.draws}
        for i in program.bumps:
            bump_version(inputs[i])
        outs, saved = tuple(values[: program.n_outs]), values[program.n_outs :]
        # as they lie now: the caller may be about to change how an input looks (t_)
        kept = (
            [inputs[i].detach() if i in program.restrided_inputs else inputs[i] for i in program.kept_inputs]
            + list(saved)
            + [outs[i] for i, _ in program.writes_outs]
        )
        ctx.program = program
        ctx.save_for_backward(*[v if isinstance(v, Tensor) else None for v in kept])
        ctx.scalars = [None if isinstance(v, Tensor) else v for v in kept]
        ctx.late = [inputs[i].detach() for i in program.late_inputs]
        ctx.written = [inputs[i].detach() for i, _ in program.writes_inputs]
        ctx.watched = [(inputs[i].detach(), version_of(inputs[i]) + moves) for i, moves in program.watched_inputs]
        ctx.watched += [(outs[i].detach(), version_of(outs[i])) for i in program.watched_outs]
        # For a second derivative only. Not among the saved tensors: eager PyTorch lets a bias be updated before
        # backward. An input whose values no derivative needs may die when the caller lets it go.
        ctx.inputs = [
            v
            if i in program.needed_inputs or not isinstance(v, Tensor)
            else (_Hollow if i in program.subclass_inputs else Outline).of(v)
            for i, v in ((i, first.get(i, v)) for i, v in enumerate(inputs))
        ]
        ctx.given = [weakref.ref(v) if isinstance(v, Tensor) else None for v in inputs]
        ctx.versions = [version_of(v) if isinstance(v, Tensor) else 0 for v in ctx.inputs]
        ctx.shapes = [tuple(outs[i].shape) for i in program.differentiable] if program.makes_zeros else []
        ctx.set_materialize_grads(not program.makes_zeros and program.refused is None)
        ctx.mark_non_differentiable(
            *[v for i, v in enumerate(outs) if i not in program.differentiable and isinstance(v, Tensor)]
        )
        return outs

    @staticmethod
    def _compiled_autograd_key(ctx: Any) -> tuple[int, ...]:
        """What tells graphs of autograd apart that are captured: the program; sizes may vary."""
        return (_KEYS + ctx.program.number, *(v for v in ctx.scalars if type(v) is int), *sizes_beside(ctx))

    @staticmethod
    def backward(ctx: Any, *incoming: Tensor) -> tuple[Any, ...]:
        program: Differentiable = ctx.program
        cotangents = [incoming[i] for i in program.differentiable]
        here = [t is not None for t in cotangents]
        if program.refused is not None and all(here):
            raise program.refused
        if program.makes_zeros and program.refused is None:
            wanted = zip(program.cotangents, ctx.shapes, cotangents, strict=True)
            cotangents = [layout.zeros(shape) if t is None else t for layout, shape, t in wanted]
        saved = ctx.saved_tensors  # raises, as in eager PyTorch, if a value was changed in place or freed
        require_saved_versions(ctx)
        # kernels take no tensors of a vmap that is around this backward pass (is_grads_batched, torch.func.vmap)
        if (
            torch.is_grad_enabled()
            or program.backward is None
            or any(t is not None and is_mapped(t) for t in cotangents)
        ):
            require_versions(
                (v, version) for v, version in zip(ctx.inputs, ctx.versions, strict=True) if isinstance(v, Tensor)
            )
            places = program.gradient_inputs
            values = [v.empty() if isinstance(v, (Outline, _Hollow)) else v for v in ctx.inputs]
            given = [None if one is None else one() for one in ctx.given]
            if program.draws:
                with own_draws(ctx.generators, ctx.generators_then) as own:
                    gradients = program.pullback(given, values, cotangents)
                _require_same_draws(own)
            else:
                gradients = program.pullback(given, values, cotangents)
        else:
            laid_out = [layout(t) for layout, t in zip(program.cotangents, cotangents, strict=True)]
            kept = [t if t is not None else scalar for t, scalar in zip(saved, ctx.scalars, strict=True)]
            n_kept = len(kept) - len(program.writes_outs)
            written = (*ctx.written, *kept[n_kept:])
            values = [*kept[:n_kept], *laid_out, *ctx.late]
            del saved, kept, cotangents, laid_out, incoming
            is_run = bool(written) and program.writes_now(here)
            # unless the graph is kept: then the list holds all there is, and backward empties it
            ctx.maybe_clear_saved_tensors()
            with autocast_as(()) if any_autocast() else nullcontext():  # its casts are in its graph
                results = program.backward(values)
            places, gradients = program.backward_gradients, results[: len(program.backward_gradients)]
            if is_run:
                write_back(written, [results[i] for _, i in program.writes_inputs + program.writes_outs])
        result: list[Any] = [None] * (2 + len(ctx.inputs))
        for i, gradient in zip(places, gradients, strict=True):
            result[2 + i] = gradient
        return tuple(result)


@frozen(eq=False)
class _Hollow:
    """What is left of a wrapper subclass without the values of its inner tensors."""

    wrapping: Wrapping
    inner: tuple[Outline, ...]
    requires_grad: bool

    @staticmethod
    def of(t: Tensor) -> _Hollow:
        wrapping = Wrapping.of(t)
        assert wrapping is not None
        return _Hollow(wrapping, tuple(map(Outline.of, inner_tensors(t))), t.requires_grad)

    def empty(self) -> Tensor:
        """A tensor like it."""
        return self.wrapping.build(outline.empty() for outline in self.inner).requires_grad_(self.requires_grad)


def _ahead(leaf: Any, steps: Sequence[Step]) -> Any:
    """A leaf as it looks now, connected to autograd as it will look: who connects it fixes the sizes of its
    gradient."""
    if not steps:
        return leaf.detach()
    if not (leaf.requires_grad and is_leaf(leaf)):
        return leaf
    now = leaf.detach()
    _look_like(leaf, take(now, steps))
    try:
        with torch.enable_grad():
            return leaf.as_strided(now.shape, now.stride(), now.storage_offset())
    finally:
        _look_like(leaf, now)


def _look_like(leaf: Tensor, other: Tensor) -> None:
    with torch.no_grad(), versions_kept(leaf):
        leaf.as_strided_(other.shape, other.stride(), other.storage_offset())


def differentiable_of(context: Any) -> Differentiable | None:
    """The program of a node of autograd; None if it is no program's."""
    return context.program if context._forward_cls is _Apply else None


def sizes_beside(context: Any) -> list[int]:
    """Sizes that a node needs of what is neither given nor saved: of what it reads late, and of its results, where
    it makes zeros."""
    return [n for shape in (*(t.shape for t in context.late), *context.shapes) for n in shape]


def require_saved_versions(context: Any) -> None:
    """``RuntimeError``, as in eager PyTorch, where somebody has written to what a node needs, and autograd does not
    know that it does."""
    require_versions(context.watched)


def write_back(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """What backward writes to tensors."""
    for target, value in zip(targets, values, strict=True):
        _write(target, value)


def _write(target: Tensor, value: Tensor) -> None:
    if is_wrapper_subclass(target):
        overwrite(target, value)
        return
    for d, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:  # expanded: written once
            target, value = target.narrow(d, 0, 1), value.narrow(d, 0, 1)
    target.copy_(value)


def _require_same_draws(own: OwnDraws) -> None:
    if own.not_passed:
        raise UnsupportedTransformError(
            "another thread drew random numbers while forward did: what forward drew cannot be drawn again for a "
            "second derivative",
            where="the backward pass that is differentiated (create_graph=True)",
            fix='compile with rng="philox", or draw in one thread at a time',
        )


def require_versions(expected: Iterable[tuple[Tensor, int]]) -> None:
    """``RuntimeError``, as in eager PyTorch, where a tensor is of another version than expected."""
    for value, version in expected:
        if version_of(value) != version:
            raise RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace operation: a "
                "tensor of shape "
                f"{list(value.shape)} is at version {value._version}; expected version {version} instead"
            )
