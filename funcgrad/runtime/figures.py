"""What a program takes: bytes at the worst moment (simulated and measured), operations, bytes moved, and the time they need at least."""

from __future__ import annotations

import functools
import gc
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor, fx
from torch.profiler import ProfilerActivity, profile

from ..backends.backend import Call, Launch, Schedule, alive_in, size_of
from ..capture.origins import GradientOf
from ..graphs import is_view, memory_of, value_of
from ..loops.lower import lower
from ..partition.cost import bytes_moved, flops
from ..show import Doc, Shown, Table, in_bytes, in_operations, in_seconds
from ..sizes import hint
from ..torch_private import is_operator
from ..trees import flatten, unflatten
from .program import Program


@frozen(repr=False)
class MemoryUse(Shown):
    """Bytes above what is there before the call: ``saved_bytes`` are alive between forward and backward, ``predicted_peak`` and
    ``measured_peak`` at the worst moment of both, results included."""

    function: str
    saved_bytes: int
    predicted_peak: int
    measured_peak: int

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


_WITH_WORKSPACE = re.compile("conv|attention|cholesky|linalg|solve|sort|topk|fft|lstm|gru")


def _workspace(node: fx.Node) -> int:
    """Bytes that an operator of PyTorch allocates while it runs, besides its result: measured once, on zeros, and on
    integers that are one: as pivots of a factorisation they must be, and they are no indices in these operators."""
    if not is_operator(node.target) or not _WITH_WORKSPACE.search(str(node.target)) or value_of(node) is None:  # a check
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    leaves, structure, _ = flatten((args, kwargs))
    leaves = [_outline(v) for v in leaves]
    kinds = [f"{v[0]} {v[1]} {v[2]} {v[3]}" if isinstance(v, tuple) else repr(v) for v in leaves]
    name = f"{node.target} {' '.join(kinds)}"
    if name not in _workspaces:
        examples = [_example(*v) if isinstance(v, tuple) else v for v in leaves]
        args, kwargs = unflatten(examples, structure)
        results: list[Any] = []
        with torch.random.fork_rng(), torch.no_grad():
            peak = peak_bytes(lambda: results.append(node.target(*args, **kwargs)))  # type: ignore[operator]
        _workspaces[name] = max(0, peak - sum(memory_of(results[-1]).values()))
    return _workspaces[name]


def _example(shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device) -> Tensor:
    value = torch.empty_strided(shape, strides, dtype=dtype, device=device)
    return value.zero_() if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool else value.fill_(1)


def _outline(value: Any) -> Any:
    """What a tensor looks like, with the sizes of the call that is compiled."""
    if isinstance(value, Tensor):
        return tuple(map(hint, value.shape)), tuple(map(hint, value.stride())), value.dtype, value.device
    return hint(value) if isinstance(value, torch.SymInt) else value


_workspaces: dict[str, int] = {}


def peak_bytes(call: Callable[[], Any]) -> int:
    """Bytes that PyTorch allocated at the worst moment of one call, above what was there before it, its result included."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if torch.cuda.is_available() else 0
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = call()
    del result
    on_gpu = torch.cuda.max_memory_allocated() - before if torch.cuda.is_available() else 0
    events = [e for e in recorded.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    current = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        current += event.nbytes()
        peak = max(peak, current)
    return max(peak, on_gpu)


def measured_peak(program: Program, inputs: Sequence[Any], call: Callable[[], Any]) -> int:
    """Run a call and, where the program has a backward half, its backward pass with respect to ``inputs`` and what is captured."""
    wrt = [
        t
        for t in (*inputs, *(c.read({}) for c in program.facts.captured if not isinstance(c.origin, GradientOf)))
        if isinstance(t, Tensor) and t.requires_grad
    ]

    def both() -> Any:
        result = call()
        roots = [t for t in flatten(result)[0] if isinstance(t, Tensor) and t.requires_grad]
        if len(program.schedule) == 1 or not roots:
            return result
        return result, torch.autograd.grad(roots, wrt, [torch.ones_like(t) for t in roots], allow_unused=True)

    return peak_bytes(both)


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
