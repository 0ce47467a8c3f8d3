"""Which backend runs a program: the one asked for, or the fastest for the device its tensors are on."""

from __future__ import annotations

import torch

from ..errors import BuildError, MissingCompilerWarning
from ..graphs import Graph, device_of
from ..machine import machine_of
from ..options import ENVIRONMENT, Options
from ..state.lines import warn
from .aten import AtenBackend
from .backend import Backend
from .build import compiler
from .fused import CBackend, TritonBackend
from .triton_build import is_installed


def choose_backend(options: Options, graph: Graph) -> Backend:
    """The backend an option names; the environment may name one for ``"auto"``.

    Raises ``BuildError`` where it cannot run here.
    """
    device = device_of(graph)
    name = ENVIRONMENT.backend or "auto" if options.backend == "auto" else options.backend
    if name == "auto":
        name = "aten" if options.numerics == "eager" else _fastest(device)
    return backend_named(name, device)


def backend_named(name: str, device: torch.device) -> Backend:
    """A backend for tensors of a device. Raises ``BuildError`` where it cannot run here."""
    if name == "c":
        _require_compiler()
        return CBackend()
    if name == "triton":
        _require_triton(device)
        return TritonBackend(device)
    return AtenBackend(machine_of(device))


def _fastest(device: torch.device) -> str:
    on_cuda = device.type == "cuda"
    if not (is_installed() if on_cuda else compiler()):
        missing = "Triton" if on_cuda else "C compiler (gcc, cc or CC)"
        warn(f"funcgrad finds no {missing}: calls run as ATen, unfused and slower", MissingCompilerWarning)
        return "aten"
    return "triton" if on_cuda else "c"


def _require_compiler() -> None:
    if compiler() is None:
        raise BuildError(
            'backend="c" needs a C compiler, and there is none',
            fix='install gcc, name a compiler in CC, or use backend="aten"',
        )


def _require_triton(device: torch.device) -> None:
    if not is_installed():
        raise BuildError(
            'backend="triton" needs Triton, and it is not installed', fix='pip install triton, or use backend="aten"'
        )
    if device.type == "cpu" and not ENVIRONMENT.interpret:
        raise BuildError(
            'backend="triton" was asked for, and all tensors are on the CPU',
            fix='move them to a CUDA device, use backend="c", or have kernels interpreted: set TRITON_INTERPRET=1 '
            "before Python starts",
        )
