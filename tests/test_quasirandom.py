"""Sobol sequences inside compiled functions are those of eager PyTorch."""

import pytest
import torch

import funcgrad as fg

X = torch.tensor([0.3, -1.2, 0.7])


def engine(**options):
    return torch.quasirandom.SobolEngine(3, **options)


FUNCTIONS = {
    "drawn": lambda x: x + engine().draw(4).sum(0),
    "scrambled by a seed": lambda x: x * engine(scramble=True, seed=3).draw(4),
    "scrambled by the generator": lambda x: x * engine(scramble=True).draw(2) + torch.rand(3),
    "forward and back": lambda x: x * engine().fast_forward(5).draw(2) + engine().fast_forward(2).reset().draw(3)[2],
    "one, and more": lambda x: x * (sequence := engine()).draw() + sequence.draw(2).sum(0) * sequence.num_generated,
    "in double precision": lambda x: x + engine(scramble=True, seed=1).draw(4, dtype=torch.float64),
    "as many as rows": lambda x: x.expand(5, 3) * engine().draw(5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_sequence_that_begins_in_the_function(name):
    f = FUNCTIONS[name]
    compiled = fg.value_and_grad_compiled(lambda x: f(x).sum())
    for seed in range(3):
        torch.manual_seed(seed)
        value, grad = compiled(X)
        after = torch.rand(1)
        torch.manual_seed(seed)
        x = X.clone().requires_grad_()
        expected = f(x).sum()
        torch.testing.assert_close(after, torch.rand(1))
        torch.testing.assert_close((value, grad), (expected.detach(), torch.autograd.grad(expected, x)[0]))
    assert compiled.cache_info().misses == 1


def test_a_sequence_goes_on_from_call_to_call():
    ours, eager = engine(scramble=True, seed=2), engine(scramble=True, seed=2)
    compiled = fg.jit(lambda x: x + ours.draw(2).sum(0))
    for _ in range(5):
        torch.testing.assert_close(compiled(X), X + eager.draw(2).sum(0))
        assert ours.num_generated == eager.num_generated and torch.equal(ours.quasi, eager.quasi)
    assert compiled.cache_info().misses <= 3


def test_as_many_points_as_there_are_rows():
    f = lambda x: (x * engine().draw(x.shape[0])).sum()  # noqa: E731
    compiled = fg.jit(f)
    for n in (3, 4, 5, 7):
        x = torch.randn(n, 3)
        torch.testing.assert_close(compiled(x), f(x))
    assert compiled.cache_info().misses == 2
