"""Launches as a Python module: the Triton kernels they start, each once, and a function for each launch that takes
its buffers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..loops.ir import Kernel
from ..machine import Machine
from ..memory.steps import Launch
from .triton import Printed, print_kernel

_HEAD = """import torch
import triton
import triton.language as tl

from funcgrad.backends.triton_functions import *
"""

_EXACT = "enable_fp_fusion=False"
"""No multiplication is contracted with an addition: a value that two kernels compute is the same in both."""


def print_file(launches: Sequence[Launch], machine: Machine) -> str:
    """The text of the module."""
    kernels: dict[str, str] = {}
    functions: list[str] = []
    for launch in launches:
        names = {b.name: f"a{i}" for i, b in enumerate(launch.arguments)}
        arena = launch.arena
        lines = [f"def {launch.name}({', '.join([*names.values(), *(['arena'] if launch.room else [])])}):"]
        for i, b in enumerate(b for b in launch.scratch if b.name in arena.offsets):
            begin = arena.offsets[b.name]
            end = begin + math.prod(b.shape) * b.dtype.itemsize
            names[b.name] = f"t{i}"
            lines.append(f"    t{i} = arena[{begin}:{end}].view({b.dtype})")
        names |= {written: names[origin] for written, origin in launch.origins.items()}
        for kernel in launch.kernels:
            printed = print_kernel(kernel, machine)
            kernels[printed.name] = printed.text
            lines += [f"    {line}" for line in _calls(kernel, printed, names)]
        if launch.checks:
            found = [names[check.buffer.name] for check in launch.checks]
            lines.append(f"    if not bool({' | '.join(found)}): return 0")
            lines.append(f"    return 1 + [{', '.join(f'bool({name})' for name in found)}].index(True)")
        functions += ["", "", *lines]
    return "\n".join([_HEAD, *(f"\n{text}\n" for text in kernels.values()), *functions[1:]]) + "\n"


def _calls(kernel: Kernel, printed: Printed, names: Mapping[str, str]) -> list[str]:
    partials = [f"s{i}" for i in range(len(printed.partials))]
    lines = [
        f"{name} = torch.empty(({p.programs}, {p.size}), dtype={p.dtype}, device=a0.device)"
        for name, p in zip(partials, printed.partials, strict=True)
    ]
    takes = ", ".join([*(names[b.name] for b in kernel.parameters), *partials])
    lines.append(f"{printed.name}[{printed.grid}]({takes}, num_warps={printed.warps}, {_EXACT})  # {kernel.name}")
    for i, (name, p) in enumerate(zip(partials, printed.partials, strict=True)):
        lines.append(f"{printed.name}_total{i}[({p.blocks},)]({name}, {names[p.buffer]}, num_warps=4, {_EXACT})")
    return lines
