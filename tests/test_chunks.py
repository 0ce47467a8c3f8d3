"""vmap over so many samples at a time: a loop whose body is compiled once, and as many at a time as memory allows."""

import copy

import pytest
import torch
from torch import func

import funcgrad as fg

P = {"w": torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), "b": torch.ones(3)}
X, Y = (
    torch.randn(103, 6, generator=torch.Generator().manual_seed(1)),
    torch.randn(3, 103, generator=torch.Generator().manual_seed(2)),
)


def loss(p, x, y):
    return (torch.tanh(x @ p["w"] + p["b"]) - y).square().sum()


def large(x):
    # not inv: after torch.set_num_threads, which other tests call, batches of matrices are factored wrongly by MKL's LU
    return torch.linalg.cholesky(x[:, None] * x + torch.eye(len(x))).sum(0)


@pytest.mark.parametrize("out_dims", [0, 1, {"w": 2, "b": 0}])
@pytest.mark.parametrize("size", [1, 7, 10, 25, 103, 500, "auto"])
def test_chunks_are_as_the_whole(size, out_dims):
    expected = func.vmap(func.grad(loss), (None, 0, 1), out_dims)(P, X, Y)
    found = fg.vmap_compiled(func.grad(loss), (None, 0, 1), out_dims, chunk_size=size)(P, X, Y)
    torch.testing.assert_close(found, expected)


def test_a_body_is_compiled_once():
    nodes = {}
    for rows in (100, 1000):
        c = fg.vmap_compiled(func.grad(loss), (None, 0, 0), chunk_size=10)
        nodes[rows] = len(c.program(P, torch.randn(rows, 6), torch.randn(rows, 3)).joint.graph.fx.nodes)
    assert nodes[100] == nodes[1000]


@pytest.mark.parametrize("size", [10, "auto"])
def test_it_is_differentiated_and_batched(size):
    def total(p):
        return sum(
            v.square().sum() for v in fg.vmap_compiled(func.grad(loss), (None, 0, 1), chunk_size=size)(p, X, Y).values()
        )

    def expected(p):
        return sum(v.square().sum() for v in func.vmap(func.grad(loss), (None, 0, 1))(p, X, Y).values())

    torch.testing.assert_close(func.grad(total)(P), func.grad(expected)(P), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fg.grad_compiled(total)(P), func.grad(expected)(P), rtol=1e-4, atol=1e-4)
    stacked = fg.tree_map(lambda v: torch.stack([v, 2 * v]), P)
    torch.testing.assert_close(func.vmap(total)(stacked), func.vmap(expected)(stacked), rtol=1e-4, atol=1e-3)


def test_draws_are_those_of_torch():
    def f(x):
        return x * torch.rand_like(x)

    torch.manual_seed(0)
    expected = func.vmap(f, randomness="different", chunk_size=10)(X)
    torch.manual_seed(0)
    torch.testing.assert_close(fg.vmap_compiled(f, randomness="different", chunk_size=10)(X), expected)


@pytest.mark.parametrize("budget", [20_000_000, 3_000_000])
def test_as_many_as_memory_allows(budget):
    x = torch.randn(64, 200, generator=torch.Generator().manual_seed(0))
    whole = fg.vmap_compiled(large)
    assert whole.memory(x).measured_peak > budget
    c = fg.vmap_compiled(large, chunk_size="auto", memory_budget=budget)
    torch.testing.assert_close(c(x), func.vmap(large)(x), rtol=1e-3, atol=1e-3)
    use = c.memory(x)
    assert use.measured_peak <= budget
    assert use.predicted_peak >= 0.9 * use.measured_peak
    assert c.cache_info().misses == 1
    torch.testing.assert_close(copy.deepcopy(c)(x), c(x))


def test_one_sample_that_does_not_fit_is_the_least():
    c = fg.vmap_compiled(large, chunk_size="auto", memory_budget=100_000)
    with pytest.raises(fg.PartitionError):
        c(torch.randn(8, 200))


W = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))


def of_two(x, w):
    return {"y": torch.tanh(x @ w), "z": (x.sum(), x * 2)}, {"norm": w.norm()}


@pytest.mark.parametrize("chunk_size", [1, 2, 5, 30])
@pytest.mark.parametrize("argnums", [0, (0, 1), (1,)])
def test_tangents_in_chunks(argnums, chunk_size):
    x = torch.randn(2, 3, generator=torch.Generator().manual_seed(0))
    expected = func.jacfwd(of_two, argnums, has_aux=True)(x, W)
    found = fg.jacfwd_compiled(of_two, argnums, has_aux=True, chunk_size=chunk_size)(x, W)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_tangents_in_chunks_take_less_memory():
    x = torch.randn(64, generator=torch.Generator().manual_seed(0))
    large_weight = torch.eye(64)

    def f(x):
        return torch.tanh(large_weight @ (x[:, None] * large_weight)).sum(0)[:4]

    whole, chunked = fg.jacfwd_compiled(f), fg.jacfwd_compiled(f, chunk_size=4)
    torch.testing.assert_close(chunked(x), whole(x), rtol=1e-4, atol=1e-4)
    assert chunked.memory(x).measured_peak < whole.memory(x).measured_peak / 2
