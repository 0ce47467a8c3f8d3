"""Transforms and their compositions: the same result by torch.func alone, by torch.func over a compiled function, by
funcgrad's own transform, by torch.compile of torch.func's, and by jax.jit. ``python -m benchmarks.transforms NAME``
is the process of one row."""

from __future__ import annotations

import functools
import itertools
import json
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from attrs import frozen
from rich.console import Console
from rich.table import Table
from torch import Tensor, func

import funcgrad as fg

from . import forces
from .contestants import difference
from .measure import budgeted_medians
from .processes import lines
from .workload import Draws, Tree, jax, jnp
from .workloads import (
    hvp_inputs,
    jax_mlp,
    jax_mlp_of_one,
    jax_perceptron,
    mlp,
    mlp_of_one,
    per_sample_inputs,
    perceptron,
)

Fn = Callable[..., Any]


@frozen
class Case:
    """A result by each contestant, of the same inputs: torch.func's own, ``over`` a compiled function, and ``own``
    (compiled whole)."""

    name: str
    inputs: Callable[[bool], tuple[Tree, ...]]
    torch_func: Fn
    over: Callable[[], Fn] | None
    own: Callable[[], Fn]
    jax: Callable[[], Fn] | None = None


NAMES = ("torch.func", "over compiled", "compiled", "torch.compile", "jax")


def _hvp(p: Tree, direction: Tree, *data: Tree) -> Tree:
    return func.jvp(func.grad(lambda q: mlp(q, *data)), (p,), (direction,))[1]


def _jax_hvp(p: Tree, direction: Tree, *data: Tree) -> Tree:
    return jax.jvp(jax.grad(lambda q: jax_mlp(q, *data)), (p,), (direction,))[1]


def _vector_inputs(small: bool) -> tuple[Tree, ...]:
    draws, sizes = Draws(), (4, 8, 3) if small else (32, 128, 16)
    return draws.normal(sizes[0]), [(draws.matrix(m, n), draws.normal(n)) for m, n in itertools.pairwise(sizes)]


def _of_vector(x: Tensor, layers: Tree) -> Tensor:
    return perceptron(layers, x[None])[0]


def _jax_of_vector(x: Any, layers: Tree) -> Any:
    return jax_perceptron(layers, x[None])[0]


def _scalar_of_vector(x: Tensor, layers: Tree) -> Tensor:
    return _of_vector(x, layers).square().sum()


def _jax_scalar_of_vector(x: Any, layers: Tree) -> Any:
    return (_jax_of_vector(x, layers) ** 2).sum()


def _few(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


def _jax_few(x: Any) -> Any:
    return (jnp.sin(x) * x).sum()


def _some(x: Tensor) -> Tensor:
    for _ in range(5):
        x = torch.tanh(x * 1.1) + x.cos() * 0.1
    return x.sum()


def _jax_some(x: Any) -> Any:
    for _ in range(5):
        x = jnp.tanh(x * 1.1) + jnp.cos(x) * 0.1
    return x.sum()


def _row(small: bool) -> tuple[Tree, ...]:
    return (Draws().normal(16),)


def _rows(small: bool) -> tuple[Tree, ...]:
    return (Draws().normal(8, 16),)


def _small(title: str, f: Fn, jax_f: Fn) -> tuple[Case, ...]:
    """A small function under each transform."""

    def tangent(transform: Fn, g: Fn) -> Fn:
        return lambda x: transform(g, (x,), (x,))[1]

    def pulled(transform: Fn, g: Fn, one: Callable[[], Any]) -> Fn:
        return lambda x: transform(g, x)[1](one())[0]

    one = functools.partial(torch.ones, ())
    return (
        Case(f"grad of {title}", _row, func.grad(f), lambda: func.grad(fg.jit(f)), lambda: fg.grad_compiled(f),
        lambda: jax.grad(jax_f)),
        Case(f"vmap of {title}", _rows, func.vmap(f), lambda: func.vmap(fg.jit(f)), lambda: fg.vmap_compiled(f),
        lambda: jax.vmap(jax_f)),
        Case(
            f"vmap(grad) of {title}", _rows, func.vmap(func.grad(f)), lambda: func.vmap(fg.grad_compiled(f)),
            lambda: fg.vmap_compiled(func.grad(f)), lambda: jax.vmap(jax.grad(jax_f)),
        ),
        Case(
            f"jvp of {title}", _row, tangent(func.jvp, f), lambda: tangent(func.jvp, fg.jit(f)),
            lambda: tangent(fg.jvp_compiled, f),
            lambda: tangent(jax.jvp, jax_f),
        ),
        Case(
            f"vjp of {title}", _row, pulled(func.vjp, f, one), lambda: pulled(func.vjp, fg.jit(f), one),
            lambda: fg.jit(pulled(func.vjp, f, one)), lambda: pulled(jax.vjp, jax_f, lambda: jnp.ones(())),
        ),
        Case(
            f"hessian of {title}", _row, func.hessian(f), lambda: func.hessian(fg.jit(f)),
            lambda: fg.hessian_compiled(f),
            lambda: jax.hessian(jax_f),
        ),
    )  # fmt: skip


CASES = (
    Case(
        "per-sample gradients, MLP, batch 128", per_sample_inputs, func.vmap(func.grad(mlp_of_one), (None, 0, 0)),
        lambda: func.vmap(fg.grad_compiled(mlp_of_one), (None, 0, 0)),
        lambda: fg.vmap_compiled(func.grad(mlp_of_one), (None, 0, 0)),
        lambda: jax.vmap(jax.grad(jax_mlp_of_one), (None, 0, 0)),
    ),
    Case("Hessian-vector product, MLP", hvp_inputs, _hvp, None, lambda: fg.jit(_hvp), lambda: _jax_hvp),
    Case(
        "hessian, MLP of 32 inputs", _vector_inputs, func.hessian(_scalar_of_vector),
        lambda: func.hessian(fg.jit(_scalar_of_vector)),
        lambda: fg.hessian_compiled(_scalar_of_vector), lambda: jax.hessian(_jax_scalar_of_vector),
    ),
    Case(
        "jacrev, MLP of 32 inputs", _vector_inputs, func.jacrev(_of_vector), lambda: func.jacrev(fg.jit(_of_vector)),
        lambda: fg.jacrev_compiled(_of_vector), lambda: jax.jacrev(_jax_of_vector),
    ),
    Case(
        "jacfwd, MLP of 32 inputs", _vector_inputs, func.jacfwd(_of_vector), lambda: func.jacfwd(fg.jit(_of_vector)),
        lambda: fg.jacfwd_compiled(_of_vector), lambda: jax.jacfwd(_jax_of_vector),
    ),
    Case(
        "force training", forces.inputs, func.grad(forces.loss), lambda: func.grad(fg.jit(forces.loss)),
        lambda: fg.grad_compiled(forces.loss),
    ),
    *_small("3 operations", _few, _jax_few),
    *_small("25 operations", _some, _jax_some),
)  # fmt: skip


def available(contestants: Sequence[str]) -> list[str]:
    """Of these contestants, those that are here and wanted."""
    return [name for name in NAMES if name in contestants or name in NAMES[:3]]


def calls_of(
    case: Case, small: bool, contestants: Sequence[str]
) -> tuple[dict[str, Callable[[], Tree]], dict[str, str]]:
    """A call for each contestant that agrees with torch.func's, and why others do not."""
    inputs = case.inputs(small)
    expected = case.torch_func(*inputs)
    makes: dict[str, Callable[[], Fn] | None] = {
        "torch.func": lambda: case.torch_func,
        "over compiled": case.over,
        "compiled": case.own,
        "torch.compile": lambda: torch.compile(case.torch_func),
        "jax": None if jax is None or case.jax is None else lambda: _on_arrays(case.jax()),  # type: ignore[misc]
    }
    calls: dict[str, Callable[[], Tree]] = {}
    fails: dict[str, str] = {}
    for name in contestants:
        make = makes[name]
        if make is None:
            continue
        try:
            function = make()
            arguments = jax.tree.map(lambda t: jnp.asarray(t.numpy()), inputs) if name == "jax" else inputs
            found = function(*arguments)
            if difference(found, expected) > 1e-3:
                raise ArithmeticError(f"differs by {difference(found, expected):.1e}")
        except Exception as error:
            fails[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
            continue
        calls[name] = functools.partial(function, *arguments)
    return calls, fails


def _on_arrays(f: Fn) -> Fn:
    compiled = jax.jit(f)
    return lambda *arrays: jax.block_until_ready(compiled(*arrays))


def table(contestants: Sequence[str], only: Sequence[str], threads: int, console: Console) -> Table:
    """One row per case: µs of a call by each contestant, and torch.func's ÷ each of the others'."""
    rows = Table(title=f"Transforms, µs a call (median), {threads} threads; n× is torch.func ÷ it")
    for column in ("", *NAMES):
        rows.add_column(column, justify="right" if column else "left")
    for case in CASES:
        if not any(part in case.name for part in only):
            continue
        (line,) = lines("benchmarks.transforms", [case.name, json.dumps(list(contestants))], 600.0, threads)
        seconds, fails = json.loads(line)
        base = seconds.get("torch.func", math.nan)
        cells = [
            f"{seconds[n] * 1e6:,.1f}" + (f" {base / seconds[n]:.2f}×" if n != "torch.func" else "") if n in seconds else
            "fails" if n in fails else "—" for n in NAMES
        ]  # fmt: skip
        rows.add_row(case.name, *cells)
        console.print(case.name, *cells, *fails.values(), style="dim", highlight=False)
    return rows


def main() -> None:
    """The process of one row: prints seconds by contestant, and why some fail, as JSON."""
    name, contestants = sys.argv[1:]
    calls, fails = calls_of(next(case for case in CASES if case.name == name), False, json.loads(contestants))
    print(json.dumps((budgeted_medians(calls), fails)))


if __name__ == "__main__":
    main()
