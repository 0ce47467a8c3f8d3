"""Forward mode where sizes vary: two programs serve all of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch._higher_order_ops.scan import scan
from torch.autograd import forward_ad
from transformed import F64, jit, same

import funcgrad as fg

W = torch.linspace(-1, 1, 12, dtype=F64).view(4, 3)
G = torch.linspace(0.5, 1, 4, dtype=F64)
K = torch.linspace(-1, 1, 6, dtype=F64).view(2, 1, 3)


def pinn(x):
    def u(p):
        return torch.tanh(p @ W).sum()

    return torch.diagonal(func.vmap(func.hessian(u))(x), 0, -2, -1).sum(-1)


def writes(x):
    y = x.clone()
    y[:, 0] = y[:, 1] * 2
    return y.mul_(x)


def norms(x):
    running = torch.zeros(4, dtype=F64), G.clone()
    trained = F.batch_norm(x, *running, G, G, training=True)
    image = F.batch_norm(x.T[None], None, None, G, training=True)
    return F.group_norm(x, 2, G, G), trained, *running, F.batch_norm(x, G, G + 1, G, G), image


def rows(x):
    """A product of the rows of sequences at once."""
    return F.linear(torch.stack([x.sin(), torch.ones_like(x)]), W.T, W[0]), F.glu(x)


FUNCTIONS = {
    "mlp": lambda x: torch.tanh(x @ W) @ W.T,
    "layer_norm": lambda x: F.layer_norm(x, (4,), G, G),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(x.shape[0], dtype=torch.long), reduction="sum"),
    "where": lambda x: torch.where(x > 0, x, torch.zeros_like(x)),
    "max": lambda x: x.max(1).values,
    "maximum": lambda x: torch.maximum(x, x.detach() * 0.5),
    "cat": lambda x: torch.cat([x, torch.ones(x.shape[0], 2, dtype=F64), x * x], 1),
    "stack": lambda x: torch.stack([x.sum(0), torch.ones(4, dtype=F64)]),
    "convolution": lambda x: F.conv1d(x[:, None, :], K),
    "constants": lambda x: (x - 1) * torch.arange(x.shape[0], dtype=F64)[:, None] / (1 + x.detach() ** 2),
    "writes": writes,
    "pinn": pinn,
}  # fmt: skip


def sample(n):
    return torch.linspace(-1.1, 1.2, 4 * n, dtype=F64).view(n, 4), torch.linspace(0.3, -1, 4 * n, dtype=F64).view(n, 4)


def serves(run, eager, misses, sizes=(5, 7, 3, 9)):
    """Two programs serve all sizes but 1 and 0, with what eager PyTorch computes."""
    for n in sizes:
        same(run(*sample(n)), eager(*sample(n)))
    assert misses() == 2
    for n in (1, 0):
        same(run(*sample(n)), eager(*sample(n)))


def duals(f):
    def run(x, t):
        with forward_ad.dual_level():
            return tuple(forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))))

    return run


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_tangent(f):
    both = jit(lambda x, t: func.jvp(f, (x,), (t,)))
    serves(both, lambda x, t: func.jvp(f, (x,), (t,)), lambda: both.cache_info().misses)


def second_derivatives(f):
    return func.hessian(lambda x: sum(t.sin().sum() for t in f(x)))


@pytest.mark.parametrize("transformed", [second_derivatives, func.jacfwd], ids=["hessian", "jacfwd"])
@pytest.mark.parametrize("f", [norms, rows])
def test_norms_and_products_of_rows(f, transformed):
    """Running statistics are written to, and have no tangents."""
    compiled = jit(transformed(f))
    for n in (5, 7, 3):
        same(compiled(sample(n)[0]), transformed(f)(sample(n)[0]))
    assert compiled.cache_info().misses == 2


@pytest.mark.parametrize("name", ["layer_norm", "max", "cat", "convolution", "maximum", "writes"])
def test_a_jacobian(name):
    f = FUNCTIONS[name]
    compiled = fg.jacfwd_compiled(f)
    serves(lambda x, t: compiled(x), lambda x, t: func.jacfwd(f)(x), lambda: compiled.cache_info().misses)


AT = torch.tensor([[0, 1, 1, 2]])
BATCHED = {
    "convolution": FUNCTIONS["convolution"],
    "slices": lambda x: x[:, 1:3].sin(),
    "scatter_add": lambda x: torch.zeros(x.shape[0], 6, dtype=F64).scatter_add(1, AT.expand(x.shape[0], 4), x),
    "gather": lambda x: x.gather(-1, AT.expand(x.shape[0], 4)) ** 2,
    "scatter": lambda x: x.sin().scatter(1, AT.expand(x.shape[0], 4), 3.0),
    "writes": writes,
}


@pytest.mark.parametrize("f", BATCHED.values(), ids=BATCHED)
@pytest.mark.parametrize("mode", ["jacrev", "jacfwd"])
def test_batches_of_tangents_and_cotangents(f, mode):
    compiled, eager = getattr(fg, f"{mode}_compiled")(f), getattr(func, mode)(f)
    serves(lambda x, t: compiled(x), lambda x, t: eager(x), lambda: compiled.cache_info().misses, (5, 7, 3))


@pytest.mark.parametrize("name", ["mlp", "layer_norm", "max", "cat", "writes"])
def test_a_hessian(name):
    def f(x):
        return FUNCTIONS[name](x).sin().sum()

    compiled = fg.hessian_compiled(f)
    serves(lambda x, t: compiled(x), lambda x, t: func.hessian(f)(x), lambda: compiled.cache_info().misses, (5, 7, 3))


@pytest.mark.parametrize("name", ["layer_norm", "cat", "constants"])
@pytest.mark.parametrize("way", ["linearize", "jvp", "duals"])
def test_around_a_compiled_function(name, way):
    f = FUNCTIONS[name]
    compiled = jit(f)

    def linearised(x, t):
        out, pushforward = fg.linearize_compiled(compiled, x)
        return out, pushforward(t)

    run = {"linearize": linearised, "jvp": lambda x, t: func.jvp(compiled, (x,), (t,)), "duals": duals(compiled)}[way]
    eager = duals(f) if way == "duals" else lambda x, t: func.jvp(f, (x,), (t,))
    programs = [compiled]

    def misses():
        every = list(programs)
        for p in every:
            every += [*p._derived.values(), *filter(None, [p.at_level])]
        return max(p.cache_info().misses for p in every)

    serves(run, eager, misses)


def test_a_scan():
    def f(x):
        return scan(lambda c, a: (torch.tanh(c * a), c * 2 + a), G, x)[1]

    def steps(x):
        c, ys = G, []
        for a in x:
            c, y = torch.tanh(c * a), c * 2 + a
            ys.append(y)
        return torch.stack(ys)

    both = jit(lambda x, t: func.jvp(f, (x,), (t,)))
    for n in (5, 7, 3, 9):
        same(both(*sample(n)), func.jvp(steps, sample(n)[:1], sample(n)[1:]))
    assert both.cache_info().misses == 2


def test_what_has_no_tangent_adds_nothing_to_products_with_infinities():
    def f(x):
        return x * torch.arange(x.shape[0], dtype=F64)[:, None].exp(), x / x.detach()

    both = jit(lambda x, t: func.jvp(f, (x,), (t,)))
    for n in (5, 7, 3):
        x, t = sample(n)
        x[0, 0], x[1, 1] = torch.inf, -torch.inf
        same(torch.nan_to_num(both(x, t)[1][0]), torch.nan_to_num(func.jvp(f, (x,), (t,))[1][0]))
        assert both(x, t)[1][0].isfinite().all()
    assert both.cache_info().misses == 2


@pytest.mark.parametrize("alpha", [1, 2])
def test_sums_with_what_has_no_tangent(alpha):
    def f(x):
        c = torch.ones(x.shape[0], 1, dtype=F64)
        return torch.add(c, x, alpha=alpha), torch.sub(c, x, alpha=alpha), torch.sub(x, c, alpha=alpha), c - x.detach()

    def twice(x, t):
        return func.jvp(lambda x: func.jvp(f, (x,), (t,)), (x,), (x,))

    nested = jit(twice)
    for n in (5, 7, 3):
        same(nested(*sample(n)), twice(*sample(n)))
    assert nested.cache_info().misses == 2


def test_a_shape_that_does_not_fit_is_still_refused():
    both = jit(lambda x, t: func.jvp(lambda x: F.layer_norm(x, (4,)), (x,), (t,)))
    both(*sample(5))
    both(*sample(7))
    with pytest.raises(RuntimeError, match="normalized_shape"):
        both(torch.ones(7, 5, dtype=F64), torch.ones(7, 5, dtype=F64))
