"""Indices that are tensors: laws against eager PyTorch at random shapes, and what happens where an index is out of
bounds."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.memory.steps import Extern, Launch

# ── laws ─────────────────────────────────────────────────────────────────────────────────────────────────────────

SHAPES = st.lists(st.integers(1, 9), min_size=1, max_size=4)
FEW = settings(max_examples=7, deadline=None)


def indices(data, size, shape, least=0):
    count = torch.Size(shape).numel()
    return torch.tensor(
        data.draw(st.lists(st.integers(least, size - 1), min_size=count, max_size=count)), dtype=torch.int64
    ).view(shape)


def same(f, *args, backend="c"):
    compiled = fg.jit(f, backend=backend)
    torch.testing.assert_close(compiled(*args), f(*args))
    return [s.node.target for k in compiled.program(*args).kernels for s in k.steps if isinstance(s, Extern)]


def places(data):
    """A shape, one of its dimensions, and the shape of indices along it."""
    shape = data.draw(SHAPES)
    dim = data.draw(st.integers(0, len(shape) - 1))
    return shape, dim, [data.draw(st.integers(1, n + 3 * (d == dim))) for d, n in enumerate(shape)]


@FEW
@given(st.data())
def test_gather(data):
    shape, dim, at = places(data)
    x, i = torch.randn(shape), indices(data, shape[dim], at)
    assert not same(lambda x, i: (x.exp().gather(dim, i) * 2, x.index_select(dim, i.flatten())), x, i)


@FEW
@given(st.data())
def test_advanced_indexing(data):
    """``x[..., i, :, j]``: some dimensions are indexed, by tensors that are broadcast."""
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    dims = sorted(data.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1)))
    wide = data.draw(st.lists(st.integers(2, 4), max_size=2, min_size=1))
    given = [slice(None)] * len(shape)
    for d in dims:
        narrow = [data.draw(st.sampled_from((1, n))) for n in wide]
        given[d] = indices(data, shape[d], narrow[data.draw(st.integers(0, len(narrow) - 1)) :], -shape[d])
    x = torch.randn(shape).transpose(0, -1).contiguous().transpose(0, -1)
    assert not same(lambda x, *at: x[tuple(given)] + 1, x, *(i for i in given if isinstance(i, torch.Tensor)))


@FEW
@given(st.data())
def test_scatter(data):
    shape, dim, at = places(data)
    i, source = indices(data, shape[dim], at), torch.randn(at)
    few = indices(data, shape[dim], [at[dim]])
    slices = torch.randn([at[d] if d == dim else n for d, n in enumerate(shape)])

    def f(x, i, few, source, slices):
        y = x.sin().scatter(dim, i, source), x.scatter_add(dim, i, source * 2), x.scatter_reduce(dim, i, source, "amax")
        return (*y, x.index_add(dim, few, slices, alpha=3), x.index_copy(dim, few, slices), x.index_fill(dim, few, 2.0))

    assert not same(f, torch.randn(shape), i, few, source, slices)


@FEW
@given(st.data())
def test_gradients(data):
    """What is looked up gets its gradient back, added up."""
    rows, columns = data.draw(st.integers(1, 200)), data.draw(st.sampled_from((1, 3, 64, 300)))
    x, i = torch.randn(5, columns), indices(data, 5, [rows])

    def loss(x, i):
        return (x[i].sin() * F.embedding(i, x).cos()).sum() + x.gather(
            0, i[:, None].expand(rows, columns)
        ).square().sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf, i), leaf)
    torch.testing.assert_close(fg.grad_compiled(loss)(x, i), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.int16], ids=str)
def test_what_is_put_last_stays(dtype):
    x, i, values = torch.zeros(4, 3, dtype=dtype), torch.tensor([1, 3, 1, -1, 1]), torch.arange(15).view(5, 3).to(dtype)
    f = fg.jit(lambda x, i, v: (x.index_put((i,), v), x.index_put((i,), v, accumulate=True)), backend="c")
    put, added = f(x, i, values)
    assert put.tolist() == [[0] * 3, [12, 13, 14], [0] * 3, [9, 10, 11]]
    torch.testing.assert_close(added, x.index_put((i,), values, accumulate=True))


def test_many_are_added_by_threads():
    """As in one thread, bit by bit: of many columns, of many slices, and in one place."""
    x, i = torch.randn(3000, 256), torch.randint(40, (3000,))

    def f(x, i):
        wide = torch.zeros(40, 256).index_add(0, i, x), torch.zeros(256, 40).index_add(1, i, x.T)
        return *wide, torch.zeros(256).index_put((i,), x[:, 0], accumulate=True)

    compiled = fg.jit(f, backend="c")
    torch.set_num_threads(1)
    alone = compiled(x, i)
    torch.set_num_threads(3)
    together = compiled(x, i)
    assert all(map(torch.equal, alone, together))
    torch.testing.assert_close(alone, f(x, i), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_put_is_computed_where_it_is_put(threads):
    """Messages along edges are not in memory: neither forward nor backward, nor where they come from what they are
    added to."""
    torch.set_num_threads(threads)
    x, weight, (source, target) = torch.randn(80, 64), torch.rand(600), torch.randint(80, (2, 600))

    def f(x, weight, source, target):
        return x.index_add(0, target, x[source] * weight[:, None])

    def loss(x, weight, source, target):
        return f(f(x, weight, source, target).relu(), weight, source, target).sigmoid().sum()

    assert same(f, x, weight, source, target) == []
    compiled = fg.value_and_grad_compiled(loss, argnums=(0,), backend="c")
    args = x, weight, source, target
    torch.testing.assert_close(
        compiled(*args), torch.func.grad_and_value(loss, argnums=(0,))(*args)[::-1], rtol=1e-4, atol=1e-4
    )
    launches = [s for k in compiled.program(*args).kernels for s in k.steps if isinstance(s, Launch)]
    assert not [b for s in launches for kernel in s.kernels for b in kernel.writes if b.shape[:2] == (600, 64)]


REDUCED = {
    "sums are added": lambda x, i: torch.zeros(50).index_add(0, i, x.sum(1)),
    "to sums": lambda x, i: x.sum(1).index_add(0, i, x.amax(1)),
    "to one sum": lambda x, i: x.sum().expand(50).index_add(0, i, x.sum(1)),
    "a number is put among extrema": lambda x, i: x.amax(1).index_put((i[:3],), torch.tensor(1.0)),
    "rows are added to a scan": lambda x, i: x.cumsum(0).index_add(0, i[:3], x[:3]),
    "a scan to the other": lambda x, i: (x.cumsum(1).index_add(0, i, x.cumsum(0)), x.sum(0), x.cumsum(0)[:, 5]),
}
"""What is put, or what it is put into, is a reduction or a scan itself, not computed from one."""


@pytest.mark.parametrize("backend", ["c", "triton"])
@pytest.mark.parametrize("name", REDUCED)
def test_sums_and_scans_are_put_and_put_into(name, backend):
    assert not same(REDUCED[name], torch.randn(20, 30), torch.randint(20, (20,)), backend=backend)


@pytest.mark.parametrize("backend", ["c", "triton"])
def test_the_gradient_of_what_is_looked_up_and_broadcast(backend):
    """Sums over what it was broadcast to are added where it was."""

    def loss(v, i, w):
        return (v[i][:, None] * w).tanh().sum()

    args = torch.randn(40), torch.randint(40, (60,)), torch.randn(60, 33)
    torch.testing.assert_close(
        fg.grad_compiled(loss, backend=backend)(*args), torch.func.grad(loss)(*args), rtol=1e-4, atol=1e-4
    )


def test_indices_that_are_computed():
    x, table, at = torch.randn(6, 5), torch.tensor([3, 0, 5, 2]), torch.tensor([[1, -1], [2, 0]])

    def f(x, table, at):
        found = table[at] - 6  # an index at an index
        return x[found].sin(), x.T[:, found, None].sum(0), torch.cat([x, x * 2])[table + 6], torch.arange(6)[found]

    same(f, x, table, at)


def test_the_log_softmax_of_a_cross_entropy_is_not_kept():
    x, y = torch.randn(50, 300), torch.randint(300, (50,))
    program = fg.value_and_grad_compiled(lambda x, y: F.cross_entropy(x, y)).program(x, y)
    (kernels,) = program.kernels
    assert not any(isinstance(s, Extern) for s in kernels.steps)
    assert sum(b.shape == x.shape for s in kernels.steps for b in s.writes) == 1  # the gradient


# ── indices out of bounds ────────────────────────────────────────────────────────────────────────────────────────

X, I = torch.randn(5, 4), torch.tensor([1, 7, 2])

WRONG = {
    "embedding": lambda x, i: F.embedding(i, x),
    "index": lambda x, i: x[i],
    "negative": lambda x, i: x[:, i - 8],
    "two": lambda x, i: x[i % 5, i - 3],
    "second": lambda x, i: x[i % 5] + x[i % 5 + 3],
    "gather": lambda x, i: x.gather(0, i[:, None]),
    "gather of a negative index": lambda x, i: x.gather(0, i[:, None] - 7),
    "index_select": lambda x, i: x.index_select(1, i),
    "take": lambda x, i: x.take(i * 3),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:3], i),
    "nll_loss": lambda x, i: F.nll_loss(x[:3].log_softmax(0), i % 2 - 1, torch.ones(4)),
    "index_put": lambda x, i: x.index_put((i,), x[:3]),
    "index_put, added": lambda x, i: x.index_put((i % 5, i), x[:3, 0], accumulate=True),
    "index_add": lambda x, i: x.index_add(0, i, x[:3]),
    "index_copy": lambda x, i: x.index_copy(0, i, x[:3]),
    "index_fill": lambda x, i: x.index_fill(0, i, 1.0),
    "scatter": lambda x, i: x.scatter(0, i[:, None], x[:3]),
    "scatter of one value": lambda x, i: x.scatter(1, i[:, None] % 2 * 9, 2.0),
    "scatter_add": lambda x, i: x.scatter_add(0, i[:, None] - 9, x[:3]),
    "before a library call": lambda x, i: x[i] @ x.T,
    "after one": lambda x, i: (x @ x.T)[i],
}


def message(f, *args):
    with pytest.raises((IndexError, RuntimeError)) as caught:
        f(*args)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize("name", WRONG)
def test_the_error_is_pytorchs(name):
    f = WRONG[name]
    assert message(fg.jit(f, backend="c"), X, I) == message(f, X, I)


@pytest.mark.parametrize("between", [torch.sin, torch.linalg.inv], ids=["a kernel", "a library call"])
def test_what_is_checked_may_be_asked_for_as_well(between):
    def f(x, i):
        wrong = ((i < -5) | (i >= 5)).any()
        return x[i] + wrong, between(x[:4]) * wrong, wrong

    compiled = fg.jit(f, backend="c")
    torch.testing.assert_close(compiled(X, I % 5), f(X, I % 5))
    assert message(compiled, X, I) == message(f, X, I)


def test_buffers_have_names_of_their_own():
    def f(temporary0, check0):
        return (temporary0[check0].sin().sum(0) + temporary0.sum()).exp()

    same(f, X, I % 5)
    assert message(fg.jit(f, backend="c"), X, I) == message(f, X, I)


def test_the_error_of_a_gradient():
    def loss(p, i, y):
        return F.cross_entropy(F.embedding(i, p["table"]) @ p["out"], y)

    p, y = {"table": X, "out": torch.randn(4, 3)}, torch.tensor([0, 2, 1])
    compiled = fg.value_and_grad_compiled(loss)
    compiled(p, I % 5, y)
    assert message(compiled, p, I, y) == message(loss, p, I, y)
    assert message(compiled, p, I % 5, y - 1) == message(loss, p, I % 5, y - 1)
    compiled(p, I % 5, y)


def test_an_ignored_target_may_be_anything():
    same(lambda x, y: F.cross_entropy(x, y), torch.randn(3, 4), torch.tensor([1, -100, 2]))


def test_inputs_are_untouched_where_an_index_is_wrong():
    def f(x, i):
        x.mul_(2)
        x += x[i].sum(0)
        return x

    x = X.clone()
    message(fg.jit(f, backend="c"), x, I)
    assert torch.equal(x, X)


def test_random_numbers_go_on_where_an_index_is_wrong():
    f = fg.jit(lambda x, i: torch.rand(3, 4) + x[i], backend="c")
    f(X, I % 5)
    message(f, X, I)


def test_an_index_that_is_random_and_wrong():
    f = fg.jit(lambda x: x[torch.randint(4, 9, (200,))], backend="c")
    assert message(f, X)[0] is IndexError


# ── running reductions, and the places of extremes ───────────────────────────────────────────────────────────────


@FEW
@given(st.data())
def test_scans(data):
    """Along any dimension, between other computations; and back, which scans from the end."""
    shape = data.draw(SHAPES)
    dim = data.draw(st.integers(0, len(shape) - 1))
    x = torch.randn(shape).round(decimals=1)

    def f(x):
        running = x.sin().cumsum(dim)
        top = x.cummax(dim)
        return (
            running.exp() * x,
            running.sum(dim),
            x.cumprod(dim),
            top.values,
            top.indices,
            x.max(dim),
            x.argmin(dim),
            x.argmax(),
        )

    assert not same(f, x)
    leaf = x.clone().requires_grad_()
    loss = lambda x: (x.cumsum(dim).square() + x.cumsum(dim).exp() * x.amax(dim, keepdim=True)).sum()  # noqa: E731
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(fg.grad_compiled(loss)(x), expected, rtol=1e-4, atol=1e-4)


def test_a_long_sum_is_added_up_in_double_precision():
    x = torch.full((100_000,), 0.1)
    assert abs(fg.jit(lambda x: x.cumsum(0), backend="c")(x)[-1].item() - 100_000 * x[0].double().item()) < 0.01


def test_a_singular_matrix():
    """The error is eager PyTorch's, and what is written before it is raised is what eager PyTorch writes: the function
    might have caught it."""

    def f(a, b, seen):
        seen.add_(1)
        return torch.linalg.solve(a, b).sum() + torch.linalg.inv(a).sum()

    compiled = fg.jit(f, backend="c")
    a, b, seen, wanted = torch.eye(3) * 2, torch.ones(3), torch.zeros(()), torch.zeros(())
    assert torch.equal(compiled(a, b, seen), f(a, b, wanted))
    for g, counter in ((compiled, seen), (f, wanted)):
        with pytest.raises(torch.linalg.LinAlgError, match="singular"):
            g(torch.ones(3, 3), b, counter)
    assert seen == wanted == 2
    assert not [s for k in compiled.program(a, b, seen).kernels for s in k.steps if isinstance(s, Extern)]


@pytest.mark.parametrize("shape", [(2,), (1, 2, 1), (1, 1, 2, 3), (2, 3), (1, 3), (3,), (1,), ()])
@pytest.mark.parametrize("accumulate", [False, True])
def test_values_that_do_not_fit_where_they_go_are_refused_as_in_eager(shape, accumulate):
    def f(x, v):
        return x.index_put((torch.tensor([0, 1]),), v, accumulate)

    x, v = torch.zeros(4, 3), torch.ones(shape)
    try:
        expected = f(x, v)
    except RuntimeError as error:
        with pytest.raises(RuntimeError) as found:
            fg.jit(f)(x, v)
        assert str(error) in str(found.value)
    else:
        torch.testing.assert_close(fg.jit(f)(x, v), expected)


@pytest.mark.parametrize(
    "put",
    [
        lambda x, at, v: x.index_put((at,), v),
        lambda x, at, v: x.index_put((at,), v, accumulate=True),
        lambda x, at, v: x.index_add(0, at, v),
        lambda x, at, v: x.index_copy(0, at, v),
        lambda x, _, v: F.layer_norm(x, (2,), v[0], v[0]),
        lambda x, _, v: F.group_norm(x, 1, v[0], v[0]),
        lambda x, _, v: F.batch_norm(x, v[0], v[0], v[0], v[0], training=True),
        lambda x, at, v: F.nll_loss(x[:2], at // 2, v[0]),
    ],
)
def test_values_of_another_dtype_are_refused_as_in_eager(put):
    given = torch.zeros(4, 2, dtype=torch.float64), torch.tensor([2, 0]), torch.ones(2, 2)
    with pytest.raises(RuntimeError) as expected:
        put(*given)
    with pytest.raises(RuntimeError) as found:
        fg.jit(put)(*given)
    assert str(found.value) == str(expected.value)
