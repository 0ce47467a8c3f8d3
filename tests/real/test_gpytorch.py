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
        given = (
            {"sampler": botorch.sampling.SobolQMCNormalSampler(torch.Size([8]), seed=1)} if kind.startswith("q") else {}
        )
        acquisition = getattr(botorch.acquisition, kind)(model, best_f=y.max(), **given)

        def value(candidates):
            return acquisition(candidates).sum()

        return World(value, lambda step: (torch.rand(3, 1, 2, dtype=torch.double).requires_grad_(),))

    check_steps(make, programs=4)


class Sparse(gpytorch.models.ApproximateGP):
    def __init__(self, points):
        given = gpytorch.variational.CholeskyVariationalDistribution(points.size(0))
        super().__init__(gpytorch.variational.VariationalStrategy(self, points, given, learn_inducing_locations=True))
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.MaternKernel(2.5))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def test_a_variational_process_learns():
    """It keeps distributions in caches that each call clears and fills."""

    def make():
        model, likelihood = Sparse(torch.linspace(0, 1, 4)[:, None]), gpytorch.likelihoods.GaussianLikelihood()
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, 8)
        return World(lambda x, y: -bound(model(x), y), lambda step: (torch.rand(8, 1), torch.randn(8)), [bound])

    check_steps(make, programs=2)


def test_a_variational_process_learns_from_batches_of_other_sizes():
    def make():
        model, likelihood = Sparse(torch.linspace(0, 1, 4)[:, None]), gpytorch.likelihoods.GaussianLikelihood()
        bound = gpytorch.mlls.VariationalELBO(likelihood, model, 40)
        return World(lambda x, y: -bound(model(x), y), lambda n: (torch.rand(9 - n, 1), torch.randn(9 - n)), [bound])

    check_steps(make, programs=2)


def test_a_process_predicts():
    """Its strategy of prediction is made in the first call, and kept."""

    def make():
        x, likelihood = torch.rand(6), gpytorch.likelihoods.GaussianLikelihood().eval()
        process = Process(x, x.sin(), likelihood).eval()

        def predict(points):
            with torch.no_grad(), gpytorch.settings.fast_pred_var():
                found = likelihood(process(points))
                return torch.stack([found.mean, found.variance])

        return World(predict, lambda step: (torch.rand(3),))

    check_steps(make, programs=2)
