"""What ``vjp`` and ``linearize`` returned outside, called in a compiled function, under transforms, and again."""

import functools
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import func
from transformed import F64, OPTIONS, jit, same

import funcgrad as fg


def exponential(x, y):
    return torch.exp(x * y).tanh()


def gated(x, y):
    return F.silu(x) * F.gelu(y)


def looked_at(x, y):
    return (x.t().reshape(2, 3) * y)[:, [2, 0, 1]].cumsum(0)


X = torch.linspace(-1, 1.2, 6, dtype=F64).view(2, 3)
Y = torch.tensor([0.4, -0.7, 1.1], dtype=F64)
C = torch.linspace(0.3, -0.8, 6, dtype=F64).view(2, 3)
VJP = {
    "eager": func.vjp,
    "compiled": lambda f, *x: fg.vjp_compiled(f, *x, **OPTIONS),
    "jit": lambda f, *x: func.vjp(jit(f), *x),
}
LINEARIZE = {
    "compiled": lambda f, *x: fg.linearize_compiled(f, *x, **OPTIONS),
    "jit": lambda f, *x: func.linearize(jit(f), *x),
}


def twice(pull):
    return lambda c: (pull(c), pull(2 * c))


def squares(pull):
    return lambda c: sum((g**2).sum() for g in pull(c))


def second(f):
    """What a second derivative makes of it, by autograd's own level."""

    def of(c):
        c = c.clone().requires_grad_()
        (g,) = torch.autograd.grad(f(c), c, create_graph=True)
        return g, torch.autograd.grad((g**2).sum(), c)

    return of


def batched(vmap):
    """What a pullback gives for a batch, by ``vmap`` of it."""
    return lambda p: lambda c: vmap(p)(torch.stack([c, c * 2]))


def pushed(jit):
    return lambda p: lambda c: func.jvp(jit(p), (c,), (c.cos(),))


CALLS = {
    "called twice": (twice, lambda p: jit(twice(p))),
    "vmap inside": (batched(func.vmap), batched(lambda p: fg.vmap_compiled(p, **OPTIONS))),
    "vmap outside": (batched(func.vmap), batched(lambda p: func.vmap(jit(p)))),
    "grad inside": (lambda p: func.grad(squares(p)), lambda p: fg.grad_compiled(squares(p), **OPTIONS)),
    "grad outside": (lambda p: func.grad(squares(p)), lambda p: func.grad(jit(squares(p)))),
    "jvp outside": (pushed(lambda p: p), pushed(jit)),
    "jacobian": (func.jacrev, lambda p: fg.jacrev_compiled(p, **OPTIONS)),
    "create_graph": (lambda p: second(squares(p)), lambda p: second(jit(squares(p)))),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("f", [exponential, gated, looked_at])
@pytest.mark.parametrize("vjp", VJP)
def test_a_pullback_in_a_compiled_function(vjp, f, call):
    eager, compiled = CALLS[call]
    made = compiled(VJP[vjp](f, X, Y)[1])
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.UnresolvedCaptureWarning)  # what a pullback saved nobody rebinds
        for c in (C, C.cos()):
            same(made(c), eager(func.vjp(f, X, Y)[1])(c))


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "linearize, f",  # a gradient of what torch.func.linearize returns writes to a constant, in eager PyTorch, too
    [("compiled", exponential), ("compiled", gated), ("jit", exponential)],
)
def test_a_linear_function_in_a_compiled_function(linearize, f, call):
    eager, compiled = CALLS[call]
    push = LINEARIZE[linearize](f, X, Y)[1]
    made = compiled(lambda c: [push(c, Y)])
    for c in (C, C.cos()):
        same(made(c), eager(lambda c: [func.jvp(f, (X, Y), (c, Y))[1]])(c))


def test_another_pullback_is_another_program():
    held = {}
    apply = jit(lambda c: held["pull"](c))
    for k in range(3):
        held["pull"] = fg.vjp_compiled(exponential, X * k, Y, **OPTIONS)[1]
        same(apply(C), func.vjp(exponential, X * k, Y)[1](C))


def test_what_a_pullback_saved_is_read_on_each_call():
    """Eager PyTorch knows of no version of what a level wraps."""
    x, own = X.clone(), X.clone()
    pull, compiled = func.vjp(torch.mul, x, Y)[1], jit(func.vjp(torch.mul, own, Y)[1])
    same(compiled(C), pull(C))
    for value in (x, own):
        value.mul_(3)
    same(compiled(C), pull(C))


def test_a_pullback_of_what_the_function_has_written_to():
    def writing(x):
        pull = func.vjp(torch.mul, x, Y)[1]
        return lambda c: (x.add_(c), pull(c))

    x, own = X.clone(), X.clone()
    same(jit(writing(own))(C), writing(x)(C))
    same(own, x)


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("is_leaf", [True, False])
def test_a_pullback_at_a_point_that_requires_grad(is_leaf, mode):
    def of(vjp, jit):
        x = X.clone().requires_grad_()
        pull = vjp(gated, x if is_leaf else x * 2, Y)[1]
        with mode():
            found = jit(lambda c: pull(c)[0])(C)
        if found.requires_grad:
            found.sum().backward()
        return found, found.requires_grad, x.grad

    same(of(VJP["compiled"], jit), of(func.vjp, lambda f: f))


TRANSFORMS = {
    "grad": func.grad,
    "jvp": lambda f: lambda x: func.jvp(f, (x,), (C,)),
    "hessian": func.hessian,
}


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_pullback_at_a_point_of_a_level(transform):
    def of(vjp, jit):
        def f(x):
            pull = vjp(gated, x, Y)[1]
            return (jit(lambda c: pull(c)[0])(C) ** 2).sum()

        return TRANSFORMS[transform](f)(X)

    same(of(VJP["compiled"], jit), of(func.vjp, lambda f: f))
    with pytest.raises(fg.CapturedTransformError, match="graph of eager PyTorch"):
        of(func.vjp, jit)


@pytest.mark.parametrize("wrapped", [True, False])
def test_a_tensor_of_a_level_that_has_ended_is_what_it_wraps(wrapped):
    left = []
    func.grad(lambda x: (left.append(x if wrapped else x.sin()), x.sum())[1])(X)
    same(jit(lambda c: c * left[0])(C), C * left[0])


ONLY_FIRST = {
    "silu": F.silu, "mish": F.mish, "hardsigmoid": F.hardsigmoid, "logit": lambda x: torch.logit(x.sigmoid(), 1e-3),
    "group norm": lambda x: F.group_norm(x, 3), "huber": lambda x: F.huber_loss(x, x.cos()),
    "soft margin": lambda x: F.soft_margin_loss(x, x.detach().sign()),
    "nll": lambda x: F.nll_loss(x, torch.tensor([0, 2])),
    "nll of images": lambda x: F.nll_loss(x.view(2, 3, 1, 1), torch.tensor([0, 2]).view(2, 1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ONLY_FIRST)
def test_the_gradient_of_an_operator_that_has_no_derivative_itself(name):
    f = ONLY_FIRST[name]
    close = functools.partial(torch.testing.assert_close, rtol=1e-7, atol=1e-9)  # PyTorch's own 1/6 is a float
    close(fg.linearize_compiled(f, X, **OPTIONS)[1](C), func.jvp(f, (X,), (C,))[1])
    out, pull = fg.vjp_compiled(f, X, **OPTIONS)
    own = func.vjp(f, X)[1]
    c = torch.ones_like(out)
    close(func.jvp(pull, (c,), (c * 2,))[1], own(c * 2))
    batch = torch.stack([c, c * 3])
    close(func.vmap(lambda t: func.jvp(pull, (c,), (t,))[1])(batch), func.vmap(own)(batch))


FACTOR, TIMES = [2.0], [0]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        TIMES[0] += 1
        return g * FACTOR[0]


def test_what_a_custom_function_of_a_pullback_reads_and_writes_is_python_state(monkeypatch):
    monkeypatch.setitem(globals(), "FACTOR", [2.0])
    monkeypatch.setitem(globals(), "TIMES", [0])
    _, pull = torch.func.vjp(Scaled.apply, torch.ones(3))
    compiled = fg.jit(lambda v: pull(v)[0])
    for calls, scale in enumerate((2.0, 5.0, 5.0, 2.0), 1):
        FACTOR[0] = scale
        assert compiled(torch.ones(3)).tolist() == [scale] * 3
        assert TIMES[0] == calls
