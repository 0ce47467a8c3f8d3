"""Settings of the process for which functions ask, and which they set: torch's (``get_num_threads``, the flags of
``torch.backends``) and Python's (``gc.isenabled``). No place of Python's holds them, so a guard asks for them again."""

from __future__ import annotations

import decimal
import functools
import gc
import inspect
import locale
import logging
import operator
import os
import sys
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import torch
import torch.distributed
from torch.distributions import Distribution

from ..garbage import as_the_caller_has_set, thresholds_of_caller
from ..torch_private.distributions import checks_arguments
from ..torch_private.texts import print_options, set_print_options
from .hooks import module_of
from .names import found_on
from .places import Place
from .values import is_plain


@attrs.define(eq=False)
class Setting:
    """What ``ask`` returns, which a reader calls ``name``. ``put`` sets it; None: no function of the caller's does.
    ``by``: other functions that ask for it, or set it; ``met``: called before code runs that may call one of these."""

    name: str
    ask: Callable[[], Any]
    put: Callable[[Any], Any] | None = None
    by: tuple[Callable[..., Any], ...] = ()
    met: Callable[[], None] | None = None

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


ARRAY_TEXTS = Setting("np.get_printoptions()", lambda: str(np.get_printoptions()))
"""What texts of arrays look like, wherever code may make one: compared as a text, in a third of the time."""


def _flushes_denormals() -> bool:
    """Asked of the processor: torch has no question for it."""
    return _DENORMAL * 1.0 == 0.0


_DENORMAL = 5e-324
_IN_LOCAL_TIME = (time.localtime, time.mktime, time.ctime, time.strftime, time.tzset)
_OF_WARNINGS = (warnings.simplefilter, warnings.filterwarnings, warnings.resetwarnings)


def _set_filters(was: tuple[Any, ...]) -> None:
    with warnings.catch_warnings():  # which forgets, at its end, what has been warned of under other filters
        pass
    warnings.filters[:] = was  # type: ignore[index]


GRAD_MODE = Setting("torch.is_grad_enabled()", torch.is_grad_enabled, torch.set_grad_enabled)
"""Part of every key; a function may leave it other than it was."""


_PAIRS = {
    "get_num_threads": "set_num_threads",
    "get_float32_matmul_precision": "set_float32_matmul_precision",
    "get_deterministic_debug_mode": "set_deterministic_debug_mode",
    "get_default_dtype": "set_default_dtype",
    "is_warn_always_enabled": "set_warn_always",
    "is_autocast_cache_enabled": "set_autocast_cache_enabled",
    "backends.cuda.flash_sdp_enabled": "backends.cuda.enable_flash_sdp",
    "backends.cuda.mem_efficient_sdp_enabled": "backends.cuda.enable_mem_efficient_sdp",
    "backends.cuda.math_sdp_enabled": "backends.cuda.enable_math_sdp",
    "backends.cuda.cudnn_sdp_enabled": "backends.cuda.enable_cudnn_sdp",
    "backends.mha.get_fastpath_enabled": "backends.mha.set_fastpath_enabled",
    "__future__.get_overwrite_module_params_on_conversion": "__future__.set_overwrite_module_params_on_conversion",
    "__future__.get_swap_module_params_on_conversion": "__future__.set_swap_module_params_on_conversion",
}
_MORE = {
    "get_deterministic_debug_mode": (
        torch.use_deterministic_algorithms,
        torch.is_deterministic_algorithms_warn_only_enabled,
    )
}
_ANOMALY = (torch.autograd.set_detect_anomaly, torch.autograd.detect_anomaly)
_FLAGS = (
    (torch.backends.mkldnn, ("enabled", "deterministic", "allow_tf32", "fp32_precision")),
    (torch.backends.cudnn, ("enabled", "benchmark", "deterministic", "allow_tf32", "fp32_precision")),
)
"""What ``set_flags`` of a module of ``torch.backends`` sets, besides the attributes themselves."""


def _set_flag(module: Any, name: str, value: Any) -> None:
    module.set_flags(**{"_fp32_precision": None, f"_{name}": value})  # else that is "none" from then on


def _autocast() -> Iterator[Setting]:
    """By device, which functions name: whether autocast is on, and its dtype; what asked for them once warns."""
    of_cpu = ("is_autocast_cpu_enabled", "set_autocast_cpu_enabled")
    dtype_of_cpu = ("get_autocast_cpu_dtype", "set_autocast_cpu_dtype")
    dtype_of_gpu = ("get_autocast_gpu_dtype", "set_autocast_gpu_dtype")
    for asks, puts, once in (
        (torch.is_autocast_enabled, torch.set_autocast_enabled, {"cpu": of_cpu, "cuda": ()}),
        (torch.get_autocast_dtype, torch.set_autocast_dtype, {"cpu": dtype_of_cpu, "cuda": dtype_of_gpu}),
    ):
        for device, names in once.items():
            ask, put = functools.partial(asks, device), functools.partial(puts, device)
            by = filter(None, map(_in_torch, names))
            yield Setting(f"torch.{asks.__name__}({device!r})", ask, put, (asks, puts, *by))


def _in_torch(path: str) -> Any:
    """What a name in torch means; None in a torch without (without ``torch.distributed``)."""
    try:
        return operator.attrgetter(path)(torch)
    except AttributeError:
        return None


def _set_by_functions() -> Iterator[Setting]:
    for asks, puts in _PAIRS.items():
        if (ask := _in_torch(asks)) is not None:
            yield Setting(f"torch.{asks}()", ask, _in_torch(puts), _MORE.get(asks, ()))
    for module, names in _FLAGS:
        for name in names:
            if hasattr(module, name):
                get, put = functools.partial(getattr, module, name), functools.partial(_set_flag, module, name)
                yield Setting(f"{module.__name__}.{name}", get, put, (module.set_flags,))


SETTINGS = (
    *_set_by_functions(),
    *_autocast(),
    Setting("torch.is_anomaly_enabled()", torch.is_anomaly_enabled, _set_anomaly, _ANOMALY),
    Setting("torch.is_anomaly_check_nan_enabled()", torch.is_anomaly_check_nan_enabled, _set_checks, _ANOMALY),
    Setting("torch.set_flush_denormal", _flushes_denormals, torch.set_flush_denormal),
    Setting("torch.set_printoptions", print_options, set_print_options, (torch.set_printoptions,)),
    Setting("Distribution.set_default_validate_args", checks_arguments, Distribution.set_default_validate_args),
    Setting("sys.getrecursionlimit()", sys.getrecursionlimit, sys.setrecursionlimit),
    Setting("sys.getswitchinterval()", sys.getswitchinterval, sys.setswitchinterval),
    Setting("sys.get_int_max_str_digits()", sys.get_int_max_str_digits, sys.set_int_max_str_digits),
    Setting("gc.isenabled()", gc.isenabled, _set_collector, (gc.enable, gc.disable)),
    Setting(
        "gc.get_threshold()",
        thresholds_of_caller,
        lambda was: gc.set_threshold(*was),
        (gc.get_threshold, gc.set_threshold),
        as_the_caller_has_set,
    ),
    Setting("logging.root.manager.disable", lambda: logging.root.manager.disable, logging.disable),
    Setting("os.getcwd()", os.getcwd, os.chdir),
    DECIMALS,
    Setting(
        "np.geterr()", lambda: tuple(np.geterr().items()), lambda was: np.seterr(**dict(was)), (np.geterr, np.seterr)
    ),
    Setting(
        "np.get_printoptions()",
        lambda: tuple(np.get_printoptions().items()),
        lambda was: np.set_printoptions(**dict(was)),
        (np.get_printoptions, np.set_printoptions),
    ),
)
"""What functions set, too."""
_IN_TORCH = (
    "get_num_interop_threads", "backends.cuda.preferred_linalg_library", "distributed.is_initialized",
    "distributed.get_rank", "distributed.get_world_size", "distributed.get_backend",
)  # fmt: skip


def _asked() -> Iterator[Setting]:
    """What functions ask for alone."""
    for path in _IN_TORCH:
        if (ask := _in_torch(path)) is not None:
            yield Setting(f"torch.{path}()", ask)
    yield Setting("localeconv()", lambda: repr(locale.localeconv()), None, (locale.localeconv,))
    # not compared unless the function names one of these: other threads set them for a while
    yield Setting("warnings.filters", lambda: tuple(warnings.filters), _set_filters, _OF_WARNINGS)
    yield Setting("time.tzname", lambda: (time.tzname, time.timezone), None, _IN_LOCAL_TIME)
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
