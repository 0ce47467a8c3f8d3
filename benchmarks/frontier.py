"""Memory against time of a training step's gradient under budgets: ``torch.compile`` with ``activation_memory_budget``,
and funcgrad given, as ``memory_budget``, the peak that torch.compile was measured to take. ``python -m benchmarks
frontier``.

A budget is won where funcgrad's step, within that peak, takes no longer. Times are medians of calls in turns, peaks are
what PyTorch allocates above what is there before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._functorch.config as functorch_config
import torch.nn.functional as F  # noqa: N812
from attrs import frozen
from rich.console import Console
from rich.table import Table
from torch import Tensor

import funcgrad as fg

from .measure import interleaved_medians
from .peaks import peak_bytes

BUDGETS = tuple(k / 10 for k in range(1, 11))


# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────


def perceptron(ws: list[Tensor], x: Tensor) -> Tensor:
    for w in ws:
        x = F.gelu(x @ w)
    return x.square().mean()


def residual(ws: list[Tensor], x: Tensor) -> Tensor:
    for w in ws:
        x = x + F.layer_norm(x, x.shape[-1:]).tanh() @ w
    return x.square().mean()


def transformer(ws: list[Tensor], x: Tensor) -> Tensor:
    batch, length, width = x.shape
    for qkv, out, up, down in zip(*[iter(ws)] * 4, strict=True):
        q, k, v = (
            (F.layer_norm(x, (width,)) @ qkv).view(batch, length, 3, 4, width // 4).permute(2, 0, 3, 1, 4).unbind(0)
        )
        mixed = (q @ k.transpose(-1, -2) / (width // 4) ** 0.5).softmax(-1) @ v
        x = x + mixed.transpose(1, 2).reshape(batch, length, width) @ out
        x = x + F.gelu(F.layer_norm(x, (width,)) @ up) @ down
    return x.square().mean()


def convolutions(ws: list[Tensor], x: Tensor) -> Tensor:
    for w in ws:
        x = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True)) + x
    return x.square().mean()


def mixer(ws: list[Tensor], x: Tensor) -> Tensor:
    for tokens, channels in zip(*[iter(ws)] * 2, strict=True):
        x = x + (F.silu(F.layer_norm(x, x.shape[-1:])).transpose(-1, -2) @ tokens).transpose(-1, -2)
        x = x + F.silu(F.layer_norm(x, x.shape[-1:])) @ channels
    return x.square().mean()


def _weights(*shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(s) * 0.7 / s[0] ** 0.5 if len(s) == 2 else torch.randn(s) * 0.1 for s in shapes]


MODELS: dict[str, tuple[Callable[..., Tensor], Callable[[], tuple[list[Tensor], Tensor]]]] = {
    "perceptron": (perceptron, lambda: (_weights(*[(256, 256)] * 12), torch.randn(1024, 256))),
    "residual": (residual, lambda: (_weights(*[(256, 256)] * 12), torch.randn(1024, 256))),
    "transformer": (
        transformer,
        lambda: (_weights(*[(128, 384), (128, 128), (128, 512), (512, 128)] * 4), torch.randn(8, 64, 128)),
    ),
    "convolutions": (convolutions, lambda: (_weights(*[(16, 16, 3, 3)] * 6), torch.randn(8, 16, 32, 32))),
    "mixer": (mixer, lambda: (_weights(*[(64, 64), (128, 128)] * 8), torch.randn(16, 64, 128))),
}


# ── measure ──────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Spot:
    """One budget of one model: seconds and bytes of both; ``why`` where funcgrad could not keep the peak."""

    model: str
    compiler: str
    budget: float
    torch_bytes: int
    torch_seconds: float
    bytes: int = 0
    seconds: float = 0.0
    why: str = ""

    @property
    def is_won(self) -> bool:
        return not self.why and self.seconds <= self.torch_seconds and self.bytes <= self.torch_bytes * 1.02


def measure(compiler: str, only: Sequence[str], console: Console, budgets: Sequence[float] = BUDGETS) -> list[Spot]:
    """``compiler``: a backend of torch.compile; funcgrad's beside it is the one of the same kind. Models with one of
    ``only`` in their names."""
    own = {"aot_eager": "aten", "inductor": "auto"}[compiler]
    spots: list[Spot] = []
    for name, (f, make) in MODELS.items():
        if not any(part in name for part in only):
            continue
        torch.manual_seed(0)
        ws, x = make()
        ws = [w.requires_grad_() for w in ws]
        for budget in budgets:
            spots.append(_spot(name, f, ws, x, compiler, own, budget))
            console.print(_row(spots[-1]))
    return spots


def _spot(
    name: str, f: Callable[..., Tensor], ws: list[Tensor], x: Tensor, compiler: str, own: str, budget: float
) -> Spot:
    torch.compiler.reset()
    theirs = torch.compile(f, backend=compiler)

    def step(g: Callable[..., Tensor]) -> Callable[[], Any]:
        return lambda: torch.autograd.grad(g(ws, x), ws)

    with functorch_config.patch(activation_memory_budget=budget):
        step(theirs)()
    peak = peak_bytes(step(theirs))
    try:
        ours = fg.jit(f, backend=own, memory_budget=peak)
        step(ours)()
    except fg.PartitionError as error:
        return Spot(
            name,
            compiler,
            budget,
            peak,
            interleaved_medians({"theirs": step(theirs)}, rounds=7)["theirs"],
            why=error.what,
        )
    seconds = interleaved_medians({"theirs": step(theirs), "ours": step(ours)}, rounds=9)
    return Spot(name, compiler, budget, peak, seconds["theirs"], peak_bytes(step(ours)), seconds["ours"])


def _row(spot: Spot) -> str:
    theirs = f"{spot.torch_bytes / 2**20:8.2f} MiB {spot.torch_seconds * 1e3:8.1f} ms"
    ours = spot.why or f"{spot.bytes / 2**20:8.2f} MiB {spot.seconds * 1e3:8.1f} ms"
    return f"{spot.model:>14} {spot.compiler:>10} {spot.budget:.1f}   {theirs}   funcgrad {ours}   {'won' if spot.is_won else 'lost'}"


def table(spots: Sequence[Spot]) -> Table:
    """A row for each model: of how many budgets funcgrad keeps the peak in no more time, and by what factor."""
    rows = Table(title="Gradients under memory budgets: torch.compile ÷ funcgrad, at torch.compile's peak")
    for column in ("", "beside", "won", "time, lowest", "time, median", "peak, median"):
        rows.add_column(column, justify="right")
    for key in dict.fromkeys((s.model, s.compiler) for s in spots):
        own = [s for s in spots if (s.model, s.compiler) == key]
        kept = [s for s in own if not s.why]
        times = sorted(s.torch_seconds / s.seconds for s in kept) or [0.0]
        peaks = sorted(s.torch_bytes / s.bytes for s in kept) or [0.0]
        won = f"{sum(s.is_won for s in own)} of {len(own)}"
        rows.add_row(*key, won, f"{times[0]:.2f}", f"{times[len(times) // 2]:.2f}", f"{peaks[len(peaks) // 2]:.2f}")
    return rows
