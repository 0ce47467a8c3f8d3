"""Random numbers made of a key (``rng="philox"``): what they are, how they are distributed, and that nothing in a
program draws."""

import math

import pytest
import scipy.stats
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from torch.utils.checkpoint import checkpoint
from turns import in_turn

import funcgrad as fg
from funcgrad.memory.steps import Extern
from funcgrad.philox import _words, philox
from funcgrad.slots import Seed

CPU = torch.device("cpu")
X = torch.randn(64, 8)
MANY = 20_000


def compiled(f, **options):
    return fg.jit(f, rng="philox", **options)


# ── the numbers ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        (0, 0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),  # a known answer of Random123
        (5 + (7 << 32), 11 + (13 << 32), None),
        (2**62 + 12345, -1, None),
    ],
)
def test_the_words_are_those_of_the_paper(counter, key, words):
    found = tuple(int(w) for w in _words(torch.tensor(key), torch.tensor([counter])))
    assert found == (words or reference(counter, key % 2**64))


def reference(counter, key):
    """Figure 4 of the paper, on Python's integers."""
    c, k = [counter % 2**32, counter >> 32, 0, 0], [key % 2**32, key >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [b >> 32 ^ c[1] ^ k[0], b % 2**32, a >> 32 ^ c[3] ^ k[1], a % 2**32]
        k = [(k[0] + 0x9E3779B9) % 2**32, (k[1] + 0xBB67AE85) % 2**32]
    return tuple(c)


def test_a_part_of_the_numbers_is_a_part_of_the_stream():
    whole = philox(torch.tensor(7), 0, 1, [100_000], [1], torch.float64, CPU)  # longer than what is worked on at a time
    part = philox(torch.tensor(7), 70_000, 1, [10, 20], [20, 1], torch.float64, CPU)
    assert torch.equal(whole[70_000:70_200].view(10, 20), part)
    across = philox(torch.tensor(7), 70_000, 1, [10, 20], [1, 10], torch.float64, CPU)
    assert across.stride() == (1, 10) and torch.equal(across, part)


EXACT = {
    "rand": lambda: torch.rand(3, 50),
    "rand64": lambda: torch.rand(50, dtype=torch.float64),
    "half": lambda: torch.rand(50, dtype=torch.float16),
    "bfloat16": lambda: torch.rand(50, dtype=torch.bfloat16),
    "complex": lambda: torch.rand(5, dtype=torch.complex128),
    "transposed": lambda: torch.rand_like(torch.ones(3, 4).t()),
    "nothing": lambda: torch.rand(0, 3),
    "one": lambda: torch.rand(()),
    "randint": lambda: torch.randint(-3, 9, (50,)),
    "randint32": lambda: torch.randint(5, (50,), dtype=torch.int32),
    "randint of floats": lambda: torch.randint_like(torch.ones(50), 2, 7),
    "large": lambda: torch.randint(0, 2**60 + 3, (50,)),
    "random": lambda: torch.empty(50, dtype=torch.int64).random_(),
    "random8": lambda: torch.empty(50, dtype=torch.uint8).random_(),
    "random of floats": lambda: torch.empty(50).random_(),
    "random bools": lambda: torch.empty(50, dtype=torch.bool).random_(),
    "random_to": lambda: torch.empty(50).random_(3, 7),
    "randperm": lambda: torch.randperm(50),
    "bernoulli": lambda: torch.bernoulli(torch.full((50,), 0.3)),
    "bernoulli of ints": lambda: torch.empty(4, 5, dtype=torch.int64).bernoulli_(0.5),
    "bernoulli of a tensor": lambda: torch.empty(4, 5).bernoulli_(torch.full((5,), 0.3, dtype=torch.float64)),
    "dropout": lambda: F.dropout(torch.ones(50), 0.3),
    "dropout in place": lambda: F.dropout(torch.ones(50), 0.3, inplace=True),
    "dropout of all": lambda: F.dropout(torch.ones(5), 1.0),
    "native_dropout": lambda: torch.native_dropout(torch.ones(50), 0.3, True)[0],
    "its mask": lambda: torch.native_dropout(torch.ones(50), 0.3, True)[1],
    "no native_dropout": lambda: torch.native_dropout(torch.ones(50), 0.3, False)[1],
    "alpha_dropout": lambda: F.alpha_dropout(torch.ones(50), 0.2),
    "dropout1d": lambda: F.dropout1d(torch.ones(4, 6, 3), 0.4),
    "rrelu off": lambda: F.rrelu(torch.linspace(-1, 1, 50)),
}
ROUNDED = {
    "rrelu": lambda: F.rrelu(torch.linspace(-1, 1, 50), training=True),
    "uniform": lambda: torch.empty(50).uniform_(-1, 3),
    "randn": lambda: torch.randn(50),
    "randn64": lambda: torch.randn(50, dtype=torch.float64),
    "randn of bfloat16": lambda: torch.randn(50, dtype=torch.bfloat16),
    "complex normal": lambda: torch.randn(50, dtype=torch.complex64),
    "normal": lambda: torch.normal(torch.zeros(3, 1), torch.ones(5)),
    "normal of numbers": lambda: torch.normal(1.0, 2.0, (5,)),
    "normal of a number": lambda: torch.normal(1.0, torch.ones(5)),
    "log_normal": lambda: torch.empty(50).log_normal_(0, 0.5),
    "exponential": lambda: torch.empty(50).exponential_(2.0),
    "geometric": lambda: torch.empty(50).geometric_(0.3),
    "cauchy": lambda: torch.empty(50).cauchy_(1, 2),
    "gumbel": lambda: F.gumbel_softmax(torch.zeros(10, 5)),
    "attention": lambda: F.scaled_dot_product_attention(*[torch.ones(2, 2, 8, 4)] * 3, dropout_p=0.3),
    "attention without": lambda: F.scaled_dot_product_attention(*[torch.ones(2, 2, 8, 4)] * 3),
}


def everything():
    return {name: f() for name, f in (EXACT | ROUNDED).items()}


def test_every_backend_draws_the_same():
    found = {}
    for backend in ("c", "aten"):
        torch.manual_seed(1)
        found[backend] = compiled(everything, backend=backend)()
    for name, eager in everything().items():
        c, aten = found["c"][name], found["aten"][name]
        for ours in (c, aten):
            assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride()), name
        if name in EXACT:
            assert torch.equal(c, aten), name
        else:
            assert_rounded(c, aten)


DISTRIBUTIONS = {
    "rand": (lambda: torch.rand(MANY), "uniform", ()),
    "rand64": (lambda: torch.rand(MANY, dtype=torch.float64), "uniform", ()),
    # multiples of 1/256
    "bfloat16": (lambda: torch.rand(MANY, dtype=torch.bfloat16) + torch.rand(MANY) / 256, "uniform", ()),
    "uniform": (lambda: torch.empty(MANY).uniform_(-1, 3), "uniform", (-1, 4)),
    "randn": (lambda: torch.randn(MANY), "norm", ()),
    "randn64": (lambda: torch.randn(MANY, dtype=torch.float64), "norm", ()),
    "complex": (lambda: torch.randn(MANY, dtype=torch.complex64).imag, "norm", (0, math.sqrt(0.5))),
    "normal": (lambda: torch.normal(torch.full((MANY,), 2.0), 3.0), "norm", (2, 3)),
    "exponential": (lambda: torch.empty(MANY).exponential_(2.0), "expon", (0, 0.5)),
    "cauchy": (lambda: torch.empty(MANY).cauchy_(1, 2), "cauchy", (1, 2)),
    "log_normal": (lambda: torch.empty(MANY).log_normal_(0, 0.5), "lognorm", (0.5,)),
}
COUNTS = {
    "randint": (lambda: torch.randint(-3, 9, (MANY,)), [1 / 12] * 12, -3),
    "large randint": (lambda: torch.randint(0, 3 * 2**55, (MANY,)) // 2**55, [1 / 3] * 3, 0),
    "random": (lambda: torch.empty(MANY, dtype=torch.int64).random_() >> 61, [1 / 4] * 4, 0),
    "bernoulli": (lambda: torch.empty(MANY).bernoulli_(0.3).long(), [0.7, 0.3], 0),
    "dropout": (lambda: (F.dropout(torch.ones(MANY), 0.1) == 0).long(), [0.9, 0.1], 0),
    "geometric": (lambda: torch.empty(MANY).geometric_(0.5).clamp(max=5).long(), [0.5, 0.25, 0.125, 0.0625, 0.0625], 1),
    "randperm": (lambda: (torch.randperm(MANY) - torch.arange(MANY)) % MANY // (MANY // 4), [0.25] * 4, 0),
}


def test_distributions():
    torch.manual_seed(1234)
    found = compiled(
        lambda: ({k: f() for k, (f, _, _) in DISTRIBUTIONS.items()}, {k: f() for k, (f, _, _) in COUNTS.items()})
    )()
    for name, (_, law, arguments) in DISTRIBUTIONS.items():
        assert (
            scipy.stats.kstest(found[0][name].double().numpy(), getattr(scipy.stats, law)(*arguments).cdf).pvalue > 1e-3
        ), name
    for name, (_, shares, first) in COUNTS.items():
        counts = torch.bincount(found[1][name] - first, minlength=len(shares))
        assert len(counts) == len(shares), name
        assert scipy.stats.chisquare(counts, [s * counts.sum().item() for s in shares]).pvalue > 1e-3, name


def test_draws_of_one_call_and_of_two_are_independent():
    torch.manual_seed(5)
    c = compiled(lambda: (torch.randn(MANY), torch.randn(MANY), torch.randn(MANY, dtype=torch.complex64)))
    first, again = c(), c()
    rows = [*first[:2], first[2].real, first[2].imag, again[0], first[0].roll(1)]
    assert (torch.corrcoef(torch.stack(rows)) - torch.eye(len(rows))).abs().max() < 5 / math.sqrt(MANY)


def test_no_two_draws_share_a_counter():
    program = compiled(lambda x: F.dropout(x, 0.3) + torch.rand(8) + F.dropout(x, 0.3)).program(X)
    draws = [n for n in program.joint.graph.fx.nodes if n.target is philox]
    assert [(n.args[1], math.prod(n.args[3])) for n in draws] == [(0, 512), (512, 8), (520, 512)]


def test_numbers_stay_in_their_range():
    torch.manual_seed(0)
    c = compiled(
        lambda: (torch.rand(2**20, dtype=torch.bfloat16), torch.rand(2**20), torch.empty(2**20).exponential_())
    )
    half, single, waits = c()
    assert half.max() < 1 and single.max() < 1 and single.min() >= 0 and waits.min() > 0 and waits.isfinite().all()


# ── the seed ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_generator_decides():
    c = compiled(lambda x: F.dropout(x, 0.3))
    torch.manual_seed(3)
    first, second = c(X), c(X)
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(c(X), first)
    state = torch.get_rng_state()
    third = c(X)
    torch.rand(100)
    torch.set_rng_state(state)
    assert torch.equal(c(X), third)


def test_looking_and_compiling_draw_nothing():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    fg.value_and_grad_compiled(lambda x: F.dropout(x).sum(), rng="philox").program(X)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_layer_and_the_printed_call():
    program = compiled(lambda x: F.dropout(x, 0.3)).program(X)
    (layer,) = program.layers
    assert layer.name == "rng" and layer.inner.ins == (*layer.outer.ins, Seed("cpu"))
    assert "seed_cpu = draw_key()\n    out, = kernel(x, seed_cpu)" in program.call.text
    assert compiled(lambda x: x * 2).program(X).layers == ()
    assert compiled(lambda x: F.dropout(x, 0.3, training=False) * 2).program(X).layers == ()


def test_dropout_is_one_kernel():
    program = compiled(lambda x: F.dropout((x + 1).relu(), 0.3) * 2, backend="c").program(X)
    (kernels,) = program.kernels
    assert len(kernels.steps) == 1 and not any(isinstance(s, Extern) for s in kernels.steps)


# ── derivatives ──────────────────────────────────────────────────────────────────────────────────────────────────


def net(x, w, v):
    return F.dropout(F.dropout((x @ w).relu(), 0.5) @ v, 0.4).relu()


@pytest.mark.parametrize("backend", ["c", "aten"])
def test_backward_makes_the_masks_forward_made(backend):
    """A net of ReLUs without biases is homogeneous: its gradient, times its input, is its value, if and only if the
    masks agree."""
    x, w, v = (
        X.double().requires_grad_(),
        torch.randn(8, 16, dtype=torch.float64),
        torch.randn(16, 4, dtype=torch.float64),
    )
    c = compiled(net, backend=backend)
    partition = c.program(x, w, v).partition
    assert sum(n.target is philox for n in partition.backward.fx.nodes) == 2
    kept = {str(k.slot): k for k in partition.saved}
    assert {a.why for a in partition.again if "philox" in a.name} == {"made of the seed alone: the numbers of forward"}
    assert kept["seed(cpu)"].nbytes == 8 and not any("bool" in k.type or "div" in name for name, k in kept.items())
    for seed in range(3):
        torch.manual_seed(seed)
        out = c(x, w, v)
        (grad,) = torch.autograd.grad(out.sum(), x)
        torch.testing.assert_close((grad * x).sum(), out.sum())
        torch.manual_seed(seed)
        value, together = fg.value_and_grad_compiled(lambda x: net(x, w, v).sum(), rng="philox", backend=backend)(x)
        torch.testing.assert_close((value, together), (out.sum(), grad))


def with_mask(x, w):
    mask = F.dropout(torch.ones(64, 16), 0.4)
    return ((x @ w).sin() * mask).square().sum(), mask


@pytest.mark.parametrize("draw", [False, True])
def test_gradients_are_eager_ones_given_the_mask(draw):
    w = torch.randn(8, 16, requires_grad=True)
    c = compiled(with_mask)
    loss, mask = c(X, w)
    torch.rand(7)  # what is drawn between forward and backward is no matter
    (grad,) = torch.autograd.grad(loss, w, create_graph=draw)
    expected = ((X @ w).sin() * mask).square().sum()
    (expected_grad,) = torch.autograd.grad(expected, w, create_graph=draw)
    assert_rounded((loss.detach(), grad.detach()), (expected.detach(), expected_grad.detach()))
    if draw:  # the second derivative runs forward again, with the same mask
        assert_rounded(torch.autograd.grad(grad.sum(), w), torch.autograd.grad(expected_grad.sum(), w))


def test_a_gradient_of_a_gradient():
    f = lambda x: (F.dropout(x, 0.5) ** 3).sum()  # noqa: E731
    c = fg.grad_compiled(lambda x: fg.grad_compiled(f)(x).sum(), rng="philox")
    torch.manual_seed(0)
    found = c(X)
    torch.manual_seed(0)
    first = fg.grad_compiled(f, rng="philox")(X)  # 3 x² 8 where kept: with the same key, the same mask
    assert_rounded(found, torch.where(first != 0, 48 * X, 0.0))


class NoisyGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * torch.rand_like(g)


def test_a_draw_in_backward_alone():
    x = torch.ones(1000, requires_grad=True)
    c = compiled(lambda x: (NoisyGradient.apply(x) * F.dropout(torch.ones(1000), 0.5)).sum())
    grads = [torch.autograd.grad(c(x), x)[0] for _ in range(2)]
    for g in grads:
        kept = g[g != 0] / 2
        assert kept.unique().numel() > 400 and kept.min() > 0 and kept.max() < 1
    assert not torch.equal(*grads)


# ── inside other things ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("randomness", ["different", "same"])
def test_a_vmap_inside(randomness):
    c = compiled(lambda x: torch.func.vmap(lambda row: F.dropout(row, 0.5), randomness=randomness)(x))
    out = c(torch.ones(6, 40))
    assert (out[0] == out[1]).all() == (randomness == "same")
    with pytest.raises(RuntimeError, match="randomness"):
        compiled(lambda x: torch.func.vmap(torch.rand_like)(x))(X)


def test_a_vmap_outside():
    c = compiled(lambda x: F.dropout(x, 0.5))
    torch.manual_seed(0)
    out = torch.func.vmap(c, randomness="different")(torch.ones(6, 40))
    assert not (out[0] == out[1]).all()
    torch.manual_seed(0)
    assert torch.equal(out, torch.func.vmap(c, randomness="different")(torch.ones(6, 40)))
    same = torch.func.vmap(c, randomness="same")(torch.ones(6, 40))
    assert (same[0] == same[1]).all()


def test_a_gradient_outside():
    """Backward sees the draws of forward."""
    c, x = compiled(lambda x: (F.dropout(x, 0.5) * x).sum()), torch.ones(400)
    gradient, value = torch.func.grad_and_value(c)(x)
    assert gradient.sum() == 2 * value and {0.0, 4.0} == set(gradient.tolist())


def test_a_draw_in_a_branch():
    f = lambda x, flag: torch.cond(flag, lambda x: x * torch.rand_like(x), lambda x: x - torch.rand_like(x), (x,))  # noqa: E731
    c, x = compiled(f), torch.ones(1000)
    for flag in (torch.tensor(True), torch.tensor(False)):
        torch.manual_seed(0)
        out = c(x, flag)
        torch.manual_seed(0)
        assert torch.equal(out, c(x, flag)) and out.unique().numel() > 900 and 0 <= out.min() <= out.max() <= 1
    with pytest.raises(fg.UnsupportedTransformError, match="would draw others"):
        c(torch.ones(3, requires_grad=True), torch.tensor(True)).sum().backward()


def test_layers_around_a_draw():
    """A duplicate, a write and a restride in one call: one seed."""

    def f(x, y):
        x.mul_(F.dropout(torch.ones(2, 3), 0.5))
        x.t_()
        return y + 1

    c, x = compiled(f), torch.ones(2, 3)
    assert torch.equal(c(x, x), x + 1) and set(x.unique().tolist()) <= {0.0, 2.0}


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.poisson(x.exp()),
        lambda x: torch.multinomial(x.exp(), 3),
        lambda x: torch.distributions.Gamma(1.0, 1.0).sample((8,)),
    ],
)
def test_what_has_no_rule_is_refused(f):
    with pytest.raises(fg.UnsupportedTransformError, match=r'rng="philox" has no rule for it\n.*test_philox.py'):
        compiled(f)(X)


def test_other_generators_are_refused():
    g = torch.Generator()
    with pytest.raises(fg.UnsupportedTensorError, match=r"torch.Generator.*\n.*test_philox.py"):
        compiled(lambda x: x + torch.rand(8, generator=g))(X)
    with pytest.raises(fg.UnsupportedTransformError, match="sets the state of the random generator"):
        compiled(lambda x: checkpoint(F.dropout, x, use_reentrant=True).sum())(X.clone().requires_grad_()).backward()


@pytest.mark.parametrize(
    "f",
    [
        lambda: torch.empty(3).uniform_(2, 1),
        lambda: torch.empty(3).normal_(0, -1),
        lambda: torch.empty(3).bernoulli_(1.5),
        lambda: torch.empty(3).exponential_(-1),
        lambda: torch.empty(3).geometric_(1.0),
        lambda: torch.randint(5, 5, (3,)),
        lambda: torch.empty(3).random_(4, 4),
        lambda: F.dropout(torch.ones(3), 1.5),
    ],
)
def test_what_eager_rejects_is_rejected(f):
    with pytest.raises((RuntimeError, ValueError)) as eager:
        f()
    with pytest.raises(type(eager.value)) as ours:
        compiled(f)()
    assert str(eager.value).splitlines()[0] in str(ours.value)


def test_a_function_that_draws_in_its_second_run_alone_is_refused():
    runs = in_turn(0, 1)
    with pytest.raises(fg.TraceError, match="draws random numbers in its second run"):
        compiled(lambda x: x + torch.rand(8) if runs() else x * 2)(X)
