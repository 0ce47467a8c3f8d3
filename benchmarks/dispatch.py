"""What a call costs besides its kernel: a function of 1, 10 and 100 small leaves, beside autograd, torch.func and torch.compile."""

from __future__ import annotations

import torch
from rich.table import Table
from torch import Tensor

import funcgrad as fg

from .measure import interleaved_medians


def loss(p: dict[str, Tensor]) -> Tensor:
    """Sum of squares of all leaves."""
    return torch.stack([(v * v).sum() for v in p.values()]).sum()


def table() -> Table:
    """One row per number of leaves: µs of a call, and of the overhead of funcgrad's (the call less its kernel alone)."""
    rows = Table(title="Dispatch: value and gradient of a sum of squares, µs a call (median)")
    for column in ("leaves", "funcgrad", "its kernel alone", "overhead", "torch.compile", "torch.func", "autograd"):
        rows.add_column(column, justify="right")
    for leaves in (1, 10, 100):
        p = {f"w{i}": torch.randn(16) for i in range(leaves)}
        variables = {k: v.clone().requires_grad_() for k, v in p.items()}
        compiled = fg.value_and_grad_compiled(loss)
        program = compiled.program(p)
        kernel, values = program.call.names["kernel"], list(p.values())
        functional = torch.func.grad_and_value(loss)
        inductor = torch.compile(functional)
        torch.testing.assert_close(compiled(p)[1], functional(p)[0])
        torch.testing.assert_close(inductor(p)[0], functional(p)[0])
        median = interleaved_medians(
            {
                "funcgrad": lambda c=compiled, p=p: c(p),
                "kernel": lambda k=kernel, v=values: k(*v),
                "torch.compile": lambda c=inductor, p=p: c(p),
                "torch.func": lambda f=functional, p=p: f(p),
                "autograd": lambda v=variables: torch.autograd.grad(loss(v), list(v.values())),
            },
            rounds=40,
            calls=max(2, 200 // leaves),
        )
        us = {name: seconds * 1e6 for name, seconds in median.items()}
        overhead = us["funcgrad"] - us["kernel"]
        cells = (us["funcgrad"], us["kernel"], overhead, us["torch.compile"], us["torch.func"], us["autograd"])
        rows.add_row(str(leaves), *(f"{c:.1f}" for c in cells))
    return rows
