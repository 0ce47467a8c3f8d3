"""``torch.utils.flop_counter.FlopCounterMode`` counts of a compiled call the matrix products that it runs, fused or
not, and no others."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

import funcgrad as fg

X = torch.randn(4, 6, 8)


def counted(f, *args):
    """By operator, what is counted in one call."""
    with FlopCounterMode(display=False) as mode:
        f(*args)
    return {str(operator): n for operator, n in mode.get_flop_counts().get("Global", {}).items() if n}


FUNCTIONS = {
    "mm": lambda w: (X[0, :2] @ w).sin().sum(),
    "one term": lambda w: (X[0, :, :1] @ w[:1]).exp().sum(),
    "bmm": lambda w: torch.bmm(X, w.expand(4, 8, 5)).exp().sum(),
    "baddbmm": lambda w: torch.baddbmm(X[:, :, :5], X, w.expand(4, 8, 5)).exp().sum(),
    "linear": lambda w: F.gelu(F.linear(X, w.t(), X[0, 0, :5])).sum(),
    "attention": lambda w: (torch.softmax(X @ X.transpose(1, 2), -1) @ X @ w).sum(),
    "several": lambda w: sum((X[:, i] @ w).tanh() for i in range(3)).sum(),
    "large": lambda w: (X.repeat(9, 9, 1) @ w).relu().sum(),
    "convolution": lambda w: torch.conv2d(X[None], w[None, None, :3, :3].expand(2, 4, 3, 3)).relu().sum(),
    "none": lambda w: w.exp().sum(),
}


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_compiled_call_counts_what_eager_counts(f, backend):
    """Also the first call, which compiles; forward alone, and both."""
    w, compiled = torch.randn(8, 5, requires_grad=True), fg.jit(f, backend=backend)
    for _ in range(2):
        assert counted(compiled, w) == counted(f, w)
        assert counted(lambda: compiled(w).backward()) == counted(lambda: f(w).backward())


def test_what_is_dropped_is_not_counted():
    """The gradient of a sum of a product needs no product of the forward pass."""
    gradient = fg.grad_compiled(lambda w: (X[0] @ w).sum())
    w = torch.randn(8, 5)
    assert [counted(gradient, w) for _ in range(2)] == [{"aten.mm": 2 * 6 * 8 * 5}] * 2


def test_sizes_that_vary_are_counted_as_they_are():
    compiled = fg.jit(lambda x, w: (x @ w).exp(), dynamic=True)
    w = torch.randn(8, 5)
    for n in (2, 3, 4):
        assert counted(compiled, torch.randn(n, 8), w) == {"aten.mm": 2 * n * 8 * 5}
    assert compiled.cache_info().misses == 1


def test_what_was_counted_before_stays_when_a_call_compiles():
    w, x = torch.randn(8, 5), torch.randn(2, 8)
    compiled = fg.jit(lambda x: (x @ w).exp())

    def both():
        torch.mm(x, w)
        compiled(x)

    assert counted(both) == counted(both) == {"aten.mm": 2 * 2 * 2 * 8 * 5}


def ranges(f, *args):
    """The names of the ranges that a profiler sees, and how often."""
    with torch.autograd.profiler.profile(use_kineto=False) as profiled:
        f(*args)
    return {event.key: event.count for event in profiled.key_averages() if event.key.startswith("funcgrad")}


def test_a_profiler_sees_a_range_by_the_name_of_the_function():
    def products(w):
        return (X[0] @ w).exp().sum()

    w, compiled, gradient = torch.randn(8, 5), fg.jit(products), fg.grad_compiled(products)
    for _ in range(2):
        assert ranges(compiled, w) == {"funcgrad: products": 1}
    assert ranges(lambda: (compiled(w), gradient(w), gradient(w))) == {"funcgrad: products": 3}
    assert ranges(lambda: torch.func.vmap(compiled)(w.expand(3, 8, 5))) == {"funcgrad: products": 1}
    assert ranges(products, w) == {}


@pytest.mark.parametrize("is_warm", [False, True])
def test_a_module_that_is_trained_is_counted(is_warm):
    """The mode hears of modules by hooks on all of them, which register others on their operands."""
    net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    compiled = fg.jit(net, backend="aten")
    if is_warm:
        compiled(X)
    for _ in range(2):
        assert counted(lambda: compiled(X).sum().backward()) == counted(lambda: net(X).sum().backward())
    assert not counted(lambda: None)
