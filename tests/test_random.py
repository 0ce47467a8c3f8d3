"""Random numbers: for one seed, compiled functions draw exactly what eager PyTorch draws (``rng="eager"``)."""

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.checkpoint import checkpoint
from turns import in_turn

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


@pytest.mark.parametrize("shape", [(3, 4), (2, 3, 4), (3, 4, 2, 2), (2, 3, 4, 2, 2)])
@pytest.mark.parametrize("inplace", [True, False])
def test_dropout_of_channels(shape, inplace):
    """Without a dimension for a batch, PyTorch gives the input one in place."""
    dropout = F.dropout1d if len(shape) < 4 else F.dropout3d

    def f(x):
        y = x.clone()
        return dropout(y, 0.4, True, inplace), y

    x = torch.randn(shape)
    for g in (f, lambda x: torch.func.grad(lambda x: (f(x)[0] ** 2).sum())(x)):
        both(g, fg.jit(g), x)
    c = fg.jit(lambda x: dropout(x, 0.4, True, inplace))

    def written(f):
        def call(x):
            x = x.clone()
            return f(x) is x, x

        return call

    both(written(lambda x: dropout(x, 0.4, True, inplace)), written(c), x)


def test_compiling_draws_nothing():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    fg.value_and_grad_compiled(lambda x: F.dropout(x).sum()).program(X)
    assert torch.equal(torch.get_rng_state(), state)


STATE = torch.get_rng_state()


def forked(x):
    with torch.random.fork_rng():
        y = F.dropout(x)
    return y * torch.rand_like(x)


def forked_and_seeded(x):
    first = torch.rand(8)
    with torch.random.fork_rng():
        torch.manual_seed(3)
        y = F.dropout(x)
    return y * torch.rand(8) + first * x.sin()


def drawn_again(x):
    state = torch.get_rng_state()
    y = torch.rand_like(x)
    torch.set_rng_state(state)
    return x * y + torch.rand_like(x)


def returns_the_state(x):
    return x * torch.rand(8), torch.get_rng_state()


def seeds_in_backward(x):
    y = (F.dropout(x) * x).sum()
    torch.manual_seed(3)
    return torch.autograd.grad(y, x, create_graph=True)[0] * torch.rand(8) if x.requires_grad else y


class DrawsAgain(torch.autograd.Function):
    """Backward draws what forward drew, and leaves the generator as it was; and draws once more, which nobody reads."""

    @staticmethod
    def forward(ctx, x):
        ctx.state = torch.get_rng_state()
        return x * torch.rand(8)

    @staticmethod
    def backward(ctx, g):
        with torch.random.fork_rng():
            torch.set_rng_state(ctx.state)
            drawn = torch.rand(8)
        torch.rand(5)
        return g * drawn


SEEDED = {
    "manual_seed": lambda x: (torch.manual_seed(0), x * torch.rand(8))[1],
    "without a draw": lambda x: (torch.manual_seed(5), x * 2)[1],
    "imported": lambda x: (torch.random.manual_seed(3), x * torch.rand(8))[1],
    "of the generator": lambda x: x * torch.rand(8, generator=torch.default_generator.manual_seed(-1)),
    "what it returns": lambda x: x * torch.rand(8, generator=torch.manual_seed(1)),
    "twice": lambda x: sum(torch.rand(8) * x for _ in range(2) if torch.manual_seed(4)),
    "state": lambda x: (torch.set_rng_state(STATE), x * torch.randn(8))[1],
    "state of the generator": lambda x: (torch.default_generator.set_state(STATE), x * torch.randn(8))[1],
    "forked": forked,
    "forked and seeded": forked_and_seeded,
    "drawn again": drawn_again,
    "returned": returns_the_state,
    "in backward": seeds_in_backward,
    "custom function": DrawsAgain.apply,
    "checkpoint": lambda x: (
        checkpoint(lambda x: F.dropout(x.sin()) * torch.rand_like(x), x * 1, use_reentrant=True) * torch.rand(8)
    ),
}


def derivatives(f, order):
    """Of a function, up to an order; and what the generator draws after each."""

    def call(x):
        torch.rand(3)
        x = x.clone().requires_grad_(order > 0)
        y, *rest = found = f(x) if isinstance(f(x.detach()), tuple) else (f(x),)
        found = [y.detach(), *rest]
        for i in range(order):
            torch.autograd.backward((y**3).sum(), create_graph=i + 1 < order)  # a reentrant checkpoint wants no grad()
            found += [x.grad.detach(), torch.rand(3)]
            y, x.grad = x.grad, None
        return found

    return call


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("name", SEEDED)
def test_a_function_may_set_the_generator(name, backend):
    f = SEEDED[name]
    c = fg.jit(f, backend=backend)
    for order in (0, 1) if name in ("checkpoint", "custom function") else (0, 1, 2):
        for seed in range(2):
            both(derivatives(f, order), derivatives(c, order), X, seed=seed)


@pytest.mark.parametrize("name", ["manual_seed", "forked and seeded", "drawn again"])
def test_a_function_may_set_the_generator_under_transforms(name):
    f = SEEDED[name]
    c = fg.jit(f, backend="aten")
    for transform in (
        lambda f: torch.func.grad(lambda x: (f(x) ** 2).sum()),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),)),
        lambda f: torch.func.vmap(f, randomness="different"),
        lambda f: torch.func.grad(lambda x: torch.func.grad(lambda x: (f(x) ** 3).sum())(x).sum()),
    ):
        for seed in range(2):
            both(transform(f), transform(c), X, seed=seed)
    both(torch.func.grad(lambda x: f(x).sum()), fg.grad_compiled(lambda x: f(x).sum()), X)


def test_what_eager_pytorch_takes_for_a_state_is_one():
    f = lambda x, state: (torch.set_rng_state(state), x * torch.rand(8))[1]  # noqa: E731
    c = fg.jit(f)
    for seed in range(3):
        both(f, c, X, torch.Generator().manual_seed(seed).get_state())
    assert c.cache_info().misses == 1


@pytest.mark.parametrize("seed", [5, -1])
def test_the_seed_that_a_function_has_set_is_known_to_it(seed):
    f = lambda x: (torch.manual_seed(seed), x * (torch.initial_seed() % 1000))[1]  # noqa: E731
    assert torch.equal(fg.jit(f)(X), f(X))
    with pytest.raises(fg.UnsupportedTransformError, match=r"asks for the seed.*\n.*test_random.py"):
        fg.jit(lambda x: x * torch.initial_seed())(X)
    with pytest.raises(fg.UnsupportedTransformError, match="asks for the seed"):
        fg.jit(lambda x: (torch.manual_seed(1), torch.set_rng_state(STATE), x * torch.initial_seed())[2])(X)


def test_compiling_what_seeds_touches_no_generator():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    for name in ("manual_seed", "state", "forked and seeded"):
        fg.jit(SEEDED[name], backend="aten").program(X)
        assert torch.equal(torch.get_rng_state(), state)


UNKNOWN = {"seed": lambda: torch.seed(), "of the generator": lambda: torch.default_generator.seed()}


@pytest.mark.parametrize("draws", [True, False])
@pytest.mark.parametrize("seed", UNKNOWN)
def test_a_seed_that_nobody_knows_is_an_error(seed, draws):
    """Also where nothing is drawn afterwards: the calls would have to set it. The generator is not touched."""
    torch.manual_seed(0)
    state = torch.get_rng_state()

    def f(x):
        UNKNOWN[seed]()
        return x + torch.rand(8) if draws else x * 2

    def swallows(x):
        try:
            UNKNOWN[seed]()
        except RuntimeError:
            return x * 2

    for g in (f, swallows):
        with pytest.raises(fg.UnsupportedTransformError, match=r"a number that it is told.*\n.*test_random.py"):
            fg.jit(g)(X)
        assert torch.equal(torch.get_rng_state(), state)


def test_seeding_by_a_method_taken_before_is_an_error():
    """Before anything is seeded, where the method is seen; else when it was."""
    torch.manual_seed(0)
    state, seed = torch.get_rng_state(), torch.default_generator.manual_seed
    hidden = in_turn(*[seed] * 9)
    with pytest.raises(fg.UnsupportedTransformError, match="knows seed, a method that was taken"):
        fg.jit(lambda x: (seed(1) and x) + torch.rand(8))(X)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(fg.UnsupportedTransformError, match="sets the state of the random generator by a method"):
        fg.jit(lambda x: (hidden()(1) and x) + torch.rand(8))(X)


@pytest.mark.parametrize("name", ["manual_seed", "state", "forked"])
def test_numbers_of_a_key_are_not_seeded_anew(name):
    with pytest.raises(fg.UnsupportedTransformError, match="of which its numbers are not made"):
        fg.jit(SEEDED[name], rng="philox")(X)


def test_around_what_draws_nothing_the_generator_may_be_put_back():
    def kept(x):
        y = F.dropout(x)
        with torch.random.fork_rng():
            z = x.sin()
        return y * z * torch.rand_like(x)

    c = fg.jit(kept)
    both(kept, c, X)
    assert "set_generator_state" not in str(c.program(X).joint.graph)
    fg.jit(kept, rng="philox")(X)


def test_a_draw_that_a_second_derivative_makes_again_has_what_it_reads():
    """Also where no gradient depends on it: it refuses what is no probability."""

    def f(x, p):
        torch.bernoulli(p)
        torch.multinomial(p, 1)
        return x.sin() * torch.rand(8)

    def twice(f):
        def call(x):
            x = x.clone().requires_grad_()
            y = f(x, torch.rand(64, 8))
            held = [torch.full((64, 8), -7.0) for _ in range(9)]  # over what is not kept
            (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            return torch.autograd.grad(g.sum(), x)[0], len(held)

        return call

    both(twice(f), twice(fg.jit(f, backend="aten")), X)


# ── generators of one's own ──────────────────────────────────────────────────────────────────────────────────────────

OWN = torch.Generator()


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = OWN

    def forward(self, x):
        return x * torch.bernoulli(x.sigmoid(), generator=self.generator) + torch.rand(8) * torch.rand(
            8, generator=self.generator
        )


def own_put_back(x):
    state = OWN.get_state()
    first = torch.rand(8, generator=OWN)
    OWN.set_state(state)
    return x * first + torch.rand(8, generator=OWN)


def makes_one(x):
    g = torch.Generator().manual_seed(4)
    return x.sin() * torch.rand(8, generator=g) * torch.bernoulli(x.sigmoid(), generator=g)


def makes_two(x):
    one, two = torch.Generator(), torch.Generator()
    two.set_state(one.manual_seed(3).get_state())
    return (
        x * torch.rand(8, generator=one)
        - x.sin() * torch.rand(8, generator=two)
        + torch.rand(8, generator=torch.Generator())
    )


OWN_DRAWS = {
    "of a module": Noisy(),
    "in place": lambda x: x * torch.empty(8).uniform_(generator=OWN) * torch.empty(8).normal_(generator=OWN),
    "seeded": lambda x: (OWN.manual_seed(3), x * torch.randn(8, generator=OWN))[1],
    "seeded alone": lambda x: (OWN.manual_seed(3), x * 2)[1],
    "put back": own_put_back,
    "made": makes_one,
    "two made": makes_two,
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("name", OWN_DRAWS)
def test_a_generator_of_ones_own(name, backend):
    """Each call draws from it, sets it and leaves it as eager PyTorch does; one that the function makes is another
    in each call."""

    def with_own(f):
        def call(x):
            OWN.manual_seed(6)
            torch.rand(2, generator=OWN)
            return f(x), torch.rand(3, generator=OWN), f(x), torch.rand(3, generator=OWN)

        return call

    f = OWN_DRAWS[name]
    c = fg.jit(f, backend=backend)
    for order in (0, 1, 2):
        both(with_own(derivatives(f, order)), with_own(derivatives(c, order)), X)
    transform = lambda f: torch.func.grad(lambda x: torch.func.grad(lambda x: (f(x) ** 3).sum())(x).sum())  # noqa: E731
    both(with_own(transform(f)), with_own(transform(c)), X)


def test_another_generator_is_another_program():
    module = Noisy()
    c = fg.jit(module, backend="aten")
    for misses in (1, 2):
        module.generator = torch.Generator()

        def call(f, x):
            module.generator.manual_seed(misses)
            return f(x)

        both(lambda x: call(module, x), lambda x: call(c, x), X)
        assert c.cache_info().misses == misses


def test_compiling_touches_no_generator_of_ones_own():
    OWN.manual_seed(1)
    state = OWN.get_state()
    for f in OWN_DRAWS.values():
        fg.jit(f, backend="aten").program(X)
    fg.jit(OWN_DRAWS["seeded"], backend="aten").memory(X)
    assert torch.equal(OWN.get_state(), state)


def test_generators_that_are_no_programs():
    def copies(x):
        torch.rand(3, generator=OWN)
        return x * torch.rand(8, generator=OWN.clone_state())

    OWN.manual_seed(0)
    torch.rand(3, generator=OWN)
    with pytest.raises(fg.UnsupportedTensorError, match=r"clone_state.*\n.*test_random.py"):
        fg.jit(copies)(X)
    with pytest.raises(fg.UnsupportedTensorError, match=r"other than the default one.*\n.*test_random.py"):
        fg.jit(Noisy(), rng="philox")(X)
    with pytest.raises(fg.UnsupportedTransformError, match="a number that it is told"):
        fg.jit(lambda x: (OWN.seed(), x * 2)[1])(X)
