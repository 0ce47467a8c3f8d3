"""Bytes, operations and seconds, in the unit in which they are read."""

from __future__ import annotations


def in_bytes(n: float) -> str:
    """``1536`` → ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" or float(n).is_integer() else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"


def in_operations(n: float) -> str:
    """``131072`` → ``131 kflop``."""
    for unit in ("flop", "kflop", "Mflop", "Gflop"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} Tflop"


def in_seconds(seconds: float) -> str:
    """``0.0123`` → ``12.3 ms``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
