"""Settings of the process, files and loggers that a function asks for: another value is another program."""

from __future__ import annotations

import decimal
import gc
import logging
import os
import pathlib
import subprocess
import sys
import types
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.backends.cudnn as cudnn
from torch import get_num_threads

import funcgrad as fg

REDUCED = "allow_bf16_reduced_precision_reduction"


def _flag(owner: Any, name: str) -> tuple[Callable[[], Any], Callable[[Any], None], Any]:
    return lambda: getattr(owner, name), lambda value: setattr(owner, name, value), not getattr(owner, name)


SETTINGS = {
    "threads": (torch.get_num_threads, torch.set_num_threads, 3),
    "precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium"),
    "anomaly": (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, True),
    "warn always": (torch.is_warn_always_enabled, torch.set_warn_always, True),
    "autocast cache": (torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled, False),
    "cudnn": (lambda: cudnn.benchmark, lambda value: cudnn.set_flags(_benchmark=value), not cudnn.benchmark),
    "mkldnn": (
        lambda: torch.backends.mkldnn.enabled,
        lambda value: torch.backends.mkldnn.set_flags(_enabled=value),
        not torch.backends.mkldnn.enabled,
    ),
    "reduced": _flag(torch.backends.cuda.matmul, REDUCED),
    "fill": _flag(torch.utils.deterministic, "fill_uninitialized_memory"),
    "recursion": (sys.getrecursionlimit, sys.setrecursionlimit, 3210),
    "numpy": (lambda: np.geterr()["divide"], lambda value: np.seterr(divide=value), "ignore"),
    "decimal": (lambda: decimal.getcontext().prec, lambda value: setattr(decimal.getcontext(), "prec", value), 7),
}
"""How it is asked for, how it is set, and another value."""


def asks(x: torch.Tensor, which: str) -> torch.Tensor:
    values = {
        "threads": lambda: (torch.get_num_threads(), get_num_threads()),
        "precision": lambda: torch.get_float32_matmul_precision(),
        "anomaly": lambda: torch.is_anomaly_enabled(),
        "warn always": lambda: torch.is_warn_always_enabled(),
        "autocast cache": lambda: torch.is_autocast_cache_enabled(),
        "cudnn": lambda: (torch.backends.cudnn.benchmark, cudnn.benchmark),
        "mkldnn": lambda: torch.backends.mkldnn.enabled,
        "reduced": lambda: torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction,
        "fill": lambda: torch.utils.deterministic.fill_uninitialized_memory,
        "recursion": lambda: sys.getrecursionlimit(),
        "numpy": lambda: np.geterr()["divide"],
        "decimal": lambda: decimal.getcontext().prec,
    }
    return x * len(str(values[which]()))


@pytest.mark.parametrize("which", SETTINGS)
def test_a_setting_is_noticed(which: str) -> None:
    ask, put, other = SETTINGS[which]
    had = ask()
    compiled, x = fg.jit(asks), torch.ones(2)
    try:
        for value in (had, other, had):
            put(value)
            assert torch.equal(compiled(x, which), asks(x, which))
        if len(str(other)) != len(str(had)):
            assert compiled.cache_info().misses >= 2
    finally:
        put(had)


HELD = types.SimpleNamespace(flags=torch.utils.deterministic, name="fill_uninitialized_memory", utils=torch.utils)


def sets_attribute() -> None:
    HELD.flags.fill_uninitialized_memory = False


LOOKS: dict[str, Callable[[], bool]] = {
    "getattr": lambda: getattr(HELD.utils.deterministic, "fill_uninitialized_memory"),
    "getattr of a name elsewhere": lambda: getattr(torch.utils.deterministic, HELD.name),
    "an attribute": lambda: HELD.flags.fill_uninitialized_memory,
}
SETS: dict[str, Callable[[], Any]] = {
    "setattr": lambda: setattr(HELD.utils.deterministic, "fill_uninitialized_memory", False),
    "setattr of a name elsewhere": lambda: setattr(torch.utils.deterministic, HELD.name, False),
    "an attribute": lambda: sets_attribute(),
}


@pytest.mark.parametrize("which", LOOKS)
def test_a_flag_is_noticed_of_what_is_held_elsewhere(which: str) -> None:
    look, x, had = LOOKS[which], torch.ones(2), torch.utils.deterministic.fill_uninitialized_memory

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if look() else 3)

    compiled = fg.jit(f)
    try:
        for torch.utils.deterministic.fill_uninitialized_memory in (had, not had, had):
            assert torch.equal(compiled(x), f(x))
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = had


@pytest.mark.parametrize("which", SETS)
def test_a_flag_of_what_is_held_elsewhere_is_set_on_each_call(which: str) -> None:
    write, x, had = SETS[which], torch.ones(2), torch.utils.deterministic.fill_uninitialized_memory

    def f(x: torch.Tensor) -> torch.Tensor:
        write()
        return x * 2

    compiled = fg.jit(f)
    try:
        for _ in range(3):
            torch.utils.deterministic.fill_uninitialized_memory = True
            compiled(x)
            assert not torch.utils.deterministic.fill_uninitialized_memory
    finally:
        torch.utils.deterministic.fill_uninitialized_memory = had


QUOTIENTS = {
    "of what is read": lambda x: x * float(ONE["one"] / 3),
    "of what is made": lambda x: x * float(decimal.Decimal(1) / 3),
    "of what is given": lambda x, one=decimal.Decimal(1): x * float(one / 3),
}
ONE = {"one": decimal.Decimal(1)}


@pytest.mark.parametrize("which", QUOTIENTS)
def test_decimals_are_computed_as_their_context_says(which: str) -> None:
    f, context = QUOTIENTS[which], decimal.getcontext()
    compiled, x, had = fg.jit(f), torch.ones(2), context.prec
    try:
        for context.prec in (had, 3, had, 3):
            assert torch.equal(compiled(x), f(x))
    finally:
        context.prec = had
    assert compiled.cache_info().misses == 2


def test_what_torch_says_by_device() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * len(str(torch.get_autocast_dtype("cpu")))

    compiled, x, had = fg.jit(f), torch.ones(2), torch.get_autocast_dtype("cpu")
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16):
            torch.set_autocast_dtype("cpu", dtype)
            assert torch.equal(compiled(x), f(x))
    finally:
        torch.set_autocast_dtype("cpu", had)
    assert "get_autocast_dtype('cpu')" in str(compiled.explain(x))


def set_reduced() -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False


WRITES: dict[str, Callable[[], Any]] = {
    "threads": lambda: torch.set_num_threads(3),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "anomaly": lambda: torch.autograd.set_detect_anomaly(True),
    "warn always": lambda: torch.set_warn_always(True),
    "autocast cache": lambda: torch.set_autocast_cache_enabled(False),
    "reduced": lambda: set_reduced(),
    "recursion": lambda: sys.setrecursionlimit(3210),
    "numpy": lambda: np.seterr(divide="ignore"),
    "decimal": lambda: setattr(decimal.getcontext(), "prec", 7),
}


@pytest.mark.parametrize("which", WRITES)
def test_a_setting_that_a_function_sets_is_set_on_each_call(which: str) -> None:
    ask, put, _ = SETTINGS[which]
    had, write = ask(), WRITES[which]

    def f(x: torch.Tensor) -> torch.Tensor:
        write()
        return x * 2

    write()
    wanted = ask()
    try:
        compiled, x = fg.jit(f), torch.ones(2)
        compiled(x)  # which leaves it as it is
        for _ in range(2):
            put(had)
            compiled(x)
            assert ask() == wanted
    finally:
        put(had)


def test_a_setting_stays_set_where_the_function_raises() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.set_num_threads(3)
        if x.sum() > 5:
            raise KeyError("too much")
        return x * torch.get_num_threads()

    compiled, had = fg.jit(f), torch.get_num_threads()
    try:
        assert torch.equal(compiled(torch.ones(2)), 3 * torch.ones(2))
        torch.set_num_threads(had)
        with pytest.raises(KeyError, match="too much"):
            compiled(torch.ones(9))
        assert torch.get_num_threads() == 3  # as in eager PyTorch
    finally:
        torch.set_num_threads(had)


def test_a_second_derivative_runs_under_the_setting_of_its_first() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x**3 * torch.get_num_threads()

    compiled, had, x = fg.jit(f), torch.get_num_threads(), torch.tensor(2.0, requires_grad=True)
    try:
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        torch.set_num_threads(had + 2)
        (second,) = torch.autograd.grad(first, x)
        assert second.item() == 12 * had and torch.get_num_threads() == had + 2
    finally:
        torch.set_num_threads(had)


def test_the_garbage_collector_and_the_directory(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * gc.isenabled() + len(os.getcwd())

    compiled, x = fg.jit(f), torch.ones(2)
    assert torch.equal(compiled(x), f(x))
    monkeypatch.chdir(tmp_path)
    assert torch.equal(compiled(x), f(x))
    gc.disable()
    try:
        assert torch.equal(compiled(x), f(x))
    finally:
        gc.enable()


def test_what_a_logger_lets_pass() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        log = logging.getLogger("funcgrad.tests.settings")
        return x * 2 if log.isEnabledFor(level=logging.DEBUG) else x * 3

    compiled, x = fg.jit(f), torch.ones(2)
    log = logging.getLogger("funcgrad.tests.settings")
    for level in (logging.WARNING, logging.DEBUG, logging.WARNING):
        log.setLevel(level)
        assert torch.equal(compiled(x), f(x))


READS: dict[str, Callable[[pathlib.Path], Any]] = {
    "open": lambda path: open(path / "a").read(),  # noqa: SIM115
    "read_text": lambda path: (path / "a").read_text(),
    "exists": lambda path: os.path.exists(path / "b"),
    "Path.exists": lambda path: (path / "b").exists(),
    "listdir": lambda path: len(os.listdir(path)),
    "iterdir": lambda path: len([*path.iterdir()]),
    "numpy": lambda path: np.loadtxt(path / "a"),
}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize("which", READS)
def test_another_version_of_a_file_is_noticed(which: str, tmp_path: pathlib.Path) -> None:
    read = READS[which]

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * float(read(tmp_path))

    compiled, x = fg.jit(f), torch.ones(2)
    (tmp_path / "a").write_text("3")
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.UnwatchedStateWarning)
        assert torch.equal(compiled(x), f(x))
        misses = compiled.cache_info().misses
        assert torch.equal(compiled(x), f(x)) and compiled.cache_info().misses == misses
        (tmp_path / "a").write_text("4.5")
        (tmp_path / "b").write_text("6")
        assert torch.equal(compiled(x), f(x))
    assert "file " in str(compiled.explain(x))


def test_what_is_done_outside_is_named(tmp_path: pathlib.Path) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        (tmp_path / "log").write_text("a")
        return x * int(subprocess.run(["echo", "3"], capture_output=True, check=True).stdout)

    compiled, x = fg.jit(f), torch.ones(2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert torch.equal(compiled(x), 3 * x)
    texts = [str(w.message) for w in said if w.category is fg.UnwatchedStateWarning]
    assert any("writes" in t and "log'" in t and "test_settings.py" in t for t in texts), texts
    assert any("starts a process" in t for t in texts), texts


def test_imports_read_files_for_themselves() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        import colorsys

        return x * colorsys.ONE_THIRD

    sys.modules.pop("colorsys", None)
    compiled, x = fg.jit(f), torch.ones(2)
    assert torch.equal(compiled(x), f(x))
    assert "file " not in str(compiled.explain(x))


@pytest.mark.parametrize("make", [torch.tensor, torch.as_tensor, torch.asarray, torch.ones(1).new_tensor])
def test_data_on_the_meta_device_is_made_inside(make: Callable[..., torch.Tensor]) -> None:
    """PyTorch makes such a tensor past all modes: it was taken for one from outside, and another one in each run."""

    def f(x: torch.Tensor) -> Any:
        made = make([[1.0], [2.0]], device="meta")
        return x * made.shape[0], made + 1, made

    found = fg.jit(f)(torch.ones(2))
    for one, expected in zip(found, f(torch.ones(2)), strict=True):
        assert (one.device, one.shape, one.dtype) == (expected.device, expected.shape, expected.dtype)
    assert torch.equal(found[0], torch.full((2,), 2.0))
    with torch.device("meta"):
        assert fg.jit(lambda x: torch.tensor([1.0, 2.0]) + x)(torch.ones(2)).is_meta


LEFT: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[], Any]]] = {
    "grad mode": (
        lambda: torch.set_grad_enabled(False),
        torch.is_grad_enabled,
        lambda: torch.set_grad_enabled(True),
    ),
    "autocast": (
        lambda: torch.set_autocast_enabled("cpu", True),
        lambda: torch.is_autocast_enabled("cpu"),
        lambda: torch.set_autocast_enabled("cpu", False),
    ),
    "dtype of autocast": (
        lambda: torch.set_autocast_dtype("cpu", torch.float16),
        lambda: torch.get_autocast_dtype("cpu"),
        lambda: torch.set_autocast_dtype("cpu", torch.bfloat16),
    ),
    "attention": (
        lambda: torch.backends.cuda.enable_flash_sdp(False),
        torch.backends.cuda.flash_sdp_enabled,
        lambda: torch.backends.cuda.enable_flash_sdp(True),
    ),
    "oneDNN": (
        lambda: torch.backends.mkldnn.set_flags(False),
        lambda: torch.backends.mkldnn.enabled,
        lambda: torch.backends.mkldnn.set_flags(True),
    ),
    "fast path": (
        lambda: torch.backends.mha.set_fastpath_enabled(False),
        torch.backends.mha.get_fastpath_enabled,
        lambda: torch.backends.mha.set_fastpath_enabled(True),
    ),
    "print options": (
        lambda: torch.set_printoptions(precision=2),
        lambda: str(torch.tensor(1 / 3)),
        lambda: torch.set_printoptions(precision=4),
    ),
    "denormals": (
        lambda: torch.set_flush_denormal(True),
        lambda: float(torch.tensor(1e-40) * 1),
        lambda: torch.set_flush_denormal(False),
    ),
    "swapped parameters": (
        lambda: torch.__future__.set_swap_module_params_on_conversion(True),
        torch.__future__.get_swap_module_params_on_conversion,
        lambda: torch.__future__.set_swap_module_params_on_conversion(False),
    ),
    "switch interval": (
        lambda: sys.setswitchinterval(0.01),
        sys.getswitchinterval,
        lambda: sys.setswitchinterval(0.005),
    ),
}
"""How a function sets it, how it is asked for, how it is set back."""


@pytest.mark.parametrize("which", LEFT)
def test_what_a_function_sets_it_sets_in_each_call(which: str) -> None:
    put, ask, undo = LEFT[which]

    def f(x: torch.Tensor) -> torch.Tensor:
        put()
        return x * 2

    compiled, x, had = fg.jit(f), torch.ones(2, requires_grad=True), ask()
    try:
        f(x)
        left = ask()
        undo()
        for _ in range(3):
            assert ask() == had
            result = compiled(x)
            assert ask() == left != had
            assert result.requires_grad is (which != "grad mode")
            undo()
        assert compiled.cache_info().misses == 1
    finally:
        undo()


def test_filters_of_warnings_are_set_in_each_call() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        warnings.simplefilter("error", UserWarning)
        return x * 2

    compiled = fg.jit(f)
    for _ in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled(torch.ones(2))
            with pytest.raises(UserWarning):
                warnings.warn("as it was set", UserWarning, stacklevel=1)


LOGGER, HANDLER, LOGS = logging.getLogger("funcgrad.tests.own"), logging.NullHandler(), logging.Filter("funcgrad")


def disables(v):
    logging.getLogger("funcgrad.tests.own").disabled = v


SET_BY_CALLS = {
    "level of a logger": (
        lambda v: logging.getLogger("funcgrad.tests.set").setLevel(10 if v else 40),
        lambda: [
            logging.getLogger(name).isEnabledFor(20) for name in ("funcgrad.tests.set", "funcgrad.tests.set.below")
        ],
    ),
    "propagate": (lambda v: setattr(LOGGER, "propagate", v), lambda: LOGGER.propagate),
    "disabled": (disables, lambda: LOGGER.disabled),
    "handlers": (lambda v: (LOGGER.addHandler if v else LOGGER.removeHandler)(HANDLER), lambda: LOGGER.handlers[:]),
    "filters": (lambda v: (LOGGER.addFilter if v else LOGGER.removeFilter)(LOGS), lambda: LOGGER.filters[:]),
    "arguments of distributions": (
        lambda v: torch.distributions.Normal.set_default_validate_args(v),
        lambda: torch.distributions.Distribution._validate_args,
    ),
    "attribute of a class of torch's": (
        lambda v: setattr(torch.nn.Linear, "own_of_test", v),
        lambda: torch.nn.Linear.own_of_test,
    ),
    "logging.disable": (lambda v: logging.disable(10 if v else 0), lambda: logging.root.manager.disable),
    "gc.set_threshold": (lambda v: gc.set_threshold(600 if v else 700, 10, 10), gc.get_threshold),
    "np.set_printoptions": (
        lambda v: np.set_printoptions(precision=3 if v else 8),
        lambda: np.get_printoptions()["precision"],
    ),
}


@pytest.mark.parametrize("name", SET_BY_CALLS)
def test_what_a_call_sets_is_set_in_each_call(name):
    """It was set where the function was traced alone."""
    put, read = SET_BY_CALLS[name]

    def run(wrap):
        found = []

        def f(x, v):
            put(v)
            return x * 2

        call = wrap(f)
        for v in (True, False, True, False, False, True):
            call(torch.ones(2), v)
            found.append(read())
            if len(found) == 4:
                put(True)  # somebody else does
        put(False)
        return found

    assert run(lambda f: fg.jit(f, backend="aten")) == run(lambda f: f)
