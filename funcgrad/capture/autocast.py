"""Ambient autocast: what it is now, making it so again, and what a backward pass is traced under."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ..options import BackwardAutocast
from ..torch_private.autograd import any_autocast

DEVICES = ("cpu", "cuda")

Autocast = tuple[tuple[str, torch.dtype], ...]
"""The device types for which autocast is on, each with its dtype."""


def autocast_now() -> Autocast:
    """The ambient state."""
    return (
        tuple((d, torch.get_autocast_dtype(d)) for d in DEVICES if torch.is_autocast_enabled(d))
        if any_autocast()
        else ()
    )


@contextlib.contextmanager
def autocast_as(state: Autocast) -> Iterator[None]:
    """Inside, autocast is as it was when ``state`` was read."""
    dtypes = dict(state)
    with contextlib.ExitStack() as stack:
        for device in DEVICES:
            if device in dtypes or torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, dtype=dtypes.get(device), enabled=device in dtypes))
        yield


@contextlib.contextmanager
def backward_under(option: BackwardAutocast) -> Iterator[None]:
    """What a backward pass is traced under: no autocast, that of its forward pass, or the one the caller asked for.

    Built-in formulas do not look at it; the backward of a custom ``autograd.Function`` does. In eager PyTorch it sees
    what is ambient where ``backward()`` is called, which is after tracing.
    """
    if option == "same_as_forward":
        yield
        return
    with autocast_as(()), contextlib.ExitStack() as stack:
        for keywords in option if isinstance(option, tuple) else ():
            stack.enter_context(torch.autocast(**dict(keywords)))
        yield
