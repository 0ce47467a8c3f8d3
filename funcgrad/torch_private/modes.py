"""Modes: which are active, entering them, and what is not to hear of a call."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch._subclasses.fake_tensor import (
    FakeTensor,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils import _python_dispatch
from torch.utils._python_dispatch import TorchDispatchMode

from ..inside import OfProcess
from .functional import running_tracer

__all__ = ["TorchDispatchMode", "TorchFunctionMode"]


def without_function_modes() -> contextlib.AbstractContextManager[Any]:
    """Inside, no torch-function mode (nor any ``__torch_function__``) is asked."""
    return torch._C.DisableTorchFunction()


def function_modes() -> tuple[object, ...]:
    """The active torch-function modes; a default device counts by its device, another mode as itself."""
    if not torch._C._len_torch_function_stack():
        return ()
    stack = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return tuple(m.device if isinstance(m, torch.utils._device.DeviceContext) else m for m in stack)


def foreign_trace_active(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether another tracer (make_fx, torch.export, AOTAutograd, a fake mode) is running us."""
    if running_tracer() is not None:
        return True
    return any(isinstance(t, (FakeTensor, FunctionalTensor)) for t in tensors)


class _Modes(threading.local):
    """How deep this thread is in ``modes_entered``."""

    depth = 0


_modes = _Modes()


_enter_mode, _exit_mode = TorchDispatchMode.__enter__, TorchDispatchMode.__exit__


# 2.13, 2.15; of this thread alone
_tell_dynamo = getattr(_python_dispatch, "set_is_in_mode_without_ignore_compile_internals", None)


def _enter_unnoted(mode: Any) -> Any:
    if not _modes.depth:
        return _enter_mode(mode)  # type: ignore[no-untyped-call]
    if _tell_dynamo is not None and not mode.ignore_compile_internals():
        _tell_dynamo(True)
    _python_dispatch._push_mode(mode)  # type: ignore[no-untyped-call]
    return mode


def _exit_unnoted(mode: Any, *error: Any) -> Any:
    if not _modes.depth:
        return _exit_mode(mode, *error)  # type: ignore[no-untyped-call]
    own = mode.__dict__
    _python_dispatch._pop_mode(own["_dispatch_key"] if own.get("_dispatch_key") is not None else own.get("_mode_key"))
    if _tell_dynamo is not None:
        _tell_dynamo(any(not m.ignore_compile_internals() for m in dispatch_modes()))
    return None


def dispatch_modes() -> list[Any]:
    """The dispatch modes that this thread is in, the outermost first, without those of torch's own tracers."""
    stack_at: Any = vars(_python_dispatch)["_get_dispatch_stack_at"]
    return [stack_at(i) for i in range(torch._C._len_torch_dispatch_stack())]


dispatch_mode_active: Callable[[], bool] = torch._C._len_torch_dispatch_stack  # type: ignore[assignment]
"""Whether this thread may be in dispatch modes."""


@OfProcess
def _unnoted() -> Iterator[None]:
    only_lift = torch._C._only_lift_cpu_tensors()
    TorchDispatchMode.__enter__, TorchDispatchMode.__exit__ = _enter_unnoted, _exit_unnoted  # type: ignore[method-assign]
    yield
    TorchDispatchMode.__enter__, TorchDispatchMode.__exit__ = _enter_mode, _exit_mode  # type: ignore[method-assign]
    torch._C._set_only_lift_cpu_tensors(only_lift)


@contextlib.contextmanager
def modes_entered() -> Iterator[None]:
    """Inside, dispatch modes are entered and left by this thread without a note of it for the whole process. Torch
    notes there that some thread is in a mode; each mode notes again what it found, so the last of two threads would
    note for good what the first one had."""
    with _unnoted():
        _modes.depth += 1
        try:
            yield
        finally:
            _modes.depth -= 1


def count_flops(calls: Sequence[tuple[Any, tuple[Any, ...], Any]]) -> None:
    """Tell ``torch.utils.flop_counter.FlopCounterMode`` of calls it does not see: operator, arguments and result,
    sizes for tensors."""
    module: Any = sys.modules.get("torch.utils.flop_counter")  # whoever counts has imported it
    for mode in dispatch_modes() if module is not None else ():
        if isinstance(mode, module._FlopCounterMode):
            for operator, args, out in calls:
                mode.counter._count_flops(operator.overloadpacket, out, args, {})


@contextlib.contextmanager
def outside_dispatch_modes() -> Iterator[None]:
    """Inside, the caller's dispatch modes (one that logs, counts or clones) hear of nothing, and change nothing."""
    modes = dispatch_modes()
    for _ in modes:
        _python_dispatch._pop_mode()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for mode in modes:
            _python_dispatch._push_mode(mode)  # type: ignore[no-untyped-call]


def saved_hooks_active() -> bool:
    """Whether what is saved for backward goes through ``saved_tensors_hooks``."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


@contextlib.contextmanager
def saved_as_they_are() -> Iterator[None]:
    """Inside, what is saved for backward goes through no ``saved_tensors_hooks`` of the caller's: a checkpoint
    counts what does."""
    set_aside = []
    while (top := torch._C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        set_aside.append(top)
        torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(set_aside):
            torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


profiler: Any = torch.autograd.profiler
"""``profiler._is_profiler_enabled``: whether one runs, in any thread. To read it takes a third of what asking a
function does."""


profiler_range: Any = torch._C._profiler._RecordFunctionFast
"""A context in which what is profiled belongs to a range of a name."""
