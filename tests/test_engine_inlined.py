"""Compiled regions in a captured backward pass: those of ``torch.compile`` as calls."""

from __future__ import annotations

import pytest
import torch

import funcgrad as fg


@pytest.mark.parametrize("dynamic", [False, True])
def test_regions_of_torch_compile(dynamic):  # S3-20
    """Their backward halves are calls of the captured graph; sizes of them are numbers that vary from run to run."""

    def plain(x, w):
        return torch.tanh(x @ w).sin().sum() * x.shape[0]

    compiled = torch.compile(plain, backend="aot_eager", dynamic=dynamic)

    def gradients(f, n):
        torch.manual_seed(n)
        x, w = torch.randn(n, 4, requires_grad=True), torch.randn(4, 4, requires_grad=True)
        f(x.exp(), w).mul(2).backward()
        return [x.grad, w.grad]

    for n in (3, 5, 7):  # outside: torch compiles nothing inside of a region
        torch.testing.assert_close(gradients(compiled, n), gradients(plain, n))
    with fg.compiled_autograd() as region:
        for n in (3, 3, 5, 5, 7, 7):
            torch.testing.assert_close(gradients(compiled, n), gradients(plain, n))
    assert region.events[-1].what == "ran" and region.compiles, region.explain()
