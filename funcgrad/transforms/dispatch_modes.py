"""Dispatch modes of the caller's around a call: operations run in kernels, of which they do not hear."""

from __future__ import annotations

import weakref

from ..errors import DispatchModeWarning
from ..options import Options
from ..state.hooks import module_of
from ..state.lines import warn
from ..state.names import package
from ..torch_private.modes import dispatch_modes

_told: weakref.WeakSet[type] = weakref.WeakSet()


def tell_of_dispatch_modes(name: str, options: Options) -> None:
    """Warn, once for each class, of a mode that may want to hear of each operation. Those of torch's own count, or
    trace."""
    for kind in {type(mode) for mode in dispatch_modes()} - {*_told} if options.backend != "aten" else ():
        if package(module_of(kind)) not in ("torch", "funcgrad"):
            _told.add(kind)
            warn(
                f"{name} is called under {kind.__name__}, a TorchDispatchMode: it hears of the library calls of "
                "compiled programs alone, and neither sees nor changes what their kernels compute. Call the function "
                'itself there, or compile it with backend="aten".',
                DispatchModeWarning,
            )
