"""Sizes that values decide (``x[mask]``, ``nonzero``, ``x[:n.item()]``): symbols from their second value on, one
program for all."""

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from torch import nn

import funcgrad as fg

BACKENDS = pytest.mark.parametrize("backend", ["c", "aten"])
torch.manual_seed(0)
LINEAR = nn.Linear(4, 3)


def masked_sum(x):
    return x[x > 0].exp().sum()


def masked_mean_or_none(x):
    v = x[(x > 0) & (x < 1)]
    return v.log().mean() if v.numel() else x.sum()


def rows(x):
    k = x[:, 0] > 0
    return LINEAR(x[k]).tanh().sum() + x[~k].sum()


def labelled(x):
    labels = x.argmax(1).where(x[:, 0] > -0.5, -100)
    return F.cross_entropy(x[labels != -100], labels[labels != -100])


def edges(x):
    i, j = (x @ x.T > 0.3).nonzero(as_tuple=True)
    return torch.zeros(x.shape[0]).index_add(0, i, (x[i] - x[j]).norm(dim=1) ** 2).sum()


def unique(x):
    u, inverse, counts = torch.unique((x * 3).round().detach(), return_inverse=True, return_counts=True)
    return (torch.zeros(u.shape[0]).scatter_add(0, inverse.flatten(), x.flatten()) / counts).pow(2).sum()


def bins(x):
    n = torch.bincount((x.detach().abs() * 3).long().flatten())
    return (n * torch.arange(len(n))).sum() * x.sum()


def repeated(x):
    return (x.repeat_interleave((x[:, 0].detach().abs() * 3).long(), 0) ** 2).mean()


def mask_of_a_mask(x):
    v = x[x > 0]
    w = v[v > 0.5]
    return (v.sum() + w.pow(3).sum()) / (w.numel() + 1)


def written(x):
    y = x * 1
    y[y > 0] = y[y > 0].exp()
    y[y < -1] = 0.0
    return (y * y).sum()


def scattered(x):
    return x.masked_scatter(x > 0, x[x > 0].flip(0)).pow(2).sum()


def concatenated(x):
    return torch.cat([x[x > 0], x[x <= 0] * 2]).cumsum(0).sum()


def ranked(x):
    return (x[x > 0].sort().values * torch.arange((x > 0).sum())).sum()


def products(x):
    v = x[x[:, 0] > 0]
    return (v @ v.T).softmax(-1).sum() + F.scaled_dot_product_attention(v[None], v[None], v[None]).sum()


def dropped(x):
    return F.dropout(x[x > 0], 0.5, True).sum()


def a_number_as_a_size(x):
    n = (x[:, 0] > 0).sum().item()
    return x[:n].sum() + torch.ones(n).sum() * x.mean()


def a_tensor_as_a_bound(x):
    return x[: (x[:, 0] > 0).sum()].exp().sum()


def a_number_that_is_computed(x):
    n = (x[:, 0] > 0).sum().item()
    return x[n - 1 :].sum() * n


FUNCTIONS = {
    masked_sum: 7, masked_mean_or_none: 7, rows: 10, labelled: 6, edges: 4, unique: 4, bins: 4, repeated: 4,
    mask_of_a_mask: 7, written: 7,
    scattered: 7, concatenated: 11, ranked: 7, products: 7, dropped: 7, a_number_as_a_size: 8, a_tensor_as_a_bound: 8,
    a_number_that_is_computed: 9,
}  # fmt: skip
"""What may be compiled over all calls below: the static sizes 0 and 1, the first size, and where another size of the
argument is met."""


def _arguments():
    """Arguments of which few, some, or all elements are positive."""
    for n in range(24):
        generator = torch.Generator().manual_seed(n)
        yield torch.randn(8 if n < 18 else 9, 4, generator=generator) + (n % 7 - 3) * 0.8


def _result(f, x, seed, is_pair):
    torch.manual_seed(seed)
    leaf = x.clone().requires_grad_()
    try:
        if is_pair:
            return f(leaf)
        out = f(leaf)
    except (RuntimeError, IndexError) as error:
        assert not isinstance(error, fg.FuncgradError)
        return str(error)
    return out.detach(), torch.autograd.grad(out, leaf)[0]


@pytest.mark.sweep(6)
@pytest.mark.filterwarnings("ignore:Mean of empty slice", "error::funcgrad.ReadsWarning")
@pytest.mark.parametrize("transform", [fg.jit, fg.value_and_grad_compiled])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
@BACKENDS
def test_one_program_for_all_sizes(f, transform, backend):
    compiled = transform(f, backend=backend)
    for n, x in enumerate(_arguments()):
        assert_rounded(_result(compiled, x, n, transform is not fg.jit), _result(f, x, n, False))
    assert compiled.cache_info().misses <= FUNCTIONS[f]


def test_the_text_says_where_a_size_is_read_and_what_is_checked_of_it():
    f = lambda x: x[x > 0].sum() * 2  # noqa: E731
    compiled = fg.jit(f, backend="aten")
    for n in (3, 5, 7):
        compiled(torch.arange(10.0) - n)
    text = str(compiled.program(torch.arange(10.0) - 4).sources[0])
    assert ".shape[0]" in text and "on_path(" in text
    assert "any int" in str(compiled.explain(torch.arange(10.0) - 4))


def test_a_comparison_of_a_size_is_checked_where_it_is_known():
    f = lambda x: x[x > 0].sum() * (2 if x[x > 0].shape[0] > 4 else 3)  # noqa: E731
    compiled = fg.jit(f, backend="aten")
    for n in (8, 7, 2, 3, 6, 5, 4, 8, 2):
        x = (torch.arange(10.0) < n) * 2.0 - 1
        assert compiled(x) == f(x)
    assert compiled.cache_info().misses == 3  # the first size, and two for all others


@pytest.mark.parametrize("given", [{"dynamic": False}, {"memory_budget": "1GiB"}, {"numerics": "eager"}])
def test_where_sizes_are_known_each_is_a_path(given):
    compiled = fg.value_and_grad_compiled(masked_sum, backend="aten", **given)
    for n in (3, 5, 7):
        x = (torch.arange(10.0) < n) * 2.0 - 1
        assert_rounded(compiled(x), _result(masked_sum, x, 0, False))
    assert compiled.cache_info().misses == 3


def test_levels_of_torch_func_have_known_sizes():
    compiled = fg.jit(masked_sum, backend="aten")
    for n in (3, 5, 7, 5):
        x = (torch.arange(10.0) < n) * 2.0 - 1
        assert_rounded(torch.func.grad(compiled)(x), torch.func.grad(masked_sum)(x))


@BACKENDS
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_of_sizes_that_are_equal_and_a_number_each_is_checked_where_it_is_read(backend):
    """The first of two that are found equal was taken for the number, which was checked with the second alone."""

    def f(x):
        return (torch.argwhere(x > 0).sum() + x).sin()

    compiled = fg.jit(f, backend=backend)
    for n in (2, 3, 2, 4, 3):
        x = torch.where(torch.arange(6) < n, 0.5, -0.5)
        x = torch.stack([x, x.flip(0)])
        assert_rounded(torch.func.vmap(compiled)(x), torch.func.vmap(f)(x))


@BACKENDS
def test_numbers_that_are_computed_of_sizes_are_no_constants(backend):
    """A result was that of the size at which the program was compiled."""
    kept = []

    def f(x):
        v = x[x > 0]
        kept.append(v.shape[0] * 3)
        return v.shape[0] * 2, v.sum(), [x.shape], len(v)

    compiled = fg.jit(f, backend=backend)
    for size in (9, 10, 11, 12):
        for n in (3, 5, 7):
            x = (torch.arange(float(size)) < n) * 2.0 - 1
            found, there = compiled(x), kept.pop()
            expected, there_eager = f(x), kept.pop()
            assert found == expected and there == there_eager
            assert [type(v) for v in found] == [type(v) for v in expected] and type(there) is int
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled(torch.ones(6))[0] == 12


@BACKENDS
def test_what_is_asked_of_sizes_is_checked_when_both_are_known(backend):
    """The first number that is read is a size after the second: what was asked of both was checked with the second."""

    def f(x):
        n, k = (x > 0).sum().item(), (x > 1).sum().item()
        first, own = torch.ones(k), torch.ones(n)
        return (first.sum() + own[:k].sum() + (x[:n] * own).sum()) * n

    compiled = fg.jit(f, backend=backend)
    for n, k in ((4, 2), (5, 3), (6, 3), (7, 2), (6, 6), (3, 3)):
        x = torch.cat([torch.full((k,), 2.0), torch.full((n - k,), 0.5), -torch.ones(8 - n)])
        assert_rounded(compiled(x), f(x))
    assert compiled.cache_info().misses == 2


PARTS = torch.tensor(2)


@BACKENDS
def test_where_to_split_is_read_of_arguments_and_of_captured_tensors(backend):
    x = torch.arange(10.0)
    of_captured = fg.jit(lambda x: torch.tensor_split(x, PARTS)[1] * 2, backend=backend)
    assert torch.equal(of_captured(x), x[5:] * 2)
    of_argument = fg.jit(lambda x, at: [part.sum() for part in x.tensor_split(at)], backend=backend)
    for at in (2, 3, [1, 4], 3, [2, 4]):
        assert_rounded(of_argument(x, torch.tensor(at)), [part.sum() for part in x.tensor_split(torch.tensor(at))])
    with pytest.raises((RuntimeError, ValueError), match=r"int64|long"):
        of_argument(x, torch.tensor(2.0))


@BACKENDS
@pytest.mark.filterwarnings("error")
def test_memory_like_a_tensor_of_any_size_makes_no_noise(backend):
    """torch.fx warned of the sizes that it was made with."""

    def f(x):
        out = torch.empty_like(x)
        positive = x[:, 0] > 0
        out[positive] = x[positive].exp()
        out[~positive] = x[~positive] * 2
        return F.dropout(out, 0.5, True).sum()

    compiled = fg.value_and_grad_compiled(f, backend=backend)
    for seed, n in enumerate((8, 9, 10)):
        x = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed))
        assert_rounded(_result(compiled, x, seed, True), _result(f, x, seed, False))


def _put(x, n):
    y = x.clone()
    y[n] += 1
    y[..., n] = y[..., n].exp()
    return y


@pytest.mark.parametrize(
    "function",
    [
        lambda x, n: x[n] * 2,
        lambda x, n: x[:, n].sin(),
        lambda x, n: x[None, n, n] * x,
        lambda x, n: x[n, torch.tensor([0, 2])].sum() * x,
        lambda x, n: torch.stack([x[i] for i in torch.stack([n, n + 1])]),
        lambda x, n: x[n.int()] * x[n:].sum(),
        lambda x, n: x[n + 3] * x[n].detach(),
        _put,
    ],
)
def test_a_number_in_a_tensor_is_a_symbol_as_an_index(function):
    """PyTorch's indexing makes a number of it, where no mode hears of it: each index was a path."""
    compiled, x = fg.jit(function, backend="aten"), torch.randn(14, 14)
    for n in (3, 5, 7, 4, 6, 9):
        a, b = (x.clone().requires_grad_() for _ in range(2))
        found, expected = compiled(a, torch.tensor(n)), function(b, torch.tensor(n))
        assert_rounded(found, expected)
        assert_rounded(torch.autograd.grad(found.sum(), a), torch.autograd.grad(expected.sum(), b))
    assert compiled.cache_info().misses == 2


def _by_number(x):
    z = x[x > 0]
    return z.sin().sum() * (10 if z.numel() > 3 else 1) if len(z) % 2 else (z.cos() * len(z)).sum()


def _one_by_one(x):
    return (x + sum(v for v in x[x > 0.037])).sin().sum()


def _root_of_number(x):
    z = x[x > 0]
    return x[: int(math.sqrt(z.numel()))].sin().sum() * z.sum()


def _twice(of):
    return lambda x: torch.func.grad(lambda own: torch.func.grad(of)(own).sin().sum())(x)


def _once_more(of):
    def run(x):
        x = x.clone().requires_grad_()
        (first,) = torch.autograd.grad(of(x), x, create_graph=True)
        return torch.autograd.grad(first.sin().sum(), x)[0]

    return run


@pytest.mark.parametrize("function", [_by_number, _one_by_one, _root_of_number])
@pytest.mark.parametrize(
    "transform",
    [torch.func.grad, _twice, _once_more, lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1]],
    ids=["grad", "twice", "create_graph", "jvp"],
)
def test_what_is_decided_by_sizes_holds_in_derivatives(function, transform):
    """Their programs run the graph of the function, in which a size is a symbol: one that went another way there gave
    the numbers of the former, or raised errors of the inside."""
    compiled = transform(fg.jit(function, backend="aten"))
    for n in (4, 5, 3, 2, 6, 1, 4):
        x = torch.arange(1.0, 7, dtype=torch.float64).where(torch.arange(6) < n, -1)
        assert_rounded(compiled(x.clone()), transform(function)(x))


def test_a_number_of_a_length_is_a_size():
    """What Python read is a length there, and no tensor whose length it is."""
    compiled = fg.jit(_root_of_number)
    for n in (4, 5, 3, 2, 6, 1, 4):
        x = torch.arange(1.0, 7).where(torch.arange(6) < n, -1)
        assert_rounded(compiled(x), _root_of_number(x))
