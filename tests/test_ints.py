"""Ints of Python state among tensors: from its third value on one is a symbol, computed with as Python does,
whatever its value."""

from __future__ import annotations

import collections
import copy
import math
import operator
import statistics
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from laws.numbers import difference, outcome
from torch import Tensor

import funcgrad as fg
from funcgrad.capture.floats import Floats

X = torch.tensor([-2.0, -0.0, 0.0, 0.5, math.inf, math.nan, 3.0])
WHOLE = torch.tensor([-3, 0, 7, 2**40])
VALUES: tuple[Any, ...] = (
    3, 4, 5, 6, 0, 1, -1, 2, True, 7, 2.5, 2**24 + 1, 2**53 + 1, 2**62 + 1, -(2**70), 10**400, 9, False, "a", None, 11,
    12,
)  # fmt: skip
"""What is no int is another program; the largest are no int of C, and no float."""


class Counter:
    def __init__(self, n: Any = 3) -> None:
        self.n = n
        self.history = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
        self.last, self.items = 0, [0, 0]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mul": lambda x, s: x * s.n,
    "rmul": lambda x, s: s.n * x,
    "sub": lambda x, s: (x - s.n, s.n - x),
    "div": lambda x, s: (x / s.n, s.n / x),
    "floor": lambda x, s: (x[:4] // s.n, x[:4] % s.n, s.n // x[3:4]),
    "pow": lambda x, s: x ** (s.n % 5),
    "rpow": lambda x, s: (s.n % 5) ** x,
    "alpha": lambda x, s: x.add(x, alpha=s.n),
    "clamp": lambda x, s: x.clamp(-s.n, s.n),
    "where": lambda x, s: torch.where(x > 0, x, s.n),
    "where of ints": lambda x, s: torch.where(x > 0, 1, s.n),
    "masked": lambda x, s: x.masked_fill(x > 0, s.n),
    "compare": lambda x, s: (x < s.n, s.n < x, x == s.n),
    "in place": lambda x, s: x.clone().mul_(s.n).add_(s.n),
    "integer": lambda x, s: (WHOLE * s.n, WHOLE + s.n, s.n > WHOLE, WHOLE // 3 + s.n),
    "truth": lambda x, s: (x > 0) * s.n,
    "of no dimensions": lambda x, s: (x[0] * s.n, x[0] < s.n, WHOLE[0] * s.n),
    "half": lambda x, s: (x.bfloat16() * s.n, x.half() + s.n),
    "complex": lambda x, s: (x[2:4] + 1j) * s.n,
    "full": lambda x, s: (torch.full((2,), s.n), torch.tensor(s.n), torch.tensor([s.n, 1])),
    "size": lambda x, s: torch.ones(abs(s.n) % 4, 2),
    "index": lambda x, s: x[s.n % 7],
    "slice": lambda x, s: x[: s.n % 7],
    "roll": lambda x, s: x.roll(s.n % 3),
    "view": lambda x, s: x[:6].view(s.n % 2 + 1, -1),
    "range": lambda x, s: x + sum(i * 0.5 for i in range(s.n % 4)),
    "list": lambda x, s: x * s.history[s.n % 7],
    "dict": lambda x, s: x * {0: 2, 1: 3, 2: 5}[s.n % 3],
    "if": lambda x, s: x * 2 if s.n else x * 3,
    "compared": lambda x, s: x * 2 if 3 < s.n < 7 else x,
    "schedule": lambda x, s: x * (0.1 * min(1.0, (s.n + 1) / 5)),
    "converted": lambda x, s: (x * float(s.n), float(s.n) / 3, int(s.n), int(s.n / 3), int(s.n) + 1, float(-s.n)),
    "converted size": lambda x, s: x[: int(s.n * 0.5) % 7].sum() * int(abs(s.n) % 5 * 0.7),
    "asked and converted": lambda x, s: x * float(s.n) if isinstance(s.n, (int, float)) else x * s.n,
    "bits": lambda x, s: (x * (s.n & 3), s.n | 8, s.n ^ 5, s.n >> 1, ~s.n),
    "shift": lambda x, s: (x, 1 << s.n % 70, s.n << 2),
    "powers": lambda x, s: (x, 0.9**s.n, 2 ** -abs(s.n % 9), (s.n % 7) ** 3, pow(s.n, 3, 7), (-8.0) ** (s.n / 2)),
    "divided": lambda x, s: (x, s.n / 7, s.n // 7, s.n % 7, divmod(s.n, -3), 7 // s.n, 7 % s.n, 1 / s.n),
    "returned": lambda x, s: (x, s.n, s.n + 1, -s.n, s.n > 1, s.n - s.n, s.n * 0.1 * 3, s.n * s.n, abs(s.n), +s.n),
    "rounded": lambda x,
    s: (x, round(s.n), round(s.n, -1), round(s.n / 3), math.floor(s.n), math.ceil(s.n), math.trunc(s.n)),
    "math": lambda x, s: x * math.sqrt(abs(s.n % 5)),
    "text": lambda x, s: x * len(f"{s.n}"),
    "formatted": lambda x, s: x * float(f"{s.n:.1f}"),
    "isinstance": lambda x, s: x if isinstance(s.n, int) and not isinstance(s.n, bool) else x * 2,
    "methods": lambda x,
    s: (x, isinstance(s.n, int) and (s.n.bit_length(), s.n.numerator, s.n.real, s.n.imag, s.n.conjugate())),
    "float of it": lambda x, s: x * float(s.n),
    "int of it": lambda x, s: x * int(s.n),
    "mixed": lambda x, s: (x * (s.n + 0.5), 0.5 - s.n, s.n + True, s.n * x.shape[0]),
    "numpy": lambda x, s: (x, float(np.float64(2) * s.n), float(np.sqrt(abs(s.n))), np.arange(s.n % 4).sum().item()),
    "complex number": lambda x, s: (x, s.n * 1j, s.n + (1 + 2j)),
    "kept": lambda x, s: (x, [s.n], {"n": s.n + 1}, (s.n, s.n)),
    "equal to none": lambda x, s: x if s.n is None or s.n == "a" else x * 2,
    "repeated": lambda x, s: (x, [1] * (s.n % 4), "ab" * (s.n % 3)),
    "dropped": lambda x, s: torch.nn.functional.leaky_relu(x, s.n % 5) + torch.nn.functional.elu(x, s.n % 5),
    "dimension": lambda x, s: x[:6].view(2, 3).sum(s.n % 2),
}  # fmt: skip


@pytest.mark.sweep(12)
@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_value_is_special(name: str, backend: str) -> None:
    function, ours, theirs = FUNCTIONS[name], Counter(), Counter()
    compiled = fg.jit(lambda x: function(x, ours), backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.RecompileWarning)
        for n in VALUES:
            ours.n = theirs.n = n
            found, expected = outcome(lambda: compiled(X)), outcome(lambda: function(X, theirs))
            assert difference(found, expected) is None, (n, difference(found, expected))
            assert type(ours.n) is type(theirs.n) and ours.n == theirs.n


# ── how many programs there are ──────────────────────────────────────────────────────────────────────────────────


class Adam(Counter):
    """One step by hand, as papers write it."""

    def __init__(self) -> None:
        self.t, self.lr, self.m, self.v = 0, 1e-2, torch.zeros(7), torch.zeros(7)

    def __call__(self, g: Tensor) -> Tensor:
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g * g
        return self.lr * (self.m / (1 - 0.9**self.t)) / ((self.v / (1 - 0.999**self.t)).sqrt() + 1e-8)


class AdamInPlace(Adam):
    """As torch.optim does it without tensors of steps."""

    def __call__(self, g: Tensor) -> Tensor:
        self.t += 1
        self.m.lerp_(g, 1 - 0.9)
        self.v.mul_(0.999).addcmul_(g, g, value=1 - 0.999)
        step = self.lr / (1 - 0.9**self.t)
        denominator = (self.v.sqrt() / (1 - 0.999**self.t) ** 0.5).add_(1e-8)
        return torch.zeros(7).addcdiv_(self.m, denominator, value=-step)


class AdamOfMath(Adam):
    """With the functions of math."""

    def __call__(self, g: Tensor) -> Tensor:
        self.t += 1
        self.m.mul_(0.9).add_(g, alpha=0.1)
        self.v.mul_(0.999).addcmul_(g, g, value=0.001)
        step = self.lr * math.sqrt(1 - math.pow(0.999, self.t)) / (1 - 0.9**self.t)
        return -step * self.m / (self.v.sqrt() + 1e-8)


class Cosine(Counter):
    """Down half a wave, in steps of five; and as much again after each restart."""

    def __init__(self) -> None:
        self.step = 0

    def __call__(self, x: Tensor) -> Tensor:
        lr = (
            0.5
            * (1 + math.cos(math.pi * (self.step % 50) / 50))
            * 0.9 ** math.floor(self.step / 5)
            * math.exp(-self.step / 100)
        )
        self.step += 1
        return x * lr


class WarmUp(Counter):
    def __init__(self) -> None:
        self.step, self.lr = 0, 0.0

    def __call__(self, x: Tensor) -> Tensor:
        self.lr = 0.1 * min(1.0, (self.step + 1) / 20)
        self.step += 1
        return x * self.lr


class Decayed(Counter):
    def __init__(self) -> None:
        self.step, self.lr = 0, 0.5

    def __call__(self, x: Tensor) -> Tensor:
        self.step += 1
        return x * (self.lr / (1 + self.step)) + x / self.step


class Now(Counter):
    """Every tenth time, something else; another from the hundredth on."""

    def __init__(self) -> None:
        self.step, self.log = 0, 0.0

    def __call__(self, x: Tensor) -> Any:
        self.step += 1
        y = x * self.step if self.step % 10 == 0 else x + 1
        return (y * 2 if self.step > 100 else y), self.step


class TwoCounters(Counter):
    def __init__(self) -> None:
        self.step, self.epoch = 0, 0

    def __call__(self, x: Tensor) -> Tensor:
        self.step = self.step + 1
        if self.step % 30 == 0:
            self.epoch += 1
        return x * 0.9**self.epoch / (self.step % 30 + 1)


LOOPS = {Adam: 3, AdamInPlace: 3, AdamOfMath: 3, Cosine: 3, WarmUp: 5, Decayed: 3, Now: 6, TwoCounters: 7}
GRADIENT = torch.tensor([-2.0, -0.5, 0.25, 0.5, 1.0, -1.0, 3.0])


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("kind", LOOPS)
def test_a_counter_that_is_read_compiles_few_programs(kind: Any, backend: str) -> None:
    ours, theirs = kind(), kind()
    compiled = fg.jit(lambda x: ours(x), backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.RecompileWarning)
        for i in range(150):
            found, expected = compiled(GRADIENT + i), theirs(GRADIENT + i)
            assert difference(found, expected) is None, (i, difference(found, expected))
            assert difference(list(vars(ours).values()), list(vars(theirs).values())) is None, i
    assert compiled.cache_info().misses <= LOOPS[kind]


ONE = "mul sub div clamp where masked half schedule bits mixed divided isinstance kept".split()
FEW = "if compared size index slice roll range list dict dimension repeated".split()


@pytest.mark.parametrize("name", [*ONE, "in place", *FEW])
def test_values_that_ask_the_same_are_served_by_one_program(name: str) -> None:
    state = Counter()
    compiled = fg.jit(lambda x: FUNCTIONS[name](x, state), backend="aten")
    for _ in range(2):
        for state.n in range(3, 66):
            assert difference(compiled(X), FUNCTIONS[name](X, state)) is None
    assert compiled.cache_info().misses <= (14 if name in FEW else 3)


def test_what_takes_the_value_itself_compiles_for_each_and_says_so_at_the_fourth() -> None:
    state = Counter()
    compiled = fg.jit(lambda x: x * state.history[state.n], backend="aten")
    for state.n in (0, 1, 2):
        compiled(X)
    state.n = 3
    with pytest.warns(fg.RecompileWarning, match="compiles for the 4th time.*state.n"):
        assert difference(compiled(X), X * 8) is None


def test_two_values_are_two_programs() -> None:
    state = Counter(2)
    compiled = fg.jit(lambda x: x * state.n, backend="aten")
    for state.n in (2, 5, 2, 5):
        compiled(X)
    assert "state_n" not in compiled.program(X).call.text and compiled.cache_info().misses == 2
    state.n = 7
    assert "type(state_n) is not int" in compiled.program(X).call.text


def test_what_is_not_dynamic_compiles_for_each() -> None:
    for options in ({"dynamic": False}, {"numerics": "eager"}):
        state = Counter()
        compiled = fg.jit(lambda x: x * state.n, backend="aten", **options)
        with pytest.warns(fg.RecompileWarning):
            for state.n in range(6):
                assert torch.equal(compiled(GRADIENT), GRADIENT * state.n)
        assert compiled.cache_info().misses == 6


@pytest.mark.parametrize("of", ["int", "float"])
def test_functions_of_math(of: str) -> None:
    state = Counter()
    functions = {
        "sqrt": math.sqrt, "log": lambda v: math.log(v, 3), "atan2": lambda v: math.atan2(v, 2),
        "hypot": lambda v: math.hypot(v, 3, 4),
        "floor": lambda v: (math.floor(v / 3), math.ceil(v / 3), math.trunc(-v / 3)), "nan": math.isnan,
        "gamma": math.lgamma,
        "log10": lambda v: math.log10(v - 5), "fmod": lambda v: math.fmod(7, v), "isqrt": lambda v: math.isqrt(v),
        "exp": math.exp,
    }  # fmt: skip
    for name, function in functions.items():
        compiled = fg.jit(lambda x, function=function: (x, function(state.n)), backend="aten")
        for n in (1, 2, 3, 4, 5, 6, 7, 30, 1000, 10**400, 0, -1, 10):
            state.n = n if of == "int" or n > 10**300 else n + 0.5
            found, expected = outcome(lambda: compiled(X)), outcome(lambda: (X, function(state.n)))
            assert difference(found, expected) is None, (name, n, difference(found, expected))
    assert all(
        type(function).__name__ == "builtin_function_or_method"
        for function in vars(math).values()
        if callable(function)
    )


@pytest.mark.parametrize("where", ["item", "global", "closure", "slot", "nested"])
def test_wherever_it_lives(where: str) -> None:
    class Slots:
        __slots__ = ("n",)

    space: dict[str, Any] = {"slots": Slots(), "d": {"n": 0}, "nested": {"a": [Counter()]}, "n": 0}
    source = {
        "item": "def put(v): d['n'] = v\ndef f(x): return x * d['n']",
        "global": "def put(v):\n    global n; n = v\ndef f(x): return x * n",
        "closure": "def make():\n    k = 0\n    def put(v):\n        nonlocal k; k = v\n    return put, lambda x: x * "
        "k\nput, f = make()",
        "slot": "def put(v): slots.n = v\ndef f(x): return x * slots.n",
        "nested": "def put(v): nested['a'][0].n = v\ndef f(x): return x * nested['a'][0].n",
    }[where]
    exec(source, space)
    compiled = fg.jit(space["f"], backend="aten")
    for n in range(20):
        space["put"](n)
        assert torch.equal(compiled(GRADIENT), GRADIENT * n)
    assert compiled.cache_info().misses == 3


@pytest.mark.parametrize("backend", ["c", "aten"])
def test_gradients(backend: str) -> None:
    def loss(x: Tensor) -> Tensor:
        state.n += 1
        return (x**3 * state.n / (1 - 0.9**state.n)).sum() + (x.sin() - state.n).pow(2).mean()

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        leaf = x.clone().requires_grad_()
        jitted(leaf).backward()
        assert leaf.grad is not None
        return leaf.grad, leaf

    state = Counter(0)
    gradient, jitted = fg.value_and_grad_compiled(loss, backend=backend), fg.jit(loss, backend=backend)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.RecompileWarning)
        for n in (*range(12), 100, 10**6):
            state.n = n
            leaf = GRADIENT.clone().requires_grad_()
            expected = loss(leaf)
            (slope,) = torch.autograd.grad(expected, leaf)
            for call in (lambda: gradient(GRADIENT), lambda: (expected, step(GRADIENT)[0])):
                state.n = n
                value, found = call()
                torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-4)
                torch.testing.assert_close(found, slope, rtol=1e-4, atol=1e-4)
                assert state.n == n + 1
    assert gradient.cache_info().misses <= 4 and jitted.cache_info().misses <= 4


def test_a_second_derivative_has_the_number_of_its_forward_pass() -> None:
    state = Counter()

    def f(x: Tensor) -> Tensor:
        state.n += 1
        return (x**3 * state.n).sum()

    compiled = fg.jit(f)
    for n in range(1, 30):
        state.n = n
        x = GRADIENT.clone().requires_grad_()
        (g,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x)
        torch.testing.assert_close(h, 6 * GRADIENT * (n + 1))
        assert state.n == n + 1
    assert compiled.cache_info().misses <= 5


def test_a_symbol_is_an_int_to_python() -> None:
    n = Floats().symbol("n", 5)
    assert isinstance(n, int) and not isinstance(n, (bool, float)) and copy.deepcopy(n) is n
    assert [*range(n)] == [0, 1, 2, 3, 4] and {5: 1}[n] == 1 and f"{n} {n:03d} {n!r}" == "5 005 5"
    asked = n.node.floats.guards
    assert list(asked) == ["int_0 == 5", "(int_0 == 5)"]


ASKED = [
    "type(v) is int",
    "type(v) is float",
    "type(v).__name__ == 'int'",
    "v.__class__ is float",
    "type(v) in (int, bool)",
]


STORED = {
    "capped": "s.n = min(s.n + 1, 6)",
    "in a ring": "s.n = (s.n + 1) % 4",
    "kept": "s.last = s.n",
    "exchanged": "s.n, s.last = s.last, s.n",
    "in a list": "s.items[0] = min(s.items[0] + 1, 6)",
    "exchanged in a list": "s.items[0], s.items[1] = s.items[1], s.items[0]",
    "appended": "s.items.append(s.n)",
    "a capped float": "s.n = min(s.n + 0.5, 6.0)",
}


@pytest.mark.parametrize(
    "asked, programs",
    [
        ("n if type(n) is int else 2.0", 3),
        ("n * {int: 2.0, float: 3.0}.get(type(n), 0.5)", 3),
        ("n * kind(n)", 3),
        ("n * (type(n) is type(n + 1)) * isinstance(n, type(3))", 3),
        ("n * (2 if [*map(type, [n])] == [int] else 3)", 3),
        ("n * made().k(n)", 3),
        ("n * (lambda v: 2 if type(v) is int else 3)(n)", 3),
        ("n * (2 if asks(n) is int else 3)", 5),  # who knows what it asks
    ],
)
@pytest.mark.parametrize("is_float", [False, True])
def test_types_of_symbols_are_those_of_numbers(asked: str, programs: int, is_float: bool) -> None:
    source = f"""
def kind(v): return 2.0 if type(v) in (int, bool) else 3.0
class made:
    def k(self, v): return [2.0 if type(w) is int else 3.0 for w in [v]][0]
def f(x):
    n = s.n
    s.last = type(n)
    return x * ({asked})
"""
    worlds = [{"s": types.SimpleNamespace(n=0), "asks": type} for _ in range(2)]
    for space in worlds:
        exec(source, space)
    ours, theirs = worlds
    compiled = fg.jit(ours["f"], backend="aten")
    for i in range(5):
        for space in worlds:
            space["s"].n = i + 3.5 if is_float else i + 3
        assert torch.equal(compiled(GRADIENT), theirs["f"](GRADIENT)) and ours["s"].last is theirs["s"].last, i
    assert compiled.cache_info().misses <= programs


@pytest.mark.sweep(12)
@pytest.mark.parametrize("read", ["1", "s.n * (s.items[0] + s.last)"])
@pytest.mark.parametrize("statement", STORED.values(), ids=STORED.keys())
@pytest.mark.parametrize("transform", ["jit", "grad", "second"])
def test_what_is_stored_does_not_go_by_what_is_equal_now(statement: str, read: str, transform: str) -> None:
    worlds: list[dict[str, Any]] = [{"s": Counter(), "min": min}, {"s": Counter(), "min": min}]
    for space in worlds:
        exec(f"def f(x):\n    {statement}\n    return (x**3 * {read}).sum()", space)
    ours, theirs = worlds
    compiled = fg.grad_compiled(ours["f"], backend="aten") if transform == "grad" else fg.jit(ours["f"], backend="aten")

    def run(space: dict[str, Any], function: Callable[..., Any]) -> Tensor:
        if transform == "jit":
            return function(GRADIENT)
        if transform == "grad":
            return function(GRADIENT) if space is ours else torch.func.grad(function)(GRADIENT)
        leaf = GRADIENT.clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(leaf), leaf, create_graph=True)
        return torch.autograd.grad(slope.sum(), leaf)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.RecompileWarning)
        for i, n in enumerate((1, 2, 3, 4, 5, 6, 6, 6, 7, 10**6, 3, 3, 6, 2)):
            for space in worlds:
                space["s"].n = n if "0.5" not in statement else n + 0.25
                space["s"].last, space["s"].items = (n, [n, n]) if i % 3 else (n + 2, [n + 3, n])
            torch.testing.assert_close(run(ours, compiled), run(theirs, theirs["f"]))
            assert vars(ours["s"]) == vars(theirs["s"]), i
            for key, value in vars(ours["s"]).items():
                assert type(value) is type(vars(theirs["s"])[key])


ITEMS = {
    "counted": "s.items[0] += 1\n    return x * s.items[0]",
    "from the end": "s.items[-1] = s.items[0] + 1\n    s.items[0] += 1\n    return x * s.items[0]",
    "at the end alone": "s.items[-1] += 1\n    return x * s.items[-1]",
    "change places": "s.items[0], s.items[1] = s.items[1] + 1, s.items[0]\n    return x * s.items[0]",
    "carried over": "s.items[1] = s.items[0]; s.items[0] += 1\n    return x * s.items[1]",
}


@pytest.mark.parametrize("kind", [list, collections.deque])
@pytest.mark.parametrize("of", [int, float])
@pytest.mark.parametrize("body", ITEMS.values(), ids=ITEMS.keys())
def test_counters_in_a_list(body: str, of: type, kind: type) -> None:
    worlds: list[dict[str, Any]] = [{"s": Counter()}, {"s": Counter()}]
    for space in worlds:
        space["s"].items = kind([of(0), of(0)])
        exec(f"def f(x):\n    {body}\n    return x", space)
    ours, theirs = worlds
    compiled = fg.jit(ours["f"], backend="aten")
    for _ in range(12):
        assert torch.equal(compiled(GRADIENT), theirs["f"](GRADIENT))
        assert repr(ours["s"].items) == repr(theirs["s"].items)
    assert compiled.cache_info().misses <= 4
    for change in (
        lambda v: v.append(of(7)),
        lambda v: v.insert(0, of(5)),
        lambda v: v.pop(),
        lambda v: v.reverse(),
        lambda v: v.pop(),
    ):
        for space in worlds:
            change(space["s"].items)
        for _ in range(2):
            assert torch.equal(compiled(GRADIENT), theirs["f"](GRADIENT))
            assert repr(ours["s"].items) == repr(theirs["s"].items)


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("values", [(1, 2, 3, 4, 5, 6), (0.5, 1.5, 2.5, 3.5)])
def test_the_type_of_a_number_is_what_it_is(asked: str, values: tuple[Any, ...]) -> None:
    space: dict[str, Any] = {"s": Counter()}
    exec(f"def choose(x, v): return x * (2 if {asked} else 3) * v\ndef f(x): return choose(x, s.n)", space)
    read, given = fg.jit(space["f"], backend="aten"), fg.jit(space["choose"], backend="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.RecompileWarning)
        for space["s"].n in values:
            assert torch.equal(read(GRADIENT), space["f"](GRADIENT))
            assert torch.equal(given(GRADIENT, space["s"].n), space["f"](GRADIENT))
    assert "__" not in asked or read.cache_info().misses <= 3


def test_a_number_an_earlier_trace_left_behind_is_an_error() -> None:
    kept: list[Any] = []
    state = Counter()

    @fg.jit
    def f(x: Tensor) -> Tensor:
        if len(kept) < 9:
            list.append(kept, state.n + 1)
        return x * kept[-1]

    for state.n in (1, 2, 3, 4):
        try:
            f(X)
        except fg.FuncgradError:
            break
    assert all(type(k) is int for k in kept), "no symbol stays behind"


# ── ints among the arguments ─────────────────────────────────────────────────────────────────────────────────────

TABLE = torch.linspace(1, 2, 40)
GIVEN = {
    "arithmetic": lambda x, n: x * n + 1 / n,
    "branch": lambda x, n: x * 2 if n > 1 else -x,
    "power": lambda x, n: x * 0.9**n,
    "math": lambda x, n: x * math.cos(math.pi * n / 20),
    "index": lambda x, n: x * TABLE[n],
    "computed index": lambda x, n: x * TABLE[2 * n] * TABLE[n + 1],
    "slice": lambda x, n: x * TABLE[:n].sum(),
    "window": lambda x, n: x * TABLE[n : n + x.shape[0]],
    "mask": lambda x, n: torch.where(torch.arange(5) < n, x, -x),
    "full": lambda x, n: torch.full((n,), 2.0).sum() * torch.full_like(x, n),
    "arange": lambda x, n: x * torch.arange(n).float().mean(),
    "expand": lambda x, n: x[:, None].expand(5, n).sum(1),
    "pad": lambda x, n: torch.nn.functional.pad(x, (n, 1)).cumsum(0),
    "interpolate": lambda x, n: torch.nn.functional.interpolate(x[None, None], size=n + 1).sum(),
    "integers": lambda x, n: x * (torch.arange(5) * n // 3).sum(),
    "random": lambda x, n: torch.rand(n).sum() * x,
    "softmax": lambda x, n: TABLE[:n].softmax(0)[0] * x,
    "shape returned": lambda x, n: (x * 2, TABLE[:n].sum().new_zeros(n).shape, n + 1),
    "per sample": lambda x, n: torch.vmap(lambda y: y * TABLE[n])(x),
    "index from the end": lambda x, n: x * TABLE[-n] * TABLE[-n - 1],
    "slice from the end": lambda x, n: x * TABLE[-n:].sum() + TABLE[:-n].sum(),
    "rolled": lambda x, n: x * TABLE.roll(-n)[0] + TABLE.roll(n, 0)[1],
    "item stored": lambda x, n: put(torch.zeros(40), n, x[3]),
    "column stored": lambda x, n: put(torch.zeros(5, 40), (slice(None), n), x),
    "row stored": lambda x, n: put(torch.zeros(40, 5), n, x),
    "slice stored": lambda x, n: put(torch.zeros(40), slice(None, n), x[3]),
    "window stored": lambda x, n: put(torch.zeros(40), slice(n, n + 5), x),
    "end stored": lambda x, n: put(torch.zeros(40), slice(-n, None), x[3]),
    "exponent": lambda x, n: x**n + x.abs() ** (n / 3) + x[3].pow(n),
    "base": lambda x, n: n**x + torch.pow(n / 3, x) + n ** x[3],
    "weight": lambda x, n: torch.lerp(x, 2 * x, n / 10) + x.lerp(x.new_zeros(5), 1 / n),
    "converted": lambda x, n: x * float(n) / float(n + 1) + TABLE[: int(n * 0.5)].sum(),
    "inner gradient": lambda x, n: torch.func.grad(lambda y: (y * TABLE[n] * n).sum())(x),
    "compiled inside": lambda x, n: fg.jit(lambda y, m: y * TABLE[m])(x, n + 1),
}


def put(tensor: Tensor, at: Any, value: Any) -> Tensor:
    tensor[at] = value
    return tensor * 2


def _with_gradient(function, x, n):
    torch.manual_seed(0)
    x = x.clone().requires_grad_()
    found = function(x, n)
    first = found[0] if isinstance(found, tuple) else found
    return found, torch.autograd.grad(first.sum(), x)


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", GIVEN)
def test_an_argument_that_was_two_other_ints_is_a_symbol(name: str, backend: str) -> None:
    function = GIVEN[name]
    compiled = fg.jit(function, backend=backend)
    for n in (9, 8, 6, 7, 5, 4, 3, 10):
        found, expected = (outcome(lambda: _with_gradient(f, X[:5].detach(), n)) for f in (compiled, function))
        assert difference(found, expected) is None, (n, difference(found, expected))
    assert compiled.cache_info().misses <= 4
    for n in (2, 1, 0, -1, True, 2.5, 1 << 70, 11):
        found, expected = (outcome(lambda: _with_gradient(f, X[:5].detach(), n)) for f in (compiled, function))
        assert difference(found, expected) is None, (n, difference(found, expected))


def test_an_int_of_python_state_is_an_index_of_one_program() -> None:
    class Decoder:
        position = 0

        def step(self, x):
            self.cache[:, self.position] = x
            seen = torch.arange(16) <= self.position
            self.position += 1
            return (self.cache * seen).sum(1)

    def run(make):
        decoder = Decoder()
        decoder.cache = torch.zeros(2, 16)
        step = make(decoder.step)
        return [step(torch.full((2,), float(i))) for i in range(10)], decoder.cache, step

    *expected, _ = run(lambda f: f)
    *found, step = run(lambda f: fg.jit(f, backend="aten"))
    torch.testing.assert_close(found, expected)
    assert step.cache_info().misses <= 5


def test_a_mask_by_a_size_that_varies() -> None:
    compiled = fg.jit(lambda x: torch.arange(10) <= x.shape[0])
    for n in (3, 4, 5, 6):
        assert torch.equal(compiled(torch.ones(n)), torch.arange(10) <= n)
    assert compiled.cache_info().misses == 2


def test_counters_in_containers_are_symbols() -> None:
    def run(make):
        steps, rates = {name: {"step": 0} for name in "ab"}, [1, 10, 100]

        @make
        def f(x):
            for i, state in enumerate(steps.values()):
                state["step"] += i + 1
                x = x * 0.9 ** state["step"]
            for i in range(len(rates)):
                rates[i] += 2
            return x + sum(rates)

        return [f(torch.ones(3)) for _ in range(7)], steps, rates, f

    *expected, _ = run(lambda f: f)
    *found, compiled = run(lambda f: fg.jit(f, backend="aten"))
    torch.testing.assert_close(found[0], expected[0])
    assert found[1:] == expected[1:]
    assert compiled.cache_info().misses <= 3


def _of_a_mask(k: int) -> Tensor:
    return torch.cat([torch.ones(k), -torch.ones(8 - k)])


def _beside_a_read(x, n):
    z, y = torch.ones(n), x[x > 0]
    return (z[: y.shape[0]] * 2).sum()


ASKED = {
    "a size of a size": (
        lambda x, n: x * torch.zeros(n + torch.zeros(n).shape[0]).numel(),
        [(X, n) for n in range(3, 7)],
    ),
    "beside a size that is read": (
        _beside_a_read,
        [(_of_a_mask(k), n) for k, n in ((3, 9), (3, 10), (3, 11), (4, 12), (5, 13))],
    ),
    "made by its type": (lambda x, n: x * type(n)("3") * type(n)(2.5), [(X, n) for n in range(3, 7)]),
    "in a library": (lambda x, n: x * statistics.mean([n, 2]), [(X, n) for n in range(3, 7)]),
    "an array": (lambda x, n: x * torch.from_numpy(np.ones(7, np.float32) * n), [(X.float(), n) for n in range(3, 7)]),
    "an operator": (
        lambda x, n: torch.ops.aten.elu_backward(x, n, 1, 1, False, x),
        [(X.float(), n) for n in range(3, 7)],
    ),
}


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", ASKED)
def test_ints_that_are_sizes_and_numbers_at_once(name: str, backend: str) -> None:
    function, calls = ASKED[name]
    compiled = fg.jit(function, backend=backend)
    for args in calls:
        found, expected = (outcome(lambda: f(*args)) for f in (compiled, function))
        assert difference(found, expected) is None, args


@pytest.mark.parametrize("pad", [True, False])
def test_second_derivatives_at_other_sizes(pad: bool) -> None:
    def f(x, n):
        return torch.nn.functional.pad(x**3, (n, 0)) if pad else x**3

    compiled = fg.jit(f)
    for n in (3, 4, 5, 6, 7):
        found = []
        for h in (compiled, f):
            x = torch.ones(4 if pad else n, requires_grad=True)
            (g,) = torch.autograd.grad(h(x, n).pow(3).sum(), x, create_graph=True)
            found += torch.autograd.grad(g.sum(), x)
        torch.testing.assert_close(*found)


def test_static_arguments_are_compared_and_what_decides_is_told() -> None:
    compiled = fg.jit(lambda x, n: x * n, static_argnums=1, backend="aten")
    for n in range(2, 8):
        compiled(X, n)
    assert compiled.cache_info().misses == 6
    parts = fg.jit(lambda x, n: x.chunk(n)[0], backend="aten")
    with pytest.warns(fg.RecompileWarning, match="another number in each call"):
        for n in range(2, 7):
            parts(X, n)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.int64, complex])
def test_numbers_that_are_no_symbols_are_told(kind) -> None:
    compiled = fg.jit(lambda x, n: x * n, backend="aten")
    with pytest.warns(fg.RecompileWarning, match=r"of a type that is no symbol. Pass float\(x\) or int\(x\)"):
        for n in range(5):
            torch.testing.assert_close(compiled(ONES, kind(n)), ONES * kind(n))


ONES = torch.ones(2)


class _Doubles(dict):
    def __setitem__(self, key, value):
        super().__setitem__(key, value * 2)


def test_numbers_in_containers_of_a_class_that_says_how_to_store() -> None:
    held = _Doubles()
    dict.update(held, a=1, b=2)
    compiled = fg.jit(lambda x: x * math.prod(held.values()))
    for i in range(6):
        dict.__setitem__(held, "a", i + 3)
        assert torch.equal(compiled(ONES), ONES * ((i + 3) * 2)) and held["a"] == i + 3


def test_keys_that_are_equal_may_be_others() -> None:
    held = {1: 2.0, 2: 3.0}

    def f(x):
        for key, value in held.items():
            x = x * value + (10 if isinstance(key, bool) else 0)
        return x

    compiled = fg.jit(f)
    for i in range(5):
        held[1] = float(i)
        assert torch.equal(compiled(ONES), f(ONES))
    held.clear()
    held.update({True: 5.0, 2: 3.0})
    assert torch.equal(compiled(ONES), f(ONES))


def test_a_backward_pass_that_knows_no_symbol_is_made_for_each_value() -> None:
    compiled = fg.jit(lambda x, n: torch.ops.aten.pow.Scalar(n * 0.5, x), backend="aten")
    for n in (3, 4, 5, 6):
        x = torch.tensor([0.5, 2.0], requires_grad=True)
        (found,) = torch.autograd.grad(compiled(x, n).sum(), x)
        (expected,) = torch.autograd.grad(((n * 0.5) ** x).sum(), x)
        torch.testing.assert_close(found, expected)


OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "/": operator.truediv, "**": lambda a, b: a ** min(b, 3), "&": operator.and_, "|": operator.or_,
    "^": operator.xor, "<<": operator.lshift, "divmod": lambda a, b: sum(divmod(a, b)), "max": max, "min": min,
    "pow": lambda a, b: pow(a, b, 7), "sorted": lambda a, b: sorted([a, b])[0],
}  # fmt: skip


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("of_two", OF_TWO)
def test_a_size_with_an_int_of_python_state(of_two: str, swapped: bool) -> None:
    """Both are symbols from the third value on (``if x.shape[0] != self.length``: rotary embeddings)."""
    own = Counter()

    def f(x: Tensor) -> Any:
        a, b = (own.n, x.shape[0]) if swapped else (x.shape[0], own.n)
        number = OF_TWO[of_two](a, b)
        return x * number, x.sin() if number > 3 else x.cos()

    compiled = fg.jit(f, backend="aten")
    for length, own.n in ((3, 2), (4, 2), (4, 3), (5, 7), (6, 6), (2, 5), (7, 1), (7, 7)):
        x = torch.rand(length, 2)
        torch.testing.assert_close(compiled(x), f(x))


class Rotary(torch.nn.Module):
    """What it computes once for a length it keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.length, self.cosine = 0, torch.zeros(0)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] != self.length:
            self.length = x.shape[0]
            self.cosine = torch.arange(self.length).float().cos()
        return x * self.cosine[:, None]


def test_what_a_module_keeps_for_one_length() -> None:
    ours, theirs = Rotary(), Rotary()
    compiled = fg.jit(ours)
    for length in (4, 4, 2, 3, 5, 5, 2, 8):
        x = torch.rand(length, 2)
        torch.testing.assert_close(compiled(x), theirs(x))
        assert ours.length == theirs.length
        torch.testing.assert_close(ours.cosine, theirs.cosine)
