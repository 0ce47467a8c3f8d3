"""Bytes at the worst moment: simulated, by schedules and what library calls take besides their results, and
measured."""

from __future__ import annotations

import contextlib
import gc
import itertools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from ..generators import own_draws
from ..graphs import bodies_of, is_view, memory_of, value_of
from ..memory.liveness import alive_in
from ..memory.schedule import Schedule
from ..symbolic.sizes import hint
from ..torch_private.operators import draws_random, is_operator
from ..torch_private.tensors import host_allocations
from ..trees import flatten, unflatten
from .aten import AtenBackend


def predicted_peak(schedules: Sequence[Schedule]) -> int:
    """The most bytes alive at a time, by the schedules: forward, then backward, which frees what forward left as it
    goes on."""
    return alive_in(schedules, _workspace).peak


_ATEN = AtenBackend()
_WITH_PIVOTS = re.compile("linalg|lu_")
"""Operators whose integers count from one; those of others may be indices, for which zero is one of whatever size."""


def _workspace(node: fx.Node) -> int:
    """Bytes that a call of PyTorch's library allocates while it runs, besides its result: measured once for all
    calls of its kind, on made-up numbers, however small (a convolution's blocks have the processor's sizes).
    Operators that are not PyTorch's own are not run for this: they may do more than compute."""
    bodies = bodies_of(node)
    if bodies:  # of a loop one step at a time; fused, a body takes no more than as ATen's calls
        return max(predicted_peak([_ATEN.schedule(_ATEN.lower(body))]) for body in bodies)
    op: Any = node.target
    if not is_operator(op) or op.namespace != "aten" or value_of(node) is None or is_view(node):  # None: a check
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    leaves, structure, _ = flatten((args, kwargs))
    leaves = [_outline(v) for v in leaves]
    name = f"{op} {leaves} {torch.get_num_threads()}"
    if name not in _workspaces:
        pivots = _WITH_PIVOTS.search(str(op)) is not None
        made_up = [v.filled(pivots) if isinstance(v, _Outline) else v for v in leaves]
        args, kwargs = unflatten(made_up, structure)
        try:
            with own_draws() if draws_random(op) else contextlib.nullcontext(), torch.no_grad():
                peak = _allocated(lambda: op(*args, **kwargs))
        except Exception:  # it refuses the numbers: what it takes is not known
            peak = 0
        _workspaces[name] = max(0, peak - sum(memory_of(value_of(node)).values()))
    return _workspaces[name]


class _Outline(NamedTuple):
    """What a tensor looks like, with the sizes of the call that is compiled."""

    shape: Sequence[int]
    strides: Sequence[int]
    dtype: torch.dtype
    device: torch.device
    conjugated: bool

    def filled(self, pivots: bool) -> Tensor:
        """A tensor like it, of zeros; of ones where it is a mask, as the more is chosen the more it takes, or holds
        pivots."""
        number = int(self.dtype == torch.bool or (pivots and not self.dtype.is_floating_point))
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if all(self.shape) else 0
        value = torch.full((extent,), number, dtype=self.dtype, device=self.device).as_strided(self.shape, self.strides)
        return value.conj() if self.conjugated else value


def _outline(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Outline(
            tuple(map(hint, value.shape)), tuple(map(hint, value.stride())), value.dtype, value.device, value.is_conj()
        )
    return hint(value) if isinstance(value, torch.SymInt) else value


_workspaces: dict[str, int] = {}
_one_profile = threading.Lock()
"""Of two profiles at a time, one has no events."""


def peak_bytes(call: Callable[[], Any]) -> int:
    """Bytes that PyTorch allocated at the worst moment of one call, above what was there before it, its result
    included."""
    gc.collect()
    return _allocated(call)


def _allocated(call: Callable[[], Any]) -> int:
    """As ``peak_bytes``, where nothing that waits for the garbage collector is in the way."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    with _one_profile:
        allocated = host_allocations(call)
    on_gpu = torch.cuda.max_memory_allocated() - before if torch.cuda.is_available() else 0
    peak = max(itertools.accumulate(allocated), default=0)
    return max(0, peak, on_gpu)
