"""A force model of e3nn: forces are an inner gradient of the energy, learning needs the outer one."""

import pytest
import torch
from steps import World, check_steps

o3 = pytest.importorskip("e3nn.o3", reason="pip install funcgrad[real]")


def test_a_force_model_learns():
    def make():
        product = o3.FullyConnectedTensorProduct("2x0e+1x1o", "1x0e+1x1o", "2x0e+1x1o")

        def energy(positions):
            harmonics = o3.spherical_harmonics("1x0e+1x1o", positions, True, normalization="component")
            features = torch.cat([torch.ones(4, 2), positions], 1)
            return product(features, harmonics).square().sum()

        def loss(positions, forces):
            at = energy(positions)
            (slope,) = torch.autograd.grad(at, positions, create_graph=True)
            return at + (forces + slope).square().sum()

        return World(loss, lambda step: (torch.randn(4, 3).requires_grad_(), torch.randn(4, 3)), [product])

    check_steps(make, programs=1)
