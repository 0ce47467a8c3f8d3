"""Models and training loops as users write them, in which inputs, sizes, state and modes change between calls. Each
step sees in compiled functions what it sees in eager PyTorch."""

import copy
import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watched import assert_same, steps

import funcgrad as fg

PROGRAMS = {}
"""Each takes what compiles a function, and yields what there is to see after each step."""


def program(f):
    PROGRAMS[f.__name__] = f
    return f


def mlp(of=4, to=2):
    return nn.Sequential(nn.Linear(of, 6), nn.Tanh(), nn.Linear(6, to))


def X(n=3):
    return torch.randn(n, 4)


def state_of(optimiser):
    return {k: v for s in optimiser.state.values() for k, v in s.items()}


@program
def accumulated_gradients(c):
    m = mlp()
    o = torch.optim.RMSprop(m.parameters(), lr=0.01)

    class Tr:
        def __init__(s):
            s.k = 0
            s.every = 3
            s.losses = []

        def step(s, x):
            l = m(x).square().mean() / s.every
            l.backward()
            s.k += 1
            s.losses.append(l.item())
            if s.k % s.every == 0:
                o.step()
                o.zero_grad()
            return l.detach()

    t = Tr()
    f = c(t.step)
    for i in range(8):
        yield f(X(2 + i % 2)), m, t.k, t.losses
        if i == 5:
            t.every = 2


@program
def early_stopping(c):
    m = mlp(4, 1)
    o = torch.optim.SGD(m.parameters(), lr=0.1)

    class Stop:
        best = float("inf")
        bad = 0
        best_state = None

        def __call__(s, l):
            if l < s.best - 1e-3:
                s.best = l.item() if isinstance(l, torch.Tensor) else l
                s.bad = 0
                s.best_state = {k: v.clone() for k, v in m.state_dict().items()}
            else:
                s.bad += 1
            return s.bad >= 2

    s = Stop()

    def ev(x):
        return s(m(x).square().mean())

    f = c(ev)
    xv = X()
    for i in range(6):
        o.zero_grad()
        m(X()).square().mean().mul(1 if i < 3 else -3).backward()
        o.step()
        yield f(xv), s.best, s.bad, s.best_state


@program
def layers_frozen_and_thawed(c):
    m = mlp()
    o = torch.optim.Adam(m.parameters(), lr=0.1)

    def step(x):
        o.zero_grad()
        l = m(x).square().mean()
        l.backward()
        o.step()
        return l.detach()

    f = c(step)
    for i in range(6):
        if i == 1:
            m[0].requires_grad_(False)
        if i == 3:
            m[0].requires_grad_(True)
        if i == 4:
            m[2].bias = nn.Parameter(torch.ones(2))
        if i == 5:
            o.add_param_group({"params": [m[2].bias], "lr": 1.0})
        yield f(X()), m, state_of(o)


@program
def tied_weights(c):
    class LM(nn.Module):
        def __init__(s):
            super().__init__()
            s.e = nn.Embedding(7, 4)
            s.o = nn.Linear(4, 7, bias=False)
            s.o.weight = s.e.weight

        def forward(s, i):
            return s.o(s.e(i).tanh())

    m = LM()
    f = c(m)
    for i in range(5):
        if i == 2:
            m.o.weight = nn.Parameter(m.o.weight.detach().clone())
        if i == 4:
            m.e.weight = m.o.weight
        y = f(torch.randint(7, (2, 3)))
        y.logsumexp(-1).sum().backward()
        yield y, m


@program
def layers_added_and_removed(c):
    class N(nn.Module):
        def __init__(s):
            super().__init__()
            s.ls = nn.ModuleList([nn.Linear(4, 4)])
            s.pd = nn.ParameterDict({"a": nn.Parameter(torch.ones(4))})

        def forward(s, x):
            for l in s.ls:
                x = x + l(x).tanh()
            for k, p in s.pd.items():
                x = x * p
            return x

    m = N()
    f = c(m)
    for i in range(5):
        if i == 1:
            m.ls.append(nn.Linear(4, 4))
        if i == 2:
            m.pd["b"] = nn.Parameter(torch.full((4,), 2.0))
        if i == 3:
            del m.ls[0]
            m.ls.insert(0, nn.Linear(4, 4, bias=False))
        if i == 4:
            del m.pd["a"]
            m.ls[0] = nn.Identity()
        y = f(X())
        y.sum().backward()
        yield y, m


@program
def buffers_registered_later(c):
    class N(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(4, 4)

        def forward(s, x):
            y = s.l(x)
            b = dict(s.named_buffers())
            if "mean" in b:
                s.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
                y = y - s.mean
            else:
                s.register_buffer("mean", y.detach().mean(0))
            return y

    m = N()
    f = c(m)
    for i in range(5):
        y = f(X())
        y.sum().backward()
        yield y, m, list(m._buffers)
        if i == 2:
            del m.mean
        if i == 3:
            m.register_buffer("extra", torch.ones(1), persistent=False)


@program
def a_loaded_state(c):
    m = mlp()
    f = c(m)
    sd = copy.deepcopy(m.state_dict())
    x = X()
    yield f(x)
    with torch.no_grad():
        for p in m.parameters():
            p.mul_(2)
    yield f(x)
    m.load_state_dict(sd)
    yield f(x)
    m.load_state_dict({k: v * 3 for k, v in sd.items()}, assign=True)
    y = f(x)
    y.sum().backward()
    yield y, m


@program
def another_optimiser(c):
    m = mlp()
    box = {"o": torch.optim.SGD(m.parameters(), lr=0.1)}

    def step(x):
        o = box["o"]
        o.zero_grad()
        l = m(x).square().mean()
        l.backward()
        o.step()
        return l.detach()

    f = c(step)
    for i in range(6):
        if i == 2:
            box["o"] = torch.optim.Adagrad(m.parameters(), lr=0.1)
        if i == 4:
            box["o"] = torch.optim.Adam(m.parameters(), lr=0.1, amsgrad=True)
        yield f(X()), m, state_of(box["o"])


@program
def a_ring_buffer(c):
    class Buf:
        def __init__(s, n):
            s.s = torch.zeros(n, 3)
            s.r = torch.zeros(n)
            s.p = 0
            s.full = False
            s.n = n

        def add(s, x, r):
            s.s[s.p] = x
            s.r[s.p] = r
            s.p = (s.p + 1) % s.n
            s.full |= s.p == 0

        def sample(s, k):
            i = torch.randint(0, s.n if s.full else s.p, (k,))
            return s.s[i], s.r[i]

    b = Buf(4)
    q = mlp(3, 1)
    tgt = copy.deepcopy(q)

    def step(x, r):
        b.add(x, r)
        xs, rs = b.sample(2)
        with torch.no_grad():
            y = rs + 0.9 * tgt(xs).squeeze(-1)
        return F.smooth_l1_loss(q(xs).squeeze(-1), y)

    f = c(step)
    for i in range(9):
        l = f(torch.randn(3), float(i))
        l.backward()
        yield l, b.s, b.r, b.p, b.full, q


@program
def recurrent_state(c):
    class R(nn.Module):
        def __init__(s):
            super().__init__()
            s.cell = nn.GRUCell(3, 4)
            s.h = None
            s.t = 0

        def forward(s, x):
            if s.h is None or s.h.shape[0] != x.shape[0]:
                s.h = x.new_zeros(x.shape[0], 4)
            s.h = s.cell(x, s.h)
            s.t += 1
            y = s.h * 2
            s.h = s.h.detach()
            return y

        def reset(s):
            s.h = None

    r = R()
    f = c(r)
    for i in range(7):
        if i == 3:
            r.reset()
        y = f(torch.randn(2 if i < 5 else 3, 3))
        y.sum().backward()
        yield y, r, r.h, r.t


@program
def a_codebook(c):
    class V(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("cb", torch.randn(5, 3))
            s.register_buffer("cs", torch.ones(5))
            s.register_buffer("ea", s.cb.clone())

        def forward(s, z):
            i = torch.cdist(z.detach(), s.cb).argmin(1)
            q = s.cb[i]
            if s.training:
                oh = F.one_hot(i, 5).float()
                s.cs.mul_(0.9).add_(oh.sum(0), alpha=0.1)
                s.ea.mul_(0.9).add_(oh.T @ z.detach(), alpha=0.1)
                n = s.cs.sum()
                s.cb.copy_(s.ea / ((s.cs + 1e-5) / (n + 5e-5) * n)[:, None])
                dead = s.cs < 0.5
                if dead.any():
                    s.cb[dead] = z.detach()[torch.randint(z.shape[0], (int(dead.sum()),))]
            return z + (q - z).detach(), F.mse_loss(z, q.detach()), i

    v = V()
    f = c(v)
    for i in range(8):
        if i == 6:
            v.eval()
        z = torch.randn(4, 3, requires_grad=True)
        a, l, ix = f(z)
        (a.sum() + l).backward()
        yield a, l, ix, v, z


@program
def a_mixture_of_experts(c):
    g = nn.Linear(4, 3)
    ex = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])
    load = torch.zeros(3)

    def m(x):
        w, i = g(x).softmax(-1).topk(2, -1)
        w = w / w.sum(-1, keepdim=True)
        out = torch.zeros_like(x)
        for k, e in enumerate(ex):
            tok, slot = (i == k).nonzero(as_tuple=True)
            load[k] += tok.numel()
            if tok.numel() == 0:
                continue
            out.index_add_(0, tok, e(x[tok]) * w[tok, slot, None])
        return out

    f = c(m)
    for i in range(5):
        y = f(torch.randn(3 if i < 3 else 1, 4))
        y.sum().backward()
        yield y, load, g, ex


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_step_sees_what_it_sees_in_eager(name):
    expected = steps(PROGRAMS[name], lambda f: f)
    found = steps(PROGRAMS[name], functools.partial(fg.jit, backend="aten"))
    assert len(found) == len(expected) > 1
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same(one, other, step)
