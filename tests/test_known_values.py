"""Values that depend on no input and no draw: Python reads them while a function is traced, as it does in eager
PyTorch."""

import itertools
import time

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import funcgrad as fg
from funcgrad.capture import tape
from funcgrad.capture.trace import Trace

X = torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]])
BACKENDS = pytest.mark.parametrize("backend", ["c", "aten"])


def agrees(f, x=X, backend="c", **options):
    """The result, and the gradient of its sum, are those of eager PyTorch: of one program, and of two halves.
    Returns the program."""
    leaf = x.clone().requires_grad_()
    expected = f(leaf)
    expected.sum().backward()
    own = x.clone().requires_grad_()
    found = fg.jit(f, backend=backend, **options)(own)
    found.sum().backward()
    assert_rounded((found.detach(), own.grad), (expected.detach(), leaf.grad))
    gradient = fg.value_and_grad_compiled(lambda x: f(x).sum(), backend=backend, **options)
    value, found = gradient(x)
    assert_rounded((value, found), (expected.detach().sum(), leaf.grad))
    return gradient.program(x)


# ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────────


def truth_of_all(x):
    return x.sin() if torch.ones(2, 3).all() else x.cos()


def truth_of_none(x):
    return x.sin() if torch.zeros(2, 3, dtype=torch.bool).any() else x.cos()


def a_number(x):
    return x.sin() * torch.arange(5).max().item()


def an_int(x):
    return x.sin() * int(torch.tensor(5)) + float(torch.tensor([0.25]).exp())


def a_loop(x):
    n = torch.tensor(3)
    while n > 0:
        x, n = x.sin(), n - 1
    return x


def an_index(x):
    return x[:, torch.arange(3).sum() - 2] * [4.0, 5.0, 6.0][torch.tensor(1)]


def a_range(x):
    return sum(x.sin() * i for i in range(torch.tensor(1), torch.tensor([1, 3]).sum()))


def a_list(x):
    return x.reshape(torch.tensor([3, 2]).tolist()).sin() * torch.linspace(0, 1, 5).tolist()[3]


def a_nested_list(x):
    (a, b), (c, d) = torch.arange(4).view(2, 2).tolist()
    return x.sin() * a + x * b + x * c * d


def an_array(x):
    t = torch.linspace(0, 1, 5).numpy()
    assert isinstance(t, np.ndarray) and t.dtype == np.float32 and (np.diff(t) > 0).all()
    return x.sin() * float(t[1]) + np.asarray(torch.arange(3)).sum() + np.array(torch.ones(2)).astype(np.int64)[0]


def shapes_of_tensors(x):
    return x.reshape(torch.Size(torch.tensor([3, 2]))).new_ones(torch.tensor(3), 2) * x.reshape(3, 2).sin()


def equal_tensors(x):
    a = torch.eye(3).tril()
    return x.sin() if torch.equal(a, torch.eye(3)) and torch.allclose(a.exp().log(), a, atol=1e-6) else x.cos()


def membership(x):
    return x.sin() if 3 in torch.arange(4) and 4 not in torch.arange(4) else x.cos()


def complex_numbers(x):
    z = torch.tensor([1 + 2j, 3 - 1j]).conj()
    return x.sin() * z[0].item().imag + x * z.imag.sum().item() + z.tolist()[1].real


def looks_of_an_input(x):
    """Whose values these are not."""
    mask = torch.ones_like(x, dtype=torch.bool)
    filled = x.new_full((2,), 3.0).sum() + torch.zeros_like(x).sum() + x.detach().clone().fill_(2.0).max()
    return x.sin() * filled.item() if mask.all() and not x.new_zeros(3).any() else x


def copied_into(x):
    y = x.detach().clone()
    y.copy_(torch.arange(3.0))
    return x * y[1, 2].item() + x.sin() * y.sum().item()


def writes(x):
    mask = torch.zeros(4, 4)
    mask[1:, 0] = 1
    mask[0].add_(torch.arange(4.0))
    mask.t()[2].mul_(3)
    mask.masked_fill_(mask == 6, 7.0)
    seen = mask.sum().item()
    mask += 1
    return x.sin() * seen + x * mask.max().item()


def of_several_results(x):
    values, places = torch.tensor([3.0, 1.0, 2.0]).sort()
    q, r = torch.linalg.qr(torch.eye(2) * 2)
    return x.sin() * places[0].item() + x * values[-1].item() + (q @ r).abs().sum().item()


def formatted(x):
    assert f"{torch.tensor(2.5):.2f}" == "2.50"
    return x.sin() * len(f"{torch.arange(3)}")


def tensors_of_tensors(x):
    n, half = torch.tensor(2), torch.tensor(0.5, dtype=torch.float64)
    a, b = torch.tensor([[n, 3], [4, n * 2]]), torch.as_tensor([half, half * 3])
    assert a.dtype == torch.int64 and b.dtype == torch.float64
    left, right = x.tensor_split(torch.tensor([1]), 1)
    return left.sin() * a.sum().item() + torch.full((2,), n) * right * b.float() + x.new_tensor([n, 1])


def that_requires_grad(x):
    w = torch.ones(3, requires_grad=True)
    return x.sin() * w.sum().item() + (w.detach().numpy().sum() if w.tolist() == [1.0] * 3 else 0)


READS = [
    truth_of_all, truth_of_none, a_number, an_int, a_loop, an_index, a_range, a_list, a_nested_list, an_array,
    shapes_of_tensors,
    equal_tensors, membership, complex_numbers, looks_of_an_input, copied_into, writes, of_several_results, formatted,
    tensors_of_tensors, that_requires_grad,
]  # fmt: skip


@pytest.mark.parametrize("f", READS)
def test_reads(f):
    agrees(f)


@pytest.mark.parametrize("f", [truth_of_all, a_list, looks_of_an_input, writes])
def test_reads_with_draws_of_a_key(f):
    agrees(f, rng="philox")


T = torch.tensor
WAYS = {
    "narrow": lambda x: x.narrow(0, T(1), 1),
    "slice": lambda x: x[T(0) : T(1)],
    "linspace": lambda x: x * torch.linspace(T(0.0), T(1.0), 3),
    "arange": lambda x: x * torch.arange(T(3)),
    "sizes one by one": lambda x: x.view(*T([3, 2])).repeat(*T([1, 2])).permute(*T([1, 0])) * torch.ones(*T([4, 3])),
    "sorted": lambda x: x[:, sorted(T([2, 0, 1]))] * max(T([2, 0, 1])) * min(torch.ones(2)),
    "zip": lambda x: sum(row * float(i) for i, row in zip(T([1.0, 2.0]), x, strict=True)),
    "filter": lambda x: x * len(list(filter(None, T([1, 0, 2])))),
    "chained comparisons": lambda x: x if T(1) < T(2) < T(3) else -x,
    "assert": lambda x: (torch._assert(T(1.0) > 0, "no"), torch.testing.assert_close(torch.ones(2), torch.ones(2)), x)[
        -1
    ],
    "tensors in a list": lambda x: (
        x[:, [T(0), T(2)]] + x[[T(0), T(2)]] + x.index_put((T(0), T([1, 2])), T(1.0))[[0, 1]][:, [T(1), 2]]
    ),
    "lengths of ctc_loss": lambda x: F.ctc_loss(
        x.expand(4, 2, 3).log_softmax(-1), torch.ones(2, 2).long(), T([4, 4]), T([2, 1])
    ),
}


@pytest.mark.parametrize("f", WAYS.values(), ids=WAYS)
def test_other_ways_to_ask(f):
    assert_rounded(fg.jit(f, backend="aten")(X), f(X))


def test_an_array_of_a_constant_is_not_written_to():
    """The trace would not see it, and go on with what the tensor held."""

    def f(x):
        t = torch.zeros(3)
        t.numpy()[0] = 1.0
        return x * t

    with pytest.raises(fg.TraceError, match="read-only"):
        fg.jit(f)(X)


def test_an_index_that_is_wrong_raises_what_eager_raises():
    f = lambda x: x * torch.arange(3)[torch.tensor([1, 5])].sum().item()  # noqa: E731
    for call in (f, fg.jit(f)):
        with pytest.raises(IndexError, match="index 5 is out of bounds"):
            call(X)


# ── sizes that depend on values ──────────────────────────────────────────────────────────────────────────────────


def lower(*shape):
    return torch.ones(*shape, dtype=torch.bool).tril()


def by_a_mask(x):
    return x[lower(2, 3)].sin() * x[:, torch.tensor([True, False, True])].exp().sum(1).mean()


def by_a_mask_of_some_dimensions(x):
    y = x.expand(4, 2, 3)
    return (
        y[:, torch.tensor([False, True])].sin()
        + y[lower(4, 2), torch.tensor([0])].sum()
        + y[..., torch.arange(3) > 0].sum()
    )


def by_bytes(x):
    return x[torch.tensor([[1, 0, 1], [0, 0, 1]], dtype=torch.uint8)].sin()


def by_a_mask_of_nothing(x):
    return x[torch.zeros(2, 3, dtype=torch.bool)].sum() + x.sin()


def by_a_truth(x):
    return x[torch.tensor(True)].sin() + x[torch.tensor(False)].sum()


def selected(x):
    return (
        x.masked_select(lower(2, 3)).sin()
        * x.masked_select(torch.arange(3) > 0).exp().sum()
        * x[0, 0].masked_select(torch.tensor(True))
    )


def put(x):
    y = x.sin()
    y[lower(2, 3)] = x[lower(2, 3)].exp()
    y[torch.arange(2) > 0] *= 3.0
    y[:, torch.arange(3) == 1] = 2.0
    return y.index_put((torch.tensor([True, False]),), x[1], accumulate=True)


def put_by_scatter(x):
    return x.sin().masked_scatter(lower(2, 3), x.t().exp()) + x.masked_scatter(torch.arange(3) > 1, x.cos())


def places(x):
    i, j = torch.nonzero(torch.eye(2, 3), as_tuple=True)
    k = (torch.arange(6) % 4 == 1).nonzero().flatten()
    last, ones = torch.argwhere(torch.arange(6) > 4), torch.where(torch.eye(2))
    return x[i, j].sin().sum() * x.flatten()[k].exp() + x.flatten()[last].sum() + ones[0].sum()


def different_values(x):
    values, inverse, counts = torch.tensor([3, 1, 3, 2]).unique(return_inverse=True, return_counts=True)
    consecutive = torch.tensor([1, 1, 2, 1]).unique_consecutive()
    rows = torch.eye(3).repeat(2, 1).unique(dim=0)
    return (
        x.sin()[:, inverse[:3]] * counts.sum() + x[:, :1] * values.shape[0] + consecutive.sum() + x @ rows * len(rows)
    )


def repeated(x):
    return (
        x.repeat_interleave(torch.tensor([2, 1, 0]), dim=1).sin() + x.repeat_interleave(torch.tensor([1, 2]), 0).sum()
    )


def counted(x):
    return x.sin() * torch.tensor([0, 2, 2]).bincount() + torch.bincount(torch.tensor([1, 1])).shape[0]


def combined(x):
    return torch.combinations(torch.arange(3)).shape[0] * x[:, torch.combinations(torch.arange(3))].sin().sum(-1)


def one_hot(x):
    return x.sin() * F.one_hot(torch.tensor([2, 0])) + F.one_hot(torch.tensor([0, 1]), 3) * x


def least_squares(x):
    return x.sin() * torch.linalg.lstsq(torch.eye(3) * 2, torch.ones(3, 1)).solution.sum()


def rounded(x):
    """Which elements are chosen depends on the last bit of what a kernel may round otherwise."""
    t = torch.linspace(0, 7, 2000)
    mask = t.sin() ** 2 + t.cos() ** 2 > 1
    y = x.flatten()[:1] * torch.ones(2000)
    return y[mask].sin() + y.masked_select(mask).exp()


SIZES = [
    by_a_mask, by_a_mask_of_some_dimensions, by_bytes, by_a_mask_of_nothing, by_a_truth, selected, put, put_by_scatter,
    places,
    different_values, repeated, counted, combined, one_hot, least_squares, rounded,
]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8")
@BACKENDS
@pytest.mark.parametrize("f", SIZES)
def test_sizes(f, backend):
    agrees(f, backend=backend)


def test_a_mask_is_looked_through_once():
    program = agrees(by_a_mask)
    nodes = list(program.joint.graph.fx.nodes)
    assert len([n for n in nodes if n.op == "get_attr"]) == 2
    assert not [n for n in nodes if n.target is torch.ops.aten.nonzero.default]


def test_a_mask_of_another_shape():
    for f in (lambda x: x[torch.ones(3, 3, dtype=torch.bool)], lambda x: x[torch.ones(2, 3, 1, dtype=torch.bool)]):
        for call in (f, fg.jit(f)):
            with pytest.raises(IndexError):
                call(X)


def test_what_is_large_is_computed_by_the_program():
    """Of whole numbers the program finds the same sizes; data as large as this it does not carry along."""

    def f(x):
        return x[:, (torch.arange(100_000) % 3 == 0).nonzero().flatten()].sin() + torch.arange(99_999).unique().shape[0]

    x = torch.randn(2, 100_000)
    program = agrees(f, x)
    assert sum(c.nbytes for c in program.joint.graph.constants.values()) < 1000
    assert [n for n in program.joint.graph.fx.nodes if n.target is torch.ops.aten.nonzero.default]


def test_what_is_large_and_rounded_is_data():
    def f(x):
        return x[:, (torch.linspace(0, 9, 100_000).sin() > 0.5).nonzero().flatten()].sin()

    program = agrees(f, torch.randn(2, 100_000))
    assert not [n for n in program.joint.graph.fx.nodes if n.target is torch.ops.aten.nonzero.default]


# ── where it is asked ────────────────────────────────────────────────────────────────────────────────────────────


class Scaled(torch.autograd.Function):
    """Reads constants in forward and in backward."""

    @staticmethod
    def forward(ctx, x):
        scale = torch.arange(4.0)
        ctx.save_for_backward(x, scale)
        return x * scale.max().item()

    @staticmethod
    def backward(ctx, g):
        x, scale = ctx.saved_tensors
        mask = torch.ones(2, 3)
        mask[0, 1] = 0
        return g * scale.sum().item() if not mask.all() else g + x[mask.bool()].sum()


def test_in_a_custom_function():
    agrees(lambda x: Scaled.apply(x.sin()) * 2)


class ReadsItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3 if g.sum().item() > 0 else g * 5


def test_an_incoming_gradient_is_not_known():
    """Of two halves it comes in; a gradient begins with ones, which are known."""
    f = lambda x: ReadsItsGradient.apply(x)  # noqa: E731
    with pytest.raises(fg.DataDependentControlFlowError):
        fg.jit(f, reads="error")(X.clone().requires_grad_()).sum().backward()
    assert torch.equal(fg.grad_compiled(lambda x: f(x).sum())(X), torch.full((2, 3), 3.0))


class ReadsAPartOfItsGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 3 if g.a.sum().item() > 0 else g * 5


def test_an_incoming_gradient_of_a_subclass_is_not_known():
    """It is made like the result it is for, whose looks are known."""
    x = TwoTensor(X.clone(), X.clone()).requires_grad_()
    with pytest.raises(fg.DataDependentControlFlowError):
        fg.jit(ReadsAPartOfItsGradient.apply, reads="error")(x).sum().backward()


@pytest.mark.parametrize(
    "transformed",
    [
        lambda f: torch.func.vmap(f),
        lambda f: torch.func.grad(lambda x: f(x).sum()),
        lambda f: lambda x: torch.func.jvp(f, (x,), (x.cos(),))[1],
        lambda f: torch.func.vmap(torch.func.grad(lambda x: f(x).sum())),
        lambda f: torch.func.jacrev(f),
    ],
)
def test_inside_transforms(transformed):
    def f(x):
        mask = torch.zeros(3)
        mask[:2] = 1
        y = x.sin() * mask.sum().item() if mask.any() else x
        return y[..., mask.bool()].exp() * torch.tensor([2, 3]).tolist()[1]

    agrees(transformed(f))


def test_in_a_branch():
    def chosen(x):
        scale = torch.arange(3.0)
        return x.sin() * scale.sum().item() if scale[1:].all() and torch.equal(scale, torch.arange(3)) else x.exp()

    def other(x):
        return x.cos() * int(torch.tensor(2))

    f = lambda x: torch.cond(x.sum() > 0, chosen, other, (x,))  # noqa: E731
    value, gradient = fg.jit(f), fg.grad_compiled(lambda x: f(x).sum())
    for x, branch in ((X, chosen), (-X, other)):  # eager PyTorch's torch.cond reads no value
        leaf = x.clone().requires_grad_()
        torch.testing.assert_close(value(x), branch(x))
        torch.testing.assert_close(gradient(x), torch.autograd.grad(branch(leaf).sum(), leaf)[0])


def test_what_a_branch_wrote_is_known():
    """A branch is traced as any function: a write is a value."""

    def chosen(x):
        mask = torch.ones(3)
        mask[1] = 5.0
        return x.sin() * mask.sum().item()

    f = fg.jit(lambda x: torch.cond(x.sum() > 0, chosen, lambda x: x.cos(), (x,)))
    for x in (X, -X):
        torch.testing.assert_close(f(x), chosen(x) if x.sum() > 0 else x.cos())


def test_what_a_branch_returns_is_not_known():
    """Each branch returns a constant; which one, the input decides."""

    def f(x):
        n = torch.cond(x.sum() > 0, lambda x: torch.zeros(3), lambda x: torch.ones(3), (x,))
        return x * n.sum().item()

    with pytest.raises(fg.DataDependentControlFlowError):
        fg.jit(f)(X)


def test_under_autocast():
    """An operator is run as it was traced, in the dtype autocast chose, whatever holds where its value is asked for."""

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            product = torch.full((2, 2), 1.01) @ torch.full((2, 2), 1.02)
        assert product.dtype == torch.bfloat16
        return x.sin() * product[0, 0].item()

    agrees(f)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        x = X.clone()
        assert_rounded(fg.jit(f)(x), f(x))


def test_under_no_grad_and_inference_mode():
    compiled = fg.jit(by_a_mask)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            torch.testing.assert_close(compiled(X), by_a_mask(X))


def test_checkpoint():
    agrees(fg.checkpoint(lambda x: x[lower(2, 3)].sin() * torch.arange(3).sum().item()))


def test_results_that_are_read():
    """A number that was read may be returned; a constant may be returned and written to afterwards."""

    def f(x):
        mask = lower(2, 3)
        return x[mask], mask.sum().item(), mask.nonzero(), mask.tolist()

    compiled = fg.jit(f)
    for _ in range(2):
        found, n, at, rows = compiled(X)
        expected = f(X)
        assert (
            n == expected[1]
            and rows == expected[3]
            and torch.equal(found, expected[0])
            and torch.equal(at, expected[2])
        )
        at.zero_()


# ── sizes and numbers that are symbols ───────────────────────────────────────────────────────────────────────────


def causal(x):
    mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
    scale = mask.sum().item() if not mask.all() else 7
    return (x @ x.t())[mask].sin() * scale


@pytest.mark.parametrize("dynamic", [None, True, False])
def test_a_constant_of_a_symbolic_size(dynamic):
    compiled = fg.value_and_grad_compiled(lambda x: causal(x).sum(), dynamic=dynamic)
    for n in (3, 4, 5, 4, 1, 6, 3, 5):
        x = torch.randn(n, 3)
        assert_rounded(compiled(x), torch.func.grad_and_value(lambda x: causal(x).sum())(x)[::-1])
    assert compiled.cache_info().hits == 3


def test_only_the_size_a_constant_has_is_fixed():
    def f(x):
        mask = torch.ones(x.shape[1])
        return x.sin() * mask.sum().item()

    compiled = fg.jit(f)
    for shape in ((3, 4), (5, 4), (7, 4), (7, 6), (9, 6), (11, 6), (2, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), f(x))
    assert compiled.cache_info().hits > 1


def test_a_constant_of_a_symbolic_number():
    def f(x, scale):
        return x.sin() * torch.full((3,), scale).sum().item() if (torch.ones(2) * scale > 0.5).all() else x.cos()

    compiled = fg.jit(f)
    for scale in (1.0, 2.0, 0.25, 3.0, 2.0, 0.125):
        torch.testing.assert_close(compiled(X, scale), f(X, scale))


# ── nothing stale ────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_default_dtype_between_calls():
    f = lambda x: x.double() * torch.ones(3).div(3).sum().item() * torch.tensor(0.1).item()  # noqa: E731
    compiled = fg.jit(f)
    try:
        for dtype in (torch.float32, torch.float64, torch.float32):
            torch.set_default_dtype(dtype)
            torch.testing.assert_close(compiled(X), f(X), rtol=1e-15, atol=0)
    finally:
        torch.set_default_dtype(torch.float32)


def test_the_default_dtype_within_the_function():
    """A constant is computed in the dtype that was the default where it was made, and asking changes no default."""

    def f(x):
        torch.set_default_dtype(torch.float64)
        third = torch.arange(1, 2) / 3
        torch.set_default_dtype(torch.float32)
        seen = third.item()
        return x.double() * seen * (torch.arange(1, 2) / 3).item()

    torch.testing.assert_close(fg.jit(f)(X), f(X), rtol=1e-15, atol=0)
    assert torch.get_default_dtype() == torch.float32


def test_plain_values_are_watched():
    length = 3
    f = lambda x: x.sin() * torch.arange(length).sum().item()  # noqa: E731
    compiled = fg.jit(f)
    for length in (3, 5, 3, 7):
        torch.testing.assert_close(compiled(X), f(X))


def test_the_tape_is_let_go_of():
    """What was noted, and what was computed, goes with the run."""
    traces = []
    original = Trace.run

    def run(self, *args, **kwargs):
        try:
            return original(self, *args, **kwargs)
        finally:
            traces.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trace, "run", run)
        fg.jit(by_a_mask)(X)
    assert len(traces) >= 2
    tapes = [trace.reads.tape for trace in traces]
    assert not any(t._calls or t._constants or t._now or t._given or t._draws for t in tapes)
    assert not any(trace.reads._found for trace in traces)


def test_nothing_is_computed_before_python_asks():
    ran = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tape, "_run", lambda *call: ran.append(call))
        agrees(lambda x: x.sin() * torch.ones(3).cumsum(0) + torch.arange(3).float().exp())
    assert not ran


# ── what is not known ────────────────────────────────────────────────────────────────────────────────────────────

WEIGHT = torch.tensor([1.0, 2.0])


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.register_buffer("mask", torch.ones(3))


MODULE = Masked()


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x * x.max().item(),
        lambda x: x if (torch.ones(3) * x.detach() > 0).all() else -x,
        lambda x: x * WEIGHT.sum().item(),
        lambda x: x * (torch.ones(2) * WEIGHT).sum().item(),
        lambda x: x * int(MODULE.weight.sum()),
        lambda x: x if MODULE.mask.all() else -x,
        lambda x: x * torch.rand(3).max().item(),
        lambda x: x * torch.ones(3).bernoulli_(0.5).sum().item(),
        lambda x: x * F.dropout(torch.ones(3)).sum().item(),
        lambda x: x * torch.randperm(3)[0].item(),
        lambda x: x * (torch.zeros(3).copy_(x[0].detach())).sum().item(),
        lambda x: x * torch.zeros(3).index_put((torch.tensor([0]),), x[0, :1].detach()).sum().item(),
        lambda x: x if torch.equal(x, torch.ones(2, 3)) else -x,
        lambda x: x * x.detach().tolist()[0][0],
        lambda x: x * len(f"{x.detach().sum():.3f}"),
        lambda x: x * float(x.detach().numpy()[0, 0]),
        lambda x: x * torch.tensor([x.detach().sum(), 1.0]),
    ],
)
@pytest.mark.parametrize("rng", ["eager", "philox"])
def test_what_depends_on_an_input_or_a_draw_is_refused(f, rng):
    for transform in (fg.jit, lambda f, **options: fg.grad_compiled(lambda x: f(x).sum(), **options)):
        with pytest.raises(fg.DataDependentControlFlowError) as caught:
            transform(f, rng=rng, reads="error")(X)
        assert caught.value.where.startswith("test_known_values.py:")


@pytest.mark.parametrize(
    "read", [lambda x: x.tolist(), lambda x: x.numpy(), lambda x: np.asarray(x), lambda x: f"{x.sum():.2f}"]
)
def test_a_refusal_the_function_swallows(read):
    """Else it would go on as if there were no such method."""

    def f(x):
        try:
            read(x.detach())
        except (RuntimeError, TypeError):
            return x * 2
        return x * 3

    with pytest.raises(fg.DataDependentControlFlowError):
        fg.jit(f, reads="error")(X)


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: torch.arange(3).repeat_interleave((x[0] > 0).long()),
        lambda x: torch.ones(3)[torch.rand(3) > 0.5],
    ],
)
def test_sizes_that_depend_on_an_input_or_a_draw_are_refused(f):
    with pytest.raises(fg.DataDependentShapeError):
        fg.jit(f, reads="error")(X)


@torch.library.custom_op("known_values::now", mutates_args=())
def now(like: torch.Tensor) -> torch.Tensor:
    return like + time.time()


@now.register_fake
def _now(like):
    return torch.empty_like(like)


def test_a_custom_operator_is_not_known():
    """It may answer otherwise each time it is called."""
    with pytest.raises(fg.DataDependentControlFlowError):
        fg.jit(lambda x: x * now(torch.ones(2)).sum().item(), reads="error")(X)


# ── as libraries do it ───────────────────────────────────────────────────────────────────────────────────────────


class Attention(nn.Module):
    """As transformers' language models ask for their masks, where the caller gives none."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.out = nn.Linear(8, 8)

    @staticmethod
    def ignores(mask, length):
        if mask is None or mask.dim() != 2:
            return mask is None
        return length == 1 or bool(torch.all(mask == 1))

    def forward(self, x, mask=None):
        batch, length, _ = x.shape
        mask = torch.ones(batch, length, dtype=torch.long) if mask is None else mask
        positions = mask.cumsum(-1) - 1
        positions.masked_fill_(mask == 0, 1)
        assert positions.max().item() < 512
        q, k, v = (self.project(x) + positions[..., None].float().cos()).chunk(3, -1)
        allowed = None
        if not self.ignores(mask, length):
            allowed = torch.full((length, length), torch.finfo(x.dtype).min).triu(1)
            allowed = allowed[None] * (torch.arange(length)[None] < length) if allowed.any() else None
        return self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=allowed, is_causal=allowed is None))


def test_masks_of_a_language_model():
    module, x = Attention(), torch.randn(2, 5, 8)
    parameters = dict(module.named_parameters())
    loss = lambda p, x: torch.func.functional_call(module, p, (x,)).square().mean()  # noqa: E731
    compiled = fg.value_and_grad_compiled(loss)
    for length in (5, 6, 7, 5):
        x = torch.randn(2, length, 8)
        gradient, value = torch.func.grad_and_value(loss)(parameters, x)
        assert_rounded(compiled(parameters, x), (value, gradient))


def odeint(f, y, t):
    """As torchdiffeq checks the times it is given, and steps from one to the next."""
    if not (t[1:] > t[:-1]).all() and not (t[1:] < t[:-1]).all():
        raise AssertionError("t must be strictly increasing or decreasing")
    if t.dim() != 1 or t.numel() < 2:
        raise ValueError("t must be one dimensional")
    if (t[0] > t[1]).item():
        t, f = -t, lambda time, y, g=f: -g(-time, y)
    found = [y]
    for a, b in itertools.pairwise(t):
        steps = int(torch.ceil((b - a) / 0.125).item())
        for i in range(steps):
            h = (b - a) / steps
            y = y + h * f(a + i * h, y + h / 2 * f(a + i * h, y))
        found.append(y)
    return torch.stack(found)


@pytest.mark.parametrize(
    "times", [lambda: torch.linspace(0, 1, 5), lambda: torch.tensor([1.0, 0.5, 0.2]), lambda: torch.arange(3) / 2]
)
def test_times_of_an_integrator(times):
    agrees(lambda x: odeint(lambda t, y: -y * t.cos() + y.sin(), x, times()))


def test_times_in_a_wrong_order():
    with pytest.raises(AssertionError, match="strictly increasing"):
        fg.jit(lambda x: odeint(lambda t, y: -y, x, torch.tensor([0.0, 2.0, 1.0])))(X)


def test_distributions_of_constant_parameters():
    D = torch.distributions

    def f(x):
        normal = D.Normal(torch.zeros(3), torch.ones(3) * 2, validate_args=True)
        full = D.MultivariateNormal(torch.zeros(3), torch.eye(3) * 2 + 0.1, validate_args=True)
        mixture = D.Categorical(torch.tensor([0.25, 0.75]), validate_args=True)
        with torch.no_grad():
            entropy = mixture.entropy()
        return x.sin() * full.variance.sum() * entropy + normal.log_prob(torch.tensor(0.3)) * x

    def unchecked(x):
        distribution = D.Normal(torch.zeros(3), torch.ones(3) * 2, validate_args=True)
        distribution._validate_args = False  # the sample is an input
        return distribution.log_prob(x)

    agrees(unchecked)
    agrees(f)
    wrong = lambda x: x * D.Normal(torch.zeros(2), -torch.ones(2), validate_args=True).mean.sum()  # noqa: E731
    for call in (wrong, fg.jit(wrong)):
        with pytest.raises(ValueError, match="Expected parameter scale"):
            call(X)
