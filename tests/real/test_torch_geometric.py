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


@pytest.mark.parametrize("kind", ["GCNConv", "GATConv"])
def test_batches_of_other_graphs_are_classified(kind):
    def make():
        first, second, out = getattr(nn, kind)(4, 8), getattr(nn, kind)(8, 8), torch.nn.Linear(8, 2)

        def loss(x, edges, graph, labels):
            x = torch.nn.functional.dropout(first(x, edges).relu(), 0.3)
            return torch.nn.functional.cross_entropy(out(nn.global_mean_pool(second(x, edges), graph)), labels)

        def arguments(step):
            counts = torch.tensor([3 + step, 4, 6])
            graph = torch.repeat_interleave(torch.arange(3), counts)
            edges = torch.cat([torch.randint(0, int(n), (2, 7 + step)) for n in counts], 1)
            edges += (counts.cumsum(0) - counts).repeat_interleave(7 + step)
            return torch.randn(len(graph), 4), edges, graph, torch.randint(0, 2, (3,))

        return World(loss, arguments, [first, second, out])

    check_steps(make, programs=5)
