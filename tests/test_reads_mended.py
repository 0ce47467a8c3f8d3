"""Programs that read values of tensors, as random ones found them: eager PyTorch is the oracle, step by step."""

import copy
import math
import re

import pytest
import torch
from closeness import assert_rounded
from test_reads import BACKENDS
from test_state import X
from test_state_mended import run

import funcgrad as fg

Y = torch.tensor([0.3, -0.7, 1.2])

SCRIPTS = {
    # what PyTorch refuses in C++, called by a mode, or Python does in C: as in eager PyTorch, with what was written
    # before
    "a tensor is no number": ("n = 0\ndef f(x):\n    global n\n    n += 1\n    return x * int(x)", "call(); call()"),
    "a number of a tensor after a read": (
        "d = {}\ndef f(x):\n    d[bool((x > 0).any())] = x * 2\n    return x * int(d.get(True))",
        "call(); call()",
    ),
    "an object without a length": ("w = torch.zeros(())\ndef f(x):\n    w.add_(1)\n    return x * len(torch.float32)",
    "call(); call()"),
    "a root of a negative number": ("w = torch.zeros(())\nk = -1.0\ndef f(x):\n    w.add_(1)\n    return x * "
                                    "math.sqrt(k)", "call(); k = -4.0; call()"),
    "a mask of another shape": ("w = torch.zeros(())\ndef f(x):\n    w.add_(1)\n    return x[torch.zeros(2) > 1]",
    "call(); call()"),
    "an unknown keyword": ("w = torch.zeros(())\ndef f(x):\n    w.add_(1)\n    return torch.ones_like(x, none=1)",
    "call(); call()"),
    "an index that was read": ("w = torch.zeros(())\ndef f(x):\n    w.add_(1)\n    return x * x[int((x > 0).sum()) + "
                               "1]", "call(); call()"),
}  # fmt: skip


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_script_does_what_it_does_in_eager(case):
    source, script = ("import math\n" + SCRIPTS[case][0], SCRIPTS[case][1])
    assert run(source, script, lambda f: fg.jit(f, backend="aten")) == run(source, script, lambda f: f)


def test_a_gradient_that_pytorch_refuses_has_written_what_it_wrote_before():
    def f(x):
        y = x.exp()
        y.mul_(2)
        seen.add_(1)
        return y.sum()

    seen = torch.zeros(())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        fg.grad_compiled(f, backend="aten")(X)
    assert seen == 1


@BACKENDS
def test_names_of_arguments_are_no_names_of_python(backend):
    """Printed expressions call ``bool``, which is a dtype, too, and functions of ``math``."""

    def of_modules(math_, scale):
        return math_ * math.sqrt(math_.sum().item() + 10) * (3 if math_.sum().item() else 2) + scale

    def of_types(x):
        return (x * (3 if round(x.sum().item(), 1) else 2)).to(torch.bool)

    space = {"m": math}
    exec(
        "def f(math, bool):\n    return math * m.sqrt(math.sum().item() + 10) * (3 if math.sum().item() else 2) + bool",
        space,
    )
    for f, arguments in ((of_modules, (Y,)), (space["f"], (Y,)), (of_types, ())):
        compiled = fg.jit(f, backend=backend)
        for k in (1.0, 2.0, 3.0):
            assert_rounded(compiled(X * k, *arguments), f(X * k, *arguments))
        assert compiled.cache_info().misses == 2


class ReadsItsInput(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return (g * 3 if x.sum() > 0 else g * 5) + x[x > 0].sum()


def test_what_backward_reads_of_an_argument_is_read_when_it_runs():
    """The caller may write to it before: that forward checks it already, the partition refused."""
    f = lambda x: x * ReadsItsInput.apply(x).sum()  # noqa: E731
    compiled = fg.jit(f)
    for k in (1.0, -1.0, 2.0, -2.0):
        found = []
        for g in (f, compiled):
            leaf = (X * k).requires_grad_()
            out = g(leaf)
            out.sum().backward()
            found.append((out, leaf.grad))
        assert_rounded(*found)


NORMS = {
    "BatchNorm": (lambda: torch.nn.BatchNorm1d(3), (4, 3)), "LayerNorm": (lambda: torch.nn.LayerNorm(3), (4, 3)),
    "InstanceNorm": (lambda: torch.nn.InstanceNorm1d(3), (4, 3, 5)),
    "GroupNorm": (lambda: torch.nn.GroupNorm(1, 3), (4, 3, 5)),
}  # fmt: skip


@BACKENDS
@pytest.mark.parametrize("name", NORMS)
def test_what_is_normalised_is_read(name, backend):
    """The check comes first of all that runs, before what else the call that normalises returns is taken from it."""
    make, size = NORMS[name]

    def f(module, x):
        y = module(x)
        y = y * 2 if y[0].flatten()[0] > 0 else y * 3  # a sum would be rounding alone
        return (y[y > 0.5] ** 2).sum()

    torch.manual_seed(0)
    eager = make()
    own = copy.deepcopy(eager)
    compiled = fg.jit(f, backend=backend)
    for _ in range(4):
        x = torch.randn(size)
        found = []
        for g, module in ((compiled, own), (f, eager)):
            leaf = x.clone().requires_grad_()
            out = g(module, leaf)
            out.backward()
            found.append((out.detach(), leaf.grad, *module.buffers()))
        assert_rounded(*found)


def test_what_is_printed_says_bool_of_python():
    compiled = fg.jit(lambda x: x.to(torch.bool) * (2 if x.sum().item() else 3), backend="aten")
    for k in (1.0, 2.0):
        compiled(X * k)
    source = str(compiled.program(X * 3).sources[0])
    assert re.search(r"\bbool\(", source) and "dtype=_bool" in source


def test_the_whole_part_of_a_number_is_a_path_not_the_number():
    f = lambda x: x * {1: 2.0}.get(int(x.max()), 1.5)  # noqa: E731
    compiled = fg.jit(f, backend="aten")
    for k in (1.25, 2.5, 1.5, 1.75, 2.25, -0.5):
        assert torch.equal(compiled(torch.full((3,), k)), f(torch.full((3,), k)))
    assert compiled.cache_info().misses == 4  # the first, and one for each whole part
    for g in (f, compiled):
        with pytest.raises(ValueError, match="NaN"):
            g(torch.full((3,), math.nan))


@pytest.mark.filterwarnings("error::funcgrad.ReadsWarning")
def test_a_number_that_kernels_round_otherwise_takes_two_programs():
    """The program for a number that a kernel read was made for what eager PyTorch rounds it to: it fitted no call,
    fifteen times."""
    f = lambda x: x * {0.3: 2.0}.get(x.sum().item() * 0.1, 1.5) + len(str(x.sum().item()))  # noqa: E731
    compiled = fg.jit(f)
    for seed in range(4):
        x = torch.rand(1000, generator=torch.Generator().manual_seed(seed))
        before = compiled.cache_info().misses
        found, exact = compiled(x), f(x)
        assert (found - exact).abs().max() < 6  # the length of a text
        assert compiled.cache_info().misses - before <= 3
