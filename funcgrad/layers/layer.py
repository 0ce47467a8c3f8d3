"""A layer makes one sentence true of every inner call. In this version: the ambient state the kernel runs under."""

from __future__ import annotations

from attrs import frozen

from ..show import Doc, Shown, Text


@frozen
class Layer(Shown):
    """``name``, the ``sentence`` it makes true, and the ``context`` (a Python expression) entered around the kernel."""

    name: str
    sentence: str
    context: str

    def doc(self) -> Doc:
        return Doc(self.name, (Text(self.sentence),))


def plan_layers(autocast_devices: tuple[str, ...], needs_grad_mode: bool) -> tuple[Layer, ...]:
    """The layers a call needs: none, or one for each piece of ambient state that is not what the kernel was traced under.

    ``autocast_devices``: device types for which autocast is on outside. ``needs_grad_mode``: grad mode is off outside, but
    the kernel holds a backward pass.
    """
    layers: list[Layer] = []
    if autocast_devices:
        # the casts autocast makes were recorded while tracing; a kernel that ran under it would cast twice
        contexts = ", ".join(f"autocast({d!r}, enabled=False)" for d in autocast_devices)
        layers.append(Layer("autocast", "No ambient autocast touches an inner call.", contexts))
    if needs_grad_mode:
        layers.append(Layer("grad mode", "Grad mode is on in an inner call: some kernels ask for it (oneDNN's RNN).", "enable_grad()"))
    return tuple(layers)
