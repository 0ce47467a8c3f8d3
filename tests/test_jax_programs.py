"""Programs as users of JAX write them, with each of their transforms compiled, and with all of them: equal to eager
PyTorch in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops import map as map_op
from torch.utils._pytree import tree_map
from transformed import F64, Transforms, data, mlp, same

import funcgrad as fg

PROGRAMS, LOOPS = {}, {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def loops(f):
    """A program with loops that are operators; the oracle runs them in Python."""
    LOOPS[f.__name__] = f
    return f


def number(x):
    return torch.tensor(x, dtype=F64)


def quadratic(p, x, y):
    return ((torch.tanh(x @ p["w"] + p["b"]) - y) ** 2).mean()


def given():
    return {"w": data(3, 2), "b": data(2, seed=1)}, data(5, 3, seed=2), data(5, 2, seed=3)


def add(p, q, scale=1.0):
    return tree_map(lambda a, b: a + scale * b, p, q)


# ── derivatives of derivatives ───────────────────────────────────────────────────────────────────────────────────────


@program
def hessian_vector_products_four_ways(t):
    p, x, y = given()
    v = tree_map(torch.sin, p)
    loss = t.jit(lambda p: quadratic(p, x, y))
    dot = lambda a, b: sum((a[k] * b[k]).sum() for k in a)  # noqa: E731
    return (
        t.jvp(t.grad(loss), (p,), (v,)),
        t.grad(lambda p: t.jvp(loss, (p,), (v,))[1])(p),
        t.grad(lambda p: dot(t.grad(loss)(p), v))(p),
        t.vjp(t.grad(loss), p)[1](v),
    )


@program
def gauss_newton_on_a_pytree(t):
    p, x, y = given()
    outputs = t.jit(lambda p: torch.tanh(x @ p["w"] + p["b"]))
    v = tree_map(torch.cos, p)
    out, tangent = t.jvp(outputs, (p,), (v,))
    curvature = t.jvp(t.grad(lambda o: F.cross_entropy(o, y.softmax(-1))), (out,), (tangent,))[1]
    return t.vjp(outputs, p)[1](curvature)[0]


@program
def empirical_tangent_kernel(t):
    model, p = mlp((3, 4), (4, 2))
    one = t.jit(lambda p, x: func.functional_call(model, p, (x[None],))[0])
    jac = t.vmap(t.jacrev(one), (None, 0))
    a, b = jac(p, data(4, 3)), jac(p, data(3, 3, seed=1))
    by_jacobians = sum(torch.einsum("nop,mqp->nmoq", a[k].flatten(2), b[k].flatten(2)) for k in a)

    def entry(x, y):
        pull = t.vjp(lambda p: one(p, y), p)[1]
        return t.vmap(lambda u: t.jvp(lambda p: one(p, x), (p,), pull(u))[1])(torch.eye(2, dtype=F64))

    return by_jacobians, t.vmap(t.vmap(entry, (None, 0)), (0, None))(data(4, 3), data(3, 3, seed=1))


@program
def two_inner_steps(t):
    p, x, y = given()

    def adapted(p, x, y):
        for _ in range(2):
            p = add(p, t.grad(quadratic)(p, x, y), -0.1)
        return p

    outer = t.jit(lambda p, x, y: t.vmap(lambda x, y: quadratic(adapted(p, x, y), x.sin(), y))(x, y).mean())
    tasks = x.reshape(1, 5, 3).repeat(3, 1, 1), y.reshape(1, 5, 2) * torch.arange(3.0, dtype=F64)[:, None, None]
    return t.value_and_grad(outer)(p, *tasks)


@program
def reptile_with_a_learned_rate(t):
    p, x, y = given()

    def step(state, x, y):
        p, rate = state
        return add(p, tree_map(lambda g: rate.exp() * g, t.grad(quadratic)(p, x, y)), -1.0), rate

    return t.grad(lambda s: quadratic(step(step(s, x, y), x, y)[0], x, y))((p, number(-2.0)))


@program
def laplacians(t):
    w = data(3, 4)
    f = t.jit(lambda x: torch.tanh(x @ w).sum() * x.prod())
    basis = torch.eye(3, dtype=F64)
    second = lambda x, v: t.jvp(lambda x: t.jvp(f, (x,), (v,))[1], (x,), (v,))[1]  # noqa: E731
    by_duals = t.vmap(lambda x: t.vmap(lambda v: second(x, v))(basis).sum())
    return t.vmap(lambda x: t.jacfwd(t.grad(f))(x).trace())(data(4, 3)), by_duals(data(4, 3))


@program
def residual_of_a_heat_equation(t):
    model, p = mlp((2, 5), (5, 1))
    u = t.jit(lambda p, s, x: func.functional_call(model, p, (torch.stack([s, x]),))[0])

    def residual(p, s, x):
        return t.grad(u, 1)(p, s, x) - 0.3 * t.grad(t.grad(u, 2), 2)(p, s, x)

    def loss(p, s, x):
        inside = t.vmap(residual, (None, 0, 0))(p, s, x)
        return (inside**2).mean() + (t.vmap(u, (None, None, 0))(p, number(0.0), x) - x.sin()).square().mean()

    return t.value_and_grad(loss)(p, data(6), data(6, seed=1))


@program
def fisher_information(t):
    logits = t.jit(lambda w, x: (torch.tanh(x) @ w).log_softmax(-1))
    w, x = data(3, 4), data(3, seed=1)
    score = t.jacrev(logits)(w, x).flatten(1)
    fisher = score.T @ (logits(w, x).exp()[:, None] * score)
    kl = lambda v: (logits(w, x).exp() * (logits(w, x) - logits(v, x))).sum()  # noqa: E731
    return fisher, t.hessian(kl)(w).reshape(12, 12)


@program
def newton_steps(t):
    f = t.jit(lambda x: (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2)
    g, h = t.grad(f), t.hessian(f)
    x = number([-0.5, 0.4])
    for _ in range(3):
        x = x - torch.linalg.solve(h(x), g(x))
    return x, t.jacfwd(lambda x: x - torch.linalg.solve(h(x), g(x)))(x + 0.1)


@program
def score_matching(t):
    model, p = mlp((2, 5), (5, 2))
    score = t.jit(lambda p, x: func.functional_call(model, p, (x,)))

    def one(p, x):
        s = lambda x: score(p, x)  # noqa: E731
        divergence = t.vmap(lambda v: t.jvp(s, (x,), (v,))[1] @ v)(torch.eye(2, dtype=F64)).sum()
        return divergence + 0.5 * s(x).square().sum()

    return t.grad(lambda p: t.vmap(one, (None, 0))(p, data(5, 2)).mean())(p)


@program
def hutchinson_trace(t):
    w = data(3, 3)
    f = t.jit(lambda x: torch.sin(w @ x) * x)
    x, signs = data(3, seed=1), data(7, 3, seed=2).sign()
    both = lambda x: t.vmap(lambda v: (t.vjp(f, x)[1](v)[0] * v).sum())(signs).mean()  # noqa: E731
    return both(x), t.grad(both)(x)


@program
def coupling_flow(t):
    def forward(p, x):
        a, b = x.chunk(2)
        b = b * torch.exp(torch.tanh(a @ p["w"])) + a @ p["v"]
        return torch.cat([b, a]).flip(0)

    def log_prob(p, x):
        z = forward(p, x)
        return -(z**2).sum() / 2 + torch.linalg.slogdet(t.jacfwd(forward, 1)(p, x))[1]

    p = {"w": data(2, 2), "v": data(2, 2, seed=1)}
    return t.grad(lambda p: -t.vmap(t.jit(log_prob), (None, 0))(p, data(5, 4)).mean())(p)


@program
def leapfrog(t):
    w = data(3, 2)
    energy = t.jit(lambda q: (q**2).sum() / 2 + torch.logsumexp(q @ w, 0))
    force = t.grad(energy)

    def trajectory(q, p, step):
        for _ in range(3):
            p = p - step / 2 * force(q)
            q = q + step * p
            p = p - step / 2 * force(q)
        return q, p, energy(q) + (p**2).sum() / 2

    chains = t.vmap(trajectory, (0, 0, None))
    q, p = data(4, 3), data(4, 3, seed=1)
    return chains(q, p, number(0.1)), t.jacfwd(lambda s: trajectory(q[0], p[0], s))(number(0.1))


@program
def lagrangian_mechanics(t):
    def lagrangian(q, v):
        return 0.5 * (v**2 * (1 + q.sin() ** 2)).sum() - q.cos().prod()

    def acceleration(q, v):
        mass = t.hessian(lagrangian, 1)(q, v)
        return torch.linalg.solve(mass, t.grad(lagrangian, 0)(q, v) - t.jacfwd(t.grad(lagrangian, 1), 0)(q, v) @ v)

    return t.vmap(t.jit(acceleration))(data(4, 2), data(4, 2, seed=1)), t.jacrev(acceleration)(data(2), data(2, seed=1))


@program
def taylor_coefficients(t):
    f = t.jit(lambda x: torch.exp(torch.sin(x)))
    orders = [f]
    for _ in range(3):
        orders.append(lambda x, g=orders[-1]: t.jvp(g, (x,), (torch.ones_like(x),))[1])
    return [g(data(2)) for g in orders], [t.vmap(t.grad(lambda x, g=g: g(x)))(data(2)) for g in orders[:3]]


# ── rules of one's own ───────────────────────────────────────────────────────────────────────────────────────────────


@program
def a_fixed_point(t):
    @fg.custom_vjp
    def solve(a, b):
        x = torch.zeros_like(b)
        for _ in range(60):
            x = torch.tanh(a @ x) * 0.4 + b
        return x

    def forward(a, b):
        x = solve(a, b)
        return x, (a, x)

    def backward(residuals, cotangent):
        a, x = residuals
        step = lambda a, x: torch.tanh(a @ x) * 0.4  # noqa: E731
        jacobian = torch.func.jacrev(step, 1)(a, x)
        u = torch.linalg.solve(torch.eye(3, dtype=F64) - jacobian.T, cotangent)
        return torch.func.vjp(lambda a: step(a, x), a)[1](u)[0], u

    solve.defvjp(forward, backward)
    f = t.jit(lambda a, b: solve(a, b).square().sum())
    a, b = data(3, 3) / 3, data(3, seed=1)
    return t.grad(f, (0, 1))(a, b), t.jacrev(t.grad(f, 1), 1)(a, b), t.vmap(t.grad(f, 1), (None, 0))(a, data(4, 3))


@program
def log1pexp(t):
    @fg.custom_jvp
    def f(x):
        return torch.log1p(torch.exp(x))

    @f.defjvp
    def rule(primals, tangents):
        (x,), (dx,) = primals, tangents
        return f(x), (1 - 1 / (1 + torch.exp(x))) * dx

    g = t.jit(f)
    x = number([-1.0, 0.0, 100.0, 800.0])
    return (
        t.vmap(t.grad(g))(x), t.jvp(g, (x,), (x.cos(),)), t.jacfwd(t.vmap(t.grad(g)))(x[:3]),
        t.vmap(t.grad(t.grad(g)))(x[:3]), t.jacrev(g)(x),
    )  # fmt: skip


@program
def straight_through(t):
    by_detach = lambda x: x + (x.round() - x).detach()  # noqa: E731

    @fg.custom_vjp
    def by_rule(x):
        return x.round()

    by_rule.defvjp(lambda x: (x.round(), None), lambda _, cotangent: (cotangent.clamp(-1, 1),))
    found = []
    for quantise in (by_detach, by_rule):
        f = t.jit(lambda x, q=quantise: (q(x) * x).sum())
        found += [t.grad(f)(data(4)), t.vmap(t.grad(f))(data(3, 4)), t.jacrev(t.grad(f))(data(4))]
    return found


@program
def clipped_by_norm(t):
    p, x, y = given()

    def step(p, x, y):
        g = t.grad(quadratic)(p, x, y)
        norm = torch.stack([v.square().sum() for v in g.values()]).sum().sqrt()
        return add(p, tree_map(lambda v: v * torch.clamp(0.01 / norm, max=1.0), g), -1.0)

    per_sample = t.vmap(lambda x, y: step(p, x[None], y[None]))
    return t.jit(step)(p, x, y), per_sample(x, y), t.grad(lambda p: quadratic(t.jit(step)(p, x, y), x, y))(p)


@program
def reversed_gradient(t):
    @fg.custom_vjp(nondiff_argnums=(1,))
    def reverse(x, scale):
        return x

    reverse.defvjp(lambda x, scale: (x, ()), lambda scale, _, cotangent: (tree_map(lambda c: -scale * c, cotangent),))
    f = t.jit(lambda p, x: (torch.tanh(x @ reverse(p, 0.5)["w"]) + p["b"]).square().sum())
    p, x, _ = given()
    return t.grad(f)(p, x), t.vmap(t.grad(f), (None, 0))(p, x)


@program
def callbacks(t):
    def f(x):
        like = torch.empty(x.shape, dtype=F64, device="meta")
        return fg.pure_callback(
            lambda x: np.sin(x.numpy()), like, x, vmap_method="broadcast_all",
            vjp=lambda args, out, cotangent: (cotangent * args[0].cos(),),
        )  # fmt: skip

    g = t.jit(lambda x: (f(x * 2) * x).sum())
    return t.grad(g)(data(3)), t.vmap(t.grad(g))(data(4, 3)), t.jacrev(t.grad(g))(data(3))


@program
def rematerialised(t):
    p, x, _ = given()

    def block(p, x):
        h = fg.checkpoint_name(torch.tanh(x @ p["w"] + p["b"]), "hidden")
        return torch.sin(h @ p["w"].T)

    found = []
    for policy in (None, "dots_saveable", fg.checkpoint_policies.save_only_these_names("hidden")):
        layer = fg.checkpoint(block, policy=policy)
        f = t.jit(lambda p, x, layer=layer: layer(p, layer(p, x)).square().sum())
        found += [t.grad(f)(p, x), t.vmap(t.grad(f), (None, 0))(p, x), t.jvp(t.grad(f), (p, x), (p, x))]
    return found


# ── training, pytrees, arguments ─────────────────────────────────────────────────────────────────────────────────────


@program
def adam_from_scratch(t):
    p, x, y = given()

    def loss(p, running, x, y):
        mean = 0.9 * running + 0.1 * x.mean(0)
        return quadratic(p, x - mean, y), {"running": mean, "norm": (x - mean).norm()}

    def step(state, x, y):
        p, m, v, n, running = state
        (value, aux), g = t.value_and_grad(loss, has_aux=True)(p, running, x, y)
        n = n + 1
        m = tree_map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = tree_map(lambda v, g: 0.99 * v + 0.01 * g**2, v, g)
        hat = lambda m, v: m / (1 - 0.9**n) / ((v / (1 - 0.99**n)).sqrt() + 1e-8)  # noqa: E731
        return (add(p, tree_map(hat, m, v), -0.1), m, v, n, aux["running"]), value

    step = t.jit(step)
    zeros = tree_map(torch.zeros_like, p)
    state, values = (p, zeros, zeros, number(0.0), torch.zeros(3, dtype=F64)), []
    for _ in range(4):
        state, value = step(state, x, y)
        values.append(value)
    return state, values


@program
def an_ensemble_trains(t):
    _, x, y = given()
    p = {"w": data(4, 3, 2), "b": data(4, 2, seed=1)}
    step = lambda p, rate, x, y: add(p, tree_map(lambda g: rate * g, t.grad(quadratic)(p, x, y)), -1.0)  # noqa: E731
    many = t.jit(t.vmap(step, (0, 0, None, None)))
    for _ in range(3):
        p = many(p, torch.linspace(0.1, 0.4, 4, dtype=F64), x, y)
    return p, t.vmap(quadratic, ({"w": 0, "b": None}, None, None))({"w": p["w"], "b": p["b"][0]}, x, y)


@program
def contrastive(t):
    def loss(p, a, b):
        a, b = (F.normalize(v @ p, dim=-1) for v in (a, b))
        logits = a @ b.T / 0.1
        labels = torch.arange(a.shape[0])
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    f = t.jit(loss)
    return t.grad(f)(data(3, 2), data(5, 3), data(5, 3, seed=1)), t.hessian(f, 1)(
        data(3, 2), data(2, 3), data(2, 3, seed=1)
    )


@program
def expectation_maximisation(t):
    def step(p, x):
        log = torch.log(p["pi"]) - ((x[:, None] - p["mu"]) ** 2).sum(-1) / (2 * p["var"]) - p["var"].log()
        r = log.softmax(-1)
        n = r.sum(0)
        mu = (r.T @ x) / n[:, None]
        var = (r * ((x[:, None] - mu) ** 2).sum(-1)).sum(0) / (2 * n)
        return {"pi": n / n.sum(), "mu": mu, "var": var}, log.logsumexp(-1).mean()

    once = t.jit(step)
    p = {"pi": torch.full((3,), 1 / 3, dtype=F64), "mu": data(3, 2), "var": torch.ones(3, dtype=F64)}
    x = data(12, 2, seed=1)
    for _ in range(3):
        p, likelihood = once(p, x)
    return p, likelihood, t.grad(lambda mu: once({**p, "mu": mu}, x)[1])(p["mu"]), t.jacfwd(lambda x: once(p, x)[0])(x)


@program
def static_and_donated(t):
    def step(p, n, mode, x):
        for _ in range(n):
            p = torch.sin(p @ x) if mode == "sin" else torch.tanh(p @ x)
        return p

    f = t.jit(step, static_argnums=(1, 2))
    g = t.jit(lambda p, g: p - 0.1 * g, donate_argnums=0)
    x = data(3, 3)
    return f(x, 2, "sin", x), f(x, 3, "tanh", x), t.grad(lambda p: f(p, 2, "tanh", x).sum())(x), g(x.clone(), x)


@program
def nested_jits(t):
    inner = t.jit(lambda x: torch.sin(x) * 2)
    middle = t.jit(lambda x, n: sum(inner(x + i) for i in range(n)))
    outer = t.jit(lambda x: middle(inner(x), 2).sum() + t.grad(lambda x: inner(x).sum())(x).sum())
    return outer(data(3)), t.grad(outer)(data(3)), t.hessian(outer)(data(3)), t.vmap(t.grad(outer))(data(2, 3))


@program
def linearized_once(t):
    f = t.jit(lambda p, x: {"out": torch.tanh(x @ p["w"]), "sum": (x * 2).sum()})
    p, x, _ = given()
    out, push = t.linearize(lambda p: f(p, x), p)
    pull = t.vjp(lambda p: f(p, x), p)[1]
    many = {"w": data(4, 3, 2), "b": data(4, 2)}
    back = t.vmap(lambda c: pull({"out": c, "sum": c.sum()}))(data(4, 5, 2))
    return out, push(p), push(tree_map(torch.sin, p)), t.vmap(push)(many), back, pull(out), pull(out)


@program
def complex_gradients(t):
    def response(p, z):
        return torch.linalg.solve(torch.eye(2) * (1 + 1j) + torch.complex(p, p.sin()), z)

    f = t.jit(lambda p, z: response(p, z).abs().square().sum())
    g = t.jit(lambda x: torch.fft.rfft(x * x.cos()).abs().log().sum())
    p, z = data(2, 2), torch.complex(data(2), data(2, seed=1))
    return (
        t.grad(f, (0, 1))(p, z),
        t.jvp(t.grad(f), (p, z), (p, z)),
        t.vmap(t.grad(g))(data(3, 6)),
        t.jacfwd(lambda p: torch.view_as_real(response(p, z)))(p),
        t.hessian(lambda p: f(p, z))(p),
    )


@program
def gaussian_process(t):
    def kernel(p, a, b):
        return p["s"].exp() * torch.exp(-((a[:, None] - b[None]) ** 2).sum(-1) / p["l"].exp())

    def evidence(p, x, y):
        chol = torch.linalg.cholesky(kernel(p, x, x) + p["n"].exp() * torch.eye(x.shape[0], dtype=F64))
        return (y @ torch.cholesky_solve(y[:, None], chol)[:, 0]) / 2 + chol.diagonal().log().sum()

    p = {"s": number(0.1), "l": number(0.5), "n": number(-1.0)}
    x, y = data(6, 2), data(6, seed=1)
    f = t.jit(evidence)
    return t.value_and_grad(f)(p, x, y), t.hessian(f)(p, x, y), t.vmap(t.grad(f), (None, None, 0))(p, x, data(3, 6))


@program
def attention_and_its_jacobian(t):
    def attend(p, x):
        q, k, v = (x @ w for w in p)
        mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
        return (q @ k.T / 2).masked_fill(~mask, float("-inf")).softmax(-1) @ v

    p, x = tuple(data(3, 4, seed=i) for i in range(3)), data(5, 3, seed=3)
    f = t.jit(attend)
    grads = t.grad(lambda p: t.vmap(f, (None, 0))(p, data(2, 5, 3)).square().sum())(p)
    return grads, t.jacrev(f, 1)(p, x), t.jacfwd(f, 1)(p, x), t.jvp(f, (p, x), (p, x))


@program
def influence_of_samples(t):
    p, x, y = given()
    w = {"w": p["w"], "b": p["b"]}
    flat = lambda g: torch.cat([v.flatten() for v in g.values()])  # noqa: E731
    rows = t.vmap(lambda x, y: flat(t.grad(quadratic)(w, x[None], y[None])))(x, y)

    def hv(v):
        return flat(t.jvp(lambda p: t.grad(quadratic)(p, x, y), (w,), ({"w": v[:6].view(3, 2), "b": v[6:]},))[1])

    hessian = t.vmap(hv)(torch.eye(8, dtype=F64))
    return torch.linalg.solve(hessian + torch.eye(8, dtype=F64), rows.T)


# ── loops that are operators ─────────────────────────────────────────────────────────────────────────────────────────


def by_loop(body, carry, xs):
    """What ``scan`` computes."""
    ys, n = [], torch.utils._pytree.tree_leaves(xs)[0].shape[0]
    for i in range(n):
        carry, y = body(carry, tree_map(lambda x, i=i: x[i], xs))
        ys.append(y)
    return carry, tree_map(lambda *y: torch.stack(y), *ys)


def by_while(condition, body, carry):
    while condition(*carry):
        carry = body(*carry)
    return tuple(carry)


def by_partial_results(combine, xs, dim):
    done = []
    for i in range(torch.utils._pytree.tree_leaves(xs)[0].shape[dim]):
        x = tree_map(lambda x, i=i: x[i], xs)
        done.append(x if not done else combine(done[-1], x))
    return tree_map(lambda *y: torch.stack(y), *done)


OPERATORS = {
    "scan": (by_loop, scan), "while_loop": (by_while, while_loop),
    "cond": (lambda c, a, b, args: (a if c else b)(*args), torch.cond),
    "map": (lambda f, xs, *args: torch.stack([f(x, *args) for x in xs]), map_op),
    "associative_scan": (by_partial_results, lambda f, xs, dim: associative_scan(f, xs, dim, combine_mode="generic")),
}  # fmt: skip


class Loops:
    """The operators: as loops and choices in Python, or as they are. A batch of such loops is one after the other."""

    def __init__(self, compiled):
        self.compiled = compiled
        for name, pair in OPERATORS.items():
            setattr(self, name, pair[compiled])

    def batch(self, t, f):
        each = lambda *args: tree_map(lambda *v: torch.stack(v), *(f(*own) for own in zip(*args, strict=True)))  # noqa: E731
        return t.vmap(f) if self.compiled else each


@loops
def integrators(t, o):
    def rk4(f, y, h):
        a = f(y)
        b = f(y + h / 2 * a)
        c = f(y + h / 2 * b)
        return y + h / 6 * (a + 2 * b + 2 * c + f(y + h * c))

    def solve(y, k, times):
        f = lambda y: torch.stack([y[1], -k * y[0].sin()])  # noqa: E731
        return o.scan(lambda y, h: (rk4(f, y, h), y.clone()), y, times)

    f = lambda y, k: solve(y, k, torch.linspace(0.1, 0.2, 5, dtype=F64))  # noqa: E731
    end = lambda y, k: f(y, k)[0].square().sum()  # noqa: E731
    y, k = data(2), number(0.8)
    return (
        t.jit(f)(y, k), t.grad(end, (0, 1))(y, k), t.hessian(end, (0, 1))(y, k), t.vmap(f, (0, None))(data(3, 2), k),
        t.jacfwd(f, 1)(y, k), t.vmap(t.grad(end), (0, None))(data(3, 2), k),
    )  # fmt: skip


@loops
def recurrent_network(t, o):
    def run(p, x):
        h = torch.zeros(4, dtype=F64)
        step = lambda h, x: (torch.tanh(h @ p["h"] + x @ p["x"]), (h @ p["o"]))  # noqa: E731
        return o.scan(step, h, x)[1]

    loss = lambda p, x, y: ((run(p, x) - y) ** 2).mean()  # noqa: E731
    p = {"h": data(4, 4) / 2, "x": data(3, 4, seed=1), "o": data(4, 2, seed=2)}
    x, y = data(6, 5, 3, seed=3), data(6, 5, 2, seed=4)
    batch = lambda p, x, y: torch.vmap(loss, (None, 0, 0))(p, x, y).mean()  # noqa: E731
    return t.value_and_grad(batch)(p, x, y), t.vmap(t.grad(loss), (None, 0, 0))(p, x, y)


@loops
def kalman_filter(t, o):
    def likelihood(p, ys):
        def step(state, y):
            m, c = state
            m, c = p["a"] @ m, p["a"] @ c @ p["a"].T + 0.1 * torch.eye(2, dtype=F64)
            s = p["h"] @ c @ p["h"].T + 0.2 * torch.eye(1, dtype=F64)
            gain = torch.linalg.solve(s, p["h"] @ c).T
            error = y - p["h"] @ m
            return (m + gain @ error, c - gain @ s @ gain.T), -(error @ torch.linalg.solve(s, error) + s.logdet()) / 2

        return o.scan(step, (torch.zeros(2, dtype=F64), torch.eye(2, dtype=F64)), ys)[1].sum()

    p, ys = {"a": number([[0.9, 0.1], [-0.2, 0.8]]), "h": number([[1.0, 0.3]])}, data(6, 1)
    return (
        t.value_and_grad(likelihood)(p, ys),
        t.hessian(likelihood)(p, ys),
        t.vmap(likelihood, (None, 0))(p, data(3, 6, 1)),
    )


@loops
def bisection_by_while(t, o):
    def root(a, b):
        f = lambda x: x**3 + a * x - b  # noqa: E731
        condition = lambda low, high, n: (n < 30) & ((high - low).max() > 1e-6)  # noqa: E731

        def body(low, high, n):
            middle = (low + high) / 2
            above = f(middle) > 0
            return torch.where(above, low, middle), torch.where(above, middle, high), n + 1

        return o.while_loop(condition, body, (torch.zeros_like(b) - 3, torch.zeros_like(b) + 3, torch.tensor(0)))[0]

    f = lambda a, b: root(a.abs() + 1, b)  # noqa: E731
    return t.jit(f)(data(3), data(3, seed=1)), o.batch(t, f)(data(4, 3), data(4, 3, seed=1))


@loops
def a_choice_within_a_scan(t, o):
    def f(x, xs):
        step = lambda c, x: (o.cond(x.sum() > 0, lambda c, x: c.sin() + x, lambda c, x: c * x, (c, x)), c.exp())  # noqa: E731
        c, ys = o.scan(step, x, xs)
        return c.sum() + ys.sum()

    return t.value_and_grad(f, (0, 1))(data(3), data(5, 3, seed=1)), o.batch(t, t.grad(f))(
        data(2, 3), data(2, 5, 3, seed=1)
    )


@loops
def linear_recurrence(t, o):
    def f(a, b):
        combine = lambda p, q: (q[0] * p[0], q[0] * p[1] + q[1])  # noqa: E731
        return o.associative_scan(combine, (a.sigmoid(), b), 0)[1]

    loss = lambda a, b: f(a, b).square().sum()  # noqa: E731
    a, b = data(6, 2), data(6, 2, seed=1)
    return (
        t.jit(f)(a, b), t.grad(loss, (0, 1))(a, b), t.vmap(f)(data(3, 6, 2), data(3, 6, 2, seed=1)),
        t.vmap(t.grad(loss))(data(3, 6, 2), data(3, 6, 2, seed=1)), t.jvp(f, (a, b), (b, a)),
    )  # fmt: skip


@loops
def hidden_markov_model(t, o):
    def log_likelihood(p, seen):
        transition, emission = p["t"].log_softmax(-1), p["e"].log_softmax(-1)
        step = lambda alpha, s: (  # noqa: E731
            torch.logsumexp(alpha[:, None] + transition, 0) + emission.T.index_select(0, s.view(1))[0], alpha.exp(),
        )  # fmt: skip
        return o.scan(step, torch.full((3,), -1.0, dtype=F64), seen)[0].logsumexp(0)

    p, seen = {"t": data(3, 3), "e": data(3, 4, seed=1)}, torch.tensor([0, 3, 1, 1, 2])
    return t.value_and_grad(log_likelihood)(p, seen), t.hessian(log_likelihood)(p, seen)


@loops
def mapped_over_a_batch(t, o):
    f = lambda w, x: o.map(lambda x, w: torch.tanh(w @ x).sum() * x, x, w).sum()  # noqa: E731
    w, x = data(3, 3), data(4, 3, seed=1)
    return t.value_and_grad(f, (0, 1))(w, x), t.vmap(t.grad(f), (None, 0))(w, data(2, 4, 3)), t.hessian(f)(w, x)


@loops
def unrolled_optimiser(t, o):
    p, x, y = given()

    def trained(rate, p):
        def step(state, _):
            p, m = state
            g, value = func.grad_and_value(quadratic)(p, x, y)
            m = add(tree_map(lambda v: 0.9 * v, m), g)
            return (add(p, tree_map(lambda v: rate * v, m), -1.0), m), value

        (p, _), values = o.scan(step, (p, tree_map(torch.zeros_like, p)), torch.zeros(4, dtype=F64))
        return values.sum()

    return (
        t.value_and_grad(trained)(number(0.1), p),
        t.grad(trained, 1)(number(0.1), p),
        t.jvp(lambda r: trained(r, p), (number(0.1),), (number(1.0),)),
    )


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name):
    eager = Transforms(None)
    wanted = PROGRAMS[name](eager)
    for position in range(-1, eager.n):
        same(PROGRAMS[name](Transforms(position)), wanted)


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", LOOPS)
def test_a_program_with_loops(name):
    same(LOOPS[name](Transforms(-1), Loops(True)), LOOPS[name](Transforms(None), Loops(False)))
