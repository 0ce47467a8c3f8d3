"""Random programs of pointwise operations, reductions, views and library calls: fused kernels compute what eager
PyTorch does."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest
import torch
from attrs import evolve
from closeness import assert_rounded
from hypothesis import example, given, settings
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.loops.ir import Kernel, Op, walk
from funcgrad.loops.verify import verify

SIZES = (1, 2, 3, 5, 9, 17)


def wave(x: torch.Tensor) -> torch.Tensor:
    """A sine that does not make rounding errors of large numbers large."""
    return x.clamp(-9, 9).sin()


UNARY = (
    wave, torch.tanh, torch.exp, torch.relu, lambda x: x * x, lambda x: -x, lambda x: torch.softmax(x, -1),
    lambda x: x.clamp(-1, 1),
)  # fmt: skip
BINARY = (torch.add, torch.mul, torch.sub, torch.maximum, lambda a, b: torch.where(a > b, a, b * 2))
REDUCE = (
    torch.sum,
    torch.mean,
    torch.amax,
    torch.logsumexp,
    lambda x, d, keepdim: x.var(d, keepdim=keepdim, correction=0),
)


@st.composite
def programs(draw):
    """The shape of the inputs, and steps on a stack of tensors: what is done, to which of them, along which
    dimension."""
    shape = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=4))
    kinds = "unary binary reduce broadcast permute reshape slice share flip cat pad matmul put copy".split()
    numbers = st.integers(0, 99)
    steps = draw(st.lists(st.tuples(st.sampled_from(kinds), numbers, numbers, numbers), min_size=2, max_size=14))
    return shape, steps


def step(stack: list[torch.Tensor], kind: str, i: int, j: int, k: int) -> torch.Tensor:
    x = stack[i % len(stack)]
    same = [t for t in stack if t.shape == x.shape]
    dim = k % x.ndim if x.ndim else 0
    if kind == "unary" or not x.ndim:
        return UNARY[j % len(UNARY)](x) if x.ndim else wave(x)
    if kind == "binary":
        return BINARY[k % len(BINARY)](x, same[j % len(same)])
    if kind == "reduce":
        return REDUCE[j % len(REDUCE)](x, dim, keepdim=bool(i % 2))
    if kind == "broadcast":
        return x * x.sum(dim, keepdim=True).tanh() + x.amax(dim, keepdim=True)
    if kind == "permute":
        return x.transpose(dim, j % x.ndim)
    if kind == "reshape":
        return x.reshape(-1) if j % 2 else x.reshape(x.shape[0], -1)
    if kind == "slice":
        start = j % x.shape[dim]
        return x.narrow(dim, start, x.shape[dim] - start if i % 2 else 1 + k % (x.shape[dim] - start))
    if kind == "share":
        return x * x.narrow(dim, j % x.shape[dim], 1).tanh()
    if kind == "flip":
        return x.flip(dim) if j % 2 else x.roll(j % 5, dim)
    if kind == "cat":
        return torch.cat([x, wave(same[j % len(same)])], dim)
    if kind == "pad":
        return torch.nn.functional.pad(x, (j % 3, k % 3 - 1 if x.shape[-1] > 1 else 0), value=0.5)
    if kind == "copy":
        return wave(x).transpose(dim, j % x.ndim).contiguous()
    if kind == "put":
        return torch.select_scatter(x, wave(x.select(dim, 0)), dim, j % x.shape[dim])
    return (x.reshape(x.shape[0], -1) @ x.reshape(x.shape[0], -1).t()).tanh()


def make(steps):
    def f(a, b):
        stack = [a, b]
        for one in steps:
            new = step(stack, *one)
            if new.numel() < 20_000:
                stack.append(new)
        return sum(wave(t).sum() for t in stack[2:] or [a]), stack[-1]

    return f


@settings(max_examples=12)
@given(programs())
@example(([5, 17, 17, 17], [("unary", 0, 0, 0)]))  # too large to be kept: what is differentiated is the input
def test_fused_is_eager(program):
    shape, steps = program
    torch.manual_seed(0)
    a, b = torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)
    f = make(steps)
    found = fg.value_and_grad_compiled(f, has_aux=True, backend="c")(a, b)
    expected = fg.value_and_grad_compiled(f, has_aux=True, backend="aten")(a, b)
    assert_rounded(found, expected)


@pytest.mark.parametrize("n", [6, 40])
def test_a_sum_is_over_all_columns_whichever_asks_for_it(n):
    def product(x, y):
        return (x * y[:, :1]).sum()

    x, y = torch.randn(3, n), torch.randn(3, n)
    found = fg.grad_compiled(product, argnums=(0, 1), backend="c")(x, y)
    assert_rounded(found, torch.func.grad(product, argnums=(0, 1))(x, y))


def kernels(f, *args):
    program = fg.value_and_grad_compiled(f).program(*args)
    return [s for s in program.kernels[0].steps if isinstance(s, Kernel)]


def operations(kernel):
    return [e for e in walk([e.value for stage in kernel.stages for e in stage.effects]) if isinstance(e, Op)]


def test_softmax_and_layer_norm_with_their_backward_are_one_kernel():
    def loss(p, target):
        h = torch.nn.functional.layer_norm(torch.softmax(p["x"], -1), (32,), p["w"], p["b"])
        return ((h - target) ** 2).mean()

    p = {"x": torch.randn(8, 32), "w": torch.ones(32), "b": torch.zeros(32)}
    large = [k for k in kernels(loss, p, torch.randn(8, 32)) if k.rows]
    assert len(large) == 1
    assert len(large[0].columns) == 1


def test_pairwise_values_are_never_in_memory():
    def energy(x):
        d = x[:, None] - x[None]
        return (1 / ((d * d).sum(-1) + torch.eye(50))).sum()

    assert max(b.shape[0] for k in kernels(energy, torch.randn(50, 3)) for b in (*k.reads, *k.writes) if b.shape) == 50
    assert all(
        len(b.shape) < 2 or b.shape == (50, 3)
        for k in kernels(energy, torch.randn(50, 3))
        for b in (*k.reads, *k.writes)
    )


@settings(max_examples=8, deadline=None)
@given(
    st.integers(1, 80),
    st.integers(1, 80),
    st.integers(1, 5),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
)
@example(1200, 40, 3, torch.float32, False)
@example(40, 700, 3, torch.float32, True)
def test_totals_and_columns_that_do_not_lie_side_by_side(n, m, k, dtype, across):
    """Both are put side by side where rows are gone over: sums of pairs of points, by either point, however these
    lie."""

    def energy(x, y):
        d = x[:, None] - y
        return (1 / ((d * d).sum(-1) + 1)).sum()

    x, y = (torch.randn(k, size, dtype=dtype).T if across else torch.randn(size, k, dtype=dtype) for size in (n, m))
    expected = torch.func.grad(energy, argnums=(0, 1))(x, y)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for ours, theirs in zip(fg.grad_compiled(energy, argnums=(0, 1), backend="c")(x, y), expected, strict=True):
            assert_rounded(ours, theirs)


@pytest.mark.parametrize("width", [3, 16, 24, 64])
def test_a_column_that_all_rows_read(width):
    a, b = torch.randn(50, 70), torch.randn(70, width)

    def f(a, b):
        return (a * b[:, 0]).softmax(1), (a * b[:, 2]).sum(1)

    assert_rounded(fg.jit(f, backend="c")(a, b), f(a, b))


@pytest.mark.parametrize("reduce", [torch.amax, torch.amin])
@pytest.mark.parametrize("place", range(4))
def test_a_nan_among_few_columns(reduce, place):
    """Extrema of a few columns are written out, and so are their totals."""
    x = torch.randn(300, 4)
    x[7, place] = torch.nan

    def f(x, b):
        return (torch.softmax(x + b, -1) * reduce(x, -1, keepdim=True)).nansum(0)

    b = torch.randn(4)
    torch.testing.assert_close(fg.jit(f, backend="c")(x, b), f(x, b), equal_nan=True)
    compiled, eager = (grad(lambda b, x: f(x, b).sum()) for grad in (fg.grad_compiled, torch.func.grad))
    torch.testing.assert_close(compiled(b, x), eager(b, x), equal_nan=True)


def test_equal_kernels_are_compiled_once():
    def loss(x):
        for _ in range(6):
            x = torch.tanh(x @ x)
        return x.sum()

    program = fg.jit(loss).program(torch.randn(5, 5))
    assert len([s for s in program.kernels[0].steps if isinstance(s, Kernel)]) == 6
    text = "".join(s.text for s in program.sources if s.language == "c")
    assert text.count("mv_tanhf(v") == 2  # the last one is summed up, too


@pytest.mark.parametrize("threads", [1, 2])
def test_numbers_of_threads(threads):
    """The same to rounding on one thread and on two; and twice the same on as many."""
    x = torch.randn(3000, 70)
    f = fg.value_and_grad_compiled(lambda x: (torch.softmax(x, -1).log() * x).sum() + (x.sum(0) ** 2).sum())
    before = f(x)
    torch.set_num_threads(threads)
    first, second = f(x), f(x)
    assert torch.equal(first[1], second[1])
    assert_rounded(first, before)


def test_one_openmp_runtime():
    """Kernels run on the threads of torch: a second runtime would fight with it for the cores."""
    x = torch.randn(1000, 100)
    fg.jit(lambda x: torch.softmax(x, -1))(x)
    with open("/proc/self/maps") as maps:
        runtimes = {line.split()[-1] for line in maps if "libgomp" in line or "libiomp" in line or "libomp" in line}
    assert len(runtimes) == 1


def test_a_library_call_that_lies_otherwise_than_its_shape_function_says():
    x = torch.arange(12).reshape(3, 4).t()
    torch.testing.assert_close(fg.jit(lambda x: torch.pow(2, x) * 3)(x), torch.pow(2, x) * 3)


def test_a_tensor_with_the_negative_bit():
    """``z.conj().imag`` holds the numbers of ``z.imag``: their sign is turned where they are read."""
    z = torch.randn(20, dtype=torch.complex128)
    given = z.conj().imag
    assert given.is_neg()
    torch.testing.assert_close(
        fg.jit(lambda x: (x * 2, x.clone(), x.sum()))(given), (given * 2, given.clone(), given.sum())
    )
    torch.testing.assert_close(fg.jit(lambda z: z.conj().imag[3:] * 2 + 1)(z), z.conj().imag[3:] * 2 + 1)


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 7, 15, 30])
@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_small_rows_one_after_the_other(rows, width):
    """Loads that a guard keeps from being read, several of them next to each other: gcc's interleaved masked loads
    lose elements."""

    def f(x):
        y = x * 1.1
        return torch.cat([y, y.cos()]), torch.nn.functional.pad(y.sin(), (0, 0, 1, 2)), y.abs()

    x = torch.randn(rows, width, dtype=torch.float64)
    assert_rounded(fg.jit(f, backend="c")(x), f(x))


def test_fewer_threads_than_were_asked_for():
    """OpenMP may give fewer: those that never ran have no totals."""
    program = """
import torch, funcgrad as fg
torch.set_num_threads(4)
x = torch.ones(3000, 100, dtype=torch.float64)
total, columns = fg.jit(lambda x: ((x * 2).sum(), x.sum(0)), backend="c")(x)
assert total == 600_000 and (columns == 3000).all(), (total, columns)
"""
    done = subprocess.run(
        ["env", "OMP_THREAD_LIMIT=1", sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_numbers_are_rounded_to_half_precision_before_they_are_compared():
    x = torch.randn(4000).bfloat16()
    torch.testing.assert_close(
        fg.jit(lambda x: (x > 0.1, x == 0.1, x <= -0.3), backend="c")(x), (x > 0.1, x == 0.1, x <= -0.3)
    )


@pytest.mark.parametrize("backend", ["c", "triton"])
def test_what_jumps_is_asked_of_the_numbers_that_half_precision_holds(backend):
    """A kernel computes half precision as float: what is near 1 there is 1, and infinite what is large."""

    def f(x):
        near, large = torch.erf(x), x * 60000
        return (
            near >= 1, near == 1, near.to(torch.int32), near.floor(), near % 1, near.float() >= 1,
            (x * x).to(torch.bool), large.isinf(), large.isfinite(), large.nan_to_num(), (x * 1e-4 * x).sign(),
        )  # fmt: skip

    x = torch.tensor([2.5, 2.4, 3.0, 1e-4, -2.5, 0.0], dtype=torch.float16)
    for found, expected in zip(fg.jit(f, backend=backend)(x), f(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_indices_have_64_bits():
    n = 2**31 + 5
    x = torch.ones(1, dtype=torch.int8).expand(n)
    f = fg.jit(lambda x: ((x.long() * torch.arange(n)) >= 2**31).sum(), backend="c")
    text = "\n".join(s.text for s in f.program(x).sources if s.language == "c")
    loops = re.findall(r"for \((\w+)", text.partition("\nvoid k_")[2])
    assert loops and set(loops) == {"int64_t"}
    assert f(x) == 5


def large_temporaries(f, *args):
    """How many tensors a gradient keeps from one kernel for another, small ones aside; and whether it is right."""
    compiled = fg.grad_compiled(f, backend="c")
    assert_rounded(compiled(*args), torch.func.grad(f)(*args))
    kernels = [s for k in compiled.program(*args).kernels for s in k.steps if isinstance(s, Kernel)]
    return sum(b.name.startswith("temporary") and math.prod(b.shape) >= 4096 for k in kernels for b in k.writes)


def test_what_a_later_kernel_computes_again():
    """What an activation and its derivative have in common is not written to memory: the product is there anyway."""
    x, w, v = torch.randn(80, 70), torch.randn(70, 90) * 0.1, torch.randn(90, 60) * 0.1
    assert large_temporaries(lambda w, v, x: (torch.nn.functional.gelu(x @ w) @ v).square().sum(), w, v, x) == 0
    # of a softmax, a number for each row is kept
    assert (
        large_temporaries(
            lambda v, x: ((x.softmax(1).sin() @ v) * x.softmax(1)).sum(), torch.randn(80, 80), torch.randn(80, 80)
        )
        == 0
    )


def test_what_a_later_kernel_does_not_compute_again():
    x, w, v = torch.randn(80, 70), torch.randn(70, 80) * 0.1, torch.randn(80, 80) * 0.1

    def of_two_products(w, v, x):  # which would both have to be kept
        both = torch.tanh((x @ w) * 2 + (x @ w.square()))
        return ((both.sin() @ v) * both.detach()).sum()

    def read_in_many_ways(v, x):
        far = torch.exp(x.sin())
        return sum((((far + i) @ v) * far.roll(i, 1)).sum() for i in range(5))

    assert large_temporaries(of_two_products, w, v, x) > 0
    assert large_temporaries(read_in_many_ways, v, torch.randn(80, 80)) > 0


@pytest.mark.parametrize("width", [64, 200])
def test_what_is_compared_with_its_own_maximum_is_not_computed_again(width):
    """It was, by a loop that rounded otherwise, in which no element was equal to the maximum: its gradient was lost."""
    x = torch.randperm(200 * width).reshape(200, width) / (200 * width)  # no two of which are one but for rounding
    assert large_temporaries(lambda x: (x.sin().amax(0) * x).sum(), x) == 1
    assert large_temporaries(lambda x: (torch.where(x.sin() >= x.sin().amax(0), x, 0) * x).sum(), x) == 1


def test_a_scan_of_equal_numbers_is_kept_before_it_is_read():
    """Of many reductions, more than one walk reads at once, all read the scan."""

    def f(*a):
        s = torch.ones(40, 64).cumsum(1)
        return s / sum((s * t).sum(-1, keepdim=True) for t in a)

    a = [torch.rand(40, 64) for _ in range(9)]
    compiled = fg.jit(f, backend="c")
    assert_rounded(compiled(*a), f(*a))
    (kernel,) = [
        s
        for s in compiled.program(*a).kernels[0].steps
        if isinstance(s, Kernel) and any(stage.keeps for stage in s.stages)
    ]
    with pytest.raises(fg.GraphError, match="which is made in walk"):
        verify(evolve(kernel, stages=kernel.stages[::-1]))


def test_a_state_is_not_made_of_all_steps_before():
    """What a step reads does not grow with the steps before it; so the kernels of steps are equal, and compiled
    once."""

    def f(w, x):
        h, c = x, torch.zeros_like(x)
        for _ in range(12):
            i, o, g = (h @ w).chunk(3, 1)
            c = c * o.sigmoid() + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return h.square().sum()

    w, x = torch.randn(64, 192) * 0.1, torch.randn(64, 64)
    compiled = fg.grad_compiled(f, backend="c")
    assert_rounded(compiled(w, x), torch.func.grad(f)(w, x))
    program = compiled.program(w, x)
    found = [s for k in program.kernels for s in k.steps if isinstance(s, Kernel)]
    assert len(found) > 20 and max(len(k.reads) for k in found if len(k.columns) == 1 and k.rows) <= 12
    names = re.findall(r"void (k_\w+)\([^;]*\{\n", "".join(s.text for s in program.sources if s.language == "c"))
    assert len(set(names)) <= 10


def test_a_table_is_not_computed_for_every_place_it_is_broadcast_to():
    def f(x, positions):
        table = torch.outer(positions, 1 / torch.arange(1.0, 65)).cos()
        return ((x + 1) * table).sum()

    found = kernels(f, torch.randn(8, 64, 64), torch.arange(64.0))
    assert [b.shape for b in found[0].writes] == [(64, 64)]
    assert not any("cos" in e.name for k in found[1:] for e in operations(k))


def test_what_is_copied_in_another_order_is_written_there():
    def f(x, y):
        return (x * y.sin()).transpose(1, 2).contiguous().view(3, 5, 28).sin(), x.square()

    x, y = torch.randn(3, 4, 5, 7), torch.randn(3, 4, 5, 7)
    compiled = fg.jit(lambda x, y: (x * y.sin()).transpose(1, 2).contiguous())
    (kernel,) = [s for s in compiled.program(x, y).kernels[0].steps if isinstance(s, Kernel)]
    assert len(kernel.writes) == 1
    found, expected = compiled(x, y), (x * y.sin()).transpose(1, 2).contiguous()
    torch.testing.assert_close(found, expected)
    assert found.stride() == expected.stride()
    for ours, theirs in zip(fg.jit(f)(x, y), f(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)


def rotated(x):
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


@pytest.mark.parametrize("width", [64, 96, 42, 20])  # equal parts, but of the last two that are too small
def test_equal_parts_are_done_in_one_turn(width):
    """A turn of the loop does an element of each part: it does not ask which part an element is in, and what they
    share is loaded once."""

    def f(x, angles):
        angles = torch.cat((angles, angles), -1)
        return (x * angles.cos() + rotated(x) * angles.sin()).square().sum()

    x, angles = torch.randn(3, 5, width), torch.randn(5, width // 2)
    parts = 2 if width // 2 >= 16 else 1
    found = [k for k in kernels(f, x, angles) if k.columns and k.columns[-1].size * parts == width]
    assert found
    asked = [e for k in found for e in operations(k) if e.name == "where"]
    assert bool(asked) == (parts == 1)
    assert_rounded(fg.grad_compiled(f)(x, angles), torch.func.grad(f)(x, angles))


def test_parts_are_written_where_they_belong():
    def gates(x):
        a, b, c = x.chunk(3, -1)
        d = (a * b.sigmoid()).tanh()
        return torch.cat([d, (b * c).exp(), (d + c).sigmoid()], -1)

    def read_again(x, w):
        h = gates(x)
        return h @ w, h.sum(0), h[:, ::2] * 2

    x, w = torch.randn(40, 60), torch.randn(60, 50)
    (kernel,) = [s for s in fg.jit(gates).program(x).kernels[0].steps if isinstance(s, Kernel)]
    assert [b.shape for b in kernel.writes] == [(40, 60)]
    assert len([e for e in operations(kernel) if e.name == "exp"]) == 1
    torch.testing.assert_close(fg.jit(gates)(x), gates(x))
    assert_rounded(fg.jit(read_again)(x, w), read_again(x, w))
    loss = lambda x, w: sum(t.square().sum() for t in read_again(x, w))  # noqa: E731
    assert_rounded(fg.grad_compiled(loss, argnums=(0, 1))(x, w), torch.func.grad(loss, argnums=(0, 1))(x, w))


def test_what_was_taken_from_a_place_is_not_put_there():
    """``x[1:-1] += y`` adds in place, and then stores the sum where it is."""

    def step(x):
        y = x.sin()
        y[1:-1, 1:3] += 2
        return y

    def added(x):
        y = x.sin()
        y[1:-1, 1:3].add_(2)
        return y

    x = torch.randn(9, 8)
    assert len(fg.jit(step).program(x).kernels[0].steps) == len(fg.jit(added).program(x).kernels[0].steps)
    torch.testing.assert_close(fg.jit(step)(x), step(x))


def test_sums_of_all_steps_do_not_wait_for_the_last():
    """What a step of backward makes is added up as soon as it is there, not at the end in one kernel for all steps."""

    def loss(p):
        u, n = p["start"].clone(), 20
        for _ in range(n):
            inside = u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1]
            u[1:-1, 1:-1] += p["rate"] * inside
        return (u * u).mean()

    kept = 20 * 128 * 128 * 4
    assert (
        fg.grad_compiled(loss).memory({"start": torch.randn(130, 130), "rate": torch.tensor(0.1)}).measured_peak
        < 1.4 * kept
    )


@pytest.mark.parametrize("whole", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_float_that_was_cut_to_a_whole_number_has_no_negative_zero(whole, dtype):
    """Nor does it stay infinite: a C compiler may make trunc(x) of (float)(long)x."""
    f = lambda x: 1 / x.to(whole).to(dtype)  # noqa: E731
    x = torch.tensor([-0.0, -0.3, 0.3, -7.9, 3.2] * 5, dtype=dtype)
    if whole == torch.int64:
        # as the processor has it
        x = torch.cat([x, torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30], dtype=dtype)])
    assert torch.equal(fg.jit(f, backend="c")(x), f(x))


@pytest.mark.parametrize("columns, dynamic", [(40_000, False), (2_000, True), (1_500, False)])
def test_sums_of_long_rows_beside_a_running_sum_are_as_exact(columns, dynamic):
    """One after the other, floats would lose three digits where all are rounded in one direction."""
    x = torch.full((3, columns), 0.1)
    for f in lambda x: (x.cumsum(1), x.sum(1))[1], lambda x: (x * 1.5).sum(1):
        found = fg.jit(f, backend="c", dynamic=dynamic)(x)
        torch.testing.assert_close(found.double(), f(x.double()), rtol=2e-6, atol=0)


def test_a_number_is_computed_where_it_is_read_if_that_costs_less_than_a_function():
    """A division costs what the table says: three of them are a value of a kernel, as many additions are not."""

    def divided(x, a, b, c):
        return x * (a / b / c / a)

    def added(x, a, b, c):
        return x * (a + b + c + a)

    x, numbers = torch.rand(8), torch.rand(3).unbind()
    computes = [
        {name for step in fg.jit(f, backend="c").program(x, *numbers).kernels[0].steps for name in step.computes}
        for f in (divided, added)
    ]
    assert computes == [{"div_2", "mul"}, {"mul"}]


@pytest.mark.parametrize("seed", range(6))
def test_what_two_kernels_compute_is_the_same_in_both(seed):
    """The backward pass of a minimum looks for it among values that another kernel has computed: with a multiplication
    and an addition as one there, and as two here, it would be found nowhere, and the gradient NaN."""

    def f(x):
        b = x[1] * x[2] + x[0] * x[0]
        g = x[2] * x[3] + b
        least = torch.stack([b, g]).min(), torch.stack([b, x[0]]).min()
        return torch.stack([x[0] * x[1] + least[0], least[1] * x[2] + x[4]]).min()

    x = torch.randn(5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    torch.testing.assert_close(fg.grad_compiled(f, backend="c")(x), torch.func.grad(f)(x))


@pytest.mark.parametrize("shape", [(5, 5), (6, 32)])
def test_rows_moved_by_one_beside_a_softmax(shape):
    """GCC 12 read the mask of the row that is not there from other elements (-fthread-jumps)."""

    def moved(x):
        return torch.cat([torch.zeros_like(x[:1]), x[:-1]]), x.softmax(1)

    def written(x):
        z = torch.zeros_like(x)
        z[1:] = x[1:]
        return z + 1, x.softmax(1)

    torch.manual_seed(0)
    x = torch.randn(shape)
    for f in (moved, written):
        torch.testing.assert_close(fg.jit(f, backend="c")(x), f(x))
