"""Functions of PyTorch's own database of samples, called with one size after the other: each call does what eager
PyTorch does."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves

import funcgrad as fg

from .numbers import REFUSALS, UNSUITED, Raised, difference, outcome, quietly

_SOME = (
    "chunk", "cumsum", "cumprod", "diff", "flip", "narrow", "nn.functional.glu", "nn.functional.pad", "repeat",
    "reshape", "roll",
    "softmax", "split", "tensor_split", "unflatten", "unfold", "view", "std", "sort", "tril",
)  # fmt: skip


_OTHERWISE = ("uniform", "interpolate", "upsample", "slice", "item", "resize_", "jiterator")
"""Draws, after it has set the generator (as item does); is refused by PyTorch's shape functions where the batch is
empty; calls an overload itself; returns memory nobody wrote to; runs on a GPU alone."""


def sequences(names: tuple[str, ...] | None) -> list[tuple[str, Callable[[Tensor], Any], list[Tensor]]]:
    """Functions of one tensor, with tensors of several first sizes: of those the sample has, doubled, odd, 1 and 0."""
    found: list[tuple[str, Callable[[Tensor], Any], list[Tensor]]] = []
    for info in op_db:
        unsuited = any(u in info.name for u in (*UNSUITED, *_OTHERWISE))
        if unsuited or (names and info.name not in names) or torch.float32 not in info.supported_dtypes("cpu"):
            continue
        torch.manual_seed(0)
        for i, sample in enumerate(itertools.islice(info.sample_inputs("cpu", torch.float32), 4)):
            x = sample.input
            alone = isinstance(x, Tensor) and not any(
                isinstance(v, Tensor) for v in tree_leaves((sample.args, sample.kwargs))
            )
            if not alone or x.ndim == 0 or not 0 < x.numel() < 400 or x.layout != torch.strided:
                continue
            rows = torch.cat([x.detach()] * 4)[:17]
            n = x.shape[0]
            call = lambda t, op=info.op, s=sample: op(t, *s.args, **s.kwargs)  # noqa: E731
            found.append(
                (
                    f"{info.name} {i}",
                    call,
                    [rows[:k].clone() for k in (n, 2 * n, n + 1, 3 * n, 1, n + 2, 0) if k <= len(rows)],
                )
            )
    return found


def check(name: str, function: Callable[[Tensor], Any], tensors: list[Tensor], backend: str) -> str | None:
    """How the compiled function differs from eager PyTorch."""
    compiled = fg.jit(function, backend=backend)
    for x in tensors:
        expected, found = outcome(lambda: function(x.clone())), outcome(lambda: compiled(x.clone()))
        if isinstance(found, Raised) and type(found.error) in REFUSALS:
            return None
        text = difference(found, expected)
        if text is not None:
            return f"{name} on {backend} at {list(x.shape)}: {text}"
    return None


def test_some_functions_at_several_sizes() -> None:
    found = [text for one in sequences(_SOME) if (text := quietly(lambda: check(*one, "aten"))) is not None]
    assert not found, "\n".join(found)


def test_functions_at_several_sizes_in_kernels() -> None:
    """A part of all of them, as a kernel is compiled for each."""
    torch.set_num_threads(1)
    chosen = random.Random(0).sample(sequences(None), 5)
    found = [text for name, f, xs in chosen if (text := quietly(lambda: check(name, f, xs[:3], "c"))) is not None]
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["c", "aten"])
def test_every_function_at_several_sizes(backend: str) -> None:
    found = [text for one in sequences(None) if (text := quietly(lambda: check(*one, backend))) is not None]
    assert not found, "\n".join(found)
