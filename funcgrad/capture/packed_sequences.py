"""Packed sequences: sequences of several lengths, step by step without padding.

PyTorch reads in C++, where no trace sees it, how many sequences each step has. Here the same is computed by calls that
a trace does see: Python reads the length of the longest sequence and how many elements there are; what else is asked of
the lengths is tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .recurrent import CELLS, Cell, States, by_layers

_UNSORTED = (
    "`lengths` array must be sorted in decreasing order when `enforce_sorted` is True, and each of it greater than 0"
)


def pack(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """The elements of padded sequences, longest first, and how many there are in each step."""
    steps = input.transpose(0, 1) if batch_first else input
    if lengths.shape != steps.shape[1:2]:
        raise RuntimeError(
            f"Expected `len(lengths)` to be equal to batch_size, but got {len(lengths)} (batch_size={steps.shape[1]})"
        )
    if not ((lengths[1:] <= lengths[:-1]).all() & (lengths[-1] > 0)):
        raise RuntimeError(_UNSORTED)
    is_there = torch.arange(steps.shape[0])[:, None] < lengths
    return steps[is_there.to(steps.device)], (torch.arange(_of_first(lengths))[:, None] < lengths).sum(1)


def pad(
    data: Tensor, batch_sizes: Tensor, batch_first: bool, padding_value: Any, total_length: int
) -> tuple[Tensor, Tensor]:
    """Packed sequences as padded ones, and how long each is."""
    steps, batch = batch_sizes.shape[0], _of_first(batch_sizes)
    data = _whole(data, batch_sizes, more_may_follow=True)
    if 0 < total_length < steps:
        raise RuntimeError(
            "Expected total_length to be at least the length of the longest sequence in input, but got "
            f"total_length={total_length}"
        )
    length = total_length if total_length > 0 else steps
    room = data.new_full((length * batch, *data.shape[1:]), padding_value)
    padded = room.index_copy(0, _places(batch_sizes, batch, data), data).view(length, batch, *data.shape[1:])
    lengths = (torch.arange(batch) < batch_sizes[:, None]).sum(0)
    return padded.transpose(0, 1) if batch_first else padded, lengths


def _of_first(numbers: Tensor) -> int:
    return numbers[0].item()  # type: ignore[return-value]


def _whole(data: Tensor, batch_sizes: Tensor, more_may_follow: bool = False) -> Tensor:
    """The rows of all steps. Raises ``RuntimeError`` where there are others than the steps say."""
    if not (batch_sizes[1:] <= batch_sizes[:-1]).all():
        raise RuntimeError("the batch sizes of a packed sequence must not increase from step to step")
    if batch_sizes.sum() == data.shape[0]:
        return data
    count: Any = batch_sizes.sum().item()
    if count > data.shape[0] or not more_may_follow:
        raise RuntimeError(f"the steps of a packed sequence have {count} rows, and its data {data.shape[0]}")
    return data[:count]


def _places(batch_sizes: Tensor, batch: int, data: Tensor) -> Tensor:
    """Which row of all steps, one after the other, each row of packed data is."""
    count = data.shape[0]
    step = torch.repeat_interleave(batch_sizes, output_size=count)
    before = (batch_sizes.cumsum(0) - batch_sizes)[step]
    return (step * batch + torch.arange(count) - before).to(data.device)


# ── recurrent networks ───────────────────────────────────────────────────────────────────────────────────────────────


def _recurrent(cell: Cell) -> Callable[..., Any]:
    """A recurrent network of packed sequences: each step of the longest is made for all, and a sequence that is over
    keeps its state."""

    def call(data: Tensor, batch_sizes: Tensor, state: Tensor | Sequence[Tensor], *network: Any) -> tuple[Tensor, ...]:
        steps, batch = batch_sizes.shape[0], (state if isinstance(state, Tensor) else state[0]).shape[1]
        places = _places(batch_sizes, batch, _whole(data, batch_sizes))
        is_there = (torch.arange(batch) < batch_sizes[:, None]).to(data.device)

        def run(given: Tensor, now: States, of_state: Sequence[Any], is_reverse: bool) -> tuple[Tensor, States]:
            rows = given.new_zeros(steps * batch, given.shape[1]).index_copy(0, places, given).view(steps, batch, -1)
            hidden: list[Tensor] = []
            for t in reversed(range(steps)) if is_reverse else range(steps):
                made = cell(rows[t], now, of_state)
                now = tuple(torch.where(is_there[t][:, None], n, s) for n, s in zip(made, now, strict=True))
                hidden.append(now[0])
            return torch.cat(hidden[::-1] if is_reverse else hidden)[places], now

        return by_layers(run, data, state, *network)

    return call


def is_packed(*args: Any) -> bool:
    """Whether a recurrent network is called with packed sequences."""
    return len(args) > 3 and isinstance(args[1], Tensor) and isinstance(args[3], (list, tuple))


PACKED_NETWORKS: Mapping[Any, Callable[..., Any]] = {network: _recurrent(cell) for network, cell in CELLS.items()}
"""Recurrent networks of packed sequences."""
