"""``python -m tests.laws.numbers N [FIRST]``: numbers of Python among tensors, eager against compiled, on sequences of
values.

Two sources of functions: each operator and each function of PyTorch that takes a number (``operators``, ``functions``),
and random programs of tensors and numbers (``program``). Each is compiled once and called with one value after the
other; a call must return what eager PyTorch returns, or raise an exception of the same class.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from attrs import frozen
from torch import Tensor
from torch.testing._internal import common_utils
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import funcgrad as fg
from funcgrad.torch_private.operators import aten_overloads, draws_random, writes_inputs

SPECIAL: tuple[Any, ...] = (
    0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 0.7, -3.3, math.inf, -math.inf, math.nan, 1e-300, 1e300, 0, 1, -1, 2, True, False,
)  # fmt: skip
"""Numbers at which formulas are other formulas."""


# ── comparing ────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Raised:
    """What a call raised. Which of several exceptions eager PyTorch raises is no promise; that it raises is."""

    error: Exception


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return Raised(error)


def difference(found: Any, expected: Any) -> str | None:
    """How two outcomes differ, but for rounding errors of tensors; numbers are the same to the last bit."""
    if isinstance(found, Raised) or isinstance(expected, Raised):
        both = isinstance(found, Raised) and isinstance(expected, Raised)
        same = both and not isinstance(found.error, (AssertionError, NameError, AttributeError, fg.GraphError))
        return None if same else f"{_short(found)} for {_short(expected)}"
    ones, others = tree_leaves(found), tree_leaves(expected)
    if len(ones) != len(others):
        return f"{len(ones)} results for {len(others)}"
    return next((text for a, b in zip(ones, others, strict=True) if (text := _of_leaves(a, b))), None)


def _of_leaves(a: Any, b: Any) -> str | None:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        return None if type(a) is type(b) and repr(a) == repr(b) else f"{a!r} for {b!r}"
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{a.dtype}{list(a.shape)} for {b.dtype}{list(b.shape)}"
    if a.layout != b.layout:
        return f"{a.layout} for {b.layout}"
    a, b = (t if t.layout == torch.strided else t.to_dense() for t in (a, b))
    limit = (
        1e-9
        if a.dtype in (torch.float64, torch.complex128)
        else 3e-2
        if a.dtype in (torch.float16, torch.bfloat16)
        else 1e-4
    )
    finite = b.detach()[b.isfinite()].abs() if b.dtype.is_floating_point else torch.ones(1)
    scale = float(finite.max()) if finite.numel() else 1.0
    try:
        torch.testing.assert_close(a, b, rtol=limit, atol=limit * min(max(scale, 1.0), 1e30), equal_nan=True)
    except AssertionError:
        return f"{a.flatten()[:8].tolist()} for {b.flatten()[:8].tolist()}"
    return None


def _short(value: Any) -> str:
    return f"{type(value.error).__name__}: {str(value.error)[:200]}" if isinstance(value, Raised) else str(value)[:200]


# ── calls of PyTorch that take a number ──────────────────────────────────────────────────────────────────────────


@frozen
class Case:
    """A function of tensors and a number, and tensors to call it with."""

    name: str
    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]


UNSUITED = (
    "rand", "bernoulli", "normal", "dropout", "multinomial", "poisson", "cauchy", "exponential", "geometric", "rrelu",
    "fractional",
    "lstsq",  # of a matrix that rcond leaves no rank
    "attention", "empty", "quantize", "qparams", "constrain_range", "int8",
)  # fmt: skip
"""Parts of the names of what draws random numbers, returns memory nobody wrote to, or is no function for users."""


def operators() -> Iterator[Case]:
    """ATen's overloads with a parameter that is a number, on random matrices."""
    torch.manual_seed(0)
    x, y, z = torch.randn(3, 4), torch.randn(3, 4), torch.rand(3, 4) + 0.5
    for op in aten_overloads():
        name = str(op).removeprefix("aten.")
        if writes_inputs(op) or draws_random(op) or name.startswith("_") or any(part in name for part in UNSUITED):
            continue
        given: list[Any] = []
        numbers: list[int] = []
        tensors = iter((x, y, z))
        for argument in op._schema.arguments:
            kind = str(argument.type)
            if kind in ("number", "float", "Optional[number]", "Optional[float]") and not argument.kwarg_only:
                numbers.append(len(given))
                given.append(argument.default_value if argument.has_default_value() else 0.7)
            elif argument.has_default_value() or argument.kwarg_only:
                given.append(argument.default_value) if not argument.kwarg_only else None
            elif kind == "Tensor":
                given.append(next(tensors, x))
            else:
                given.append(
                    argument.name != "is_result"
                    and {"List[int]": [3, 4], "int": 1, "bool": True, "str": "mean"}.get(kind)
                )
        for at in numbers:
            if not isinstance(
                outcome(lambda op=op, given=given, at=at: op(*given[:at], 0.7, *given[at + 1 :])), Raised
            ):
                used = tuple(v for v in given if isinstance(v, Tensor))
                yield Case(f"{name}[{at}]", _with_number(op, given, at), used)


def _with_number(op: Any, given: list[Any], at: int) -> Callable[..., Any]:
    def call(v: Any, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        return op(*(v if i == at else next(rest) if isinstance(a, Tensor) else a for i, a in enumerate(given)))

    return call


def functions() -> Iterator[Case]:
    """Functions of PyTorch's own database of samples, with a number of a sample in the place of which others are
    put."""
    common_utils.extract_test_fn = lambda: None  # looks through all modules, for each sample
    for info in op_db:
        if (
            torch.float32 not in info.supported_dtypes("cpu")
            or any(part in info.name for part in UNSUITED)
            or info.name.startswith("_")
        ):
            continue
        torch.manual_seed(0)
        seen: set[str] = set()
        for sample in itertools.islice(info.sample_inputs("cpu", torch.float32), 6):
            leaves, spec = tree_flatten(((sample.input, *sample.args), sample.kwargs))
            for at, leaf in enumerate(leaves):
                tensors = tuple(leaf for leaf in leaves if isinstance(leaf, Tensor))
                where = f"{info.name}[{at}]"
                fits = type(leaf) is float and where not in seen and tensors and all(t.numel() < 400 for t in tensors)
                if fits and not isinstance(
                    outcome(lambda: info.op(sample.input, *sample.args, **sample.kwargs)), Raised
                ):
                    seen.add(where)
                    yield Case(where, _in_place_of(info.op, leaves, spec, at), tensors)


def _in_place_of(op: Any, leaves: list[Any], spec: Any, at: int) -> Callable[..., Any]:
    def call(v: Any, *tensors: Tensor) -> Any:
        rest = iter(tensors)
        args, kwargs = tree_unflatten(
            [v if i == at else next(rest) if isinstance(a, Tensor) else a for i, a in enumerate(leaves)], spec
        )
        return op(*args, **kwargs)

    return call


REFUSALS = (fg.DataDependentControlFlowError, fg.DataDependentShapeError, fg.UnsupportedTensorError)


def check_case(case: Case, backend: str, seed: int, calls: int = 8) -> str | None:
    """How the compiled function differs from eager PyTorch on a sequence of values; None if it does not."""
    values = random.Random(f"{seed}{case.name}").choices(SPECIAL, k=calls)
    compiled = fg.jit(case.function, backend=backend)
    for i, v in enumerate(values):
        # some write to what they are given (an embedding with max_norm)
        expected, found = (
            outcome(lambda f=f: f(v, *(t.clone() for t in case.tensors))) for f in (case.function, compiled)
        )
        if i == 0 and isinstance(found, Raised) and type(found.error) in REFUSALS:
            return None  # refused by name: it reads values of tensors, or is of another layout
        text = difference(found, expected)
        if text is not None:
            return f"{case.name} on {backend}, values {values[: i + 1]}: {text}"
    return None


# ── random programs ──────────────────────────────────────────────────────────────────────────────────────────────

_NUMBERS = (
    "{a} + {b}", "{a} - {b}", "{a} * {b}", "{a} / {b}", "{a} // {b}", "{a} % {b}", "{a} ** {b}", "-{a}", "abs({a})",
    "min({a}, {b})",
    "max({a}, {b})", "{a} * 0.1 * 3", "({a} + 1e16) - 1e16", "{a} - {a}", "round({a}, 1)", "{a} * x.shape[0]",
    "x.shape[0] / 3 * {a}",
    "x.shape[0] * {a}", "(1.5 if {a} > {b} else {a})", "({a} if {a} else 2.0)", "float(bool({a}))",
    "math.exp(min({a}, 3))", "2 ** {a}",
    "({a} if isinstance({a}, float) else 3.0)", "float(math.floor({a}))", "1 / {a}", "sum([{a}, {b}, 1])",
    "divmod({a}, {b})[1]",
)  # fmt: skip
_TENSORS = (
    "{t} * {a}", "{a} * {t}", "{t} + {a}", "{t} - {a}", "{a} - {t}", "{t} / {a}", "{a} / {t}", "{t} ** {a}",
    "{t}.add({u}, alpha={a})",
    "{t}.clamp({a}, {b})", "{t}.clamp(min={a})", "{t}.lerp({u}, {a})", "torch.where({t} > {a}, {u}, {b})",
    "{t}.masked_fill({u} > 0, {a})",
    "torch.softmax({t} / {a}, -1)", "F.leaky_relu({t}, {a})", "F.elu({t}, {a})", "F.softplus({t}, {a})",
    "{t}.addcmul({t}, {u}, value={a})",
    "{t}.sum(0) * {a} + {u}", "(2 * {t}.sum()) * {u}", "{t} * ({u} < {a})", "torch.full_like({t}, {a}) * {u}",
    "{t}.sub({u}, alpha={a})",
    "{t}.sin()", "{t} * {u}", "{t} + {u}", "torch.vmap(lambda r: 2 * r.sum() + {a})({t})[:, None] * {u}",
    "torch.maximum({t}, {u} * {a})",
    "torch.fmod({t}, {a})", "torch.vmap(lambda r: {a} * r.sum() * r)({t})", "{t}.clone().mul_({a})",
    "torch.remainder({t}, {a})",
    "F.huber_loss({t}, {u}, delta={a})  * {u}", "F.layer_norm({t}, {t}.shape[-1:], eps=abs({a})) * {u}",
    "{t} * torch.tensor({a})",
)  # fmt: skip


def program(seed: int) -> str:
    """The text of a function of two tensors and two numbers."""
    draw = random.Random(seed)
    numbers, tensors, lines = ["a", "b"], ["x", "y"], ["def f(x, y, a, b):"]
    for i in range(draw.randint(2, 6)):
        is_number = draw.random() < 0.4
        text = draw.choice(_NUMBERS if is_number else _TENSORS)
        a, b, t, u = draw.choice(numbers), draw.choice(numbers), draw.choice(tensors), draw.choice(tensors)
        name = f"{'n' if is_number else 't'}{i}"
        (numbers if is_number else tensors).append(name)
        lines.append(f"    {name} = {text.format(a=a, b=b, t=t, u=u)}")
    if draw.random() < 0.3:
        lines.append(
            f"    if {draw.choice(numbers)} {draw.choice(['>', '<=', '==', '!='])} "
            f"{draw.choice(['0', '1', '0.5', 'b'])}:"
        )
        lines.append(f"        {tensors[-1]} = {tensors[-1]} * 3")
    return "\n".join([*lines, f"    return {tensors[-1]}, {', '.join(numbers[2:]) or 'a'}"])


_MODES = ("jit", "backward", "grad")


def report(seed: int) -> str | None:
    """How a random program differs from eager PyTorch, compiled in one of three ways, on one of two backends; None
    if it does not."""
    draw = random.Random(-1 - seed)
    mode, backend, dtype = draw.choice(_MODES), draw.choice(["c", "aten"]), draw.choice([torch.float64, torch.float32])
    text = program(seed)
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "math": math}
    exec(text, names)
    f = names["f"]
    torch.manual_seed(seed)
    x, y = torch.randn(3, 4, dtype=dtype), torch.randn(3, 4, dtype=dtype)

    def loss(x: Tensor, y: Tensor, a: Any, b: Any) -> Tensor:
        return f(x, y, a, b)[0].to(dtype).sum()

    compiled: Any = (
        fg.grad_compiled(loss, argnums=(0, 1), backend=backend) if mode == "grad" else fg.jit(f, backend=backend)
    )
    eager: Any = torch.func.grad(loss, argnums=(0, 1)) if mode == "grad" else f
    values = [(draw.choice(SPECIAL), draw.choice(SPECIAL[:13])) for _ in range(6)]
    if draw.random() < 0.5:  # floats alone: those are the symbols
        values = [(float(a), b) for a, b in values]
    for i, (a, b) in enumerate(values):
        expected, found = (outcome(lambda g=g: _called(g, mode, x, y, a, b)) for g in (eager, compiled))
        if isinstance(expected, Raised) and isinstance(expected.error, RuntimeError) and not isinstance(found, Raised):
            # an operator that nobody reads does not run, nor refuse what it is given; what Python raises, is raised
            continue
        different = difference(found, expected)
        if different is not None:
            return f"# seed {seed}: {mode} on {backend}, {dtype}\n{text}\n# at {values[: i + 1]}: {different}"
    return None


def _called(g: Callable[..., Any], mode: str, x: Tensor, y: Tensor, a: Any, b: Any) -> Any:
    if mode != "backward":
        return g(x, y, a, b)
    leaves = [t.clone().requires_grad_() for t in (x, y)]
    out, *numbers = g(*leaves, a, b)
    if out.requires_grad:
        out.sum().backward()
    return out.detach(), numbers, [t.grad for t in leaves]


def quietly(check: Callable[[], str | None]) -> str | None:
    """What a check says, and nothing else."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)  # calls that raise are meant to
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return check()


def main(n: int, first: int) -> int:
    """``n`` random programs, and every ``SPECIAL`` case of every call of PyTorch where ``n`` is 0."""
    torch.set_num_threads(1)
    failed = done = 0
    if n:
        checks: Iterator[Callable[[], str | None]] = (
            (lambda seed=seed: report(seed)) for seed in range(first, first + n)
        )
    else:
        cases = itertools.chain(operators(), functions())
        checks = ((lambda c=c, b=b: check_case(c, b, first, 12)) for c in cases for b in ("c", "aten"))
    for check in checks:
        found, done = quietly(check), done + 1
        if found is not None:
            failed += 1
            print(found, end="\n\n", flush=True)
    print(f"{done} functions: {failed} differ")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(*[*map(int, sys.argv[1:]), 0][:2]))
