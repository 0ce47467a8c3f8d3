"""Random functions of several results, differentiated from some of them, for some of their inputs: gradients, where
there are none, and what the caller's Python sees and writes are those of eager PyTorch.

``python -m tests.laws.passes N SEED`` runs N of them.
"""

from __future__ import annotations

import contextlib
import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

import funcgrad as fg

LOG: list = []
BUFFER = torch.ones(())


class Both(torch.autograd.Function):
    """Its backward is given zeros for a result without a gradient, and what it makes of these may be nan."""

    @staticmethod
    def forward(ctx, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, y)
        return x * y, (x - y).exp()

    @staticmethod
    def backward(ctx, g: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        x, y = ctx.saved_tensors
        return g * y + h / x, g * x + 1


class Parts(torch.autograd.Function):
    """Its backward takes what comes."""

    @staticmethod
    def forward(ctx, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g: Tensor | None, h: Tensor | None) -> Tensor:
        found = [g * 2] if g is not None else []
        found += [h * 3] if h is not None else []
        return sum(found) if found else None


class Branches(torch.autograd.Function):
    """Its backward does otherwise where a gradient is not there."""

    @staticmethod
    def forward(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return x * 2, x * y, y.sin()

    @staticmethod
    def setup_context(ctx, inputs: tuple, output: tuple) -> None:
        ctx.save_for_backward(*inputs)
        _take_none(ctx)

    @staticmethod
    def backward(ctx, g: Tensor | None, h: Tensor | None, k: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        x, y = ctx.saved_tensors
        if g is None:
            return (None, k) if h is None else (h * x.exp(), h * BUFFER)
        if k is None:
            BUFFER.add_(1)
            return g + (0 if h is None else h * y), None
        return g * 7, k * y.cos()


def _take_none(ctx: object) -> None:
    ctx.set_materialize_grads(False)


class Hooked(torch.nn.Module):
    """What its backward hook gives depends on which gradients came in."""

    def __init__(self) -> None:
        super().__init__()
        self.register_full_backward_hook(self.scaled)
        self.register_full_backward_pre_hook(self.marked)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x * 2, x.cos()

    @staticmethod
    def scaled(module: object, given: tuple, outs: tuple) -> tuple:
        return tuple(g if g is None else g * (1 + 10 * sum(v is None for v in outs)) for g in given)

    @staticmethod
    def marked(module: object, outs: tuple) -> tuple:
        return tuple(g if g is None else g + sum(v is None for v in outs) for g in outs)


def _node_hooked(a: Tensor, b: Tensor) -> Sequence[Tensor]:
    """Hooks on the node of a computed tensor."""
    found = torch.stack([a, b]).unbind()
    node = found[0].grad_fn
    node.register_prehook(
        lambda given: tuple(None if g is None else g * sum(v is not None for v in given) for g in given)
    )
    node.register_hook(lambda made, given: tuple(g if g is None or given[0] is None else g * 3 for g in made))
    return [v * 1 for v in found]


class Constant(torch.autograd.Function):
    """Its gradient depends on none that comes in."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        return torch.full_like(g, 5)


class Counted(torch.autograd.Function):
    """Its backward reads and writes a buffer."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx, g: Tensor) -> Tensor:
        found = g * BUFFER
        BUFFER.mul_(1.5).add_(1)
        return found


def summary(value: Tensor | None) -> object:
    return None if value is None else [round(v, 3) for v in value.flatten().tolist()]


def _row(v: Tensor, like: Tensor) -> Tensor:
    """As long as the inputs are."""
    return v if v.dim() == 1 else v.expand(len(like))


STEPS: dict[str, Callable[[Tensor, Tensor], Sequence[Tensor]]] = {
    "sin": lambda a, b: [a.sin()],
    "add": lambda a, b: [a + b],
    "mul": lambda a, b: [a * b],
    "log": lambda a, b: [(a * a).log()],
    "sqrt": lambda a, b: [(a * a).sqrt()],
    "unbind": lambda a, b: torch.stack([a, b * 2]).sum(1).unbind(),
    "split": lambda a, b: torch.cat([a, b]).split(len(a)),
    "stack": lambda a, b: [torch.stack([a, b]).cumsum(0)[1]],
    "topk": lambda a, b: [torch.stack([a, b]).max(0).values],
    "eigh": lambda a, b: [torch.linalg.eigh(torch.diag(a) + torch.eye(len(a)))[0] + a],
    "var_mean": lambda a, b: torch.var_mean(torch.stack([a, b]), 1)[1].unbind(),
    "written": lambda a, b: [_written(a, b)],
    "both": lambda a, b: Both.apply(a, b),
    "parts": lambda a, b: Parts.apply(a),
    "constant": lambda a, b: [Constant.apply(a)],
    "branches": lambda a, b: Branches.apply(a, b),
    "hooked": lambda a, b: Hooked()(a * 1),
    "node hooked": _node_hooked,
    "counted": lambda a, b: [Counted.apply(a)],
}


def _written(a: Tensor, b: Tensor) -> Tensor:
    whole = a.clone()
    whole[0] = b[1] * 2
    return whole


class Program:
    """One function, which a seed decides."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        rng = random.Random(seed)
        self.n_leaves, self.n_outs, self.n_steps = rng.randint(1, 3), rng.randint(2, 4), rng.randint(2, 9)
        self.is_computed = [rng.random() < 0.3 for _ in range(self.n_leaves)]
        self.is_hooked = [rng.random() < 0.4 for _ in range(self.n_leaves)]

    def __call__(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        rng = random.Random(self.seed + 1)
        values = list(leaves)
        for i in range(self.n_steps):
            a, b = rng.choice(values), rng.choice(values)
            made = [_row(v, leaves[0]) for v in STEPS[rng.choice(list(STEPS))](a, b)]
            for k, v in enumerate(made):
                kind = rng.choice(["logs", "scales", "writes"]) if rng.random() < 0.3 else ""
                if kind and v._base is not None:
                    made[k] = v = v * 1
                if kind == "logs":
                    v.register_hook(lambda g, i=i: LOG.append((i, summary(g))))
                elif kind == "scales":
                    v.register_hook(lambda g: g * 2 if g is not None else None)
                elif kind == "writes":
                    v.register_hook(lambda g: g.mul(3).add_(0.5) if g is not None else None)
            values += made
        n = min(self.n_outs, len(values) - self.n_leaves)
        return tuple(values[-n:]) if rng.random() < 0.5 else tuple(rng.sample(values[self.n_leaves :], n))

    def passes(self, f: Callable[..., tuple[Tensor, ...]], outside: bool, n: int = 3) -> list:
        """What is seen of some backward passes, one after the other."""
        rng = random.Random(self.seed + 2)
        LOG.clear()
        BUFFER.fill_(1)
        leaves = [
            torch.tensor([rng.choice([0.0, 1.0, 0.5, -2.0]) for _ in range(n)], requires_grad=True)
            for _ in range(self.n_leaves)
        ]
        given = list(leaves)
        for i, leaf in enumerate(leaves) if outside else ():
            if self.is_computed[i]:
                given[i] = leaf * 1
                given[i].register_hook(lambda g, i=i: LOG.append(("given", i, summary(g))))
            if self.is_hooked[i]:
                leaf.register_hook(lambda g, i=i: LOG.append(("leaf", i, summary(g))))
                leaf.register_post_accumulate_grad_hook(lambda p, i=i: LOG.append(("after", i, summary(p.grad))))
        outs = f(*given)
        found: list = []
        for _ in range(rng.randint(1, 3)):
            picked = rng.sample(range(len(outs)), rng.randint(1, len(outs)))
            roots = [(outs[i] * (i + 1)).sum() for i in sorted(picked) if outs[i].requires_grad]
            how, keeps = rng.choice(["backward", "inputs", "grad"]), True
            targets = rng.sample(leaves, rng.randint(1, len(leaves)))
            if not roots:
                continue
            try:
                if how == "grad":
                    got = torch.autograd.grad(roots, targets, retain_graph=keeps, allow_unused=True)
                    found.append([summary(g) for g in got])
                else:
                    more = {"inputs": targets} if how == "inputs" else {}
                    torch.autograd.backward(roots, retain_graph=keeps, **more)
            except RuntimeError as error:
                if "second time" not in str(error):
                    raise
                found.append("freed")
                break
            # in which order it goes on to inputs is not seen
            log = (
                [e for e in LOG if not isinstance(e[0], str)],
                sorted((e for e in LOG if isinstance(e[0], str)), key=str),
            )
            found.append((how, [summary(leaf.grad) for leaf in leaves], summary(BUFFER), *log))
        return found


def same(a: object, b: object) -> bool:
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or a == b or abs(a - b) <= 2e-3 * (1 + abs(b))
    return a == b


def check(
    seed: int, outside: bool = False, region: bool = False, sizes: Sequence[int] = (3,), **options: object
) -> str:
    """Run one program in eager PyTorch, then compiled; raises ``AssertionError`` where they differ. Returns why it is
    refused, if it is."""
    program = Program(seed)
    compiled = fg.jit(program, **options)
    for n in sizes:
        wanted = program.passes(program, outside, n)
        try:
            with fg.compiled_autograd(backend="aten") if region else contextlib.nullcontext():
                found = program.passes(compiled, outside, n)
        except fg.FuncgradError as error:
            return f"{type(error).__name__}: {str(error).splitlines()[0]}"
        assert same(found, wanted), f"program {seed}, size {n}:\n{found}\n{wanted}"
    return ""


VARIANTS = {
    "aten": {"backend": "aten"},
    "c": {"backend": "c"},
    "sizes": {"backend": "c", "dynamic": True, "sizes": (3, 5)},
    "region": {"backend": "aten", "region": True},
    "outside": {"backend": "aten", "outside": True},
    "outside, region": {"backend": "aten", "outside": True, "region": True},
}

if __name__ == "__main__":
    kind, count, first = (*sys.argv[1:], "aten", "300", "0")[:3] if len(sys.argv) > 3 else ("aten", "300", "0")
    refused: Counter[str] = Counter()
    for seed in range(int(first), int(first) + int(count)):
        refused[check(seed, **VARIANTS[kind])] += 1
    print(f"{count} programs: {dict(refused)}")
