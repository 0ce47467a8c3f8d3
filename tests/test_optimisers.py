"""Optimisers: a step inside of a compiled function leaves parameters and state as it does in eager PyTorch."""

import copy

import pytest
import torch
from torch import nn

import funcgrad as fg

FUSED = {
    "adam": (torch.optim.Adam, {"lr": 0.1}),
    "adam amsgrad": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "adam of a tensor": (torch.optim.Adam, {"lr": torch.tensor(0.1), "betas": (0.8, 0.9)}),
    "adamw": (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.2, "eps": 1e-3}),
    "sgd": (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1, "maximize": True}),
    "sgd momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2}),
    "sgd nesterov": (torch.optim.SGD, {"lr": torch.tensor(0.1), "momentum": 0.9, "nesterov": True}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.3, "weight_decay": 0.1}),
    "adagrad maximize": (
        torch.optim.Adagrad,
        {"lr": torch.tensor(0.1), "maximize": True, "initial_accumulator_value": 0.2},
    ),
}


def trained(make, kind, kwargs, inside, dtype=torch.float64, steps=4):
    """Steps, with the gradient inside of what is compiled or before it: losses, parameters, state. Of the parameters
    two look alike."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)).to(dtype)
    optimiser = kind(model.parameters(), **copy.deepcopy(kwargs))

    def loss(x):
        optimiser.zero_grad()
        value = model(x).square().mean()
        value.backward()
        return value.detach()

    def step(x):
        value = loss(x) if inside else x.sum()
        optimiser.step()
        return value

    step, found = make(step), []
    for x in torch.randn(steps, 5, 3, dtype=dtype):
        if not inside:
            loss(x)
        found.append(step(x))
    state = [v for p in model.parameters() for _, v in sorted(optimiser.state[p].items()) if v is not None]
    return [*found, *(p.detach() for p in model.parameters()), *state]


@pytest.mark.sweep(4)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", FUSED)
def test_fused_steps(name, inside):
    kind, kwargs = FUSED[name]
    kwargs = {**kwargs, "fused": True}
    expected = trained(lambda f: f, kind, kwargs, inside)
    found = trained(lambda f: fg.jit(f, backend="aten"), kind, kwargs, inside)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["adam", "sgd momentum", "adagrad"])
def test_fused_steps_in_kernels(name):
    kind, kwargs = FUSED[name]
    kwargs = {**kwargs, "fused": True}
    pairs = zip(
        trained(fg.jit, kind, kwargs, True, torch.float32),
        trained(lambda f: f, kind, kwargs, True, torch.float32),
        strict=True,
    )
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_scaled_step_is_refused_by_name():
    p = torch.ones(3, requires_grad=True)
    optimiser = torch.optim.SGD([p], lr=0.1, fused=True)
    optimiser.grad_scale, optimiser.found_inf = torch.tensor(2.0), torch.tensor(0.0)

    def step(x):
        p.grad = x
        optimiser.step()

    with pytest.raises(fg.UnsupportedOperatorError, match="gradient scaler"):
        fg.jit(step, backend="aten")(torch.ones(3))


# ── steps that ask for their count ───────────────────────────────────────────────────────────────────────────────

COUNTING = {
    "adam": (torch.optim.Adam, {"lr": 0.1}),
    "adam amsgrad": (torch.optim.Adam, {"lr": 0.1, "amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    "adam foreach": (torch.optim.Adam, {"lr": 0.1, "foreach": True}),
    "adam of a tensor": (torch.optim.Adam, {"lr": torch.tensor(0.1), "foreach": False}),
    "adamw": (torch.optim.AdamW, {"lr": 0.1, "weight_decay": 0.2}),
    "adamax": (torch.optim.Adamax, {"lr": 0.1}),
    "adamax foreach": (torch.optim.Adamax, {"lr": 0.1, "foreach": True}),
    "asgd": (torch.optim.ASGD, {"lr": 0.1, "lambd": 0.3, "t0": 1}),
    "nadam": (torch.optim.NAdam, {"lr": 0.1}),
    "radam": (torch.optim.RAdam, {"lr": 0.1, "betas": (0.9, 0.99)}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.1, "lr_decay": 0.3}),
    "adagrad foreach": (torch.optim.Adagrad, {"lr": 0.1, "foreach": True}),
    "sgd of a tensor": (torch.optim.SGD, {"lr": torch.tensor(0.1), "momentum": 0.9, "foreach": False}),
}

ROUND_SINGLE = ("adam of a tensor", "nadam")
"""Steps that compute with a number eager PyTorch keeps in single precision: the product of momenta, the rate that is
a tensor."""


@pytest.mark.sweep(4)
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("name", COUNTING)
def test_a_step_that_asks_for_its_count_is_one_program_for_all_counts(name, inside):
    kind, kwargs = COUNTING[name]
    made = []

    def compiled(f):
        made.append(fg.jit(f, backend="aten"))
        return made[0]

    expected, found = (trained(make, kind, kwargs, inside, steps=8) for make in (lambda f: f, compiled))
    limit = 1e-6 if name in ROUND_SINGLE else 1e-9
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=limit, atol=limit)
    assert made[0].cache_info().misses <= 2  # where the state is made, and where it is there


def test_bias_corrections_are_as_exact_as_those_of_numbers():
    kwargs = {"lr": 0.1, "betas": (0.9, 0.999999)}
    expected, found = (
        trained(make, torch.optim.Adam, kwargs, True) for make in (lambda f: f, lambda f: fg.jit(f, backend="aten"))
    )
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.RMSprop])
def test_state_first_made_inside_for_parameters_of_one_shape(kind):
    def steps(make):
        ps = [torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)]
        optimiser = kind(ps, lr=0.1, momentum=0.9) if kind is not torch.optim.Adam else kind(ps, lr=0.1)

        @make
        def step(x):
            optimiser.zero_grad()
            loss = (ps[0] * x).sum() + (ps[1] ** 3).sum()
            loss.backward()
            optimiser.step()
            return loss.detach()

        found = [step(torch.tensor([1.0, 2.0, 3.0])) for _ in range(3)]
        return [*found, *ps, *(v for p in ps for v in optimiser.state[p].values())]

    for a, b in zip(steps(fg.jit), steps(lambda f: f), strict=True):
        torch.testing.assert_close(a, b)


def test_a_scheduler_that_is_told_a_loss_works_on_any():
    """It makes a number of it, by ``float``, and keeps the best."""

    def made():
        optimiser = torch.optim.SGD([torch.zeros(3, requires_grad=True)], 0.5)
        scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, patience=1)

        def told(x):
            scheduler.step(x.sum())
            return x * optimiser.param_groups[0]["lr"]

        return told, scheduler

    (told, ours), (expected, eager) = made(), made()
    compiled = fg.jit(told, backend="aten")
    for n in range(9):
        x = torch.full((3,), 9.0 - n)
        torch.testing.assert_close(compiled(x), expected(x))
        assert ours.state_dict() == eager.state_dict()
    assert compiled.cache_info().misses == 3


def test_steps_of_lbfgs_are_programs_for_any_loss():
    """It keeps counts, losses and directions in one dict, which belongs to a parameter."""

    def made():
        weight = nn.Parameter(torch.ones(2, dtype=torch.float64))
        optimiser = torch.optim.LBFGS([weight], 0.1, max_iter=1, history_size=1)

        def step(x):
            def loss():
                optimiser.zero_grad()
                value = (x * weight).square().sum() + weight.exp().sum()
                value.backward()
                return value

            return optimiser.step(loss).detach()

        return step, weight, optimiser

    (step, ours, state), (expected, eager, other) = made(), made()
    compiled = fg.jit(step, backend="aten")
    for n in range(8):
        x = torch.arange(2, dtype=torch.float64) + 0.1 * n
        torch.testing.assert_close(compiled(x), expected(x))
        torch.testing.assert_close(ours, eager)
        assert state.state[ours]["n_iter"] == other.state[eager]["n_iter"] == n + 1
        if n == 5:
            misses = compiled.cache_info().misses
    assert compiled.cache_info().misses == misses
