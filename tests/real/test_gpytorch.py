"""An exact Gaussian process of gpytorch, and acquisition functions of botorch on one."""

import pytest
import torch
from steps import World, check_steps

gpytorch = pytest.importorskip("gpytorch", reason="pip install funcgrad[real]")
botorch = pytest.importorskip("botorch", reason="pip install funcgrad[real]")


class Process(gpytorch.models.ExactGP):
    def __init__(self, x, y, likelihood):
        super().__init__(x, y, likelihood)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_a_marginal_likelihood_is_maximised():
    def make():
        x = torch.linspace(0, 1, 10)
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        process = Process(x, torch.sin(x * 6), likelihood).train()
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, process)

        def loss(y):
            return -marginal(process(x), y)

        return World(loss, lambda step: (torch.sin(x * 6) + 0.1 * step,), [marginal])

    check_steps(make, programs=2)


# Constants of the library stand in a functools.lru_cache, in which no rebinding can be watched.
@pytest.mark.filterwarnings("ignore::funcgrad.errors.UnresolvedCaptureWarning")
@pytest.mark.parametrize("kind", ["LogExpectedImprovement", "qExpectedImprovement"])
def test_an_acquisition_function_has_its_gradient(kind):
    def make():
        x = torch.rand(6, 2, dtype=torch.double)
        y = x.sin().sum(-1, keepdim=True)
        model = botorch.models.SingleTaskGP(x, y).eval()
        given = {"sampler": botorch.sampling.SobolQMCNormalSampler(torch.Size([8]), seed=1)} if kind.startswith("q") else {}
        acquisition = getattr(botorch.acquisition, kind)(model, best_f=y.max(), **given)

        acquisition(torch.rand(3, 1, 2, dtype=torch.double))  # Sobol's numbers are drawn once, in the first call, by a generator of its own

        def value(candidates):
            return acquisition(candidates).sum()

        return World(value, lambda step: (torch.rand(3, 1, 2, dtype=torch.double).requires_grad_(),))

    check_steps(make, programs=4)
