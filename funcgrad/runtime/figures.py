"""What a program takes: bytes at the worst moment (simulated and measured), operations, bytes moved, and the time they need at least."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from attrs import frozen
from torch import Tensor, fx

from ..backends.aten import AtenBackend
from ..backends.backend import Call, Launch, Schedule, alive_in, size_of
from ..capture.inputs import Inputs
from ..generators import own_draws
from ..graphs import bodies_of, is_random, is_view, memory_of, value_of
from ..histories import bump_version
from ..layers.stack import inner_signature, inner_values
from ..loops.lower import lower
from ..partition.cost import bytes_moved, flops
from ..show import Doc, Shown, Table, in_bytes, in_operations, in_seconds
from ..sizes import hint
from ..slots import Final, Signature
from ..subclasses import Wrapping, inner_tensors
from ..torch_private import draws_random, host_allocations, is_operator
from ..trees import flatten, unflatten
from .execute import Differentiable
from .program import Program


@frozen(repr=False)
class MemoryUse(Shown):
    """Bytes above what is there before the call: ``saved_bytes`` are alive between forward and backward, ``predicted_peak`` and
    ``measured_peak`` at the worst moment of both, results included."""

    function: str
    saved_bytes: int
    predicted_peak: int
    measured_peak: int

    def headline(self) -> str:
        peak, measured = in_bytes(self.predicted_peak), in_bytes(self.measured_peak)
        return f"memory of {self.function}: {in_bytes(self.saved_bytes)} saved, peak {peak}, measured {measured}"

    def doc(self) -> Doc:
        rows = (
            ("saved for backward", in_bytes(self.saved_bytes)),
            ("peak, predicted", in_bytes(self.predicted_peak)),
            ("peak, measured", in_bytes(self.measured_peak)),
        )
        return Doc(f"memory of {self.function}", (Table(("", ""), rows),))


@frozen(repr=False)
class Cost(Shown):
    """``flops``: floating-point operations; ``bytes_moved``: what each kernel and library call reads and writes, each tensor once;
    ``roofline_seconds``: the time that takes on this machine if every step runs at the speed of the multiplier or of memory."""

    function: str
    flops: float
    bytes_moved: int
    roofline_seconds: float

    def headline(self) -> str:
        figures = in_operations(self.flops), in_bytes(self.bytes_moved), f"at least {in_seconds(self.roofline_seconds)}"
        return f"cost of {self.function}: {', '.join(figures)}"

    def doc(self) -> Doc:
        rows = (
            ("operations", in_operations(self.flops)),
            ("bytes moved", in_bytes(self.bytes_moved)),
            ("at least", in_seconds(self.roofline_seconds)),
        )
        return Doc(f"cost of {self.function}", (Table(("", ""), rows),))


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


def predicted_peak(schedules: Sequence[Schedule]) -> int:
    """The most bytes alive at a time, by the schedules: forward, then backward, which frees what forward left as it goes on."""
    return alive_in(schedules, _workspace).peak


_ATEN = AtenBackend()
_WITH_PIVOTS = re.compile("linalg|lu_")
"""Operators whose integers count from one; those of others may be indices, for which zero is one of whatever size."""


def _workspace(node: fx.Node) -> int:
    """Bytes that a call of PyTorch's library allocates while it runs, besides its result: measured once for all calls of its kind, on
    made-up numbers, however small (a convolution's blocks have the processor's sizes). Operators that are not PyTorch's own are not
    run for this: they may do more than compute."""
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
        """A tensor like it, of zeros; of ones where it is a mask, as the more is chosen the more it takes, or holds pivots."""
        number = int(self.dtype == torch.bool or (pivots and not self.dtype.is_floating_point))
        extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) if all(self.shape) else 0
        value = torch.full((extent,), number, dtype=self.dtype, device=self.device).as_strided(self.shape, self.strides)
        return value.conj() if self.conjugated else value


def _outline(value: Any) -> Any:
    if isinstance(value, Tensor):
        return _Outline(tuple(map(hint, value.shape)), tuple(map(hint, value.stride())), value.dtype, value.device, value.is_conj())
    return hint(value) if isinstance(value, torch.SymInt) else value


_workspaces: dict[str, int] = {}
_one_profile = threading.Lock()
"""Of two profiles at a time, one has no events."""


def peak_bytes(call: Callable[[], Any]) -> int:
    """Bytes that PyTorch allocated at the worst moment of one call, above what was there before it, its result included."""
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


def measured_peak(program: Program, outer: Signature, inputs: Inputs) -> int:
    """Run the kernel of a program, and its backward half if it has one, on copies of what a call with these inputs gives it: nothing of the
    caller's is written to, and the generators are not drawn from."""
    around = tuple(layer for layer in program.layers if not layer.context)
    signature, kernel = inner_signature(outer, around), program.call.names["kernel"]
    moves = kernel.watched_inputs if isinstance(kernel, Differentiable) else ()
    for layer in reversed(program.layers):
        if layer.context:
            kernel = layer(kernel)
    values = [_copy(v) for v in inner_values(outer, around, inputs, program.facts)]
    wrt = [v for v in values if isinstance(v, Tensor) and v.requires_grad]

    def both() -> Any:
        result = [v for slot, v in zip(signature.outs, kernel(*values), strict=True) if not isinstance(slot, Final)]
        for i, times in moves:  # what else is returned would be written back
            for _ in range(times):
                bump_version(values[i])
        roots = [t for t in result if isinstance(t, Tensor) and t.requires_grad]
        if len(program.schedule) == 1 or not roots:
            return result
        return result, torch.autograd.grad(roots, wrt, [torch.ones_like(t) for t in roots], allow_unused=True)

    draws = any(is_random(node) for node in program.joint.graph.fx.nodes)
    with own_draws() if draws else contextlib.nullcontext():
        return peak_bytes(both)


def _copy(value: Any) -> Any:
    """A leaf with the numbers of a tensor, in memory of its own, where they lie as they do there."""
    if not isinstance(value, Tensor):
        return value
    with torch.no_grad():
        wrapping = Wrapping.of(value)
        if wrapping is not None:
            made = wrapping.build(map(_copy, inner_tensors(value)))
        elif value.is_conj() or value.is_neg() or not value.numel():
            made = value.clone()
        else:
            extent = 1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))
            made = value.as_strided((extent,), (1,)).clone().as_strided(value.shape, value.stride())
    return made.detach().requires_grad_(value.requires_grad)


# ── operations and bytes ─────────────────────────────────────────────────────────────────────────────────────────


def cost_of(program: Program) -> Cost:
    """What the steps of a program's schedules do. What a kernel computes again for each reader is counted once."""
    total, moved, seconds = 0.0, 0, 0.0
    for schedule in program.schedule:
        lowering = lower(schedule.graph)
        operations = {n.name: flops(n, lowering) for n in schedule.graph.fx.nodes}
        total += sum(operations.values())
        for step in schedule.steps:
            if isinstance(step, Launch):
                own = sum(operations.get(name, 0) for kernel in step.kernels for name in kernel.computes)
                bytes_there = sum(map(size_of, step.buffers))
            elif isinstance(step, Call) and not is_view(step.node):
                own = operations[step.node.name]
                bytes_there = bytes_moved(step.node)
            else:
                continue
            moved += bytes_there
            seconds += max(own / _speeds()[0], bytes_there / _speeds()[1])
    return Cost(program.name, total, moved, seconds)


@functools.cache
def _speeds() -> tuple[float, float]:
    """Operations and bytes a second that this machine reaches: a matrix product in the default dtype, and a copy in memory."""
    a, b, c = torch.ones(512, 512), torch.ones(2**24), torch.ones(2**24)
    product = min(_seconds(lambda: a @ a) for _ in range(5))
    copy = min(_seconds(lambda: c.copy_(b)) for _ in range(5))
    return 2 * 512**3 / product, 2 * b.numel() * b.element_size() / copy


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
