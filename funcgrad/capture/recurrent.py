"""Recurrent networks: their cells, and networks of as many steps as a symbol says, as a ``scan`` of each layer.

PyTorch's own are unrolled in a trace, step by step; of LSTMs in float32 oneDNN runs whole layers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..torch_private.symbols import is_size

States = tuple[Tensor, ...]
Cell = Callable[[Tensor, States, Sequence[Any]], States]
"""Makes the next states of what a step is given, times its weights, the states, and the weights of these."""
Loop = Callable[
    [Callable[..., Sequence[Tensor]], Sequence[Tensor], Sequence[Tensor], Sequence[Tensor]], Sequence[Tensor]
]
"""``scan``: a body, the first carry, what it goes over, and what it is given besides."""


def _lstm(given: Tensor, state: States, weights: Sequence[Tensor]) -> States:
    i, f, g, o = (given + functional.linear(state[0], weights[0], *weights[1:2])).chunk(4, 1)
    cell = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    hidden = o.sigmoid() * cell.tanh()
    return functional.linear(hidden, weights[2]) if len(weights) > 2 else hidden, cell


def _gru(given: Tensor, state: States, weights: Sequence[Tensor]) -> States:
    (hidden,) = state
    reset, update, new = given.chunk(3, 1)
    own_reset, own_update, own_new = functional.linear(hidden, *weights).chunk(3, 1)
    new = (new + own_new * (reset + own_reset).sigmoid()).tanh()
    return ((hidden - new) * (update + own_update).sigmoid() + new,)


def _elman(activation: Callable[[Tensor], Tensor]) -> Callable[..., States]:
    return lambda given, state, weights: (activation(given + functional.linear(state[0], *weights)),)


CELLS: Mapping[Any, Cell] = {
    torch.lstm: _lstm, torch.gru: _gru, torch.rnn_tanh: _elman(torch.tanh), torch.rnn_relu: _elman(torch.relu),
}  # fmt: skip

ARGUMENTS = (
    "input", "hx", "params", "has_biases", "num_layers", "dropout", "train", "bidirectional", "batch_first"
)  # fmt: skip
"""Of these calls, where what is given is not packed."""


def by_layers(
    run: Callable[[Tensor, States, Sequence[Any], bool], tuple[Tensor, States]], data: Tensor,
    state: Tensor | Sequence[Tensor], params: Sequence[Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A recurrent network. ``run`` makes the results, and the last states, of one layer in one direction: of what its
    steps are given, times its weights, the first states, the weights of these, and whether it begins at the end."""
    states = (state,) if isinstance(state, Tensor) else tuple(state)
    own = iter(zip(*(s.unbind(0) for s in states), strict=True))
    of_layers = _weights_of_layers(params, has_biases, num_layers * (1 + bidirectional))
    last: list[States] = []
    for layer in range(num_layers):
        if layer and dropout and train:
            data = torch.dropout(data, dropout, True)
        made = []
        for is_reverse in (False, True)[: 1 + bidirectional]:
            of_given, of_state = next(of_layers)
            hidden, now = run(functional.linear(data, *of_given), next(own), of_state, is_reverse)
            made.append(hidden)
            last.append(now)
        data = torch.cat(made, -1) if bidirectional else made[0]
    return data, *(torch.stack(s) for s in zip(*last, strict=True))


def _weights_of_layers(
    params: Sequence[Tensor], has_biases: bool, n: int
) -> Iterator[tuple[Sequence[Tensor], Sequence[Any]]]:
    """The weights of what each of ``n`` layers and directions is given, with their bias, and those of its state: with
    theirs, and what projects it."""
    each = len(params) // n
    for i in range(0, len(params), each):
        weights = params[i : i + each]
        bias = weights[2:3] if has_biases else ()
        yield (weights[0], *bias), ((weights[1], *weights[3:]) if has_biases else (weights[1], None, *weights[2:]))


def has_symbolic_steps(*args: Any) -> bool:
    """Whether a network is called with a tensor that goes along a dimension whose size is a symbol."""
    given, batch_first = args[0], args[-1]
    return given.dim() == 3 and is_size(given.shape[1 if batch_first else 0])


def drops_between_layers(*args: Any) -> bool:
    """Whether a network drops elements of what a layer gives the next one. PyTorch's formula, which stands for its
    C++ where a size is a symbol, drops none (seen in 2.13)."""
    num_layers, dropout, train = args[4:7]
    return bool(num_layers > 1 and dropout and train)


def layer_after_layer(
    network: Callable[..., States], given: Tensor, state: Tensor | Sequence[Tensor], params: Sequence[Tensor],
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """A network as networks of one layer each, with dropout between them."""
    data = given.transpose(0, 1) if batch_first else given
    directions, each = 1 + bidirectional, len(params) // num_layers
    last: list[States] = []
    for layer in range(num_layers):
        if layer:
            data = torch.dropout(data, dropout, True)
        own = slice(layer * directions, (layer + 1) * directions)
        first = state[own] if isinstance(state, Tensor) else [s[own] for s in state]
        weights = params[layer * each : (layer + 1) * each]
        data, *now = network(data, first, weights, has_biases, 1, 0.0, train, bidirectional, False)
        last.append(tuple(now))
    return data.transpose(0, 1) if batch_first else data, *(torch.cat(s) for s in zip(*last, strict=True))


def is_of_whole_layers(network: Any, *args: Any) -> bool:
    """Whether oneDNN runs each layer at once."""
    given, state = args[:2]
    is_here = network is torch.lstm and given.device.type == "cpu" and given.dtype is torch.float32
    return is_here and state[0].shape[2] == state[1].shape[2] and bool(torch.backends.mkldnn.enabled)


def by_steps(loop: Loop, cell: Cell, given: Tensor, *network: Any) -> tuple[Tensor, ...]:
    """A recurrent network, as a loop over the steps of each layer and direction."""
    *network_of_steps, batch_first = network

    def run(rows: Tensor, first: States, of_state: Sequence[Any], is_reverse: bool) -> tuple[Tensor, States]:
        def body(*values: Tensor) -> Sequence[Tensor]:
            now, row, rest = values[: len(first)], values[len(first)], iter(values[len(first) + 1 :])
            found = cell(row, now, [w if w is None else next(rest) for w in of_state])
            return *found, found[0].clone()

        there = [w for w in of_state if w is not None]
        *last, hidden = loop(body, first, [rows.flip(0) if is_reverse else rows], there)
        return hidden.flip(0) if is_reverse else hidden, tuple(last)

    data, *last = by_layers(run, given.transpose(0, 1) if batch_first else given, *network_of_steps)
    return data.transpose(0, 1) if batch_first else data, *last
