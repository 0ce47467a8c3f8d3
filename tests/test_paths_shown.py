"""What is asked of a compiled function is asked of the program that the call runs: the one on its path."""

from __future__ import annotations

import pytest
import torch

import funcgrad as fg

X = torch.rand(6, 4) + 0.1


def branches(x):
    if x.sum() > 0:
        return x * 2
    return (x / 2).sin()


def scales(x):
    return x * x.mean().item() + x.std().item()


def draws(x):
    if torch.rand(()) < 2:
        return (x * 3).cos()
    return x


TRANSFORMS = {"jit": fg.jit, "grad": lambda f: fg.grad_compiled(lambda x: f(x).sum())}


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
@pytest.mark.parametrize("called_before", [False, True])
def test_the_program_of_the_path_is_shown(transform, called_before):
    """It was the one of the last call, and its measurement raised ``PathMiss``."""
    c = transform(branches)
    for x in (X, -X, X) if called_before else ():
        c(x)
    for x, op in ((X, False), (-X, True), (X, False)):
        assert ("sin" in str(c.program(x).joint) or "cos" in str(c.program(x).joint)) is op
        assert c.memory(x).measured_peak >= x.nbytes
        assert "sin" in str(c.explain(x)) or "read" in str(c.explain(x)).lower()
    assert c.cache_info().misses == 2


def test_another_path_is_a_reason_to_compile():
    c = fg.jit(branches)
    c(X)
    assert "fits" in c.explain_miss(X)
    assert "Python reads False" in c.explain_miss(-X) and "test_paths_shown.py" in c.explain_miss(-X)
    c(-X)
    assert "fits" in c.explain_miss(-X)


@pytest.mark.parametrize("transform", TRANSFORMS.values(), ids=TRANSFORMS)
def test_a_float_that_is_read_is_a_symbol_of_a_program_that_is_asked_for(transform, tmp_path):
    """Kernels round otherwise than PyTorch: a saved program refused the call that it was saved for."""
    c = transform(scales)
    c.memory(X)
    c.program(X).save(tmp_path / "program")
    loaded = fg.load(tmp_path / "program")
    expected = TRANSFORMS["grad"](scales) if transform is not fg.jit else scales
    for x in (X, 2 * X, X.sin()):
        torch.testing.assert_close(loaded(x), expected(x))
        torch.testing.assert_close(c.program(x)(x), expected(x))
    with fg.no_retrace():
        c(X), c(2 * X)


def test_asking_draws_nothing():
    c = fg.jit(draws)
    before = torch.get_rng_state()
    c.memory(X), c.explain(X), c.program(X), c.explain_miss(X)
    assert torch.equal(torch.get_rng_state(), before)


def test_asking_writes_nothing():
    count = torch.zeros(3)

    def f(x):
        count.add_(1)
        return x * 2 if count.sum() > 2 else x

    c = fg.jit(f)
    c.memory(X), c.explain(X), c.program(X)
    assert count.tolist() == [0, 0, 0]
    assert torch.equal(c(X), X * 2)


def test_wrapper_subclasses_on_paths():
    from torch.testing._internal.two_tensor import TwoTensor

    c = fg.jit(branches)
    x = TwoTensor(X, X.clone())
    assert torch.equal(c(x).a, X * 2)
    c.program(x), c.explain(x)


def test_a_path_that_kernels_find_otherwise_is_measured_once():
    """A condition on a number that is a symbol, at which rounding decides."""
    x = torch.rand(1000)
    bound = (x.sin().sum() / 3).item()

    def f(x):
        return x * 2 if (x.sin().sum() / 3).item() >= bound else x.cos()

    c = fg.jit(f)
    for step in (0.0, 1e-3, -1e-3, 0.0):
        c.memory(x + step), c(x + step), c.program(x + step)
