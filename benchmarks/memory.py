"""Peak memory and time of the demo's gradient (a character-level transformer), beside autograd and torch.func; peaks
of all workloads."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from rich.table import Table

import funcgrad as fg
from funcgrad.trees import flatten

from .contestants import eager, funcgrad_function
from .measure import interleaved_medians
from .peaks import peak_bytes
from .steady import ALL

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
import char_transformer as demo


def table() -> Table:
    """One row per contestant: peak bytes above the inputs, and milliseconds."""
    params = demo.make_params()
    tokens = torch.randint(demo.VOCABULARY, (demo.BATCH, demo.CONTEXT))
    targets = tokens.roll(-1, 1)
    variables = fg.tree_map(lambda t: t.clone().requires_grad_(), params)
    leaves = flatten(variables)[0]
    compiled = fg.value_and_grad_compiled(demo.loss)
    functional = torch.func.grad_and_value(demo.loss)

    def autograd() -> object:
        value = demo.loss(variables, tokens, targets)
        return value.detach(), torch.autograd.grad(value, leaves)

    contestants = {
        "funcgrad": lambda: compiled(params, tokens, targets),
        "torch.autograd.grad": autograd,
        "torch.func": lambda: functional(params, tokens, targets),
    }
    peaks = {name: peak_bytes(call) for name, call in contestants.items()}
    medians = interleaved_medians(contestants, rounds=15)
    saved = compiled.program(params, tokens, targets).partition.saved_bytes
    rows = Table(title=f"Gradient of the demo's loss (min-cut saves {saved / 2**20:.2f} MiB)")
    for column in ("", "peak MiB", "÷ autograd", "ms", "÷ autograd"):
        rows.add_column(column, justify="right")
    for name in contestants:
        peak, seconds = peaks[name], medians[name]
        relative = (peak / peaks["torch.autograd.grad"], seconds / medians["torch.autograd.grad"])
        rows.add_row(name, f"{peak / 2**20:.3f}", f"{relative[0]:.4f}", f"{seconds * 1e3:.2f}", f"{relative[1]:.3f}")
    return rows


def workloads_table() -> Table:
    """The peak of each workload's value and gradient, with no budget, above its inputs; results count."""
    rows = Table(title="Peak memory of value and gradient, no budget")
    for column in ("", "funcgrad, MiB", "autograd, MiB", "÷ autograd"):
        rows.add_column(column, justify="right")
    for workload in ALL:
        if workload.transform == "value_and_grad":
            inputs = workload.inputs(False)
            compiled = funcgrad_function(workload)
            own, autograd = peak_bytes(lambda c=compiled, i=inputs: c(*i)), peak_bytes(eager(workload, inputs))  # type: ignore[misc]
            rows.add_row(workload.name, f"{own / 2**20:.3f}", f"{autograd / 2**20:.3f}", f"{own / autograd:.3f}")
    return rows
