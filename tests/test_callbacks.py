"""Python that no trace sees: ``pure_callback`` and ``opaque``, compiled or not. The oracle is the same in PyTorch,
or eager PyTorch."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.special
import torch
from torch import Tensor, func
from torch._higher_order_ops import scan
from torch.utils.checkpoint import checkpoint

import funcgrad as fg

F64 = torch.float64
BACKENDS = ("aten", "c", "triton")


def same(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.fixture
def x():
    return torch.linspace(-1, 1.2, 6, dtype=F64).view(2, 3)


@pytest.fixture
def w():
    return torch.linspace(0.4, 1.7, 3, dtype=F64)


def erf(a):
    assert not a.requires_grad and not torch.is_grad_enabled()
    return scipy.special.erf(a.numpy())


def slope(a):
    return torch.exp(-a * a) * (2 / np.sqrt(np.pi))


def pull(args, out, cotangent):
    return (cotangent * slope(args[0]),)


def push(args, out, tangents):
    return tangents[0] * slope(args[0])


def called(a, **options):
    return fg.pure_callback(erf, a, a, **({"vmap_method": "expand_dims", "vjp": pull, "jvp": push} | options))


def loss(x, w):
    y = called(x * w)
    return (y * y * w).sum()


def expected(x, w):
    y = torch.erf(x * w)
    return (y * y * w).sum()


# ── values and derivatives ───────────────────────────────────────────────────────────────────────────────────────

TRANSFORMS = {
    "the function": lambda f, jit: jit(f),
    "gradient": lambda f, jit: jit(func.grad(f, (0, 1))),
    "vjp": lambda f, jit: jit(lambda x, w: func.vjp(f, x, w)[1](torch.ones((), dtype=F64))),
    "jvp": lambda f, jit: jit(lambda x, w: func.jvp(f, (x, w), (w.expand(2, 3), x[0]))),
    "jacobian of the gradient": lambda f, jit: jit(func.jacrev(func.grad(f))),
    "hessian": lambda f, jit: jit(func.hessian(f)),
    "vmap": lambda f, jit: jit(func.vmap(f, (0, None))),
    "vmap of both": lambda f, jit: jit(lambda x, w: func.vmap(f)(x, torch.stack([w, w * 2]))),
    "vmap of vmap": lambda f, jit: jit(func.vmap(func.vmap(f), (0, None))),
    "gradients of samples": lambda f, jit: jit(func.vmap(func.grad(f, (0, 1)), (0, None))),
    "gradient of vmap": lambda f, jit: jit(func.grad(lambda x, w: func.vmap(f, (0, None))(x, w).sum(), (0, 1))),
    "forward over vmap": lambda f, jit: jit(lambda x, w: func.jvp(func.vmap(f, (0, None)), (x, w), (x.cos(), w.sin()))),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", TRANSFORMS)
def test_in_every_transform(name, backend, x, w):
    """Outside of a compiled function, inside of one, and around one."""
    make, compiled = TRANSFORMS[name], functools.partial(fg.jit, backend=backend)
    plain = make(expected, lambda f: f)(x, w)
    same(make(loss, lambda f: f)(x, w), plain)
    same(make(loss, compiled)(x, w), plain)
    if backend != "triton":
        same(make(compiled(loss), lambda f: f)(x, w), plain)


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
@pytest.mark.parametrize("rules", [{"vjp": pull, "jvp": None}, {"vjp": None, "jvp": push}])
def test_each_method_and_each_rule(method, rules, x, w):
    def f(x, w):
        return (called(x * w, vmap_method=method, **rules) * w).sum()

    def g(x, w):
        return (torch.erf(x * w) * w).sum()

    transforms = [
        func.grad,
        lambda f: func.vmap(func.grad(f, (0, 1)), (0, None)),
        lambda f: func.grad(lambda x, w: func.vmap(f, (0, None))(x, w).sum(), (0, 1)),
    ]
    for transform in transforms:
        same(transform(f)(x, w), transform(g)(x, w))
        same(fg.jit(transform(f))(x, w), transform(g)(x, w))


@pytest.mark.parametrize("method", ["sequential", "expand_dims", "broadcast_all"])
@pytest.mark.parametrize(
    "transform",
    [
        fg.vmap_compiled,
        lambda f: fg.vmap_compiled(f, dynamic=True),
        lambda f: func.vmap(fg.jit(f)),
        lambda f: fg.vmap_compiled(func.grad(f)),
        lambda f: fg.grad_compiled(lambda x: func.vmap(f)(x).sum()),
        lambda f: fg.vmap_compiled(lambda x: func.vmap(f)(x.expand(2, 3))),
    ],
)
def test_every_batch_of_one_program(transform, method):
    """One compiled call is given batches of several sizes."""
    compiled = transform(lambda x: called(x, vmap_method=method).square().sum())
    eager = transform(lambda x: torch.erf(x).square().sum())
    for n in (2, 4, 6, 3, 1):
        x = torch.linspace(-1, 2, 3 * n, dtype=F64).view(n, 3)
        same(compiled(x), eager(x))


def test_effects_of_every_sample():
    seen = []
    note = fg.opaque(lambda x: seen.append(x.item()), like=None, vmap_method="sequential")
    compiled = fg.vmap_compiled(lambda x: (note(x), x + 1)[1])
    for n in (2, 4, 6, 3):
        compiled(torch.arange(n))
        assert seen == list(range(n))
        seen.clear()


@pytest.mark.parametrize("backend", BACKENDS)
def test_backward(backend, x, w):
    """Two halves; the callback runs in the first."""
    calls = []

    def f(x, w):
        y = fg.pure_callback(lambda a: (calls.append(a.shape), erf(a))[1], x, x * w, vjp=pull)
        return (y * y * w).sum()

    c = fg.jit(f, backend=backend)
    found, wanted = ((x.clone().requires_grad_(), w.clone().requires_grad_()) for _ in range(2))
    value = c(*found)
    assert len(calls) == 1
    value.backward()
    assert len(calls) == 1
    expected(*wanted).backward()
    same([t.grad for t in found], [t.grad for t in wanted])


def test_a_second_derivative(x, w):
    c = fg.jit(loss)
    found = []
    for f in (loss, c, expected):
        own = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(f(own, w), own, create_graph=True)
        gradient.pow(2).sum().backward()
        found.append(own.grad)
    same(found[0], found[2])
    same(found[1], found[2])


def test_rules_that_call_back(x):
    """The derivative is NumPy, too."""

    def sine(a):
        return fg.pure_callback(lambda a: np.sin(a.numpy()), a, a, vjp=lambda args, out, g: (g * cosine(args[0]),))

    def cosine(a):
        return fg.pure_callback(lambda a: np.cos(a.numpy()), a, a, vjp=lambda args, out, g: (-g * sine(args[0]),))

    def gradient(x):
        return func.grad(lambda x: sine(x).sum())(x).sum()

    for transform in (func.grad, fg.grad_compiled):
        same(transform(lambda x: sine(x).sum())(x), x.cos())
        same(transform(gradient)(x), -x.sin())


def test_within_rules_of_ones_own(x):
    """``custom_vjp`` around a callback that has none."""

    @fg.custom_vjp
    def f(x):
        return fg.pure_callback(erf, x, x)

    f.defvjp(lambda x: (f(x), x), lambda x, g: (g * slope(x),))
    for transform in (func.grad, fg.grad_compiled):
        same(transform(lambda x: f(x).pow(2).sum())(x), func.grad(lambda x: torch.erf(x).pow(2).sum())(x))


class Converts(torch.autograd.Function):
    """Its forward converts to NumPy."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return fg.pure_callback(erf, x, x)

    @staticmethod
    def backward(ctx, g):
        return g * slope(*ctx.saved_tensors)


def test_in_a_custom_function(x):
    found = fg.grad_compiled(lambda x: Converts.apply(x * 2).sum())(x)
    same(found, func.grad(lambda x: torch.erf(x * 2).sum())(x))
    own = x.clone().requires_grad_()
    Converts.apply(own * 2).sum().backward()
    same(own.grad, found)


# ── results ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("jit", [lambda f: f, fg.jit, functools.partial(fg.jit, backend="aten")])
def test_pytrees_and_numbers(jit, x, w):
    def split(given, scale, names):
        assert names == ("a", "b")
        return {"a": given["x"].numpy() * scale, "b": [given["w"].sum().item(), None]}

    def f(x, w, scale):
        like = {"a": x, "b": [torch.empty((), dtype=F64, device="meta"), None]}
        found = fg.pure_callback(split, like, {"x": x, "w": w}, scale=scale, names=("a", "b"))
        return found["a"] + found["b"][0], found

    c = jit(f)
    for scale in (2.0, 3.5, -1.0):  # a float is a symbol from its second value on
        total, found = c(x, w, scale)
        same(total, x * scale + w.sum())
        assert list(found) == ["a", "b"] and found["b"][1] is None
        same(found["a"], x * scale)


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_sizes_that_vary(backend):
    """One program for all sizes; the sizes of results follow from those of the arguments."""

    def f(x):
        total = fg.pure_callback(
            lambda a: np.concatenate([a.numpy(), a.numpy()]).sum(1), torch.empty(2 * x.shape[0]), x
        )
        return total.sin() * 2

    c = fg.jit(f, backend=backend, dynamic=True)
    for n in (4, 7, 3):
        x = torch.randn(n, 5)
        torch.testing.assert_close(c(x), torch.cat([x, x]).sum(1).sin() * 2)
    assert c.cache_info().currsize == 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "result, what, fix",
    [
        (lambda a: a.long(), "int64 tensor of shape \\[2, 3\\], and like says a float64", "result.to(torch.float64)"),
        (
            lambda a: a[0],
            "shape \\[3\\], and like says a float64 tensor of shape \\[2, 3\\]",
            "a result of shape [2, 3]",
        ),
        (lambda a: a.to("meta"), "on meta, and like says cpu", 'result.to("cpu")'),
        (lambda a: (a, a), "returned tuple", "one structure"),
        (lambda a: None, "returned None", "one structure"),
    ],
)
def test_a_result_that_is_not_like_it_was_said(compiled, result, what, fix, x):
    def f(x):
        return fg.pure_callback(result, x, x) + 1

    with pytest.raises(fg.OpaqueCallError, match=what) as caught:
        (fg.jit(f) if compiled else f)(x)
    assert fix in caught.value.fix and "test_callbacks.py" in caught.value.where


@pytest.mark.parametrize("compiled", [False, True])
def test_sizes_are_checked_in_each_call(compiled, x):
    sizes = iter([2, 2, 3])
    ones = fg.opaque(lambda a: np.ones((next(sizes), 3)), like=lambda a: a)

    def f(x):
        return ones(x) + x

    c = fg.jit(f) if compiled else f
    same(c(x), x + 1)
    same(c(x), x + 1)
    with pytest.raises(fg.OpaqueCallError, match=r"shape \[3, 3\]"):
        c(x)


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize(
    "back", [lambda a: a, lambda a: a.numpy(), lambda a: a[:], lambda a: torch.from_numpy(a.numpy())]
)
def test_a_result_in_the_memory_of_an_argument(backend, back, x):
    """It is a copy: what is written to it is not written to the argument."""

    def f(x):
        y = fg.pure_callback(back, x, x)
        y.add_(1)
        return y

    kept = x.clone()
    for g in (f, fg.jit(f, backend=backend)):
        same(g(x), kept + 1)
        same(x, kept)


def test_layouts(x):
    """A result that lies otherwise, and a lazy conjugate."""

    def f(x):
        y = fg.pure_callback(lambda a: a.numpy().T.copy().T, x, x)
        z = fg.pure_callback(lambda a: a.conj(), x.to(torch.complex128), torch.complex(x, y).conj() * 2j)
        return y * x, z * 2

    same(fg.jit(f)(x), f(x))
    same(f(x), (x * x, 2 * (torch.complex(x, x).conj() * 2j).conj()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_nobody_reads_does_not_run(backend, x):
    calls = []

    def f(x):
        fg.pure_callback(lambda a: calls.append(1) or a, x, x)
        return x * 2

    same(fg.jit(f, backend=backend)(x), x * 2)
    assert not calls


# ── effects ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", BACKENDS)
def test_effects_in_order(backend, x):
    """None is dropped, moved, or done twice; in both passes."""
    log = []

    @fg.opaque(like=None)
    def note(what, a):
        log.append((what, a))

    class Notes(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, what):
            ctx.what = what
            note(f"forward {what}", x)
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            note(f"backward {ctx.what}", g)
            return g, None

    def f(x):
        y = Notes.apply(x.sin(), "a")
        note("between", y + 1)
        z = Notes.apply(y.exp(), "b")
        note("unused", x * 3)
        return (z * y).sum()

    def run(f):
        log.clear()
        own = x.clone().requires_grad_()
        f(own).backward()
        return [what for what, _ in log], [a.clone() for _, a in log], own.grad

    wanted = run(f)
    assert len(wanted[0]) == 6
    c = fg.jit(f, backend=backend)
    for _ in range(3):
        same(run(c)[1:], wanted[1:])
        assert run(c)[0] == wanted[0]
    log.clear()
    same(fg.grad_compiled(f, backend=backend)(x), wanted[2])
    assert [what for what, _ in log] == wanted[0]
    assert c.cache_info().currsize == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_kept_stays_what_it_was(backend):
    """A callback may keep what it is given: nothing is written over it."""
    kept = []

    @fg.opaque(like=None)
    def keep(a):
        kept.append((a, a.clone(), a.numpy()))

    def f(x):
        for i in range(4):
            x = (x * 2 + i).sin()
            keep(x)
            x = x.exp()
        keep(torch.cat([x, x + 1]) @ torch.ones(4, 4))
        return x

    c = fg.jit(f, backend=backend)
    for n in range(3):
        c(torch.full((4, 4), float(n)))
    junk = [torch.full((4, 4), 7.0) for _ in range(50)]
    assert len(kept) == 15
    for tensor, then, array in kept:
        assert torch.equal(tensor, then) and np.array_equal(array, then.numpy())
    del junk


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes(backend, x):
    @fg.opaque(like=lambda a, b: b, writes=0)
    def scale(a, b):
        a.numpy()[:] *= 2
        return b.numpy() + a.numpy().sum()

    def f(x, y):
        z = x.sin()
        out = scale(z, y)
        looks = x[0]
        more = scale(looks, y[1])
        return z, out, more, x * 1

    found, wanted = (x.clone(), x.cos()), (x.clone(), x.cos())
    results = fg.jit(f, backend=backend)(*found)
    same(results, f(*wanted))
    same(found, wanted)
    assert not torch.equal(found[0], x)


def test_writes_carry_history(x):
    """What was written has no derivative; what was there before has its own."""

    @fg.opaque(like=None, writes=0)
    def fill(a):
        a.fill_(3.0)

    def f(x):
        y = x * 2
        z = (x * 3).sin().sum()
        with torch.no_grad():
            fill(y.detach())
        return z

    for g in (f, fg.jit(f)):
        own = x.clone().requires_grad_()
        g(own).backward()
        same(own.grad, 3 * (3 * x).cos())
    for g in (lambda x: (t := x * 2, fill(t), t.sum())[-1], fg.jit(lambda x: (t := x * 2, fill(t), t.sum())[-1])):
        own = x.clone().requires_grad_()
        with pytest.raises(fg.UnsupportedTransformError, match="differentiated in reverse mode"):
            g(own).backward()


def test_state_outside(x):
    """What the callback does to Python state, and reads of it, no program assumes."""
    log, settings = [], {"scale": 2.0}
    scaled = fg.opaque(lambda a: a.numpy() * settings["scale"], like=lambda a: a)

    def f(x):
        fg.opaque(lambda a: log.append(float(a.sum())), like=None)(x)
        return scaled(x)

    c = fg.jit(f)
    for n in range(4):
        settings["scale"] = float(n)
        same(c(x * n), x * n * n)
    assert c.cache_info().currsize == 1
    assert log == pytest.approx([float(x.sum()) * n for n in range(4)])


def test_a_method(x):
    class Model:
        def __init__(self):
            self.seen = 0

        @fg.opaque(like=lambda self, a: a)
        def step(self, a):
            self.seen += 1
            return a * self.seen

        @fg.jit
        def run(self, x):
            return self.step(x) + 1

    model = Model()
    for n in range(1, 4):
        same(model.run(x), x * n + 1)
    assert model.seen == 3


@pytest.mark.parametrize("compiled", [False, True])
def test_what_it_raises(compiled, x):
    """It reaches the caller as it is, and no argument is changed by a compiled call."""

    class Own(Exception):
        pass

    error = Own("mine")

    @fg.opaque(like=None)
    def refuse(a):
        if a.sum() > 0:
            raise error

    def f(x):
        x.mul_(2)
        refuse(x)
        return x

    c = fg.jit(f) if compiled else f
    same(c(-x.abs()), -2 * x.abs())
    own = x.abs()
    with pytest.raises(Own) as caught:
        c(own)
    assert caught.value is error
    same(own, x.abs() if compiled else 2 * x.abs())


def test_autograd_inside(x):
    """The callback may differentiate on its own."""

    @fg.opaque(like=lambda a: a)
    def gradient(a):
        own = a.clone()
        with torch.enable_grad():
            own.requires_grad_()
            own.sin().sum().backward()
        return own.grad

    for f in (gradient, fg.jit(lambda x: gradient(x))):
        same(f(x), x.cos())
        same(f(x.clone().requires_grad_()), x.cos())


def test_random_numbers(x):
    """It draws from PyTorch's generator where eager PyTorch would."""

    def f(x):
        a = torch.rand(3)
        b = fg.opaque(lambda: torch.rand(3), like=torch.empty(3))()
        return a, b, torch.rand(3)

    torch.manual_seed(3)
    wanted = f(x)
    c = fg.jit(f)
    for _ in range(2):
        torch.manual_seed(3)
        same(c(x), wanted)


def test_in_control_flow(x):
    log = []

    @fg.opaque(like=lambda a: a)
    def note(a):
        log.append(float(a.sum()))
        return a * 2

    def f(x):
        return torch.cond(x.sum() > 0, lambda x: note(x) + 1, lambda x: x - 1, (x,))

    c = fg.jit(f)
    same(c(x.abs()), 2 * x.abs() + 1)
    same(c(-x.abs()), -x.abs() - 1)
    assert log == [float(x.abs().sum())]


def test_it_is_not_computed_again(x):
    """Neither by a checkpoint nor within a budget."""
    calls = []

    def inner(x):
        y = fg.pure_callback(lambda a: (calls.append(1), erf(a))[1], x, x.sin(), vjp=pull)
        return (y * y).exp()

    def f(x):
        return checkpoint(inner, x, use_reentrant=False).sum()

    wanted = func.grad(lambda x: torch.erf(x.sin()).pow(2).exp().sum())(x)
    budget = fg.grad_compiled(lambda x: inner(x).sum(), memory_budget=100000)
    for c in (fg.grad_compiled(f), budget, fg.grad_compiled(f, policy="nothing_saveable")):
        calls.clear()
        same(c(x), wanted)
        assert len(calls) == 1


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────


def test_no_derivative(x):
    def f(x):
        return fg.pure_callback(erf, x, x).sum()

    def forward(jvp):
        return lambda f: lambda x: jvp(f, (x,), (x,))

    for transform in (func.grad, fg.grad_compiled, forward(func.jvp), forward(fg.jvp_compiled)):
        with pytest.raises(fg.UnsupportedTransformError, match="nothing says what its derivative is") as caught:
            transform(f)(x)
        assert "fg.pure_callback(erf, like, *args, " in caught.value.fix and "in f" in caught.value.where
    c, own = fg.jit(f), x.clone().requires_grad_()
    value = c(own)  # as in eager PyTorch it is backward that raises
    same(value, torch.erf(x).sum())
    with pytest.raises(fg.UnsupportedTransformError, match="reverse mode"):
        value.backward()
    same(c(x), torch.erf(x).sum())


def test_no_way_to_batch(x):
    def f(x):
        return fg.pure_callback(erf, x, x)

    for transform in (func.vmap, fg.vmap_compiled):
        with pytest.raises(fg.UnsupportedTransformError, match="for a batch") as caught:
            transform(f)(x)
        assert 'fg.pure_callback(erf, like, *args, vmap_method="sequential")' in caught.value.fix
    with pytest.raises(fg.OptionError, match="vmap_method='each'"):
        fg.pure_callback(erf, x, x, vmap_method="each")


def test_it_does_not_say_how_its_result_looks(x):
    with pytest.raises(fg.ArgumentError, match="does not say how its result looks") as caught:
        fg.opaque(erf, writes=0)
    assert "fg.opaque(erf, like=None)" in caught.value.fix
    with pytest.raises(fg.ArgumentError, match="like of erf is a float"):
        fg.pure_callback(erf, 3.0, x)
    with pytest.raises(fg.ArgumentError, match="writes='a'"):
        fg.opaque(erf, like=None, writes="a")
    with pytest.raises(fg.ArgumentError, match="was called with 1 arguments"):
        fg.opaque(erf, like=lambda a: a, writes=3)(x)
    with pytest.raises(fg.CustomDerivativeError, match="not a tuple of 1 cotangents"):
        func.grad(lambda x: fg.pure_callback(erf, x, x, vjp=lambda args, out, g: g).sum())(x)
    with pytest.raises(fg.OptionError, match="is given a derivative"):
        fg.opaque(erf, like=None, writes=0, vjp=pull)


def test_the_first_call_says_how_its_result_looks(caplog):
    called = []

    @fg.opaque
    def spread(x):
        called.append(x.shape[0])
        return {"sum": x.numpy().sum(), "twice": np.concatenate([x.numpy()] * 2)}

    def f(x):
        y = spread(x * 2)
        return y["twice"] * y["sum"]

    compiled = fg.jit(f)
    for n in (3, 3, 3, 4, 4):
        x = torch.arange(n) + 1.0
        torch.testing.assert_close(compiled(x), torch.cat([x * 2] * 2) * (x * 2).sum())
    assert called == [3, 3, 3, 4, 4]  # once in each call
    assert compiled.cache_info().misses == 2
    with fg.no_retrace():
        compiled(torch.ones(4))


def test_a_derivative_of_one_whose_result_nobody_has_described(x):
    double = fg.opaque(lambda x: x.numpy() * 2, vjp=lambda args, out, g: (g * 2,))
    for transform in (fg.grad_compiled, func.grad):
        for _ in range(2):
            torch.testing.assert_close(transform(lambda x: (double(x) * x).sum())(x), 4 * x)


def test_under_vmap_it_has_to_be_said():
    triple = fg.opaque(lambda x: x.numpy() * 3)
    with pytest.raises((fg.DataDependentShapeError, fg.UnsupportedTransformError)):
        func.vmap(fg.jit(lambda x: triple(x)))(torch.ones(2, 3))


def test_a_tensor_that_it_closes_over(x):
    with pytest.raises(fg.TraceError, match="closes over a tensor") as caught:
        fg.jit(lambda x: fg.pure_callback(lambda: x.numpy(), x))(x)
    assert "pass it as an argument" in caught.value.fix


def test_an_argument_that_is_written_to_twice(x):
    f = fg.opaque(lambda a, b: a.add_(1) and None, like=None, writes=0)
    for c in (lambda x: f(x, x[0]), fg.jit(lambda x: f(x, x[0]))):
        with pytest.raises(fg.AliasContractError, match="shares memory"):
            c(x)


def test_effects_in_a_loop_that_is_differentiated(x):
    double = fg.opaque(lambda a: a * 2, like=lambda a: a, vjp=lambda args, out, g: (g * 2,))

    def f(x):
        return scan(lambda c, y: (c + double(y), c.clone()), x[0], x)[0]

    same(fg.jit(f)(x), x[0] + 2 * x.sum(0))
    with pytest.raises(fg.UnsupportedTransformError, match="its backward pass would call it again"):
        fg.grad_compiled(lambda x: f(x).sum())(x)


@pytest.mark.parametrize("jit", [lambda f: f, fg.jit])
def test_functions_of_numpy(jit, x):
    """With keywords of theirs, and without."""
    same(jit(lambda x: fg.pure_callback(np.sin, x, x))(x), x.sin())
    same(jit(lambda x: fg.pure_callback(np.clip, x, x, a_min=0.0, a_max=0.5))(x), x.clip(0, 0.5))
    same(jit(lambda x: fg.pure_callback(lambda a, *, k: a * k, x, x, k=2))(x), x * 2)
    with pytest.raises(fg.ArgumentError, match="by keyword alone"):
        jit(lambda x: fg.pure_callback(lambda a, *, k: a * k, x, x, k=x))(x)


def test_effects_are_not_done_again_for_a_derivative(x):
    calls = []

    @fg.opaque(like=lambda a: a, vjp=lambda args, out, g: (g * 2,))
    def double(a):
        calls.append(1)
        return a * 2

    c = fg.jit(lambda x: double(x.sin()).exp().sum())
    own = x.clone().requires_grad_()
    value = c(own)
    with pytest.raises(fg.UnsupportedTransformError, match="runs once"):
        torch.autograd.grad(value, own, create_graph=True)
    assert len(calls) == 1
    calls.clear()
    same(func.grad(c)(x), func.grad(lambda x: (x.sin() * 2).exp().sum())(x))
    assert len(calls) == 1


@pytest.mark.parametrize("ask", [lambda x: np.sin(x.numpy()), lambda x: np.asarray(x).sum(), lambda x: np.exp(x)])
def test_numpy_without_a_callback(ask, x):
    """The error says which line to write."""
    with pytest.raises(fg.DataDependentControlFlowError) as caught:
        fg.jit(lambda x: x * torch.as_tensor(ask(x)))(x)
    assert "fg.pure_callback(f, like, x)" in caught.value.fix
    assert isinstance(x, Tensor)
