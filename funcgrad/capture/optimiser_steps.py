"""The steps of optimisers that ask Python for a number they keep in a tensor (``step.item()``), which is another in
each call.

PyTorch has these steps a second time as tensor code, for CUDA graphs (``capturable=True``), or as the operators of
``fused=True``. A trace takes that code where the number is not known. It computes in the dtype of the count, which is
single precision, so it is given counts in double precision: ``1 - beta2**step`` is as exact as with a number of Python.
Where the number is known (the state is made by this very call) the step is PyTorch's own for numbers.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..torch_private.operators import CAPTURABLE_DEVICES

_FUSED = ("sgd", "adagrad")
"""Those that have no ``capturable=True``, or (for a learning rate that is a tensor) read values with it, too."""
_STEPS = tuple(
    (importlib.import_module(f"torch.optim.{name}"), name)
    for name in ("adam", "adamax", "asgd", "nadam", "radam", *_FUSED)
)
_SIGNATURES = {name: inspect.signature(getattr(module, name)) for module, name in _STEPS}
_COUNTED = ("state_steps", "etas", "mus")
"""The arguments that hold a count, or what is computed of counts alone; the product that ``nadam`` keeps rounds at
each step."""

PLACES = (
    *((module, name, f"step of {name}") for module, name in _STEPS),
    *((module, name, "capturable devices") for module, name in CAPTURABLE_DEVICES),
)
"""Attributes of torch that are replaced, and the names of what replaces them."""


def steps_of_optimisers(is_known: Callable[[Tensor], bool]) -> dict[str, Callable[..., Any]]:
    """What replaces ``PLACES`` in one trace."""
    is_any_device = False

    def devices(original: Callable[..., Sequence[str]], *args: Any, **kwargs: Any) -> list[str]:
        return [*original(*args, **kwargs), *(["cpu"] if is_any_device else [])]

    def counted_in_tensors(original: Callable[..., None], given: dict[str, Any]) -> None:
        nonlocal is_any_device
        counted = [name for name in _COUNTED if name in given]
        own = {
            name: [t.to(p.device, torch.float64) for t, p in zip(given[name], given["params"], strict=True)]
            for name in counted
        }
        before, is_any_device = is_any_device, True
        try:
            original(**{**given, **own, "capturable": True})
        finally:
            is_any_device = before
        for name in counted:
            for kept, now in zip(given[name], own[name], strict=True):
                kept.copy_(now)

    def step_of(name: str) -> Callable[..., None]:
        def step(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
            given = _SIGNATURES[name].bind(*args, **kwargs).arguments
            if all(map(is_known, _asked(given))) or not _has_tensor_code(name, given):
                original(*args, **kwargs)
            elif name in _FUSED:
                original(**{**given, "fused": True, "foreach": False})
            else:
                counted_in_tensors(original, given)

        return step

    return {"capturable devices": devices, **{f"step of {name}": step_of(name) for _, name in _STEPS}}


def _asked(given: dict[str, Any]) -> list[Tensor]:
    """The tensors of which a step asks the value."""
    return [t for t in (given["lr"], *given.get("state_steps", ())) if isinstance(t, Tensor)]


def _has_tensor_code(name: str, given: dict[str, Any]) -> bool:
    """Whether a step has tensor code that computes the same, and is not that code itself."""
    if any(given.get(flag) for flag in ("capturable", "fused", "differentiable", "has_sparse_grad")):
        return False
    if name not in _FUSED:
        return True
    is_first = {buffer is None for buffer in given.get("momentum_buffer_list", ())}
    return len(is_first) < 2 and not any(p.is_complex() for p in given["params"])
