"""What is computed twice is computed once, where nobody can tell."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from torch.func import grad, hessian, vmap

import funcgrad as fg

aten = torch.ops.aten
X = torch.linspace(-1, 1, 48 * 40).view(48, 40).sin()
W = torch.linspace(-0.5, 0.5, 40 * 40).view(40, 40).cos() / 8
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)


def calls(program, *targets):
    found = Counter(n.target for k in program.kernels for n in k.graph.fx.nodes)
    return sum(found[target] for target in targets)


def net(w, x):
    return torch.tanh(x @ w) @ w


def twice(w, x):
    return (net(w, x) * net(w, x).exp()).sum()


def under_two_views(w, x):
    return (net(w, x).view(-1)[1:] * net(w, x).t().reshape(-1)[:-1]).sum()


def written_after(w, x):
    y, z = net(w, x), net(w, x)
    y.mul_(2)
    return (y * z).sum()


def parts_of_both(w, x):
    a, b = net(w, x).chunk(2)
    c, d = net(w, x).chunk(2)
    return (a * d + b * c).sum()


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("f", [twice, under_two_views, written_after, parts_of_both])
def test_a_network_that_is_called_twice_runs_once(f, backend):
    compiled = fg.value_and_grad_compiled(f, backend=backend)
    (value, gradient), (g, v) = compiled(W, X), torch.func.grad_and_value(f)(W, X)
    assert_rounded(value, v)
    assert_rounded(gradient, g)
    assert calls(fg.jit(f, backend=backend).program(W, X), *PRODUCTS) == 2


def test_what_derivatives_compute_again_of_a_network_is_there():
    def loss(w):
        def u(x):
            return torch.tanh(x @ w).sum()

        return (vmap(u)(X) + vmap(grad(u))(X).sum(1) + vmap(hessian(u))(X).sum((1, 2))).sum()

    compiled = fg.jit(loss, backend="aten")
    assert_rounded(compiled(W), loss(W))
    assert calls(compiled.program(W), aten.tanh.default) == 1


@pytest.mark.parametrize(
    "f",
    [
        lambda w, x: (net(w, x), net(w, x)),
        lambda w, x: (net(w, x).t(), net(w, x)[1:], net(w, x).exp().sum()),
        lambda w, x: (torch.zeros(3), torch.zeros(3), torch.zeros(3) + 1),
    ],
)
def test_results_are_tensors_of_their_own(f):
    """Who gets them may write to one."""
    ours, theirs = fg.jit(f)(W, X), f(W, X)
    for results in (ours, theirs):
        results[0].add_(1)
    for a, b in zip(ours, theirs, strict=True):
        assert_rounded(a, b)


def test_what_is_drawn_is_drawn_each_time():
    def f(x):
        return F.dropout(x, 0.5) - F.dropout(x, 0.5), torch.rand(3) - torch.rand(3)

    for rng in ("eager", "philox"):
        torch.manual_seed(0)
        assert all(bool(found.abs().sum() > 0) for found in fg.jit(f, rng=rng)(X))


def test_a_region_that_is_checkpointed_is_computed_again():
    """To compute it once, and save it, is what its policy forbids."""
    inside = fg.checkpoint(net, policy="nothing_saveable")

    def f(w, x):
        return (inside(w, x) * inside(w, x).exp()).sum()

    w = W.clone().requires_grad_()
    forward, backward = fg.jit(f, backend="aten").program(w, X).kernels
    for kernels in (forward, backward):
        assert [n.target for n in kernels.graph.fx.nodes].count(aten.tanh.default) == 2


def test_numbers_that_are_equal_and_not_the_same_are_told_apart():
    def f(x):
        i = x.to(torch.int64)
        sums = i.sum() * 2 + (i * 2.0).sum(), (i + 1).sum(), (i + True).sum() + (i + 1.0).sum()
        return *sums, 1 / (x * 0.0), 1 / (x * -0.0)

    x = torch.tensor([1.0, 2.0])
    for a, b in zip(fg.jit(f)(x), f(x), strict=True):
        assert torch.equal(a, b) and a.dtype == b.dtype


def test_a_budget_leaves_what_is_computed_twice():
    def f(w, x):
        y = net(w, x)
        return (y.exp() * net(w, x)).sum()

    compiled = fg.jit(f, backend="aten", memory_budget="1MiB")
    assert calls(compiled.program(W, X), *PRODUCTS) == 4
