"""How memory is measured: from the profiler's allocation events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from funcgrad.backends import peak


def peak_bytes(call: Callable[[], Any]) -> int:
    """``peak.peak_bytes`` of a call that is not the first."""
    call()
    return peak.peak_bytes(call)
