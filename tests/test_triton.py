"""The Triton backend: interpreted, its kernels compute what eager PyTorch computes; and they compile for a GPU that
need not be there.

``conftest.py`` has Triton interpret kernels. Sizes are small; the limits from which kernels take another form are made
small, too.
"""

import os
import re
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
from triton_samples import FORWARD, GRADIENTS, column_totals, draws, randn

import funcgrad as fg
from funcgrad.backends import choose, triton, triton_language
from funcgrad.backends.c_language import C
from funcgrad.backends.fused import TritonBackend
from funcgrad.backends.fused_python import WrongIndex
from funcgrad.backends.triton_language import Triton
from funcgrad.engine.region import reset
from funcgrad.loops.ir import Kernel
from funcgrad.loops.table import TABLE
from funcgrad.machine import GPU
from funcgrad.memory.steps import Extern
from funcgrad.philox import philox
from funcgrad.slots import Saved

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


LIMITS = {
    "as they are": {},
    "long rows": {"_LONGEST": 4, "_STEP": 8},
    "many tiles": {"_TILE": 16, "_STRIP": 4, "programs": 7},
    "both": {"_LONGEST": 4, "_STEP": 8, "_STRIP": 8, "_TILE": 16, "programs": 2},
    "wide": {"WIDE_FROM": 0},
}
"""Where kernels take other forms: rows that are gone along, programs that compute several tiles, indices of 64 bits."""


def limit(monkeypatch, limits):
    for name, value in LIMITS[limits].items():
        if name == "programs":
            fewer = evolve(GPU, programs=value)
            monkeypatch.setattr(choose, "TritonBackend", lambda device, fewer=fewer: TritonBackend(device, fewer))
        else:
            monkeypatch.setattr(triton_language if name == "WIDE_FROM" else triton, name, value)


EVERY_FORM = [
    (name, limits)
    for name in ("softmax and layer norm", "column totals", "words")
    for limits in ("many tiles", "both", "wide")
]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "limits"), [*((name, "as they are") for name in GRADIENTS), *EVERY_FORM])
def test_gradients(name, limits, monkeypatch):
    limit(monkeypatch, limits)
    f, *args = GRADIENTS[name]
    check_gradient(f, *args)


@pytest.mark.parametrize("limits", ["as they are", "both", "wide"])
@pytest.mark.parametrize("name", FORWARD)
def test_results(name, limits, monkeypatch):
    limit(monkeypatch, limits)
    f, *args = FORWARD[name]
    check(f, *args, rtol=1e-4, atol=1e-5)


def test_the_forms_of_kernels(monkeypatch):
    f, *args = column_totals, randn(11, 9)
    assert "for " not in check_gradient(f, *args)
    limit(monkeypatch, "both")
    text = check_gradient(f, *args)
    assert (
        "for block in range(tl.program_id(0)," in text and "for step in range(" in text and "tl.debug_barrier()" in text
    )
    strips = check(lambda x: ((x * x).sum(0), x.cos().amin(0)), *args, rtol=1e-4, atol=1e-4)
    assert "c0 = tl.program_id(0) * 8 + " in strips and "for block in range(tl.program_id(1)," in strips
    limit(monkeypatch, "wide")
    assert "tl.cast(tl.program_id(0), tl.int64)" in check_gradient(f, *args)


@settings(max_examples=8)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(list(LIMITS)),
    st.sampled_from([*FLOATS[:2], torch.int64, torch.int8]),
)
def test_reductions_of_any_size(rows, columns, limits, dtype):
    def f(x):
        along = [[x.sum(d), x.amax(d), x.amin(d), (x > 0).any(d), (x > -1).all(d)] for d in (0, 1)]
        return along, x.sum(), x.max(), (x > 1).any(), (x * 0 + 3)[:, :1], x - x.amax(1, keepdim=True)

    with pytest.MonkeyPatch.context() as patch:
        limit(patch, limits)
        check(f, (randn(rows, columns) * 2).to(dtype), rtol=1e-4, atol=1e-4)


@settings(max_examples=6)
@given(
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from(["as they are", "both"]),
    st.sampled_from([*FLOATS, torch.int64]),
)
def test_scans_and_places_of_any_size(rows, columns, limits, dtype):
    def f(x):
        along = [[x.cumsum(d), x.cummax(d), x.cummin(d).indices, x.max(d), x.argmin(d)] for d in (0, 1)]
        return along, x.argmax(), x.cumprod(1)[:, :4], x.cummax(1).values.sum(1)

    x = (randn(rows, columns) * 2).round()
    x[-1, columns // 2] = torch.nan if dtype.is_floating_point else 0
    with pytest.MonkeyPatch.context() as patch:
        limit(patch, limits)
        check(f, x.to(dtype), rtol=2e-2, atol=2e-2)


def test_the_same_draws_as_every_backend():
    def drawn(backend):
        torch.manual_seed(3)
        compiled = fg.jit(draws, backend=backend, rng="philox")
        return compiled(randn(6, 5)), text_of(compiled.program(randn(6, 5)))

    (ours, text), (theirs, _) = drawn("triton"), drawn("aten")
    torch.testing.assert_close(ours, theirs)
    assert all(f"philox_{kind}(" in text for kind in ("float", "double", "bits"))


# ── indices ──────────────────────────────────────────────────────────────────────────────────────────────────────

WRONG = {
    "index": lambda x, i: x[i],
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "index_add": lambda x, i: x.index_add(0, i, x[:3]),
    "one of two": lambda x, i: F.embedding(i % 5, x) + x[i % 5 + 3].sin(),
    "before a library call": lambda x, i: x[i] @ x.T,
}


@pytest.mark.parametrize("name", WRONG)
def test_the_error_is_pytorchs(name):
    x, i = randn(5, 4), torch.tensor([1, 7, 2])
    with pytest.raises((IndexError, RuntimeError)) as theirs:
        WRONG[name](x, i)
    with pytest.raises(theirs.type, match=f"^{re.escape(str(theirs.value))}$"):
        fg.jit(WRONG[name], backend="triton")(x, i)


def test_what_many_elements_are_added_to_is_left_to_the_library():
    def f(x, i):
        return torch.zeros(9, 4).index_add(0, i, x.sin()).cos()

    x, i = randn(65, 4), torch.arange(65) % 9
    compiled = fg.jit(f, backend="triton")
    torch.testing.assert_close(compiled(x, i), f(x, i))
    (why,) = [s.why for s in compiled.program(x, i).kernels[0].steps if isinstance(s, Extern)]
    assert why == "65 elements may go to one place, and a kernel would put one after the other"
    check(f, x[:64], i[:64])
    assert not any(isinstance(s, Extern) for s in fg.jit(f, backend="triton").program(x[:64], i[:64]).kernels[0].steps)


def test_what_is_put_last_stays():
    x, i, values = torch.zeros(4, 3), torch.tensor([1, 3, 1, -1, 1]), torch.arange(15.0).view(5, 3)
    put = fg.jit(lambda x, i, v: x.index_put((i,), v), backend="triton")(x, i, values)
    assert put.tolist() == [[0] * 3, [12, 13, 14], [0] * 3, [9, 10, 11]]


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
            t.logical_xor(a > b), torch.where(t, a, b), a.sum(), t.any(), (t < ~t), a.to(torch.uint8),
            t.to(torch.float32), t.sum(0),
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

ATEN = [op for op in TABLE if op is not philox and "empty" not in str(op)]
PARTS = 4


def some(op):
    """A call as it was made, and one of bfloat16 or of small whole numbers."""
    calls = calls_of(op, database=False)
    yield from calls[:1]
    for dtype in (torch.bfloat16, torch.int8, torch.float64):
        changed = tree_map_only(Tensor, lambda t: recast(t, dtype), calls[:1])
        if changed and runs(op, changed[0]):
            yield changed[0]
            break


@pytest.mark.sweep(2)
@pytest.mark.parametrize("part", range(PARTS))
def test_rows_of_the_op_table(part):
    calls = [(op, call) for op in ATEN[part::PARTS] for call in some(op)]
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


@pytest.mark.parametrize(
    "op", [*(getattr(aten, n).default for n in OURS), aten.remainder.Tensor, aten.maximum.default], ids=str
)
def test_special_values(op):
    for call in specials(op, torch.float32, database=False):
        ours, theirs = fg.jit(op, backend="triton")(*call[0], **call[1]), op(*call[0], **call[1])
        exact = op(*tree_map_only(Tensor, Tensor.double, call[0]), **call[1])
        assert not wrong(ours, theirs, exact, ulps=4).any(), call


def test_both_languages_have_the_same_operations():
    assert set(Triton.operations) == set(C.operations)


# ── what is printed for a CUDA device ────────────────────────────────────────────────────────────────────────────


def test_python_for_a_cuda_device():
    """Memory is made there; a number, and what a tensor of the CPU holds that holds but one, are made tensors there."""
    graph = on_cuda(lambda x, scale, n: (x * scale + n).mm(x) * 2, torch.eye(40), torch.tensor(2.0), 0.75)
    backend = choose.choose_backend(fg.Options(), graph)
    assert isinstance(backend, TritonBackend)
    kernels = backend.lower(graph)
    text = backend.emit(backend.schedule(kernels))[0].text
    assert [isinstance(s, Kernel) for s in kernels.steps] == [True, False, True]
    assert "empty_strided((40, 40), (40, 1), dtype=float32, device=cuda_0)" in text
    assert (
        "joint_launch0(x, full((), scale.item(), dtype=float32, device=cuda_0), full((), n, dtype=float64, "
        "device=cuda_0), " in text
    )
    assert "data_ptr" not in text and ".to(" not in text


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(scale)
        return x * scale

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


def test_numbers_of_the_cpu_in_a_captured_backward_pass():  # S3-55
    """Kernels are given them on the device, without a wait; the caller's Python has what it saved. Graphs of the CPU
    are as they were."""

    def graph():
        reset()
        with fg.compiled_autograd(backend="aten") as region:
            for _ in range(2):
                x, scale = torch.rand(3, 4, requires_grad=True), torch.tensor(2.0)
                (Scaled.apply(x.exp(), scale) / scale).sin().sum().backward()
        (capture,) = region.captures
        return capture.programs[-1].graphs[0]

    def printed(graph):
        backend = choose.choose_backend(fg.Options(), graph)
        schedule = backend.schedule(backend.lower(graph))
        return backend.emit(schedule)[0].text

    text = printed(moved_to_cuda(graph()))
    assert (
        "backward0_launch0(full((), inputs_0.item(), dtype=float32, device=cuda_0), inputs_1, full((), "
        "inputs_2.item(), " in text
    )
    assert re.search(r"_ScaledBackward\(hooks, packed, [\d, ]*inputs_2, div\)", text) and text.count("full(") == 2
    assert ".item()" not in printed(graph()) and "full(" not in printed(graph())


def test_an_index_that_is_wrong_on_a_cuda_device():
    """There PyTorch's own check would end all work of the process: the calls that may be wrong are named."""
    graph = on_cuda(lambda x, i: x.sin()[i], torch.eye(3), torch.tensor([1]))
    with pytest.raises(
        IndexError, match=r"an index is out of bounds, in one of\n  aten.index.Tensor\(sin, \[i\]\) test_triton.py:"
    ):
        WrongIndex(graph)(None, None)


def on_cuda(f, *args):
    """The graph of a function, as it would be of tensors on a GPU."""
    compiled = fg.jit(f, backend="aten")
    compiled(*(a / 2 if isinstance(a, float) else a for a in args))  # another number: it is no constant
    return moved_to_cuda(compiled.program(*args).kernels[0].graph)


def moved_to_cuda(graph):
    """A graph whose tensors are on a GPU, but for those that hold but one element."""
    for node in graph.fx.nodes:
        if isinstance(value := node.meta.get("val"), Tensor) and value.ndim:
            with FakeTensorMode():
                node.meta["val"] = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="cuda")
    return graph


# ── without an interpreter ───────────────────────────────────────────────────────────────────────────────────────

COMPILE = Path(__file__).with_name("triton_for_gpu.py")


def test_kernels_compile_for_a_gpu():
    """Triton compiles for a GPU that is not there; in a process that does not interpret, and imports no kernels
    before it prints some."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, COMPILE], capture_output=True, text=True, env=environment, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "all compiled"


def test_tensors_of_the_cpu_need_the_interpreter(monkeypatch):
    monkeypatch.setattr(choose, "ENVIRONMENT", evolve(choose.ENVIRONMENT, interpret=False))
    with pytest.raises(fg.BuildError, match="TRITON_INTERPRET=1"):
        fg.jit(lambda x: x * 2, backend="triton")(torch.ones(3))


def test_without_triton(monkeypatch):
    monkeypatch.setattr(choose, "is_installed", lambda: False)
    with pytest.raises(fg.BuildError, match="not installed"):
        fg.jit(lambda x: x * 2, backend="triton")(torch.ones(3))


def test_the_partition_knows_what_the_library_scatters():
    """The gradient of a lookup that many rows share is the library's, which reads the numbers from memory: they are
    saved. A kernel makes them of what they are computed from, where it reads them."""

    def f(x):
        return x.sin()[((x[:, 0] * x[:, 0]).sigmoid() * 299).long()].exp().sum()

    x = torch.rand(300, 8, requires_grad=True)
    of_kernels, of_library = (fg.jit(f, backend=backend).program(x).partition for backend in ("c", "triton"))
    assert [a.name for a in of_kernels.again] == ["to_copy"] and not of_library.again
    assert "to_copy" in [k.slot.name for k in of_library.saved if isinstance(k.slot, Saved)]
