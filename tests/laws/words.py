"""Words of torch.func's transforms over functions that write, alias, draw and close over tensors, compiled at each
position.

A word ``("vmap", "grad")`` is ``vmap(grad(f))``. Compiled at position 1 it is ``vmap(compiled grad(f))``, at position 2
``vmap(grad(compiled f))``. The oracle is the same word in eager torch.func, in float64: both give the same numbers, and
leave the same in what is written to, or both raise. A second call runs programs of the first one, and makes none.

``python -m tests.laws.words LENGTH [CASES [SEED]]`` runs all words up to a length, or so many random ones of that
length; ``python -m tests.laws.words LENGTH PART/PARTS`` of all words of that length that part.
"""

from __future__ import annotations

import functools
import gc
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, func

import funcgrad as fg
from funcgrad.runtime.cache import ProgramCache
from funcgrad.runtime.call import MISS

from .words_functions import FUNCTIONS, Fn

# ── transforms: each makes of a function of one tensor another one ──────────────────────────────────────────────────


def _grad(f: Fn, randomness: str) -> Fn:
    return func.grad(lambda x: f(x).sum())


def _vjp(f: Fn, randomness: str) -> Fn:
    def apply(x: Tensor) -> Tensor:
        out, pull = func.vjp(f, x)
        return pull(out.detach().cos())[0]

    return apply


def _jvp(f: Fn, randomness: str) -> Fn:
    return lambda x: func.jvp(f, (x,), (x.detach().cos(),))[1]


TRANSFORMS: dict[str, Callable[[Fn, str], Fn]] = {
    "grad": _grad,
    "vjp": _vjp,
    "jvp": _jvp,
    "vmap": lambda f, randomness: func.vmap(f, randomness=randomness),
    "jacfwd": lambda f, randomness: func.jacfwd(f, randomness=randomness),
    "jacrev": lambda f, randomness: func.jacrev(f),
    "hessian": lambda f, randomness: func.hessian(f),
}


def _fg_vjp(f: Fn, randomness: Any) -> Fn:
    def apply(x: Tensor) -> Tensor:
        out, pull = fg.vjp_compiled(f, x, backend="aten")
        return pull(out.detach().cos())[0]

    return apply


COMPILED: dict[str, Callable[[Fn, Any], Fn]] = {
    "grad": lambda f, randomness: fg.grad_compiled(lambda x: f(x).sum(), backend="aten"),
    "vjp": _fg_vjp,
    "jvp": lambda f, randomness: lambda x: fg.jvp_compiled(f, (x,), (x.detach().cos(),), backend="aten")[1],
    "vmap": lambda f, randomness: fg.vmap_compiled(f, randomness=randomness, backend="aten"),
    "jacfwd": lambda f, randomness: fg.jacfwd_compiled(f, randomness=randomness, backend="aten"),
    "jacrev": lambda f, randomness: fg.jacrev_compiled(f, backend="aten"),
    "hessian": lambda f, randomness: fg.hessian_compiled(f, backend="aten"),
}


# ── the law ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def point(word: tuple[str, ...]) -> Tensor:
    """An argument with a dimension for each vmap, and one more where what comes out is not too large for it."""
    batch = [2] * word.count("vmap")
    larger = sum({"jacfwd": 1, "jacrev": 1, "hessian": 2}.get(letter, 0) for letter in word)
    shape = [*batch, *([2] if larger <= 3 else []), 3]
    n = torch.Size(shape).numel()
    return torch.linspace(-1, 1.1, n, dtype=torch.float64).view(shape)


def applied(word: tuple[str, ...], name: str, at: int | None) -> tuple[Fn, tuple[Tensor, ...]]:
    """The word over a function, compiled at a position: 0 is the outermost transform, ``len(word)`` the function;
    and what is written."""
    made = FUNCTIONS[name]()
    f: Any = fg.jit(made.f, backend="aten") if at == len(word) else made.f
    if made.around is not None:
        f = made.around(f)
    for i, letter in reversed(list(enumerate(word))):
        f = (COMPILED if i == at else TRANSFORMS)[letter](f, made.randomness)
    return f, made.state


class Ran(Counter[str]):
    """Counts programs that are made and that run."""

    def counting(self) -> Any:
        find, add = ProgramCache.run_first_fit, ProgramCache.add

        def found(cache: ProgramCache, args: Any, kwargs: Any, *met: Any) -> Any:
            result = find(cache, args, kwargs, *met)
            self["ran"] += result is not MISS
            return result

        def added(cache: ProgramCache, *program: Any) -> None:
            self["made"] += 1
            add(cache, *program)

        return patch.multiple(ProgramCache, run_first_fit=found, add=added)


def outcome(word: tuple[str, ...], name: str, at: int | None, times: int = 2) -> Any:
    """What a word gives, called so often: results and written state, or the error."""
    torch.manual_seed(3)
    x = point(word)
    f, state = applied(word, name, at)
    ran = Ran()
    counting = ran.counting()  # a mistake of the law's own is no error of the word's
    try:
        results = [f(x).detach().clone() for _ in range(times - 1)]
        with counting:
            results.append(f(x).detach().clone())
    except Exception as error:
        return error
    if at is not None:
        if ran["made"]:
            return AssertionError(f"the last call made {ran['made']} programs")
        if not ran["ran"]:
            return AssertionError("no program ran")
    return [*results, *state, x]


_WRITES = ("in-place", "inplace", "in place", "immutable")
"""Said by torch.func where it refuses a write. Some of them are carried out."""


@functools.lru_cache(256)
def oracle(word: tuple[str, ...], name: str) -> Any:
    """What a word gives in eager torch.func, once for all positions."""
    found = outcome(word, name, None)
    return found.with_traceback(None) if isinstance(found, Exception) else found


def differs(word: tuple[str, ...], name: str, at: int) -> str | None:
    """What is not as in eager torch.func, in words; None where all is."""
    wanted, found = oracle(word, name), outcome(word, name, at)
    if isinstance(wanted, Exception):
        writes = any(said in str(wanted) for said in _WRITES)
        return None if writes or isinstance(found, Exception) else "does not raise"
    if isinstance(found, Exception):
        return f"{type(found).__name__}: {str(found)[:200]}"
    same = all(
        a.shape == b.shape and torch.allclose(a, b, atol=1e-9, rtol=1e-9, equal_nan=True)
        for a, b in zip(wanted, found, strict=True)
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


def main(length: str, which: str = "", seed: str = "0") -> int:
    chosen = list(cases(int(length)))
    if which:
        chosen = [case for case in chosen if len(case[0]) == int(length)]
        part, _, parts = which.partition("/")
        chosen = (
            chosen[int(part) - 1 :: int(parts)] if parts else sorted(random.Random(int(seed)).sample(chosen, int(part)))
        )
    differs(("grad",), "smooth", 0)
    gc.freeze()  # what the first case has imported, no collection needs to walk again
    kinds: Counter[str] = Counter()
    for word, name, at in chosen:
        start = time.perf_counter()
        said = differs(word, name, at)
        seconds = time.perf_counter() - start
        kinds["agree" if said is None else said.split(":")[0]] += 1
        if said is not None or seconds > 10:
            print("∘".join(word), name, f"compiled at {at}, {seconds:.1f} s:", str(said).replace("\n", " "), flush=True)
    print(dict(kinds))
    return int(len(kinds) > 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
