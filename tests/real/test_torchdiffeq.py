"""Solvers of torchdiffeq, with gradients through their steps."""

import pytest
import torch
from steps import World, check_steps

torchdiffeq = pytest.importorskip("torchdiffeq", reason="pip install funcgrad[real]")


# In single precision an adaptive solver's decisions depend on rounding, which differs where operators are fused: dopri5
# is double here. Its table of coefficients is an attribute of a class of the library's, which the library's own code
# alone reads: that is not watched.
@pytest.mark.filterwarnings("ignore::funcgrad.errors.UnresolvedCaptureWarning")
@pytest.mark.parametrize(
    ("method", "dtype"), [("rk4", torch.float32), ("rk4", torch.float64), ("dopri5", torch.float64)]
)
def test_a_differential_equation_is_solved(method, dtype):
    def make():
        def solve(y, decay):
            times = torch.linspace(0, 1, 5, dtype=dtype)
            return torchdiffeq.odeint(lambda t, y: -decay * y + torch.sin(t), y, times, method=method)[-1].sum()

        def arguments(step):
            return torch.randn(3, dtype=dtype).requires_grad_(), (torch.rand(3, dtype=dtype) * 0.1 + 1).requires_grad_()

        return World(solve, arguments)

    check_steps(make, programs=1 if method == "rk4" else 5)


def test_a_neural_differential_equation_learns():
    def make():
        field = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

        def loss(y):
            return (
                torchdiffeq.odeint(lambda t, y: field(y), y, torch.linspace(0, 1, 4), method="rk4")[-1].square().mean()
            )

        return World(loss, lambda step: (torch.randn(3, 2).requires_grad_(),), [field])

    check_steps(make, programs=1)


@pytest.mark.filterwarnings("ignore::funcgrad.errors.UnresolvedCaptureWarning")
def test_a_neural_differential_equation_learns_by_its_adjoint():
    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(2, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

        def forward(self, t, y):
            return self.layers(y**3)

    def make():
        field = Field()

        def loss(y):
            found = torchdiffeq.odeint_adjoint(field, y, torch.linspace(0, 1, 3), method="rk4")
            return found[-1].square().mean()

        return World(loss, lambda step: (torch.randn(3, 2).requires_grad_(),), [field])

    check_steps(make, programs=2)  # the library reads a memo of SciPy's, which the first compile fills


# The library makes tensors of its table of coefficients, which a class of its own keeps.
@pytest.mark.filterwarnings("ignore::funcgrad.errors.UnresolvedCaptureWarning")
def test_an_adaptive_adjoint_finds_the_gradients_of_parameters():
    """Its backward pass reads values: how far to step is decided by the gradients themselves."""

    class Field(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(2, 2)

        def forward(self, t, y):
            return torch.tanh(self.layer(y))

    def make():
        field = Field()

        def loss(y):
            times = torch.linspace(0, 0.5, 2)
            found = torchdiffeq.odeint_adjoint(field, y, times, method="dopri5", rtol=1e-2, atol=1e-3)
            return found[-1].square().mean()

        # parameters stay as they are: others may lead to other steps, which is another path
        return World(loss, lambda step: (torch.randn(3, 2).requires_grad_(),), [field], lambda _: None)

    check_steps(make, programs=3)
