"""How a run of a captured graph looks: for which runs a program was made, and in what another run differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..call_text import type_text
from ..graphs import memory_of
from ..runtime.key import ambient
from .run import Run


@frozen(eq=False)
class Looks:
    """Of a run: its inputs by what they are (``f32[16, 8]``) and how they lie, the numbers it is given, and which of
    the leaves to whose ``.grad`` it adds have none yet. ``saved``: bytes of the inputs, each memory once: what
    forward saved, and the leaves."""

    inputs: tuple[str, ...]
    lie: tuple[tuple[tuple[str, Any], ...], ...]
    shapes: tuple[tuple[int, ...], ...]
    sizes: tuple[int, ...]
    scalars: tuple[object, ...]
    missing: tuple[tuple[int, bool], ...]
    modes: object
    saved: int

    @staticmethod
    def of(run: Run, stored: Sequence[int]) -> Looks:
        """``stored``: the inputs that are such leaves."""
        memory: dict[int, int] = {}
        for value in run.inputs:
            memory |= memory_of(value) if value.layout is torch.strided else {}
        return Looks(
            tuple(map(type_text, run.inputs)), tuple(map(_lies, run.inputs)), tuple(tuple(t.shape) for t in run.inputs),
            tuple(run.sizes), tuple(run.scalars), tuple((i, run.inputs[i].grad is None) for i in stored), ambient(),
            sum(memory.values()),
        )  # fmt: skip

    def differences(self, other: Looks) -> Iterator[str]:
        """What is another one in ``other``, in words."""
        for i, (was, now) in enumerate(zip(self.inputs, other.inputs, strict=True)):
            if was != now:
                yield f"inputs[{i}] is {now}, not {was}"
        for i, (old, new) in enumerate(zip(self.lie, other.lie, strict=True)):
            yield from (
                f"inputs[{i}] has {name} {b}, not {a}" for (name, a), (_, b) in zip(old, new, strict=True) if a != b
            )
        for name in ("sizes", "scalars"):
            pairs = zip(getattr(self, name), getattr(other, name), strict=True)
            yield from (f"{name}[{i}] is {b!r}, not {a!r}" for i, (a, b) in enumerate(pairs) if a != b)
        for (i, had_none), (_, has_none) in zip(self.missing, other.missing, strict=True):
            if had_none != has_none:
                yield f"inputs[{i}] has {'no' if has_none else 'a'} gradient yet"
        if self.modes != other.modes:
            yield "other modes of PyTorch are on"


def _lies(tensor: Tensor) -> tuple[tuple[str, Any], ...]:
    order = tensor.dim_order() if tensor.layout is torch.strided and tensor.numel() else ()
    return ("dimensions in memory order", order), ("device", tensor.device), ("requires_grad", tensor.requires_grad)
