"""torch.func's levels and forward mode: which are there, and what stands below them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch._functorch import eager_transforms
from torch._functorch.autograd_function import custom_function_call
from torch._functorch.pyfunctorch import dispatch_functorch, temporarily_clear_interpreter_stack
from torch._functorch.vmap import _process_batched_inputs, vmap_increment_nesting
from torch.autograd import forward_ad  # type: ignore[attr-defined]
from torch.utils import _pytree as pytree

from .tensors import dispatch_keys, is_transform_wrapper


def tracking_level(tensor: torch.Tensor) -> int:
    """The innermost level of reverse mode that knows a tensor: of torch.func's, 0 for autograd's own, -1 for none."""
    while is_transform_wrapper(tensor):
        if torch._C._functorch.is_gradtrackingtensor(tensor) and tensor.requires_grad:
            return int(torch._C._functorch.maybe_get_level(tensor))
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return 0 if tensor.requires_grad else -1


def wrapping_level(tensor: torch.Tensor) -> int:
    """The level of torch.func whose wrapper a tensor is; -1 for none, and for one that has ended."""
    return int(torch._C._functorch.maybe_get_level(unwrap_dead(tensor)) or -1) if is_transform_wrapper(tensor) else -1


def levels_of_reverse_mode() -> frozenset[int]:
    """The levels of torch.func that run and are of reverse mode."""
    stack: Any = torch._C._functorch.get_interpreter_stack() or ()
    return frozenset(top.level() for top in stack if _KINDS[int(top.key())] == "grad")


@contextlib.contextmanager
def outside_transforms() -> Iterator[None]:
    """Inside, no torch.func transform is active. Seen in 2.11, 2.13.

    2.13: at levels of derivatives inference mode is off, whatever it is outside, but what it keeps from autograd comes
    back with no level on top: inside, it is off.
    """
    with temporarily_clear_interpreter_stack():
        is_deaf = torch._C._dispatch_tls_is_dispatch_key_excluded(_AUTOGRAD) and not torch.is_inference_mode_enabled()
        with outside_inference_mode() if is_deaf else contextlib.nullcontext():
            yield


_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


@contextlib.contextmanager
def outside_inference_mode() -> Iterator[None]:
    """Inside, autograd hears of all, in the grad modes of outside."""
    grad, forward = _grad_enabled(), _forward_enabled()
    with torch._C._InferenceMode(False):  # which switches both on
        _set_grad(grad)
        _set_forward(forward)
        yield


def parameters_at_levels() -> contextlib.AbstractContextManager[None]:
    """Inside, ``requires_grad_()`` is allowed at a level of torch.func, as it is to ``nn.Parameter`` of a tensor."""
    return eager_transforms.enable_inplace_requires_grad(True)  # type: ignore[no-any-return]


def transform_active() -> bool:
    """Whether a torch.func transform is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def transforms_or_duals() -> bool:
    """Whether a transform of torch.func runs, or a dual level is open that is none of torch.func's."""
    return _transforms_active() or (forward_ad._current_level >= 0 and not eager_transforms.JVP_NESTING)


_transforms_active = torch._C._are_functorch_transforms_active


_kind: Any = torch._C._functorch.TransformType


_KINDS = {
    int(_kind.Vmap): "vmap",
    int(_kind.Grad): "grad",
    int(_kind.Jvp): "jvp",
    int(_kind.Functionalize): "functionalize",
}
"""By number: torch's own are slow as keys of a dict."""


_innermost = torch._C._functorch.peek_interpreter_stack


def innermost_transform() -> tuple[str | None, int]:
    """The transform that runs innermost: its kind (None: there is none), and its level."""
    top: Any = _innermost()
    return (None, -1) if top is None else (_KINDS[int(top.key())], top.level())


_randomness: Any = torch._C._functorch.RandomnessType


_RANDOMNESS = {int(_randomness.Error): "error", int(_randomness.Same): "same", int(_randomness.Different): "different"}


def innermost_randomness() -> str:
    """What the innermost transform, a vmap, makes of random numbers."""
    top: Any = _innermost()
    found: Any = torch._C._functorch.CVmapInterpreterPtr(top).randomness()
    return _RANDOMNESS[int(found)]


def innermost_size() -> int:
    """Over how many samples the innermost transform, a vmap, runs."""
    return torch._C._functorch.CVmapInterpreterPtr(_innermost()).batchSize()  # type: ignore[arg-type]


class BelowLevel:
    """A context: inside, the innermost transform does not run: what it runs over does, with the modes that were when
    it began. ``tracked``: but for those, all that a level knows of is tracked. ``kind``: its kind, where that is
    known. A grad mode that is switched inside stays."""

    __slots__ = ("_forward", "_grad", "_kind", "_layer", "_tracked", "_within")

    def __init__(self, tracked: bool = False, kind: str | None = None) -> None:
        self._tracked, self._kind = tracked, kind

    def __enter__(self) -> None:
        top: Any = _innermost()
        kind = self._kind or _KINDS[int(top.key())]
        grad = self._grad = _grad_enabled()
        forward = self._forward = _forward_enabled()
        if self._tracked:
            grad = forward = True
        if kind == "grad":
            grad = grad and _GradLevel(top).prevGradMode()
        elif kind == "jvp":  # which leaves grad mode as it was
            grad = self._grad
            forward = forward and _JvpLevel(top).prevFwdGradMode()
        self._layer, self._within = _pop(), grad
        if _grad_enabled() is not grad:
            _set_grad(grad)
        if _forward_enabled() is not forward:
            _set_forward(forward)

    def __exit__(self, *_: object) -> None:
        _push(self._layer)
        if _grad_enabled() is self._within is not self._grad:
            _set_grad(self._grad)
        if _forward_enabled() is not self._forward:
            _set_forward(self._forward)


_pop: Any = torch._C._functorch.pop_dynamic_layer_stack  # each is looked up once: a call at a level takes microseconds
_push: Any = torch._C._functorch.push_dynamic_layer_stack
_GradLevel: Any = torch._C._functorch.CGradInterpreterPtr
_JvpLevel: Any = torch._C._functorch.CJvpInterpreterPtr
_grad_enabled, _forward_enabled = torch._C.is_grad_enabled, torch._C._is_fwd_grad_enabled
_set_grad, _set_forward = torch._C._set_grad_enabled, torch._C._set_fwd_grad_enabled


def vmap_level(size: Any, randomness: str) -> contextlib.AbstractContextManager[int]:
    """Inside, a vmap of ``size`` runs; yields its level."""
    level: contextlib.AbstractContextManager[int] = vmap_increment_nesting(size, randomness)
    return level


def mapped_leaves(
    in_dims: Any, args: tuple[Any, ...], f: Any
) -> tuple[int, list[int | None], list[Any], Callable[[list[Any]], Any]]:
    """What ``torch.func.vmap`` makes of its arguments: how many samples, the batch dimension of each leaf, the
    leaves, and the arguments of other leaves. Raises what it raises."""
    size, dims, leaves, tree = _process_batched_inputs(in_dims, args, f)
    return size, dims, leaves, lambda own: pytree.tree_unflatten(own, tree)


def broadcast_dims(dims: Any, value: Any) -> list[Any]:
    """The dimension for each leaf of a value, of a structure that may end above the leaves."""
    found = pytree._broadcast_to_and_flatten(dims, pytree.tree_structure(value))
    if found is None:
        raise ValueError(f"out_dims={dims} is not compatible with the structure of the result")
    return found


map_over: Callable[..., Any] = importlib.import_module("torch._higher_order_ops.map").map
"""``map``: a function of each slice of tensors along their first dimension."""


batched_at: Callable[[int, torch.Tensor, int], torch.Tensor] = (  # noqa: E731
    lambda level, t, d: torch._C._functorch._add_batch_dim(t, d, level)
)


unbatched_at: Callable[[int, torch.Tensor], tuple[torch.Tensor, int | None]] = (  # noqa: E731
    lambda level, t: torch._C._functorch._unwrap_batched(t, level)
)


wrapped_at: Callable[[int, torch.Tensor], torch.Tensor] = lambda level, t: torch._C._functorch._wrap_for_grad(t, level)  # noqa: E731


unwrapped_at: Callable[[int, torch.Tensor], torch.Tensor] = (  # noqa: E731
    lambda level, t: torch._C._functorch._unwrap_for_grad(t, level)
)


unwrap_dead: Callable[[torch.Tensor], torch.Tensor] = torch._C._functorch.unwrap_if_dead
"""A tensor of a level that has ended is what it wraps."""


def alive(tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor of levels that have ended is: no wrapper, or one of a level that has not."""
    while (below := unwrap_dead(tensor)) is not tensor:
        tensor = below
    return tensor


def is_dead(tensor: torch.Tensor) -> bool:
    """Whether a tensor is of a level of torch.func that has ended."""
    return is_transform_wrapper(tensor) and unwrap_dead(tensor) is not tensor


_LEGACY_BATCHED = torch._C._dispatch_key_parse("Batched")


def is_legacy_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a batch dimension of autograd's own vmap (``is_grads_batched``, ``gradcheck``), which is
    not torch.func's."""
    return bool(dispatch_keys(tensor).has(_LEGACY_BATCHED))


_WRAPPED = functools.reduce(
    operator.or_,
    (
        torch._C.DispatchKeySet(key).raw_repr()
        for key in (
            _LEGACY_BATCHED,
            torch._C.DispatchKey.FuncTorchBatched,
            torch._C.DispatchKey.FuncTorchGradWrapper,
            torch._C.DispatchKey.Functionalize,
        )
    ),
)
"""The bits of keys of what a transform wraps: ``is_functorch_wrapped_tensor`` looks at these."""


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of a vmap, torch.func's or autograd's own, or of another transform."""
    return bool(dispatch_keys(tensor).raw_repr() & _WRAPPED)


def any_mapped(tensors: Iterable[torch.Tensor | None]) -> bool:
    """Whether some are."""
    for tensor in tensors:  # noqa: SIM110 (a generator costs more than all that is asked)
        if tensor is not None and dispatch_keys(tensor).raw_repr() & _WRAPPED:
            return True
    return False


def legacy_level() -> int:
    """The innermost level of that vmap."""
    level = torch._C._vmapmode_increment_nesting()
    torch._C._vmapmode_decrement_nesting()
    return int(level) - 1


legacy_batched_at: Callable[[int, torch.Tensor, int], torch.Tensor] = (  # noqa: E731
    lambda level, t, d: torch._add_batch_dim(t, d, level)
)


def legacy_unbatched_at(level: int, tensor: torch.Tensor) -> torch.Tensor:
    """What such a tensor is below a level: its batch dimension is the first."""
    below: torch.Tensor = torch._remove_batch_dim(tensor, level, 1, 0)
    return below


def functional_below(level: int, tensor: torch.Tensor) -> torch.Tensor:
    """What a tensor of ``torch.func.functionalize`` stands for, up to date."""
    if not torch._is_functional_tensor(tensor) or torch._C._functorch.maybe_get_level(tensor) != level:
        return tensor
    torch._sync(tensor)  # type: ignore[attr-defined,no-untyped-call]
    return torch._from_functional_tensor(tensor)


def functional_at(level: int, tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as ``torch.func.functionalize`` wraps it."""
    wrapped: torch.Tensor = torch._C._functorch._wrap_functional_tensor(tensor, level)
    return wrapped


FORWARD_MODE: Callable[[bool], contextlib.AbstractContextManager[Any]] = forward_ad._set_fwd_grad_enabled
"""Inside, operators compute tangents, or do not."""


@contextlib.contextmanager
def sharing_dual_level() -> Iterator[None]:
    """Inside, forward mode of torch.func uses the dual level that is open, if one is: torch nests none in another."""
    shares = forward_ad._current_level >= 0 and not eager_transforms.JVP_NESTING
    eager_transforms.JVP_NESTING += shares
    try:
        yield
    finally:
        eager_transforms.JVP_NESTING -= shares


SingleLevelFunction: Any = torch.autograd.function._SingleLevelFunction
"""An ``autograd.Function`` that knows of one level, the innermost."""


def applied_at_level(function: Any, *args: Any) -> Any:
    """``function.apply(*args)`` of a ``SingleLevelFunction``."""
    before = torch._C._functorch.get_single_level_autograd_function_allowed()
    torch._C._functorch.set_single_level_autograd_function_allowed(True)
    try:
        return function.apply(*args)
    finally:
        torch._C._functorch.set_single_level_autograd_function_allowed(before)


CUSTOM_FUNCTION: Any = custom_function_call
"""What ``autograd.Function.apply`` is while a transform runs: a higher-order operator of the function and its
arguments."""


custom_function_at_level: Callable[[Any, Any, Any], Any] = dispatch_functorch
"""A higher-order operator as the innermost transform has it: ``(operator, args, kwargs)``."""


def dual_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The primal and the tangent of a tensor at the innermost level of forward mode; no tangent outside of it."""
    level = forward_ad._current_level
    if level < 0:
        return tensor, None
    kind, at = innermost_transform()
    if kind != "vmap":
        return _unpack_dual(tensor, level=level)  # type: ignore[no-any-return]
    below, dim = unbatched_at(at, tensor)  # PyTorch has no rule for the parts of a batch
    with BelowLevel(kind=kind):
        primal, tangent = dual_parts(below)
    if dim is None:
        return primal, tangent
    return batched_at(at, primal, dim), None if tangent is None else batched_at(at, tangent, dim)


_unpack_dual: Any = torch._VF._unpack_dual  # type: ignore[attr-defined]


def make_dual(primal: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    """A tensor with a tangent at the innermost level."""
    dual: torch.Tensor = _make_dual(primal, tangent, level=forward_ad._current_level)
    return dual


_make_dual: Any = torch._VF._make_dual  # type: ignore[attr-defined]


_FUNCTORCH, _PYTREES = (os.path.dirname(str(module.__file__)) for module in (torch._functorch, pytree))


def raised_by_vmap(error: BaseException) -> bool:
    """Whether ``torch.func.vmap`` itself raises it, and no function that it maps: from the first of its frames on, all
    are torch's."""
    files = [os.path.dirname(frame.f_code.co_filename) for frame, _ in traceback.walk_tb(error.__traceback__)]
    return _FUNCTORCH in files and set(files[files.index(_FUNCTORCH) :]) <= {_FUNCTORCH, _PYTREES}
