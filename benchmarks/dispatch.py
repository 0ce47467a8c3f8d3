"""What a call costs besides its kernel: a function of 1, 10 and 100 small leaves, beside autograd, torch.func and
torch.compile; and what the layers add for an argument that is written to, or aliased, and guards for the Python
state that a function reads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from attrs import evolve, frozen
from rich.table import Table
from torch import Tensor, nn

import funcgrad as fg
from funcgrad.source import compile_function

from .measure import interleaved_medians


def loss(p: dict[str, Tensor]) -> Tensor:
    """Sum of squares of all leaves."""
    return torch.stack([(v * v).sum() for v in p.values()]).sum()


def table() -> Table:
    """One row per number of leaves: µs of a call, and of the overhead of funcgrad's (the call less its kernel
    alone)."""
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


@frozen
class Layered:
    """A function of many tensors that needs a layer for each, and what that does to one tensor anyway (the copy, the
    view), alone."""

    name: str
    function: Callable[..., object]
    arguments: Callable[[int], Sequence[Tensor]]
    anyway: Callable[[Tensor], object]


def _written(*xs: Tensor) -> None:
    for x in xs:
        x.mul_(2)


def _pairs(n: int) -> list[Tensor]:
    return [x for x in _distinct(n // 2) for _ in range(2)]


def _distinct(n: int) -> list[Tensor]:
    return [torch.ones(16) for _ in range(n)]


def _sums(*xs: Tensor) -> list[Tensor]:
    return [x.sum() for x in xs]


def _nothing(x: Tensor) -> None:
    pass


_VALUE = torch.ones(16)

LAYERED = (
    Layered("written to", _written, _distinct, lambda x: x.copy_(_VALUE)),
    Layered("one object twice", _sums, _pairs, _nothing),
    Layered("returned", lambda *xs: list(xs), _distinct, _nothing),
    Layered("a view returned", lambda *xs: [x[1:] for x in xs], _distinct, lambda x: x[1:]),
)


def _without_kernel(function: Callable[..., object], arguments: Sequence[Tensor]) -> Callable[[], object]:
    """The printed call of a function, with a kernel that returns at once."""
    program = fg.jit(function).program(*arguments)
    outs = program.call.names["kernel"](*{id(x): x for x in arguments}.values())
    call = compile_function(evolve(program.call, names={**program.call.names, "kernel": lambda *values: outs}))
    return lambda: call(tuple(arguments), {})


def layers_table() -> Table:
    """One row per kind of argument: µs the layers add for each, in calls with 10 arguments, over a plain call with
    as many. The kernel is left out; the copies and views themselves are not theirs."""
    rows = Table(title="Layers: what they add to a call for each argument, µs (median; limit 0.5)")
    for column in ("argument", "call without its kernel", "copies, views", "a plain call", "added for each"):
        rows.add_column(column, justify="right")
    n = 10
    for case in LAYERED:
        arguments = case.arguments(n)
        median = interleaved_medians(
            {
                "layered": _without_kernel(case.function, arguments),
                "anyway": lambda f=case.anyway, xs=arguments: [f(x) for x in xs],
                "nothing": lambda xs=arguments: [_nothing(x) for x in xs],
                "plain": _without_kernel(_sums, _distinct(n)),
            },
            rounds=40,
            calls=100,
        )
        us = {name: seconds * 1e6 for name, seconds in median.items()}
        anyway = us["anyway"] - us["nothing"]
        cells = (us["layered"], anyway, us["plain"], (us["layered"] - anyway - us["plain"]) / n)
        rows.add_row(case.name, *(f"{c:.2f}" for c in cells))
    return rows


class _Block(nn.Module):
    """One of GPT-2's."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.activation, self.shrink = (
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )
        self.drops = nn.ModuleList(nn.Dropout(0.1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        heads = [
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.attention(self.before_attention(x)).chunk(3, -1)
        ]
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drops[0](self.projection(mixed.transpose(1, 2).flatten(2)))
        return x + self.drops[1](self.shrink(self.activation(self.grow(self.before_mlp(x)))))


class _Gpt(nn.Module):
    def __init__(self, layers: int, width: int = 64) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList(_Block(width, 4) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50, bias=False)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places.weight[: words.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))  # type: ignore[no-any-return]


def guards_table() -> Table:
    """One row per number of layers of a GPT-2: guards of Python state in its printed call, in how many lines (one asks
    of all dicts that were empty), and the µs they take in it."""
    rows = Table(title="Guards of Python state in a call of a GPT-2, µs (median; limits 25 at 12 layers, 0.03 each)")
    for column in (
        "layers",
        "modules",
        "guards",
        "in lines",
        "call without its kernel",
        "and without guards",
        "guards cost",
        "each line",
    ):
        rows.add_column(column, justify="right")
    words = torch.zeros(1, 4, dtype=torch.int64)
    for layers in (0, 4, 12):
        model = _Gpt(layers).eval()
        with torch.no_grad():
            program = fg.jit(model).program(words)
            call = evolve(program.call, names={**program.call.names, "kernel": lambda *values: (words,)})
            lines = call.text.splitlines()
            reads = lines[: next(i for i, line in enumerate(lines) if line.startswith("    except"))]
            state = {line for line in reads if line.startswith(("        if ", "        _"))}
            bare = evolve(call, text="\n".join(line for line in lines if line not in state))
            run, run_bare = compile_function(call), compile_function(bare)
            calls = {"all": functools.partial(run, (words,), {}), "bare": functools.partial(run_bare, (words,), {})}
            median = interleaved_medians(calls, rounds=40, calls=50)
        us = {name: seconds * 1e6 for name, seconds in median.items()}
        spent = us["all"] - us["bare"]
        cells = (f"{us['all']:.1f}", f"{us['bare']:.1f}", f"{spent:.1f}", f"{spent / len(state):.3f}")
        guards = len(program.facts.state.guards)
        rows.add_row(str(layers), str(len(list(model.modules()))), str(guards), str(len(state)), *cells)
    return rows
