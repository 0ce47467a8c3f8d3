"""A kernel writes over what dies in it, and nobody can tell but by the memory it takes."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F
from attrs import evolve
from closeness import assert_rounded
from hypothesis import given, settings
from test_fusion import make, programs

import funcgrad as fg
from funcgrad.backends.peak import predicted_peak
from funcgrad.graphs import is_getitem
from funcgrad.loops.ir import Kernel
from funcgrad.loops.verify import verify
from funcgrad.memory import in_place
from funcgrad.memory.scratch import origins
from funcgrad.memory.steps import Allocate, Call, Launch


def weights(n, size):
    return [(torch.randn(size, size) / size**0.5).requires_grad_() for _ in range(n)]


def perceptron(ws, x):
    for w in ws:
        x = F.gelu(x @ w)
    return x.square().mean()


def without(monkeypatch):
    """From here on nothing is written over anything."""
    monkeypatch.setattr(in_place, "take_over", lambda graph, steps, fixed, keeps: list(steps))


def taken(program):
    """For each schedule, what takes the place of what."""
    launches = [[s for s in schedule.steps if isinstance(s, Launch)] for schedule in program.schedule]
    return [{w: r for launch in found for w, r in origins(launch.kernels).items()} for found in launches]


# ── what is handed over ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def step():
    """A loss whose backward half writes over values that forward has saved, its weights, and the gradients eager
    PyTorch finds."""
    ws, x = weights(3, 32), torch.randn(64, 32)
    compiled = fg.jit(perceptron, backend="c")
    program = compiled.program(ws, x)
    handed = {n.name for n in program.schedule[1].graph.placeholders} & set(taken(program)[1].values())
    assert len(handed) >= 2
    return compiled, ws, x, torch.autograd.grad(perceptron(ws, x), ws)


def test_a_graph_that_is_kept_can_be_gone_through_again(step):
    compiled, ws, x, expected = step
    loss = compiled(ws, x)
    for keep in (True, True, False):
        assert_rounded(torch.autograd.grad(loss, ws, retain_graph=keep), expected)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(loss, ws)


def test_what_scratch_takes_the_place_of_is_kept_too():
    def f(x):
        return torch.cumsum(torch.cumsum(x, 0).exp(), 1).sin()

    x = (torch.rand(60, 64) / 64).requires_grad_()  # small: nothing is computed again
    compiled = fg.jit(f, backend="c")
    half = compiled.program(x).schedule[1]
    scratch = {b.name for s in half.steps if isinstance(s, Launch) for b in s.scratch}
    assert [r for w, r in taken(compiled.program(x))[1].items() if w in scratch and r in half.graph.handed_over]
    assert not [s for s in half.steps if isinstance(s, Allocate) and s.over]
    loss, expected = compiled(x).sum(), torch.autograd.grad(f(x).sum(), x)
    for keep in (True, False):
        assert_rounded(torch.autograd.grad(loss, x, retain_graph=keep), expected)


def test_what_the_user_holds_is_left_alone(step):
    """As a tensor, a view of it, an array or a storage in the same memory."""
    compiled, ws, x, expected = step
    holders = [
        lambda t: t,
        lambda t: t.view(-1),
        lambda t: t.numpy(),
        lambda t: t.untyped_storage(),
        lambda t: memoryview(t.numpy()),
    ]
    for hold in holders:
        loss = compiled(ws, x)
        held = [hold(t) for t in loss.grad_fn.saved_tensors if t is not None and not t.requires_grad]
        before = [h.clone() if isinstance(h, torch.Tensor) else bytes(h) for h in held]
        assert_rounded(torch.autograd.grad(loss, ws), expected)
        for then, now in zip(before, held, strict=True):
            assert torch.equal(then, now) if isinstance(now, torch.Tensor) else then == bytes(now)


def test_hooks_of_saved_tensors(step):
    """Memory that is not PyTorch's, a tensor that somebody keeps, a copy made for this reader alone."""
    compiled, ws, x, expected = step
    kept = []

    def keep(t):
        kept.append((t, t.clone()))
        return t

    for pack, unpack in [(lambda t: t.detach().numpy().copy(), torch.from_numpy), (keep, lambda t: t)]:
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            loss = compiled(ws, x)
        for again in (True, False):
            assert_rounded(torch.autograd.grad(loss, ws, retain_graph=again), expected)
    assert kept and all(torch.equal(now, then) for now, then in kept)
    with torch.autograd.graph.save_on_cpu():
        loss = compiled(ws, x)
    for again in (True, False):
        assert_rounded(torch.autograd.grad(loss, ws, retain_graph=again), expected)


def test_an_output_that_is_saved_is_not_handed_over():
    w, x = torch.randn(64, 64, requires_grad=True), torch.randn(64, 64)
    f = fg.jit(lambda w: (x @ w).exp(), backend="c")
    assert not f.program(w).schedule[1].graph.handed_over
    y = f(w)
    before = y.detach().clone()
    y.sum().backward()
    assert torch.equal(y, before)


def test_an_index_that_is_wrong_in_backward():
    """Where a check fails, all is computed once more, from what was handed over."""

    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, at):
            y = x.exp()
            ctx.save_for_backward(y, at)
            return y.sum()

        @staticmethod
        def backward(ctx, g):
            y, at = ctx.saved_tensors
            return g * y * y[at], None

    x = torch.randn(2000, requires_grad=True)
    f = fg.jit(lambda x, at: Lookup.apply(x, at), backend="c")
    good, bad = torch.arange(2000), torch.full((2000,), 5000)
    (g,) = torch.autograd.grad(f(x, good), x)
    torch.testing.assert_close(g, (x.exp() * x.exp()).detach())
    with pytest.raises(IndexError):
        torch.autograd.grad(f(x, bad), x)


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=5)
@given(programs())
def test_the_same_numbers_with_and_without(program):
    """In one program and in two halves, gone through twice, bit by bit the same; and never more memory."""
    shape, steps = program
    f = make(steps)
    torch.manual_seed(0)
    a, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))

    def results():
        whole, halves = fg.value_and_grad_compiled(f, has_aux=True, backend="c"), fg.jit(f, backend="c")
        (value, other), gradient = whole(a, b)
        out = halves(a, b)
        wrt = [t for t in (a, b) if t.requires_grad]
        roots = [t for t in out if t.requires_grad]
        first = torch.autograd.grad(
            roots, wrt, [torch.ones_like(t) for t in roots], retain_graph=True, allow_unused=True
        )
        second = torch.autograd.grad(roots, wrt, [torch.ones_like(t) for t in roots], allow_unused=True)
        peaks = [predicted_peak(c.program(a, b).schedule) for c in (whole, halves)]
        for x, y in zip(first, second, strict=True):
            assert (x is None and y is None) or torch.equal(x.nan_to_num(7), y.nan_to_num(7))
        return [value, other, gradient, *out, *first], peaks

    found, peaks = results()
    with pytest.MonkeyPatch.context() as patch:
        without(patch)
        expected, before = results()
    assert_rounded(found, expected)
    assert all(p <= q for p, q in zip(peaks, before, strict=True))


NETS = {
    "perceptron": (perceptron, lambda: (weights(4, 64), torch.randn(512, 64))),
    "norms": (
        lambda ws, x: F.layer_norm(torch.softmax(x @ ws[0], -1), (64,)).square().mean(),
        lambda: (weights(1, 64), torch.randn(512, 64)),
    ),
    "reshaped": (
        lambda ws, x: (x @ ws[0]).view(8, 64, 64).tanh().transpose(1, 2).matmul(ws[1]).sigmoid().sum(),
        lambda: (weights(2, 64), torch.randn(512, 64)),
    ),
}


@pytest.mark.parametrize("transform", ["jit", "grad_compiled"])
@pytest.mark.parametrize("name", NETS)
def test_less_memory_and_as_much_as_predicted(name, transform, monkeypatch):
    f, inputs = NETS[name]
    args = inputs()
    new = getattr(fg, transform)(f, backend="c").memory(*args)
    without(monkeypatch)
    old = getattr(fg, transform)(f, backend="c").memory(*args)
    assert new.predicted_peak < old.predicted_peak
    for memory in (new, old):
        assert abs(memory.measured_peak - memory.predicted_peak) <= 0.02 * memory.predicted_peak


# ── what is not written over ─────────────────────────────────────────────────────────────────────────────────────


def places(f, *args):
    """What takes the place of what in the first schedule of a function that is not differentiated."""
    return taken(fg.jit(f, backend="c").program(*args))[0]


X = torch.randn(64, 64)


def test_inputs_constants_results_and_what_is_viewed_stay():
    assert not places(lambda x: x + 1, X)
    assert not places(lambda x: torch.tensor([[1.0, 2.0], [3.0, 4.0]]).tanh() + x[0, 0], X)

    def returned(x):
        y = x @ x
        return y, y.tanh()

    def viewed(x):
        y = x @ x
        return y[1:], y.tanh()

    def read_later(x):
        y = x @ x
        z = y.tanh()
        return z @ y

    for f in (returned, viewed, read_later):
        assert not places(f, X)
        assert_rounded(fg.jit(f, backend="c")(X), f(X))


def test_elements_that_are_read_in_other_turns_stay():
    def turned(x):
        y = x @ x
        return y + y.t()

    def flipped(x):
        y = x @ x
        return y + y.flip(0)

    def shifted(x):
        return F.pad(x @ x, (1, -1))

    def looked_up(x):
        y = x @ x
        return y[torch.arange(64).flip(0)]

    def smaller(x):
        return (x @ x).double()

    for f in (turned, flipped, shifted, looked_up, smaller):
        assert not places(f, X), f.__name__
        assert_rounded(fg.jit(f, backend="c")(X), f(X))


def test_a_value_that_a_foreign_operator_was_given_stays():
    @torch.library.custom_op("funcgrad_test::look", mutates_args=())
    def look(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    look.register_fake(torch.empty_like)

    def f(x):
        y = x @ x
        z = look(y)
        return y.tanh() @ z

    assert not places(f, X)


def test_results_are_tensors_like_any_other():
    f = fg.jit(lambda x: ((x @ x).view(8, 8, 64) * 2, (x.t() @ x + 1).tanh()), backend="c")
    assert len(taken(f.program(X))[0]) == 2
    ws, x = weights(2, 64), torch.randn(64, 64)
    loss = fg.jit(lambda ws, x: (x.view(8, 8, 64) @ ws[0]).tanh().sum() + ws[1].exp().sum(), backend="c")
    gradients = torch.autograd.grad(loss(ws, x), ws)
    gc.collect()
    for t in (*f(X), *gradients):
        assert not t._is_view() and t._base is None and t._version == 0 and not t.requires_grad
        assert t.untyped_storage().nbytes() == t.numel() * t.element_size() and t.storage_offset() == 0
        t.add_(1)


def test_the_schedule_says_what_is_in_place_of_what():
    program = fg.jit(lambda x: (x @ x).tanh(), backend="c").program(X)
    (over,) = [s for s in program.schedule[0].steps if isinstance(s, Allocate)]
    assert over.over == "mm"
    assert "in place of mm" in str(program.schedule[0]) and "1 results of kernels in place" in str(program.schedule[0])


def test_several_results_of_a_call_do_not_keep_each_other_alive():
    def f(ws, x):
        for w in ws:
            x = F.conv2d(x, w, padding=1).tanh()
        return x.sum()

    ws = [torch.randn(4, 4, 3, 3, requires_grad=True) for _ in range(3)]
    steps = fg.jit(f, backend="c").program(ws, torch.randn(2, 4, 8, 8)).schedule[1].steps
    calls = [s.node for s in steps if isinstance(s, Call)]
    taken_from = [n.args[0] for n in calls if is_getitem(n)]
    assert len(taken_from) == 5
    for node in set(taken_from):
        own = [i for i, n in enumerate(calls) if n is node or (is_getitem(n) and n.args[0] is node)]
        assert own == list(range(own[0], own[-1] + 1))


# ── scratch, and proof ───────────────────────────────────────────────────────────────────────────────────────────


def columns_twice(x):
    """Values between kernels that follow one another, dear to compute again: each waits for totals of the one
    before."""
    for _ in range(4):
        x = torch.tanh(x / x.sum(0)).exp().sin()
    return x


def test_scratch_shares_places(monkeypatch):
    x = torch.rand(300, 500)
    f = fg.jit(columns_twice, backend="c")
    (launch,) = [s for s in f.program(x).schedule[0].steps if isinstance(s, Launch)]
    assert origins(launch.kernels)
    without(monkeypatch)
    (before,) = [s for s in fg.jit(columns_twice, backend="c").program(x).schedule[0].steps if isinstance(s, Launch)]
    assert launch.arena.nbytes < before.arena.nbytes
    assert_rounded(f(x), columns_twice(x))


def kernel_of(f, *args):
    program = fg.jit(f, backend="aten").program(*args)
    from funcgrad.backends.fused import CBackend

    kernels = [s for s in CBackend().lower(program.schedule[0].graph).steps if isinstance(s, Kernel)]
    return kernels[-1]


WRONG = {
    "turned": lambda x: x + x.t(),
    "flipped": lambda x: x + x.flip(0),
    "guarded": lambda x: F.pad(x, (1, -1)),
    "another dtype": lambda x: x.double(),
    "fewer elements": lambda x: x[:5] * 2,
    "total": lambda x: x[:1].sum(0),
    "read again in a later walk": lambda x: (x * 2, torch.softmax(x.sin().exp(), -1)),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_kernel_that_may_not_is_refused(name):
    kernel = kernel_of(WRONG[name], X)
    (read,) = (b.name for b in kernel.reads)
    for written in kernel.writes:
        if name.startswith("read again") and written is kernel.writes[-1]:
            continue
        with pytest.raises(fg.GraphError, match="may read what was in"):
            verify(evolve(kernel, over={written.name: read}))


def test_what_is_kept_is_not_read_again():
    """A softmax that is normalised is a result of its third walk: what it is made of is kept by then, where a
    language keeps it."""
    kernel = kernel_of(lambda x: (torch.softmax(x, -1), F.layer_norm(torch.softmax(x, -1), (64,))), X)
    (read,), early = kernel.reads, evolve(kernel, over={kernel.writes[0].name: kernel.reads[0].name})
    assert read.name == "x" and verify(early, keeps=True) is early
    with pytest.raises(fg.GraphError, match="may read what was in"):
        verify(early, keeps=False)


def test_two_results_do_not_take_one_place():
    kernel = kernel_of(lambda x: (x.sin(), x.cos()), X)
    (read,) = kernel.reads
    one, other = (b.name for b in kernel.writes)
    verify(evolve(kernel, over={one: read.name}))
    with pytest.raises(fg.GraphError, match="may read what was in"):
        verify(evolve(kernel, over={one: read.name, other: read.name}))


# ── Triton ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("longest", [16, 1 << 14])
def test_interpreted_triton(longest, monkeypatch):
    """Also where rows are too long to be held in registers, and are walked over several times."""
    from funcgrad.backends import triton

    monkeypatch.setattr(triton, "_LONGEST", longest)
    monkeypatch.setattr(triton, "_STEP", 16)

    def f(w, x):
        return (torch.softmax(x @ w, -1).log() * F.gelu(x @ w + 1)).tanh() @ w

    w, x = torch.randn(40, 40), torch.randn(40, 40)
    compiled = fg.jit(f, backend="triton")
    assert taken(compiled.program(w, x))[0]
    assert "tl.debug_barrier()" in "".join(s.text for s in compiled.program(w, x).sources)
    assert_rounded(compiled(w, x), f(w, x))
