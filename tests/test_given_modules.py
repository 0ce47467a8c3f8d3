"""Modules that are arguments: a program is for the very module, and does not keep it alive."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import funcgrad as fg


def loss(net: nn.Module, x: Tensor) -> Tensor:
    return net(x).square().sum()


def in_a_dict(nets: dict[str, nn.Module], x: Tensor) -> Tensor:
    return nets["net"](x).square().sum()


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 2))


def single() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


X = torch.randn(5, 3)


def backward(compiled: Callable[..., Tensor]) -> Callable[[nn.Module], None]:
    return lambda net: compiled(net, X).backward()


def under_transform(transform: Callable[..., Any]) -> Callable[[Any], Callable[[nn.Module], Any]]:
    return lambda compiled: lambda net: transform(lambda x: compiled(net, x))(X)


def plain(compiled: Any) -> Callable[[nn.Module], Any]:
    return lambda net: compiled(net, X)


CASES: dict[str, tuple[Callable[[], Any], Callable[[Any], Callable[[nn.Module], Any]]]] = {
    "jit": (lambda: fg.jit(loss, backend="aten"), plain),
    "jit of kernels": (lambda: fg.jit(loss, backend="c"), plain),
    "backward": (lambda: fg.jit(loss, backend="aten"), backward),
    "grad": (lambda: fg.grad_compiled(loss, argnums=1, backend="aten"), plain),
    "value and grad": (lambda: fg.value_and_grad_compiled(loss, argnums=1, backend="aten"), plain),
    "vmap": (lambda: fg.vmap_compiled(loss, in_dims=(None, 0), backend="aten"), plain),
    "hessian": (lambda: fg.hessian_compiled(loss, argnums=1, backend="aten"), plain),
    "static": (lambda: fg.jit(loss, static_argnums=0, backend="aten"), plain),
    "static grad": (lambda: fg.grad_compiled(loss, argnums=1, static_argnums=0, backend="aten"), plain),
    "static dict": (
        lambda: fg.jit(in_a_dict, static_argnums=0, backend="aten"),
        lambda c: lambda net: c({"net": net}, X),
    ),
    "dict": (lambda: fg.jit(in_a_dict, backend="aten"), lambda c: lambda net: c({"net": net}, X)),
    "torch.func.grad": (lambda: fg.jit(loss, backend="aten"), under_transform(torch.func.grad)),
    "torch.func.vmap": (lambda: fg.jit(loss, backend="aten"), under_transform(torch.func.vmap)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_module_that_was_given_goes_when_the_caller_lets_go_of_it(name: str) -> None:
    make, calling = CASES[name]
    compiled = make()
    call = calling(compiled)
    other, nets = single(), [single() if name in ("vmap", "hessian", "torch.func.vmap") else small() for _ in range(2)]
    for net in (other, *nets):
        call(net)
        call(net)
    held = compiled.cache_info().currsize
    seen = [weakref.ref(thing) for net in nets for thing in (net, net[0].weight)]
    del net
    nets.clear()
    gc.collect()
    assert [ref() for ref in seen] == [None] * 4
    assert compiled.cache_info().currsize == held - 2 * held // 3
    compiled_before = compiled.cache_info().misses
    call(other)
    assert compiled.cache_info().misses == compiled_before  # the program of what is alive is still there


def test_a_method_that_is_compiled_does_not_keep_its_instances() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 2)

        @fg.jit
        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x)

    net = Net()
    net(X)
    seen = weakref.ref(net)
    del net
    gc.collect()
    assert seen() is None and Net.forward.cache_info().currsize == 0


def test_a_compiled_function_that_is_gone_leaves_nothing_in_the_module() -> None:
    net, compiled = single(), fg.jit(loss, backend="aten")
    compiled(net, X)
    program = weakref.ref(compiled.program(net, X))
    del compiled
    gc.collect()
    assert program() is None


def test_copies_of_a_module_have_no_programs() -> None:
    net, compiled = single(), fg.jit(loss, backend="aten")
    compiled(net, X)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    copies = copy.deepcopy(net), pickle.loads(pickle.dumps(net)), torch.load(file, weights_only=False)
    for made in copies:
        assert torch.equal(compiled(made, X), loss(net, X)) and made.state_dict().keys() == net.state_dict().keys()
    assert compiled.cache_info().misses == 4
    seen = [weakref.ref(made) for made in copies]
    del made, copies
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3 and compiled.cache_info().currsize == 1


def test_a_function_that_reads_all_attributes_of_a_module() -> None:
    def total(net: nn.Module, x: Tensor) -> Tensor:
        return x * sum(v for v in vars(net).values() if isinstance(v, float))

    net, compiled = single(), fg.jit(total, backend="aten")
    net.scale = 2.0
    for n in (3, 4, 5, 6):
        assert torch.equal(compiled(net, torch.ones(n)), torch.full((n,), 2.0))
    assert compiled.cache_info().misses == 2
    net.scale = 3.0
    assert torch.equal(compiled(net, torch.ones(n)), torch.full((n,), 3.0))


def test_programs_that_had_to_go_are_not_kept_by_the_module() -> None:
    net, compiled = single(), fg.jit(lambda net, x, n: net(x) * n, backend="aten", dynamic=False)
    first = weakref.ref(compiled.program(net, X, 0))
    for n in range(1, 65):
        compiled(net, X, n)
    gc.collect()
    assert first() is None and compiled.cache_info().currsize == 64
