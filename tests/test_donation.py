"""Arguments that are donated: results lie in their memory, and what anybody else can still read is left alone."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from closeness import assert_rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from test_fusion import programs
from test_fusion import step as random_step

import funcgrad as fg
from funcgrad.torch_private.tensors import host_allocations
from funcgrad.trees import flatten

BACKENDS = ["c", "aten"]


def step(p, s, g):
    s = s * 0.9 + g
    return p - s, s


def tensors(*shapes, n=3):
    torch.manual_seed(0)
    return [torch.randn(shape) for shape in shapes or [(512,)] * n]


def check(f, args, donate=(0,), strict=True, **options):
    """Donate to a function: its results are eager's, in the memory of what was donated."""
    expected = f(*[a.clone() for a in args])
    pointers = [args[i].data_ptr() for i in donate]
    compiled = fg.jit(f, donate_argnums=donate, donate="strict" if strict else "warn", **options)
    found = compiled(*args)
    torch.testing.assert_close(found, expected)
    results = found if isinstance(found, tuple) else (found,)
    assert {t.data_ptr() for t in results} >= set(pointers)
    for i in donate:
        with pytest.raises(fg.DonationError):
            args[i] + 1
    return compiled


@pytest.mark.parametrize("backend", BACKENDS)
def test_step_lies_where_the_last_one_did(backend):
    p, s, g = tensors()
    check(step, (p, s, g), (0, 1), backend=backend)
    assert (p.shape, p.dtype, repr(p)) == ((512,), torch.float32, "<donated as p of step>")


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_given_away_is_as_it_was_where_the_call_is_on_another_path(backend):
    def branches(p, g):
        q = p * 0.9 + g
        return q * 2 if (q @ g).sum() > 0 else q * 3

    compiled = fg.jit(branches, donate_argnums=0, backend=backend)
    p, g = torch.randn(8, 8), torch.ones(8, 8)
    for sign in (1, -1, 1, -1):
        given = p.abs() * sign
        assert_rounded(compiled(given.clone(), sign * g), branches(given, sign * g))
        assert_rounded(compiled(given.clone(), sign * g * 9), branches(given, sign * g * 9))
    assert compiled.cache_info().misses <= 2


def test_step_allocates_nothing():
    compiled = fg.jit(step, donate_argnums=(0, 1), donate="strict")
    *state, g = tensors()
    state = list(compiled(*state, g))

    def again():
        state[:] = compiled(*state, g)

    again()
    assert host_allocations(again) == []
    assert compiled.memory(*state, g).measured_peak == compiled.memory(*state, g).predicted_peak == 0
    assert "in place of p" in str(compiled.program(*state, g).schedule[0])
    assert "donation.take" in compiled.program(*state, g).call.text
    assert "donated: results lie there" in str(compiled.explain(*state, g))


def test_step_of_a_gradient_allocates_no_parameters():
    """The parameters are read by products, and last by what updates them."""

    def train(ws, x):
        grads, value = torch.func.grad_and_value(lambda ws: ((x @ ws[0]).tanh() @ ws[1]).square().mean())(ws)
        return [w - 0.1 * g for w, g in zip(ws, grads, strict=True)], value

    ws, x = tensors((64, 64), (64, 64)), torch.randn(2, 64)
    expected, _ = train(ws, x)
    pointers = [w.data_ptr() for w in ws]
    compiled = fg.jit(train, donate_argnums=0, donate="strict")
    assert compiled.memory(ws, x).measured_peak < fg.jit(train).memory(ws, x).measured_peak - 16_000
    found, _ = compiled(ws, x)
    torch.testing.assert_close(found, expected)
    assert [w.data_ptr() for w in found] == pointers


@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x @ y).sin(),  # x has been read long before
        lambda x, y: torch.where(x > 0, x, y),
    ],
)
def test_results_of_the_same_bytes(f):
    check(f, tensors((64, 64), (64, 64)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_vary(backend):
    compiled = fg.jit(step, donate_argnums=(0, 1), donate="strict", backend=backend)
    for n in (512, 700, 900):
        args = tensors((n,), (n,), (n,))
        expected = step(*[a.clone() for a in args])
        pointers = {t.data_ptr() for t in args[:2]}
        found = compiled(*args)
        torch.testing.assert_close(found, expected)
        assert {t.data_ptr() for t in found} == pointers
    assert compiled.cache_info().currsize == 2


@pytest.mark.parametrize("transform", ["grad", "vmap", "value_and_grad"])
def test_transforms(transform):
    def loss(x, w):
        return (x * w).sin().sum()

    x, w = tensors((256,), (256,))
    if transform == "vmap":
        compiled = fg.vmap_compiled(step, donate_argnums=(0, 1), donate="strict")
        args = tensors((8, 64), (8, 64), (8, 64))
        expected = step(*[a.clone() for a in args])
    elif transform == "grad":
        compiled = fg.grad_compiled(loss, argnums=1, donate_argnums=-2, donate="strict")
        args, expected = (x, w), torch.func.grad(loss, argnums=1)(x, w)
    else:
        compiled = fg.value_and_grad_compiled(loss, donate_argnums=0, donate="strict")
        args, expected = (x, w), torch.func.grad_and_value(loss)(x, w)[::-1]
    pointer = args[0].data_ptr()
    found = compiled(*args)
    torch.testing.assert_close(found, expected)
    assert pointer in {t.data_ptr() for t in flatten(found, "")[0]}


def kept(f, args, why, donate=(0,), **options):
    """What is donated is not taken: strict says why, else there is a warning, once."""
    strict = fg.jit(f, donate_argnums=donate, donate="strict", **options)
    with pytest.raises(fg.DonationError, match=why):
        strict(*args)
    compiled = fg.jit(f, donate_argnums=donate, **options)
    expected = f(*args)
    with pytest.warns(fg.DonationWarning, match=why):
        torch.testing.assert_close(compiled(*args), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(compiled(*args), expected)


def test_a_view_is_kept():
    x, y = tensors(n=2)
    view = x[3:9]
    was = view.clone()
    kept(lambda x, y: x * y, (x, y), "a view")
    assert view.equal(was)
    kept(lambda x, y: x * y, (view, y[:6].clone()), "part of a larger tensor")


def test_what_autograd_or_an_array_looks_at_is_kept():
    x, y = tensors(n=2)
    w = torch.ones(512, requires_grad=True)
    loss = (w * x).sum()
    kept(lambda x, y: x * y, (x, y), "a graph of autograd")
    loss.backward()
    assert w.grad.equal(x)
    array = np.ones(512, dtype=np.float32)
    kept(lambda x, y: x * y, (torch.from_numpy(array), y), "an array")
    assert (array == 1).all()


def test_what_no_call_can_take():
    x, y = tensors(n=2)
    held = x.clone()
    kept(lambda x, y: x.sum() * 2, (x, y), "no result")
    kept(lambda x, y: x * y, (x, x), "the same tensor")
    kept(lambda y: y * held, (held,), "the same tensor")
    kept(lambda x, y: (x[2:], y * 2), (x, y), "is returned")
    kept(lambda x, y: x * y, (torch.nn.Parameter(x.clone()), y), "is a Parameter")
    kept(lambda x, y: x * y, (x.clone().requires_grad_(), y), "requires grad")
    kept(lambda x, y: (x * y).sin(), (x, y.clone().requires_grad_()), "backward pass")
    kept(lambda x, y: x * y, (x.expand(2, 512), y), "twice")
    assert x.equal(held)


def test_what_is_written_to_is_kept():
    x, y = tensors(n=2)
    with pytest.warns(fg.DonationWarning, match="writes to it"):
        assert fg.jit(lambda x, y: x.add_(y) * 2, donate_argnums=0)(x, y).equal(x * 2)


def test_a_tensor_may_be_donated_in_a_tree():
    state = {"m": torch.ones(300), "n": [torch.zeros(300), None]}

    def f(state, g):
        return {"m": state["m"] * g, "n": [state["n"][0] + g, None]}

    pointers = {state["m"].data_ptr(), state["n"][0].data_ptr()}
    found = fg.jit(f, donate_argnums=0, donate="strict")(state, torch.full((300,), 2.0))
    assert {found["m"].data_ptr(), found["n"][0].data_ptr()} == pointers
    with pytest.raises(fg.DonationError, match="state\\['n'\\]"):
        state["n"][0].sum()


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_path_finds_what_was_donated(backend):
    """What Python reads is checked before anything is written."""

    def f(x, y):
        z = x.exp() - y
        if (z * 2).sum() > 0:
            return ((x * 2) @ y).sin()
        return ((x * 3) @ y).cos()

    compiled = fg.jit(f, donate_argnums=0, donate="strict" if backend == "c" else "warn", backend=backend)
    for value in (1.0, -5.0, 2.0, -1.0):
        x, y = torch.full((30, 30), value), torch.ones(30, 30)
        expected = f(x, y)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.DonationWarning)  # ATen has no place for all that kernels have
            torch.testing.assert_close(compiled(x, y), expected)
    assert compiled.cache_info().currsize == 2


def test_what_raises_leaves_what_was_donated():
    def solve(x, y):
        return (torch.linalg.cholesky(x * 2 - y) @ y).sin()

    x, y = torch.eye(40), torch.eye(40)
    compiled = check(solve, [x, y])
    x = torch.zeros(40, 40)
    with pytest.raises(torch.linalg.LinAlgError):
        compiled(x, y)
    assert x.equal(torch.zeros(40, 40))

    def index(x, i):
        z = x * 2
        return z.exp()[i].sum() * (z @ z).sin()

    x, i = torch.ones(30, 30), torch.zeros(9, dtype=torch.int64)
    compiled = check(index, [x, i])
    x = torch.ones(30, 30)
    with pytest.raises(IndexError):
        compiled(x, i + 30)
    assert x.equal(torch.ones(30, 30))


def test_inside_another_transform_nothing_is_donated():
    inner = fg.jit(lambda x: x * 2, donate_argnums=0, donate="strict")
    x = torch.ones(400)
    torch.func.vmap(inner)(x.view(4, 100))
    torch.func.grad(lambda x: inner(x).sum())(x)
    fg.jit(lambda x: inner(x) + 1)(x)
    assert x.sum() == 400


def test_positions():
    f = fg.jit(lambda x, y: x + y, donate_argnums=2)
    with pytest.raises(fg.ArgumentError, match="donate_argnums names position 2"):
        f(torch.ones(2), torch.ones(2))
    with pytest.raises(fg.ArgumentError, match="both name position 1"):
        fg.jit(lambda x, y: x, donate_argnums=1, static_argnums=-1)(torch.ones(2), torch.ones(2))
    with pytest.raises(fg.OptionError, match="'strict'"):
        fg.jit(step, donate="always")


def test_reading_what_was_donated_is_an_error_by_name():
    x = torch.ones(300)
    compiled = fg.jit(lambda x: x * 2, donate_argnums=0)
    compiled(x)
    for read in (x.sum, lambda: x[0], lambda: torch.stack([x, x]), x.numpy, x.tolist, lambda: compiled(x)):
        with pytest.raises(fg.DonationError, match="x of <lambda>") as raised:
            read()
        assert isinstance(raised.value, RuntimeError)
        assert "clone()" in raised.value.fix


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=10)
@given(programs(), st.integers(1, 4))
def test_the_same_numbers_with_and_without(backend, program, n_results):
    """Whatever is computed, in however many results; and what is not taken is what it was."""
    shape, steps = program

    def f(a, b):
        stack = [a, b]
        for one in steps:
            new = random_step(stack, *one)
            if new.numel() < 20_000:
                stack.append(new)
        return stack[2:][-n_results:]

    torch.manual_seed(0)
    before = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.DonationWarning)
        args = [t.clone() for t in before]
        assert_rounded(fg.jit(f, backend=backend, donate_argnums=(0, 1))(*args), f(*before))
        assert all(was.equal(t) for was, t in zip(before, args, strict=True) if type(t) is torch.Tensor)
