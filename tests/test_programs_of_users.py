"""Programs that users of torch.func write, with each of their transforms compiled, and with all of them: equal to eager
PyTorch in float64."""

import pytest
import torch
import torch.autograd.forward_ad as fwd
import torch.nn.functional as F
from torch import func, nn
from torch.autograd import functional as old
from transformed import F64, Transforms, data, mlp, same

import funcgrad as fg

PROGRAMS = {}


def program(f):
    PROGRAMS[f.__name__] = f
    return f


@program
def maml(t):
    model, p = mlp((2, 4), (4, 1))
    loss = t.jit(lambda p, x, y: ((func.functional_call(model, p, (x,)) - y) ** 2).mean())
    inner = t.grad(loss)

    def task(p, x, y):
        adapted = {k: v - 0.1 * g for (k, v), g in zip(p.items(), inner(p, x, y).values(), strict=True)}
        return loss(adapted, x.cos(), y)

    tasks, x, y = t.vmap(task, in_dims=(None, 0, 0)), data(3, 5, 2), data(3, 5, 1)
    return t.grad(lambda p: tasks(p, x, y).sum())(p)


@program
def per_sample_gradients_with_dropout(t):
    model, p = mlp((3, 4), (4, 2))

    def loss(p, x, y):
        return F.cross_entropy(F.dropout(func.functional_call(model, p, (x,)), 0.4), y)

    torch.manual_seed(3)
    return t.vmap(t.grad(t.jit(loss)), (None, 0, 0), randomness="different")(p, data(5, 3), torch.arange(5) % 2)


@program
def ensemble(t):
    p, buffers = func.stack_module_state([mlp((3, 4), (4, 2))[0].requires_grad_(i < 0) for i in range(3)])
    base = mlp((3, 4), (4, 2))[0]
    call = t.jit(lambda p, b, x: func.functional_call(base, (p, b), (x,)))
    return t.vmap(call, (0, 0, None))(p, buffers, data(6, 3)), t.vmap(call)(p, buffers, data(3, 6, 3))


@program
def tangent_kernel(t):
    model, p = mlp((2, 4), (4, 1))
    f = t.jit(lambda p, x: func.functional_call(model, p, (x,)))
    x = data(3, 2)
    jacobian = t.vmap(t.jacrev(f), (None, 0))(p, x)
    explicit = sum(torch.einsum("naf,mbf->nmab", j.flatten(2), j.flatten(2)) for j in jacobian.values())

    def implicit(a, b):
        def product(v):
            (tangents,) = t.vjp(lambda p: f(p, b), p)[1](v)
            return t.jvp(lambda p: f(p, a), (p,), (tangents,))[1]

        return t.vmap(product)(torch.eye(1, dtype=F64))

    return explicit, func.vmap(func.vmap(implicit, (None, 0)), (0, None))(x, x)


@program
def hessian_vector_products(t):
    f = t.jit(lambda x: (x.sin().cumsum(0) ** 3).sum() * x.prod())
    x, v = data(4), data(4, seed=1)
    forward = t.jvp(t.grad(f), (x,), (v,))[1]
    reverse = t.vjp(t.grad(f), x)[1](v)[0]
    twice = t.grad(lambda x: (t.grad(f)(x) * v).sum())(x)
    return forward, reverse, twice, t.hessian(f)(x) @ v


@program
def laplacian_of_a_pinn(t):
    model, p = mlp((2, 6), (6, 1))
    u = t.jit(lambda p, x: func.functional_call(model, p, (x,))[0])
    laplacian = t.jit(lambda p, x: t.hessian(u, 1)(p, x).diagonal().sum())
    residuals, x = t.vmap(lambda p, x: laplacian(p, x) + u(p, x) ** 3, (None, 0)), data(5, 2)
    return t.grad(lambda p: (residuals(p, x) ** 2).mean())(p)


@program
def force_training(t):
    model, p = mlp((3, 6), (6, 1))

    def energy(p, r):
        d = (r[:, None] - r[None]).square().sum(-1) + torch.eye(3, dtype=F64)
        return func.functional_call(model, p, (d.log(),)).sum()

    forces, r = t.vmap(t.grad(t.jit(energy), 1), (None, 0)), data(4, 3, 3)
    return t.grad(lambda p: ((forces(p, r) + 1) ** 2).mean())(p)


@program
def implicit_differentiation(t):
    a = data(3, 3) / 6
    g = t.jit(lambda z, x: torch.tanh(a @ z + x))

    def solve(x):
        z = torch.zeros_like(x)
        for _ in range(40):
            z = g(z, x)
        j = t.jacrev(g)(z, x)
        return torch.linalg.solve(torch.eye(3, dtype=F64) - j, t.jacfwd(g, 1)(z, x))

    return t.jit(solve)(data(3)), func.vmap(solve)(data(2, 3))


@program
def gauss_newton(t):
    model, p = mlp((2, 3), (3, 2))
    x = data(5, 2)
    f = t.jit(lambda p: func.functional_call(model, p, (x,)))
    v = {k: torch.ones_like(w) for k, w in p.items()}
    out, jv = t.jvp(f, (p,), (v,))
    hjv = t.jvp(t.grad(lambda z: z.logsumexp(1).sum()), (out,), (jv,))[1]
    return t.vjp(f, p)[1](hjv)


@program
def jacobian_regularisation(t):
    model, p = mlp((3, 4), (4, 2))
    f = t.jit(lambda p, x: func.functional_call(model, p, (x,)))
    norms, x = t.vmap(lambda p, x: (t.jacrev(f, 1)(p, x) ** 2).sum(), (None, 0)), data(4, 3)
    return t.grad(lambda p: norms(p, x).mean() + f(p, x).square().sum())(p)


@program
def hypernetwork(t):
    model, p = mlp((2, 8), (8, 9))
    small, shapes = mlp((2, 3))[0], {"0.weight": (3, 2), "0.bias": (3,)}

    def predicted(p, task, x):
        flat = func.functional_call(model, p, (task,))
        made = {k: v.view(s) for (k, s), v in zip(shapes.items(), flat.split([6, 3]), strict=True)}
        return func.functional_call(small, made, (x,))

    batched, task, x = t.vmap(t.jit(predicted), (None, 0, 0)), data(4, 2), data(4, 5, 2)
    return t.grad(lambda p: batched(p, task, x).square().mean())(p)


@program
def influence(t):
    x, y, w = data(6, 3), data(6, seed=1), data(3, seed=2)
    loss = t.jit(lambda w, x, y: (x @ w - y).cosh().log())
    h = t.hessian(lambda w: t.vmap(loss, (None, 0, 0))(w, x, y).mean())(w)
    g = t.vmap(t.grad(loss), (None, 0, 0))(w, x, y)
    return g @ torch.linalg.solve(h + 0.1 * torch.eye(3, dtype=F64), g.T)


@program
def log_det_of_a_flow(t):
    w, x = data(3, 3), data(5, 3)
    flow = t.jit(lambda w, x: x + torch.tanh(x @ w).cumsum(-1) / 3)
    log_det = t.vmap(lambda w, x: torch.linalg.slogdet(t.jacfwd(flow, 1)(w, x))[1], (None, 0))
    return t.grad(lambda w: (log_det(w, x) - (flow(w, x) ** 2).sum(-1)).mean())(w)


@program
def langevin(t):
    score = t.grad(t.jit(lambda x: -(x**4 / 4 - x**2 / 2).sum()))

    def chain(x):
        for _ in range(3):
            x = x + 0.1 * score(x) + 0.4 * torch.randn_like(x)
        return x

    torch.manual_seed(5)
    return t.vmap(chain, randomness="different")(data(4, 2)), t.vmap(chain, randomness="same")(data(4, 2))


@program
def tied_weights(t):
    model, _ = mlp((3, 3), (3, 3))
    model[2].weight = model[0].weight
    p = {k: v.detach() for k, v in model.named_parameters()}
    loss = t.jit(lambda p, x: func.functional_call(model, p, (x,), tie_weights=True).square().sum())
    return t.grad(loss)(p, data(2, 3)), t.vmap(t.grad(loss), (None, 0))(p, data(4, 3))


@program
def linearize_reused(t):
    w = data(3, 3)
    f = t.jit(lambda x: torch.softmax(x @ w, -1) * x.exp())
    out, push = t.linearize(f, data(4, 3))
    v = data(2, 4, 3, seed=3)
    return out, push(v[0]), push(v[1]), t.vmap(push)(v), t.jit(lambda v: push(v) + push(2 * v))(v[0])


def clipped():
    @fg.custom_vjp
    def clip(x, bound):
        return x.sin()

    def backward(kept, g):
        x, bound = kept
        return (g * x.cos()).clamp(-bound, bound), None

    clip.defvjp(lambda x, bound: (x.sin(), (x, bound)), backward)
    return clip


@program
def vmap_over_custom_vjp(t):
    f = t.jit(clipped())
    x = data(4, 3)
    by_samples = t.vmap(lambda x: f(x, 0.3))
    return by_samples(x), t.vmap(t.grad(lambda x: f(x, 0.3).sum()))(x), t.grad(lambda x: by_samples(x).sum())(x)


@program
def in_dims_of_dicts(t):
    f = t.jit(lambda p, x: {"out": p["w"] @ x, "norm": p["b"].norm() + x.sum()})
    p = {"w": data(4, 3, 2), "b": data(5)}
    dims = ({"w": 0, "b": None}, 1)
    return t.vmap(f, in_dims=dims, out_dims={"out": 1, "norm": 0})(p, data(2, 4)), t.vmap(f, dims, 0)(p, data(2, 4))


@program
def chunked(t):
    f = t.jit(lambda x: (x.sin() * x.sum()).cumsum(0))
    x = data(7, 3)
    return t.vmap(f, chunk_size=3)(x), t.jacrev(f, chunk_size=2)(x[0]), t.vmap(t.jacrev(f), chunk_size=4)(x)


@program
def batch_norm_by_groups(t):
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4, track_running_stats=False), nn.ReLU()).double()
    p = {k: torch.linspace(-1, 1, v.numel(), dtype=F64).view(v.shape) for k, v in model.named_parameters()}
    loss = t.jit(lambda p, x: func.functional_call(model, p, (x,)).square().mean())
    return t.vmap(t.grad(loss), (None, 0))(p, data(3, 6, 3))


@program
def holomorphic(t):
    z = torch.complex(data(3), data(3, seed=1))
    f = t.jit(lambda z: (z.exp() * z**2).cumsum(0))
    return t.jvp(f, (z,), (z * 1j,)), t.vjp(f, z)[1](z.conj()), t.grad(lambda z: f(z).abs().sum())(z)


@program
def forward_mode_by_hand(t):
    f = t.jit(lambda x, y: (x.sin() * y).cumsum(0))
    with fwd.dual_level():
        out = f(fwd.make_dual(data(3), data(3, seed=1)), data(3, seed=2))
        value, tangent = fwd.unpack_dual(out)
    gradient = t.grad(lambda x: f(x, x).prod())
    with fwd.dual_level():
        return value, tangent, *fwd.unpack_dual(gradient(fwd.make_dual(data(3), data(3, seed=1))))


@program
def autograd_functional(t):
    f = t.jit(lambda x: (x.sin() * x.flip(0)).cumsum(0))
    s = t.jit(lambda x: (x**3).prod())
    x, v = data(3), data(3, seed=1)
    vector = [of(f, x, v) for of in (old.jvp, old.vjp)]
    scalar = [of(s, x, v) for of in (old.hvp, old.vhp)]
    whole = [of(g, x, vectorize=v) for of, g in ((old.jacobian, f), (old.hessian, s)) for v in (False, True)]
    return vector, scalar, whole


@program
def checked_by_gradcheck(t):
    f = t.jit(lambda x, w: torch.softmax(x @ w, -1).log().cumsum(0))
    args = data(3, 2, grad=True), data(2, 2, seed=1, grad=True)
    how = {"check_batched_grad": True, "check_forward_ad": True}
    return torch.autograd.gradcheck(f, args, **how), torch.autograd.gradgradcheck(f, args)


@program
def natural_gradient(t):
    model, p = mlp((2, 3), (3, 2))
    logits = t.jit(lambda p, x: func.functional_call(model, p, (x,)).log_softmax(-1))
    score = t.vmap(t.grad(lambda p, x, y: (logits(p, x) * y).sum()), (None, 0, 0))
    g = torch.cat([v.flatten(1) for v in score(p, data(8, 2), torch.eye(2).repeat(4, 1)).values()], 1)
    return torch.linalg.solve(g.T @ g / 8 + 0.1 * torch.eye(g.shape[1], dtype=F64), g.mean(0))


@program
def sensitivities_through_an_integrator(t):
    def flow(y, k):
        for _ in range(3):
            y = y + 0.1 * torch.stack([-k * y[1], y[0] * y[1].cos()])
        return y

    f = t.jit(flow)
    y, k = data(2), torch.tensor(0.7, dtype=F64)
    return (
        t.jacfwd(f, (0, 1))(y, k),
        t.hessian(lambda k: f(y, k).sum())(k),
        t.vmap(t.jacrev(f), (0, None))(data(3, 2), k),
    )


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program(name):
    eager = Transforms(None)
    wanted = PROGRAMS[name](eager)
    for position in range(-1, eager.n):
        same(PROGRAMS[name](Transforms(position)), wanted)
