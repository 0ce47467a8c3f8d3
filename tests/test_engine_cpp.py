"""Autograd functions of a C++ extension in captured backward passes. The ids are those of ``docs/mechanisms.md``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from torch.utils.cpp_extension import load

import funcgrad as fg
from funcgrad.engine import region as regions
from funcgrad.engine.record import Recorder
from funcgrad.engine.statements import Kind
from funcgrad.torch_private.engine import engine_operators, is_traceable


@pytest.fixture(scope="module")
def ops():
    """The functions of ``cpp_functions.cpp``: torch keeps what the compiler made of them, by what stands in it."""
    if shutil.which("c++") is None or shutil.which("ninja") is None:
        pytest.skip("no C++ compiler, or no ninja")
    load("funcgrad_tests", [str(Path(__file__).parent / "cpp_functions.cpp")], is_python_module=False)
    return torch.ops.funcgrad_tests


def leaf(n):
    return torch.linspace(0.1, 1, n).requires_grad_()


def captured(f, sizes=(3, 3, 4, 4), compiles=2):
    """What is captured of ``f(x, y).backward()`` for leaves of several sizes, with eager PyTorch's gradients."""

    def step(n):
        x, y = leaf(n), leaf(n)
        f(x, y).sum().backward()
        return [x.grad, y.grad]

    wanted = [step(n) for n in sizes]
    regions.reset()
    with fg.compiled_autograd(backend="aten") as region:
        for n, grads in zip(sizes, wanted, strict=True):
            torch.testing.assert_close(step(n), grads)
    (capture,) = region.captures
    assert region.compiles == compiles, region.explain()
    return capture


def targets(capture):
    return [
        getattr(n.target, "__name__", str(n.target))
        for n in capture.programs[0].graphs[0].fx.nodes
        if n.op == "call_function"
    ]


def test_one_that_may_not_be_traced_is_one_call(ops):  # S3-4
    capture = captured(lambda x, y: ops.opaque2(x.exp(), y).sin())
    (s,) = [s for s in capture.statements if s.kind is Kind.CALL]
    assert "Scaled" in s.name
    assert [t for t in targets(capture) if "Scaled" in t] == [s.name]
    before = ops.calls()
    with fg.compiled_autograd(backend="aten"):
        ops.opaque2(leaf(3).exp(), leaf(3)).sin().sum().backward()
    assert ops.calls() == before + 1


def test_one_that_may_be_traced_is_a_part_of_the_graph(ops):
    capture = captured(lambda x, y: ops.traceable2(x.exp(), y).sin(), sizes=(3, 4, 5, 6))
    assert not any(s.kind is Kind.CALL for s in capture.statements)
    assert not any("Scaled" in t for t in targets(capture)) and targets(capture).count("mul.Tensor") >= 3
    before = ops.calls()
    with fg.compiled_autograd(backend="aten"):
        ops.traceable2(leaf(3).exp(), leaf(3)).sin().sum().backward()
    assert ops.calls() == before


def test_a_hook_beside_one(ops):
    log = []

    def f(x, y):
        z = ops.opaque3(x.exp(), y)
        z.register_hook(lambda g: log.append(g.sum().item()) or g * 2)
        return z.sin()

    captured(f, sizes=(3, 3, 3), compiles=1)
    assert log[3:] == pytest.approx(log[:3])


def test_names_do_not_clash(ops):  # S3-2
    captures = [captured(getattr(ops, name)) for name in ("opaque2", "opaque3", "traceable2", "traceable3")]
    names = [s.name for c in captures for s in c.statements if "Scaled" in s.name]
    assert len(set(names)) == 4 and [is_traceable(name) for name in names] == [False, False, True, True]

    bind = Recorder(lambda recorder: None).bind_function
    first, second = (bind("Clash", function, True, False) for function in (lambda: 1, lambda: 2))
    assert first != second and all(name.startswith("CppNodeClash") for name in (first, second))
    assert [engine_operators().get(name)() for name in (first, second)] == [1, 2]
    with pytest.raises(AssertionError):  # torch 2.11 says no more
        for _ in range(2):
            bind("ClashOfPyTorchsOwn", lambda: 1, False, True)
