"""Fake tensors: what an operator makes of them, and in what two of them are alike."""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import os
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import attrs
import torch
from torch._prims_common import infer_size, suggest_memory_format

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    disable_fake_tensor_cache,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx.experimental.sym_node import SymNode
from torch.utils._mode_utils import no_dispatch
from torch.utils._python_dispatch import _disable_current_modes

from .functional import from_functional, is_functional, view_kind
from .operators import RECURRENT, is_torchs_own
from .symbols import hinted
from .tensors import dispatch_bits, is_zero_tensor, storage_id

__all__ = ["DataDependentOutputException", "DynamicOutputShapeException", "FakeTensor", "FakeTensorMode"]

FAKES = os.path.join(os.path.dirname(os.path.abspath(torch.__file__)), "_subclasses")
"""Where torch's own code lies that makes fake tensors: each as its real one, in inference mode or outside."""


def silence_where(raised: Callable[[], bool]) -> None:
    """Where ``raised()``, an operator that its fake tensors do not suit is not written to torch's log: whoever runs it
    gets the error itself."""
    logging.getLogger(FakeTensorMode.__module__).addFilter(lambda record: record.exc_info is None or not raised())


def fake_below(value: torch.Tensor) -> torch.Tensor | None:
    """The fake tensor below a functional one, or below the C++ half of one, and below wrappers of those transforms
    that see one tensor (``grad``, ``jvp``); None for any other tensor."""
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
    if isinstance(tensor, FunctionalTensor):
        return getattr(torch._from_functional_tensor(tensor.elem), "fake_mode", None)
    return None


_SCATTERS = {
    torch.ops.aten.select_scatter.default,
    torch.ops.aten.slice_scatter.default,
    torch.ops.aten.diagonal_scatter.default,
}


_INTERPOLATES = {
    torch.ops.aten.upsample_linear1d.default,
    torch.ops.aten.upsample_bilinear2d.default,
    torch.ops.aten.upsample_bicubic2d.default,
    torch.ops.aten.upsample_trilinear3d.default,
}
_PRODUCTS = {
    getattr(torch.ops.aten, name).default
    for name in ("mm", "bmm", "mv", "dot", "vdot", "addmm", "addmv", "addbmm", "baddbmm")
}
_LAID_OUT_BY_FORMAT = {
    torch.ops.aten.native_batch_norm.default,
    torch.ops.aten._native_batch_norm_legit.default,
    torch.ops.aten._native_batch_norm_legit.no_stats,
    torch.ops.aten._native_batch_norm_legit_functional.default,
}
"""Their results are in the argument's memory format, in whatever order its dimensions lie."""

_VIEWS = {torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default}
VIEW_WILL_NOT_DO = "view size is not compatible with input tensor's size and stride"


_SHIFTS = {
    getattr(getattr(torch.ops.aten, name), of) for name in ("__lshift__", "__rshift__") for of in ("Scalar", "Tensor")
}
_ZEROS_THAT_LIE_AS = torch.ops.aten._new_zeros_with_same_feature_meta.default


_MEAN, _SUM = 1, 2
_LOSSES_BACKWARD = {
    torch.ops.aten.mse_loss_backward.default,
    torch.ops.aten.smooth_l1_loss_backward.default,
    torch.ops.aten.huber_loss_backward.default,
}


def on_fakes(op: Any, args: Any, kwargs: Any) -> Any:
    """The result of an operator on fake tensors, laid out as eager PyTorch lays it out."""
    if op is torch.ops.aten.zero.default:  # 2.11: contiguous, whatever the argument is
        return torch.ops.aten.zeros_like.default(*args)
    if op in _SCATTERS and 0 in args[0].stride():  # 2.11: expanded as the argument is, several elements in one place
        args = (torch.ops.aten.clone.default(args[0]), *args[1:])
    if op is torch.ops.aten.split.Tensor and args[0].numel() == 0:  # 2.11: IndexError where the dimension is empty
        dim = args[2] if len(args) > 2 else 0
        if args[0].size(dim) == 0:
            return torch.ops.aten.split_with_sizes.default(args[0], [0], dim)
    # 2.13: nothing asks this, so that a size that is a symbol might be 0
    if op in _INTERPOLATES and not all(size > 0 for size in args[1]):
        raise RuntimeError(f"Input and output sizes should be greater than 0, but got output {list(args[1])}")
    if op in _LOSSES_BACKWARD and _MEAN in args[3:4]:  # 2.13: they divide by the number of elements, which may be 0
        args = (*args[:3], _SUM, *args[4:])  # which looks alike
    if op in _LAID_OUT_BY_FORMAT:
        args = (args[0].contiguous(memory_format=suggest_memory_format(args[0])), *args[1:])
    if op in _PRODUCTS and len({a.dtype for a in args if isinstance(a, FakeTensor)}) > 1:
        # fakes multiply what kernels refuse to: ask them, of one element
        with without_modes():
            ones = [torch.zeros([1] * a.dim(), dtype=a.dtype) if isinstance(a, FakeTensor) else a for a in args]
            op(*ones, **kwargs)
    if op in _SHIFTS and (dtype := torch.result_type(*args)) is not torch.bool:
        # 2.13: fakes shift no truth values, which kernels promote
        args = [a.to(dtype) if isinstance(a, FakeTensor) and a.dtype is torch.bool else a for a in args]
    if op is _ZEROS_THAT_LIE_AS:
        return _zeros_that_lie_as(*args, **kwargs)
    first = args[0] if args else None
    if op is torch.ops.aten.copy.default and args[0].storage_offset():
        return _uncached(op, args, kwargs)  # what PyTorch keeps of a call forgets where in its memory the result begins
    if op is torch.ops.aten._efficientzerotensor.default or (isinstance(first, FakeTensor) and is_zero_tensor(first)):
        # what PyTorch keeps of a call forgets that such zeros, and views of them, have no memory
        return _uncached(op, args, kwargs)
    if op in _VIEWS and _has_dimension_of_one(first, args[1]):
        return _viewed(first, args[1])
    # 2.11 to 2.15: nothing, where it keeps more for backward than all else
    if op is RECURRENT and (args[-1] or torch.is_grad_enabled()):
        *outs, workspace = op(*args, **kwargs)
        return *outs, workspace.new_empty(_size_of_workspace(args))
    try:
        return op(*args, **kwargs)
    except ValueError as error:
        if "Cannot view a tensor with" not in str(error):
            raise
        raise RuntimeError(f"{VIEW_WILL_NOT_DO}. {error}") from None  # as eager PyTorch does: the function may catch it


def _uncached(op: Any, args: Any, kwargs: Any) -> Any:
    mode: Any = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    with disable_fake_tensor_cache(mode):
        return op(*args, **kwargs)


def _zeros_that_lie_as(like: Any, primal: Any, *, self_num_batch_dims: int = 0) -> Any:
    """What a tangent is copied to whose primal lies otherwise: as that one does, in as much memory, so that views of
    both lie alike; for each sample of a batch. (The operator itself knows no symbolic sizes.)"""
    room = primal.untyped_storage().nbytes() // primal.element_size()
    batch = like.shape[:self_num_batch_dims]
    memory = like.new_zeros([*batch, room])
    strides = [*memory.stride()[:-1], *primal.stride()]
    return memory.as_strided([*batch, *primal.shape], strides, primal.storage_offset())


def _size_of_workspace(args: Sequence[Any]) -> int | torch.SymInt:
    """The bytes that a recurrent layer of oneDNN keeps for its backward pass, which it alone knows: it is asked, on
    zeros. Where sizes are symbols, in proportion to those of the call which is compiled: for costs."""
    outlines = [_Zeros(tuple(map(hinted, a.shape)), a.dtype) if isinstance(a, FakeTensor) else a for a in args]
    found = _measured_workspace(*[tuple(map(hinted, a)) if isinstance(a, (list, tuple)) else a for a in outlines])
    steps, batch = args[0].shape[:2]  # or the other way round
    if type(steps) is type(batch) is int:
        return found
    return steps * batch * -(-found // max(1, hinted(steps) * hinted(batch)))  # type: ignore[no-any-return]


@attrs.frozen
class _Zeros:
    """Zeros to ask a kernel with."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@functools.lru_cache(256)
def _measured_workspace(*args: Any) -> int:
    with without_modes(), torch.enable_grad():  # which is why it keeps any
        zeros = [torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, _Zeros) else a for a in args]
        return RECURRENT(*zeros)[-1].numel()  # type: ignore[no-any-return]


def _has_dimension_of_one(fake: Any, sizes: Any) -> bool:
    """Whether fakes may take a view otherwise than tensors do: 2.11 to 2.15 give such a dimension another stride, and
    take what cannot be viewed. (-1 counts, as what it stands for may be 1.)"""
    return isinstance(fake, FakeTensor) and any(type(n) is int and n in (1, -1) for n in (*fake.shape, *sizes))


def _viewed(fake: Any, sizes: Any) -> Any:
    sizes = infer_size(sizes, fake.numel())
    strides = _strides_of_view(fake.shape, fake.stride(), sizes)
    if strides is None:
        raise RuntimeError(f"{VIEW_WILL_NOT_DO} (at least one dimension spans across two contiguous subspaces)")
    return torch.ops.aten.as_strided.default(fake, sizes, strides, fake.storage_offset())


def _strides_of_view(shape: Sequence[Any], strides: Sequence[Any], sizes: Sequence[Any]) -> list[Any] | None:
    """The strides of a tensor viewed in other sizes; None where it cannot be (``at::detail::computeStride``).

    From the last dimension on, dimensions that lie in memory as one are a chunk, which dimensions of the view share
    among them.
    """
    if math.prod(shape) == 0:
        if list(shape) == list(sizes):
            return list(strides)
        return [math.prod(max(n, 1) for n in sizes[d + 1 :]) for d in range(len(sizes))]
    result: list[Any] = [1] * len(sizes)
    left, step = len(sizes), strides[-1] if strides else 1
    taken = given = 1
    for d in reversed(range(len(shape))):
        taken *= shape[d]
        if d > 0 and (shape[d - 1] == 1 or strides[d - 1] == taken * step):
            continue
        while left > 0 and (given != taken or sizes[left - 1] == 1):
            left -= 1
            result[left] = given * step
            given *= sizes[left]
        if given != taken:
            return None
        if d > 0:
            step, taken, given = strides[d - 1], 1, 1
    return result


@functools.cache
def is_known_by_kinds(op: Any) -> bool:
    """Whether the result of an operator on fake tensors depends on their ``fake_kind`` alone, and has memory of its
    own."""
    by_value = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    return is_functional(op) and by_value.isdisjoint(op.tags) and op not in _KNOWN_OTHERWISE


@functools.cache
def is_known_look(op: Any) -> bool:
    """Whether an operator looks at its first argument's memory in a way that depends on that one's ``fake_kind`` and
    offset alone."""
    if view_kind(op) != "view" or not is_torchs_own(op) or op in _LOOKS_OTHERWISE:
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(
        op.name(), torch._C.DispatchKey.CompositeImplicitAutograd.name
    )


_KNOWN_OTHERWISE = {torch.ops.aten._unsafe_view.default, torch.ops.aten.copy.default, _ZEROS_THAT_LIE_AS}
"""The first has no memory of its own; the others begin in theirs where an argument does in its own."""

_LOOKS_OTHERWISE = {torch.ops.aten.as_strided.default, torch.ops.aten.lift_fresh.default}
"""The first asks how much memory there is; the second takes what is no fake tensor."""


def ambient_kind() -> tuple[Any, ...]:
    """What a result depends on besides the arguments, as PyTorch's own cache has it."""
    return torch.get_default_dtype(), torch._C._get_default_device(), torch.is_inference_mode_enabled()  # type: ignore[attr-defined]


def fake_kind(fake: FakeTensor) -> tuple[Any, ...] | None:
    """All that a result depends on but values; None for one that knows its value. Sizes that are symbols are known by
    their expressions, which mean something among the fake tensors of one mode alone."""
    if type(fake) is not FakeTensor or fake.constant is not None or fake.requires_grad:
        return None
    if fake.layout is not torch.strided:
        return None
    sizes: Any = fake.shape
    strides: Any = fake.stride()
    if fake._has_symbolic_sizes_strides:
        sizes, strides = tuple(map(size_kind, sizes)), tuple(map(size_kind, strides))
        if None in sizes or None in strides:
            return None
    return dispatch_bits(fake), fake.dtype, sizes, strides, fake.fake_device


def size_kind(size: int | torch.SymInt) -> Hashable:
    """A size as it is told from others: a symbol by its expression, as PyTorch's own cache has it, but without what
    is known of it since (that one symbol is another), which takes long to look up and makes no other size. None for
    a number that stands for one that Python has read."""
    if isinstance(size, int):
        return size
    return (torch.SymInt, size.node._expr) if isinstance(size.node, SymNode) else None


def lookalikes(fake: Any, base: FakeTensor | None = None) -> Callable[[FakeTensorMode, Any], FakeTensor] | None:
    """Makes fake tensors of the same kind for a mode, each with memory of its own, or where ``fake`` looks at the
    memory of ``base``, with that of the tensor it is given; None where they would not be the same in all.

    ``fake`` is fresh: nothing was noted about it since it was made.
    """
    kind = fake_kind(fake) if isinstance(fake, FakeTensor) else None
    if kind is None or (
        base is not None and (fake is base or is_zero_tensor(base) or storage_id(fake) != storage_id(base))
    ):
        return None
    dtype, sizes, strides, device = fake.dtype, fake.shape, fake.stride(), fake.fake_device
    noted = {name: value for name, value in vars(fake).items() if name != "fake_mode"}
    offset, conjugated, negated, zero = fake.storage_offset(), fake.is_conj(), fake.is_neg(), is_zero_tensor(fake)

    def make(mode: FakeTensorMode, base: Any) -> FakeTensor:
        with no_dispatch():
            if base is not None:
                memory = torch.empty(0, dtype=dtype, device="meta")
                # no symbolic size is looked at here, which takes thirty times as long as all of this
                torch._C.TensorBase.set_(memory, base.untyped_storage(), 0, (0,), (1,))
                memory = memory.as_strided(sizes, strides, offset)
                if conjugated:
                    torch._C._set_conj(memory, True)
                if negated:
                    torch._C._set_neg(memory, True)
            elif zero:
                memory = torch._efficientzerotensor(sizes, dtype=dtype, device="meta")
            else:
                memory = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        new: FakeTensor = torch.Tensor._make_subclass(  # type: ignore[attr-defined]
            FakeTensor, memory, False, dispatch_device=True, device_for_backend_keys=device
        )
        torch._C._set_throw_on_mutable_data_ptr(new)
        vars(new).update(noted, fake_mode=mode)
        return new

    again = make(fake.fake_mode, base)
    is_alike = fake_kind(again) == kind and size_kind(again.storage_offset()) == size_kind(offset)
    return make if is_alike else None


without_modes: Callable[[], contextlib.AbstractContextManager[Any]] = _disable_current_modes
"""Inside, no dispatch mode is active: real tensors may be touched in the middle of a trace."""
