"""Numbers of Python among tensors: a float that is a symbol is computed with as Python does, whatever its value,
then and later."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from laws.numbers import Raised, difference, outcome
from torch import Tensor

import funcgrad as fg
from funcgrad.capture.floats import Floats

X = torch.tensor([-2.0, -0.0, 0.0, 0.5, math.inf, math.nan, 3.0])
VALUES = (0.1, 1.0, 2.0, 0.0, -0.0, 3.0, -1.0, math.inf, -math.inf, math.nan, 0.5, 1e-300, 0.7, 1e300, 1, True, 0)

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "mul": lambda x, v: x * v,
    "add": lambda x, v: x + v,
    "rdiv": lambda x, v: v / x,
    "alpha": lambda x, v: x.add(x, alpha=v),
    "pow": lambda x, v: x**v,
    "rpow": lambda x, v: v**x,
    "clamp": lambda x, v: x.clamp(-v, v),
    "lerp": lambda x, v: x.lerp(x + 1, v),
    "where": lambda x, v: torch.where(x > 0, x, v),
    "addcdiv": lambda x, v: x.addcdiv(x, x + 2, value=v),
    "compare": lambda x, v: x < v,
    "temperature": lambda x, v: torch.softmax(x[:4] / v, 0),
    "full": lambda x, v: torch.full((2,), v),
    "masked_fill": lambda x, v: x.masked_fill(x > 0, v),
    "if": lambda x, v: x * 2 if v else x * 3,
    "math": lambda x, v: x * math.exp(min(v, 10)),
    "sizes": lambda x, v: x * (v * x.shape[0] + x.shape[0] * v),
    "returned": lambda x, v: (x, v, v + 1, -v, v > 1, v - v, (v + 1e16) - 1e16, v * 0.1 * 3),
    "isinstance": lambda x, v: x if isinstance(v, float) else x * 2,
    "elu": lambda x, v: torch.nn.functional.elu(x, v),
    "norm": lambda x, v: torch.linalg.vector_norm(x[:4], v),
    "divided": lambda x, v: (x, 1 / v),
    "integer": lambda x, v: (x[2:4].long() * v, x[:4].long() < v, x[:4].bool() * v),
    "half": lambda x, v: x.bfloat16() * v + x.half()[0],
    "no dimensions": lambda x, v: (x[0] < v, x[0] * v, x.double()[0] < v),
}


def signs(value: Any) -> Any:
    """The signs of zeros, which comparing does not tell."""
    return (
        [t[t == 0].signbit() for t in value if isinstance(t, Tensor)] if isinstance(value, tuple) else signs((value,))
    )


@pytest.mark.sweep(4)
@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_no_value_is_special(name: str, backend: str) -> None:
    function = FUNCTIONS[name]
    compiled = fg.jit(function, backend=backend)
    for v in VALUES:
        found, expected = outcome(lambda: compiled(X, v)), outcome(lambda: function(X, v))
        assert difference(found, expected) is None, (v, difference(found, expected))
        assert all(map(torch.equal, signs(found), signs(expected))), v


@pytest.mark.parametrize("first", VALUES[:12], ids=str)
def test_a_program_made_at_a_special_value_is_for_all(first: float) -> None:
    for options in ({"backend": "c"}, {"backend": "aten"}):
        compiled = fg.grad_compiled(lambda x, v: (x * v).sum(), **options)
        for v in (0.3, first, 2.5, 0.7, -1.25):
            assert difference(compiled(X, v), torch.full_like(X, v)) is None, v
        assert compiled.cache_info().misses == 2, "the second value is a symbol's, whatever it is"


def test_what_is_asked_of_a_float_is_a_guard() -> None:
    compiled = fg.jit(lambda x, v: x * 2 if v * 3 > 0.5 and v.is_integer() else x + int(v))
    for v, misses in ((0.1, 1), (0.15, 2), (0.12, 2), (2.0, 3), (3.0, 3), (2.5, 4), (2.7, 4), (3.5, 4)):
        expected = X * 2 if v * 3 > 0.5 and v.is_integer() else X + int(v)
        assert difference(compiled(X, v), expected) is None, v
        assert compiled.cache_info().misses == misses, v
    assert "no longer holds" in compiled.explain_miss(X, math.inf)


def test_a_guard_that_cannot_be_computed_does_not_hold() -> None:
    compiled = fg.jit(lambda x, v: x * 2 if v > 3 or 1 / v > 0 else x)
    for v in (4.0, 0.5, 0.25, -1.0, -2.0, 5.0, 7.0):
        assert difference(compiled(X, v), X * 2 if v > 3 or 1 / v > 0 else X) is None
    with pytest.raises(ZeroDivisionError):
        compiled(X, 0.0)


def test_what_a_float_divides_and_nobody_reads_raises_as_in_eager() -> None:
    def f(x: Tensor, v: float) -> Tensor:
        1 / v
        return x * 2

    compiled = fg.jit(f)
    for v in (0.1, 0.2, 0.3):
        compiled(X, v)
    with pytest.raises(ZeroDivisionError):
        compiled(X, 0.0)


def test_a_number_that_a_dtype_does_not_hold() -> None:
    compiled = fg.jit(lambda x, v: x.add(x, alpha=v))
    for v in (0.1, 0.2, 1e300, math.inf, 0.3):
        found, expected = outcome(lambda: compiled(X, v)), outcome(lambda: X.add(X, alpha=v))
        assert difference(found, expected) is None, v


def _in_place_then_back(activation: Callable[..., Tensor]) -> Callable[[Tensor, Any], Tensor | None]:
    def f(x: Tensor, v: Any) -> Tensor | None:
        leaf = x.requires_grad_()
        activation(leaf * 1, v, inplace=True).sum().backward()
        return leaf.grad

    return f


def _resized(mode: str) -> Callable[[Tensor, Any], Tensor]:
    def f(x: Tensor, v: Any) -> Tensor:
        images = x.expand(1, 1, *(2,) * ("tri" in mode), 2, 2)
        return torch.nn.functional.interpolate(images, scale_factor=v, mode=mode, align_corners=True)

    return f


REFUSED_BY_PYTORCH: dict[str, tuple[Callable[[Tensor, Any], Any], tuple[tuple[Any, ...], ...]]] = {
    "smooth_l1_loss": (
        lambda x, v: torch.nn.functional.smooth_l1_loss(x, x + 1, beta=v),
        ((0.5, 2.0, math.nan), (0.5, 2.0, -1.0), (-math.inf,)),
    ),
    "elu_": (_in_place_then_back(torch.nn.functional.elu), ((-1,), (0.5, math.nan), (0.5, 2.0, -math.inf))),
    "leaky_relu_": (_in_place_then_back(torch.nn.functional.leaky_relu), ((-1,), (0.5, 2.0, math.nan))),
    "celu": (torch.ops.aten.celu.default, ((1e-300,), (0.5, 2.0, 1e-300), (0.0,), (0,), (0.5, 2.0, -0.0))),
    "upsample_bilinear2d": (_resized("bilinear"), ((2, 3, 4, 5, 0),)),
    "upsample_trilinear3d": (_resized("trilinear"), ((2, 3, 4, 5, 0),)),
    "upsample_bicubic2d": (_resized("bicubic"), ((2, 3, 4, 5, 0),)),
}


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", REFUSED_BY_PYTORCH)
@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
def test_a_number_that_pytorch_refuses_is_refused(name: str, backend: str) -> None:
    f, sequences = REFUSED_BY_PYTORCH[name]
    for values in sequences:
        compiled = fg.jit(f, backend=backend)
        for v in values:
            x = torch.tensor([[-2.0, 1.0], [0.5, 3.0]])
            found, expected = (outcome(lambda g=g: g(x.clone(), v)) for g in (compiled, f))
            assert difference(found, expected) is None, v
        assert isinstance(expected, Raised)


def test_a_name_like_that_of_a_symbol() -> None:
    compiled = fg.jit(lambda float_1, float_0: float_0 * 10 if float_1 > float_0 else float_0)
    for a, b in ((1.0, 2.0), (2.0, 3.0), (5.0, 4.0), (7.0, 6.0)):
        assert compiled(a, b) == (b * 10 if a > b else b)


def test_arithmetic_that_grows_is_fixed_in_the_end() -> None:
    def f(x: Tensor, v: float) -> Tensor:
        for _ in range(40):
            v = v * 0.25 + v * 0.5
        return x * v

    compiled = fg.jit(f)
    for v in (0.1, 0.2, 0.3):
        assert difference(compiled(X, v), f(X, v)) is None


def test_a_float_copied() -> None:
    compiled = fg.jit(lambda x, v: x * copy.deepcopy({"v": v})["v"])
    for v in (0.1, 0.2, 0.3, 0.4):
        assert difference(compiled(X, v), X * v) is None
    assert compiled.cache_info().misses == 2


def test_a_symbolic_float_is_a_float() -> None:
    floats = Floats()
    v = floats.symbol("lr", -2.5)
    assert isinstance(v, float) and isinstance(v, torch.SymFloat)
    for f in (
        lambda v: v + 1, lambda v: 2 - v, lambda v: v % 3, lambda v: v // 2, lambda v: 7.5 // v, lambda v: v**2,
        lambda v: v**0.5,
        abs, round, lambda v: round(v, 1), math.floor, math.ceil, math.trunc, int, bool, hash, str, repr,
        lambda v: f"{v:.3f}",
        lambda v: v * 1j, lambda v: divmod(v, 2), lambda v: divmod(9, v), lambda v: v.is_integer(), lambda v: v.hex(),
        lambda v: v.as_integer_ratio(),
        lambda v: v == -2.5, lambda v: v in (1, -2.5), lambda v: {v: 1}[-2.5], lambda v: v.real,
        lambda v: sorted([v, 1.0, -9])[1],
        lambda v: sum([v, v]), lambda v: math.isnan(v), lambda v: complex(v), lambda v: v == "text", lambda v: v * True,
    ):  # fmt: skip
        found, expected = f(v), f(-2.5)  # type: ignore[operator]
        now = tuple(
            float(n) if isinstance(n, torch.SymFloat) else n for n in (found if isinstance(found, tuple) else (found,))
        )
        assert repr(now) == repr(expected if isinstance(expected, tuple) else (expected,)), f
    with pytest.raises(TypeError):
        v + "text"
    assert all(eval(guard, {"math": math}, {"float_0": -2.5}) for guard in floats.guards)


# ── vmap ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", ["c", "aten"])
def test_a_number_times_a_number_of_each_sample(backend: str) -> None:
    rows = torch.randn(3, 4)
    functions: tuple[Callable[..., Any], ...] = (
        lambda x, v: 2 * x.sum(), lambda x, v: x.sum() * 2.5, lambda x, v: x.sum() + 1, lambda x, v: 1 - x.sum(),
        lambda x, v: 3 / x.sum(),
        lambda x, v: x.sum() ** 2, lambda x, v: 2 ** x.sum(), lambda x, v: x.sum() > 1, lambda x,
        v: torch.where(x.sum() > 0, 1.0, x.sum()),
        lambda x, v: x.sum() * True, lambda x, v: x.long().sum() * 2, lambda x, v: x.long().sum() * 2.5, lambda x,
        v: x.sum() * v,
        lambda x, v: v - x.sum(), lambda x, v: x.sum() / v * x, lambda x, v: x.sum().clamp(-v, v), lambda x,
        v: (x > v).sum() * 0.5,
        lambda x, v: torch.func.grad(lambda r: 2 * r.sum() * v)(x), lambda x, v: 2j * x.sum(),
    )  # fmt: skip
    for f in functions:
        mapped = torch.vmap(f, in_dims=(0, None))
        compiled = fg.jit(mapped, backend=backend)
        for v in (0.1, 1.0, 2.0, 0.4):
            assert difference(compiled(rows, v), mapped(rows, v)) is None


# ── functions that know no symbols ───────────────────────────────────────────────────────────────────────────────


def test_a_function_gives_up_the_very_symbols_that_fail() -> None:
    def f(x: Tensor, v: Any, w: Any) -> Tensor:
        assert float.hex(w)  # which takes no symbol
        return x * v + w

    compiled = fg.jit(f)
    for i, (v, w) in enumerate(((0.1, 0.2), (0.3, 0.4), (0.5, 0.4), (0.6, 0.4))):
        assert difference(compiled(X, v, w), X * v + w) is None
        assert compiled.cache_info().misses == min(i + 1, 2)
    assert compiled._not_symbolic == {(("w", None), ((0,),))}


def test_a_failing_call_gives_up_nothing() -> None:
    def f(x: Tensor, v: float) -> Tensor:
        if x.shape[0] == 3:
            raise KeyError("mine")
        return x * v

    compiled = fg.jit(f)
    compiled(X, 0.1)
    with pytest.raises(KeyError, match="mine"):
        compiled(X[:3], 0.2)
    for v, n in ((0.3, 5), (0.4, 6), (0.5, 4)):
        assert difference(compiled(X[:n], v), X[:n] * v) is None
    assert compiled.cache_info().misses == 2


@pytest.mark.parametrize("place", ["funcgrad.executable.tag_joint", "funcgrad.capture.recorder.Recorder._that_fit"])
def test_a_defect_is_not_taken_for_a_function_without_symbols(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = fg.jit(lambda x, v: x * v)
    compiled(X, 0.1)
    space: dict[str, Any] = {}
    # in a file of funcgrad's
    exec(compile("def broken(*args): raise KeyError('a defect')", fg.__file__, "exec"), space)
    monkeypatch.setattr(place, space["broken"])
    with pytest.raises(KeyError, match="a defect"):
        compiled(X, 0.2)
    assert not compiled._not_symbolic


# ── second sizes ─────────────────────────────────────────────────────────────────────────────────────────────────

SHAPES: dict[str, Callable[[Tensor], Any]] = {
    "chunk": lambda x: tuple(t * 2 for t in x.chunk(2)),
    "chunk of columns": lambda x: tuple(t * 2 for t in x.chunk(2, 1)),
    "chunk in three": lambda x: tuple(t * 2 for t in x.chunk(3)),
    "view": lambda x: x.view(-1, 2) * 2,
    "view of halves": lambda x: x.view(2, -1).exp(),
    "flat": lambda x: x.flatten() * 2,
    "split": lambda x: tuple(t * 2 for t in x.split(2)),
    "split of columns": lambda x: tuple(t * 2 for t in x.split(2, 1)),
    "cumsum": lambda x: x.cumsum(0),
    "blocks": lambda x: x.view(-1, 2, 2).transpose(0, 1).reshape(-1, 2).exp(),
    "pairs": lambda x: (x.unflatten(0, (-1, 2)) * 2).sum(1),
    "halves": lambda x: x[: x.shape[0] // 2] * 2,
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("dynamic", [None, True], ids=str)
@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", SHAPES)
def test_second_and_further_sizes(name: str, backend: str, dynamic: bool | None) -> None:
    compiled = fg.jit(SHAPES[name], backend=backend, dynamic=dynamic)
    for n in (6, 8, 10, 1, 5, 12, 7, 0):
        x = torch.randn(n, 4)
        expected, found = (outcome(lambda f=f: _with_gradient(f, x)) for f in (SHAPES[name], compiled))
        assert difference(found, expected) is None, n


def _with_gradient(f: Callable[[Tensor], Any], x: Tensor) -> Any:
    leaf = x.clone().requires_grad_()
    out = f(leaf)
    sum((t**2).sum() for t in (out if isinstance(out, tuple) else (out,))).backward()
    return out, leaf.grad


@pytest.mark.parametrize("backend", ["c", "aten"])
def test_a_batch_that_does_not_vary_and_an_epsilon_of_nothing(backend: str) -> None:
    def f(x: Tensor, eps: float) -> Tensor:
        return torch.batch_norm(x, None, None, None, None, True, 0.1, eps, False)

    compiled, x = fg.jit(f, backend=backend), torch.stack([torch.ones(4), torch.arange(4.0)], 1)
    for eps in (0.1, 0.0, 1.0):
        assert difference(compiled(x, eps), f(x, eps)) is None, eps


NUMPYS = [
    np.float32(2), np.float64(3.3), np.int64(4), np.bool_(True), np.float32(0.1), np.float64(-0.0), np.float64(0.0),
    np.float64("nan"), np.int32(7), np.float16(0.5), np.uint8(3),
]  # fmt: skip


@pytest.mark.parametrize(
    "f",
    [
        lambda x, s: x * s,
        lambda x, s: x / (s + 1),
        lambda x, s: torch.as_tensor(s).to(x).atan2(x - x),
        lambda x, s: x.new_tensor(s.dtype.itemsize),
    ],
)
def test_numpys_numbers_are_arguments_by_their_type_and_value(f):
    c, x = fg.jit(f), torch.tensor([1.0, -2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.RecompileWarning)
        for s in (*NUMPYS, *NUMPYS):
            torch.testing.assert_close(c(x, s), f(x, s), equal_nan=True)
    assert c.cache_info().misses == len(NUMPYS)


@pytest.mark.parametrize("order", [0, 1, 2, 3])
@pytest.mark.parametrize("power", [lambda x, p: x**p, lambda x, p: torch.pow(x, p).cos(), lambda x, p: abs(p) ** x])
def test_derivatives_of_a_power_at_zero_are_those_of_its_number(power, order):
    """A derivative that vanishes does so whatever is multiplied with it, and in the next derivative."""

    def f(x, p):
        return power(x, p).sin().sum()

    for _ in range(order):
        f = (lambda f: torch.func.grad(lambda x, p: f(x, p).sum()))(f)
    compiled = fg.jit(f, backend="aten")
    for p in (1.5, 2.5, 0.0, 1.0, 2.0, 3.0, 4.0, 2.25, -1.0, 0.5, 1.0, 0.0):
        for x in (torch.tensor([0.5, 0.3, 1.2]), torch.tensor([0.0, 0.3, 0.0])):
            torch.testing.assert_close(compiled(x, p), f(x, p), equal_nan=True, rtol=1e-4, atol=1e-4)
