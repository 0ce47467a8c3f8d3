"""Settings of the process for which functions ask, and which they set: torch's (``get_num_threads``, the flags of
``torch.backends``) and Python's (``gc.isenabled``). No place of Python's holds them, so a guard asks for them again."""

from __future__ import annotations

import decimal
import functools
import gc
import inspect
import locale
import operator
import os
import sys
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import torch
import torch.distributed

from .guards import Place
from .hooks import module_of
from .names import found_on
from .values import is_plain


@attrs.define(eq=False)
class Setting:
    """What ``ask`` returns, which a reader calls ``name``. ``put`` sets it; None: no function of the caller's does.
    ``by``: other functions that ask for it, or set it."""

    name: str
    ask: Callable[[], Any]
    put: Callable[[Any], Any] | None = None
    by: tuple[Callable[..., Any], ...] = ()

    @property
    def value(self) -> Any:
        try:
            return self.ask()
        except (RuntimeError, ValueError) as error:  # of a process group that is none; set in ways that do not mix
            raise AttributeError(self.name) from error

    @value.setter
    def value(self, value: Any) -> None:
        if self.put is None:
            raise AttributeError(f"{self.name} cannot be set")
        self.put(value)

    @property
    def place(self) -> Place:
        return Place("slot", self, "value", self.name)


def _set_anomaly(mode: bool) -> None:
    torch.autograd.set_detect_anomaly(mode, torch.is_anomaly_check_nan_enabled())


def _set_checks(check_nan: bool) -> None:
    torch.autograd.set_detect_anomaly(torch.is_anomaly_enabled(), check_nan)


def _set_collector(enabled: bool) -> None:
    (gc.enable if enabled else gc.disable)()


def _errors_of_numpy() -> tuple[tuple[str, Any], ...]:
    return tuple(np.geterr().items())


def _set_errors_of_numpy(was: tuple[tuple[str, Any], ...]) -> None:
    np.seterr(**dict(was))


_OF_DECIMALS = ("prec", "rounding", "Emin", "Emax", "capitals", "clamp")


def _decimals() -> tuple[Any, ...]:
    context = decimal.getcontext()
    traps = tuple(signal.__name__ for signal, raises in context.traps.items() if raises)
    return (*(getattr(context, name) for name in _OF_DECIMALS), traps)


def _set_decimals(was: tuple[Any, ...]) -> None:
    context, (*own, traps) = decimal.getcontext(), was
    for name, value in zip(_OF_DECIMALS, own, strict=True):
        setattr(context, name, value)
    for signal in context.traps:
        context.traps[signal] = signal.__name__ in traps


DECIMALS = Setting(
    "decimal.getcontext()", _decimals, _set_decimals,
    (decimal.getcontext, decimal.setcontext, decimal.localcontext, decimal.Decimal),
)  # fmt: skip
"""How numbers of ``decimal`` are computed with, wherever one is."""


def _text_of(function: Callable[[], Any]) -> str:
    return repr(function())


_PAIRS = {
    "get_num_threads": "set_num_threads",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "get_default_dtype": "set_default_dtype",
    "is_warn_always_enabled": "set_warn_always",
    "is_autocast_cache_enabled": "set_autocast_cache_enabled",
}
_MORE = {
    "get_deterministic_debug_mode": (
        torch.use_deterministic_algorithms,
        torch.is_deterministic_algorithms_warn_only_enabled,
    )
}
_ANOMALY = (torch.autograd.set_detect_anomaly, torch.autograd.detect_anomaly)
SETTINGS = (
    *(Setting(f"torch.{a}()", getattr(torch, a), getattr(torch, p), _MORE.get(a, ())) for a, p in _PAIRS.items()),
    Setting("torch.is_anomaly_enabled()", torch.is_anomaly_enabled, _set_anomaly, _ANOMALY),
    Setting("torch.is_anomaly_check_nan_enabled()", torch.is_anomaly_check_nan_enabled, _set_checks, _ANOMALY),
    Setting("sys.getrecursionlimit()", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("gc.isenabled()", gc.isenabled, _set_collector, (gc.enable, gc.disable)),
    Setting("os.getcwd()", os.getcwd, os.chdir),
    DECIMALS,
    Setting("np.geterr()", _errors_of_numpy, _set_errors_of_numpy, (np.geterr, np.seterr)),
)
"""What functions set, too."""
_IN_TORCH = (
    "get_num_interop_threads", "backends.cuda.flash_sdp_enabled", "backends.cuda.mem_efficient_sdp_enabled",
    "backends.cuda.math_sdp_enabled", "backends.cuda.cudnn_sdp_enabled",
    "backends.cuda.preferred_linalg_library", "backends.mha.get_fastpath_enabled", "distributed.is_initialized",
    "distributed.get_rank", "distributed.get_world_size", "distributed.get_backend",
)  # fmt: skip
_BY_DEVICE = (
    (torch.get_autocast_dtype, {"cpu": torch.get_autocast_cpu_dtype, "cuda": torch.get_autocast_gpu_dtype}),
    (torch.is_autocast_enabled, {"cpu": torch.is_autocast_cpu_enabled, "cuda": None}),
)
"""Where torch answers by device: those that a function may name, and what asked for it once, which warns."""


def _asked() -> Iterator[Setting]:
    """What functions ask for alone."""
    for path in _IN_TORCH:
        try:
            yield Setting(f"torch.{path}()", operator.attrgetter(path)(torch))
        except AttributeError:  # a torch without torch.distributed
            continue
    for by_device, devices in _BY_DEVICE:
        for device, once in devices.items():
            ask: Callable[[], Any] = functools.partial(by_device, device)
            yield Setting(f"torch.{by_device.__name__}({device!r})", ask, None, (by_device, *filter(None, [once])))
    for function in (np.get_printoptions, locale.localeconv):
        yield Setting(f"{function.__name__}()", functools.partial(_text_of, function), None, (function,))
    yield Setting("threading.get_ident()", threading.get_ident, None, (threading.current_thread,))


_BY_FUNCTION: dict[Any, list[Setting]] = {}
for _setting in (*SETTINGS, *_asked()):
    for _function in filter(None, (_setting.ask, _setting.put, *_setting.by)):
        _BY_FUNCTION.setdefault(_function, []).append(_setting)


def settings_of(function: Any) -> Sequence[Setting]:
    """What a function asks for, or sets."""
    is_known = isinstance(function, (types.FunctionType, types.BuiltinFunctionType, type))
    return _BY_FUNCTION.get(function, ()) if is_known else ()


_KEEP_FLAGS = ("torch.backends", "torch.utils.deterministic")
_flags: dict[tuple[int, str], Setting] = {}


def keeps_flags(owner: Any) -> bool:
    """Whether it is a module of torch's, or an object in one, whose class may read attributes somewhere else."""
    return module_of(type(owner)).startswith(_KEEP_FLAGS)


def names_of_flags(owner: Any) -> set[str]:
    """The flags that its class lists."""
    names = (name for name in dir(type(owner)) if not name.startswith("__"))
    return {name for name in names if hasattr(inspect.getattr_static(type(owner), name), "__set__")}


def flag_of(owner: Any, name: str, called: str) -> Setting | None:
    """Such an attribute, if it is one: ``torch.backends.cudnn.enabled``."""
    if not keeps_flags(owner) or name in vars(owner):
        return None
    kind = type(owner)
    flag = Setting(called, functools.partial(getattr, owner, name), functools.partial(setattr, owner, name))
    is_known = hasattr(kind, "__getattr__") or found_on(kind, name)[0] is not None
    return _flags.setdefault((id(owner), name), flag) if is_known and is_plain(flag.place.read()) else None
