"""Storages of traced tensors: which memory a tensor lies in is known while it is traced, what is in it, and where it
is, are not."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import refusals
from ..errors import DataDependentControlFlowError, FuncgradError
from ..state.lines import user_line
from ..torch_private.tensors import storage_identity

_SIZES = frozenset({"nbytes", "size", "__len__"})
_KNOWN = frozenset({"_cdata", "device", "is_cuda", "is_cpu", "is_sparse"})


class TracedStorage:
    """What ``x.untyped_storage()`` and ``x.storage()`` are in a traced function: an identity and a device; all else
    raises by name.

    The storage below is none that Python can use: to resize it ends the process.
    """

    __slots__ = ("__weakref__", "_identity", "_is_input", "_storage", "_unit")

    def __init__(self, storage: Any, is_input: bool, unit: int, identity: int) -> None:
        """``unit``: of how many bytes its size is told; ``is_input``: no program knows how much memory lies around
        an input."""
        self._storage, self._is_input, self._unit, self._identity = storage, is_input, unit, identity

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TracedStorage) and self._identity == other._identity

    def __hash__(self) -> int:
        return self._identity

    def __len__(self) -> int:
        if self._is_input:
            raise _refused("nbytes()")
        return int(self._storage.nbytes()) // self._unit

    size = __len__

    def nbytes(self) -> int:
        return len(self) * self._unit

    def __getitem__(self, index: Any) -> Any:
        raise _refused("[…]")

    def __setitem__(self, index: Any, value: Any) -> None:
        raise _refused("[…] =")

    def __iter__(self) -> Any:
        raise _refused("iteration")

    def __getattr__(self, name: str) -> Any:
        if name in _KNOWN:
            return getattr(self._storage, name)
        if name.startswith("__") or not (hasattr(torch.UntypedStorage, name) or hasattr(torch.TypedStorage, name)):
            raise AttributeError(f"a storage has no attribute {name!r}")
        raise _refused(f"{name}()")


def _refused(what: str) -> FuncgradError:
    if what.endswith(("_()", "=")):
        return refusals.STORAGE_CHANGED(what, where=user_line())
    if what == "nbytes()":
        return refusals.STORAGE_SIZE(where=user_line())
    return _unknown(f"the storage of a tensor ({what})")


def _unknown(what: str) -> DataDependentControlFlowError:
    return refusals.ASKED_FOR_MEMORY(what, where=user_line())


def require_memory_in_place(func: Any) -> None:
    """Raise for a method that hands the memory of a tensor on, or moves it, by name."""
    if func is Tensor.__dlpack__:
        raise _unknown("the memory of a tensor (DLPack)")
    if func is Tensor.share_memory_ or func is Tensor.pin_memory:
        raise refusals.MEMORY_MOVED(func.__name__, where=user_line())


_MORE_THAN_DATA = {
    "inductor::resize_storage_bytes_": "resizes the storage of a tensor",
    "inductor::accumulate_grad_": "sets the gradient of a tensor",
    "fsdp::set_": "gives a tensor other memory",
}
"""Operators of torch's own libraries that change of a tensor what no schema speaks of, and what that is."""


def require_data_alone(op: Any) -> None:
    """Raise for an operator that changes more of a tensor than its elements."""
    name = op.name()
    if name in _MORE_THAN_DATA:
        raise refusals.MORE_THAN_DATA(name, _MORE_THAN_DATA[name], where=user_line())


STORAGES = {Tensor.untyped_storage, Tensor.storage}
"""Methods that return the storage of a tensor."""


def storage_of(func: Any, tensor: Tensor, is_input: bool, identity: int | None) -> TracedStorage:
    """What a method of ``STORAGES`` returns for a traced tensor. ``identity``: where it is another than that of its
    storage in the trace."""
    storage, unit = tensor.untyped_storage(), tensor.element_size() if func is Tensor.storage else 1
    return TracedStorage(storage, is_input, unit, storage_identity(storage) if identity is None else identity)
