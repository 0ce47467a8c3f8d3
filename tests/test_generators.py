"""The default generators are never put back: what is drawn again, or on trial, is drawn from others."""

import threading

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded

import funcgrad as fg
from funcgrad.backends.peak import peak_bytes
from funcgrad.generators import mark_of, own_draws, state_of

CPU = torch.device("cpu")
X = torch.rand(6, 40)

DRAWS = {
    "rand": lambda x: torch.rand(20),
    "out": lambda x: torch.rand(4, out=torch.empty(4)),
    "randn_like": torch.randn_like,
    "randint": lambda x: torch.randint(5, (9,)) + torch.randint(2, 5, (9,)),
    "randint_like": lambda x: torch.randint_like(x, 5) + torch.randint_like(x, 2, 5),
    "randperm": lambda x: torch.randperm(30),
    "in place": lambda x: x.clone().uniform_() + x.clone().normal_() + x.clone().exponential_() + x.clone().random_(),
    "normal": lambda x: torch.normal(x, 1.0) + torch.normal(0.0, 1.0, (40,)),
    "dropout": lambda x: F.dropout(x) + F.alpha_dropout(x),
    "native_dropout": lambda x: torch.native_dropout(x, 0.5, True)[0],
    "not in training": lambda x: torch.native_dropout(x, 0.5, False)[0],
    "rrelu": lambda x: F.rrelu(x, training=True),
    "choices": lambda x: torch.bernoulli(x) + torch.multinomial(x, 1),
    "distributions": lambda x: torch.poisson(x) + torch.binomial(x * 0 + 5, x),
    "without a name": lambda x: torch._standard_gamma(x + 1) + torch._sample_dirichlet(x + 1),
    "attention": lambda x: F.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3),
    "lstm": lambda x: torch.nn.LSTM(40, 8, 2, dropout=0.5)(x)[0],
}


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("name", DRAWS)
def test_own_draws_are_those_of_the_default_generator_in_that_state(name, grad):
    with torch.set_grad_enabled(grad):
        torch.manual_seed(5)
        start = torch.get_rng_state()
        expected, after, mark = DRAWS[name](X), torch.get_rng_state(), mark_of(CPU)
        torch.manual_seed(9)
        default = torch.get_rng_state()
        with own_draws({CPU: start}, {CPU: mark}) as own:
            found, found_after = DRAWS[name](X), state_of(CPU)
        assert torch.equal(found, expected) and torch.equal(found_after, after) and not own.not_passed
        assert torch.equal(torch.get_rng_state(), default)


def test_a_generator_that_is_named_is_drawn_from():
    g, like = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
    with own_draws():
        assert torch.equal(torch.rand(4, generator=g), torch.rand(4, generator=like))


# ── a second derivative draws again what forward drew ────────────────────────────────────────────────────────────────


def second(f, x, between=lambda: None):
    x = x.clone().requires_grad_()
    torch.manual_seed(2)
    y = f(x)
    between()
    state = torch.get_rng_state()
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    (gg,) = torch.autograd.grad(g.sum(), x, create_graph=True)
    (ggg,) = torch.autograd.grad(gg.sum(), x)
    assert torch.equal(torch.get_rng_state(), state)
    return y.detach(), g.detach(), gg.detach(), ggg


def dropped(x):
    return (F.dropout(x, 0.5).sin() * F.dropout(x, 0.3) ** 3).sum()


def test_derivatives_of_each_order_draw_what_forward_drew():
    for found, expected in zip(second(fg.jit(dropped), X, lambda: torch.rand(7)), second(dropped, X), strict=True):
        assert_rounded(found, expected)


@torch.library.custom_op("funcgrad_generators::meanwhile", mutates_args=())
def meanwhile(x: torch.Tensor) -> torch.Tensor:
    """Another thread draws."""
    other = threading.Thread(target=torch.rand, args=(3,))
    other.start()
    other.join()
    return x.clone()


meanwhile.register_fake(torch.empty_like)
meanwhile.register_autograd(lambda ctx, grad: grad)


def test_what_another_thread_drew_meanwhile_is_not_taken_for_what_forward_drew():
    f = fg.jit(lambda x: (meanwhile(F.dropout(x)) * F.dropout(x) ** 2).sum(), backend="aten")
    with pytest.raises(fg.UnsupportedTransformError, match="another thread drew"):
        second(f, X)


# ── on trial ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def everything(model):
    return {name: value.clone() for name, value in model.state_dict().items()}, {
        n: p.grad for n, p in model.named_parameters()
    }


@pytest.mark.parametrize("training", [True, False])
def test_measuring_memory_leaves_all_as_it_was(training):
    model = torch.nn.Sequential(
        torch.nn.Linear(40, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
    )
    seen = torch.zeros(())

    def step(x):
        seen.add_(1)
        x.mul_(2)
        loss = model(x).square().sum()
        if training:
            loss.backward()
        return loss

    x, c = X.clone(), fg.jit(step)
    for _ in range(2):  # with gradients, too
        before, state, x_before, version = everything(model), torch.get_rng_state(), x.clone(), x._version
        use = c.memory(x)
        assert use.measured_peak > 0
        torch.testing.assert_close(everything(model), before, rtol=0, atol=0)
        assert (
            torch.equal(torch.get_rng_state(), state)
            and torch.equal(x, x_before)
            and x._version == version
            and seen == 0
        )
        if training:
            c(x)
            seen.zero_()


@pytest.mark.parametrize("transpose", [False, True])
def test_what_is_measured_is_what_a_call_takes(transpose):
    """On copies of its arguments, captured tensors and buffers as on themselves."""
    net = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.BatchNorm1d(256), torch.nn.Linear(256, 256))
    x = torch.randn(256, 256).T if transpose else torch.randn(256, 512)[:, ::2]
    c = fg.jit(lambda x: net(x.mul_(1.5)).tanh().sum())
    c(x)
    by_call = peak_bytes(lambda: torch.autograd.grad(c(x), net.parameters()))
    assert c.memory(x).measured_peak == pytest.approx(by_call, rel=0.02)


def test_compiling_within_a_budget_draws_nothing():
    """The memory that operators take while they run is measured, also of those that draw."""
    ws = [torch.randn(40, 40, requires_grad=True) for _ in range(4)]

    def f(x):
        for w in ws:
            x = torch.native_dropout(torch.tanh(x @ w), 0.5, True)[0] * torch.rand_like(x)
        return x.sum()

    state, sets = torch.get_rng_state(), []
    c = fg.jit(f, memory_budget=1.0)
    original, torch.set_rng_state = torch.set_rng_state, sets.append
    try:
        c.program(X)
    finally:
        torch.set_rng_state = original
    assert torch.equal(torch.get_rng_state(), state) and not sets


def test_a_wrong_index_draws_nothing_again():
    def f(x, i):
        return F.dropout(x)[:, i].sum()

    c = fg.jit(f)
    torch.manual_seed(0)
    c(X, torch.tensor([0]))
    after = torch.get_rng_state()
    torch.manual_seed(0)
    with pytest.raises(IndexError):
        c(X, torch.tensor([50]))
    assert torch.equal(torch.get_rng_state(), after)


OF_SIZES = {
    "rand": lambda n, g: torch.rand(n, generator=g),
    "randn": lambda n, g: torch.randn(n, 2, generator=g).sum(1),
    "randint": lambda n, g: torch.randint(5, (n,), generator=g),
    "randperm": lambda n, g: torch.randperm(n, generator=g),
    "normal": lambda n, g: torch.empty(n).normal_(generator=g),
    "multinomial": lambda n, g: torch.multinomial(torch.ones(n, 4), 1, generator=g)[:, 0],
}


@pytest.mark.parametrize("what", OF_SIZES)
def test_a_generator_of_ones_own_draws_for_any_size(what):
    ours, theirs = (torch.Generator().manual_seed(3) for _ in range(2))
    compiled = fg.jit(lambda x: x * OF_SIZES[what](x.shape[0], ours))
    for n in (3, 4, 6, 7):
        x = torch.ones(n)
        assert torch.equal(compiled(x), x * OF_SIZES[what](n, theirs))
    assert compiled.cache_info().misses == 2


def test_draws_in_place_of_which_kernels_without_memory_do_not_take_a_generator():
    draws = {"exponential_": (2.0,), "log_normal_": (0.5, 1.5), "geometric_": (0.3,), "cauchy_": (1.0, 2.0)}
    for name, given in draws.items():

        def f(x, generator, name=name, given=given):
            y = x * 1
            getattr(y.t(), name)(*given, generator=generator)
            return y + getattr(torch.empty_like(x), name)(generator=generator, *(given if name == "geometric_" else ()))

        compiled = fg.jit(f)
        ours, theirs = torch.Generator().manual_seed(3), torch.Generator().manual_seed(3)
        for n in (2, 5, 9, 40):
            x = torch.ones(3, n, requires_grad=True)
            found, expected = compiled(x, ours), f(x, theirs)
            assert torch.equal(found, expected) and torch.equal(ours.get_state(), theirs.get_state()), name
            assert torch.autograd.grad(found.sum(), x)[0].count_nonzero() == 0
        assert compiled.cache_info().misses == 2
