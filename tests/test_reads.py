"""Values of tensors that Python reads: one program for each path through a function, each of which says whether it
is for a call."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import func, nn

import funcgrad as fg

BACKENDS = pytest.mark.parametrize("backend", ["c", "aten"])
WEIGHT = torch.tensor([1.0, 2.0])
STEPS = (1.0, -1.0, 2.0, -0.5, 1.0, -1.0)


def run(f, x, seed):
    """The result of a function, or what it raises; the gradient, what became of its argument, and of the generator."""
    leaf = x.clone().requires_grad_()
    own = leaf * 1.0
    torch.manual_seed(seed)
    try:
        out = f(own)
    except (ValueError, IndexError) as error:
        return type(error), str(error)
    tensors = [
        v for v in (out if isinstance(out, tuple) else (out,)) if isinstance(v, torch.Tensor) and v.requires_grad
    ]
    if tensors:
        torch.autograd.backward([t.sum() for t in tensors])
    return out, leaf.grad, own.detach().clone(), torch.rand(1)


def branches(x):
    return x.sin() if x.sum() > 0 else x.cos()


def several_branches(x):
    y = x * 2
    if y.max() > 1.5:
        y = y.exp().clamp(max=50)
    if bool((y > 0).all()):
        y = y + 1
    elif y.min().item() < -2:
        y = y.abs()
    return y


def a_loop(x):
    n = 0
    while x.norm() > 1:
        x, n = x / 2, n + 1
    return x * n


def a_mask(x):
    return x[x > 0]


def writes_by_a_mask(x):
    x[x > 0] = x[x > 0] * 3 + 1
    return x.sum()


def masked_select(x):
    return x.masked_select(x > 0).exp()


def a_size(x):
    return x * x.nonzero().shape[0] + (x > 0).nonzero().sum()


def unique(x):
    values, inverse, counts = torch.unique((x > 0).long(), return_inverse=True, return_counts=True)
    return x * values.float().sum(), inverse, counts


def repeats(x):
    return x.repeat_interleave((x[0] > 0).long() + 1, dim=1)


def bincount(x):
    return x * torch.bincount((x > 0).long().flatten()).float().sum()


def equality(x):
    return x * 2 if torch.equal(x, x.abs()) else x * 3 if torch.allclose(x, x.detach().round()) else x


def membership(x):
    return x * 2 if 1.0 in x else x * 3


def a_list(x):
    return x * sum(1 for row in x.detach().tolist() for v in row if v > 0)


def a_number_in_a_text(x):
    return x * len(f"{x.detach().sum():.1f}")


def data(x):
    return x * torch.tensor([float(x.detach()[0, 0] > 0), 1.0, 2.0])


def asserts(x):
    if not (x > -3).all():
        raise ValueError("an element is too small")
    return x * 2


def draws_before(x):
    x = x + torch.randn(2, 3)
    if x.sum() > 0:
        x = F.dropout(x, 0.5)
    return x * torch.rand(2, 3)


def draws_until(x):
    n = 0
    while torch.rand(()) < 0.6:
        n += 1
    return x * n


def writes_before(x):
    x.add_(1)
    if x.sum() > 0:
        x.mul_(2)
    return x.sum()


def reads_what_it_wrote(x):
    total = torch.zeros(())
    for row in x:
        total += row.sum()
        if total > 1:
            break
    return total


def captured(x):
    return x * 2 if WEIGHT.sum() > 2 else x


def slices(x):
    n = (x > 0).sum()
    return x.flatten()[: n + 1].sum() * x.flatten()[n - 1]


def an_index_in_range(x):
    i = (x > 0).sum()
    return x.flatten()[i] if i < 6 else x.sum()


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 3 if x.sum() > 0 else g * 5


class ReadsItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if x.sum() > 0:
            g = g * 3
        return g / g.norm() * x if g.norm() > 1 else g


FUNCTIONS = [
    branches, several_branches, a_loop, a_mask, writes_by_a_mask, masked_select, a_size, unique, repeats, bincount,
    equality, membership,
    a_list, a_number_in_a_text, data, asserts, draws_before, draws_until, writes_before, reads_what_it_wrote, captured,
    slices,
    an_index_in_range,
    lambda x: ReadsInBackward.apply(x.sin()), lambda x: ReadsItsGradient.apply(x.sin()),
]  # fmt: skip
NAMES = [*(f.__name__ for f in FUNCTIONS[:-2]), "saved for backward", "a cotangent"]


def inputs():
    base = torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]])
    return [base * step + step for step in STEPS] + [torch.ones(2, 3), torch.full((2, 3), -4.0)]


@pytest.mark.sweep(2)
@BACKENDS
@pytest.mark.parametrize("f", FUNCTIONS, ids=NAMES)
def test_as_in_eager_pytorch(f, backend):
    compiled = fg.jit(f, backend=backend)
    for seed, x in enumerate(inputs() * 2):
        expected, found = run(f, x, seed), run(compiled, x, seed)
        if isinstance(expected[0], type):
            assert found == expected
        else:
            assert_rounded(found, expected)
    before = compiled.cache_info()
    for seed, x in enumerate(inputs()):
        run(compiled, x, seed)
    assert compiled.cache_info().misses == before.misses  # all paths are known


@pytest.mark.parametrize("f", [f for f in FUNCTIONS if f not in (asserts, unique, writes_by_a_mask, writes_before)])
def test_gradients_in_one_program(f):
    loss = lambda x: (f(x) * 1.5).sum()  # noqa: E731
    compiled = fg.value_and_grad_compiled(loss)
    for seed, x in enumerate(inputs()):
        torch.manual_seed(seed)
        found = compiled(x)
        torch.manual_seed(seed)
        leaf = x.clone().requires_grad_()
        value = loss(leaf)
        value.backward() if value.requires_grad else None
        assert_rounded(found, (value.detach(), torch.zeros(2, 3) if leaf.grad is None else leaf.grad))


def loss_of(x):
    return (x * x).sum() if x.sum() > 0 else (x**3).sum()


TRANSFORMS = {
    "grad": func.grad, "jacrev": func.jacrev, "jacfwd": func.jacfwd, "hessian": func.hessian,
    "vjp": lambda f: lambda x: func.vjp(f, x)[1](torch.ones(()))[0],
    "jvp": lambda f: lambda x: func.jvp(f, (x,), (x,))[1],
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_and_over_transforms(name):
    transform = TRANSFORMS[name]
    over, under = fg.jit(transform(loss_of)), transform(fg.jit(loss_of))
    for x in inputs():
        expected = transform(loss_of)(x)
        assert_rounded(over(x), expected)
        assert_rounded(under(x), expected)


def test_under_vmap():
    """What all samples share is read; what is another value in each of them is refused, as by torch.func."""
    shared = lambda x, s: x * 2 if s.sum() > 0 else x  # noqa: E731
    for compiled in (func.vmap(fg.jit(shared), (0, None)), fg.jit(func.vmap(shared, (0, None)))):
        for s in (1.0, -1.0, 2.0):
            args = torch.ones(2, 3), torch.tensor([s])
            assert torch.equal(compiled(*args), func.vmap(shared, (0, None))(*args))
    for compiled in (func.vmap(fg.jit(branches)), fg.jit(func.vmap(branches)), func.vmap(branches)):
        with pytest.raises(RuntimeError, match="data-dependent control flow"):
            compiled(torch.ones(2, 3))


def test_second_derivatives():
    compiled = fg.jit(loss_of)
    for x in inputs():
        found = []
        for f in (compiled, loss_of):
            leaf = x.clone().requires_grad_()
            (first,) = torch.autograd.grad(f(leaf), leaf, create_graph=True)
            found.append(torch.autograd.grad(first.sum(), leaf)[0])
        assert_rounded(*found)


def test_a_path_that_is_missed_leaves_no_trace():
    """Version counters, ``requires_grad`` and the generator are as if only the right program had run."""

    def f(x, flag):
        x.requires_grad_()
        noise = torch.randn(3)
        y = (x * 2).sum() if (noise.sum() + flag > 0).item() else (x * noise).sum()
        y.backward()
        return y.detach()

    compiled = fg.jit(f)
    for seed, flag in enumerate((10.0, -10.0, 10.0, -10.0, 0.0, 0.0)):
        found = []
        for g in (f, compiled):
            x = torch.ones(3)
            torch.manual_seed(seed)
            found.append((g(x, torch.tensor(flag)), x.grad, x.requires_grad, x._version, torch.rand(2)))
        assert_rounded(*found)


def test_many_paths_are_too_many():
    f = lambda x: x * complex(x.max()).real  # noqa: E731
    compiled = fg.jit(f)
    with pytest.warns(fg.ReadsWarning, match=r"took more than 16 paths.*test_reads\.py") as caught:
        for i in range(20):
            x = torch.randn(4)
            assert_rounded(compiled(x), f(x))
    assert [w.category for w in caught] == [fg.RecompileWarning, fg.ReadsWarning]  # at the fourth, at the last
    assert compiled.cache_info().currsize == 16


@BACKENDS
@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x.sum().item(),
        lambda x: (x * 2, x.sum().item()),
        lambda x: x * x.max().item() + x.min().item(),
        lambda x: x + x.sum().item() ** 2 / (1 + abs(x.max().item())),
        lambda x: x * (x > 0).sum().item(),
        lambda x: torch.full((3,), x.sum().item()) + x[0],
        lambda x: x.clamp(max=x.mean().item()),
    ],
)
def test_numbers_that_are_read_are_symbols_at_their_second_value(f, backend):
    compiled, own = fg.jit(f, backend=backend), torch.Generator().manual_seed(5)
    for _ in range(6):
        x = torch.rand(4, generator=own)
        leaf, given = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected, found = f(leaf), compiled(given)
        assert_rounded(found, expected)
        pair = [out[0] if isinstance(out, tuple) else out for out in (expected, found)]
        if pair[0].requires_grad:
            pair[0].sum().backward()
            pair[1].sum().backward()
            assert_rounded(given.grad, leaf.grad)
    assert compiled.cache_info().misses <= 3


def test_what_a_symbol_decides_is_checked():
    f = lambda x: x * 0.5 if 0.2 < x.max().item() < 0.9 else x * x.max().item()  # noqa: E731
    compiled = fg.jit(f)
    for v in (0.1, 0.5, 0.95, 0.3, 0.05, 0.8, 0.0, -0.0, 1.5, float("nan"), float("inf")):
        x = torch.tensor([v, -1.0]) if v >= 0 or v != v else torch.tensor([v])
        assert_rounded(compiled(x), f(x))
    assert compiled.cache_info().misses <= 8


def test_what_is_known_by_rounding_alone():
    """Kernels round otherwise than the operators a path is found with: the program for it says so, and the next is
    for what it read."""
    f = lambda x: (x.sum(), 1 if x.sum().item() == 0.1 else 2)  # noqa: E731
    x = torch.rand(1000)
    total, branch = fg.jit(f)(x)
    assert branch == 2
    assert_rounded(total, x.sum())


def test_nothing_runs_again_on_a_hit():
    ran = []

    def f(x):
        ran.append(None)
        return x.sin() if x.sum() > 0 else x.cos()

    compiled = fg.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.UnwatchedStateWarning)
        for x in inputs():
            compiled(x)
    seen = len(ran)
    for _ in range(10):
        compiled(torch.ones(2, 3))
        compiled(-torch.ones(2, 3))
    assert len(ran) - seen == 20  # what it writes to Python state happens in each call; else it does not run
    assert compiled.cache_info().misses == 2


def test_state_and_buffers():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen.add_(1)
            if self.seen > 3:
                self.n += 1
                return x * self.n
            return x

    eager, own = Counts(), Counts()
    compiled = fg.jit(own)
    for _ in range(8):
        assert torch.equal(compiled(torch.ones(2)), eager(torch.ones(2)))
        assert (own.n, own.seen) == (eager.n, eager.seen)


def test_distributions_check_their_arguments():
    def f(mean, std):
        d = torch.distributions.Normal(mean, std, validate_args=True)
        return d.log_prob(d.rsample()).sum()

    compiled = fg.grad_compiled(f)
    for seed in range(3):
        mean, std = torch.randn(3), torch.rand(3) + 0.1
        torch.manual_seed(seed)
        found = compiled(mean, std)
        torch.manual_seed(seed)
        assert_rounded(found, func.grad(f)(mean, std))
    assert compiled.cache_info().misses == 1
    with pytest.raises(ValueError, match="Expected parameter scale"):
        compiled(torch.zeros(3), -torch.ones(3))


def test_anomaly_mode():
    f = lambda x: (x.sqrt() * x).sum()  # noqa: E731
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    with warnings.catch_warnings(), torch.autograd.detect_anomaly(check_nan=True):
        warnings.simplefilter("ignore")
        fg.jit(f)(x).backward()
        assert_rounded(fg.grad_compiled(f)(x.detach()), x.grad)
        with pytest.raises(RuntimeError, match="returned nan values"):
            fg.jit(lambda x: (x * 0).sqrt().sum())(torch.zeros(2, requires_grad=True)).backward()


def test_an_array_is_refused_by_name():
    with pytest.raises(fg.DataDependentControlFlowError, match="NumPy"):
        fg.jit(lambda x: x * np.max(x.detach().numpy()))(torch.ones(3))


class Schedule(nn.Module):
    """What a sampler computes with NumPy of a table that it keeps."""

    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.tensor([0.9, 0.5, 0.2, 0.1]))
        self.plain = self.table.clone()

    def forward(self, x):
        sigmas = np.array(((1 - self.table) / self.table) ** 0.5)
        between = np.interp([0.5, 1.5], np.arange(4), sigmas).astype(np.float32)
        return x * torch.from_numpy(between) + np.asarray(self.plain).sum() * self.plain.numpy()[-1]


@BACKENDS
def test_arrays_of_what_a_function_keeps(backend):
    schedule = Schedule()
    compiled = fg.jit(schedule, backend=backend)
    for table in (None, None, [0.8, 0.5, 0.2, 0.1], [0.9, 0.5, 0.2, 0.1]):
        if table is not None:
            schedule.table.copy_(torch.tensor(table))
        x = torch.randn(2, requires_grad=True)
        out, expected = compiled(x), schedule(x)
        assert_rounded(out, expected)
        assert_rounded(*(torch.autograd.grad(y.sum(), x)[0] for y in (out, expected)))
    assert compiled.cache_info().misses == 2
    schedule.plain[3] = 0.7  # memory that an array had shared
    assert_rounded(compiled(x), schedule(x))


def test_arrays_that_differ_in_each_call_are_refused_by_name():
    layer, table = nn.Linear(2, 2), torch.ones(3)
    for f in (
        lambda x: x * layer.weight.detach().numpy().sum(),
        lambda x: x * (table + torch.rand(3)).numpy().sum(),
        lambda x: x * (table * x.sum().detach()).numpy().sum(),
    ):
        with pytest.raises(fg.DataDependentControlFlowError, match="NumPy"):
            fg.jit(f)(torch.ones(2))


@pytest.mark.parametrize("look", [lambda t: t.numpy(), lambda t: np.asarray(t)[1:], lambda t: t.view(3, 1).numpy().T])
@pytest.mark.parametrize("make", [lambda: torch.zeros(3), lambda: WEIGHT.repeat(2)[1:]], ids=["constant", "kept"])
def test_a_write_below_an_array(make, look):
    """The array would go on with what the tensor held; a copy, or an array that is gone, does."""

    def seen(x):
        t = make()
        array = look(t)
        t[1:].add_(1)
        return x * t * float(array.sum())

    def copied(x):
        t = make()
        array = look(t).copy()
        t[1:].add_(1)
        return x * t * float(array.sum() + look(t).sum())

    with pytest.raises(fg.MutationError, match="NumPy"):
        fg.jit(seen)(torch.ones(3))
    assert_rounded(fg.jit(copied)(torch.ones(3)), copied(torch.ones(3)))


def test_what_a_body_reads_is_refused_by_name():
    body = lambda carry, x: (carry + x if x.sum() > 0 else carry, x)  # noqa: E731
    with pytest.raises(fg.FuncgradError):
        fg.jit(lambda x: torch._higher_order_ops.scan(body, torch.zeros(3), x))(torch.ones(4, 3))


@settings(max_examples=8)
@given(st.lists(st.sampled_from(range(6)), min_size=1, max_size=5), st.lists(st.floats(-2, 2), min_size=3, max_size=6))
def test_random_programs(choices, values):
    """Branches, loops, masks and numbers one after the other."""
    steps = [
        lambda x: x.sin() if x.sum() > 0 else x.cos(),
        lambda x: x.masked_fill(x > 0.5, 0.25) if (x > 0.5).any() else x + 0.1,
        lambda x: x * len(x[x > 0]),
        lambda x: torch.cat([x[x > 0], x[x <= 0]]),
        lambda x: x + round(x.sum().item()),
        lambda x: x / 2 if x.abs().max() > 1 else x.add_(1),
    ]

    def f(x):
        x = x * 1.0
        for i in choices:
            x = steps[i](x)
        return x.sum()

    compiled = fg.jit(f)
    for value in values:
        x = torch.tensor([value, -0.3, value / 2, 0.8])
        leaf, own = x.clone().requires_grad_(), x.clone().requires_grad_()
        expected, found = f(leaf), compiled(own)
        assert_rounded(found.detach(), expected.detach())
        expected.backward()
        found.backward()
        assert_rounded(own.grad, leaf.grad)


@pytest.mark.parametrize("f", [lambda x, n: x[n] * 2, lambda x, n: x[x.argmax()] * n, lambda x, n: x[None, n].sin()])
def test_an_index_that_is_mapped_is_no_number(f):
    x, n = torch.randn(2, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 2])
    expected = torch.vmap(f)(x, n)
    for mapped in (fg.jit(torch.vmap(f)), fg.vmap_compiled(f), torch.vmap(fg.jit(f))):
        torch.testing.assert_close(mapped(x, n), expected)
