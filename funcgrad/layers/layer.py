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


def plan_layers(autocast_devices: tuple[str, ...]) -> tuple[Layer, ...]:
    """The layers a call needs, given the device types for which autocast is on: none, or one that turns it off.

    The casts autocast makes were recorded while tracing; a kernel that ran under it would cast twice.
    """
    if not autocast_devices:
        return ()
    contexts = ", ".join(f"autocast({d!r}, enabled=False)" for d in autocast_devices)
    return (Layer("autocast", "No ambient autocast touches an inner call.", contexts),)
