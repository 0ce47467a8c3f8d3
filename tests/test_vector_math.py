"""The functions kernels in C are made of, over all single-precision numbers (one in a thousand): as near as
``c_math.py`` says."""

from __future__ import annotations

import re
import subprocess

import pytest
import torch
from attrs import evolve
from closeness import assert_rounded

import funcgrad as fg
from funcgrad.cache import folders
from funcgrad.options import ENVIRONMENT

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


@pytest.mark.parametrize("name", ["atan", "asin", "tan", "log", "expm1", "log2", "atanh"])
def test_one_side_of_a_where_is_computed_of_whole_vectors(name, tmp_path, monkeypatch):
    """It was in a branch, whose call nobody vectorises: ELU took six times as long as in eager PyTorch."""
    function = getattr(torch, name)
    x = torch.linspace(0.1, 0.9, 1000)

    def f(x):
        return torch.where(x > 0.5, x, function(x))

    monkeypatch.setattr(folders, "ENVIRONMENT", evolve(ENVIRONMENT, cache_dir=tmp_path))
    compiled = fg.jit(f, backend="c")
    assert_rounded(compiled(x), f(x))
    (library,) = tmp_path.rglob("*.so")
    called = subprocess.run(["nm", "-D", "--undefined-only", str(library)], capture_output=True, text=True, check=True)
    assert re.search(rf"_ZGV\w+_{name}f\b", called.stdout)
