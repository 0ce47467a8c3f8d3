"""Recurrent networks of as many steps as there are: two programs serve sequences of all lengths."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import funcgrad as fg

NETWORKS = {
    "gru": lambda **more: nn.GRU(3, 4, **more),
    "lstm": lambda **more: nn.LSTM(3, 4, **more),
    "tanh": lambda **more: nn.RNN(3, 4, **more),
    "relu": lambda **more: nn.RNN(3, 4, nonlinearity="relu", **more),
}
OPTIONS = {
    "plain": {},
    "batch first, both directions": {"batch_first": True, "bidirectional": True},
    "two layers without bias": {"num_layers": 2, "bias": False},
    "with dropout": {"num_layers": 2, "dropout": 0.5, "bidirectional": True},
}


def losses(network, given, state):
    out, last = network(given) if state is None else network(given, state)
    return (out.sin().sum() + sum(s.cos().sum() for s in (last if isinstance(last, tuple) else (last,))), out)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_two_programs_serve_all_lengths(kind, options, dtype):
    network = NETWORKS[kind](**options).to(dtype)
    other = copy.deepcopy(network)
    compiled = fg.jit(lambda x: losses(other, x, None))
    for length in (5, 7, 4, 6):
        x = torch.randn(length, 2, 3, dtype=dtype, requires_grad=True)
        results = []
        for call, own in ((lambda x: losses(network, x, None), network), (compiled, other)):
            torch.manual_seed(0)
            loss, out = call(x)
            results.append((loss, out, torch.autograd.grad(loss, (x, *own.parameters()))))
        torch.testing.assert_close(results[1], results[0])
        assert results[1][1].stride() == results[0][1].stride()
    assert compiled.cache_info().misses == 2


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_state_that_is_given(kind):
    network = NETWORKS[kind]().double()
    gradient = fg.grad_compiled(lambda x, state: losses(network, x, state)[0], argnums=(0, 1))
    for length in (5, 7, 4):
        x = torch.randn(length, 2, 3, dtype=torch.float64)
        state = torch.randn(1, 2, 4, dtype=torch.float64)
        state = (state, state.sin()) if kind == "lstm" else state
        expected = torch.func.grad(lambda x, s: losses(network, x, s)[0], argnums=(0, 1))(x, state)
        torch.testing.assert_close(gradient(x, state), expected)
    assert gradient.cache_info().misses == 2


def test_projections_of_an_lstm():
    network = nn.LSTM(3, 4, proj_size=2).double()
    compiled = fg.jit(lambda x: network(x)[0])
    for length in (5, 7, 4):
        x = torch.randn(length, 2, 3, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), network(x)[0])
    assert compiled.cache_info().misses == 2


def test_a_training_step_that_returns_its_loss_with_its_history():
    """Each length was a program of its own: the loss has a history, through which no second pass goes."""
    networks = [nn.GRU(3, 4, batch_first=True), nn.GRU(3, 4, batch_first=True)]
    networks[1].load_state_dict(networks[0].state_dict())

    def stepping(network):
        optimiser = torch.optim.Adam(network.parameters(), 1e-2)

        def step(x):
            optimiser.zero_grad()
            loss = network(x[:, :-1])[0].square().mean()
            loss.backward()
            optimiser.step()
            return loss

        return step

    eager, step = stepping(networks[0]), fg.jit(stepping(networks[1]))
    for length in (7, 9, 12, 5, 8):
        x = torch.randn(4, length, 3)
        torch.testing.assert_close(step(x), eager(x))
    torch.testing.assert_close(networks[1].state_dict(), networks[0].state_dict())
    assert step.cache_info().misses <= 3
    with pytest.raises(RuntimeError, match="second time"):
        step(x).backward()


def test_dropout_between_layers_of_an_lstm_draws_what_eager_draws():
    """PyTorch's formula of an LSTM leaves it out, silently."""
    network = nn.LSTM(3, 4, num_layers=2, dropout=0.5)
    compiled = fg.jit(lambda x: network(x)[0])
    for length in (5, 7, 4):
        x = torch.randn(length, 2, 3)
        torch.manual_seed(0)
        expected = network(x)[0]
        torch.manual_seed(0)
        torch.testing.assert_close(compiled(x), expected)
    assert compiled.cache_info().misses == 2


@pytest.mark.parametrize("kind", NETWORKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dropout_between_layers_of_batches_of_all_sizes(kind, dtype):
    """PyTorch's formula, which runs where a size is a symbol, leaves it out."""
    network = NETWORKS[kind](num_layers=2, dropout=0.5).to(dtype)
    compiled = fg.jit(lambda x: losses(network, x, None), backend="aten")
    for batch in (2, 3, 4):
        x, results = torch.randn(4, batch, 3, dtype=dtype, requires_grad=True), []
        for call in (lambda x: losses(network, x, None), compiled):
            torch.manual_seed(0)
            loss, out = call(x)
            gradients = torch.autograd.grad(loss, (x, *network.parameters()))
            results.append((loss, out, gradients, torch.get_rng_state()))
        torch.testing.assert_close(results[1], results[0])
    assert compiled.cache_info().misses == 2


class TestWhatOneDnnKeepsForBackward:
    """PyTorch's fake tensors say: nothing."""

    @staticmethod
    def make():
        network, x = nn.LSTM(16, 32, num_layers=2), torch.randn(20, 8, 16)
        return network, x, lambda x: network(x)[0].square().sum()

    def test_is_counted(self):
        """It ended the process: what was made up for a measurement had no such memory."""
        _, x, loss = self.make()
        use = fg.jit(loss).memory(x)
        assert use.saved_bytes > 10 * loss(x).nbytes + 20 * x.nbytes
        assert 0.9 < use.predicted_peak / use.measured_peak < 1.1

    def test_is_counted_where_sizes_are_symbols(self):
        network, x, loss = self.make()
        compiled = fg.jit(loss, dynamic=True)
        compiled(x)
        for batch in (8, 12):
            x = torch.randn(20, batch, 16)
            use = compiled.memory(x)
            assert use.saved_bytes > 20 * torch.randn(20, 8, 16).nbytes
            found, expected = (torch.autograd.grad(f(x), list(network.parameters())) for f in (compiled, loss))
            torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize(
        "around",
        [
            lambda f: fg.jit(f, memory_budget=0.7),
            lambda f: fg.jit(fg.checkpoint(f)),
            lambda f: fg.jit(lambda x: torch.utils.checkpoint.checkpoint(f, x, use_reentrant=False)),
        ],
        ids=["budget", "checkpoint", "PyTorch's checkpoint"],
    )
    def test_is_there_where_backward_computes_it_again(self, around):
        """Grad mode is off in a backward pass: it was None."""
        network, x, loss = self.make()
        compiled = around(loss)
        for _ in range(2):
            found, expected = (torch.autograd.grad(f(x), list(network.parameters())) for f in (compiled, loss))
            torch.testing.assert_close(found, expected)

    def test_is_there_in_a_saved_program(self, tmp_path):
        network, x, loss = self.make()
        fg.jit(fg.checkpoint(loss)).program(x).save(tmp_path / "program")
        loaded = fg.load(tmp_path / "program")
        found = torch.autograd.grad(loaded(x), list(loaded.tensors.values()))
        expected = torch.autograd.grad(loss(x), list(network.parameters()))
        assert sorted(g.sum().item() for g in found) == pytest.approx(
            sorted(g.sum().item() for g in expected), rel=1e-4
        )
