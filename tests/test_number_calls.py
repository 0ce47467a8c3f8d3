"""Numbers that PyTorch takes as a ``double`` in C++: one program for all of them, and eager PyTorch's draws."""

import pytest
import torch
import torch.nn.functional as F

import funcgrad as fg

CLASSES = torch.tensor([0, 5, -100, 2])
SIGNS = torch.tensor([1, -1, 1, -1])
CALLS = {
    "dropout": lambda x, p: F.dropout(x, p),
    "dropout in place": lambda x, p: F.dropout(x * 1, p, inplace=True),
    "dropout1d": lambda x, p: F.dropout1d(x.view(2, 3, 4), p),
    "alpha_dropout": lambda x, p: F.alpha_dropout(x, p, training=True),
    "feature_alpha_dropout": lambda x, p: F.feature_alpha_dropout(x.view(2, 3, 4), p, training=True),
    "bernoulli": lambda x, p: torch.bernoulli(x.detach(), p) * x,
    "bernoulli_": lambda x, p: x * torch.empty_like(x).bernoulli_(p),
    "bernoulli_ of a generator": lambda x, p: (
        x * torch.empty(6).bernoulli_(p, generator=torch.Generator().manual_seed(2))
    ),
    "normal_": lambda x, p: x * torch.empty(4, 6).normal_(p, 2 * p),
    "uniform_": lambda x, p: x * torch.empty(6).uniform_(-p, p),
    "exponential_": lambda x, p: x * torch.empty(6).exponential_(p + 0.1),
    "normal": lambda x, p: torch.normal(p, 2 * p, (4, 6)) * x,
    "normal of a mean": lambda x, p: torch.normal(x.detach(), p) * x,
    "normal of a deviation": lambda x, p: torch.normal(p, x.detach().abs()) * x,
    "huber_loss": lambda x, p: F.huber_loss(x, x.detach().flip(0), delta=p),
    "smooth_l1_loss": lambda x, p: F.smooth_l1_loss(x, x.detach().flip(0), reduction="none", beta=p),
    "cross_entropy": lambda x, p: F.cross_entropy(x, CLASSES, label_smoothing=p),
    "cross_entropy, a sum": lambda x, p: F.cross_entropy(x, CLASSES, reduction="sum", label_smoothing=p),
    "margin_ranking_loss": lambda x, p: F.margin_ranking_loss(x[0], x[1], x[2].sign(), p),
    "hinge_embedding_loss": lambda x, p: F.hinge_embedding_loss(x, x.detach().sign(), p),
    "triplet_margin_loss": lambda x, p: F.triplet_margin_loss(x, x.detach() * 2, x.flip(0), p, swap=True),
    "cosine_embedding_loss": lambda x, p: F.cosine_embedding_loss(x, x.detach().flip(0), SIGNS, p),
    "quantile": lambda x, p: torch.quantile(x, p, dim=1),
    "clip_grad_norm_": lambda x, p: _clipped(x, p, torch.nn.utils.clip_grad_norm_),
    "clip_grad_value_": lambda x, p: _clipped(x, p, torch.nn.utils.clip_grad_value_),
}
AS_OFTEN_AS_NUMBERS = {
    "dropout of a transposed input": lambda x, p: F.dropout(x.t(), p),
    "cross_entropy with weights": lambda x, p: F.cross_entropy(x, CLASSES, torch.arange(6.0), label_smoothing=p),
    "huber_loss with weights": lambda x, p: F.huber_loss(x, x.detach() * 2, delta=p, weight=x.detach().abs()),
}
NUMBERS = 0.1, 0.25, 0.3, 0.4, 0.0, 1.0, 0.5


def _clipped(x, p, clip):
    own = torch.nn.Parameter(x.detach() * 3)
    own.grad = x.detach() * 2
    clip([own], p)
    return own.grad * x


def value_and_gradient(call, x, p):
    x = x.clone().requires_grad_()
    try:
        y = call(x, p)
    except (ValueError, RuntimeError) as error:  # of some functions, for 0
        return str(error).partition("\n")[0]
    (grad,) = torch.autograd.grad(y.sum(), x)
    return y.detach(), grad, torch.rand(())


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", [*CALLS, *AS_OFTEN_AS_NUMBERS])
def test_numbers_that_vary_are_symbols(name, backend):
    call, x = (CALLS | AS_OFTEN_AS_NUMBERS)[name], torch.randn(4, 6, generator=torch.Generator().manual_seed(3))
    compiled = fg.jit(call, backend=backend)
    for p in NUMBERS:
        found = []
        for f in (call, compiled):
            torch.manual_seed(0)
            found.append(value_and_gradient(f, x, p))
        if isinstance(found[0], str):
            assert found[0] == found[1]
        else:
            torch.testing.assert_close(*found)
    if name in CALLS:
        assert compiled.cache_info().misses <= 4  # 0 and 1 may be programs of their own


@pytest.mark.parametrize("p", [-0.5, 1.5])
@pytest.mark.parametrize("name", ["dropout", "alpha_dropout", "bernoulli_", "normal_", "exponential_", "quantile"])
def test_numbers_that_make_no_sense_raise_as_in_eager_pytorch(name, p):
    call, x = CALLS[name], torch.ones(4, 6)
    compiled, found = fg.jit(call, backend="aten"), []
    for good in (0.1, 0.2):
        compiled(x, good)
    for f in (call, compiled):
        torch.manual_seed(0)
        try:
            found.append(f(x, p))
        except (ValueError, RuntimeError) as error:
            found.append(f"{type(error).__name__}: {error}".partition("\n")[0])
    if isinstance(found[0], torch.Tensor):
        torch.testing.assert_close(found[1], found[0])
    else:
        assert found[0] == found[1]


def test_a_momentum_that_is_scheduled_is_one_program():
    def trained(wrap):
        torch.manual_seed(0)
        net, seen = torch.nn.BatchNorm1d(6), []
        call = wrap(lambda x: net(x) * 2)
        for epoch in range(5):
            net.momentum = 0.5 / (epoch + 1)
            seen.append(call(torch.randn(8, 6)).detach())
        return seen, net.state_dict(), call

    (*expected, _), (*found, call) = trained(lambda f: f), trained(lambda f: fg.jit(f, backend="aten"))
    torch.testing.assert_close(found, expected)
    assert call.cache_info().misses == 2


def test_a_cumulative_average_is_one_program():
    """The momentum is one over a count that is read of a tensor."""

    def trained(wrap):
        torch.manual_seed(0)
        net = torch.nn.BatchNorm1d(6, momentum=None)
        call = wrap(lambda x: net(x) * 2)
        return [call(torch.randn(8, 6)).detach() for _ in range(6)], net.state_dict(), call

    (*expected, _), (*found, call) = trained(lambda f: f), trained(lambda f: fg.jit(f, backend="aten"))
    torch.testing.assert_close(found, expected)
    assert call.cache_info().misses <= 3


def test_where_all_is_dropped_nothing_is_drawn():
    x = torch.ones(4, 6)
    for wrap in (fg.jit, fg.grad_compiled):
        torch.manual_seed(0)
        wrap(lambda x: F.dropout(x, 1.0).sum(), backend="aten")(x)
        assert torch.rand(()) == torch.rand((), generator=torch.Generator().manual_seed(0))
