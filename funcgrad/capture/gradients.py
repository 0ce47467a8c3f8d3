"""What a function asks of gradients of the caller's tensors, and says of them (``x.grad``, hooks,
``requires_grad_``)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from .. import refusals
from ..autograd_state import gradient_of, is_leaf, is_untold, renew_history
from ..graphs import type_text
from ..state.lines import user_line
from ..state.restart import Known, Restart
from ..subclasses import is_traced
from ..torch_private.modes import without_function_modes
from .questions import IS_HOOKED, IS_VIEW
from .trace import Trace


def ask_for_gradient(trace: Trace, tensor: Any, reads: bool, retains: bool) -> None:
    """A stand-in has the gradient its real tensor has: if nobody knew that it would be asked for, the run starts
    again."""
    real = trace.reals.get(id(tensor), tensor)
    if is_traced(real):
        return
    if not real.is_leaf and (real.retains_grad or retains or (reads and gradient_of(real) is not None)):
        raise refusals.RETAINED_OUTSIDE(type_text(real), where=user_line())
    named = tensor if is_traced(tensor) else trace.lift(tensor)
    now = trace.current(named)
    # else, what is set is set, and nothing else
    arrives = real.is_leaf and (real.requires_grad or now.requires_grad)
    fits = trace.lineage.is_given_alone(named) and (reads or (now.shape, now.dtype) == (named.shape, named.dtype))
    if arrives and now is not named and (retains or not fits):
        raise refusals.RESTRIDED_AND_ASKED(type_text(real), where=user_line())
    if not reads and not (real.is_leaf and is_leaf(tensor)):  # what was written to since may be no leaf any more
        trace.given_gradient.append(real)
    else:
        trace.asked_for_gradient.append(real)
    if trace.current_pass == "backward":
        trace.asked_in_backward[id(real)] = type_text(real)
        _require_apart(trace)
    if trace.graph is None and real.is_leaf and real.grad is not None and id(real.grad) not in trace.captured:
        raise Restart(Known((real.grad,)))


@contextlib.contextmanager
def noting_accumulated(trace: Trace) -> Iterator[None]:
    """Around a ``.backward()`` of Python's within the backward pass: to which captured leaves it adds. These get their
    gradients when the whole pass has ended."""
    with without_function_modes():
        leaves = [known for known in trace.captured.values() if known.real.requires_grad and known.real.is_leaf]
        for known in leaves:
            if not known.functional.requires_grad:  # the pass is a program of its own, which gives those of its inputs
                raise refusals.ACCUMULATES_UNKNOWN(type_text(known.real), where=known.where)
    stand_ins = [known.functional for known in leaves]
    before = gradients_of(stand_ins)
    yield
    for known, was, now in zip(leaves, before, gradients_of(stand_ins), strict=True):
        if was != now:
            trace.accumulated_in_backward.add(id(known.real))
    _require_apart(trace)


_Gradient = tuple[int, int] | None
"""The identity of what is a leaf's gradient, and its version."""


def _gradient(leaf: Tensor) -> _Gradient:
    return None if leaf.grad is None else (id(leaf.grad), leaf.grad._version)


def gradients_of(tensors: Sequence[Tensor]) -> list[_Gradient]:
    """Which gradients the leaves among some tensors have."""
    with without_function_modes():
        return [_gradient(t) if t.is_leaf else None for t in tensors]


def with_accumulated(
    targets: Sequence[Tensor], before: Sequence[_Gradient], found: Sequence[Tensor | None]
) -> tuple[Tensor | None, ...]:
    """The gradients of a pass, with what Python has added to them within it, by a ``.backward()`` of its own; these
    leaves had ``before``."""
    result = list(found)
    for i, (target, was, now) in enumerate(zip(targets, before, gradients_of(targets), strict=True)):
        if was == now:
            continue
        if was is not None:
            raise refusals.ACCUMULATED_AND_ASKED(type_text(target), where=user_line())
        with without_function_modes():
            added = target.grad
        own = result[i]
        result[i] = added if own is None or added is None else own + added
    return tuple(result)


def _require_apart(trace: Trace) -> None:
    for leaf in trace.accumulated_in_backward & trace.asked_in_backward.keys():
        raise refusals.ACCUMULATED_AND_ASKED(trace.asked_in_backward[leaf], where=user_line())


def gradient_kept(trace: Trace, tensor: Tensor) -> Tensor | None:
    """The gradient that a tensor had before it came to look otherwise, which it still has."""
    tensor = tensor if is_traced(tensor) else trace.lift(tensor)
    with without_function_modes():
        return trace.lineage.gradient_of(tensor) if trace.current(tensor) is not tensor else None


def drop_gradient_kept(trace: Trace, tensor: Tensor) -> None:
    """Take that away: another one is set."""
    tensor = tensor if is_traced(tensor) else trace.lift(tensor)
    now = trace.current(tensor)
    with without_function_modes():
        for look in (tensor, *trace.lineage.looks(tensor)):
            if look is not now:
                look.grad = None


def where_gradients_arrive(trace: Trace, func: Any, tensors: list[Any]) -> list[Any]:
    """Where a gradient is set: the leaf, for what has its history and looks at other memory (``x.data = y``)."""
    if getattr(func, "__self__", None) is not Tensor.grad or func.__name__ != "__set__":
        return tensors
    leaf = trace.lineage.named(tensors[0])
    return [leaf] if leaf.requires_grad and is_leaf(leaf) and trace.lineage.is_given_alone(leaf) else tensors


def takes_gradient(trace: Trace, tensor: Tensor) -> None:
    """Autograd takes the gradient of what a custom Function writes to (``mark_dirty``), where that requires grad."""
    real = trace.reals.get(id(tensor))
    with without_function_modes():
        if real is not None and gradient_of(real) is None:
            trace.asked_for_gradient.append(real)
        elif real is not None:
            ask_for_gradient(trace, tensor, reads=True, retains=False)
        if is_traced(tensor):  # not what is of a level of torch.func, which has none
            drop_gradient_kept(trace, tensor)


def require_no_hooks(trace: Trace, inputs: Sequence[Any]) -> None:
    """A stand-in has none of the hooks that autograd runs where it comes to the caller's tensor."""
    for tensor in inputs:
        real = trace.reals.get(id(tensor), tensor)
        if (
            isinstance(real, Tensor)
            and not is_traced(real)
            and id(real) not in trace.hooks.of_leaves
            and trace.questions.ask(real, IS_HOOKED)
            and real._backward_hooks
        ):
            raise refusals.HOOKS_OF_INPUT(type_text(real), where=user_line())


def require_own(trace: Trace, tensor: Tensor) -> None:
    """A hook that runs when a gradient is accumulated into the caller's tensor would be lost: that happens outside."""
    if id(trace.lineage.named(tensor)) in trace.stand_ins():
        raise refusals.ACCUMULATE_HOOK(where=user_line())


def require_forward(trace: Trace) -> None:
    """A hook of the caller's tensor that a backward pass registers is for what comes to it later: in this pass, where
    autograd has not been there, and in others."""
    if trace.current_pass == "backward":
        raise refusals.HOOK_IN_BACKWARD(where=user_line())


def require_not_of_leaf(trace: Trace, handle: RemovableHandle) -> None:
    """A hook of the caller's tensor would be gone for the run that is recorded, and for all others."""
    hooks = handle.hooks_dict_ref()
    if hooks is None or handle.id not in hooks:
        return
    with without_function_modes():
        met: list[Any] = [*trace.reals.values(), *(known.real for known in trace.captured.values())]
        if any(hooks is own for t in met for own in (t._backward_hooks, t._post_accumulate_grad_hooks)):
            raise refusals.REMOVES_HOOK(where=user_line())


def switch(trace: Trace, original: Any, tensor: Any, on: bool) -> None:
    """Note an input that is to require grad where it did not, or the other way round."""
    real = original if not is_traced(original) else trace.reals.get(id(original))
    named = trace.lineage.named(tensor)
    if real is None and named is not tensor and trace.lineage.is_looked_at(named) and tensor.requires_grad != on:
        raise refusals.SWITCHED_TOO_LATE(where=user_line())
    if on and is_untold(tensor):
        trace.lineage.told.add(id(tensor))
    if on and real is not None and real.is_leaf:
        trace.questions.ask(real, IS_VIEW)
        if is_untold(real):
            raise refusals.SWITCHED_NO_GRAD_VIEW(where=user_line())
    if real is not None and (tensor.requires_grad != on or (real.requires_grad != on and is_leaf(tensor))):
        if named is not tensor:
            raise refusals.SWITCHED_TOO_LATE(where=user_line())
        if not on and any(other._base is real for other in trace.reals.values()):
            raise refusals.SWITCHED_OFF_BASE(where=user_line())
        if on and real._is_view():
            trace.lineage.switched_on.add(id(tensor))
        if not on:
            trace.lineage.switched_off.add(id(tensor))
        trace.switched.append((tensor, on))
    if not on and tensor.requires_grad and not tensor._is_view():
        for view in trace.lineage.views_of(tensor):
            renew_history(view)  # autograd makes none for it any more, should what it looks at have been written to
    for view in trace.switched_with.get(id(tensor), ()):
        view.requires_grad_()
