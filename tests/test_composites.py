"""Functions that PyTorch composes of others in C++ for sizes that are numbers: one program serves all sizes."""

import operator

import pytest
import torch
from torch import func
from torch.nn import functional
from transformed import F64, data, jit, same

import funcgrad as fg

AT = torch.tensor([[0], [1], [1]])
W = data(4, 5, seed=5)


def sliding(x):
    return torch.stack(torch.gradient(x[:, :3].mT @ x))


def definite(x):
    return x @ x.mT + x.shape[0] * torch.eye(x.shape[0], dtype=F64)


COMPOSED = {
    "take_along_dim": lambda x: torch.take_along_dim(x, AT, 0) + x[1:2].take_along_dim(AT % 2, -1),
    "take_along_dim of all": lambda x: x.take_along_dim(AT),
    "cov": lambda x: x.cov(),
    "cov of columns": lambda x: torch.cov(x.mT, correction=0),
    "cov of one": lambda x: torch.cov(x[:, 0]),
    "cov of complex ones": lambda x: torch.cov(torch.complex(x, x.cos())).abs(),
    "corrcoef": lambda x: torch.corrcoef(x),
    "corrcoef of one": lambda x: x.exp().sum() * torch.corrcoef(x[0]).detach(),
    "corrcoef of complex ones": lambda x: torch.corrcoef(torch.complex(x, x.cos())).imag,
    "kron": lambda x: torch.kron(x, x[:2]),
    "kron of other ranks": lambda x: x.kron(x[:, 0]) + torch.kron(x[0, 0], x[:, 1]).sum(),
    "kron of transposed ones": lambda x: torch.kron(x.mT, x.mT),
    "gradient": lambda x: torch.gradient(x, dim=0)[0],
    "gradient along both": sliding,
    "gradient of steps": lambda x: sum(torch.gradient(x, spacing=[0.5, 2.0], dim=(1, -2))),
    "gradient of a step": lambda x: torch.gradient(x, spacing=3, dim=-1)[0],
    "multi_dot": lambda x: torch.linalg.multi_dot([x.mT, x, W]),
    "multi_dot of vectors": lambda x: torch.linalg.multi_dot([x[:, 0], x.sin(), x.mT, x, W[:, 0]]),
    "block_diag": lambda x: torch.block_diag(x, x[0], x[0, 0], torch.ones(2, 1)),
    "abs": lambda x: x.abs() * x,
    "l1_loss": lambda x: torch.nn.functional.l1_loss(x.sin(), x * x) * x,
    "glu": lambda x: torch.nn.functional.glu(torch.cat([x, x.cos()]), 0),
    "select_scatter": lambda x: x.select_scatter(x.sum(0), 0, 1) * x,
    "take": lambda x: x.take(AT) + x.sin().take(-1 - AT),
    "inv": lambda x: torch.linalg.inv(definite(x)),
    "cholesky": lambda x: torch.linalg.cholesky(definite(x)) @ x,
    "eigvalsh": lambda x: torch.linalg.eigvalsh(definite(x)),
    "cumprod": lambda x: x.cumprod(0),
    "cumprod with zeros": lambda x: (x * (torch.arange(x.shape[0]) % 2)[:, None]).cumprod(-2),
    "cumprod of complex ones": lambda x: torch.complex(x, x.cos()).cumprod(0).imag,
    "mean of complex ones": lambda x: torch.complex(x, x.cos()).mean(0).imag,
    "var of complex ones": lambda x: torch.complex(x, x.cos()).var(),
    "pairs of rows": lambda x: operator.sub(*x[torch.triu_indices(x.shape[0], x.shape[0], 1)]),
    "a lower triangle": lambda x: (x @ x.mT)[torch.tril_indices(x.shape[0], x.shape[0], -1).unbind()],
    "combinations": lambda x: torch.combinations(x[:, 0]).prod(1),
    "combinations with replacement": lambda x: torch.combinations(x[:, 1], with_replacement=True),
    "as many complex ones": lambda x: torch.add(torch.complex(x, x.cos()), x, alpha=x.shape[0]).abs(),
}  # fmt: skip


def total(f):
    return lambda x: f(x).sin().sum()


TRANSFORMS = {
    "value": lambda f: f,
    "hessian": lambda f: func.hessian(total(f)),
    "jacfwd": func.jacfwd,
    "vmap of grad": lambda f: lambda x: func.vmap(func.grad(total(f)))(torch.stack([x, x.exp()])),
}


@pytest.mark.sweep(6)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("name", COMPOSED)
def test_one_program_for_all_sizes(name, transform):
    eager = TRANSFORMS[transform](COMPOSED[name])
    compiled = jit(eager)
    for n in (4, 5, 7, 6):
        x = data(n, 4, seed=n)
        found, wanted = compiled(x), eager(x)
        same(found, wanted)
        assert found.stride() == wanted.stride()
    assert compiled.cache_info().misses == 2, compiled.explain_miss(data(9, 4))


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")  # wide ones and high ones are others
@pytest.mark.parametrize("make", [torch.triu_indices, torch.tril_indices])
def test_triangles_of_any_form(make):
    """Wide ones and high ones, and diagonals that are outside of them."""
    for k in (-6, -2, -1, 0, 1, 3, 7):
        compiled = jit(lambda x, k=k: make(x.shape[0], x.shape[1], k, dtype=torch.int32))
        for rows, columns in ((3, 5), (5, 3), (4, 4), (7, 2), (2, 6)):
            found, wanted = compiled(data(rows, columns)), make(rows, columns, k, dtype=torch.int32)
            assert torch.equal(found, wanted) and found.stride() == wanted.stride() and found.dtype == wanted.dtype


REFUSED = {
    "take_along_dim": lambda x: torch.take_along_dim(x, AT[0], 0),
    "take_along_dim of small ints": lambda x: torch.take_along_dim(x, AT.int(), 0),
    "take_along_dim out of range": lambda x: torch.take_along_dim(x, AT, 2),
    "kron": lambda x: torch.kron(x.mT, x),
    "cov": lambda x: x[None].cov(),
    "cov of bools": lambda x: (x > 0).cov(),
    "corrcoef": lambda x: torch.corrcoef(x[None]),
    "gradient": lambda x: torch.gradient(x[:, :1], dim=1)[0],
    "gradient twice": lambda x: torch.gradient(x, dim=(0, -2))[0],
    "gradient out of range": lambda x: torch.gradient(x, dim=2)[0],
    "gradient of two steps": lambda x: torch.gradient(x, spacing=[1.0, 2.0], dim=0)[0],
    "multi_dot of one": lambda x: torch.linalg.multi_dot([x]),
    "multi_dot": lambda x: torch.linalg.multi_dot([x, x, x]),
    "multi_dot of a batch": lambda x: torch.linalg.multi_dot([x[None], x.mT]),
    "block_diag": lambda x: torch.block_diag(x, x[None]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_pytorch_refuses(name):
    f = REFUSED[name]
    compiled = jit(lambda x: f(x) if x.shape[1] == 4 else x)
    for n in (3, 5):
        compiled(data(n, 2))
    with pytest.raises(Exception) as wanted:
        f(data(5, 4))
    with pytest.raises(type(wanted.value)):
        compiled(data(5, 4))


def test_too_few_observations_are_warned_about():
    compiled = jit(lambda x: torch.cov(x.mT, correction=2) * x.shape[0])
    for n in (4, 5, 6):
        same(compiled(data(n, 2)), torch.cov(data(n, 2).mT, correction=2) * n)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        found = compiled(data(2, 2))
    with pytest.warns(UserWarning, match="degrees of freedom"):
        torch.testing.assert_close(found, torch.cov(data(2, 2).mT, correction=2) * 2, equal_nan=True)


def test_the_order_of_products_is_that_of_the_fewest_multiplications():
    """Another order is another program."""
    f = lambda x: torch.linalg.multi_dot([W.mT, x.mT, x, W])  # noqa: E731
    compiled = jit(f)
    for n in (3, 5, 40, 41, 4, 50):
        same(compiled(data(n, 4)), f(data(n, 4)))
    assert compiled.cache_info().misses <= 3
    assert data(1).dtype == F64


@pytest.mark.parametrize("mode, rank", [("nearest", 2), ("linear", 1), ("bilinear", 2), ("trilinear", 3)])
@pytest.mark.parametrize("factor", [1.05, 2.2])
def test_sizes_that_factors_round_to(mode, rank, factor):
    """Where a result is as large as what is resized, or twice, PyTorch's C++ leaves the factor out of account; its
    formula, which runs where sizes are symbols, did not."""

    def loss(x):
        return functional.interpolate(x, scale_factor=factor, mode=mode)

    compiled, gradient = jit(loss), fg.grad_compiled(lambda x: loss(x).square().sum())
    for n in (3, 4, 5):
        x = data(2, 3, *[n] * rank)
        same(compiled(x), loss(x))
        same(gradient(x), func.grad(lambda x: loss(x).square().sum())(x))


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_labels_after_the_first_that_is_none(reduction):
    """They do not count; PyTorch's formula takes them for label 0."""

    def loss(x, labels):
        return functional.multilabel_margin_loss(x, labels, reduction=reduction)

    compiled, gradient = jit(loss), fg.grad_compiled(lambda x, labels: loss(x, labels).sum())
    for n in (3, 5, 4):
        x, labels = data(n, 6), torch.arange(6).repeat(n, 1).roll(1, 1)
        labels[1, 2:], labels[2, 1], labels[0, 0] = -1, -1, -1
        same(compiled(x, labels), loss(x, labels))
        same(gradient(x, labels), func.grad(lambda x: loss(x, labels).sum())(x))
    assert compiled.cache_info().misses == 2


@pytest.mark.parametrize("given", [(), (1.05,), (1.05, 1.05)])
def test_an_operator_that_resizes_is_given_some_of_its_factors(given):
    def resized(x):
        return torch.ops.aten.upsample_bilinear2d.default(x, x.shape[2:], False, *given)

    compiled = jit(resized)
    for n in (3, 4, 5):
        x = data(1, 2, n, n)
        same(compiled(x), resized(x))
