"""What a program takes: bytes at the worst moment (simulated and measured), operations, bytes moved, and the time
they need at least."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..autograd_state import bump_version
from ..backends.peak import peak_bytes
from ..capture.inputs import Inputs
from ..generators import own_draws
from ..graphs import is_random, is_view
from ..layers.layer import statements_of
from ..layers.stack import inner_signature, inner_values
from ..layers.statements import KERNEL
from ..loops.lower import lower
from ..machine import CPU, Machine
from ..memory.steps import Call, Launch, size_of
from ..partition.cost import bytes_moved, flops
from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..show.units import in_bytes, in_operations, in_seconds
from ..slots import Final, Signature
from ..subclasses import Wrapping, inner_tensors
from .execute import Differentiable
from .program import Program


@frozen(repr=False)
class MemoryUse(Shown):
    """Bytes above what is there before the call: ``saved_bytes`` are alive between forward and backward,
    ``predicted_peak`` and ``measured_peak`` at the worst moment of both, results included."""

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
    """``flops``: floating-point operations; ``bytes_moved``: what each kernel and library call reads and writes,
    each tensor once; ``roofline_seconds``: the time that takes on the program's device if every step runs at
    the speed of the multiplier or of memory."""

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


def measured_peak(program: Program, outer: Signature, inputs: Inputs) -> int:
    """Run the kernel of a program, and its backward half if it has one, on copies of what a call with these inputs
    gives it: nothing of the caller's is written to, and the generators are not drawn from."""
    around = program.plain_layers
    signature, kernel = inner_signature(outer, around), program.call.names[KERNEL]
    moves = kernel.at.watched_inputs if isinstance(kernel, Differentiable) else ()
    for layer in reversed(program.layers):
        if layer.context:
            kernel = layer(kernel)
    values = [_copy(v) for v in inner_values(statements_of(around, outer), inputs, program.facts)]
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
        speeds = _speeds(lowering.machine)
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
            seconds += max(own / speeds[0], bytes_there / speeds[1])
    return Cost(program.name, total, moved, seconds)


@functools.cache
def _speeds(machine: Machine) -> tuple[float, float]:
    """Operations and bytes a second that this machine reaches: on a CPU a matrix product in the default dtype, and a
    copy in memory; of another device, what its figures are."""
    if machine is not CPU:
        return machine.products[torch.get_default_dtype()], machine.bandwidth
    a, b, c = torch.ones(512, 512), torch.ones(2**24), torch.ones(2**24)
    product = min(_seconds(lambda: a @ a) for _ in range(5))
    copy = min(_seconds(lambda: c.copy_(b)) for _ in range(5))
    return 2 * 512**3 / product, 2 * b.numel() * b.element_size() / copy


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
