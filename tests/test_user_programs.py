"""Small programs around Python state, in which inputs, sizes and state change between calls. Each step sees in
compiled functions what it sees in eager PyTorch."""

import collections
import contextlib
import dataclasses
import functools
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from watched import assert_same, attempt, steps

import funcgrad as fg

PROGRAMS = {}
"""Each takes what compiles a function, and yields what there is to see after each step."""


def program(f):
    PROGRAMS[f.__name__] = f
    return f


@program
def descriptor(c):
    class Positive:
        def __set_name__(s, o, n):
            s.n = "_" + n

        def __get__(s, o, t=None):
            return s if o is None else getattr(o, s.n)

        def __set__(s, o, v):
            if float(v) <= 0:
                raise ValueError("must be positive")
            setattr(o, s.n, v)
            o.log.append(v)

    class K:
        scale = Positive()

        def __init__(s):
            s.log = []
            s.scale = 1.0

        def __call__(s, x):
            s.scale = s.scale * 1.5
            return x * s.scale

    k = K()
    f = c(k)
    for i in range(4):
        yield f(torch.ones(2)), k.scale, k.log
        if i == 2:
            k.scale = 0.25
    yield (attempt(lambda: setattr(k, "scale", -1.0)),)


@program
def attributes_found_elsewhere(c):
    class Lazy:
        def __init__(s):
            s.__dict__["store"] = {"a": torch.ones(2)}
            s.__dict__["misses"] = []

        def __getattr__(s, n):
            if n.startswith("__"):
                raise AttributeError(n)
            s.misses.append(n)
            try:
                return s.store[n]
            except KeyError:
                raise AttributeError(n) from None

    l = Lazy()

    def g(x):
        return x * l.a + getattr(l, "b", 0.0) + (l.c if hasattr(l, "c") else 1)

    f = c(g)
    yield f(torch.ones(2)), l.misses
    l.store["b"] = torch.full((2,), 2.0)
    yield f(torch.ones(2)), l.misses
    l.store["c"] = 5
    yield f(torch.ones(2)), l.misses
    l.b = 7.0
    yield f(torch.ones(2)), l.misses


@program
def slots(c):
    class S:
        __slots__ = ("cfg", "h", "n")

        def __init__(s):
            s.h = torch.zeros(3)
            s.n = 0
            s.cfg = {"decay": 0.9}

        def step(s, x):
            s.n += 1
            s.h = s.h * s.cfg["decay"] + x
            return s.h / (1 - s.cfg["decay"] ** s.n)

    s = S()
    f = c(s.step)
    for i in range(6):
        yield f(torch.randn(3)), s.h, s.n
        if i == 3:
            s.cfg["decay"] = 0.5
        if i == 4:
            s.h = torch.ones(3, dtype=torch.float64)


@program
def a_dataclass_as_state(c):
    @dataclasses.dataclass
    class St:
        w: torch.Tensor
        step: int
        hist: list

    @dataclasses.dataclass(frozen=True)
    class Out:
        loss: torch.Tensor
        lr: float
        name: str = "o"

    def g(s, x):
        l = (s.w * x).pow(2).mean()
        s.w = s.w - 0.1 * l * x
        s.step += 1
        s.hist.append(l.detach())
        return Out(l, 0.1 / s.step)

    f = c(g)
    s = St(torch.ones(3), 0, [])
    for i in range(4):
        yield f(s, torch.randn(3)), s.w, s.step, s.hist


@program
def defaults_that_are_written_to(c):
    def g(x, acc=[], *, stats={"n": 0}):
        acc.append(x.mean())
        stats["n"] += 1
        return sum(acc) / len(acc), stats["n"], acc

    f = c(g)
    for i in range(4):
        yield (f(torch.randn(3)),)
    mine = []
    yield f(torch.randn(2), mine), mine


@program
def a_context_manager_that_swallows(c):
    class Scale:
        depth = 0
        log = None

        def __init__(s, k):
            s.k = k

        def __enter__(s):
            Scale.depth += 1
            Scale.log.append(("in", s.k))
            return s.k

        def __exit__(s, *e):
            Scale.depth -= 1
            Scale.log.append(("out", e[0].__name__ if e[0] else None))
            return e[0] is ValueError

    @contextlib.contextmanager
    def eval_mode(m):
        was = m.training
        m.eval()
        try:
            yield m
        finally:
            m.train(was)

    Scale.log = []
    m = nn.Dropout(0.5)

    def g(x, bad):
        with Scale(2.0) as k, eval_mode(m):
            x = m(x) * k * Scale.depth
            if bad:
                raise ValueError("b")
            x = x + 10
        return m(x)

    f = c(g)
    for b in (False, True, False, True):
        yield f(torch.ones(6), b), Scale.log[:], Scale.depth, m.training


@program
def early_return(c):
    calls = []

    def g(x, tol):
        n = x.norm()
        if n < tol:
            calls.append("small")
            return x
        if torch.isnan(n):
            calls.append("nan")
            return None
        calls.append("big")
        return x / n, n

    f = c(g)
    for x in (torch.ones(3) * 0.01, torch.ones(3), torch.tensor([float("nan"), 1, 2]), torch.zeros(3), torch.ones(4)):
        r = f(x, 0.1)
        yield r, r is x, calls[:]


@program
def newton_until_it_converges(c):
    def g(x, tol=1e-4, maxit=50):
        n = 0
        y = torch.ones_like(x)
        while (err := (y * y - x).abs().max()) > tol and n < maxit:
            y = 0.5 * (y + x / y)
            n += 1
        return y, n, err

    f = c(g)
    for v in (2.0, 9.0, 100.0, 4.0):
        yield f(torch.tensor([v, v + 1], requires_grad=True))


@program
def collections_of_results(c):
    cnt = collections.Counter()
    dd = collections.defaultdict(list)
    dq = collections.deque(maxlen=3)
    od = collections.OrderedDict()

    def g(x, tag):
        cnt[tag] += 1
        dd[tag].append(x.sum())
        dq.append(x)
        od[tag] = x.mean()
        od.move_to_end(tag, last=False)
        return torch.stack(tuple(dq)).mean(0) * cnt[tag], cnt.most_common(1)[0][0]

    f = c(g)
    for t in "abacaba":
        yield f(torch.randn(2), t), cnt, dd, dq, od


@program
def attributes_that_come_and_go(c):
    class Obj:
        pass

    o = Obj()
    o.n = 0

    def g(x):
        setattr(o, f"v{o.n}", x * o.n)
        o.n += 1
        if hasattr(o, "v2"):
            del o.v0
            o.__dict__.pop("v1", None)
        return sum(v for k, v in vars(o).items() if k.startswith("v"))

    f = c(g)
    for i in range(2):
        yield f(torch.ones(2)), o
    yield f(torch.ones(2)), o
    yield attempt(f, torch.ones(2)), o


@program
def a_cache_that_is_cleared(c):
    cache = {}
    w = torch.randn(4, 12)

    def g(x, layer):
        q, k, v = (x @ w).chunk(3, -1)
        if layer in cache:
            k = torch.cat([cache[layer][0], k], 1)
            v = torch.cat([cache[layer][1], v], 1)
        cache[layer] = (k, v)
        return F.scaled_dot_product_attention(q, k, v)

    f = c(g)
    for i in range(5):
        for l in (0, 1):
            yield f(torch.randn(1, 1, 4), l), cache
    cache.clear()
    yield f(torch.randn(1, 2, 4), 0), cache


@program
def beam_search(c):
    m = nn.Sequential(nn.Embedding(6, 8), nn.Linear(8, 6))

    def search(start, k, n):
        beams = [(0.0, [start])]
        for _ in range(n):
            cand = []
            for s, seq in beams:
                lp = F.log_softmax(m(torch.tensor(seq[-1])), -1)
                v, i = lp.topk(k)
                cand += [(s + a.item(), [*seq, b.item()]) for a, b in zip(v, i)]
            beams = sorted(cand, key=lambda t: -t[0])[:k]
        return beams

    f = c(torch.no_grad()(search))
    for s in (0, 3, 0):
        yield f(s, 2, 3)


@program
def a_custom_function(c):
    class Fn(torch.autograd.Function):
        n = 0

        @staticmethod
        def forward(ctx, x, s, inplace=False):
            ctx.s = s
            ctx.save_for_backward(x)
            ctx.set_materialize_grads(False)
            Fn.n += 1
            y = x * s
            m = x > 0
            ctx.mark_non_differentiable(m)
            return y, m, x.sin()

        @staticmethod
        def backward(ctx, gy, gm, gs):
            (x,) = ctx.saved_tensors
            g = 0
            if gy is not None:
                g = g + gy * ctx.s * 2
            if gs is not None:
                g = g + gs * x.cos()
            return (g if ctx.needs_input_grad[0] else None), None, None

    def f0(x, s):
        return Fn.apply(x, s)

    f = c(f0)
    for i in range(5):
        x = torch.randn(3, requires_grad=i != 3)
        y, m, s = f(x, 1.0 + i)
        if i != 3:
            (y.sum() if i % 2 else s.sum() if i == 2 else (y + s).sum()).backward()
        yield y, m, s, x, Fn.n


@program
def counters_of_threads(c):
    loc = threading.local()

    def g(x):
        loc.k = getattr(loc, "k", 0) + 1
        return x * loc.k

    f = c(g)
    yield f(torch.ones(2))
    yield f(torch.ones(2))
    r = []
    t = threading.Thread(target=lambda: r.append(f(torch.ones(2))))
    t.start()
    t.join()
    yield r
    yield f(torch.ones(2)), loc.k


@program
def an_error_and_another_try(c):
    class S:
        def __init__(s):
            s.n = 0
            s.buf = torch.zeros(2)
            s.log = []

        def step(s, x, fail):
            s.n += 1
            s.buf += x
            s.log.append(s.n)
            if fail:
                raise RuntimeError(f"step {s.n} failed")
            s.buf *= 2
            return s.buf.sum()

    s = S()
    f = c(s.step)
    for b in (False, True, True, False, True, False):
        yield attempt(f, torch.ones(2), b), s.n, s.buf, s.log


@program
def generators(c):
    g0 = torch.Generator().manual_seed(1)

    def f0(x, g=None):
        return F.dropout(x, 0.5) + torch.randn(3, generator=g) + torch.randperm(3)

    f = c(f0)
    for i in range(4):
        yield (attempt(f, torch.ones(3)),)
    torch.manual_seed(5)
    a = f(torch.ones(3))
    s = torch.get_rng_state()
    b = f(torch.ones(3))
    torch.set_rng_state(s)
    yield a, b, f(torch.ones(3))
    yield attempt(f, torch.ones(3), g0), g0.get_state().sum()
    yield attempt(f, torch.ones(3), g0), g0.get_state().sum()


@program
def errors_of_a_backward_pass(c):
    class Checked(torch.autograd.Function):
        raised = None

        @staticmethod
        def forward(ctx, x, slope):
            ctx.slope = slope
            return x * slope

        @staticmethod
        def backward(ctx, g):
            if Checked.raised is not None:
                raise Checked.raised("a bad gradient")
            if ctx.slope > 5:
                raise AssertionError("too steep")  # not assert: pytest would say more
            return g * ctx.slope, None

    f, x = c(lambda x, slope: Checked.apply(x, slope).sum()), torch.ones(2, requires_grad=True)
    for kind in (None, ValueError, KeyError, None, RuntimeError, type("Mine", (Exception,), {})):
        Checked.raised = kind
        yield attempt(lambda: f(x, 2.0).backward()), f(x, 2.0), x, f(x.detach(), 2.0)
        y, Checked.raised = f(x, 2.0), None
        yield attempt(y.backward), x
        y, Checked.raised = f(x, 2.0), kind
        yield attempt(y.backward), x
    Checked.raised = None
    for slope in (3.0, 6.0, 4.0):
        yield attempt(lambda: f(x, slope).backward()), x


@program
def a_hook_that_raises(c):
    bad = []

    def g(x):
        def hook(gradient):
            if bad:
                raise LookupError(bad[0])
            return gradient * 3

        y = x * 2
        y.register_hook(hook)
        return y.sum()

    f, x = c(g), torch.ones(2, requires_grad=True)
    for change in (bad.clear, lambda: bad.append("a bad gradient"), bad.clear):
        change()
        yield attempt(lambda: f(x).backward()), x


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("name", PROGRAMS)
def test_each_step_sees_what_it_sees_in_eager(name):
    expected = steps(PROGRAMS[name], lambda f: f)
    found = steps(PROGRAMS[name], functools.partial(fg.jit, backend="aten"))
    assert len(found) == len(expected) > 1
    for step, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert_same(one, other, step)
