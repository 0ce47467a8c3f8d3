"""Every private torch name funcgrad touches, with the versions it was seen in (2.11, 2.13; 2.15 where said).

Nothing else in the package may import a private torch name (a house test). What stands here is thin: a name, or a
function that gives a private name one clear meaning.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from attrs import frozen

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._dynamo.guards import TensorGuards
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch._dispatch.python import enable_python_dispatcher
from torch._functorch import eager_transforms
from torch._functorch import vmap as functorch_vmap
from torch._functorch.autograd_function import custom_function_call
from torch._functorch.pyfunctorch import dispatch_functorch, temporarily_clear_interpreter_stack
from torch._functorch.vmap import _process_batched_inputs, vmap_increment_nesting
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    disable_fake_tensor_cache,
)
from torch._subclasses.functional_tensor import FunctionalTensor, FunctionalTensorMode
from torch.autograd import _get_sequence_nr, forward_ad  # type: ignore[attr-defined]
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _python_dispatch
from torch.utils import _pytree as pytree
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, is_traceable_wrapper_subclass
from torch.utils._sympy.printers import PythonPrinter
from torch.utils.checkpoint import SelectiveCheckpointContext

__all__ = [
    "DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode", "FunctionalTensor",
    "FunctionalTensorMode", "GuardOnDataDependentSymNode", "NoReplays", "ShapeEnv", "TorchDispatchMode", "TorchFunctionMode",
]  # fmt: skip

TRACER_SLOT = torch._C._TorchDispatchModeKey.PROXY
"""The place in the stack of dispatch modes between functionalisation (above) and fake tensors (below)."""


def running_tracer() -> Any:
    """The mode in the tracer's slot, if any."""
    return torch._C._get_dispatch_mode(TRACER_SLOT)


class NoReplays(dict[Any, Any]):
    """The ``tracer.tensor_tracker`` of who stands in the tracer's slot and has no node to name for views that are made again.

    Functionalisation asks it for every operand of an op: 2.11 raises where there is none, from 2.13 on it goes on without.
    """

    def __missing__(self, tensor: Any) -> Any:
        return _NO_NODE


_NO_NODE = SimpleNamespace(proxy=SimpleNamespace(node=None))


# ── tensors ──────────────────────────────────────────────────────────────────────────────────────────────────────

dispatch_keys: Callable[[torch.Tensor], Any] = torch._C._dispatch_keys


def dispatch_bits(tensor: torch.Tensor) -> int:
    """One int that tells apart plain, subclass, sparse, quantized, conjugated, negated, inference and wrapped tensors."""
    return int(dispatch_keys(tensor).raw_repr())


def symbolic_zeros(like: torch.Tensor) -> torch.Tensor:
    """Zeros with no memory behind them."""
    zeros: torch.Tensor = torch._efficientzerotensor(like.shape, dtype=like.dtype, device=like.device)
    return zeros


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether it stands for zeros, with no memory behind it: what forward derivatives begin with, and a derivative that is zero everywhere.
    No torch-function mode is asked, which would answer for what stands for the tensor."""
    return bool(dispatch_keys(tensor).raw_repr() & _ZEROS)


_ZEROS = torch._C.DispatchKeySet(torch._C.DispatchKey.ZeroTensor).raw_repr()


def is_wrapper_subclass(value: Any) -> bool:
    """Whether a value is a tensor made of others, by ``__tensor_flatten__``."""
    return is_traceable_wrapper_subclass(value)


def is_transform_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a torch.func transform (vmap, grad, jvp) wraps this tensor."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


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


def levels_of_kind(kind: str) -> frozenset[int]:
    """The levels of torch.func that run and are of a kind (``innermost_transform``)."""
    stack: Any = torch._C._functorch.get_interpreter_stack() or ()
    return frozenset(top.level() for top in stack if _KINDS[int(top.key())] == kind)


def outside_transforms() -> contextlib.AbstractContextManager[Any]:
    """Inside, no torch.func transform is active. Seen in 2.11, 2.13."""
    return temporarily_clear_interpreter_stack()


def transform_active() -> bool:
    """Whether a torch.func transform is running."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def transforms_or_duals() -> bool:
    """Whether a transform of torch.func runs, or a dual level is open that is none of torch.func's."""
    return _transforms_active() or (forward_ad._current_level >= 0 and not eager_transforms.JVP_NESTING)


_transforms_active = torch._C._are_functorch_transforms_active
_kind: Any = torch._C._functorch.TransformType
_KINDS = {int(_kind.Vmap): "vmap", int(_kind.Grad): "grad", int(_kind.Jvp): "jvp", int(_kind.Functionalize): "functionalize"}
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
    """A context: inside, the innermost transform does not run: what it runs over does, with the modes that were when it began. ``tracked``:
    but for those, all that a level knows of is tracked."""

    __slots__ = ("_forward", "_grad", "_layer", "_tracked")

    def __init__(self, tracked: bool = False) -> None:
        self._tracked = tracked

    def __enter__(self) -> None:
        top: Any = _innermost()
        kind = _KINDS[int(top.key())]
        grad = self._grad = torch.is_grad_enabled()
        forward = self._forward = _forward_enabled()
        if self._tracked:
            grad = forward = True
        if kind == "grad":
            grad = grad and torch._C._functorch.CGradInterpreterPtr(top).prevGradMode()
        elif kind == "jvp":
            forward = forward and torch._C._functorch.CJvpInterpreterPtr(top).prevFwdGradMode()
        self._layer = _pop()
        _set_grad(grad)
        _set_forward(forward)

    def __exit__(self, *_: object) -> None:
        _push(self._layer)
        _set_grad(self._grad)
        _set_forward(self._forward)


_pop, _push = torch._C._functorch.pop_dynamic_layer_stack, torch._C._functorch.push_dynamic_layer_stack
_set_grad, _set_forward, _forward_enabled = torch._C._set_grad_enabled, torch._C._set_fwd_grad_enabled, torch._C._is_fwd_grad_enabled


def vmap_level(size: Any, randomness: str) -> contextlib.AbstractContextManager[int]:
    """Inside, a vmap of ``size`` runs; yields its level."""
    level: contextlib.AbstractContextManager[int] = vmap_increment_nesting(size, randomness)
    return level


def mapped_leaves(in_dims: Any, args: tuple[Any, ...], f: Any) -> tuple[int, list[int | None], list[Any], Callable[[list[Any]], Any]]:
    """What ``torch.func.vmap`` makes of its arguments: how many samples, the batch dimension of each leaf, the leaves, and the arguments
    of other leaves. Raises what it raises."""
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

batched_at: Callable[[int, torch.Tensor, int], torch.Tensor] = lambda level, t, d: torch._C._functorch._add_batch_dim(t, d, level)  # noqa: E731
unbatched_at: Callable[[int, torch.Tensor], tuple[torch.Tensor, int | None]] = (  # noqa: E731
    lambda level, t: torch._C._functorch._unwrap_batched(t, level)
)
wrapped_at: Callable[[int, torch.Tensor], torch.Tensor] = lambda level, t: torch._C._functorch._wrap_for_grad(t, level)  # noqa: E731
unwrapped_at: Callable[[int, torch.Tensor], torch.Tensor] = lambda level, t: torch._C._functorch._unwrap_for_grad(t, level)  # noqa: E731
unwrap_dead: Callable[[torch.Tensor], torch.Tensor] = torch._C._functorch.unwrap_if_dead
"""A tensor of a level that has ended is what it wraps."""


_LEGACY_BATCHED = torch._C._dispatch_key_parse("Batched")


def is_legacy_batched(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a batch dimension of autograd's own vmap (``is_grads_batched``, ``gradcheck``), which is not torch.func's."""
    return bool(dispatch_keys(tensor).has(_LEGACY_BATCHED))


def is_mapped(tensor: torch.Tensor) -> bool:
    """Whether a tensor is one of a vmap, torch.func's or autograd's own, or of another transform."""
    keys = dispatch_keys(tensor)
    return bool(keys.has(_LEGACY_BATCHED)) or is_transform_wrapper(tensor)


def legacy_level() -> int:
    """The innermost level of that vmap."""
    level = torch._C._vmapmode_increment_nesting()
    torch._C._vmapmode_decrement_nesting()
    return int(level) - 1


legacy_batched_at: Callable[[int, torch.Tensor, int], torch.Tensor] = lambda level, t, d: torch._add_batch_dim(t, d, level)  # noqa: E731


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
"""What ``autograd.Function.apply`` is while a transform runs: a higher-order operator of the function and its arguments."""
custom_function_at_level: Callable[[Any, Any, Any], Any] = dispatch_functorch
"""A higher-order operator as the innermost transform has it: ``(operator, args, kwargs)``."""


def dual_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The primal and the tangent of a tensor at the innermost level; no tangent outside of forward mode."""
    if forward_ad._current_level < 0:
        return tensor, None
    primal, tangent = forward_ad.unpack_dual(tensor)  # type: ignore[no-untyped-call]
    return primal, tangent


def make_dual(primal: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    """A tensor with a tangent."""
    dual: torch.Tensor = forward_ad.make_dual(primal, tangent)  # type: ignore[no-untyped-call]
    return dual


ASKS_BASE: Any = torch.Tensor._base.__get__  # type: ignore[union-attr]
ASKS_HISTORY: Any = torch.Tensor.grad_fn.__get__  # type: ignore[union-attr]
ASKS_VERSION: Any = torch.Tensor._version.__get__  # type: ignore[attr-defined]
"""What a function mode is called for where the code says ``x._base`` and ``x._version``."""

STORAGE_ID = "{}.untyped_storage()._cdata"
"""``storage_id`` of a variable, as Python."""


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the memory a tensor lives in; of a transform's wrapper, that of what it wraps."""
    return int(unwrap_transform(tensor).untyped_storage()._cdata) if is_transform_wrapper(tensor) else int(tensor.untyped_storage()._cdata)


def storage_identity(storage: torch.UntypedStorage) -> int:
    """``storage_id`` of the tensors over a storage."""
    return int(storage._cdata)


def looks_like(examples: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """A quick check that tensors have the types, dispatch keys, dtypes, devices, sizes, strides and ``requires_grad`` of others."""
    sizes: Any = [list(t.size()) for t in examples]
    strides: Any = [list(t.stride()) for t in examples]
    return TensorGuards(*examples, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check


def looks_like_in(examples: Sequence[torch.Tensor], free: Sequence[Collection[int]]) -> Callable[..., bool]:
    """The same, but for sizes along ``free`` dimensions: such a tensor lies dense in the same order of its dimensions as its example."""
    if not any(free):
        return looks_like(examples)
    sizes: Any = [[None if d in dims else n for d, n in enumerate(t.size())] for t, dims in zip(examples, free, strict=True)]
    strides: Any = [[None] * t.dim() if dims else list(t.stride()) for t, dims in zip(examples, free, strict=True)]
    check = TensorGuards(*examples, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides).check
    orders = [(i, t.dim_order()) for i, (t, dims) in enumerate(zip(examples, free, strict=True)) if dims]

    def lies_alike(t: torch.Tensor, order: tuple[int, ...]) -> bool:
        return t.permute(order).is_contiguous()

    return lambda *tensors: check(*tensors) and all(lies_alike(tensors[i], order) for i, order in orders)


is_tracked_wrapper: Callable[[torch.Tensor], bool] = torch._C._functorch.is_gradtrackingtensor
"""Whether a wrapper is one of grad, vjp or jvp."""
level_of: Callable[[torch.Tensor], int] = torch._C._functorch.maybe_get_level
"""The level of a wrapper's transform; less than one if it has ended."""
wrapped_value: Callable[[torch.Tensor], torch.Tensor] = torch._C._functorch.get_unwrapped
"""What a transform's wrapper wraps."""


def unwrap_transform(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor below every torch.func wrapper."""
    while is_transform_wrapper(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


# ── functionalisation ────────────────────────────────────────────────────────────────────────────────────────────


def to_functional(fake: torch.Tensor) -> torch.Tensor:
    """A functional tensor over a fake one. Needs an active FunctionalTensorMode."""
    with torch._C.DisableTorchFunction():  # the wrapper is made of pieces no function mode should see
        functional: torch.Tensor = FunctionalTensor.to_functional(fake)
    return functional


_KNOWN_TO_MODE = (torch.Tensor, FakeTensor, FunctionalTensor)
"""What the functionalisation mode handles itself. Its own test for this has a name since 2.13 only (``_has_unrecognized_tensor_types``)."""


def make_functional_mode(
    intercept: Callable[[Any, tuple[Any, ...], dict[str, Any]], Any],
    rewrite: Callable[[Any, Any, Any], tuple[Any, Any, Any]],
    note: Callable[[Any, Any, Any, Any], None],
    settle: Callable[[], None],
    outer: Callable[[Any, Any, Any, Callable[[], Any]], Any],
) -> FunctionalTensorMode:
    """A functionalisation mode with five ears.

    An op ``intercept`` answers for is not functionalised (it says ``NotImplemented`` to the others); ``rewrite`` may call another
    in its place; ``note`` hears of each op that looks at its first argument's memory (``view_kind``), with its result; ``settle``
    is called after each write; ``outer`` makes each call of wrapper subclasses, which their class takes apart into ops of their inner
    tensors. The method is replaced on the instance: a subclass would not be found by the rules of
    higher-order operators.
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
        if FunctionalTensor not in types and any(map(_is_real_zero, args)):
            with self:  # what comes of zeros of forward mode alone is a tensor of the trace, too
                args = tuple(torch._efficientzerotensor(a.shape, dtype=a.dtype, device=a.device) if _is_real_zero(a) else a for a in args)
        answer = intercept(func, args, kwargs or {})
        if answer is not NotImplemented:
            return answer
        func, args, kwargs = rewrite(func, args, kwargs or {})
        if _is_functional(func) and (out := _functionally(self, func, args, kwargs)) is not NotImplemented:
            return out
        out = original(func, types, args, kwargs)
        if view_kind(func) is not None and not isinstance(args[0], torch.Tensor):  # a number conjugated: it looks at nothing
            return FunctionalTensor(torch._to_functional_tensor(out), self) if type(out) is FakeTensor else out
        if view_kind(func) is not None:
            note(func, args, kwargs, out)
        elif writes_inputs(func):
            settle()
        return out

    mode.__torch_dispatch__ = MethodType(dispatch, mode)  # type: ignore[method-assign]
    return mode


def _is_real_zero(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor) and is_zero_tensor(value)


@functools.cache
def _is_functional(op: Any) -> bool:
    """Whether functionalisation does no more than take an operator's arguments out of their wrappers, and put its results into new ones."""
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
    """What torch's mode does with an operator that ``_is_functional``, in less than half of the time: it is most of what a trace takes.
    ``NotImplemented`` where an argument's elements are not those in memory: the keys that see to it are off inside a mode."""
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
    """``"view"`` for an op whose result looks at its first argument, ``"restride"`` for one that changes how that argument looks."""
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
    """The fake tensor below a functional one, with pending mutations applied."""
    if not isinstance(tensor, FunctionalTensor):
        return tensor
    with torch._C.DisableTorchFunction():
        torch._sync(tensor)  # type: ignore[attr-defined, no-untyped-call]
        fake: torch.Tensor = torch._from_functional_tensor(tensor.elem)
    return fake


def fake_below(value: torch.Tensor) -> torch.Tensor | None:
    """The fake tensor below a functional one, or below the C++ half of one, and below wrappers of those transforms that see one tensor
    (``grad``, ``jvp``); None for any other tensor."""
    while torch._C._functorch.is_gradtrackingtensor(value):
        value = torch._C._functorch.get_unwrapped(value)
    if isinstance(value, FunctionalTensor) or not is_bare_functional(value):
        return from_functional(value) if isinstance(value, FunctionalTensor) else None
    with torch._C.DisableTorchFunction():
        torch._functionalize_sync(value)
        fake: torch.Tensor = torch._from_functional_tensor(value)
    return fake


def is_bare_functional(value: torch.Tensor) -> bool:
    """Whether a tensor is the C++ half of a functional tensor, which torch's own methods (``tolist``) take out."""
    return bool(torch._is_functional_tensor(value))


def fake_mode_of(tensor: torch.Tensor) -> Any:
    """The fake mode a functional tensor lives in; None for any other tensor."""
    return getattr(torch._from_functional_tensor(tensor.elem), "fake_mode", None) if isinstance(tensor, FunctionalTensor) else None


def is_storage_changed(tensor: torch.Tensor) -> bool:
    """Whether a functional tensor was given another storage (``set_``, ``x.data = y``, a ``resize_`` that grows)."""
    return bool(torch._functionalize_was_storage_changed(tensor.elem))  # type: ignore[attr-defined]


_SCATTERS = {torch.ops.aten.select_scatter.default, torch.ops.aten.slice_scatter.default, torch.ops.aten.diagonal_scatter.default}


def on_fakes(op: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator on fake tensors, laid out as eager PyTorch lays it out; 2.11 alone does otherwise here."""
    if op is torch.ops.aten.zero.default:  # 2.11: contiguous, whatever the argument is
        return torch.ops.aten.zeros_like.default(*args)
    if op in _SCATTERS and 0 in args[0].stride():  # 2.11: expanded as the argument is, several elements in one place
        args = (torch.ops.aten.clone.default(args[0]), *args[1:])
    if op is torch.ops.aten.split.Tensor and args[0].numel() == 0:  # 2.11: IndexError where the dimension is empty
        dim = args[2] if len(args) > 2 else 0
        if args[0].size(dim) == 0:
            return torch.ops.aten.split_with_sizes.default(args[0], [0], dim)
    first = args[0] if args else None
    if op is torch.ops.aten._efficientzerotensor.default or (isinstance(first, FakeTensor) and is_zero_tensor(first)):
        # what PyTorch keeps of a call forgets that such zeros, and views of them, have no memory
        mode: Any = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        with disable_fake_tensor_cache(mode):
            return op(*args, **kwargs)
    return op(*args, **kwargs)


@functools.cache
def is_known_by_kinds(op: Any) -> bool:
    """Whether the result of an operator on fake tensors depends on their ``fake_kind`` alone, and has memory of its own."""
    by_value = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return _is_functional(op) and by_value.isdisjoint(op.tags) and op is not torch.ops.aten._unsafe_view.default


@functools.cache
def is_known_look(op: Any) -> bool:
    """Whether an operator looks at its first argument's memory in a way that depends on that one's ``fake_kind`` and offset alone."""
    if view_kind(op) != "view" or not is_torchs_own(op) or op in _LOOKS_OTHERWISE:
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), torch._C.DispatchKey.CompositeImplicitAutograd.name)


_LOOKS_OTHERWISE = {torch.ops.aten.as_strided.default, torch.ops.aten.lift_fresh.default}
"""The first asks how much memory there is; the second takes what is no fake tensor."""


def ambient_kind() -> tuple[Any, ...]:
    """What a result depends on besides the arguments, as PyTorch's own cache has it."""
    return torch.get_default_dtype(), torch._C._get_default_device(), torch.is_inference_mode_enabled()  # type: ignore[attr-defined]


def fake_kind(fake: FakeTensor) -> tuple[Any, ...] | None:
    """All that a result depends on but values; None for one that knows its value, or whose sizes are symbols."""
    if type(fake) is not FakeTensor or fake.constant is not None or fake.requires_grad or fake._has_symbolic_sizes_strides:
        return None
    if fake.layout is not torch.strided:
        return None
    return dispatch_bits(fake), fake.dtype, fake.shape, fake.stride(), fake.fake_device


def lookalikes(fake: Any, base: FakeTensor | None = None) -> Callable[[FakeTensorMode, Any], FakeTensor] | None:
    """Makes fake tensors of the same kind for a mode, each with memory of its own, or where ``fake`` looks at the memory of ``base``,
    with that of the tensor it is given; None where they would not be the same in all.

    ``fake`` is fresh: nothing was noted about it since it was made.
    """
    kind = fake_kind(fake) if isinstance(fake, FakeTensor) else None
    if kind is None or (base is not None and (fake is base or is_zero_tensor(base) or storage_id(fake) != storage_id(base))):
        return None
    _, dtype, sizes, strides, device = kind
    noted = {name: value for name, value in vars(fake).items() if name != "fake_mode"}
    offset, conjugated, negated, zero = fake.storage_offset(), fake.is_conj(), fake.is_neg(), is_zero_tensor(fake)

    def make(mode: FakeTensorMode, base: Any) -> FakeTensor:
        with no_dispatch():
            if zero:
                memory = torch._efficientzerotensor(sizes, dtype=dtype, device="meta")
            else:
                memory = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        if base is not None:
            with no_dispatch():
                torch._C.TensorBase.set_(memory, base.untyped_storage(), offset, sizes, strides)
            if conjugated:
                torch._C._set_conj(memory, True)
            if negated:
                torch._C._set_neg(memory, True)
        new: FakeTensor = torch.Tensor._make_subclass(  # type: ignore[attr-defined]
            FakeTensor, memory, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(new)
        vars(new).update(noted, fake_mode=mode)
        return new

    again = make(fake.fake_mode, base)
    return make if fake_kind(again) == kind and again.storage_offset() == offset else None


# ── modes ────────────────────────────────────────────────────────────────────────────────────────────────────────

without_modes: Callable[[], contextlib.AbstractContextManager[Any]] = _disable_current_modes
"""Inside, no dispatch mode is active: real tensors may be touched in the middle of a trace."""


def without_function_modes() -> contextlib.AbstractContextManager[Any]:
    """Inside, no torch-function mode (nor any ``__torch_function__``) is asked."""
    return torch._C.DisableTorchFunction()


def function_modes() -> tuple[object, ...]:
    """The active torch-function modes; a default device counts by its device, another mode as itself."""
    if not torch._C._len_torch_function_stack():
        return ()
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return tuple(m.device if isinstance(m, torch.utils._device.DeviceContext) else m for m in stack)


def foreign_trace_active(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether another tracer (make_fx, torch.export, AOTAutograd, a fake mode) is running us."""
    if running_tracer() is not None:
        return True
    return any(isinstance(t, (FakeTensor, FunctionalTensor)) for t in tensors)


_operators = importlib.import_module("torch._higher_order_ops.utils")
COMPILED_BY_TORCH = [(_operators, "_hop_compile_and_call")] if hasattr(_operators, "_hop_compile_and_call") else []
"""By which torch compiles, and calls, its operators that take functions. Seen in 2.13."""

generic_associative_scan: Callable[..., Any]
generic_associative_scan = importlib.import_module("torch._higher_order_ops.associative_scan").generic_associative_scan
"""``associative_scan`` by calls for many pairs at once."""

CAUSAL_MASK = torch.nn.modules.transformer, "_detect_is_causal_mask"
"""With which nn.Transformer reads the values of a mask to find out whether it is causal (a hint for speed only)."""

WRAPS_FOR_LEVELS = (eager_transforms, "_wrap_for_grad"), (functorch_vmap, "_add_batch_dim")
"""By which torch.func's transforms make tensors of their level; they ask no torch-function mode."""

LINEARIZE_TRACER = eager_transforms, "lazy_dynamo_disallow"
"""What ``torch.func.linearize`` alone calls, just before it starts a tracer of torch's own."""

BACKWARD_ENGINE = torch.autograd, "_engine_run_backward"
"""What every backward pass that Python starts is run by."""


def graphs_made_alone() -> contextlib.AbstractContextManager[Any]:
    """Inside, no other thread makes graphs by torch's own tracers, as ``torch.cond`` does of its branches: these note for the whole process
    who traces. It is the lock of ``torch.compile``."""
    from torch._dynamo.convert_frame import compile_lock  # importing torch._dynamo costs a second: only where torch does so, too

    return compile_lock


def set_attribute(owner: Any, name: str, value: Any) -> None:
    """As ``setattr``, also for a class that is made in C and says that it is immutable (``torch.Generator``)."""
    try:
        setattr(owner, name, value)
    except TypeError:
        gc.get_referents(owner.__dict__)[0][name] = value  # what its proxy stands for
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


class _Modes(threading.local):
    """How deep this thread is in ``modes_entered``."""

    depth = 0


_modes = _Modes()
_modes_lock = threading.Lock()
_threads_in_modes = 0
_only_lift = False
_enter_mode, _exit_mode = TorchDispatchMode.__enter__, TorchDispatchMode.__exit__
_tell_dynamo = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)  # 2.13, 2.15; of this thread alone


def _enter_unnoted(mode: Any) -> Any:
    if not _modes.depth:
        return _enter_mode(mode)  # type: ignore[no-untyped-call]
    if _tell_dynamo is not None and not mode.ignore_compile_internals():
        _tell_dynamo(True)
    _python_dispatch._push_mode(mode)  # type: ignore[no-untyped-call]
    return mode


def _exit_unnoted(mode: Any, *error: Any) -> Any:
    if not _modes.depth:
        return _exit_mode(mode, *error)  # type: ignore[no-untyped-call]
    own = mode.__dict__
    _python_dispatch._pop_mode(own["_dispatch_key"] if own.get("_dispatch_key") is not None else own.get("_mode_key"))
    if _tell_dynamo is not None:
        _tell_dynamo(any(not m.ignore_compile_internals() for m in dispatch_modes()))
    return None


def dispatch_modes() -> list[Any]:
    """The dispatch modes that this thread is in, the outermost first, without those of torch's own tracers."""
    stack_at: Any = vars(_python_dispatch)["_get_dispatch_stack_at"]
    return [stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]


@contextlib.contextmanager
def modes_entered() -> Iterator[None]:
    """Inside, dispatch modes are entered and left by this thread without a note of it for the whole process. Torch notes there that some
    thread is in a mode; each mode notes again what it found, so the last of two threads would note for good what the first one had."""
    global _threads_in_modes, _only_lift
    with _modes_lock:
        if not _threads_in_modes:
            _only_lift = torch._C._only_lift_cpu_tensors()
            TorchDispatchMode.__enter__, TorchDispatchMode.__exit__ = _enter_unnoted, _exit_unnoted  # type: ignore[method-assign]
        _threads_in_modes += 1
    _modes.depth += 1
    try:
        yield
    finally:
        _modes.depth -= 1
        with _modes_lock:
            _threads_in_modes -= 1
            if not _threads_in_modes:
                TorchDispatchMode.__enter__, TorchDispatchMode.__exit__ = _enter_mode, _exit_mode  # type: ignore[method-assign]
                torch._C._set_only_lift_cpu_tensors(_only_lift)


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────


DYNAMO = "torch._dynamo"
"""The package whose errors tell of code that torch.compile does not compile."""


def is_operator(target: Any) -> bool:
    """Whether a call's target is an operator overload (``aten.mul.Tensor``), not a Python function."""
    return isinstance(target, torch._ops.OpOverload)


def operator_of_functions(target: Any) -> str | None:
    """The name of a higher-order operator; None for anything else."""
    return str(target.name()) if isinstance(target, torch._ops.HigherOrderOperator) else None  # type: ignore[no-untyped-call]


def is_pointwise(target: Any) -> bool:
    """Whether a call's target is an operator that computes each element of its own."""
    return is_operator(target) and torch.Tag.pointwise in target.tags


def draws_random(op: Any) -> bool:
    """Whether an operator draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in op.tags


FUSED_ADAM, FUSED_ADAMW = torch._fused_adam_, torch._fused_adamw_
FUSED_SGD, FUSED_ADAGRAD = torch._fused_sgd_, torch._fused_adagrad_
"""The steps of optimisers with ``fused=True``. Seen in 2.13."""
CAPTURABLE_DEVICES = tuple(
    (importlib.import_module(f"torch.optim.{name}"), "_get_capturable_supported_devices")
    for name in ("adam", "adamax", "asgd", "nadam", "radam")
)
"""What says on which devices optimisers may have ``capturable=True``. Seen in 2.13."""


def generator_id(generator: torch.Generator) -> int:
    """What tells generators apart: a mode is given another object for each call that names one."""
    return int(generator._cdata)  # type: ignore[attr-defined]


def is_torchs_own(op: Any) -> bool:
    """Whether an operator is one of PyTorch's (functional where its schema says so), not a custom one."""
    return op.namespace in ("aten", "prims", "prim")


def overload_name(op: Any) -> str:
    """``"Tensor"`` of ``aten.mul.Tensor``."""
    name: str = op._overloadname
    return name


def argument_names(op: Any) -> list[str]:
    """The names of an operator's arguments."""
    return [a.name for a in op._schema.arguments]


def argument_kinds(op: Any) -> list[str]:
    """The types of an operator's arguments, as its schema writes them; none for what is no operator."""
    return [str(a.type) for a in op._schema.arguments] if is_operator(op) else []


def writes_inputs(op: Any) -> bool:
    """Whether an operator's schema says it mutates an argument."""
    return is_operator(op) and bool(op._schema.is_mutable)


def written_by(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors a call of an operator writes to."""
    for i, argument in enumerate(op._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[i] if i < len(args) else kwargs.get(argument.name)
            yield from (v for v in (value if isinstance(value, (list, tuple)) else [value]) if isinstance(v, torch.Tensor))


@functools.cache
def functional_form(op: Any) -> Any:
    """The operator that computes what an in-place one of PyTorch's writes, where functionalisation does not know it (``polygamma_``);
    None for all others. Seen: that one alone in 2.11, 2.13."""
    name = op._schema.name.removeprefix("aten::")
    if not writes_inputs(op) or op.namespace != "aten" or not name.endswith("_") or name.startswith("_"):
        return None
    has_kernel, key = torch._C._dispatch_has_kernel_for_dispatch_key, torch._C.DispatchKey
    if any(has_kernel(op.name(), k.name) for k in (key.Functionalize, key.CompositeImplicitAutograd)):
        return None
    return getattr(getattr(torch.ops.aten, name[:-1], None), overload_name(op), None)


def arguments_by_name(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call of an operator by the names its schema gives them."""
    return dict(zip(argument_names(op), args, strict=False)) | kwargs


def method_of(target: Any) -> Any:
    """The tensor method that an operator called by name (``torch.ops.aten.t_``) is, or the operator itself."""
    if not isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return target
    packet = target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target
    namespace, _, name = packet._qualified_op_name.partition("::")
    return getattr(torch.Tensor, name, target) if namespace == "aten" else target


def without_overload(target: Any) -> Any:
    """An operator that looks for the overload itself, where ``target`` is one of its overloads."""
    return target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target


def returns_nothing(op: Any) -> bool:
    """Whether an operator is called for its effect alone (a check)."""
    return is_operator(op) and not op._schema.returns


METHODS: dict[Any, str] = {
    getattr(getattr(torch.ops.aten, name), overload): name
    for name, overloads in {
        "mm": "default", "bmm": "default", "addmm": "default", "addmm_": "default", "baddbmm": "default",
        "view": "default", "t": "default", "transpose": "int", "permute": "default", "select": "int", "unbind": "int", "expand": "default",
        "unsqueeze": "default", "squeeze": "default dim dims", "diagonal": "default", "detach": "default", "unfold": "default",
    }.items() for overload in overloads.split()
}  # fmt: skip
"""Operators whose method of a tensor makes the very call: Python's way to it takes half the time of the operator's."""


def direct(op: Any) -> Callable[..., Any]:
    """The shortest way from Python to an operator overload: a method, or its C++ entry without the Python frame around it. The Python of
    a custom one runs with grad mode off, as it does below eager PyTorch's autograd: it may ask for ``.numpy()``."""
    call = getattr(torch.Tensor, METHODS[op]) if op in METHODS else op._op if is_operator(op) else op
    return torch.no_grad()(call) if is_operator(op) and not is_torchs_own(op) else call  # type: ignore[no-any-return]


_BELOW = functools.reduce(
    lambda a, b: a | b,
    (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key)) for key in ("ADInplaceOrView", "AutogradFunctionality", "AutogradOther")),
)


def below_autograd() -> contextlib.AbstractContextManager[Any]:
    """Inside, autograd hears of nothing: no history, no views, no version counters."""
    return torch._C._ExcludeDispatchKeyGuard(_BELOW)  # type: ignore[no-any-return]


@contextlib.contextmanager
def autograd_heard() -> Iterator[None]:
    """Inside, the caller's Python runs as it does outside of ``below_autograd``; grad mode is off until it says otherwise."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    with torch._C._ForceDispatchKeyGuard(included, excluded - _BELOW), torch.no_grad():
        yield


def not_looked_into(function: Any) -> None:
    """From now on ``torch.compile`` ends its graph where the function is called, and compiles nothing that the function calls: what
    ``torch.compiler.disable`` says, without a call in between, and without importing the compiler."""
    function._torchdynamo_disable = True
    frames: Any = torch._C._dynamo.eval_frame
    skip = frames._FrameAction.SKIP
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(skip, skip))


def running_node() -> object | None:
    """The node of autograd's graph that a backward pass of this thread runs, or whose hooks."""
    return torch._C._current_autograd_node()


any_autocast: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device."""


def sdpa_flags() -> tuple[bool, ...]:
    """Which scaled-dot-product-attention kernels are allowed; the choice among them is made while tracing."""
    c = torch._C
    return (c._get_flash_sdp_enabled(), c._get_math_sdp_enabled(), c._get_mem_efficient_sdp_enabled(), c._get_cudnn_sdp_enabled())


# ── autograd ─────────────────────────────────────────────────────────────────────────────────────────────────────


def next_sequence_number() -> int:
    """The number the next autograd node will get: ties a forward op to the backward ops it causes."""
    number: int = _get_sequence_nr()
    return number


def running_sequence_number() -> int | None:
    """The number of the autograd node that runs now, or None outside a backward pass."""
    node = torch._C._current_autograd_node()
    return None if node is None else int(node._sequence_nr())


def custom_function_of(node: Any) -> type | None:
    """The ``autograd.Function`` whose backward a node of autograd runs; None for any other node."""
    return vars(type(node)).get("_forward_cls") if isinstance(node, torch.autograd.function.BackwardCFunction) else None


def running_node_name() -> str | None:
    """The name of the autograd node that runs now, or None outside a backward pass."""
    node: Any = running_node()
    return None if node is None else str(node.name())


def creation_meta(tensor: torch.Tensor) -> Any:
    """How a view was made (in grad mode, under no_grad, by an op of several results): decides whether it may be written to."""
    return torch._C._autograd._get_creation_meta(tensor)


versions_kept: Callable[[torch.Tensor | tuple[torch.Tensor, ...]], contextlib.AbstractContextManager[Any]]
versions_kept = torch.autograd._unsafe_preserve_version_counter  # type: ignore[attr-defined]
"""Inside, writes to a tensor do not move its version counter."""

set_versions: Callable[[tuple[torch.Tensor, ...], tuple[int, ...]], None] = torch._C._autograd._unsafe_set_version_counter
"""Sets the version counters of some tensors."""


def policy_context(out: Any) -> SelectiveCheckpointContext:
    """What a policy of ``torch.utils.checkpoint`` is told of a call besides the call itself; of its result from 2.13 on."""
    context = SelectiveCheckpointContext(is_recompute=False)
    if hasattr(context, "op_output"):
        context.op_output = out
    return context


_GENERATORS = ("_checkpoint_without_reentrant_generator_impl", "_checkpoint_without_reentrant_generator")  # 2.15; 2.11, 2.13
CHECKPOINT_GENERATOR = next(name for name in _GENERATORS if hasattr(torch.utils.checkpoint, name))
"""In ``torch.utils.checkpoint``: what ``checkpoint(f, use_reentrant=False)`` runs to just before it calls ``f``, and after."""


def checkpoint_contexts(args: Sequence[Any], kwargs: dict[str, Any]) -> Callable[[], tuple[Any, Any]]:
    """The ``context_fn`` in a call of that generator."""
    return kwargs["context_fn"] if "context_fn" in kwargs else args[2]  # type: ignore[no-any-return] # 2.15; 2.11, 2.13


def set_creation_meta(tensor: torch.Tensor, meta: Any) -> None:
    """See ``creation_meta``."""
    torch._C._autograd._set_creation_meta(tensor, meta)


def forbid_writes(view: torch.Tensor) -> torch.Tensor:
    """A view that autograd lets nobody write to, as a leaf that requires grad."""
    set_creation_meta(view, torch._C._autograd.CreationMeta.MULTI_OUTPUT_NODE)  # type: ignore[attr-defined]
    return view


# ── symbols ──────────────────────────────────────────────────────────────────────────────────────────────────────


class _Guards(list[Any]):
    """The guards of an environment, and who is told of each as it is added."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told

    def append(self, guard: Any) -> None:
        super().append(guard)
        self._told(python_text(guard.expr))


def make_environment(told: Callable[[str], None]) -> ShapeEnv:
    """An environment for symbolic sizes, in which reading a value from a tensor stays an error;
    each of its guards is ``told``, as Python."""
    made = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
    made.guards = _Guards(told)
    return made


def _named(name: str) -> Any:
    """What a symbol is of."""
    from torch._dynamo.source import ConstantSource  # importing torch._dynamo costs a second: only for symbols

    return ConstantSource(name)


def constant_bool(value: bool) -> Any:
    """What stands below a ``SymBool`` that is known."""
    return torch._C._get_constant_bool_symnode(value)


def expression(value: Any) -> Any:
    """The sympy expression behind a SymInt, SymFloat or SymBool."""
    return value.node.expr


def is_size(value: Any) -> bool:
    """Whether a value is a symbolic size of PyTorch's; funcgrad's own symbolic ints have nodes of their own."""
    return isinstance(value, torch.SymInt) and isinstance(value.node, SymNode)


def shape_environment(value: torch.SymInt) -> Any:
    """The environment a symbolic size belongs to."""
    return value.node.shape_env


def symbolic_fake(fakes: FakeTensorMode, tensor: torch.Tensor, name: str, dims: Collection[int]) -> torch.Tensor:
    """A fake of ``tensor`` whose sizes along ``dims`` are symbols of the mode's environment."""
    kinds = [DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(tensor.ndim)]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds)
    return fakes.from_tensor(tensor, static_shapes=False, source=_named(name), symbolic_context=context)


def symbol_name(value: torch.SymInt) -> str | None:
    """The symbol that a size of an input was made as, whatever it has been found to equal since."""
    made = value.node._expr
    return str(made) if made.is_Symbol else None


_symbolic: ContextVar[bool] = ContextVar("funcgrad_symbolic", default=False)
logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: not _symbolic.get())


@contextlib.contextmanager
def symbolic_shapes() -> Iterator[None]:
    """Inside, operators take their Python rules before those in C++ where they have both: C++ fixes some sizes. That an operator knows no
    symbolic sizes is an exception, and not logged as an error besides."""
    token = _symbolic.set(True)
    try:
        with enable_python_dispatcher():
            yield
    finally:
        _symbolic.reset(token)


def guard_expressions(env: ShapeEnv) -> list[Any]:
    """The sympy conditions a trace relied on."""
    return [guard.expr for guard in env.guards]


def python_text(expr: Any) -> str:
    """A sympy expression as Python."""
    text: str = PythonPrinter().doprint(expr)
    return text


# ── pytrees ──────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Registered:
    """A container type registered with torch's pytree."""

    flatten: Callable[[Any], tuple[Sequence[Any], Any]]
    unflatten: Callable[[Sequence[Any], Any], Any]
    with_keys: Callable[[Any], tuple[Sequence[tuple[Any, Any]], Any]] | None

    def steps(self, value: Any, n: int) -> Iterator[str]:
        """How each child is reached, as code."""
        if self.with_keys is None:
            return (f"[{i}]" for i in range(n))
        return (pytree.keystr((key,)) for key, _ in self.with_keys(value)[0])


_registered: dict[type, Registered] = {}


def registered_container(kind: type) -> Registered | None:
    """The registration of a type, or None. Seen: ``SUPPORTED_NODES`` in 2.11, 2.13."""
    found = _registered.get(kind)
    if found is None and kind in pytree.SUPPORTED_NODES:
        entry = pytree.SUPPORTED_NODES[kind]
        found = _registered[kind] = Registered(entry.flatten_fn, entry.unflatten_fn, entry.flatten_with_keys_fn)
    return found


def _empty_cpu() -> Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]:
    """``empty_cpu(shape, strides, dtype)``: uninitialised memory, in half the time ``torch.empty_strided`` takes to read its arguments."""
    fast = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)  # seen in 2.11, 2.13
    return fast if fast is not None else lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)


empty_cpu = _empty_cpu()


def _over() -> Callable[..., torch.Tensor]:
    """``over(tensor, shape, strides, at=0)``: another tensor in the memory of one, ``at`` elements on; no view, to autograd."""

    def over(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], at: int = 0) -> torch.Tensor:
        with below_autograd():
            return tensor.as_strided(shape, strides, tensor.storage_offset() + at)

    return getattr(torch._C._dynamo.guards, "_reinterpret_tensor", over)  # seen in 2.11, 2.13


over = _over()


def holders(tensor: torch.Tensor) -> tuple[int | bool, ...]:
    """By how many, in Python and in C++, a tensor and its memory are held, and whether that is memory of PyTorch's own."""
    storage = tensor.untyped_storage()
    uses = torch._C._storage_Use_Count(storage._cdata)
    return sys.getrefcount(tensor), tensor._use_count(), sys.getrefcount(storage), uses, storage.resizable()  # type: ignore[attr-defined]


def alone() -> tuple[int | bool, ...]:
    """``holders`` of a tensor that only one variable knows, now: after torch.compile, calls hold their arguments once more."""
    (tensor,) = [torch.empty(1)]
    return holders(tensor)


ALONE = alone()
"""``holders`` of a tensor that only one variable knows."""


def aten_overloads() -> list[Any]:
    """All overloads of ATen operators; ``dir(torch.ops.aten)`` has those only that somebody asked for."""
    names = sorted(n.removeprefix("aten::").partition(".") for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::"))
    found = [getattr(getattr(torch.ops.aten, packet, None), overload or "default", None) for packet, _, overload in names]
    return [op for op in found if op is not None]


# ── allocations ──────────────────────────────────────────────────────────────────────────────────────────────────


def host_allocations(call: Callable[[], Any]) -> list[int]:
    """Run a call, and give the bytes of each allocation of host memory in it, in order; what is freed is negative, the result among it.

    The profiler behind ``torch.profiler`` counts the same, but kineto, which it starts, prints a line of its own to stderr each time
    (from 2.13 on). This one has been there since before kineto, and starts a hundred times faster.
    """
    _enable_profiler_legacy(ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig()))
    try:
        call()
    finally:
        threads = _disable_profiler_legacy()
    found = [[e for e in events if e.kind() == "memory_alloc"] for events in threads]  # type: ignore[comparison-overlap]  # torch says it is an int
    found = [events for events in found if events]
    if len(found) > 1:  # each thread's events are in order; between threads the clock tells, which may be set back
        start = next(e for events in threads for e in events if e.name() == "__start_profile")
        return [e.cpu_memory_usage() for e in sorted(itertools.chain(*found), key=start.cpu_elapsed_us)]
    return [e.cpu_memory_usage() for events in found for e in events]


# ── the autograd engine's hook ───────────────────────────────────────────────────────────────────────────────────

_hook: Any = torch._C._dynamo.compiled_autograd


def set_engine_hook(factory: Callable[[], Any] | None, dynamic: bool = True) -> tuple[Any, bool]:
    """Let the autograd engine tell an object of ``factory`` what a backward pass would run, in the place of running it; None: it runs.
    Returns what was set before. ``dynamic``: it hands over sizes apart from the graph."""
    before: tuple[Any, bool] = _hook.set_autograd_compiler(factory, dynamic)
    return before


@contextlib.contextmanager
def without_engine_hook() -> Iterator[None]:
    """Inside, backward passes run as they are."""
    before = _hook.set_autograd_compiler(None, False)
    try:
        yield
    finally:
        _hook.set_autograd_compiler(*before)


forget_engine_graphs: Callable[[], None] = _hook.clear_cache
"""The engine forgets every graph it has told of. Never while it tells, or runs one."""

call_cpp_pre_hook: Callable[[int, torch.Tensor], torch.Tensor] = _hook.call_cpp_tensor_pre_hooks
"""Call a hook of C++ (``retain_grad``) by its number in the backward pass that runs: 2.11, 2.13, 2.15."""


@functools.cache
def engine_operators() -> Any:
    """Where the engine's functional forms of nodes are registered, ``add`` and ``get``: it names each to one compiler of the process,
    whichever that is, so that all must share them. Importing torch._dynamo costs a second: only where a backward pass is captured."""
    from torch._dynamo import compiled_autograd

    return compiled_autograd.ops


def in_torchs_own_capture() -> bool:
    """Whether torch's own compiled autograd runs a graph it has captured: the engine refuses to tell of another one in it."""
    own = sys.modules.get("torch._dynamo.compiled_autograd")
    return bool(getattr(own, "in_compiled_autograd_region", False))


@contextlib.contextmanager
def instead_of_engine(run: Callable[..., Any]) -> Iterator[None]:
    """Inside, ``run(original, roots, *args, **kwargs)`` is called in the place of the entry of every backward pass that Python starts."""
    places: list[Any] = [torch.autograd, torch.autograd.graph]
    original = torch.autograd.graph._engine_run_backward

    def entry(roots: Any, *args: Any, **kwargs: Any) -> Any:
        return run(original, roots, *args, **kwargs)

    for place in places:
        place._engine_run_backward = entry
    try:
        yield
    finally:
        for place in places:
            place._engine_run_backward = original


@contextlib.contextmanager
def callbacks_into(queue: Callable[[Callable[[], None]], None]) -> Iterator[None]:
    """Inside, what is queued to run at the end of a backward pass goes to ``queue``: the engine drops it where it runs no node itself."""
    variable: Any = torch.autograd.Variable
    engine = variable._execution_engine
    variable._execution_engine = _Queueing(engine, queue)
    try:
        yield
    finally:
        variable._execution_engine = engine


class _Queueing:
    """The engine, but for the end of what it is told to call at its end."""

    def __init__(self, engine: Any, queue: Callable[[Callable[[], None]], None]) -> None:
        self._engine, self.queue_callback = engine, queue

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


add_to_each: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = torch._foreach_add_
"""Add to several tensors, in place."""


def node_of(root: Any) -> Any:
    """The node of autograd that a tensor is the result of, or a gradient edge leads to; a leaf's collects its gradient."""
    return root.grad_fn or torch.autograd.graph.get_gradient_edge(root).node if isinstance(root, torch.Tensor) else root.node


def sequence_number(node: Any) -> int:
    """When a node was made; the engine runs what was made last first, and what collects a gradient before all others."""
    return int(node._sequence_nr()) % (1 << 64)


n_dispatch_modes: Callable[[], int] = torch._C._len_torch_dispatch_stack
"""How many dispatch modes, of fake tensors or others, look at the operators that this thread calls."""


def _flop_counters() -> list[Any]:
    module: Any = sys.modules.get("torch.utils.flop_counter")  # whoever counts has imported it
    return [] if module is None else [mode.counter for mode in dispatch_modes() if isinstance(mode, module._FlopCounterMode)]


def count_flops(calls: Sequence[tuple[Any, tuple[Any, ...], Any]]) -> None:
    """Tell ``torch.utils.flop_counter.FlopCounterMode`` of calls it does not see: operator, arguments and result, sizes for tensors."""
    for counter in _flop_counters():
        for operator, args, out in calls:
            counter._count_flops(operator.overloadpacket, out, args, {})


@contextlib.contextmanager
def flops_uncounted() -> Iterator[None]:
    """What runs inside, ``FlopCounterMode`` does not count."""
    counters = _flop_counters()
    before = [[(name, counts.copy()) for name, counts in counter.flop_counts.items()] for counter in counters]
    try:
        yield
    finally:
        for counter, counts in zip(counters, before, strict=True):
            counter.flop_counts.clear()
            counter.flop_counts.update(counts)


profiler: Any = torch.autograd.profiler
"""``profiler._is_profiler_enabled``: whether one runs, in any thread. To read it takes a third of what asking a function does."""

profiler_range: Any = torch._C._profiler._RecordFunctionFast
"""A context in which what is profiled belongs to a range of a name."""
