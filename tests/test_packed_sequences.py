"""Packed sequences: what PyTorch reads of lengths in C++ is computed in the program, one for all lengths with the
same longest one."""

import pytest
import torch
from closeness import assert_rounded
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

import funcgrad as fg

NETWORKS = {
    "lstm": lambda: nn.LSTM(3, 4),
    "lstm both ways, in layers": lambda: nn.LSTM(3, 4, num_layers=2, bidirectional=True, dropout=0.5),
    "lstm with a projection": lambda: nn.LSTM(3, 4, proj_size=2),
    "lstm with a projection, without biases": lambda: nn.LSTM(3, 4, proj_size=2, bias=False),
    "gru": lambda: nn.GRU(3, 4),
    "gru both ways, without biases": lambda: nn.GRU(3, 4, bidirectional=True, bias=False),
    "rnn": lambda: nn.RNN(3, 4),
    "rnn of relu": lambda: nn.RNN(3, 4, nonlinearity="relu"),
}


class Network(nn.Module):
    def __init__(self, network):
        super().__init__()
        self.rnn = network

    def forward(self, x, lengths):
        out, state = self.rnn(pack_padded_sequence(x, lengths, enforce_sorted=False))
        padded, own = pad_packed_sequence(out, padding_value=0.5, total_length=3)
        return padded, state, own


def _trained(call, network, x, lengths, seed):
    network.zero_grad()
    torch.manual_seed(seed)
    leaf = x.clone().requires_grad_()
    padded, state, own = call(leaf, lengths)
    (padded.sin().sum() + sum((s * s).sum() for s in (state if isinstance(state, tuple) else (state,)))).backward()
    return padded.detach(), state, own, leaf.grad, [p.grad.clone() for p in network.parameters()], torch.rand(1)


@pytest.mark.parametrize("name", NETWORKS)
def test_recurrent_networks(name):
    torch.manual_seed(0)
    network = Network(NETWORKS[name]())
    compiled = fg.jit(network, backend="aten")
    for seed, lengths in enumerate([[2, 1, 2], [1, 2, 2]]):
        given = torch.randn(2, 3, 3), torch.tensor(lengths), seed
        found, expected = (_trained(call, network, *given) for call in (compiled, network))
        assert_rounded(found, expected)
    assert compiled.cache_info().misses == 1


def test_one_program_for_as_many_steps():
    network = Network(nn.RNN(3, 4))
    compiled = fg.jit(network, backend="aten")
    for lengths in ([2, 1, 2], [1, 1, 2], [1, 2, 2], [2, 1, 1]):
        x, n = torch.randn(2, 3, 3), torch.tensor(lengths)
        assert_rounded(compiled(x, n), network(x, n))
    assert compiled.cache_info().misses == 2  # the first lengths, and all others


@pytest.mark.parametrize("backend", ["c", "aten"])
def test_data_without_padding(backend):
    def f(x, y):
        packed = pack_sequence([x, y])
        padded, lengths = pad_packed_sequence(packed, batch_first=True)
        return (
            (packed.data * torch.arange(len(packed.data))[:, None]).sum() + padded[1].sum(),
            packed.batch_sizes,
            lengths,
        )

    compiled = fg.jit(f, backend=backend)
    for n, k in ((3, 2), (4, 2), (4, 4), (5, 1)):
        x, y = torch.randn(n, 2), torch.randn(k, 2)
        assert_rounded(compiled(x, y), f(x, y))


def test_sequences_that_are_shorter_than_said_are_as_in_eager_pytorch():
    f = lambda x, n: tuple(pack_padded_sequence(x, n))[:2]  # noqa: E731
    x, lengths = torch.randn(3, 2, 1), torch.tensor([4, 1])
    assert_rounded(fg.jit(f)(x, lengths), f(x, lengths))


@pytest.mark.parametrize("lengths", [[1, 2], [2, 0], [2]])
def test_lengths_that_pytorch_refuses(lengths):
    f = lambda x, n: pack_padded_sequence(x, n).data  # noqa: E731
    for call in (f, fg.jit(f)):
        with pytest.raises(RuntimeError) as caught:
            call(torch.ones(3, 2, 1), torch.tensor(lengths))
        assert not isinstance(caught.value, fg.FuncgradError)


def test_steps_that_are_not_of_their_data():
    f = lambda x, n: pad_packed_sequence(PackedSequence(x, n))  # noqa: E731
    compiled = fg.jit(f, backend="aten")
    for rows, sizes in ((6, [3, 2, 1]), (8, [3, 2, 1]), (6, [2, 3, 1]), (5, [3, 2, 1])):
        args = torch.arange(float(rows))[:, None], torch.tensor(sizes)
        try:
            want = f(*args)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(*args)
        else:
            assert_rounded(compiled(*args), want)
