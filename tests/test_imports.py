"""Modules that a function imports itself, and names that are there later than the function: modules, builtins that are
shadowed, variables of an enclosing function."""

import builtins
import importlib
import os
import subprocess
import sys
import types

import pytest
import torch

import funcgrad as fg

_SOURCE = """
import torch
N, K, T, LOG = 0, 1.0, torch.ones(2), []
layer = torch.nn.Linear(2, 2)
class Config:
    scale = 2.0
config = Config()
def scaled(x): return x * K * config.scale
"""


def _statement(x):
    import funcgrad_lazy

    funcgrad_lazy.N += 1
    funcgrad_lazy.LOG.append(1)
    return funcgrad_lazy.scaled(x) * funcgrad_lazy.N + funcgrad_lazy.T


def _names(x):
    from funcgrad_lazy import K, config, layer

    return layer(x) * K * config.scale


def _by_name(x):
    module = importlib.import_module("funcgrad_lazy")
    module.N += 1
    return module.scaled(x) * module.N


@pytest.mark.parametrize("transform", [lambda f: f, fg.grad_compiled])
def test_a_module_that_is_imported_first_in_a_call(tmp_path, monkeypatch, transform):
    """Its state is the process's: what the trace writes there is undone, and done on each call; tensors are real."""
    (tmp_path / "funcgrad_lazy.py").write_text(_SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    x = torch.arange(2.0)

    def ran(f, call):
        sys.modules.pop("funcgrad_lazy", None)
        torch.manual_seed(0)
        found = []
        for step in range(5):
            found.append(call(x).detach())
            module = sys.modules["funcgrad_lazy"]
            if step == 2:
                module.K, module.config.scale = 5.0, 3.0
        return found, module.N, module.LOG, type(module.T)

    for f in (_statement, _names, _by_name):
        if transform is fg.grad_compiled:
            loss = lambda x, f=f: f(x).sum()  # noqa: E731
            wanted, found = ran(f, torch.func.grad(loss)), ran(f, fg.grad_compiled(loss, backend="aten"))
        else:
            wanted, found = ran(f, f), ran(f, fg.jit(f, backend="aten"))
        assert all(map(torch.equal, found[0], wanted[0])), f
        assert found[1:] == wanted[1:], f
    sys.modules.pop("funcgrad_lazy", None)


_PLUGIN = """
import os
import funcgrad_host as host
host.ACTS["sin"] = lambda x: x.sin()
host.ORDER.append("plugin"); host.NAMES.add("sin"); host.COUNT += 1
host.Config.scale = 3.0; host.config.bias = 0.5
os.environ["FUNCGRAD_HOST"] = "plugin"
"""
_HOST = """
ACTS, ORDER, NAMES, COUNT = {}, [], set(), 0
class Config: pass
config = Config()
"""


def _acts(x):
    import funcgrad_host as host

    host.ORDER.append("call")
    host.ACTS["calls"] = host.ACTS.get("calls", 0) + 1
    if "sin" not in host.ACTS:
        importlib.import_module("funcgrad_plugin")
    y = host.ACTS["sin"](x) * host.Config.scale + host.config.bias
    host.NAMES.add("call")
    return y * host.COUNT * len(os.environ["FUNCGRAD_HOST"]) * host.ACTS["calls"]


@pytest.mark.parametrize("imports_before", [False, True])
def test_what_a_module_registers_that_is_imported_first_in_a_call_stays(tmp_path, monkeypatch, imports_before):
    """It was taken back with what the function had written, while the module stayed imported."""
    (tmp_path / "funcgrad_plugin.py").write_text(_PLUGIN, encoding="utf-8")
    (tmp_path / "funcgrad_host.py").write_text(_HOST, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    x = torch.arange(2.0)

    def ran(call):
        for name in ("funcgrad_plugin", "funcgrad_host"):
            sys.modules.pop(name, None)
        monkeypatch.delenv("FUNCGRAD_HOST", raising=False)
        host = importlib.import_module("funcgrad_host") if imports_before else None
        found = []
        for _ in range(4):
            found.append(call(x).tolist())
            host = host or sys.modules["funcgrad_host"]
            acts = {name: value for name, value in host.ACTS.items() if name != "sin"}
            found.append((acts, "sin" in host.ACTS, list(host.ORDER), set(host.NAMES), host.COUNT, vars(host.config)))
        return str(found), os.environ["FUNCGRAD_HOST"]

    assert ran(fg.jit(_acts, backend="aten")) == ran(_acts)


def test_a_module_that_is_there_later(monkeypatch):
    def f(x):
        try:
            import funcgrad_accelerated as accelerated
        except ImportError:
            return x
        return x * accelerated.K

    compiled, one = fg.jit(f, backend="aten"), torch.ones(1)
    assert compiled(one).item() == 1
    monkeypatch.setitem(sys.modules, "funcgrad_accelerated", types.ModuleType("funcgrad_accelerated"))
    sys.modules["funcgrad_accelerated"].K = 3.0
    assert compiled(one).item() == 3
    monkeypatch.delitem(sys.modules, "funcgrad_accelerated")
    assert compiled(one).item() == 1 and compiled.cache_info().misses == 2


def test_a_builtin_that_is_shadowed_later():
    compiled, one = fg.jit(lambda x: x * max(1, 2), backend="aten"), torch.ones(1)
    assert compiled(one).item() == 2
    globals()["max"] = lambda *values: 9.0
    try:
        assert compiled(one).item() == 9
    finally:
        del globals()["max"]
    assert compiled(one).item() == builtins.max(1, 2) and compiled.cache_info().misses == 2


def test_a_variable_of_an_enclosing_function_that_is_set_later():
    def f(x):
        try:
            return x * late
        except NameError:
            return x

    compiled, one = fg.jit(f, backend="aten"), torch.ones(1)
    assert compiled(one).item() == 1
    late = 5.0
    assert compiled(one).item() == 5
    del late
    assert compiled(one).item() == 1 and compiled.cache_info().misses == 2


@pytest.mark.parametrize("backend", ["aten", "auto"])
def test_a_default_dtype_of_the_functions_own(backend):
    """What is made, and drawn, under it is what it is there."""

    def f(x):
        torch.set_default_dtype(torch.float64)
        y, drawn, few = torch.ones(1), torch.rand(3), torch.linspace(0, 1, 4)
        torch.set_default_dtype(torch.float32)
        return x + y, drawn, few, torch.ones(1)

    compiled = fg.jit(f, backend=backend)
    for _ in range(2):
        torch.manual_seed(0)
        wanted = f(torch.ones(1))
        torch.manual_seed(0)
        found = compiled(torch.ones(1))
        assert all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_a_function_without_arguments_in_a_new_process():
    """What is imported to leave the modes of a trace was imported where imports are heard, which leaves them first."""
    program = "import torch, funcgrad as fg\nw = torch.ones(3)\nprint(fg.jit(lambda: w * 2, backend='aten')().tolist())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert ran.stdout.strip() == "[2.0, 2.0, 2.0]", ran.stderr
