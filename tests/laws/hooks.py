"""Random programs with hooks: what the caller's Python sees of a backward pass, in which order, is what it sees in
eager PyTorch.

``python -m tests.laws.hooks N SEED`` runs N of them, then N with compiled regions, N with leaves that are wrapper
subclasses, and N with leaves whose gradients are sparse.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import embedding
from torch.testing._internal.two_tensor import TwoTensor

import funcgrad as fg
from funcgrad.subclasses import inner_tensors


class Scaled(torch.autograd.Function):
    """Says in a log when its backward runs."""

    @staticmethod
    def forward(ctx, x: Tensor, log: list) -> Tensor:
        ctx.log = log
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor):
        ctx.log.append(("function", summary(g)))
        return g * 2 + 0 * ctx.saved_tensors[0], None


class Counted(torch.autograd.Function):
    """Reads a buffer in backward, and writes to it."""

    @staticmethod
    def forward(ctx, x: Tensor, buffer: Tensor) -> Tensor:
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor):
        found = g * ctx.buffer
        ctx.buffer.mul_(1.5)
        return found, None


REGIONS = tuple(
    fg.jit(f, backend="aten")
    for f in (
        lambda a, b, buffer: (a * b).tanh(),
        lambda a, b, buffer: (a.sin() - b, b.cos()),
        lambda a, b, buffer: Counted.apply(a.sin(), buffer) - b,
        lambda a, b, buffer: a * buffer + b,
    )
)
"""Compiled functions: a single result, two of them of which one may be without a gradient, one whose backward
writes, a saved buffer."""


def summary(value: object) -> object:
    if isinstance(value, TwoTensor):
        return summary(value.a), summary(value.b)
    return round(float(value.double().sum()), 4) if isinstance(value, Tensor) else None


WRITTEN = "modified by an inplace operation"
KINDS = ["sin", "add", "mul", "function", "view", "mean"]


class Program:
    """One program, which a seed decides: diamonds, shared leaves, views that are written to, two roots, hooks of
    each kind. ``regions``: of the functions that it calls, some are compiled; ``wrapped``: some leaves are wrapper
    subclasses; ``sparse``: one has a sparse gradient."""

    def __init__(self, seed: int, regions: bool, wrapped: bool, sparse: bool) -> None:
        self.seed, self.kinds = seed, KINDS + ["region"] * 4 * regions + ["rows"] * 4 * sparse
        self.wrapped, self.sparse = wrapped, sparse

    def __call__(self) -> tuple[list, list[Tensor | None], str]:
        rng = random.Random(self.seed)
        self.buffer = torch.ones(2, 3)
        torch.manual_seed(self.seed)
        log: list = []
        leaves = [torch.rand(2, 3, requires_grad=True) for _ in range(rng.randint(1, 3))]
        if self.wrapped:
            leaves[0] = TwoTensor(leaves[0].detach(), torch.rand(2, 3)).requires_grad_()
        values = list(leaves)
        if self.sparse:
            self.table = torch.rand(5, 3, requires_grad=True)
            leaves.append(self.table)
        for _ in range(rng.randint(2, 8)):
            values.append(self._step(rng, values, log))
            if rng.random() < 0.5:
                self._hook(rng, values[-1], log, len(values))
        for i, leaf in enumerate(leaves):
            self._leaf_hooks(rng, leaf, log, i)
        roots = [v for v in values[-2:] if v.grad_fn is not None][-rng.randint(1, 2) :]
        error = ""
        try:
            torch.autograd.backward([(r * r).sum() for r in roots])
        except ArithmeticError as raised:
            error = repr(raised)
        except RuntimeError as raised:
            if WRITTEN not in str(raised):
                raise
            return log, [], WRITTEN
        grads = [leaf.grad for leaf in leaves]
        dense = [None if g is None else g.to_dense() for g in grads[-1:]] if self.sparse else grads[-1:]
        return log, [t for v in (*grads[:-1], *dense, self.buffer) for t in inner_tensors(v)], error

    def _step(self, rng: random.Random, values: list[Tensor], log: list) -> Tensor:
        a, b = rng.choice(values), rng.choice(values)
        kind = rng.choice(self.kinds)
        if kind == "region":
            found = rng.choice(REGIONS)(a, b, self.buffer)
            return rng.choice(found) if isinstance(found, tuple) else found
        if kind == "rows":
            return embedding(torch.tensor(rng.choices(range(5), k=2)), self.table, sparse=True)
        if kind == "sin":
            return a.sin()
        if kind == "add":
            return a + b
        if kind == "mul":
            return a * b
        if kind == "function":
            return Scaled.apply(a, log)
        if kind == "view":
            whole = a.clone()
            if type(a) is type(b):
                whole[0].mul_(b[1])
            return whole
        return a - b.mean(0, keepdim=True)

    def _hook(self, rng: random.Random, value: Tensor, log: list, name: int) -> None:
        kind = rng.choice(["sees", "gives", "raises", "pre", "post", "retain", "nested"])
        if kind == "retain":
            value.retain_grad()
            kind = "sees"
        say: Callable[[str, object], None] = lambda what, g: log.append((name, what, summary(g)))  # noqa: E731
        if kind == "sees":
            value.register_hook(lambda g: say("sees", g))
        elif kind == "gives":
            value.register_hook(lambda g: (say("gives", g), g * 3)[1])
        elif kind == "raises":
            if rng.random() < 0.3:
                value.register_hook(lambda g: (say("raises", g), 1 // 0)[1])
        elif kind == "nested":

            def nested(g: Tensor) -> None:
                other = torch.ones(2, requires_grad=True)
                with torch.enable_grad():
                    other.exp().sum().backward()
                say("nested", other.grad)

            value.register_hook(nested)
        elif value.grad_fn is not None and kind == "pre":
            value.grad_fn.register_prehook(
                lambda gs: (say("pre", gs[0]), tuple(None if g is None else g * 2 for g in gs))[1]
            )
        elif value.grad_fn is not None:
            value.grad_fn.register_hook(lambda ins, outs: say("post", outs[0]))

    def _leaf_hooks(self, rng: random.Random, leaf: Tensor, log: list, i: int) -> None:
        if rng.random() < 0.5:
            leaf.register_hook(lambda g: log.append(("leaf", i, summary(g))))
        if rng.random() < 0.5:
            leaf.register_post_accumulate_grad_hook(lambda p: log.append(("after", i, summary(p.grad))))
        if rng.random() < 0.3:
            leaf.register_post_accumulate_grad_hook(lambda p: log.append(("after again", i)))


def check(
    seed: int, times: int = 2, regions: bool = False, wrapped: bool = False, sparse: bool = False, **options: object
) -> None:
    """Run one program in eager PyTorch, then captured; raises ``AssertionError`` where they differ."""
    program = Program(seed, regions, wrapped, sparse)
    wanted_log, wanted, wanted_error = program()
    with fg.compiled_autograd(**options) as region:
        for _ in range(times):
            log, found, error = program()
            about = f"program {seed}:\n{region.explain()}\n{log}\n{wanted_log}"
            assert len(log) == len(wanted_log) and all(same(a, b) for a, b in zip(log, wanted_log, strict=True)), about
            assert error == wanted_error, about
            torch.testing.assert_close(found, wanted, msg=lambda m, about=about: f"{m}\n{about}")


def same(a: tuple, b: tuple) -> bool:
    return all(
        abs(x - y) <= 1e-3 * (1 + abs(y)) if isinstance(y, float) and isinstance(x, float) else x == y
        for x, y in zip(a, b, strict=True)
    )


if __name__ == "__main__":
    count, first = (int(text) for text in (*sys.argv[1:], "300", "0")[:2])
    for seed in range(first, first + count):
        check(seed, backend="aten")
    for seed in range(first, first + count):
        check(seed, regions=True, backend="aten")
    for seed in range(first, first + count):
        check(seed, wrapped=True, backend="aten")
    for seed in range(first, first + count):
        check(seed, times=4, sparse=True, backend="aten")
    print(f"{count} programs run as in eager PyTorch")
