"""Sizes that Python computes with: where the graph does not depend on the value, one program serves all of them."""

from __future__ import annotations

import contextlib
import math
import threading
import types
import warnings
from collections.abc import Callable
from operator import index
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from torch import Tensor

import funcgrad as fg

LSTM = torch.nn.LSTM(6, 4, batch_first=True)
IMAGE = torch.nn.Conv2d(1, 3, 3, padding=1)
ATTENTION = torch.nn.MultiheadAttention(6, 2, batch_first=True)
POSITIONS = torch.randn(64, 6)
EMBEDDING = torch.nn.Embedding(64, 6)

FUNCTIONS: dict[str, Callable[[Tensor], Any]] = {
    "len": lambda x: x / len(x),
    "sqrt": lambda x: x / math.sqrt(x.shape[0]),
    "float": lambda x: x / float(x.shape[0]) + float(len(x) // 2),
    "int": lambda x: x[: int(x.shape[0] * 0.4)].sum(0) * int(x.shape[0]) + int(math.sqrt(len(x))),
    "whole part": lambda x: x[: int(len(x) / 2)].sum(0) * int(x.size(0) * 0.5),
    "rounded to a size": lambda x: x[: round(x.shape[0] * 0.4)].sum(0) + x[: math.ceil(0.7 * x.shape[0])].sum(0),
    "a fraction of them": lambda x: x.topk(max(1, int(0.4 * x.size(0))), 0).values.sum(0),
    "log": lambda x: x.logsumexp(0) - math.log(len(x)),
    "cos": lambda x: x * math.cos(math.pi / x.shape[0]),
    "hypot": lambda x: x * math.hypot(x.shape[0], 2),
    "power": lambda x: x * x.size(0) ** -0.5 + x.size(0) ** 2,
    "quotient": lambda x: x * (1.0 / x.shape[0]) + x.shape[0] / 2,
    "floor": lambda x: x[1:].new_zeros(math.floor(x.shape[0] / 2)).sum() + x * math.floor(x.shape[0] / 2),
    "ceil": lambda x: x.sum() + torch.ones(math.ceil(x.shape[0] / 2)),
    "half": lambda x: x.sum() + torch.ones(math.floor(x.shape[0] * 0.5), math.ceil(0.25 * x.shape[0])),
    "negative": lambda x: x * math.trunc(-x.shape[0] / 4) + math.ceil(-x.shape[0] / 4) + math.floor(x.shape[0] / -4),
    "round": lambda x: x * round(x.shape[0] / 3) + round(x.shape[0]),
    "divmod": lambda x: x * divmod(x.shape[0], 2)[0] + divmod(100, x.shape[0])[1],
    "remainder": lambda x: x * (x.shape[0] % 2 + 1),
    "of a negative number": lambda x: x * -(x.shape[0] // -2) + x.shape[0] % -5 + x.shape[0] // (3 - x.shape[0]),
    "a quotient of a quotient": lambda x: x * (x.shape[0] // 2 // -2) + divmod(x.shape[0] // 2, -3)[0],
    "min and max": lambda x: x / max(1, x.shape[0] - 1) + min(x.shape[0], 1000),
    "absolute": lambda x: x / abs(1 - x.shape[0]),
    "an int": lambda x: x.sin() if isinstance(x.shape[0], int) and isinstance(x.numel() // 2, int) else x,
    "a float": lambda x: x.sin() if isinstance(x.shape[0] / 2, float) and not isinstance(x.shape[0], float) else x,
    "numel": lambda x: x / x.numel() + math.prod(x.shape),
    "list": lambda x: (x * 2).reshape(*list(x.shape)[:-1], 2, 3),
    "tensor": lambda x: x / torch.tensor(x.shape[0]) + torch.tensor(x.shape[0], dtype=torch.float32).sqrt(),
    "tensors": lambda x: (
        x.sum() / torch.tensor([[x.shape[0], 2], [1, x.shape[0] - 1]]) + torch.as_tensor([x.shape[0] / 2, 1])
    ),
    "new": lambda x: x / x.new_tensor(x.shape[0]),
    "linspace": lambda x: x * torch.linspace(0, 1, len(x))[:, None] + torch.linspace(3, -len(x), len(x))[:, None],
    "logspace": lambda x: x * torch.logspace(0, 1, x.shape[0])[:, None],
    "arange": lambda x: x * (torch.arange(len(x)) / len(x))[:, None] + torch.arange(len(x) - 1, -1, -1)[:, None],
    "full": lambda x: x + torch.full((x.shape[0], 1), x.shape[0]) + torch.eye(x.shape[0]) @ x,
    "last": lambda x: x[x.shape[0] - 1] + x[x.shape[0] // 2, 1:2] + x[..., None, x.shape[0] // 2, :] + x[-1],
    "mask": lambda x: (x @ x.t()).masked_fill(torch.ones(len(x), len(x)).tril() == 0, -1e9).softmax(-1),
    "toeplitz": lambda x: (torch.arange(len(x))[:, None] - torch.arange(len(x))[None]).abs().float() @ x,
    "view": lambda x: x.view(x.shape[0] // 2, 2, 6).sum(1),
    "chunk": lambda x: x.chunk(2)[0].sum() + x.tensor_split(2)[1].mean(),
    "split": lambda x: x.split([x.shape[0] // 2, x.shape[0] - x.shape[0] // 2])[0].sin(),
    "unfold": lambda x: x.unfold(0, 2, 2).sum(-1) + F.unfold(x[None, None], 2).sum(),
    "max_pool1d": lambda x: F.max_pool1d(x.t()[None], 2) + torch.nn.MaxPool1d(3, 2, 1)(x.t()),
    "max_pool1d of no batch": lambda x: F.max_pool1d(x.t(), 3, stride=1, padding=1, dilation=2, ceil_mode=True),
    "avg_pool": lambda x: F.avg_pool1d(x.t()[None], 2).sum() + F.avg_pool2d(x[None, None], 2).sum(),
    "adaptive": lambda x: F.adaptive_avg_pool1d(x.t()[None], 1).sum() + F.adaptive_avg_pool2d(x[None, None], 1),
    "interpolate": lambda x: F.interpolate(x[None, None], size=(x.shape[0] * 2, 12)),
    "scale": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "scale of a half": lambda x: F.interpolate(x[None, None], scale_factor=0.5),
    "pad": lambda x: F.pad(x, (0, 0, 0, 64 - x.shape[0])).sum() + F.pad(x[None], (1, 1, 1, 1), mode="reflect").sum(),
    "sdpa": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=x.shape[0] ** -0.5),
    "causal": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None], is_causal=True),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "cat": lambda x: torch.cat([x, x[:1], x[1:]]),
    "repeat": lambda x: torch.ones(1, 6).repeat(x.shape[0], 1) * x,
    "cumulative mean": lambda x: x.cumsum(0) / torch.arange(1, x.shape[0] + 1)[:, None],
    "topk": lambda x: x.topk(x.shape[0] // 2, 0)[0],
    "conv": lambda x: IMAGE(x[None, None]),
    "positions": lambda x: x + POSITIONS[: x.shape[0]] + EMBEDDING(torch.arange(x.shape[0])),
    "one_hot": lambda x: F.one_hot(torch.arange(x.shape[0]), x.shape[0]).float() @ x,
    "norms": lambda x: F.layer_norm(x, x.shape).sum() + F.group_norm(x.t()[None], 2),
    "variance": lambda x: (x - x.sum(0) / x.size(0)).square().sum() / (x.size(0) - 1),
    "where": lambda x: torch.where(torch.arange(x.shape[0])[:, None] < x.shape[0] // 2, x, 0.0),
    "vmap": lambda x: torch.func.vmap(lambda row: row.sin() * x.shape[0])(x),
    "mask of all rows": lambda x: x[torch.ones(len(x), dtype=torch.bool)].cumsum(0),
    "mask of all": lambda x: x[torch.zeros_like(x) == 0].cumsum(0),
    "places of all": lambda x: x.sum() * torch.ones_like(x, dtype=torch.bool).nonzero(),
    "write to all": lambda x: (x * 2).index_put((torch.ones_like(x, dtype=torch.bool),), x.flatten()),
}
SIZES = (8, 12, 6, 20, 32, 14)


def total(out: Any) -> Tensor:
    return torch.as_tensor(out).float().square().sum()


@pytest.mark.sweep(4)
@pytest.mark.parametrize("transform", ["jit", "grad"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_program_from_the_second_size_on(name: str, transform: str) -> None:
    function = FUNCTIONS[name]
    compiled, eager = fg.jit(function, backend="aten"), function
    if transform == "grad":
        compiled = fg.grad_compiled(lambda x: total(function(x)), backend="aten")
        eager = torch.func.grad(lambda x: total(function(x)))
    for n in SIZES:
        x = torch.randn(n, 6)
        assert_rounded(compiled(x), eager(x))
    assert compiled.cache_info().misses == 2, compiled.explain_miss(torch.randn(16, 6))


def test_numbers_made_of_sizes_are_those_of_each_call() -> None:
    last = {}

    def f(x: Tensor) -> Any:
        last["n"] = float(len(x))
        return x * 2, float(x.shape[0]), int(x.shape[0] * 0.7), float(x.shape[0]).is_integer()

    compiled = fg.jit(f, backend="aten")
    for n in SIZES:
        x = torch.randn(n, 6)
        assert_rounded(compiled(x)[0], x * 2)
        assert [*map(repr, compiled(x)[1:])] == [*map(repr, f(x)[1:])] and repr(last) == repr({"n": float(n)})
    assert compiled.cache_info().misses == 4  # what it has stored is looked at: it was none, then other numbers


def named(x: Tensor) -> Tensor:
    return x * {"8": 2.0, "12": 3.0}.get(f"{x.shape[0]}", 5.0)


def counted(x: Tensor) -> Tensor:
    return x * {8: 2.0, 12: 3.0}.get(x.shape[0], 5.0)


def looped(x: Tensor) -> Tensor:
    return sum((row.sin() * i for i, row in enumerate(x[j] for j in range(x.shape[0]))), torch.zeros(6))


def by_attribute(x: Tensor) -> Tensor:
    return x * x.shape[0].bit_length() * x.shape[0].real


def put(x: Tensor) -> Tensor:
    y = x.clone()
    y[x.shape[0] - 1] = 3.0
    y[x.shape[0] // 2, 1:3] *= 2.0
    return y


def complex_root(x: Tensor) -> Tensor:
    return x * (2j * math.pi / x.shape[0]).imag


@pytest.mark.parametrize("function", [named, counted, looped, by_attribute, put, complex_root])
def test_what_depends_on_the_value_is_right_at_each(function: Callable[[Tensor], Tensor]) -> None:
    compiled = fg.jit(function, backend="aten", dynamic=True)
    for n in (*SIZES, *SIZES):
        x = torch.randn(n, 6)
        assert_rounded(compiled(x), function(x))


# ── what takes the value as a number says so at its fourth program ───────────────────────────────────────────────


def warnings_of(compiled: Callable[..., Any], calls: list[tuple[Any, ...]]) -> list[list[str]]:
    """The texts of the warnings of each call."""
    found = []
    for args in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            compiled(*args)
        found.append([str(w.message) for w in caught if w.category is fg.RecompileWarning])
    return found


@pytest.mark.parametrize("function", [named, counted, looped, by_attribute])
def test_a_size_that_is_taken_as_a_number_is_named_at_the_fourth_program(function: Callable[[Tensor], Tensor]) -> None:
    found = warnings_of(fg.jit(function, backend="aten"), [(torch.randn(n, 6),) for n in SIZES])
    assert [len(texts) for texts in found] == [0, 0, 0, 1, 0, 0]
    (text,) = found[3]
    assert (
        f"{function.__name__} compiles for the 4th time" in text and "x.shape[0]" in text and " no longer holds" in text
    )
    assert f"test_python_sizes.py:{function.__code__.co_firstlineno + 1} in " in text and "dynamic=False" in text


def test_a_size_of_which_there_is_no_symbol_is_named_with_the_reason() -> None:
    compiled = fg.jit(lambda x: x.flatten(), backend="aten")
    (text,) = warnings_of(compiled, [(torch.randn(n, 6),) for n in SIZES])[3]
    assert "x: shape was" in text and "now (20, 6)" in text and "results that look at inputs" in text


def test_an_argument_that_is_another_number_is_named() -> None:
    x = torch.randn(3)
    calls = [(x, n) for n in range(6)]
    assert not any(warnings_of(fg.jit(lambda x, n: x * n, backend="aten"), calls))

    def repeated(x, n):
        return sum([x] * n, x)

    found = warnings_of(fg.jit(repeated, backend="aten"), calls)
    assert [len(texts) for texts in found] == [0, 0, 0, 1, 0, 0]
    assert "n: n == 2 no longer holds" in found[3][0] and "test_python_sizes.py" in found[3][0]
    assert not any(warnings_of(fg.jit(repeated, backend="aten", static_argnums=1), calls))


def test_a_captured_tensor_whose_size_is_taken_as_a_number_is_named() -> None:
    class State:
        table = torch.ones(2)

    def texts(function):
        compiled, found = fg.jit(function, backend="aten"), []
        for n in SIZES:
            State.table = torch.ones(n)
            found += warnings_of(compiled, [(torch.ones(3),)])
        return found

    assert not any(texts(lambda x: x * State.table.sum()))
    ((text,),) = [own for own in texts(lambda x: x * sum(range(State.table.shape[0]))) if own]
    assert "a size is another in each call" in text and "State.table.shape[0]" in text


def test_programs_that_are_meant_or_few_are_not_warned_of() -> None:
    calls = [(torch.randn(n, 6),) for n in SIZES]
    assert not any(warnings_of(fg.jit(looped, backend="aten", dynamic=False), calls))
    steps = fg.jit(
        lambda x: x.sin() if len(x) > 25 else x.cos() if len(x) > 15 else x.exp() if len(x) > 7 else x, backend="aten"
    )
    assert not any(warnings_of(steps, calls)) and steps.cache_info().misses >= 4


# ── so does what takes a number that was read of a tensor ────────────────────────────────────────────────────────

TABLE = [0.5 * i for i in range(10)]
READS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "factor": (lambda x, n: index(n) * x, lambda x, n: n.item() * x),
    "quotient": (lambda x, n: x / index(n), lambda x, n: x / n.item()),
    "root": (lambda x, n: x * math.sqrt(index(n)), lambda x, n: x * math.sqrt(n.item())),
    "float": (lambda x, n: x * complex(n.double() * 0.3).real, lambda x, n: x * (n.double() * 0.3).item()),
    "power": (lambda x, n: x.abs() ** index(n), lambda x, n: x.abs() ** n.item()),
    "slice": (lambda x, n: x[: index(n)].sum() * x, lambda x, n: x[: n.item()].sum() * x),
    "zeros": (lambda x, n: torch.zeros(index(n)).cos().sum() + x, lambda x, n: torch.zeros(n.item()).cos().sum() + x),
    "row": (lambda x, n: x[index(n)] * 2, lambda x, n: x[n.item()] * 2),
    "of a list": (lambda x, n: x * TABLE[int(n)], lambda x, n: x * torch.tensor(TABLE)[n]),
    "of a number": (lambda x, n: x * index(n.item()), lambda x, n: x * n.item()),
}


@pytest.mark.parametrize("name", READS)
def test_a_number_that_is_read_is_named_at_the_fourth_program_and_the_fix_works(name: str) -> None:
    """Python makes an int of what ``__index__`` returns; what ``item`` returns is a symbol from its second value on."""
    taken, fixed = READS[name]
    calls = [(torch.randn(10), torch.tensor(n)) for n in (3, 5, 7, 4, 6, 9)]
    compiled = fg.jit(taken, backend="aten")
    found = warnings_of(compiled, calls)
    assert [len(texts) for texts in found] == [0, 0, 0, 1, 0, 0] and compiled.cache_info().misses == 6
    line = f"test_python_sizes.py:{taken.__code__.co_firstlineno} in <lambda>"
    assert "compiles for the 4th time" in found[3][0] and line in found[3][0] and ".item()" in found[3][0]
    compiled = fg.jit(fixed, backend="aten")
    assert not any(warnings_of(compiled, calls)) and compiled.cache_info().misses <= 2
    for args in calls:
        assert_rounded(compiled(*args), taken(*args))


CONVERTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "factor": lambda x, n: int(n) * x,
    "quotient": lambda x, n: x / int(n),
    "root": lambda x, n: x * math.sqrt(int(n)),
    "float": lambda x, n: x * float(n.double() * 0.3),
    "whole part": lambda x, n: x * int(n.double() * 0.7),
    "power": lambda x, n: x.abs() ** int(n),
    "slice": lambda x, n: x[: int(n)].sum() * x,
    "zeros": lambda x, n: torch.zeros(int(n)).cos().sum() + x,
    "row": lambda x, n: x[int(n)] * 2,
    "of a number": lambda x, n: x * int(n.item()),
    "map": lambda x, n: x * sum(map(float, (n, n * 2))),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_a_number_that_is_read_by_int_or_float_is_a_symbol(name: str) -> None:
    compiled = fg.jit(CONVERTED[name], backend="aten")
    calls = [(torch.randn(10), torch.tensor(n)) for n in (3, 5, 7, 4, 6, 9)]
    assert not any(warnings_of(compiled, calls)) and compiled.cache_info().misses <= 2
    for args in calls:
        assert_rounded(compiled(*args), CONVERTED[name](*args))


def test_reads_that_decide_few_programs_are_not_warned_of() -> None:
    calls = [(torch.randn(10), torch.tensor(n)) for n in (3, 25, 7, 17, 9, 1)]
    steps = fg.jit(lambda x, n: x.sin() if n > 20 else x.cos() if n > 10 else x.exp() if n > 5 else x, backend="aten")
    assert not any(warnings_of(steps, calls)) and steps.cache_info().misses >= 4
    meant = fg.jit(lambda x, n: x * int(n), backend="aten", dynamic=False)
    assert not any(warnings_of(meant, calls))


# ── at levels of torch.func ──────────────────────────────────────────────────────────────────────────────────────

NUMBERS = torch.linspace(1, 2, 40)
VARYING: dict[str, Callable[[Tensor, int], Tensor]] = {
    "size": lambda x, n: (x**2).sum() / x.shape[0],
    "size as a number": lambda x, n: (x / float(len(x))).exp().sum(),
    "slice by a size": lambda x, n: x[: int(len(x) * 0.6)].sin().sum() * NUMBERS[x.shape[0] // 2],
    "product": lambda x, n: (x @ x.T).softmax(-1).square().sum(),
    "number": lambda x, n: (x * n).sin().sum() + (x / float(n)).exp().sum(),
    "slice by a number": lambda x, n: (x * NUMBERS[:n].sum()).cos().sum() * NUMBERS[-n],
    "pad": lambda x, n: F.pad(x, (0, n), value=0.5).square().cumsum(1).sum(),
}
LEVELS: dict[str, Callable[..., Tensor]] = {
    "grad": lambda f, x: torch.func.grad(f)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x)[1](torch.tensor(2.0))[0],
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x.cos(),))[1],
    "second": lambda f, x: torch.func.grad(lambda y: torch.func.grad(f)(y).sin().sum())(x),
    "batch": lambda f, x: torch.func.vmap(torch.func.grad(f))(torch.stack([x, 2 * x])),
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("name", VARYING)
def test_sizes_and_numbers_that_vary_at_a_level_are_symbols(name: str, level: str) -> None:
    f, at_level = VARYING[name], LEVELS[level]
    compiled = fg.jit(f, backend="aten")
    for i, n in enumerate((9, 8, 6, 12, 7, 10, 5)):
        x = torch.linspace(-1, 1, 3 * n).view(n, 3)
        # forward mode, and vmap, compute some things with the value of a size
        with fg.no_retrace() if i > 3 and level not in ("jvp", "batch") else contextlib.nullcontext():
            found = at_level(lambda y: compiled(y, n), x)
        torch.testing.assert_close(found, at_level(lambda y: f(y, n), x))


# ── what stood in the way of symbols need not do so for ever ─────────────────────────────────────────────────────


def test_captured_tensors_that_no_longer_share_memory_have_sizes_that_vary() -> None:
    kept: dict[str, Tensor] = {}
    compiled = fg.jit(lambda x: x * (kept["a"].sum() + kept["b"].sum()), backend="aten")
    for n in (4, 5, 6):
        kept["a"], kept["b"] = torch.ones(9)[:n].split(n - 1)
        assert_rounded(compiled(torch.ones(3)), torch.full((3,), float(n)))
    shared = compiled.cache_info().misses
    for n in (4, 5, 6, 7, 8):
        kept["a"], kept["b"] = torch.ones(n), torch.ones(n)
        assert_rounded(compiled(torch.ones(3)), torch.full((3,), 2.0 * n))
    assert compiled.cache_info().misses <= shared + 2


def test_that_a_number_can_be_no_size_is_found_out_once(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    compiled = fg.jit(lambda x, n: x[:n], backend="aten")  # a result that looks at an input, by n
    whole = type(compiled)._compile
    monkeypatch.setattr(type(compiled), "_compile", lambda self, *given: tried.append(1) or whole(self, *given))
    for n in (3, 4, 5, 6, 7):
        assert torch.equal(compiled(torch.arange(9.0), n), torch.arange(9.0)[:n])
    assert len(tried) == compiled.cache_info().misses + 1


@pytest.mark.filterwarnings("ignore::funcgrad.UnwatchedStateWarning")
def test_other_code_finds_float_as_it_is_while_a_trace_runs() -> None:
    def f(x: Tensor, s: float) -> Tensor:
        return eval("x * 2 if type(0.5) is float and 'float' not in globals() else x * 3") * float(s)

    compiled = fg.jit(f, backend="aten")
    for s in (1.5, 2.5, 3.5):
        assert compiled(torch.ones(2), s).tolist() == [2 * s, 2 * s]


def scaled(x: Tensor, s: Any) -> Tensor:
    return torch.stack([t.float() * float(s) * int(x.shape[0]) for t in x])  # an attribute of that name, too


def test_another_thread_calls_what_a_trace_has_renamed() -> None:
    seen: list[Any] = []
    code, other = scaled.__code__, fg.jit(scaled, backend="aten")
    x = torch.ones(2)
    for s in (1.5, 2.5, 3.5):
        other(x, s)
    misses = other.cache_info().misses

    def look() -> None:
        seen.append((scaled(x, 4).tolist(), other(x, 5.5).tolist(), other.cache_info().misses))

    def f(x: Tensor, s: float) -> Tensor:
        exec("thread.start(); thread.join()", {"thread": threading.Thread(target=look)})
        return scaled(x, s)

    compiled = fg.jit(f, backend="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.UnwatchedStateWarning)
        for s in (1.5, 2.5, 3.5):
            assert_rounded(compiled(x, s), 2 * s * x)
    assert seen and all(found == ([8.0, 8.0], [11.0, 11.0], misses) for found in seen)
    assert scaled.__code__ is code and compiled.cache_info().misses == 2


@pytest.mark.parametrize("many", [100, 200, 400])
def test_code_of_many_names_is_renamed_where_there_is_room(many: int) -> None:
    names = ", ".join(f"o.n{i}" for i in range(many))
    space: dict[str, Any] = {"o": types.SimpleNamespace(**{f"n{i}": i for i in range(many)})}
    for source in (
        f"def f(x, s): return x * float(s) + sum(({names}))",
        f"def f(x, s): return (lambda: sum(({names})) + x * float(s) * (1 if isinstance(s, (int, float)) else 2))()",
    ):
        exec(source, space)
        f = space["f"]
        compiled = fg.jit(f, backend="aten")
        for s in (1.5, 2.5, 3.5):
            assert_rounded(compiled(torch.ones(2), s), f(torch.ones(2), s))
