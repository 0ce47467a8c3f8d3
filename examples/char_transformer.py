"""Train a small character transformer on the source of Python's standard library, with gradients from funcgrad.

    python examples/char_transformer.py

The model is one pure function ``loss(params, tokens, targets)`` of a pytree of parameters, and so is its optimizer.
After training, the gradient is timed beside eager autograd and ``torch.func``, in turns on the same batches, and the
first losses are compared with those of an eager training from the same seed, dropout included.
"""

from __future__ import annotations

import argparse
import functools
import math
import random
import statistics
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from matplotlib.figure import Figure
from rich.console import Console
from rich.live import Live
from rich.table import Table
from torch import Tensor

import funcgrad as fg

ALPHABET = "\n" + "".join(map(chr, range(32, 127)))
"""The characters with a token of their own; every other byte shares the last token."""
VOCABULARY = len(ALPHABET) + 1
LAYERS, WIDTH, HEADS, CONTEXT = 2, 128, 4, 128
BATCH = 16
DROPOUT = 0.1
PEAK_RATE, WARM_UP = 3e-3, 30
COMPARED, TOLERANCE = 20, 1e-4

Params = dict[str, Any]
Batch = tuple[Tensor, Tensor]
LossAndGradient = Callable[[Params, Tensor, Tensor], tuple[Tensor, Params]]


# ── the text ─────────────────────────────────────────────────────────────────────────────────────────────────────


def read_corpus() -> Tensor:
    """The modules of the standard library, in the order of their names, as one tensor of tokens."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    token = torch.full((256,), VOCABULARY - 1, dtype=torch.uint8)
    token[torch.tensor([ord(c) for c in ALPHABET])] = torch.arange(len(ALPHABET), dtype=torch.uint8)
    text = b"".join(file.read_bytes() for file in files)
    return token[torch.frombuffer(bytearray(text), dtype=torch.uint8).int()]


def batches(corpus: Tensor, seed: int, size: int = BATCH, context: int = CONTEXT) -> Iterator[Batch]:
    """Random pieces of the text, and the same pieces one character later, without end.

    The generator is their own, so that drawing a batch does not shift what dropout draws from the default one.
    """
    generator = torch.Generator().manual_seed(seed)
    reach = torch.arange(context + 1)
    while True:
        starts = torch.randint(len(corpus) - context, (size, 1), generator=generator)
        piece = corpus[starts + reach].long()
        yield piece[:, :-1].contiguous(), piece[:, 1:].contiguous()


# ── the model ────────────────────────────────────────────────────────────────────────────────────────────────────


def make_params(seed: int = 0, layers: int = LAYERS, width: int = WIDTH, context: int = CONTEXT) -> Params:
    """Fresh parameters: normal weights with deviation 0.02, zero biases, unit norms."""
    generator = torch.Generator().manual_seed(seed)

    def weight(*shape: int) -> Tensor:
        return 0.02 * torch.randn(shape, generator=generator)

    def linear(ins: int, outs: int) -> Params:
        return {"w": weight(outs, ins), "b": torch.zeros(outs)}

    def norm() -> Params:
        return {"w": torch.ones(width), "b": torch.zeros(width)}

    def block() -> Params:
        return {
            "norm_attention": norm(), "qkv": linear(width, 3 * width), "project": linear(width, width),
            "norm_mlp": norm(), "up": linear(width, 4 * width), "down": linear(4 * width, width),
        }  # fmt: skip

    return {
        "tokens": weight(VOCABULARY, width),
        "positions": weight(context, width),
        "blocks": [block() for _ in range(layers)],
        "norm": norm(),
        "head": linear(width, VOCABULARY),
    }


def loss(params: Params, tokens: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of the next character, with dropout as in training."""
    x = F.dropout(F.embedding(tokens, params["tokens"]) + params["positions"][: tokens.shape[1]], DROPOUT)
    for block in params["blocks"]:
        x = x + F.dropout(_attention(block, _norm(block["norm_attention"], x)), DROPOUT)
        x = x + F.dropout(_mlp(block, _norm(block["norm_mlp"], x)), DROPOUT)
    logits = _linear(params["head"], _norm(params["norm"], x))
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def _linear(p: Params, x: Tensor) -> Tensor:
    return F.linear(x, p["w"], p["b"])


def _norm(p: Params, x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], p["w"], p["b"])


def _attention(p: Params, x: Tensor) -> Tensor:
    q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in _linear(p["qkv"], x).chunk(3, dim=-1))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return _linear(p["project"], mixed.transpose(1, 2).flatten(2))


def _mlp(p: Params, x: Tensor) -> Tensor:
    return _linear(p["down"], F.gelu(_linear(p["up"], x)))


# ── the optimizer ────────────────────────────────────────────────────────────────────────────────────────────────


def adamw_state(params: Params) -> Params:
    """Zero first and second moments."""
    return {"mean": fg.tree_map(torch.zeros_like, params), "square": fg.tree_map(torch.zeros_like, params)}


def adamw(
    params: Params, grads: Params, state: Params, step: int, lr: float,
    betas: tuple[float, float] = (0.9, 0.99), eps: float = 1e-8, decay: float = 0.1,
) -> tuple[Params, Params]:  # fmt: skip
    """One AdamW step, counted from 1: new parameters and new state. Weights decay, biases and norms do not."""
    b1, b2 = betas
    mean = fg.tree_map(lambda m, g: torch.lerp(m, g, 1 - b1), state["mean"], grads)
    square = fg.tree_map(lambda s, g: torch.lerp(s, g * g, 1 - b2), state["square"], grads)

    def moved(p: Tensor, m: Tensor, s: Tensor) -> Tensor:
        shrunk = p * (1 - lr * decay) if p.ndim > 1 else p
        return shrunk - lr * (m / (1 - b1**step)) / ((s / (1 - b2**step)).sqrt() + eps)

    return fg.tree_map(moved, params, mean, square), {"mean": mean, "square": square}


def learning_rate(step: int, steps: int) -> float:
    """A linear warm-up, then half a cosine down to a tenth of the peak; ``step`` counts from 1."""
    if step <= WARM_UP:
        return PEAK_RATE * step / WARM_UP
    done = (step - WARM_UP) / max(1, steps - WARM_UP)
    return PEAK_RATE * (0.55 + 0.45 * math.cos(math.pi * done))


# ── three ways to the gradient ───────────────────────────────────────────────────────────────────────────────────


def requiring_grad(params: Params) -> Params:
    """The same values as leaves of autograd."""
    leaves: Params = fg.tree_map(lambda p: p.detach().requires_grad_(), params)
    return leaves


def eager(params: Params, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Params]:
    """Loss and gradients from torch.autograd, for parameters that require grad."""
    value = loss(params, tokens, targets)
    leaves: list[Tensor] = []
    fg.tree_map(leaves.append, params)
    grads = iter(torch.autograd.grad(value, leaves))
    return value.detach(), fg.tree_map(lambda _: next(grads), params)


def torch_func(params: Params, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Params]:
    """Loss and gradients from torch.func."""
    grads, value = torch.func.grad_and_value(loss)(params, tokens, targets)
    return value, grads


# ── training ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Progress:
    """The live line: what is being compiled and for how long, or how far training has come."""

    steps: int
    done: int = 0
    loss: float = math.nan
    ms: list[float] = field(default_factory=list)
    stage: str | None = None
    since: float = 0.0
    compile_seconds: float = 0.0

    def on_stage(self, event: fg.StageEvent) -> None:
        """Follow a compilation: a stage began, or ended after so many seconds."""
        if event.seconds is None:
            self.stage, self.since = event.stage, time.perf_counter()
        else:
            self.stage = None
            self.compile_seconds += event.seconds

    def on_step(self, value: float, seconds: float) -> None:
        """Take note of a finished step."""
        self.done, self.loss = self.done + 1, value
        self.ms.append(seconds * 1e3)

    def __rich__(self) -> str:
        if self.stage:
            return f"compiling: {self.stage} {time.perf_counter() - self.since:.1f} s"
        if not self.done:
            return "first step"
        recent = self.ms[1:][-20:] or self.ms  # the first step compiled
        return f"step {self.done:>4}/{self.steps}  loss {self.loss:.3f}  {statistics.median(recent):.0f} ms/step"


def train(
    gradient: LossAndGradient, data: Iterator[Batch], steps: int, schedule: int, seed: int,
    on_step: Callable[[float, float], None] = lambda value, seconds: None,
) -> tuple[Params, list[float]]:  # fmt: skip
    """``steps`` steps of a training planned for ``schedule``: the parameters and the losses. The seed fixes every
    draw."""
    torch.manual_seed(seed)
    params = make_params(seed)
    state = adamw_state(params)
    losses: list[float] = []
    for step, (tokens, targets) in enumerate(islice(data, steps), start=1):
        start = time.perf_counter()
        value, grads = gradient(params, tokens, targets)
        params, state = adamw(params, grads, state, step, learning_rate(step, schedule))
        losses.append(value.item())
        on_step(losses[-1], time.perf_counter() - start)
    return params, losses


def time_in_turns(
    ways: Mapping[str, Callable[[Tensor, Tensor], object]], data: Iterator[Batch], rounds: int
) -> dict[str, float]:
    """Median milliseconds of each way to the gradient. Each round gives every way the same batch, in shuffled order."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    shuffle = random.Random(0)
    for i, batch in enumerate(islice(data, rounds + 1)):
        for name in shuffle.sample(list(ways), len(ways)):
            start = time.perf_counter()
            ways[name](*batch)
            if i:  # the first round warms up
                took[name].append((time.perf_counter() - start) * 1e3)
    return {name: statistics.median(ms) for name, ms in took.items()}


def largest_difference(losses: list[float], expected: list[float]) -> float:
    """The largest relative difference between two series of losses, as far as both go; NaN if any loss is."""
    differences = [abs(a - b) / abs(b) for a, b in zip(losses, expected, strict=False)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────


def save_curve(losses: list[float], path: Path) -> None:
    """The loss curve as a PNG, with a running mean of 20 steps."""
    mean = [statistics.fmean(losses[max(0, i - 19) : i + 1]) for i in range(len(losses))]
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.add_subplot(
        xlabel="step", ylabel="cross-entropy per character", title="A character transformer on the standard library"
    )
    axes.plot(range(1, len(losses) + 1), losses, color="#3b82f6", alpha=0.35, label="loss")
    axes.plot(range(1, len(losses) + 1), mean, color="#1d4ed8", label="mean of 20 steps")
    axes.grid(alpha=0.25)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=144)


def report(ms: dict[str, float], progress: Progress, losses: list[float], difference: float) -> Table:
    """The numbers of the run."""
    table = Table("", "", title="Gradient of the loss, median ms/step", show_header=False, title_justify="left")
    table.columns[1].justify = "right"
    for name, median in ms.items():
        table.add_row(name, f"{median:.1f} ms  ({median / ms['funcgrad']:.2f}×)", end_section=name == list(ms)[-1])
    table.add_row("compiling", f"{progress.compile_seconds:.2f} s")
    table.add_row("first loss → last loss", f"{losses[0]:.3f} → {losses[-1]:.3f}")
    table.add_row(
        f"largest relative difference to eager, first {min(COMPARED, len(losses))} losses", f"{difference:.1e}"
    )
    return table


def _whole_number_from(least: int) -> Callable[[str], int]:
    """An argparse type."""

    def whole_number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is less than {least}")
        return int(text)

    return whole_number


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    positive = _whole_number_from(1)
    parser = argparse.ArgumentParser(
        description="Train a small character transformer with funcgrad, and compare with eager PyTorch."
    )
    parser.add_argument("--steps", type=positive, default=300, help="training steps (default: 300)")
    parser.add_argument("--seed", type=_whole_number_from(0), default=0)
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("build/demo"),
        metavar="FOLDER",
        help="where loss.png goes (default: build/demo)",
    )
    parser.add_argument(
        "--eager-steps", type=positive, default=30, metavar="N", help="rounds of timing beside eager (default: 30)"
    )
    parser.add_argument("--threads", type=positive, metavar="N", help="threads of torch (default: torch's own choice)")
    return parser.parse_args()


def main() -> None:
    """Train, draw, time, compare."""
    options = parse_arguments()
    if options.threads:
        torch.set_num_threads(options.threads)
    console = Console()
    corpus = read_corpus()
    console.print(f"{len(corpus) / 1e6:.1f} M characters of the standard library, {torch.get_num_threads()} threads")

    gradient = fg.value_and_grad_compiled(loss)
    data = functools.partial(batches, corpus, options.seed)
    progress = Progress(options.steps)

    def on_step(value: float, seconds: float) -> None:
        progress.on_step(value, seconds)
        if progress.done % 50 == 0:
            console.print(progress)

    # refreshed from a thread, so that the seconds of a stage run while it does
    with fg.watch_compile(progress.on_stage), Live(progress, console=console, refresh_per_second=10, transient=True):
        params, losses = train(gradient, data(), options.steps, options.steps, options.seed, on_step)
    save_curve(losses, options.out / "loss.png")
    console.print(f"loss curve: {options.out / 'loss.png'}")

    with console.status("training eagerly"):
        steps = min(COMPARED, options.steps)
        _, expected = train(
            lambda p, *batch: eager(requiring_grad(p), *batch), data(), steps, options.steps, options.seed
        )
    with console.status("timing"):
        ways = {
            "funcgrad": functools.partial(gradient, params),
            "eager autograd": functools.partial(eager, requiring_grad(params)),
            "torch.func": functools.partial(torch_func, params),
        }
        ms = time_in_turns(ways, data(), options.eager_steps)
    difference = largest_difference(losses, expected)
    console.print(report(ms, progress, losses, difference))
    if not difference < TOLERANCE:
        sys.exit(f"the losses differ from eager ones by {difference:.1e}, more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
