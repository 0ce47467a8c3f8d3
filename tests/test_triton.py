"""The Triton backend: interpreted, its kernels compute what eager PyTorch computes; and they compile for a GPU that need not be there.

``conftest.py`` has Triton interpret kernels. Sizes are small; the limits from which kernels take another form are made small, too.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from op_samples import FLOATS, calls_of, recast, runs, specials
from test_op_table import TOLERANCES, wrong
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

import funcgrad as fg
from funcgrad.backends import choose, triton, triton_language
from funcgrad.backends.c_language import C
from funcgrad.backends.fused import TritonBackend
from funcgrad.backends.triton_language import Triton
from funcgrad.loops.ir import Kernel
from funcgrad.loops.table import TABLE

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, in lanes that are masked


def check(f, *args, **tolerances):
    """Compiled by Triton, a function gives what it gives eagerly; the text of its kernels."""
    compiled = fg.jit(f, backend="triton")
    torch.testing.assert_close(compiled(*args), f(*args), equal_nan=True, **tolerances)
    return text_of(compiled.program(*args))


def check_gradient(f, *args):
    program = fg.value_and_grad_compiled(f, backend="triton")
    gradient, value = torch.func.grad_and_value(f)(*args)
    torch.testing.assert_close(program(*args), (value, gradient), rtol=1e-4, atol=1e-5)
    return text_of(program.program(*args))


def text_of(program):
    return "\n".join(s.text for s in program.sources if s.language == "triton")


# ── functions of every kind ──────────────────────────────────────────────────────────────────────────────────────


def softmax_and_layer_norm(p, target):
    return ((F.layer_norm(torch.softmax(p["x"], -1), p["w"].shape, p["w"], p["b"]) - target) ** 2).mean()


def pairwise(x):
    d = x[:, None] - x[None]
    return (1 / ((d * d).sum(-1) + torch.eye(len(x)))).sum()


def chain(x):
    for _ in range(3):
        x = torch.exp(-(torch.tanh(torch.sin(x)) ** 2))
        x = torch.cos(torch.log1p(torch.sigmoid(x) ** 2))
    return x.sum()


def guarded(x):
    padded = F.pad(x, (2, 3, 1, 2), value=1.5)
    return (torch.cat([padded[1:], padded[:1].flip(1) * 2]).cos() * torch.tril(padded)).sum()


def column_totals(x):
    return (torch.softmax(x, 1).sum(0) ** 2).sum() + x.amax(0).sum() + x.prod(1).sum() + (x * x).sum(0).sin().sum()


def cross_entropy(p, x, y):
    return F.cross_entropy(F.gelu(x @ p["w"] + p["b"]), y)


def randn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


GRADIENTS = {
    "softmax and layer norm": (softmax_and_layer_norm, {"x": randn(7, 50), "w": randn(50), "b": randn(50)}, randn(7, 50)),
    "pairwise": (pairwise, randn(21, 3)),
    "chain": (chain, randn(1500)),
    "guarded": (guarded, randn(5, 11)),
    "column totals": (column_totals, randn(37, 9)),
    "cross entropy": (cross_entropy, {"w": randn(6, 10), "b": randn(10)}, randn(9, 6), torch.arange(9)),
    "one number": (lambda x: x.sin() * x, torch.tensor(0.3)),
    "one row": (lambda x: torch.softmax(x, 0)[3] + x.var(), randn(40)),
    "double": (lambda x: (x * 0.1).sigmoid().pow(2.3).log().sum() + x.logsumexp(0).sum(), randn(6, 5).double()),
    "views": (lambda x: (x.mT.reshape(4, 9)[:, ::2] * x[0, 1]).relu().sum(), randn(6, 6)),
}

LIMITS = {
    "as they are": {},
    "long rows": {"_LONGEST": 4, "_STEP": 8},
    "many tiles": {"_TILE": 16, "_STRIP": 4, "_PROGRAMS": 7},
    "both": {"_LONGEST": 4, "_STEP": 8, "_STRIP": 8, "_TILE": 16, "_PROGRAMS": 2},
    "wide": {"WIDE_FROM": 0},
}
"""Where kernels take other forms: rows that are gone along, programs that compute several tiles, indices of 64 bits."""


def limit(monkeypatch, limits):
    for name, value in LIMITS[limits].items():
        monkeypatch.setattr(triton_language if name == "WIDE_FROM" else triton, name, value)



@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name, limits, monkeypatch):
    limit(monkeypatch, limits)
    f, *args = GRADIENTS[name]
    check_gradient(f, *args)


def test_the_forms_of_kernels(monkeypatch):
    f, *args = GRADIENTS["column totals"]
    assert "for " not in check_gradient(f, *args)
    limit(monkeypatch, "both")
    text = check_gradient(f, *args)
    assert "for block in range(tl.program_id(0)," in text and "for step in range(" in text and "tl.debug_barrier()" in text
    strips = check(lambda x: ((x * x).sum(0), x.cos().amin(0)), *args, rtol=1e-4, atol=1e-4)
    assert "c0 = tl.program_id(0) * 8 + " in strips and "for block in range(tl.program_id(1)," in strips
    limit(monkeypatch, "wide")
    assert "tl.cast(tl.program_id(0), tl.int64)" in check_gradient(f, *args)


@settings(max_examples=12)
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from(list(LIMITS)), st.sampled_from([*FLOATS[:2], torch.int64, torch.int8]))
def test_reductions_of_any_size(rows, columns, limits, dtype):
    def f(x):
        along = [[x.sum(d), x.amax(d), x.amin(d), (x > 0).any(d), (x > -1).all(d)] for d in (0, 1)]
        return along, x.sum(), x.max(), (x > 1).any(), (x * 0 + 3)[:, :1], x - x.amax(1, keepdim=True)

    with pytest.MonkeyPatch.context() as patch:
        limit(patch, limits)
        check(f, (randn(rows, columns) * 2).to(dtype), rtol=1e-4, atol=1e-4)


def test_results_are_the_same_on_every_run(monkeypatch):
    monkeypatch.setattr(triton, "_TILE", 16)
    compiled, x = fg.jit(lambda x: (x.sum(), x.sum(0)), backend="triton"), randn(60, 7) * 1e4
    first = compiled(x)
    assert all(all(map(torch.equal, first, compiled(x))) for _ in range(3))


# ── dtypes, sizes, options ───────────────────────────────────────────────────────────────────────────────────────


def test_whole_numbers_and_truths():
    def f(a, b, t):
        return (
            a * b - a, -a, ~a, a & b, a.abs(), a.sign(), torch.maximum(a, b), a.clamp(-5, 100), a < b, t & (a > 3), ~t,
            t.logical_xor(a > b), torch.where(t, a, b), a.sum(), t.any(), (t < ~t), a.to(torch.uint8), t.to(torch.float32), t.sum(0),
            a.float().to(torch.int16),
        )  # fmt: skip

    for dtype in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        a, b = (torch.randint(0, 127, (5, 9), generator=torch.Generator().manual_seed(i)).to(dtype) for i in (1, 2))
        check(f, a, b, a > b)


@pytest.mark.parametrize("dtype", FLOATS[2:], ids=str)
def test_half_precision(dtype):
    def f(x, w):
        return torch.softmax(x, -1) * w, (x * w).sum(0), x.amax(0), (x * 3).to(torch.float32), F.silu(x) + 1, x.relu()

    check(f, randn(6, 20).to(dtype), randn(20).to(dtype), rtol=2e-2, atol=2e-2)


def test_nothing_and_one_thing():
    def f(nothing, scalar, one):
        return nothing * 2 + 1, nothing.sum(), scalar.exp() + one, (one * scalar).sum(), torch.full((3,), 2.5) * scalar

    check(f, torch.zeros(0, 4), torch.tensor(0.7), torch.ones(1, 1))


def test_numbers_that_are_floats():
    compiled = fg.jit(lambda x, a: x * a + 0.1, backend="triton")
    x = randn(8).double()
    for a in (0.1, 0.2, 0.3):
        torch.testing.assert_close(compiled(x, a), x * a + 0.1, rtol=0, atol=0)


def test_zeros_keep_their_signs():
    def f(x):
        return -x, x * -0.0, x + -0.0, torch.where(x > 1, x, -0.0), x.neg().copysign(x), torch.full((2,), -0.0) * x

    x = torch.tensor([0.0, -0.0])
    for ours, theirs in zip(fg.jit(f, backend="triton")(x), f(x), strict=True):
        assert torch.equal(ours.signbit(), theirs.signbit())


def test_mutation_and_backward():
    def f(x, buffer):
        buffer.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return (x - buffer).tanh()

    x, y = randn(4, 5).requires_grad_(), randn(4, 5).requires_grad_()
    ours, theirs = torch.zeros(5), torch.zeros(5)
    fg.jit(f, backend="triton")(x, ours).sum().backward()
    f(y, theirs).sum().backward()
    torch.testing.assert_close((ours, x.grad), (theirs, y.grad.new_tensor(0) + _gradient_of(f, x)))


def _gradient_of(f, x):
    return torch.autograd.grad(f(x, torch.zeros(5)).sum(), x)[0]


# ── the op table ─────────────────────────────────────────────────────────────────────────────────────────────────

PARTS = 4


def some(op):
    """A call as it was made, one of bfloat16 or of small whole numbers, and the last one."""
    calls = calls_of(op, database=False)
    yield from calls[:1] + calls[1:][-1:]
    for dtype in (torch.bfloat16, torch.int8, torch.float64):
        changed = tree_map_only(Tensor, lambda t: recast(t, dtype), calls[:1])
        if changed and runs(op, changed[0]):
            yield changed[0]
            break


@pytest.mark.parametrize("part", range(PARTS))
def test_rows_of_the_op_table(part):
    calls = [(op, call) for op in list(TABLE)[part::PARTS] if "empty" not in str(op) for call in some(op)]
    flat = [tree_flatten(call) for _, call in calls]
    tensors = [t for leaves, _ in flat for t in leaves if isinstance(t, Tensor)]

    def f(*given):
        given = iter(given)
        results = []
        for (op, _), (leaves, spec) in zip(calls, flat, strict=True):
            args, kwargs = tree_unflatten([next(given) if isinstance(x, Tensor) else x for x in leaves], spec)
            results.append([t.clone() if isinstance(t, Tensor) else t for t in tree_leaves(op(*args, **kwargs))])
        return results

    for (op, call), ours, theirs in zip(calls, fg.jit(f, backend="triton")(*tensors), f(*tensors), strict=True):
        rtol, atol = TOLERANCES.get(next((t.dtype for t in theirs if isinstance(t, Tensor)), None), (None, None))
        torch.testing.assert_close(ours, theirs, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{op}{call}: {m}")


OURS = (
    "sigmoid", "neg", "sign", "relu", "reciprocal", "rsqrt", "sqrt", "abs", "round", "trunc", "clamp_min", "nan_to_num",
)  # fmt: skip


@pytest.mark.parametrize("op", [*(getattr(aten, n).default for n in OURS), aten.remainder.Tensor, aten.maximum.default], ids=str)
def test_special_values(op):
    for call in specials(op, torch.float32, database=False):
        ours, theirs = fg.jit(op, backend="triton")(*call[0], **call[1]), op(*call[0], **call[1])
        exact = op(*tree_map_only(Tensor, Tensor.double, call[0]), **call[1])
        assert not wrong(ours, theirs, exact, ulps=4).any(), call


def test_both_languages_have_the_same_operations():
    assert set(Triton.operations) == set(C.operations)


# ── what is printed for a CUDA device ────────────────────────────────────────────────────────────────────────────


def test_python_for_a_cuda_device():
    """Memory is made there; a number, and a tensor of the CPU that holds but one, are copied there."""
    graph = fg.jit(lambda x, scale, n: (x * scale + n).mm(x) * 2, backend="aten")
    x, scale = torch.eye(3), torch.tensor(2.0)
    graph(x, scale, 0.5)
    graph = graph.program(x, scale, 0.75).kernels[0].graph
    for node in graph.fx.nodes:
        if isinstance(value := node.meta.get("val"), Tensor) and value.ndim:
            with FakeTensorMode():
                node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    backend = choose.choose_backend(fg.Options(), graph)
    assert isinstance(backend, TritonBackend)
    kernels = backend.lower(graph)
    text = backend.emit(backend.schedule(kernels))[0].text
    assert [isinstance(s, Kernel) for s in kernels.steps] == [True, False, True]
    assert "empty_strided((3, 3), (3, 1), dtype=float32, device=cuda_0)" in text
    assert "joint_launch0(x, scale.to(cuda_0), full((), n, dtype=float64, device=cuda_0), " in text
    assert "data_ptr" not in text


# ── without an interpreter ───────────────────────────────────────────────────────────────────────────────────────

COMPILE = Path(__file__).with_name("triton_for_gpu.py")


def test_kernels_compile_for_a_gpu():
    """Triton compiles for a GPU that is not there; in a process that does not interpret."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, COMPILE], capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all compiled"


def test_triton_is_not_imported_by_others():
    """By us: PyTorch may import it for reasons of its own."""
    code = "import sys, torch, funcgrad as fg; fg.jit(lambda x: x.sin() * 2, backend='c')(torch.ones(3)); print('NAME' in sys.modules)"
    code = code.replace("NAME", "funcgrad.backends.triton_functions")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "False\n"


def test_tensors_of_the_cpu_need_the_interpreter(monkeypatch):
    monkeypatch.setattr(choose, "ENVIRONMENT", evolve(choose.ENVIRONMENT, interpret=False))
    with pytest.raises(fg.BuildError, match="TRITON_INTERPRET=1"):
        fg.jit(lambda x: x * 2, backend="triton")(torch.ones(3))


def test_without_triton(monkeypatch):
    monkeypatch.setattr(choose, "is_installed", lambda: False)
    with pytest.raises(fg.BuildError, match="not installed"):
        fg.jit(lambda x: x * 2, backend="triton")(torch.ones(3))
