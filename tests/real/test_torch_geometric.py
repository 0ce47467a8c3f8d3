"""Convolutions of torch_geometric on a graph whose edges change, as many as before."""

import pytest
import torch
from steps import World, check_steps

nn = pytest.importorskip("torch_geometric.nn", reason="pip install funcgrad[real]")


@pytest.mark.parametrize("kind", ["GCNConv", "GATConv"])
def test_a_convolution_on_a_graph_learns(kind):
    def make():
        layer = getattr(nn, kind)(4, 3)

        def loss(x, edges):
            return layer(x, edges).square().sum()

        def arguments(step):
            return torch.randn(4, 4).requires_grad_(), torch.tensor([[0, 1, 2, 3, 0], [1, 2, 3, 0, step % 4]])

        return World(loss, arguments, [layer])

    check_steps(make, programs=5)
