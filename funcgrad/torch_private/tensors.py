"""What a tensor is below its public face: dispatch keys, storage, who holds it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._dynamo.guards import TensorGuards
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from .autograd import below_autograd

dispatch_keys: Callable[[torch.Tensor], Any] = torch._C._dispatch_keys


def dispatch_bits(tensor: torch.Tensor) -> int:
    """One int that tells apart plain, subclass, sparse, quantized, conjugated, negated, inference and wrapped
    tensors."""
    return int(dispatch_keys(tensor).raw_repr())


def symbolic_zeros(shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros with no memory behind them."""
    zeros: torch.Tensor = torch._efficientzerotensor(shape, dtype=dtype, device=device)
    return zeros


def is_zero_tensor(tensor: torch.Tensor) -> bool:
    """Whether it stands for zeros, with no memory behind it: what forward derivatives begin with, and a derivative
    that is zero everywhere. No torch-function mode is asked, which would answer for what stands for the tensor."""
    return bool(dispatch_keys(tensor).raw_repr() & _ZEROS)


_ZEROS = torch._C.DispatchKeySet(torch._C.DispatchKey.ZeroTensor).raw_repr()


def in_memory(value: Any) -> Any:
    """A value; a tensor that stands for zeros as one that kernels can read."""
    return value.clone() if isinstance(value, torch.Tensor) and is_zero_tensor(value) else value


def is_wrapper_subclass(value: Any) -> bool:
    """Whether a value is a tensor made of others, by ``__tensor_flatten__``."""
    return is_traceable_wrapper_subclass(value)


def is_transform_wrapper(tensor: torch.Tensor) -> bool:
    """Whether a torch.func transform (vmap, grad, jvp) wraps this tensor."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


ASKS_BASE: Any = torch.Tensor._base.__get__  # type: ignore[union-attr]


ASKS_HISTORY: Any = torch.Tensor.grad_fn.__get__  # type: ignore[union-attr]


ASKS_HOOKS: Any = torch.Tensor._backward_hooks.__get__  # type: ignore[union-attr]


ASKS_VERSION: Any = torch.Tensor._version.__get__  # type: ignore[attr-defined]
"""What a function mode is called for where the code says ``x._base``, ``x._backward_hooks`` and ``x._version``."""


STORAGE_ID = "{}.untyped_storage()._cdata"
"""``storage_id`` of a variable, as Python."""


def storage_id(tensor: torch.Tensor) -> int:
    """Identity of the memory a tensor lives in; of a transform's wrapper, that of what it wraps."""
    return int(unwrap_transform(tensor).untyped_storage()._cdata)


def storage_bytes(tensor: torch.Tensor) -> range:
    """The addresses of the memory a tensor lives in; none where it has none on a CPU."""
    own = unwrap_transform(tensor)
    if own.device.type != "cpu" or own.layout is not torch.strided or is_wrapper_subclass(own):
        return range(0)
    storage = own.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def storage_identity(storage: torch.UntypedStorage) -> int:
    """``storage_id`` of the tensors over a storage."""
    return int(storage._cdata)


_Dims = Sequence[int | str | None]


def looks_like(
    examples: Sequence[torch.Tensor], sizes: Sequence[_Dims] | None = None, strides: Sequence[_Dims] | None = None
) -> Callable[..., bool]:
    """A quick check that tensors have the types, dispatch keys, dtypes, devices, sizes, strides and
    ``requires_grad`` of others; or these sizes and strides, as far as they are numbers."""
    sizes = [t.size() for t in examples] if sizes is None else sizes
    strides = [t.stride() for t in examples] if strides is None else strides
    numbers: list[Any] = [
        [[n if isinstance(n, int) else None for n in dims] for dims in of_all] for of_all in (sizes, strides)
    ]
    return TensorGuards(*examples, dynamic_dims_sizes=numbers[0], dynamic_dims_strides=numbers[1]).check


def looks_like_in(examples: Sequence[torch.Tensor], free: Sequence[Collection[int]]) -> Callable[..., bool]:
    """The same, but for sizes along ``free`` dimensions: such a tensor lies dense in the same order of its
    dimensions as its example."""
    sizes: list[_Dims] = [
        [None if d in dims else n for d, n in enumerate(t.size())] for t, dims in zip(examples, free, strict=True)
    ]
    strides: list[_Dims] = [
        [None] * t.dim() if dims else list(t.stride()) for t, dims in zip(examples, free, strict=True)
    ]
    check = looks_like(examples, sizes, strides)
    if not any(free):
        return check
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


def _empty_cpu() -> Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]:
    """``empty_cpu(shape, strides, dtype)``: uninitialised memory, in half the time ``torch.empty_strided`` takes to
    read its arguments."""
    fast = getattr(torch._C._dynamo.guards, "_empty_strided_cpu", None)  # seen in 2.11, 2.13
    return fast if fast is not None else lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype)


empty_cpu = _empty_cpu()


def _over() -> Callable[..., torch.Tensor]:
    """``over(tensor, shape, strides, at=0)``: another tensor in the memory of one, ``at`` elements on; no view, to
    autograd."""

    def over(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int], at: int = 0) -> torch.Tensor:
        with below_autograd():
            return tensor.as_strided(shape, strides, tensor.storage_offset() + at)

    return getattr(torch._C._dynamo.guards, "_reinterpret_tensor", over)  # seen in 2.11, 2.13


over = _over()


def holders(tensor: torch.Tensor) -> tuple[int | bool, ...]:
    """By how many, in Python and in C++, a tensor and its memory are held, and whether that is memory of PyTorch's
    own."""
    storage = tensor.untyped_storage()
    uses = torch._C._storage_Use_Count(storage._cdata)
    return sys.getrefcount(tensor), tensor._use_count(), sys.getrefcount(storage), uses, storage.resizable()  # type: ignore[attr-defined]


def is_held_once(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all that looks at its memory, which is PyTorch's own, and all of which it looks at: no view,
    no graph of autograd, no array does. Variables that hold the tensor itself do not count."""
    _, uses, _, of_storage, is_own = holders(tensor)
    return (uses, of_storage, is_own) == _HELD_ONCE and tensor.untyped_storage().nbytes() == tensor.nbytes


def alone() -> tuple[int | bool, ...]:
    """``holders`` of a tensor that only one variable knows, now: after torch.compile, calls hold their arguments
    once more."""
    (tensor,) = [torch.empty(1)]
    return holders(tensor)


ALONE = alone()
_HELD_ONCE = ALONE[1], ALONE[3], True
"""``holders`` of a tensor that only one variable knows."""


def host_allocations(call: Callable[[], Any]) -> list[int]:
    """Run a call, and give the bytes of each allocation of host memory in it, in order; what is freed is negative, the
    result among it.

    The profiler behind ``torch.profiler`` counts the same, but kineto, which it starts, prints a line of its own to
    stderr each time (from 2.13 on). This one has been there since before kineto, and starts a hundred times faster.
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
