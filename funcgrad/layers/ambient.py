"""Ambient state the kernel was not traced under."""

from __future__ import annotations

from ..slots import Signature
from .layer import Layer


def no_autocast(signature: Signature, devices: tuple[str, ...]) -> Layer | None:
    """No ambient autocast touches an inner call."""
    # the casts autocast makes were recorded while tracing; a kernel that ran under it would cast twice
    context = ", ".join(f"autocast({d!r}, enabled=False)" for d in devices)
    return Layer("autocast", str(no_autocast.__doc__), signature, signature, context=context) if devices else None


def untracked(signature: Signature, needed: bool) -> Layer | None:
    """Autograd does not look into an inner call: nothing it computes has a gradient, though inputs require grad."""
    return (
        Layer("untracked", str(untracked.__doc__), signature, signature, context="below_autograd()") if needed else None
    )


def grad_mode(signature: Signature, needed: bool) -> Layer | None:
    """Grad mode is on in an inner call: some kernels ask for it (oneDNN's RNN)."""
    return Layer("grad mode", str(grad_mode.__doc__), signature, signature, context="enable_grad()") if needed else None
