"""``custom_vjp`` and ``custom_jvp``: in eager PyTorch, in every compiled transform, and under every transform of
torch.func.

The rules here are the true derivatives, unless a test is about rules that are not: what the function without rules
computes is the oracle.
"""

import collections
import functools
import warnings

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

import funcgrad as fg

F64 = torch.float64
OPTIONS = {"backend": "aten"}


def same(found, wanted):
    found, wanted = tree_leaves(found), tree_leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.fixture
def x():
    return torch.linspace(-1, 1.2, 6, dtype=F64).view(2, 3)


@pytest.fixture
def y():
    return torch.linspace(0.4, 1.7, 3, dtype=F64)


def product(x, y):
    return torch.sin(x) * y


@fg.custom_vjp
def by_vjp(x, y):
    return torch.sin(x) * y


def product_fwd(x, y):
    out = torch.sin(x) * y
    return out, {"cos": torch.cos(x), "y": y, "sin": torch.sin(x), "out": out, "many": x.dim() > 1}


def product_bwd(saved, g):
    along = (g * saved["sin"]).sum(0) if saved["many"] else g * saved["sin"]
    return g * saved["cos"] * saved["y"], along


by_vjp.defvjp(product_fwd, product_bwd)


@fg.custom_jvp
def by_jvp(x, y):
    return torch.sin(x) * y


@by_jvp.defjvp
def product_rule(primals, tangents):
    (x, y), (dx, dy) = primals, tangents
    return by_jvp(x, y), torch.cos(x) * y * dx + torch.sin(x) * dy


def total(f):
    return lambda x, y: (f(x, y) ** 3).sum()


def dual(x, tangent, f):
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, tangent))).tangent


def orders(f):
    def at(x, y):
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        first = torch.autograd.grad(total(f)(x, y), (x, y), create_graph=True)
        second = torch.autograd.grad(sum((g**2).sum() for g in first), (x, y), create_graph=True)
        return first, second, torch.autograd.grad(sum((g**2).sum() for g in second), (x, y))

    return at


def backward(f):
    def at(x, y):
        x, y = x.clone().requires_grad_(), y.clone().requires_grad_()
        total(f)(x, y).backward()
        return x.grad, y.grad

    return at


def forward_over_reverse(f):
    def at(x, y):
        leaf = x.clone().requires_grad_()
        return dual(leaf, x.cos(), lambda x: torch.autograd.grad(total(f)(x, y), x, create_graph=True)[0])

    return at


def reverse_over_forward(f):
    def at(x, y):
        leaf = x.clone().requires_grad_()
        return torch.autograd.grad(dual(leaf, x.cos(), lambda x: total(f)(x, y)), leaf)

    return at


REVERSE = {
    "call": lambda f: f,
    "backward": backward,
    "three orders": orders,
    "grad": lambda f: func.grad(total(f), (0, 1)),
    "grad of grad": lambda f: func.grad(lambda x, y: func.grad(total(f))(x, y).pow(2).sum(), (0, 1)),
    "grad of grad of grad": lambda f: func.grad(
        lambda x, y: func.grad(lambda x, y: func.grad(total(f))(x, y).pow(2).sum(), 1)(x, y).pow(2).sum()
    ),
    "jacrev": lambda f: func.jacrev(f, (0, 1)),
    "jacrev of jacrev": lambda f: func.jacrev(func.jacrev(total(f))),
    "hessian": lambda f: func.hessian(total(f), (0, 1)),
    "jvp of grad": lambda f: lambda x, y: func.jvp(lambda x: func.grad(total(f))(x, y), (x,), (x.cos(),)),
    "vmap": lambda f: func.vmap(f, (0, None)),
    "vmap of grad": lambda f: func.vmap(func.grad(total(f), (0, 1)), (0, None)),
    "grad of vmap": lambda f: func.grad(lambda x, y: func.vmap(f, (0, None))(x, y).pow(2).sum()),
    "vmap of vmap of grad": lambda f: lambda x, y: func.vmap(func.vmap(func.grad(total(f)), (0, None)), (0, None))(
        torch.stack([x, x.sin()]), y
    ),
    "vmap of hessian": lambda f: func.vmap(func.hessian(total(f)), (0, None)),
    "forward over reverse": forward_over_reverse,
}  # fmt: skip
FORWARD = {
    "jvp": lambda f: lambda x, y: func.jvp(f, (x, y), (x.cos(), y.exp())),
    "jvp of jvp": lambda f: (
        lambda x, y: func.jvp(lambda x: func.jvp(lambda x: f(x, y), (x,), (x.sin(),))[1], (x,), (x.cos(),))
    ),
    "jacfwd": lambda f: func.jacfwd(f, (0, 1)),
    "jacfwd of jacfwd": lambda f: func.jacfwd(func.jacfwd(total(f))),
    "jacrev of jacfwd": lambda f: func.jacrev(func.jacfwd(total(f))),
    "vmap of jvp": lambda f: func.vmap(lambda x, y: func.jvp(lambda x: f(x, y), (x,), (x.cos(),)), (0, None)),
    "dual tensors": lambda f: lambda x, y: dual(x, x.cos(), lambda x: f(x, y)),
    "reverse over forward": reverse_over_forward,
}
COMPILED = {
    "grad": lambda f: fg.grad_compiled(total(f), (0, 1), **OPTIONS),
    "grad of grad": lambda f: fg.grad_compiled(
        lambda x, y: fg.grad_compiled(total(f), **OPTIONS)(x, y).pow(2).sum(), (0, 1), **OPTIONS
    ),
    "jacrev": lambda f: fg.jacrev_compiled(f, (0, 1), **OPTIONS),
    "hessian": lambda f: fg.hessian_compiled(total(f), (0, 1), **OPTIONS),
    "vmap": lambda f: fg.vmap_compiled(f, (0, None), **OPTIONS),
    "vmap of grad": lambda f: fg.vmap_compiled(fg.grad_compiled(total(f), (0, 1), **OPTIONS), (0, None), **OPTIONS),
    "jacfwd": lambda f: fg.jacfwd_compiled(f, (0, 1), **OPTIONS),
    "jacfwd of jacfwd": lambda f: fg.jacfwd_compiled(fg.jacfwd_compiled(total(f), **OPTIONS), **OPTIONS),
    "jvp": lambda f: lambda x, y: fg.jvp_compiled(f, (x, y), (x.cos(), y.exp()), **OPTIONS),
}  # fmt: skip
NEEDS_JVP = {"jacfwd", "jacfwd of jacfwd", "jvp"}
BOTH = pytest.mark.parametrize("f", [by_vjp, by_jvp])


@pytest.mark.sweep(4)
@BOTH
@pytest.mark.parametrize("word", REVERSE)
@pytest.mark.parametrize("compiled", [False, True])
def test_reverse_mode(f, word, compiled, x, y):
    same(REVERSE[word](fg.jit(f, **OPTIONS) if compiled else f)(x, y), REVERSE[word](product)(x, y))


@pytest.mark.parametrize("word", FORWARD)
@pytest.mark.parametrize("compiled", [False, True])
def test_forward_mode(word, compiled, x, y):
    same(FORWARD[word](fg.jit(by_jvp, **OPTIONS) if compiled else by_jvp)(x, y), FORWARD[word](product)(x, y))
    if word == "reverse over forward":
        return  # autograd's own level has both modes: which comes first is not known when the function is called
    with pytest.raises(fg.UnsupportedTransformError, match="by_vjp is differentiated in forward mode") as caught:
        FORWARD[word](fg.jit(by_vjp, **OPTIONS) if compiled else by_vjp)(x, y)
    assert caught.value.where.startswith("test_custom.py:")


@BOTH
@pytest.mark.parametrize("word", COMPILED)
def test_compiled_transforms(f, word, x, y):
    if f is by_vjp and word in NEEDS_JVP:
        with pytest.raises(fg.UnsupportedTransformError, match="by_vjp is differentiated in forward mode"):
            COMPILED[word](f)(x, y)
    else:
        same(COMPILED[word](f)(x, y), COMPILED[word](product)(x, y))


def test_fused_kernels(x, y):
    for f in (by_vjp, by_jvp):
        same(backward(fg.jit(f))(x, y), backward(product)(x, y))


# ── whose derivative is taken ────────────────────────────────────────────────────────────────────────────────────────


@fg.custom_vjp
def rounded(x):
    return torch.round(x)


rounded.defvjp(lambda x: (torch.round(x), None), lambda _, g: (g * 3,))


@fg.custom_jvp
def tripled(x):
    return torch.round(x)


tripled.defjvp(lambda primals, tangents: (tripled(*primals), tangents[0] * 3))


@pytest.mark.parametrize("f", [rounded, tripled])
@pytest.mark.parametrize("of", [lambda f: f, lambda f: fg.jit(f, **OPTIONS)])
def test_the_rule_decides_and_not_the_function(f, of, x):
    leaf = x.clone().requires_grad_()
    out = of(lambda x: f(x * 2))(leaf)
    assert torch.equal(out, torch.round(x * 2))
    same(torch.autograd.grad(out.sum(), leaf), (torch.full_like(x, 6.0),))
    same(func.grad(lambda x: of(f)(x).sum())(x), torch.full_like(x, 3.0))
    same(func.vmap(func.grad(lambda x: of(f)(x).sum()))(x), torch.full_like(x, 3.0))


def test_fwd_runs_where_a_derivative_is_taken_and_the_function_elsewhere(x):
    ran = []

    @fg.custom_vjp
    def f(x):
        ran.append("f")
        return x * 2

    def fwd(x):
        ran.append("fwd")
        return x * 2, None

    f.defvjp(fwd, lambda _, g: (g * 2,))
    f(x)
    f(x.requires_grad_())
    with torch.no_grad():
        f(x)
    func.grad(lambda x: f(x).sum())(x.detach())
    func.vmap(f)(x.detach())
    assert ran == ["f", "fwd", "f", "fwd", "f"]


def test_a_clipped_gradient():
    @functools.partial(fg.custom_vjp, nondiff_argnums=(0, 1))
    def clip(low, high, x):
        return x

    clip.defvjp(lambda low, high, x: (x, None), lambda low, high, _, g: (g.clamp(low, high),))
    x = torch.linspace(-3, 3, 7, dtype=F64)

    def loss(x):
        return (clip(-1.0, 2.0, x) ** 2).sum()

    for f in (loss, fg.jit(loss, **OPTIONS)):
        same(func.grad(f)(x), (2 * x).clamp(-1, 2))
        same(func.vmap(func.grad(f))(x), (2 * x).clamp(-1, 2))
        leaf = x.clone().requires_grad_()
        f(leaf).backward()
        same(leaf.grad, (2 * x).clamp(-1, 2))


def test_the_result_of_a_function_that_returns_its_argument_may_be_written_to(x):
    @fg.custom_vjp
    def f(x):
        return x

    f.defvjp(lambda x: (x, x), lambda x, g: (g * x,))
    for g in (f, fg.jit(f, **OPTIONS)):
        leaf = x.clone().requires_grad_()
        out = g(leaf * 1)
        out.mul_(2)
        same(torch.autograd.grad(out.sum(), leaf), (2 * x,))


# ── arguments, results and residuals ─────────────────────────────────────────────────────────────────────────────────

Pair = collections.namedtuple("Pair", "a b")


def structured(p, n, x, k=2.0):
    return {
        "sum": p["w"] * x * k + p["b"][0].gather(0, n.view(1)).sum(),
        "parts": Pair(x.exp(), None),
        "n": n + 1,
        "name": "out",
    }


@fg.custom_vjp
def structured_vjp(p, n, x, k=2.0):
    return structured(p, n, x, k)


def structured_fwd(p, n, x, k):
    return structured(p, n, x, k), Pair({"p": p, "k": k}, (x, "exp", n))


def structured_bwd(saved, g):
    x, how, n = saved.b
    w, k = saved.a["p"]["w"], saved.a["k"]
    to_b = torch.zeros_like(saved.a["p"]["b"][0]).index_put((n,), g["sum"].sum(), accumulate=True)
    assert g["n"] is None and g["name"] is None and g["parts"].b is None
    return {"b": [to_b], "w": g["sum"] * x * k}, None, g["sum"] * w * k + g["parts"].a * getattr(x, how)(), None


structured_vjp.defvjp(structured_fwd, structured_bwd)


@fg.custom_jvp
def structured_jvp(p, n, x, k=2.0):
    return structured(p, n, x, k)


@structured_jvp.defjvp
def structured_rule(primals, tangents):
    (p, n, x, k), (dp, dn, dx, dk) = primals, tangents
    assert dn is None and dk == 0.0
    made = dp["w"] * x * k + p["w"] * dx * k + dp["b"][0].gather(0, n.view(1)).sum()
    return structured(p, n, x, k), {"sum": made, "parts": Pair(x.exp() * dx, None), "n": None, "name": None}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("f", [structured_vjp, structured_jvp])
@pytest.mark.parametrize("of", [lambda f: f, lambda f: fg.jit(f, **OPTIONS)])
def test_pytrees_integers_and_keywords(f, of, y):
    p, n = {"w": y.cos(), "b": [y.exp()]}, torch.tensor(1)

    def loss(f):
        def of(p, x):
            out = f(p, x=x, n=n)
            assert out["name"] == "out" and not out["n"].requires_grad
            return (out["sum"] ** 2 * out["parts"].a).sum() * out["n"]

        return of

    same(func.grad(loss(of(f)), (0, 1))(p, y), func.grad(loss(structured), (0, 1))(p, y))
    same(
        func.jacrev(func.grad(loss(of(f)), (0, 1)), 1)(p, y), func.jacrev(func.grad(loss(structured), (0, 1)), 1)(p, y)
    )
    same(fg.grad_compiled(loss(f), (0, 1), **OPTIONS)(p, y), func.grad(loss(structured), (0, 1))(p, y))
    batch = torch.stack([y, y.sin()])
    wanted = func.vmap(func.grad(loss(structured), (0, 1)), (None, 0))(p, batch)
    same(func.vmap(func.grad(loss(of(f)), (0, 1)), (None, 0))(p, batch), wanted)


def test_one_tensor_for_two_arguments_and_one_for_two_results(y):
    @fg.custom_vjp
    def f(a, b):
        out = a * b
        return out, out

    f.defvjp(lambda a, b: (f(a, b), (a, b)), lambda saved, g: ((g[0] + g[1]) * saved[1], (g[0] + g[1]) * saved[0]))
    for g in (f, fg.jit(f, **OPTIONS)):
        same(func.grad(lambda y: sum(v.sum() * k for k, v in enumerate(g(y, y), 1)))(y), 6 * y)


def test_functions_with_rules_inside_of_rules(x, y):
    @fg.custom_vjp
    def outer(x, y):
        return by_vjp(by_jvp(x, y), y)

    def fwd(x, y):
        inner = by_jvp(x, y)
        return by_vjp(inner, y), (x, inner, y)

    def bwd(saved, g):
        x, inner, y = saved
        along_inner, along_y = func.vjp(by_vjp, inner, y)[1](g)
        along_x, more = func.vjp(by_jvp, x, y)[1](along_inner)
        return along_x, along_y + more

    outer.defvjp(fwd, bwd)

    def plain(x, y):
        return product(product(x, y), y)

    for word in ("backward", "three orders", "vmap of grad", "grad of grad"):
        same(REVERSE[word](outer)(x, y), REVERSE[word](plain)(x, y))
        same(REVERSE[word](fg.jit(outer, **OPTIONS))(x, y), REVERSE[word](plain)(x, y))


@pytest.mark.parametrize(
    "word",
    [
        torch.vmap,
        lambda f: fg.vmap_compiled(f, **OPTIONS),
        lambda f: fg.jit(torch.vmap(f), **OPTIONS),
        lambda f: torch.vmap(torch.vmap(f)),
        lambda f: lambda x: fg.grad_compiled(lambda x: torch.vmap(f)(x).exp().sum(), **OPTIONS)(x) * x,
        lambda f: lambda x: torch.vmap(func.grad(lambda x: f(x).exp().sum()))(x) * x,
    ],
)
@pytest.mark.parametrize("kind", [fg.custom_vjp, fg.custom_jvp])
def test_a_rule_that_calls_its_own_function(word, kind, x):
    """Batched, too, it runs on values that nobody differentiates: that call is the function."""
    f = kind(torch.sin)
    if kind is fg.custom_vjp:
        f.defvjp(lambda x: (f(x), x), lambda x, g: (g * x.cos(),))
    else:
        f.defjvp(lambda p, t: (f(*p), t[0] * p[0].cos()))

    def twice(f):
        x_ = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(word(f)(x_).sin().sum(), x_, create_graph=True)
        return g, *torch.autograd.grad(g.sum(), x_)

    same(twice(f), twice(torch.sin))


def test_rules_for_each_argument(x, y):
    @fg.custom_jvp
    def f(x, y, n):
        return torch.sin(x) * y * n

    f.defjvps(lambda dx, out, x, y, n: torch.cos(x) * y * n * dx, lambda dy, out, x, y, n: out / y * dy, None)
    n = torch.tensor(3)
    for g in (f, fg.jit(f, **OPTIONS)):
        same(
            func.jacfwd(lambda x, y: g(x, y, n), (0, 1))(x, y),
            func.jacfwd(lambda x, y: product(x, y) * 3, (0, 1))(x, y),
        )
        same(func.hessian(lambda x: g(x, y, n).sum())(x), func.hessian(lambda x: product(x, y).sum() * 3)(x))


def test_a_decorator_with_options_and_a_tensor_that_is_not_differentiated(x, y):
    @fg.custom_jvp(nondiff_argnums=1)
    def f(x, y, scale=2.0):
        return product(x, y) * scale

    @f.defjvp
    def rule(y, primals, tangents):
        x, scale = primals
        return f(x, y, scale), torch.cos(x) * y * scale * tangents[0]

    assert rule(y, (x, 2.0), (x, 0.0))[1].shape == x.shape
    for g in (f, fg.jit(f, **OPTIONS)):
        same(func.jacrev(g)(x, y), func.jacrev(lambda x: product(x, y) * 2)(x))
        batch = torch.stack([y, -y])
        same(
            func.vmap(func.jacfwd(g), (None, 0))(x, batch),
            func.vmap(func.jacfwd(lambda x, y: product(x, y) * 2), (None, 0))(x, batch),
        )
        for mode in (func.jacrev, func.jacfwd):
            with pytest.raises(fg.NonDifferentiableArgumentError, match="y of f is differentiated"):
                mode(g, 1)(x, y)


def test_complex_numbers():
    @fg.custom_vjp
    def f(z):
        return z * z

    f.defvjp(lambda z: (z * z, z), lambda z, g: (2 * z.conj() * g,))
    z = torch.tensor([1 + 2j, -0.5j], dtype=torch.complex128)
    for g in (f, fg.jit(f, **OPTIONS)):
        same(func.grad(lambda z: g(z).abs().sum())(z), func.grad(lambda z: (z * z).abs().sum())(z))


# ── Python state ─────────────────────────────────────────────────────────────────────────────────────────────────────

SCALE = 3.0
WEIGHT = torch.full((3,), 2.0, dtype=F64)


def test_what_rules_read_is_watched(y, monkeypatch):
    @fg.custom_vjp
    def f(x):
        return x * 2

    f.defvjp(lambda x: (x * 2, None), lambda _, g: (g * SCALE * WEIGHT,))
    c = fg.grad_compiled(lambda x: f(x).sum(), **OPTIONS)
    same(c(y), torch.full_like(y, 6.0))
    monkeypatch.setitem(globals(), "SCALE", 5.0)
    same(c(y), torch.full_like(y, 10.0))
    WEIGHT.mul_(2)
    same(c(y), torch.full_like(y, 20.0))
    WEIGHT.div_(2)
    f.defvjp(lambda x: (x * 2, None), lambda _, g: (g * 7,))
    same(c(y), torch.full_like(y, 7.0))


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


def vjp_of(fwd=None, bwd=None, nondiff_argnums=()):
    def f(x):
        return x * 2

    made = fg.custom_vjp(f, nondiff_argnums)
    made.defvjp(fwd or (lambda x: (x * 2, None)), bwd or (lambda _, g: (g * 2,)))
    return made


def jvp_of(rule):
    made = fg.custom_jvp(lambda x: x * 2)
    made.defjvp(rule)
    return made


REFUSED = {
    "no rule": (fg.custom_vjp(torch.sin), "has no rule"),
    "no pair": (vjp_of(fwd=lambda x: x * 2), "returned a tensor, not a pair"),
    "no tuple": (vjp_of(bwd=lambda _, g: g), "not a tuple of 1 cotangents"),
    "too many": (vjp_of(bwd=lambda _, g: (g, g)), "a tuple of 2, not a tuple of 1"),
    "structure": (vjp_of(bwd=lambda _, g: ([g],)), "a cotangent of structure"),
    "shape": (vjp_of(bwd=lambda _, g: (g.sum(),)), "a float64 tensor of shape [] as the cotangent of x"),
    "dtype": (vjp_of(bwd=lambda _, g: (g.float(),)), "a float32 tensor of shape [3] as the cotangent of x"),
    "number": (vjp_of(bwd=lambda _, g: (2.0,)), "returned 2.0 as the cotangent of x"),
    "no pair of tangents": (jvp_of(lambda primals, tangents: tangents[0]), "returned a tensor, not a pair"),
    "structure of a tangent": (jvp_of(lambda p, t: (p[0] * 2, (t[0],))), "a tangent of structure"),
    "structure of a result": (jvp_of(lambda p, t: ((p[0],), t[0])), "a result of structure"),
    "shape of a tangent": (jvp_of(lambda p, t: (p[0] * 2, t[0].sum())), "a float64 tensor of shape [] as a tangent"),
    "shape of a result": (jvp_of(lambda p, t: (p[0].sum(), t[0])), "a float64 tensor of shape [] as a result"),
    "draws": (jvp_of(lambda p, t: (p[0] * 2, t[0] * torch.rand(3, dtype=F64))), "draws random numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_rules_that_do_not_fit(name, y):
    f, what = REFUSED[name]
    for g in (func.grad(lambda x: f(x).sum()), fg.grad_compiled(lambda x: f(x).sum(), **OPTIONS)):
        with pytest.raises(fg.CustomDerivativeError) as caught:
            g(y)
        assert what in caught.value.what
        assert caught.value.where.startswith("test_custom.py:") and caught.value.fix


def test_a_derivative_of_an_integer_is_refused(y):
    @fg.custom_vjp
    def f(x, n):
        return x * n

    f.defvjp(lambda x, n: (x * n, n), lambda n, g: (g * n, g))
    with pytest.raises(fg.CustomDerivativeError, match="as the cotangent of n, which is a int64 tensor") as caught:
        func.grad(lambda x: f(x, torch.tensor([1, 2, 3])).sum())(y)
    assert "None" in caught.value.fix


@pytest.mark.parametrize("of", [lambda f: f, lambda f: fg.jit(f, **OPTIONS)])
def test_a_tensor_that_is_closed_over_has_no_gradient(of, y):
    weight = y.clone().requires_grad_()
    f, g = fg.custom_vjp(lambda x: x * weight), fg.custom_jvp(lambda x: x * weight)
    f.defvjp(lambda x: (x * weight, None), lambda _, g: (g * weight,))
    g.defjvp(lambda p, t: (p[0] * weight, t[0] * weight))
    for made in (f, g):
        for call in (of(made), of(lambda x, made=made: torch.vmap(made)(x[None])[0])):
            for given in (y, y.clone().requires_grad_()):
                with pytest.raises(fg.CustomDerivativeError, match="closes over a tensor that is differentiated"):
                    call(given)
            with torch.no_grad():
                same(call(y), y * y)


def closing(kind, w):
    f = kind(lambda x: x * w)
    if kind is fg.custom_vjp:
        f.defvjp(lambda x: (x * w, None), lambda _, g: (g * w,))
    else:
        f.defjvp(lambda p, t: (p[0] * w, t[0] * w))
    return f


@pytest.mark.parametrize(
    "word",
    [
        lambda f: func.jacfwd(torch.vmap(f)),
        lambda f: func.jacfwd(torch.vmap(func.grad(f))),
        lambda f: func.jacfwd(torch.vmap(func.jacfwd(f))),
        lambda f: func.jacfwd(func.jacfwd(torch.vmap(f))),
        lambda f: lambda x: func.jacfwd(torch.vmap(torch.vmap(f)))(x[None]),
        lambda f: lambda x: func.jacfwd(torch.vmap(lambda a: f(a) * f(x[0])))(x),
    ],
)
def test_forward_mode_over_a_batch(word):
    """The rule is given the primals of samples, whichever levels of vmap are inside of that of forward mode."""

    @fg.custom_jvp
    def f(x):
        return torch.log1p(torch.exp(x))

    f.defjvp(lambda primals, tangents: (f(*primals), (1 - 1 / (1 + torch.exp(primals[0]))) * tangents[0]))
    x = torch.tensor([-1.0, 0.0, 1.5], dtype=F64)
    wanted = word(lambda x: torch.log1p(torch.exp(x)))(x)
    for found in (word(f), fg.jit(word(f), **OPTIONS), word(fg.jit(f, **OPTIONS))):
        same(found(x), wanted)


@pytest.mark.parametrize("kind", [fg.custom_vjp, fg.custom_jvp])
def test_a_tensor_of_an_outer_level_that_is_closed_over(kind, y):
    def of(w):
        return closing(kind, w)(w * 2).sum()

    for f in (of, fg.jit(of, **OPTIONS)):
        for word in (
            func.grad(f),
            lambda w: func.jvp(f, (w,), (w,)),
            func.grad(lambda w: func.grad(lambda x: f(w) * x)(w.sum())),
        ):
            with pytest.raises(fg.CustomDerivativeError, match="closes over a tensor that is differentiated"):
                word(y)
    same(func.grad(lambda x, w: closing(kind, w)(x).sum())(y, y.cos()), y.cos())
    same(
        func.vmap(lambda w: func.grad(lambda x: closing(kind, w)(x).sum())(w))(torch.stack([y, y.cos()])),
        torch.stack([y, y.cos()]),
    )


@pytest.mark.parametrize("word", [func.grad, func.jacrev, lambda f: func.vmap(func.grad(lambda y: f(y)))])
def test_a_compiled_function_under_transforms_in_a_rule(word, y):
    """It compiles where no level runs: what it is given is of a level of its own."""
    scaled = fg.jit(lambda x, y: (x * y.sin()).sum(), **OPTIONS)

    def solved(x):
        return func.grad(scaled)(x, x).sum() + func.jvp(lambda x: scaled(x, x), (x,), (x,))[1]

    f = fg.custom_vjp(solved)
    f.defvjp(lambda x: (solved(x), x), lambda x, g: (func.vjp(lambda x: scaled(x, x), x)[1](g)[0] * 3,))
    of = torch.stack([y, y.cos()]) if word not in (func.grad, func.jacrev) else y
    same(word(f)(of), 3 * (of.sin() + of * of.cos()))


def test_a_compiled_function_in_a_rule_that_closes_over_an_outer_level(y):
    def of(w):
        c = fg.jit(lambda x: x * w, **OPTIONS)
        f = fg.custom_vjp(lambda x: func.vjp(c, x)[1](x)[0])
        f.defvjp(lambda x: (func.vjp(c, x)[1](x)[0], None), lambda _, g: (g,))
        return f(w * 2).sum()

    for f in (func.grad(of), func.grad(lambda w: func.grad(lambda x: of(w) * x)(w.sum()))):
        with pytest.raises(fg.CustomDerivativeError, match="closes over a tensor that is differentiated"):
            f(y)


def test_a_second_derivative_of_a_rule_that_draws(y):
    f = vjp_of(fwd=lambda x: (x * 2, x * torch.rand(3, dtype=F64)), bwd=lambda r, g: (g * r,))
    func.grad(lambda x: f(x).sum())(y)
    with pytest.raises(fg.CustomDerivativeError, match="draws random numbers, and runs again"):
        func.grad(lambda x: func.grad(lambda x: f(x).sum())(x).sum())(y)


def test_arguments_that_are_refused(y):
    with pytest.raises(fg.ArgumentError, match="must be a function"):
        fg.custom_vjp(y)
    with pytest.raises(fg.ArgumentError, match="nondiff_argnums"):
        fg.custom_jvp(nondiff_argnums="x")
    with pytest.raises(fg.ArgumentError, match="was called with 1 arguments"):
        vjp_of(nondiff_argnums=(1,))(y)
    f = fg.custom_jvp(lambda x, *, k: x * k)
    f.defjvp(lambda p, t: (p[0], t[0]))
    with pytest.raises(fg.ArgumentError, match="can be passed by keyword alone"):
        f(y, k=2)
    with pytest.raises(fg.ArgumentError, match="takes no nondiff_argnums"):
        fg.custom_jvp(lambda x: x, 0).defjvps(None)
    g = fg.custom_jvp(lambda x: x * 2)
    g.defjvps(None, None)
    with pytest.raises(fg.CustomDerivativeError, match="1 arguments, and defjvps has 2 rules"):
        func.jvp(g, (y,), (y,))


def test_what_is_kept_dies_with_the_graph(x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leaf = x.clone().requires_grad_()
        out = by_vjp(leaf, y).sum()
        out.backward()
        with pytest.raises(RuntimeError, match="second time"):
            out.backward()
