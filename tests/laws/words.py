"""Words of torch.func's transforms over functions that write, alias, draw and close over tensors, compiled at each position.

A word ``("vmap", "grad")`` is ``vmap(grad(f))``. Compiled at position 1 it is ``vmap(compiled grad(f))``, at position 2
``vmap(grad(compiled f))``. The oracle is the same word in eager torch.func, in float64: both give the same numbers, and leave the same
in what is written to, or both raise.

``python -m tests.laws.words LENGTH [WORDS [SEED]]`` runs all words up to a length, or so many random ones of that length.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, func

import funcgrad as fg

Fn = Callable[[Tensor], Tensor]
SHAPE = (2, 2, 2, 3)


# ── transforms: each makes of a function of one tensor another one ──────────────────────────────────────────────────


def _grad(f: Fn) -> Fn:
    return func.grad(lambda x: f(x).sum())


def _vjp(f: Fn) -> Fn:
    def apply(x: Tensor) -> Tensor:
        out, pull = func.vjp(f, x)
        return pull(out.detach().cos())[0]

    return apply


def _jvp(f: Fn) -> Fn:
    return lambda x: func.jvp(f, (x,), (x.detach().cos(),))[1]


TRANSFORMS: dict[str, Callable[[Fn], Fn]] = {
    "grad": _grad,
    "vjp": _vjp,
    "jvp": _jvp,
    "vmap": lambda f: func.vmap(f, randomness="same"),
    "jacfwd": lambda f: func.jacfwd(f, randomness="same"),
    "jacrev": func.jacrev,
    "hessian": func.hessian,
}


def _fg_vjp(f: Fn) -> Fn:
    def apply(x: Tensor) -> Tensor:
        out, pull = fg.vjp_compiled(f, x, backend="aten")
        return pull(out.detach().cos())[0]

    return apply


COMPILED: dict[str, Callable[[Fn], Fn]] = {
    "grad": lambda f: fg.grad_compiled(lambda x: f(x).sum(), backend="aten"),
    "vjp": _fg_vjp,
    "jvp": lambda f: lambda x: fg.jvp_compiled(f, (x,), (x.detach().cos(),), backend="aten")[1],
    "vmap": lambda f: fg.vmap_compiled(f, randomness="same", backend="aten"),
    "jacfwd": lambda f: fg.jacfwd_compiled(f, randomness="same", backend="aten"),
    "jacrev": lambda f: fg.jacrev_compiled(f, backend="aten"),
    "hessian": lambda f: fg.hessian_compiled(f, backend="aten"),
}


# ── functions: each made anew, with what it writes to besides ────────────────────────────────────────────────────────


class Made(NamedTuple):
    f: Fn
    state: tuple[Tensor, ...] = ()


def _weights() -> Tensor:
    return torch.linspace(-1, 1, 3, dtype=torch.float64)


def smooth() -> Made:
    return Made(lambda x: (x.sin() * x.exp()).sum(-1))


def captured() -> Made:
    w = _weights()
    return Made(lambda x: torch.tanh(x * w) + w.square().sum())


def product() -> Made:
    w = torch.linspace(-1, 1, 9, dtype=torch.float64).view(3, 3)
    return Made(lambda x: (x @ w).relu() @ w)


def writes_to_copy() -> Made:
    def f(x: Tensor) -> Tensor:
        y = x.clone()
        y.mul_(x.sin())
        y[..., 0] = x[..., 1] * 2
        return y.square()

    return Made(f)


def views() -> Made:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        a, b = y[..., :2], y[..., 1:]
        a.add_(b.exp().detach() + b)
        return (y * y).sum(-1) + a.sum()

    return Made(f)


def counts() -> Made:
    total = torch.zeros((), dtype=torch.float64)

    def f(x: Tensor) -> Tensor:
        total.add_(1)
        return x.cos() * 3

    return Made(f, (total,))


def returns_input() -> Made:
    return Made(lambda x: x)


def returns_view() -> Made:
    return Made(lambda x: x[..., 1:])


def dropout() -> Made:
    def f(x: Tensor) -> Tensor:
        return F.dropout(x.sin(), 0.5) * x

    return Made(f)


def norm() -> Made:
    w = _weights().exp()
    return Made(lambda x: F.layer_norm(x, (3,), w) * x)


def softmax() -> Made:
    return Made(lambda x: torch.log_softmax(x, -1).cumsum(-1))


def detached() -> Made:
    return Made(lambda x: x.detach() * x + x.sum(-1, keepdim=True).where(x.sum(-1, keepdim=True) > 0, x))


def batch_norm() -> Made:
    return Made(lambda x: F.batch_norm(x.reshape(-1, 3) if x.dim() > 1 else x.expand(2, 3) * x, None, None, training=True).square())


FUNCTIONS = {
    made.__name__: made
    for made in (
        smooth, captured, product, writes_to_copy, views, counts, returns_input, returns_view, dropout, norm, softmax, detached, batch_norm
    )
}  # fmt: skip


# ── the law ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def applied(word: tuple[str, ...], f: Fn, at: int | None) -> Fn:
    """The word over a function, compiled at a position: 0 is the outermost transform, ``len(word)`` the function."""
    if at == len(word):
        f = fg.jit(f, backend="aten")
    for i, letter in reversed(list(enumerate(word))):
        f = (COMPILED if i == at else TRANSFORMS)[letter](f)
    return f


def outcome(word: tuple[str, ...], name: str, at: int | None, times: int = 2) -> Any:
    """What a word gives, called so often: results and written state, or the error."""
    made = FUNCTIONS[name]()
    torch.manual_seed(3)
    x = torch.linspace(-1, 1.1, 24, dtype=torch.float64).view(SHAPE)
    try:
        f = applied(word, made.f, at)
        results = [f(x).detach().clone() for _ in range(times)]
    except Exception as error:
        return error
    return [*results, *made.state, x]


def differs(word: tuple[str, ...], name: str, at: int) -> str | None:
    """What is not as in eager torch.func, in words; None where all is."""
    wanted, found = outcome(word, name, None), outcome(word, name, at)
    if isinstance(wanted, Exception):
        writes = any(said in str(wanted) for said in ("in-place", "inplace", "immutable"))  # some are carried out that torch.func refuses
        return None if writes or isinstance(found, Exception) else "does not raise"
    if isinstance(found, Exception):
        return f"{type(found).__name__}: {str(found)[:200]}"
    same = all(
        a.shape == b.shape and torch.allclose(a, b, atol=1e-9, rtol=1e-9, equal_nan=True) for a, b in zip(wanted, found, strict=True)
    )
    return None if same else "WRONG"


def words(length: int) -> Iterator[tuple[str, ...]]:
    return itertools.product(TRANSFORMS, repeat=length)


def cases(length: int) -> Iterator[tuple[tuple[str, ...], str, int]]:
    for n in range(1, length + 1):
        for word in words(n):
            for name in FUNCTIONS:
                for at in range(n + 1):
                    yield word, name, at


def main(length: int, some: int | None = None, seed: int = 0) -> int:
    chosen = list(cases(length))
    if some is not None:
        chosen = random.Random(seed).sample([case for case in chosen if len(case[0]) == length], some)
    kinds: Counter[str] = Counter()
    for word, name, at in chosen:
        said = differs(word, name, at)
        kinds["agree" if said is None else said.split(":")[0]] += 1
        if said is not None:
            print("∘".join(word), name, f"compiled at {at}:", said.replace("\n", " "), flush=True)
    print(dict(kinds))
    return int(len(kinds) > 1)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
