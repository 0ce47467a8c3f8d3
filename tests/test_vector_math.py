"""The functions kernels in C are made of, over all single-precision numbers (one in a thousand): as near as
``c_math.py`` says."""

from __future__ import annotations

import pytest
import torch

import funcgrad as fg

FUNCTIONS = {
    "exp": (torch.exp, 1.1), "sigmoid": (torch.sigmoid, 2.6), "erf": (torch.erf, 1.6), "log1p": (torch.log1p, 1.6),
    "sin": (torch.sin, 1.6), "cos": (torch.cos, 1.6), "tanh": (torch.tanh, 2.6),
}  # fmt: skip


@pytest.fixture(scope="module")
def numbers():
    return torch.arange(-(2**31), 2**31, 1021, dtype=torch.int64).to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_numbers(name, numbers):
    function, ulps = FUNCTIONS[name]
    ours, theirs, exact = fg.jit(function, backend="c")(numbers), function(numbers), function(numbers.double())
    assert torch.equal(ours.isnan(), theirs.isnan())
    known = ~theirs.isnan()
    assert torch.equal(ours.isinf()[known], theirs.isinf()[known])
    assert torch.equal(ours.signbit()[known], theirs.signbit()[known])
    finite = known & ~theirs.isinf()
    rounded = exact.abs().float()
    ulp = torch.nextafter(rounded, torch.tensor(torch.inf)).double() - rounded.double()
    off = (ours.double() - exact).abs()[finite] / ulp[finite]
    if name == "sigmoid":  # where e^-x is infinite eager PyTorch gives 0, too
        off = torch.where((ours == 0)[finite], 0, off)
    worst = off.max().item()
    assert worst <= ulps, f"{worst:.2f} ulp at {numbers[finite][off.argmax()].item()!r}"
