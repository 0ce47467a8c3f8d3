"""What a refusal says of values that Python computes which no trace sees, and of seeds: the name of the callback, and a
fix that applies."""

import random

import numpy as np
import pytest
import torch

import funcgrad as fg

RNG, STATE = random.Random(0), np.random.RandomState(0)


@fg.opaque(like=lambda x: x)
def step(x):
    return x * 2


def halved(x):
    return x / 2


def pure(x):
    return fg.pure_callback(halved, x, x)


def written(x):
    def adds(t):
        t.add_(1)

    own = x.clone()
    fg.opaque(adds, like=None, writes=0)(own)
    return own.sum().item()


READS = {
    "item": (lambda x: x * step(x).sum().item(), "step"),
    "if": (lambda x: x * 2 if pure(x).any() else x, "halved"),
    "tolist": (lambda x: step(x).tolist(), "step"),
    "data": (lambda x: torch.tensor([pure(x)[0], 1.0]), "halved"),
    "index": (lambda x: x[step(x).long()[0] :], "step"),
    "written": (written, "adds"),
    "two": (lambda x: (pure(x) + step(x)).max().item() + x.sum().item(), "(halved|step)"),
    "after one that is known": (lambda x: x.sum().item() * step(x).sum().item(), "step"),
}
SIZES = {
    "mask": lambda x: x[step(x) > 0],
    "nonzero": lambda x: step(x).nonzero(),
    "repeats": lambda x: x.repeat_interleave(step(x).long()),
}


@pytest.mark.parametrize("reads", ["guard", "error"])
@pytest.mark.parametrize("name", READS)
def test_values_of_callbacks(name, reads):
    function, callback = READS[name]
    with pytest.raises(fg.DataDependentControlFlowError, match=f"a value that {callback} computes") as raised:
        fg.jit(function, reads="guard" if name.startswith("after") else reads)(torch.ones(3))
    assert "reads=" not in str(raised.value)


@pytest.mark.parametrize("name", SIZES)
def test_sizes_by_callbacks(name):
    with pytest.raises(fg.DataDependentShapeError, match="a value that step computes"):
        fg.jit(SIZES[name])(torch.ones(3))


def test_fixes_apply():
    x = torch.tensor([1.0, -2.0])
    chosen = fg.jit(lambda x: torch.where(step(x) > 0, x, 0))
    branches = fg.jit(lambda x: torch.cond(pure(x).sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,)))
    outside = fg.jit(lambda x, o: x * 2 if o.sum() > 0 else x)
    for t in (x, -x, x):
        assert torch.equal(chosen(t), t.clamp(min=0))
        assert torch.equal(branches(t), t * 2 if t.sum() > 0 else t * 3)
        assert torch.equal(outside(t, step(t)), t * 2 if t.sum() > 0 else t)


def test_what_backward_reads_of_a_callback():
    class Halves(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(pure(x))
            return x * 1

        @staticmethod
        def backward(ctx, g):
            (saved,) = ctx.saved_tensors
            return g / 2 if saved.sum() > 0 else g

    x = torch.ones(2, requires_grad=True)
    with pytest.raises(fg.DataDependentControlFlowError, match="a value that halved computes"):
        torch.autograd.grad(fg.jit(lambda x: Halves.apply(x).sum())(x), x)


@pytest.mark.parametrize("reads", ["guard", "error"])
def test_reads_in_a_body(reads):
    def branch(x):
        return x.sin() if x.sum() > 0 else x.cos()

    with pytest.raises(fg.DataDependentControlFlowError, match="asked for the value") as raised:
        fg.jit(lambda x: torch.cond(x.sum() > 0, branch, torch.neg, (x,)), reads=reads)(torch.ones(3))
    assert ("reads=" in str(raised.value)) == (reads == "error")


def seeds_its_variable(x):
    own = RNG
    own.seed(1)
    return x * 2


def helper():
    np.random.seed(1)


SEEDS = {
    "random": lambda x: (random.seed(1), x * 2)[1],
    "numpy": lambda x: (helper(), x * 2)[1],
    "state": lambda x: (STATE.set_state(np.random.RandomState(5).get_state()), x * 2)[1],
    "variable": seeds_its_variable,
    "and draws": lambda x: (random.seed(1), x * random.random())[1],
}


@pytest.mark.parametrize("name", SEEDS)
def test_seeds(name):
    before = repr((random.getstate(), np.random.get_state(), RNG.getstate(), STATE.get_state()))
    with pytest.raises(fg.ImpureFunctionError, match="the function seeds"):
        fg.jit(SEEDS[name])(torch.ones(3))
    assert repr((random.getstate(), np.random.get_state(), RNG.getstate(), STATE.get_state())) == before


@pytest.mark.parametrize("draw", [random.random, np.random.rand, RNG.random, STATE.rand])
def test_draws_are_no_seeds(draw):
    seed = 3

    def function(x):
        return x * draw() * seed

    with pytest.raises(fg.ImpureFunctionError, match="the function draws from"):
        fg.jit(function)(torch.ones(3))


def seeds_python(x):
    random.seed(3)
    return x * 2


def seeds_numpy(x):
    np.random.seed(3)
    return x * 2


@pytest.mark.parametrize("function", [seeds_python, seeds_numpy])
def test_seeds_that_change_nothing(function):
    """The generator is already where the function puts it, so that no state tells that it was seeded."""
    function(torch.ones(3))
    with pytest.warns(fg.UnwatchedStateWarning, match="may seed a generator"):
        fg.jit(function)(torch.ones(3))
