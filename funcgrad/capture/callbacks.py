"""Python that no trace sees, as one call: while tracing an opaque call of the graph, else a call of the Python itself.

Its derivatives are what the caller says they are, and its batched form is a call again, of a function that goes over
the batch: so that every order and every nesting exists. Autograd and ``torch.func`` come to these rules by one
``autograd.Function``, traced or not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import evolve, frozen
from torch import Tensor

from .. import refusals
from ..graphs import type_text
from ..state.lines import user_line
from ..torch_private.autograd import autograd_heard
from ..torch_private.fakes import without_modes
from .applied import apply
from .derived import Gradients, is_differentiable, or_zeros, spread
from .trace import Trace, active_trace
from .traced_bodies import fake_of, functional

Sizes = Sequence[tuple[int, ...]]
Run = Callable[[Sequence[Any], Sizes], list[Tensor]]
"""Of real tensors, then numbers, and the sizes its results must have: the results, each in memory of its own."""
Rule = Callable[[Sequence[Tensor], Sequence[Tensor], Gradients], Gradients]
"""Of the tensors, the results, and a cotangent of each result (or a tangent of each tensor): a gradient of each
tensor (or a tangent of each result). None stands for zero."""

VMAP_METHODS = ("sequential", "expand_dims", "broadcast_all")


@frozen
class Like:
    """What a tensor is, or a result is to be; sizes may be symbols."""

    shape: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(tensor: Tensor) -> Like:
        return Like(tensor.shape, tensor.dtype, tensor.device)

    @property
    def is_active(self) -> bool:
        """Whether it has a derivative."""
        return self.dtype.is_floating_point or self.dtype.is_complex

    def zeros(self) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=self.device)

    def filled(self, derivative: Any) -> Any:
        """A cotangent or tangent of such a tensor: zeros where there is none; None where it has no derivative."""
        return self.zeros() if derivative is None and self.is_active else derivative

    def __str__(self) -> str:
        return f"a {str(self.dtype).removeprefix('torch.')} tensor of shape {list(self.shape)}"


@frozen(eq=False)
class Callback:
    """A call of Python that no trace sees, but for its tensors. ``numbers``: symbols of the trace among its
    arguments."""

    name: str
    spelled: str
    """How the caller writes the call, for messages."""
    where: str | None
    run: Run
    looks: tuple[Like, ...]
    numbers: tuple[Any, ...]
    writes: tuple[int, ...]
    is_pure: bool
    vjp: Rule | None
    jvp: Rule | None
    vmap_method: str | None
    takes_none: bool = False
    """Whether it is a hook: see ``Opaque``."""

    @property
    def has_derivative(self) -> bool:
        return self.vjp is not None or self.jvp is not None

    def record(self, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results, and what each tensor holds afterwards that it writes to: the tensors themselves stay as they
        are. While tracing, of tensors of the trace."""
        if (trace := active_trace()) is not None:
            return self._recorded(trace, tensors)
        own = [t.detach().clone() if i in self.writes else t for i, t in enumerate(tensors)]
        found = self._heard([*own, *self.numbers], [look.shape for look in self.looks])
        return *found, *(own[i] for i in self.writes)

    def _recorded(self, trace: Trace, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The same, as a call of the graph."""
        fakes = [fake_of(trace, t, _no_subclass) for t in tensors]
        with without_modes(), trace.fakes:
            like = [torch.empty(look.shape, dtype=look.dtype, device=look.device) for look in self.looks]
            values = [*like, *(fakes[i].clone() for i in self.writes)]
        if trace.graph is not None:
            given = [*fakes, *self.numbers, *(n for look in self.looks for n in look.shape)]
            values = trace.opaque(
                self._on_flat,
                given,
                like,
                name=self.name,
                writes=self.writes,
                is_pure=self.is_pure,
                traced=self._on_traced,
                takes_none=self.takes_none,
            )
        trace.reads.tape.called_back(self.name, values)
        return functional(trace, values)

    def _on_flat(self, *values: Any) -> list[Tensor]:
        """When a program runs: of tensors, numbers, and all sizes of the results."""
        given, shapes = self._parts(values)
        return self._heard(given, shapes)

    def _on_traced(self, *values: Any) -> tuple[Tensor, ...]:
        """Where its graph is run node by node, on tensors that a trace or a transform may know: the same call once
        more."""
        given, shapes = self._parts(values)
        if self.takes_none and given[0] is None:
            return apply(evolve(self, looks=()), ())
        n = len(given) - len(self.numbers)
        looks = tuple(evolve(look, shape=shape) for look, shape in zip(self.looks, shapes, strict=True))
        return apply(evolve(self, looks=looks, numbers=tuple(given[n:])), given[:n])

    def _parts(self, values: Sequence[Any]) -> tuple[Sequence[Any], Sizes]:
        n = len(values) - sum(len(look.shape) for look in self.looks)
        sizes, shapes = iter(values[n:]), []
        for look in self.looks:
            shapes.append(tuple(next(sizes) for _ in look.shape))
        return values[:n], shapes

    def _heard(self, values: Sequence[Any], shapes: Sizes) -> list[Tensor]:
        with autograd_heard():
            return self.run(values, shapes)

    # ── transforms ───────────────────────────────────────────────────────────────────────────────────────────────

    def pulled(
        self, tensors: Sequence[Tensor], outs: Sequence[Tensor], cotangents: Gradients, needed: Sequence[bool]
    ) -> Gradients:
        """Of a rule for forward mode, which is linear in the tangents, its transpose."""
        if all(t is None for t in cotangents):
            return [None] * len(needed)
        if self.vjp is not None:
            return self.vjp(tensors, outs, cotangents)
        jvp = self._rule(self.jvp, "vjp", "a tuple with a cotangent for each argument")
        at = [i for i, t in enumerate(tensors) if needed[i] and is_differentiable(t)]
        reached: list[int] = []

        def tangents(*own: Tensor) -> tuple[Tensor, ...]:
            found = jvp(tensors, outs, spread(len(tensors), at, own))
            reached[:] = [i for i, t in enumerate(found) if t is not None and cotangents[i] is not None]
            return tuple(t for i in reached if (t := found[i]) is not None)

        pull: Any = torch.func.vjp(tangents, *(torch.zeros_like(tensors[i]) for i in at))[1]
        return (
            spread(len(tensors), at, pull(tuple(cotangents[i] for i in reached))) if reached else [None] * len(tensors)
        )

    def pushed(self, tensors: Sequence[Tensor], outs: Sequence[Tensor], tangents: Gradients) -> Gradients:
        found = self._rule(self.jvp, "jvp", "the tangent of the result")(tensors, outs, tangents)
        return [or_zeros(t, out) if is_differentiable(out) else None for t, out in zip(found, outs, strict=True)]

    def _rule(self, rule: Rule | None, option: str, returns: str) -> Rule:
        if rule is not None:
            return rule
        given = "cotangents" if option == "vjp" else "tangents"
        mode = "reverse" if option == "vjp" else "forward"
        if self.writes:
            raise refusals.OPAQUE_WRITES_WITHOUT_DERIVATIVE(self.name, mode, option, where=self.where)
        raise refusals.OPAQUE_WITHOUT_DERIVATIVE(
            self.name, mode, self._with(f"{option}=rule"), given, returns, where=self.where
        )

    def _with(self, option: str) -> str:
        return f"{self.spelled.removesuffix(')')}, {option})"

    def batched(
        self, tensors: Sequence[Tensor], dims: Sequence[int | None], size: int, randomness: str
    ) -> tuple[Any, Any]:
        """A call of the whole batch, which is the first dimension of all its tensors."""
        method = self.vmap_method
        if method is None:
            raise refusals.OPAQUE_WITHOUT_BATCH(self.name, self._with('vmap_method="sequential"'), where=self.where)
        n, is_batched, run = len(tensors), [d is not None for d in dims], self.run

        def each(values: Sequence[Any], shapes: Sizes) -> list[Tensor]:
            inner = [shape[1:] for shape in shapes]
            batch = values[0].shape[0]  # of this call: a program may be for any
            samples = [run([*(t[i] for t in values[:n]), *values[n:]], inner) for i in range(batch)]
            if samples:
                return [torch.stack(results) for results in zip(*samples, strict=True)]
            return [
                torch.empty(shape, dtype=look.dtype, device=look.device)
                for shape, look in zip(shapes, self.looks, strict=True)
            ]

        def all_at_once(values: Sequence[Any], shapes: Sizes) -> list[Tensor]:
            whole = [
                t if here or i in self.writes else t[:1]
                for i, (t, here) in enumerate(zip(values[:n], is_batched, strict=True))
            ]
            return run([*whole, *values[n:]], shapes)

        call = evolve(
            self,
            run={"sequential": each, "expand_dims": all_at_once, "broadcast_all": run}[method],
            looks=tuple(evolve(look, shape=(size, *look.shape)) for look in self.looks),
            vjp=None if self.vjp is None else _vmapped(self.vjp),
            jvp=None if self.jvp is None else _vmapped(self.jvp),
        )
        pairs = zip(tensors, dims, strict=True)
        outs = apply(call, [t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in pairs])
        return outs, (0,) * len(outs)


def _vmapped(rule: Rule) -> Rule:
    """A rule for the tensors of a whole batch."""

    def batched(tensors: Sequence[Tensor], outs: Sequence[Tensor], given: Gradients) -> Gradients:
        known = [i for i, t in enumerate(given) if t is not None]
        places: list[int] = []
        n = 0

        def one(tensors: Any, outs: Any, own: Any) -> tuple[Tensor, ...]:
            nonlocal n
            found = rule(tensors, outs, spread(len(given), known, own))
            places[:], n = [i for i, t in enumerate(found) if t is not None], len(found)
            return *(t for t in found if t is not None), own[0]  # vmap takes no function without a result

        found = torch.vmap(one)(tuple(tensors), tuple(outs), tuple(given[i] for i in known))
        return spread(n, places, found[:-1])

    return batched


def _no_subclass(tensor: Tensor) -> Exception:
    return refusals.OPAQUE_OF_SUBCLASS(type_text(tensor), where=user_line())


def hook_called(hook: Callable[[Tensor | None], Any], where: str | None) -> Callable[[Tensor | None], Tensor | None]:
    """A hook of a tensor (``register_hook``) as an opaque call, which returns the gradient that goes on: what the hook
    returned, or what it left of the gradient it was given. Where there is none, it is given None."""
    name = getattr(hook, "__name__", type(hook).__name__)

    def run(values: Sequence[Any], shapes: Sizes) -> list[Tensor]:
        own = values[0].clone() if values and values[0] is not None else None  # which the hook may keep
        made = hook(own)
        require_as_given(hook, own, made)
        return [] if own is None else [own if made is None else made]

    def called(gradient: Tensor | None) -> Tensor | None:
        given = () if gradient is None else (gradient,)
        looks = tuple(Like.of(g) for g in given)
        call = Callback(
            "hook", f"fg.opaque({name}, like=...)", where, run, looks, (), (), False, None, None, None, True
        )
        found = apply(call, given)
        return found[0] if given else None

    return called


def require_as_given(hook: Any, old: Any, new: Any) -> None:
    """A hook may give another gradient of the same type and size alone: the errors of eager PyTorch."""
    if new is None or new is old:
        return
    if old is None:
        raise RuntimeError("can't replace a None gradient with a non-None value")
    if not isinstance(new, Tensor):
        raise TypeError(f"expected Variable, but hook returned '{type(new).__name__}'")
    # devices before their types, which take longer than all else here
    is_elsewhere = old.device != new.device and old.device.type != new.device.type
    if old.dtype is not new.dtype or old.layout is not new.layout or is_elsewhere:
        raise RuntimeError(
            f"hook '{hook_name(hook)}' has changed the type of value (was {old.type()} got {new.type()})"
        )
    if old.shape != new.shape:
        raise RuntimeError(f"hook '{hook_name(hook)}' has changed the size of value")


def hook_name(hook: Any) -> str:
    return str(getattr(hook, "__name__", "<unknown>"))
