"""Random numbers: for one seed, compiled functions draw exactly what eager PyTorch draws (``rng="eager"``)."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg

X = torch.randn(64, 8)


def both(f, c, *args, seed=7):
    torch.manual_seed(seed)
    expected, after = f(*args), torch.rand(3)
    torch.manual_seed(seed)
    found, found_after = c(*args), torch.rand(3)
    assert_rounded(found, expected)
    torch.testing.assert_close(found_after, after, rtol=0, atol=0)  # the generator is left where eager leaves it


@pytest.mark.parametrize(
    "f",
    [
        lambda x: F.dropout(x, 0.3),
        lambda x: F.dropout(F.dropout(x, 0.3) + 1, 0.9) * torch.rand_like(x),
        lambda x: F.alpha_dropout(x, 0.2),
        lambda x: F.feature_dropout(x[None], 0.4) if hasattr(F, "feature_dropout") else F.dropout1d(x[None], 0.4),
        lambda x: x + torch.randn(8) + torch.randint(5, (8,)) + torch.randperm(8),
        lambda x: F.rrelu(x, training=True),
        lambda x: F.gumbel_softmax(x),
        lambda x: torch.empty_like(x).uniform_() + torch.zeros(8).normal_(1, 2).exponential_(),
        lambda x: torch.multinomial(x.exp(), 3) + torch.bernoulli(x.sigmoid())[:, :3] + torch.normal(x, 1.0)[:, :3],
    ],
)
def test_the_same_draws(f):
    c = fg.jit(f)
    for seed in range(3):
        both(f, c, X, seed=seed)
    assert c.cache_info().misses == 1


CHOICES = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "in place": lambda x: x.clone().bernoulli_(0.3),
    "of a tensor": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()),
    "of a row": lambda x: torch.empty_like(x).bernoulli_(x.sigmoid()[..., :1]),
    "not in place": lambda x: torch.bernoulli(x, 0.3) + torch.rand_like(x),
    "of the argument": lambda x: x.mul_(2).bernoulli_(0.3),
}


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_tensors_are_filled_in_the_order_of_memory(data):
    sizes = data.draw(st.lists(st.sampled_from([1, 2, 5, 17]), min_size=1, max_size=4))
    order = data.draw(st.permutations(range(len(sizes))))
    step = data.draw(st.sampled_from([1, 2]))
    f = CHOICES[data.draw(st.sampled_from(sorted(CHOICES)))]
    whole = torch.randn([sizes[0] * step, *sizes[1:]])
    c = fg.jit(f, backend=data.draw(st.sampled_from(["aten", "aten", "c"])))
    torch.manual_seed(7)
    expected, after = f(whole.clone()[::step].permute(order)), torch.rand(3)
    torch.manual_seed(7)
    found, found_after = c(whole.clone()[::step].permute(order)), torch.rand(3)
    assert_rounded(found, expected)
    assert torch.equal(found_after, after)
    assert found.squeeze().stride() == expected.squeeze().stride()


def test_normal_numbers_into_a_tensor_with_gaps():
    """Eager PyTorch draws them one by one, which no functional form does: of few elements all do."""

    def fill(x):
        y = x * 1
        y[:, ::2].normal_()
        return y

    few, many = torch.zeros(3, 6), torch.zeros(4, 10)
    both(fill, fg.jit(fill), few)
    with pytest.raises(fg.UnsupportedTransformError, match="do not lie side by side"):
        fg.jit(fill)(many)
    filled = fg.jit(fill, rng="philox")(many)
    assert filled[:, ::2].all() and not filled[:, 1::2].any()


def test_a_draw_nobody_reads_still_advances_the_generator():
    def f(x):
        torch.rand(5)
        return x * torch.rand(8)

    both(f, fg.jit(f), X)


def test_gradients_use_the_forward_mask():
    def loss(x, w):
        return F.dropout(F.dropout(x @ w, 0.5).relu(), 0.5).square().sum()

    w = torch.randn(8, 16)

    def eager(x, w):
        w = w.clone().requires_grad_()
        value = loss(x, w)
        return value.detach(), torch.autograd.grad(value, w)[0]

    both(eager, fg.value_and_grad_compiled(loss, argnums=1), X, w)

    def by_backward(x, w):
        w = w.clone().requires_grad_()
        value = fg.jit(loss)(x, w)
        return value.detach(), torch.autograd.grad(value, w)[0]

    both(eager, by_backward, X, w)


def test_attention_dropout():
    q = torch.randn(2, 2, 8, 4)
    f = lambda q: F.scaled_dot_product_attention(q, q, q, dropout_p=0.3, is_causal=True)  # noqa: E731
    both(f, fg.jit(f), q)
    both(lambda q: torch.func.grad(lambda q: f(q).sum())(q), fg.grad_compiled(lambda q: f(q).sum()), q)


def test_compiling_draws_nothing():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    fg.value_and_grad_compiled(lambda x: F.dropout(x).sum()).program(X)
    assert torch.equal(torch.get_rng_state(), state)


SEEDS = {
    "manual_seed": lambda: torch.manual_seed(0),  # even to what it is
    "seed": lambda: torch.seed(),
    "imported": lambda: torch.random.manual_seed(3),
    "of the generator": lambda: torch.default_generator.manual_seed(0),
    "a new one": lambda: torch.default_generator.seed(),
    "state": lambda: torch.set_rng_state(STATE),
    "state of the generator": lambda: torch.default_generator.set_state(STATE),
}
STATE = torch.get_rng_state()


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("seed", SEEDS)
def test_seeding_inside_of_a_function_is_an_error(seed, draws):
    """Also where nothing is drawn afterwards: the calls would have to set it. The generator is not touched."""
    torch.manual_seed(0)
    state = torch.get_rng_state()

    def f(x):
        SEEDS[seed]()
        return x + torch.rand(8) if draws else x * 2

    def swallows(x):
        try:
            SEEDS[seed]()
        except RuntimeError:
            return x * 2

    for g in (f, swallows):
        with pytest.raises(fg.UnsupportedTransformError, match=r"sets the state of the random generator.*\n.*test_random.py"):
            fg.jit(g)(X)
        assert torch.equal(torch.get_rng_state(), state)


def test_seeding_by_a_method_taken_before_is_an_error():
    torch.manual_seed(0)
    seed = torch.default_generator.manual_seed
    with pytest.raises(fg.UnsupportedTransformError, match="sets the state of the random generator"):
        fg.jit(lambda x: (seed(1) and x) + torch.rand(8))(X)


def test_a_generator_that_is_put_back():
    """Around what draws nothing it may be; around a draw, calls would have to put it back."""

    def kept(x):
        y = F.dropout(x)
        with torch.random.fork_rng():
            z = x.sin()
        return y * z * torch.rand_like(x)

    both(kept, fg.jit(kept), X)

    def forked(x):
        with torch.random.fork_rng():
            return F.dropout(x)

    def again(x):
        state = torch.get_rng_state()
        y = torch.rand_like(x)
        torch.set_rng_state(state)
        return x + y + torch.rand_like(x)

    torch.manual_seed(0)
    state = torch.get_rng_state()
    for f, message in ((forked, "sets the state of the random generator to one before"), (again, "set the state of the random generator")):
        with pytest.raises(fg.UnsupportedTransformError, match=message + r"[^\n]*\n.*test_random.py"):
            fg.jit(f)(X)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_generator_of_ones_own_may_be_seeded():
    g = torch.Generator()
    torch.testing.assert_close(fg.jit(lambda x: (g.manual_seed(3), x * 2)[1])(X), X * 2)
    assert g.initial_seed() == 3


def test_a_generator_of_ones_own_is_an_error():
    g = torch.Generator()
    with pytest.raises(fg.UnsupportedTensorError, match=r"torch.Generator.*\n.*test_random.py"):
        fg.jit(lambda x: x + torch.rand(8, generator=g))(X)
