"""Functionalisation: tensors whose writes are kept apart until they are asked for."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MethodType, SimpleNamespace
from typing import Any

import torch

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch._subclasses.fake_tensor import (
    FakeTensor,
)
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode

from .levels import outside_transforms, transform_active
from .operators import is_operator, is_torchs_own, writes_inputs
from .tensors import is_zero_tensor, symbolic_zeros

__all__ = ["FunctionalTensor", "FunctionalTensorMode"]


attributes_held: Callable[[torch.Tensor], dict[str, Any]] = vars(torch.Tensor)["__dict__"].__get__
"""The ``__dict__`` of a tensor, whatever its class says to be that."""
AS_THEY_ARE: Mapping[str, Callable[[Any], Any]] = {
    "__class__": lambda tensor: FunctionalTensor,
    "__dict__": attributes_held,
    "elem": lambda tensor: _held(tensor, "elem"),
}
"""What a functional tensor has that a tensor has not, or has otherwise."""


def _held(tensor: Any, name: str) -> Any:
    try:
        return attributes_held(tensor)[name]
    except KeyError:
        raise AttributeError(name) from None


TRACER_SLOT = torch._C._TorchDispatchModeKey.PROXY
"""The place in the stack of dispatch modes between functionalisation (above) and fake tensors (below)."""


def running_tracer() -> Any:
    """The mode in the tracer's slot, if any."""
    return torch._C._get_dispatch_mode(TRACER_SLOT)


class NoReplays(dict[Any, Any]):
    """The ``tracer.tensor_tracker`` of who stands in the tracer's slot and has no node to name for views that are made
    again.

    Functionalisation asks it for every operand of an op: 2.11 raises where there is none, from 2.13 on it goes on
    without.
    """

    def __missing__(self, tensor: Any) -> Any:
        return _NO_NODE


_NO_NODE = SimpleNamespace(proxy=SimpleNamespace(node=None))


def to_functional(fake: torch.Tensor) -> torch.Tensor:
    """A functional tensor over a fake one. Needs an active FunctionalTensorMode."""
    with torch._C.DisableTorchFunction():  # the wrapper is made of pieces no function mode should see
        functional: torch.Tensor = FunctionalTensor.to_functional(fake)
    return functional


_KNOWN_TO_MODE = (torch.Tensor, FakeTensor, FunctionalTensor)
"""What the functionalisation mode handles itself. Its own test for this has a name since 2.13 only
(``_has_unrecognized_tensor_types``)."""


def make_functional_mode(
    intercept: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    rewrite: Callable[[Any, Any, Any], tuple[Any, Any, Any]],
    note: Callable[[Any, Any, Any, Any], None],
    settle: Callable[[], None],
    outer: Callable[[Any, Any, Any, Callable[[], Any]], Any],
    alone: Callable[[], contextlib.AbstractContextManager[None]],
) -> FunctionalTensorMode:
    """A functionalisation mode with five callbacks.

    An op ``intercept`` answers for is not functionalised (it says ``NotImplemented`` to the others); ``rewrite`` may
    call another in its place; ``note`` hears of each op that looks at its first argument's memory (``view_kind``), with
    its result; ``settle`` is called after each write; ``outer`` makes each call of wrapper subclasses, which their
    class takes apart into ops of their inner tensors. PyTorch's own ops, in which no code of the caller's runs, are
    ``alone``. The method is replaced on the instance: a subclass would not be
    found by the rules of higher-order operators.
    """
    mode = FunctionalTensorMode()
    original = mode.__torch_dispatch__
    handed_on: list[Any] = []

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(t not in _KNOWN_TO_MODE for t in types):
            if handed_on or not is_operator(func):
                handed_on.clear()
                return NotImplemented  # torch asks the class of the subclass
            handed_on.append(func)
            try:
                with self:
                    return outer(func, args, kwargs or {}, lambda: func(*args, **(kwargs or {})))
            finally:
                handed_on.clear()
        with alone() if is_operator(func) and is_torchs_own(func) else contextlib.nullcontext():
            return dispatched(self, func, types, args, kwargs)

    def dispatched(self: Any, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if FunctionalTensor not in types and any(map(_is_real_zero, args)):
            with self:  # what comes of zeros of forward mode alone is a tensor of the trace, too
                args = tuple(_traced_zeros(a) if _is_real_zero(a) else a for a in args)
        answer = intercept(func, args, kwargs or {})
        if answer is not NotImplemented:
            return answer
        func, args, kwargs = rewrite(func, args, kwargs or {})
        if is_functional(func) and (out := _functionally(self, func, args, kwargs)) is not NotImplemented:
            return out
        with _normal_mode() if _is_view_outside(func, args) else contextlib.nullcontext():
            out = original(func, types, args, kwargs)
        # a number conjugated: it looks at nothing
        if view_kind(func) is not None and not isinstance(args[0], torch.Tensor):
            return FunctionalTensor(torch._to_functional_tensor(out), self) if type(out) is FakeTensor else out
        if view_kind(func) is not None:
            note(func, args, kwargs, out)
        elif writes_inputs(func):
            settle()
        return out

    mode.__torch_dispatch__ = MethodType(dispatch, mode)  # type: ignore[method-assign]
    return mode


@contextlib.contextmanager
def _normal_mode() -> Iterator[None]:
    """No inference mode, which would enable grad mode again."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _is_view_outside(func: Any, args: Sequence[Any]) -> bool:
    """Whether a view is taken in inference mode of what is no inference tensor: the view is none, either."""
    if not torch.is_inference_mode_enabled() or view_kind(func) is None:
        return False
    return isinstance(args[0], torch.Tensor) and not args[0].is_inference()


def _is_real_zero(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and is_zero_tensor(value)


def _traced_zeros(zeros: torch.Tensor) -> torch.Tensor:
    """Zeros of the trace that lie as others do: a view of what has a tangent asks for equal strides of both."""
    order = sorted(range(zeros.dim()), key=zeros.stride, reverse=True)
    own = symbolic_zeros([zeros.shape[dim] for dim in order], zeros.dtype, zeros.device)
    return own.permute([order.index(dim) for dim in range(zeros.dim())])


@functools.cache
def is_functional(op: Any) -> bool:
    """Whether functionalisation does no more than take an operator's arguments out of their wrappers, and put its
    results into new ones."""
    if not is_operator(op) or not is_torchs_own(op):
        return False
    given, made = op._schema.arguments, op._schema.returns
    if not made or any(a.alias_info is not None for a in (*given, *made)) or any(str(r.type) != "Tensor" for r in made):
        return False
    has_kernel, key = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C.DispatchKey
    if op is torch.ops.aten._to_copy.default:  # its own way is for backends that functionalise always
        return True
    own_ways = (key.Functionalize, key.CompositeImplicitAutograd)
    return not any(k in op.py_kernels or has_kernel(op.name(), k.name) for k in own_ways)


def _functionally(mode: FunctionalTensorMode, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """What torch's mode does with an operator that ``is_functional``, in less than half of the time: it is most of
    what a trace takes. ``NotImplemented`` where an argument's elements are not those in memory: the keys that see to
    it are off inside a mode."""
    wrapped = has_tensors = False

    def own(value: Any) -> Any:
        nonlocal wrapped, has_tensors
        if isinstance(value, torch.Tensor):
            has_tensors = True
            wrapped = wrapped or isinstance(value, FunctionalTensor)
            return from_functional(value)
        return [own(v) for v in value] if isinstance(value, (list, tuple)) else value

    def wrap(value: Any) -> Any:
        return FunctionalTensor(torch._to_functional_tensor(value), mode) if isinstance(value, torch.Tensor) else value

    with torch._C.DisableTorchFunction():
        inner, named = [own(a) for a in args], {k: own(v) for k, v in kwargs.items()}
        if any(_is_lazy(v) for v in (*inner, *named.values())):
            return NotImplemented
        if has_tensors and not wrapped and op is torch.ops.aten._to_copy.default:
            return NotImplemented
        out = op(*inner, **named)
        if has_tensors and not wrapped:
            return out
        return tuple(map(wrap, out)) if isinstance(out, (list, tuple)) else wrap(out)


def _is_lazy(value: Any) -> bool:
    """Whether the elements of a tensor, or of one in a list, are those in memory conjugated or negated, or all zero."""
    if isinstance(value, list):
        return any(map(_is_lazy, value))
    return isinstance(value, torch.Tensor) and (value.is_conj() or value.is_neg() or value._is_zerotensor())


@functools.cache
def view_kind(op: Any) -> str | None:
    """``"view"`` for an op whose result looks at its first argument, ``"restride"`` for one that changes how that
    argument looks."""
    if not is_operator(op) or not op._schema.arguments or not op._schema.returns:
        return None
    if torch.Tag.inplace_view in op.tags:
        return "restride"
    first, result = op._schema.arguments[0].alias_info, op._schema.returns[0].alias_info
    return "view" if first is not None and result is not None and not first.is_write else None


def mutation_count(tensor: torch.Tensor) -> int:
    """How often the memory a functional tensor looks at was written to."""
    return int(torch._functionalize_mutation_counter(tensor.elem)) if isinstance(tensor, FunctionalTensor) else 0  # type: ignore[attr-defined]


def replace_value(tensor: torch.Tensor, fake: torch.Tensor) -> None:
    """The memory a functional tensor looks at holds ``fake`` from now on; autograd does not hear of it."""
    assert isinstance(tensor, FunctionalTensor)
    with torch._C.DisableTorchFunction():
        torch._functionalize_replace(tensor.elem, fake)
        torch._functionalize_commit_update(tensor.elem)
        torch._functionalize_sync(tensor.elem)


def functionalising() -> bool:
    """Whether functionalisation is on: the caller's code runs, not torch's below it."""
    return torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FUNCTIONAL) is not None


def from_functional(tensor: torch.Tensor) -> torch.Tensor:
    """The fake tensor below a functional one, with pending mutations applied: at no level of torch.func, which would
    wrap what views are of then."""
    if not isinstance(tensor, FunctionalTensor):
        return tensor
    with torch._C.DisableTorchFunction(), outside_transforms() if transform_active() else contextlib.nullcontext():
        torch._sync(tensor)  # type: ignore[attr-defined, no-untyped-call]
        fake: torch.Tensor = torch._from_functional_tensor(tensor.elem)
    return fake


def is_storage_changed(tensor: torch.Tensor) -> bool:
    """Whether a functional tensor was given another storage (``set_``, ``x.data = y``, a ``resize_`` that grows)."""
    return bool(torch._functionalize_was_storage_changed(tensor.elem))  # type: ignore[attr-defined]
