"""Backward passes by the autograd engine, captured by ``fg.compiled_autograd()``, and by torch's own compiled autograd
with inductor.

``python -m benchmarks engine`` prints the table. Forward is eager PyTorch's, and is not timed; what is timed is
``loss.backward()``.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._dynamo.compiled_autograd
from attrs import frozen
from rich.table import Table
from torch import Tensor, nn

import funcgrad as fg
from funcgrad.engine.region import reset

ROUNDS = 60
OWN = "torch's own, inductor"


@frozen
class Case:
    """``make()`` builds a model once, and returns what runs forward: a loss, and the parameters whose gradients are
    asked for. ``has_regions``: it calls functions that funcgrad has compiled, which torch's own compiled autograd
    would trace."""

    name: str
    make: Callable[[bool], tuple[Callable[[], Tensor], list[Tensor]]]
    has_regions: bool = False


def _of(model: nn.Module, x: Tensor) -> tuple[Callable[[], Tensor], list[Tensor]]:
    return (lambda: model(x).square().mean()), list(model.parameters())


def deep_perceptron(small: bool) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """50 layers of 32 units, a batch of 16: the engine's own time is most of it."""
    layers = [layer for _ in range(5 if small else 50) for layer in (nn.Linear(32, 32), nn.Tanh())]
    return _of(nn.Sequential(*layers), torch.randn(16, 32))


def transformer(small: bool) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """Two layers of width 128, 4 heads, 4 sequences of 32 tokens."""
    layer = nn.TransformerEncoderLayer(128, 4, 256, dropout=0.0, batch_first=True)
    return _of(
        nn.TransformerEncoder(layer, 1 if small else 2, enable_nested_tensor=False),
        torch.randn(4, 8 if small else 32, 128),
    )


def convolutions(small: bool) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """Three convolutions with batch normalisation, 8 images of 3 x 32 x 32."""
    layers = [
        m
        for a, b in ((3, 16), (16, 32), (32, 32))
        for m in (nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())
    ]
    return _of(nn.Sequential(*layers), torch.randn(2 if small else 8, 3, 32, 32))


def hooked(small: bool) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """A hook on each of 100 parameters that halves its gradient."""
    layers = [layer for _ in range(5 if small else 50) for layer in (nn.Linear(32, 32), nn.Tanh())]
    loss, parameters = _of(nn.Sequential(*layers), torch.randn(16, 32))
    for p in parameters:
        p.register_hook(lambda g: g * 0.5)
    return loss, parameters


def blocks(small: bool) -> tuple[Callable[[], Tensor], list[Tensor]]:
    """20 residual blocks of 32 units, each a call of one compiled function: its backward halves are parts of the
    captured graph."""
    layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(3 if small else 20))
    block = fg.jit(lambda h, w, b: nn.functional.gelu(h @ w.t() + b))
    x = torch.randn(16, 32)

    def loss() -> Tensor:
        h = x
        for layer in layers:
            h = h + block(h, layer.weight, layer.bias)
        return h.square().mean()

    return loss, list(layers.parameters())


CASES = (
    Case("50 layers of 32", deep_perceptron),
    Case("transformer, 2 layers of 128", transformer),
    Case("convolutions, batch norm", convolutions),
    Case("hooks on 100 parameters", hooked),
    Case("20 compiled blocks of 32", blocks, has_regions=True),
)


@contextlib.contextmanager
def _torch_own() -> Iterator[None]:
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="inductor")):
        yield


@frozen
class Measured:
    """Of a case: seconds a backward pass by contestant, seconds of the first one, and of ours how long the capture
    took."""

    seconds: dict[str, float]
    first: dict[str, float]
    capture: float


def measure(case: Case, small: bool, beside: bool) -> Measured:
    """Interleaved medians; gradients are compared before."""
    torch.manual_seed(0)
    loss, parameters = case.make(small)
    regions: dict[str, Callable[[], Any]] = {"eager": contextlib.nullcontext, "funcgrad": fg.compiled_autograd}
    if beside and not case.has_regions:
        regions[OWN] = _torch_own
    reset()

    def backward(name: str) -> float:
        for p in parameters:
            p.grad = None
        # the engine keeps one cache: by a node more, torch's own has graphs of its own in it
        value = loss() if name != OWN else loss() * 1
        with regions[name]():
            start = time.perf_counter()
            value.backward()
            return time.perf_counter() - start

    first, expected = {}, None
    for name in regions:
        first[name] = backward(name)
        found = [p.grad for p in parameters]
        expected = found if expected is None else expected
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
    with fg.compiled_autograd() as region:
        for p in parameters:
            p.grad = None
        loss().backward()
    times: dict[str, list[float]] = {name: [] for name in regions}
    for _ in range(3 if small else ROUNDS):
        for name, taken in times.items():
            # the first after another contestant finds the caches as that left them
            taken += [backward(name) for _ in range(3)][1:]
    return Measured({name: statistics.median(t) for name, t in times.items()}, first, region.captures[0].seconds)


def table(only: Sequence[str] = ("",), beside: bool = True, small: bool = False) -> Table:
    """The cases with one of these in their names; ``beside``: with torch's own compiled autograd, which compiles for
    most of a minute."""
    rows = Table(
        title=f"backward passes, {torch.get_num_threads()} threads: median; the first; how long our capture took"
    )
    for column in (
        "",
        "eager",
        "funcgrad",
        "ratio",
        "torch's own",
        "ratio",
        "first, funcgrad",
        "first, torch's own",
        "capture",
    ):
        rows.add_column(column, justify="right" if column else "left")
    for case in CASES:
        if not any(part in case.name for part in only):
            continue
        if beside:
            torch._dynamo.reset()
        found = measure(case, small, beside)
        ours, own = found.seconds["funcgrad"], found.seconds.get(OWN)
        rows.add_row(
            case.name, _ms(found.seconds["eager"]), _ms(ours), f"{found.seconds['eager'] / ours:.2f}",
            _ms(own) if own else "", f"{own / ours:.2f}" if own else "", _ms(found.first["funcgrad"]),
            f"{found.first[OWN]:.1f} s" if own else "", _ms(found.capture),
        )  # fmt: skip
    return rows


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"
