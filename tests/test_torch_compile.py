"""Beside ``torch.compile``: its graphs compiled by funcgrad, and compiled functions that it meets. The oracle is
eager PyTorch."""

from __future__ import annotations

import copy
import importlib
import tomllib
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import funcgrad as fg
from funcgrad.transforms import dynamo

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")


@pytest.fixture(autouse=True)
def anew():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def close(found, wanted):
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)


def test_the_entry_point_is_the_backend():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    module, _, name = project["project"]["entry-points"]["torch_dynamo_backends"]["funcgrad"].partition(":")
    assert getattr(importlib.import_module(module), name) is dynamo.compile_graph


MODELS = {
    "batch norm": lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4)),
    "dropout": lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 4)),
    "encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv1d(1, 3, 3), nn.Flatten(), nn.GELU()),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", MODELS)
def test_training_a_model(name):
    """Batches of several sizes, steps of an optimiser in between: values, gradients, buffers, draws."""
    torch.manual_seed(0)
    model = MODELS[name]()
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend=dynamo.compile_graph)
    steps = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, other)]
    for i, n in enumerate((5, 5, 7, 9, 3)):
        x = torch.randn(n, 6, 4) if name == "encoder" else torch.randn(n, 4)
        values = []
        for run, step in ((compiled, steps[0]), (other, steps[1])):
            torch.manual_seed(i)
            step.zero_grad()
            value = run(x).pow(2).mean()
            value.backward()
            step.step()
            values.append(value.detach())
        close(*values)
        close(model.state_dict(), other.state_dict())
    model.eval(), other.eval()
    with torch.no_grad():
        close(compiled(x), other(x))


def test_a_program_serves_many_sizes(monkeypatch):
    """As many graphs as torch.compile makes of its own accord, and of the one with symbols two programs: with a
    size, and with a symbol."""

    def f(x):
        return x.view(x.shape[0] * 2, -1).softmax(0) * x.shape[0]

    graphs, made = [], []
    plain = torch.compile(f, backend=lambda graph, _: graphs.append(graph) or graph, dynamic=True)
    for n in (4, 6, 8, 10, 12):
        plain(torch.randn(n, 4))
    torch._dynamo.reset()
    monkeypatch.setattr(dynamo, "jit", lambda f, **options: made.append(fg.jit(f, **options)) or made[-1])
    compiled = torch.compile(f, backend=dynamo.compile_graph, dynamic=True)
    for n in (4, 6, 8, 10, 12):
        x = torch.randn(n, 4)
        close(compiled(x), f(x))
    assert len(made) == len(graphs)
    assert max(c.cache_info().currsize for c in made) == 2


def test_mutation_and_aliases():
    def f(x, y):
        x.mul_(2)
        z = x[0]
        z.add_(y)
        return z, x, y.view(-1)

    compiled = torch.compile(f, backend=dynamo.compile_graph)
    for n in (3, 4, 5):
        mine, theirs = (torch.ones(2, n), torch.arange(float(n))), (torch.ones(2, n), torch.arange(float(n)))
        found, wanted = compiled(*mine), f(*theirs)
        close(found, wanted)
        close(mine, theirs)
        assert found[1] is mine[0] and found[2]._base is mine[1]


def test_options_and_use_twice():
    compiled = torch.compile(lambda x: F.gelu(x).sum(), backend=dynamo.compile_graph, options={"backend": "aten"})
    x = torch.randn(4, requires_grad=True)
    (compiled(x) + compiled(x * 2)).backward()
    y = x.detach().clone().requires_grad_()
    (F.gelu(y).sum() + F.gelu(y * 2).sum()).backward()
    close(x.grad, y.grad)


FUNCTIONS = {
    "jit": lambda: fg.jit(lambda x: x.sin() * 2),
    "a write": lambda: fg.jit(lambda x: x.add_(1).sin() * 2),
    "a gradient": lambda: fg.grad_compiled(lambda x: (x.sin() ** 3).sum()),
    "vmap": lambda: fg.vmap_compiled(lambda x: x.exp() * 2),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_compiled_function_inside(name):
    """One call that is not looked into, differentiable, with its writes; nothing it calls is compiled by torch."""
    inside = FUNCTIONS[name]()
    plain = inside.definition

    def of(function):
        def g(x):
            y = x * 2
            z = function(y)
            return z.sum() + (y * y).sum()

        return g

    graphs = []
    compiled = torch.compile(of(inside), backend=lambda graph, _: graphs.append(graph) or graph)
    for n in (3, 3, 4):
        x = torch.randn(n, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        value, wanted = compiled(x), of(plain)(y)
        close(value, wanted)
        value.backward()
        wanted.backward()
        close(x.grad, y.grad)
    assert inside.cache_info().misses <= 2 and inside.cache_info().hits >= 1
    targets = {str(node.target) for graph in graphs for node in graph.graph.nodes}
    assert not any("sin" in t or "exp" in t for t in targets)
