"""Grad mode switched inside a function, on where it is off outside and the other way round: autograd knows results
as it does in eager."""

import contextlib
import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import funcgrad as fg

W = nn.Parameter(torch.tensor([1.0, 2.0]))


def on_inside(x):
    with torch.enable_grad():
        y = x * W
    return y


def partly(x):
    a = x * 3
    with torch.enable_grad():
        y = x * W
    return a, y, y * 2, x * W


def set_and_reset(x):
    torch.set_grad_enabled(True)
    y = x * W
    torch.set_grad_enabled(False)
    return y, x * W


def off_within_on(x):
    with torch.enable_grad():
        y = x * W
        with torch.no_grad():
            z = y * 2
        u = y * z
    return y, z, u


def views(x):
    with torch.enable_grad():
        a, b = x.view(2, 1), W[1:]
    return a, b, x.view(1, 2)


def view_before(x):
    a = x.view(2, 1)
    with torch.enable_grad():
        b = a * W
        c = a.view(2)
    return a, b, c


def derivative(x):
    with torch.enable_grad():
        y = (x * W * x).sum()
        (g,) = torch.autograd.grad(y, [W], create_graph=True)
    return g, g * 2


def written_after(x):
    with torch.enable_grad():
        y = x * W
    y.mul_(2)
    return y


def written_within(x):
    c = x * 1
    with torch.enable_grad():
        c.mul_(W)
    return c


def own_leaf(x):
    with torch.enable_grad():
        return torch.ones(2, requires_grad=True) * x


def asks(x):
    return x * (2 if W.requires_grad else 3) * (5 if x.requires_grad else 7)


def asks_for_history(x):
    return x * (2 if (x * 1).grad_fn is None else 3) * (5 if x.is_leaf else 7)


def through_a_module(x):
    layer = torch.enable_grad()(nn.functional.linear)
    return layer(x, W.expand(2, 2)), nn.functional.linear(x, W.expand(2, 2))


FUNCTIONS = [
    on_inside, partly, set_and_reset, off_within_on, views, view_before, derivative, written_after, written_within,
    own_leaf, asks,
    asks_for_history, through_a_module,
]  # fmt: skip


def known(t):
    return t.requires_grad, t.is_leaf, t.grad_fn is None


def outcome(function, mode, requires_grad, order):
    """The results as autograd knows them, and gradients of that order."""
    x = torch.tensor([3.0, 5.0], requires_grad=requires_grad)
    leaves = [v for v in (x, W) if v.requires_grad]
    with mode():
        results = function(x)
    results = results if isinstance(results, tuple) else (results,)
    found = [[known(t), t.tolist()] for t in results]
    for t, own in zip(results, found, strict=True):
        gradients = [t] if t.grad_fn is not None else []
        for _ in range(order):
            total = sum((g * g).sum() for g in gradients)
            if not gradients or total.grad_fn is None:
                break
            gradients = torch.autograd.grad(total, leaves, create_graph=True, materialize_grads=True)
            own.append([g.tolist() for g in gradients])
    return found


@pytest.mark.sweep(2)
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_grad_mode_inside(function, mode, requires_grad, order):
    compiled = fg.jit(function)
    expected = None
    try:
        expected = outcome(function, mode, requires_grad, order)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=r".*"):
            outcome(compiled, mode, requires_grad, order)
        assert "grad" in str(error)
    for _ in range(2 if expected else 0):
        assert outcome(compiled, mode, requires_grad, order) == expected


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("aux", [on_inside, partly, off_within_on])
def test_grad_mode_inside_a_gradient(aux, mode):
    def loss(x):
        out = aux(x)
        out = out if isinstance(out, tuple) else (out,)
        return sum((t * t).sum() for t in out), [t.detach() for t in out]

    x = torch.tensor([3.0, 5.0])
    with mode():
        found, found_aux = fg.grad_compiled(loss, has_aux=True)(x)
        expected, expected_aux = torch.func.grad(loss, has_aux=True)(x)
    torch.testing.assert_close([found, *found_aux], [expected, *expected_aux])


def test_a_call_where_nothing_is_switched_on_stays_as_it_was():
    with torch.no_grad():
        assert "enable_grad" not in str(fg.jit(lambda x: x * W).program(torch.ones(2)).call)


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_a_gradient_of_what_requires_grad_has_no_history_under_no_grad(backend):
    c = fg.value_and_grad_compiled(lambda x: ((x * 1.0).sin().sum(), x * 2.0), has_aux=True, backend=backend)
    with torch.no_grad():
        (value, aux), gradient = c(torch.ones(3, requires_grad=True))
    assert not (value.requires_grad or aux.requires_grad or gradient.requires_grad)


ASKS = {
    "requires_grad": lambda h: h.requires_grad,
    "requires_grad of what is computed": lambda h: (h * 2).requires_grad,
    "is_leaf of what is computed": lambda h: not (h * 2).is_leaf,
    "grad_fn of a view": lambda h: h[:1].grad_fn is not None,
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("given", [False, True], ids=["captured", "given"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("asks", ASKS.values(), ids=ASKS)
def test_a_gradient_asks_whether_another_tensor_requires_grad(asks, requires_grad, given, mode):
    h = torch.tensor([2.0, 4.0], requires_grad=requires_grad)

    def loss(x, other=h):
        return (x * x).sum() * (2 if asks(other) else 3)

    x = torch.tensor([3.0, 5.0])
    with mode():
        found = fg.grad_compiled(loss, backend="aten")(x, *([h] if given else []))
    (expected,) = torch.autograd.grad(loss(x.requires_grad_()), x)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad])
def test_a_gradient_of_what_calls_backward_for_another_tensor(mode):
    def loss(x, h):
        (h * x.detach()).sum().backward()
        (found,) = torch.autograd.grad((h * h).sum(), h)
        return (x * found).sum()

    x, h, same = (
        torch.tensor([3.0, 5.0]),
        torch.tensor([2.0, 4.0], requires_grad=True),
        torch.tensor([2.0, 4.0], requires_grad=True),
    )
    with mode():
        found = fg.grad_compiled(lambda x: loss(x, h), backend="aten")(x)
    (expected,) = torch.autograd.grad(loss(x.requires_grad_(), same), x)
    assert torch.equal(found, expected) and torch.equal(h.grad, same.grad)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.view(-1)[2:] * 2,
        lambda x: x.t(),
        lambda x: [part * 2 for part in x.chunk(2, 1)],
        lambda x: x[:, None].expand(2, 4, 4).sum(1),
        lambda x: torch.inference_mode(False)(lambda: x.t() * 2)(),
        lambda x: (x * 2).view(-1)[1:] + 1,
    ],
    ids=["look", "result", "parts", "expand", "normal inside", "of what it made"],
)
def test_views_in_inference_mode_inside(f, requires_grad):
    inside = torch.inference_mode()(f)
    compiled = fg.jit(inside, backend="aten")
    for n in range(2):
        x = torch.arange(8.0).view(2, 4).requires_grad_(requires_grad) + n
        torch.testing.assert_close(compiled(x), inside(x))


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = None

    def forward(self, x):
        with torch.inference_mode():
            self.last = x * 2
        return x * 3


def within(f):
    """What ``f`` computes in inference mode, and what is computed of that outside."""

    def g(x):
        with torch.inference_mode():
            made = f(x)
        return made, made[1:], made * 3, made.clone(), x * 2, made

    return g


INSIDE = {
    "computed": lambda x: x * 2,
    "look at what is computed": lambda x: (x * 2)[1:],
    "look at an input": lambda x: x[1:],
    "an input": lambda x: x,
    "conjugated": lambda x: torch.complex(x, x).conj(),
    "checkpoint": lambda x: checkpoint(torch.sin, x, use_reentrant=False),
    "reentrant checkpoint": lambda x: checkpoint(torch.sin, x, use_reentrant=True),
    "written to": lambda x: (x * 2).add_(1),
    "normal inside": lambda x: torch.inference_mode(False)(lambda: x.detach() * 2)(),
}


def an_inference_tensor():
    with torch.inference_mode():
        return torch.arange(3.0)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad])
@pytest.mark.parametrize(
    "make", [lambda: torch.arange(3.0), lambda: torch.arange(3.0, requires_grad=True), an_inference_tensor],
    ids=["plain", "leaf", "inference"],
)  # fmt: skip
@pytest.mark.parametrize("f", INSIDE.values(), ids=INSIDE)
def test_what_is_made_in_inference_mode_is_an_inference_tensor(f, make, mode):
    """It was an ordinary one, which autograd saves and anybody may write to."""
    f = within(f)
    compiled = fg.jit(f, backend="aten")
    for _ in range(2):
        with mode():
            found, expected = compiled(make()), f(make())
        assert [t.is_inference() for t in found] == [t.is_inference() for t in expected]
        assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]
        assert found[5] is found[0]
        assert found[1].untyped_storage().data_ptr() == found[0].untyped_storage().data_ptr()
        torch.testing.assert_close(found, expected)
        if expected[0].is_inference() and not expected[0].is_complex():
            with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
                _ = found[0] * torch.ones_like(found[0], requires_grad=True)
            with pytest.raises(RuntimeError, match="Inplace update to inference tensor"):
                found[0].add_(1)


LEAVING = {
    "computed": lambda x, w: torch.inference_mode(False)(lambda: x.clone() * 2)(),
    "made": lambda x, w: torch.inference_mode(False)(torch.ones)(3) + x,
    "a constant": lambda x, w: torch.inference_mode(False)(torch.ones)(3),
    "a view": lambda x, w: torch.inference_mode(False)(lambda: x[1:])(),
    "beside": lambda x, w: (torch.inference_mode(False)(torch.ones)(3), x * 2)[1],
    "a loss": lambda x, w: torch.inference_mode(False)(lambda: (w * x.clone()).sum())(),
    "a gradient": lambda x, w: torch.inference_mode(False)(torch.autograd.grad)((w * 2).sum(), w)[0],
    "torch.func": lambda x, w: torch.func.grad(lambda w: (w * x.clone()).sum())(w),
    "gradient of what is computed there": lambda x, w: torch.inference_mode(False)(
        lambda: torch.autograd.grad((w * w).sum(), w)[0]
    )(),
}


@pytest.mark.parametrize("make", [lambda: torch.arange(3.0), an_inference_tensor], ids=["plain", "inference"])
@pytest.mark.parametrize("f", LEAVING.values(), ids=LEAVING)
def test_a_function_that_leaves_the_inference_mode_of_its_call(f, make):
    """What it made outside was an inference tensor, and what it differentiated there raised."""
    compiled, w = fg.jit(f, backend="aten"), torch.ones(3, requires_grad=True)

    def seen(called):
        with torch.inference_mode():
            try:
                found = called(make(), w)
            except RuntimeError as error:
                return str(error)
        derivative = torch.autograd.grad(found, w)[0].tolist() if found.requires_grad else None
        return found.tolist(), found.is_inference(), found.requires_grad, found.is_leaf, derivative

    assert seen(compiled) == seen(compiled) == seen(f)
    assert compiled(torch.ones(3), w).is_inference() is False
    with torch.inference_mode():
        assert "kernel(" in str(fg.jit(lambda x: LEAVING["computed"](x, None)).program(make()).call)


def test_what_is_kept_of_inference_mode_is_an_inference_tensor():
    module = Kept()
    compiled = fg.jit(module)
    for n in range(2):
        x = torch.arange(3.0).add_(n).requires_grad_()
        compiled(x).sum().backward()
        assert module.last.is_inference()
        assert torch.equal(module.last, x.detach() * 2)
        assert x.grad.tolist() == [3, 3, 3]


def test_what_comes_beside_a_gradient_is_an_inference_tensor():
    def f(x):
        with torch.inference_mode():
            beside = x * 2
        return (x * x).sum(), beside

    x = torch.arange(3.0)
    gradient, beside = fg.grad_compiled(f, has_aux=True)(x)
    assert beside.is_inference()
    assert not gradient.is_inference()
    torch.testing.assert_close((gradient, beside), (x * 2, x * 2))


def test_inference_mode_in_a_function_that_is_mapped():
    def f(x):
        with torch.inference_mode():
            y = x * 2
        return y, x * 3

    x = torch.arange(6.0).view(2, 3)
    torch.testing.assert_close(torch.func.vmap(fg.jit(f))(x), (x * 2, x * 3))
    torch.testing.assert_close(fg.jit(lambda x: fg.jit(f)(x))(x), (x * 2, x * 3))


def left(x, flag):
    torch.set_grad_enabled(flag)
    return x * W


def left_after_both(x, flag):
    torch.set_grad_enabled(True)
    y = x * W
    torch.set_grad_enabled(flag)
    return y, x * W


def left_after_asking(x, flag):
    scale = 2 if W.requires_grad else 3
    torch.set_grad_enabled(flag)
    return x * W * scale


def put_back_around(x, flag):
    with torch.no_grad():
        torch.set_grad_enabled(flag)
        y = x * W
    return y, x * W


@pytest.mark.parametrize("function", [left, left_after_both, left_after_asking, put_back_around])
def test_grad_mode_that_a_function_leaves(function):
    """Grad mode is after each call as the function has left it, from whichever mode it was called."""

    def outcomes(called):
        found = []
        for outside, flag, requires_grad in [*itertools.product((True, False), repeat=3)] * 2:
            x = torch.tensor([3.0, 5.0], requires_grad=requires_grad)
            with torch.set_grad_enabled(outside):
                results = called(x, flag)
                after = torch.is_grad_enabled()
            results = results if isinstance(results, tuple) else (results,)
            found.append((outside, flag, after, [(known(t), t.tolist()) for t in results]))
        return found

    assert outcomes(fg.jit(function)) == outcomes(function)


@pytest.mark.parametrize("transform", ["vmap", "jvp", "grad", "functionalize"])
def test_grad_mode_left_under_a_transform(transform):
    """A program that runs below a level leaves grad mode as the function does at that level."""

    def outcomes(called):
        over = {
            "vmap": lambda f: torch.func.vmap(f)(torch.ones(3, 2)),
            "jvp": lambda f: torch.func.jvp(f, (torch.ones(2),), (torch.ones(2),))[1],
            "grad": lambda f: torch.func.grad(lambda x: f(x).sum())(torch.ones(2)),
            "functionalize": lambda f: torch.func.functionalize(f)(torch.ones(2)),
        }[transform]
        found = []
        for outside, flag in [*itertools.product((True, False), repeat=2)] * 2:
            with torch.set_grad_enabled(outside):
                result = over(lambda x, flag=flag: called(x, flag) * (1 if torch.is_grad_enabled() else 3))
                found.append((outside, flag, torch.is_grad_enabled(), result.requires_grad, result.tolist()))
        return found

    assert outcomes(fg.jit(left)) == outcomes(left)
