"""Printed Triton to functions. Triton is imported by the printed module, and by nothing before.

Triton compiles a kernel when it is first launched, and keeps what it made on disk, by the kernel's text.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from ..source import Source, compile_module


@functools.cache
def is_installed() -> bool:
    """Whether there is a Triton to import."""
    return importlib.util.find_spec("triton") is not None


_loaded: dict[str, dict[str, Any]] = {}


def load(source: Source, device: torch.device) -> dict[str, Callable[..., bool | None]]:
    """The launches a printed module defines, by name; one text is loaded once. Kernels run on ``device``, whichever
    is the current one."""
    module = _loaded.get(source.text)
    if module is None:
        module = _loaded.setdefault(source.text, compile_module(source))
    return {name: _on(device, module[name]) for name in source.names}


def _on(device: torch.device, launch: Callable[..., bool | None]) -> Callable[..., bool | None]:
    if device.type != "cuda" or torch.cuda.device_count() == 1:
        return launch

    @functools.wraps(launch)
    def on_device(*tensors: torch.Tensor) -> bool | None:
        with torch.cuda.device(device):
            return launch(*tensors)

    return on_device
