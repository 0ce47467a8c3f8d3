"""Loops as operators: ``scan``, ``map``, ``while_loop``, ``associative_scan``, and ``torch.cond``, under every
transform, against loops and choices in Python."""

import pytest
import torch
from torch._higher_order_ops import associative_scan, map, scan, while_loop

import funcgrad as fg

torch.manual_seed(0)
W = torch.nn.Parameter(torch.randn(3, 3))
INIT, XS = torch.randn(2, 3), torch.randn(4, 2, 3)
TRANSFORMS = {
    "value": lambda f: f,
    "grad": lambda f: torch.func.grad(f, (0, 1)),
    "grad of grad": lambda f: torch.func.grad(lambda a, b: sum(t.sin().sum() for t in torch.func.grad(f, (0, 1))(a, b)),
    (0, 1)),
    "jvp": lambda f: lambda a, b: torch.func.jvp(f, (a, b), (a.cos(), b.sin())),
    "jvp of the first": lambda f: lambda a, b: torch.func.jvp(lambda a: f(a, b), (a,), (a.cos(),)),
    "hessian": lambda f: torch.func.hessian(f),
    "grad of jvp": lambda f: torch.func.grad(lambda a, b: torch.func.jvp(f, (a, b), (a.cos(), b.sin()))[1], (0, 1)),
    "vmap": lambda f: torch.vmap(f),
    "vmap of the first": lambda f: lambda a, b: torch.vmap(f, (0, None))(a, b[0]),
    "vmap of the second": lambda f: lambda a, b: torch.vmap(f, (None, 1))(a[0], b.movedim(0, 1)),
    "vmap of grad": lambda f: torch.vmap(torch.func.grad(f, (0, 1))),
    "grad of vmap": lambda f: torch.func.grad(lambda a, b: torch.vmap(f)(a, b).sum(), (0, 1)),
    "vmap of vmap": lambda f: lambda a, b: torch.vmap(lambda a: torch.vmap(lambda b: f(a, b))(b))(a),
    "vmap of jvp": lambda f: torch.vmap(lambda a, b: torch.func.jvp(f, (a, b), (a.cos(), b.sin()))),
}  # fmt: skip
NO_REVERSE = [
    "value",
    "jvp",
    "jvp of the first",
    "vmap",
    "vmap of the first",
    "vmap of the second",
    "vmap of vmap",
    "vmap of jvp",
]


def given(transform):
    """Two arguments; of those that are batched, a batch."""
    generator = torch.Generator().manual_seed(1)
    batch = (3,) if "vmap" in transform else ()
    return torch.randn(*batch, 2, 3, generator=generator) / 2, torch.randn(*batch, 4, 2, 3, generator=generator) / 2


def by_loop(body, init, xs, dim=0, reverse=False):
    """What ``scan`` computes."""
    carry, results = init, []
    order = range(xs.shape[dim])
    for i in reversed(order) if reverse else order:
        carry, y = body(carry, xs.select(dim, i))
        results.append(y)
    results = results[::-1] if reverse else results
    return carry, torch.stack(results, dim if dim < results[0].ndim + 1 else 0)


def same(f, expected, *args, **options):
    found, wanted = fg.jit(f, **options)(*args), expected(*args)
    torch.testing.assert_close(found, wanted)


def step(carry, x):
    return torch.tanh(carry @ W.to(carry.dtype) + x), carry * x.sin()


def recurrent(loop):
    def f(init, xs):
        scale = init.exp()
        carry, ys = loop(lambda c, x: (step(c, x)[0] * scale, step(c, x)[1]), init, xs)
        return carry.sum() + (ys**2).sum()

    return f


@pytest.mark.sweep(8)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_scan_under_transforms(transform):
    """In double precision: steps one after the other, and differentiated twice, make much of the rounding of single
    precision."""
    apply = TRANSFORMS[transform]
    same(apply(recurrent(scan)), apply(recurrent(by_loop)), *(t.double() for t in given(transform)))


@pytest.mark.parametrize("solve", [torch.linalg.solve, lambda a, x: a.logdet() * x])
@pytest.mark.parametrize("loop", ["scan", "cond"])
def test_forward_over_reverse_of_bodies_that_save_what_has_no_derivative(solve, loop):
    """PyTorch's derivative of a solve takes the LU factors that forward saved, unless it is to be differentiated."""

    def body(a, x):
        return solve(a @ a.T + 3 * torch.eye(3, dtype=a.dtype), x)

    def f(a, xs):
        if loop == "scan":
            return scan(lambda c, x: (body(a, c) + x, c.clone()), xs[0], xs)[0].sum()
        return torch.cond(a.sum() > 0, body, lambda a, x: a @ x, (a, xs[0])).sum()

    def by_hand(a, xs):
        if loop == "scan":
            return by_loop(lambda c, x: (body(a, c) + x, c.clone()), xs[0], xs)[0].sum()
        return body(a, xs[0]).sum()

    a, xs = (
        torch.arange(9.0, dtype=torch.float64).view(3, 3).sin() + 0.3,
        torch.ones(4, 3, dtype=torch.float64).cumsum(0),
    )
    for apply in (
        torch.func.hessian,
        lambda f: torch.func.jacfwd(torch.func.grad(f)),
        lambda f: torch.func.jacrev(torch.func.grad(f)),
    ):
        same(apply(f), apply(by_hand), a, xs, backend="aten")


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_scan_that_is_differentiated_by_backward(backend):
    """Of a parameter that the body closes over, too, and twice."""
    found, c = [], fg.jit(recurrent(scan), backend=backend)
    for f in (c, recurrent(by_loop)):
        leaves = [(INIT / 3).requires_grad_(), (XS / 3).requires_grad_(), W]
        first = torch.autograd.grad(f(*leaves[:2]), leaves, create_graph=True)
        found.append((first, torch.autograd.grad(sum((t**2).sum() for t in first), leaves)))
    torch.testing.assert_close(*found)


def test_one_body_for_all_steps():
    """The graph does not grow with the steps, and the body is compiled once."""
    c = fg.grad_compiled(recurrent(scan), dynamic=False)
    text = [str(c.program(INIT, torch.randn(n, 2, 3)).joint) for n in (3, 30)]
    assert text[0].count("\n") == text[1].count("\n") and "scan(body" in text[0]
    assert sum(source.text.count("scan(") for source in c.program(INIT, XS).sources) == 2  # forward, and backward


def chosen(a, b):
    n = b.shape[0]
    return torch.cond(a.sum() > 0, lambda a, b: a.sin() * n + b.sum(0), lambda a, b: a.cos() / a.shape[0], (a, b)).sum()


def repeated(a, b):
    """As many steps as a size says."""
    return while_loop(lambda i, c: i < b.shape[0], lambda i, c: (i + 1, torch.tanh(c) + b.sum(0)), (torch.tensor(0), a))


def of_each(a, b):
    return map(lambda x, a: (x.sin() * a).sum(0), b, a)


def chosen_of_a_view(a, b):
    """One that lies in memory by a size that is none of its own."""
    return torch.cond(a.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos(), (b[:, 0, :].T,))


OF_ALL_SIZES = {
    "cond": chosen,
    "cond of a view": chosen_of_a_view,
    "grad of cond": torch.func.grad(chosen, (0, 1)),
    "vmap of grad of cond": torch.vmap(torch.func.grad(chosen, (0, 1))),
    "scan": recurrent(scan),
    "grad of scan": torch.func.grad(recurrent(scan), (0, 1)),
    "jvp of scan": lambda a, b: torch.func.jvp(recurrent(scan), (a, b), (a, b)),
    "vmap of scan": torch.vmap(recurrent(scan)),
    "vmap of grad of scan": torch.vmap(torch.func.grad(recurrent(scan), (0, 1))),
    "map": of_each,
    "vmap of map": torch.vmap(of_each),
    "while": repeated,
    "vmap of while": torch.vmap(repeated),
}


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("name", OF_ALL_SIZES)
def test_one_program_for_all_sizes(name, backend):
    """Also under ``vmap``, where a slice is such a view."""
    f = OF_ALL_SIZES[name]
    c, known = fg.jit(f, backend=backend), fg.jit(f, backend="aten", dynamic=False)
    batches, misses = ((4,), (5,), (7,), (6,)) if "vmap" in name else ((),) * 4, []
    for batch, n in zip(batches, (2, 5, 4, 6), strict=True):
        args = (torch.randn(*batch, n, 3).double() / 2, torch.randn(*batch, n + 4, n, 3).double() / 2)
        torch.testing.assert_close(c(*args), known(*args))
        misses.append(c.cache_info().misses)
    assert misses == [1, 2, 2, 2], c.explain_miss(*args)


@pytest.mark.skipif(torch.__version__ < "2.12", reason="torch 2.11 stacks along dimension 0, whatever dim says")
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_scan_along_dimensions(dim, reverse):
    def f(loop):
        return lambda x: loop(lambda c, x: (c + x.sum(), c * x), torch.zeros(()), x, dim=dim, reverse=reverse)

    x = torch.randn(2, 3, 4)
    same(f(scan), lambda x: f(by_loop)(x) if dim >= 0 else f_last(x, reverse), x)

    def total(loop):
        return lambda x: (
            loop(lambda c, x: (c + x.sin().sum(), c * x), torch.ones(()), x, dim=max(dim, 0), reverse=reverse)[1] ** 2
        ).sum()

    torch.testing.assert_close(fg.grad_compiled(total(scan))(x), torch.func.grad(total(by_loop))(x))


def f_last(x, reverse):
    return by_loop(lambda c, x: (c + x.sum(), c * x), torch.zeros(()), x, dim=x.ndim - 1, reverse=reverse)


def test_structures_whole_numbers_and_results_that_are_none():
    def body(carry, x):
        n, state = carry["n"], carry["state"]
        return {"n": n + 1, "state": state * x["a"] + n}, {"seen": state.clone(), "nothing": None, "n": n * 2}

    def expected(state, a):
        n, seen, counts = torch.tensor(2), [], []
        for x in a:
            seen.append(state)
            counts.append(n * 2)
            n, state = n + 1, state * x + n
        return {"n": n, "state": state}, {"seen": torch.stack(seen), "nothing": None, "n": torch.stack(counts)}

    f = lambda state, a: scan(body, {"n": torch.tensor(2), "state": state}, {"a": a})  # noqa: E731
    same(f, expected, INIT, XS)
    total = lambda f: lambda state, a: f(state, a)[0]["state"].sum() + f(state, a)[1]["seen"].sin().sum()  # noqa: E731
    torch.testing.assert_close(
        fg.grad_compiled(total(f), (0, 1))(INIT, XS), torch.func.grad(total(expected), (0, 1))(INIT, XS)
    )


def test_scan_in_a_scan():
    def f(loop):
        def outer(c, x):
            inner, ys = loop(lambda d, y: (d * y.cos() + c, d @ W), c, x.unsqueeze(1).expand(2, 2, 3))
            return inner, ys.sum(0)

        return lambda init, xs: sum((t**2).sum() for t in loop(outer, init, xs))

    for apply in (TRANSFORMS["grad"], TRANSFORMS["hessian"], TRANSFORMS["jvp"]):
        same(apply(f(scan)), apply(f(by_loop)), INIT / 3, XS[:2] / 3)


def test_a_carry_that_is_handed_on_and_one_that_is_a_slice():
    """Results are memory of their own, whatever the body returns."""
    f = lambda c, xs: scan(lambda c, x: ((c[1], x), (c[0], x)), (c, c), xs)  # noqa: E731
    c = fg.jit(f)
    (before, last), (firsts, copies) = c(INIT, XS)
    torch.testing.assert_close((before, last, copies), (XS[-2], XS[-1], XS))
    torch.testing.assert_close(firsts, torch.stack([INIT, INIT, XS[0], XS[1]]))
    kept = XS.clone()
    last.zero_(), copies.zero_()
    torch.testing.assert_close(XS, kept, rtol=0, atol=0)


def test_the_body_returns_what_it_closes_over():
    f = lambda c, xs: scan(lambda c, x: (c + x, W), c, xs)[1].sum()  # noqa: E731
    found = torch.autograd.grad(fg.jit(f)(INIT, XS), W)[0]
    torch.testing.assert_close(found, torch.full((3, 3), 4.0))


def test_draws_in_a_body_are_those_of_the_loop():
    f = lambda loop: lambda c, xs: loop(lambda c, x: (c + torch.rand_like(x), torch.dropout(x, 0.5, True)), c, xs)  # noqa: E731
    c = fg.jit(f(scan))
    c(INIT, XS)
    torch.manual_seed(3)
    found, after = c(INIT, XS), torch.rand(2)
    torch.manual_seed(3)
    torch.testing.assert_close((found, after), (f(by_loop)(INIT, XS), torch.rand(2)))


def test_draws_in_a_body_that_is_differentiated_are_refused():
    f = lambda c, xs: scan(lambda c, x: (c * torch.rand_like(x), c.clone()), c, xs)[1].sum()  # noqa: E731
    for transform in (fg.grad_compiled(f), lambda c, xs: fg.jvp_compiled(lambda c: f(c, xs), (c,), (c,))):
        with pytest.raises(fg.UnsupportedTransformError, match="would draw others"):
            transform(INIT, XS)
    with pytest.raises(fg.UnsupportedTransformError, match="the same in each"):
        fg.jit(f, rng="philox")(INIT, XS)


@pytest.mark.parametrize(("body", "error", "says"), [
    (lambda c, x: (c.add_(x), c.clone()), fg.MutationError, "writes to a tensor"),
    (lambda c, x: (c + x, W.data.add_(1)), fg.MutationError, "writes to a tensor"),
    (lambda c, x: (c[:1], c.clone()), fg.TraceError, "returns f32"),
    (lambda c, x: (c.double(), c.clone()), fg.TraceError, "returns f64"),
    (lambda c, x: (c + x, 3.0), fg.TraceError, "no tensor"),
    (lambda c, x: (c + x, c * c.sum().item()), fg.DataDependentControlFlowError, "value of a tensor"),
])  # fmt: skip
def test_bodies_that_are_refused(body, error, says):
    before = W.detach().clone()
    with pytest.raises(error, match=says) as caught:
        fg.jit(lambda c, xs: scan(body, c, xs)[0])(INIT, XS)
    assert "test_control_flow.py" in caught.value.where and caught.value.fix
    assert torch.equal(W, before)


@pytest.mark.parametrize("f", [
    lambda: scan(lambda c, x: (c, x), torch.ones(2), torch.ones(0, 2)),
    lambda: scan(lambda c, x: (c, x), torch.ones(2), torch.ones(3), dim=1),
    lambda: scan(lambda c, x: (c, x), 3, torch.ones(3)),
    lambda: map(lambda x: x * 2, torch.ones(0, 2)),
    lambda: map(lambda x: x[0] + x[1], [torch.ones(2), torch.ones(3)]),
])  # fmt: skip
def test_what_torch_refuses_is_refused_as_torch_does(f):
    with pytest.raises((RuntimeError, IndexError)) as expected:
        f()
    with pytest.raises(type(expected.value)) as found:
        fg.jit(f)()
    assert str(found.value) == str(expected.value)


def test_sizes_that_vary_are_right():
    c = fg.grad_compiled(recurrent(scan))
    for n in (3, 4, 5):
        xs = torch.randn(n, 2, 3)
        torch.testing.assert_close(c(INIT, xs), torch.func.grad(recurrent(by_loop))(INIT, xs))


def test_captured_float_symbols_are_right():
    f = lambda loop: lambda xs, k: loop(lambda c, x: (c * k + x, c * 2), torch.zeros(2, 3), xs)[1].sum()  # noqa: E731
    c = fg.grad_compiled(f(scan))
    for k in (0.5, 1.5, 2.5):
        torch.testing.assert_close(c(XS, k), torch.func.grad(f(by_loop))(XS, k))


def test_a_view_of_what_was_written_to_is_met_in_a_body():
    """Functionalisation takes the view anew, in the run that only looks."""

    def f(loop):
        def g(x):
            y = x.clone()
            row = y[0]
            y.mul_(3)
            return loop(lambda c, x: (c + row, c * x), torch.zeros(3), x)[1].sum()

        return g

    torch.testing.assert_close(fg.grad_compiled(f(scan))(INIT), torch.func.grad(f(by_loop))(INIT))


def test_a_body_in_a_checkpoint_region():
    def f(loop):
        return lambda c, xs: torch.utils.checkpoint.checkpoint(
            lambda c: recurrent(loop)(c, xs), c.sin(), use_reentrant=False
        )

    leaf, other = INIT.clone().requires_grad_(), INIT.clone().requires_grad_()
    fg.jit(f(scan))(leaf, XS).backward()
    f(by_loop)(other, XS).backward()
    torch.testing.assert_close(leaf.grad, other.grad)


# ── map ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def map_by_loop(f, xs, *args):
    return torch.stack([f(x, *args) for x in xs])


def mapped(loop):
    return lambda a, b: (loop(lambda x, k: (x @ W).sin() * a.sum() + k, b, a) ** 2).sum()


@pytest.mark.sweep(8)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_map_under_transforms(transform):
    apply = TRANSFORMS[transform]
    same(apply(mapped(map)), apply(mapped(map_by_loop)), *given(transform))


def test_map_gives_what_is_no_tensor_to_each_step():
    f = lambda x: map(lambda x, k: {"y": x * k, "z": (x + k,)}, x, 3)  # noqa: E731
    same(f, lambda x: {"y": x * 3, "z": (x + 3,)}, INIT)


@pytest.mark.parametrize("derivative", [
    lambda g: lambda r: torch.func.jvp(torch.func.jacrev(g), (r,), (r.cos(),))[1],
    lambda g: torch.func.jacfwd(torch.func.jacrev(g)),
    lambda g: torch.func.jacrev(torch.func.jacfwd(g)),
    lambda g: torch.func.hessian(lambda r: g(r).sum()),
])  # fmt: skip
def test_a_body_that_takes_jacobians(derivative):
    """Their standard basis is written to at a level of ``torch.func``."""
    step = derivative(lambda r: (r.sin() * r.flip(0)).cumsum(0))
    same(lambda xs: map(step, xs), lambda xs: torch.stack([step(x) for x in xs]), XS[0])


# ── associative_scan ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("transform", ["value", "grad", "jvp", "hessian", "vmap"])
def test_associative_scan_under_transforms(transform):
    combine = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])  # noqa: E731
    apply = TRANSFORMS[transform]
    f = lambda a, b: (associative_scan(combine, (b, b * a), 0, combine_mode="generic")[1] ** 2).sum()  # noqa: E731
    g = lambda a, b: (by_loop(lambda c, x: 2 * (c * x + x * a,), torch.zeros_like(a), b)[1] ** 2).sum()  # noqa: E731
    same(apply(f), apply(g), *given(transform))


def test_the_operator_of_a_pointwise_associative_scan():
    f = lambda x: torch.ops.higher_order.associative_scan(lambda a, b: [a * b], [x], ())[0]  # noqa: E731
    same(f, lambda x: x.cumprod(0), XS)
    torch.testing.assert_close(
        fg.grad_compiled(lambda x: f(x).sum())(XS), torch.func.grad(lambda x: x.cumprod(0).sum())(XS)
    )


# ── while_loop ───────────────────────────────────────────────────────────────────────────────────────────────────


def while_by_loop(condition, body, carry):
    while condition(*carry):
        carry = body(*carry)
    return carry


def grown(loop):
    """As many steps as it takes: another number for each sample of a batch."""
    return lambda a, b: loop(
        lambda x, n: x.abs().sum() < 20, lambda x, n: (x * 1.5 + b[0] * 0.1, n + 1), (a.sin(), torch.tensor(0))
    )


def each(f):
    """``vmap`` of Python, sample by sample."""
    return lambda a, b: tuple(torch.stack(ts) for ts in zip(*(f(x, y) for x, y in zip(a, b, strict=True)), strict=True))


def tangents(f):
    """Of the first argument and of the second; the loop is differentiated by PyTorch's own forward mode."""
    return lambda a, b: torch.func.jvp(lambda a, b: f(a, b)[0], (a, b), (a.cos(), b.sin()))


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_while_loop(backend):
    same(grown(while_loop), grown(while_by_loop), *given(""), backend=backend)
    same(tangents(grown(while_loop)), tangents(grown(while_by_loop)), *given(""), backend=backend)


def test_while_loop_under_vmap_stops_for_each_sample_of_its_own():
    a, b = given("vmap")
    a[0] /= 100
    same(torch.vmap(grown(while_loop)), each(grown(while_by_loop)), a, b)
    same(torch.vmap(tangents(grown(while_loop))), each(tangents(grown(while_by_loop))), a, b)
    assert len(set(each(grown(while_by_loop))(a, b)[1].tolist())) > 1


def test_while_loop_that_takes_no_step_returns_copies():
    f = lambda x: torch.while_loop(lambda x: x.sum() < -1e9, lambda x: (x + 1,), (x,))  # noqa: E731
    x = INIT.clone()
    (found,) = fg.jit(f)(x)
    found.zero_()
    torch.testing.assert_close(x, INIT, rtol=0, atol=0)


def test_while_loop_in_reverse_mode_is_refused_by_name():
    with pytest.raises(fg.UnsupportedTransformError, match="while_loop is differentiated in reverse") as caught:
        fg.grad_compiled(lambda a, b: grown(while_loop)(a, b)[0].sum())(*given(""))
    assert "test_control_flow.py" in caught.value.where and "scan" in caught.value.fix
    with torch.no_grad():
        same(grown(while_loop), grown(while_by_loop), INIT.clone().requires_grad_(), XS)


def test_the_fix_for_reverse_mode_is_right():
    def f(a, b):
        def body(carry, _):
            x, n = carry
            goes_on = x.abs().sum() < 20
            return (torch.where(goes_on, x * 1.5 + b[0] * 0.1, x), torch.where(goes_on, n + 1, n)), None

        return scan(body, (a.sin(), torch.tensor(0)), torch.zeros(30))[0]

    expected = torch.func.grad(lambda a, b: grown(while_by_loop)(a, b)[0].sum())(*given(""))
    torch.testing.assert_close(fg.grad_compiled(lambda a, b: f(a, b)[0].sum())(*given("")), expected)


@pytest.mark.parametrize(("loop", "error", "says"), [
    (lambda x: while_loop(lambda n, x: n < 3, lambda n, x: (n + 1, x * 2), (0, x)), fg.TraceError, "no tensor"),
    (lambda x: while_loop(lambda x: True, lambda x: (x * 2,), (x,)), fg.DataDependentControlFlowError,
    "the same after each step"),
    (lambda x: while_loop(lambda x: x > 0, lambda x: (x * 2,), (x,)), fg.TraceError, "condition of while_loop returns"),
    (lambda x: while_loop(lambda x: x.sum() > 0, lambda x: (x.sum(),), (x,)), fg.TraceError, "returns f32"),
])  # fmt: skip
def test_while_loops_that_are_refused(loop, error, says):
    with pytest.raises(error, match=says) as caught:
        fg.jit(loop)(INIT)
    assert "test_control_flow.py" in caught.value.where and caught.value.fix


# ── cond ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def choice(condition, if_true, if_false, operands):
    return torch.where(condition, if_true(*operands), if_false(*operands))


def chosen(choose):
    def f(a, b):
        inner = lambda x: choose((x * b[1]).sum() > 0, lambda x: x.exp() * b[2], lambda x: x @ W, (x,))  # noqa: E731
        return (choose(a.sum() > 0, lambda x: inner(x).sin() * a, lambda x: x.cos() * b[0], (a * 2,)) ** 2).sum()

    return f


@pytest.mark.sweep(8)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_cond_under_transforms(transform):
    apply = TRANSFORMS[transform]
    same(apply(chosen(torch.cond)), apply(chosen(choice)), *given(transform))


def test_a_branch_that_no_sample_takes_leaves_no_nan_in_a_gradient():
    """As opposed to ``torch.where``, whose other side's infinite derivative times zero is NaN."""
    f = lambda x: torch.cond(x > 0, lambda x: x.sqrt(), lambda x: x * 2, (x,))  # noqa: E731
    x = torch.tensor([4.0, 0.0, -1.0])
    found = fg.jit(torch.func.grad(lambda x: torch.vmap(f)(x).sum()))(x), fg.jit(torch.vmap(torch.func.grad(f)))(x)
    for gradient in found:
        torch.testing.assert_close(gradient, torch.tensor([0.25, 2.0, 2.0]))


def test_cond_closes_over_tensors_of_the_function_and_of_others():
    def f(x):
        y = x.exp()
        return torch.cond(x.sum() > 0, lambda x: x * y * W[0], lambda x: x - y, (x,)).sum()

    for x in (torch.ones(3), -torch.ones(3)):
        leaf, other = x.clone().requires_grad_(), x.clone().requires_grad_()
        found = torch.autograd.grad(fg.jit(f)(leaf), [leaf, W])
        value = (other * other.exp() * W[0] if x.sum() > 0 else other - other.exp()).sum()
        expected = torch.autograd.grad(value, [other, W], allow_unused=True)
        torch.testing.assert_close(found[0], expected[0])
        torch.testing.assert_close(found[1], torch.zeros(3, 3) if expected[1] is None else expected[1])


def test_cond_returns_what_is_no_tensor_if_both_branches_do():
    f = lambda x: torch.cond(x.sum() > 0, lambda x: (x * 2, 3, None), lambda x: (x, 3, None), (x,))  # noqa: E731
    same(f, lambda x: (x * 2, 3, None), torch.ones(3))
    with pytest.raises(fg.TraceError, match="returns 3, where the other returns 4"):
        fg.jit(lambda x: torch.cond(x.sum() > 0, lambda x: (x * 2, 3), lambda x: (x, 4), (x,)))(torch.ones(3))


# ── what forward keeps of each step ──────────────────────────────────────────────────────────────────────────────

WIDE = torch.nn.Parameter(torch.randn(64, 64) / 8)


def wide(loop):
    def body(c, x):
        gate = torch.sigmoid(c @ WIDE + x)
        return torch.lerp(c, (x @ WIDE).tanh(), gate), (c * gate).softmax(-1)

    return lambda init, xs: sum((t**2).sum() for t in loop(body, init, xs))


def products(program):
    """How many products of matrices the bodies of the joint graph compute."""
    return str(program.joint).count("aten.mm(")


@pytest.mark.parametrize("reverse", [False, True])
def test_forward_keeps_what_is_dear_to_compute_again(reverse):
    f = wide(lambda *args: scan(*args, reverse=reverse))
    given = torch.randn(8, 64, requires_grad=True), torch.randn(5, 8, 64, requires_grad=True)
    leaves = [*given, WIDE]
    c = fg.jit(f)
    found = torch.autograd.grad(c(*given), leaves)
    torch.testing.assert_close(
        found, torch.autograd.grad(wide(lambda *args: by_loop(*args, reverse=reverse))(*given), leaves)
    )
    assert products(c.program(*given)) == 2 + 4  # two in forward, of which each has two in backward
    total = lambda f: lambda a, b: f(a, b)  # noqa: E731
    torch.testing.assert_close(fg.grad_compiled(total(f), (0, 1))(*given), tuple(found[:2]))
    text = str(c.saved(*given))
    assert "kept" in text or "scan" in text


def test_within_a_budget_steps_are_computed_again():
    given = torch.randn(8, 64, requires_grad=True), torch.randn(5, 8, 64, requires_grad=True)
    leaves = [*given, WIDE]
    c = fg.jit(wide(scan), memory_budget="1GiB")
    torch.testing.assert_close(
        torch.autograd.grad(c(*given), leaves), torch.autograd.grad(wide(by_loop)(*given), leaves)
    )
    assert products(c.program(*given)) == 2 + 2 + 4
    region = fg.jit(
        lambda a, b: torch.utils.checkpoint.checkpoint(lambda a: wide(scan)(a, b), a * 1, use_reentrant=False)
    )
    torch.testing.assert_close(
        torch.autograd.grad(region(*given), leaves), torch.autograd.grad(wide(by_loop)(*given), leaves)
    )
    assert products(region.program(*given)) == 2 + 2 + 4


def test_of_a_second_derivative_steps_are_kept_as_well():
    def twice(loop):
        def f(a, b):
            return sum(t.sin().sum() for t in torch.func.grad(wide(loop), (0, 1))(a, b))

        return torch.func.grad(f, (0, 1))

    given = torch.randn(8, 64), torch.randn(3, 8, 64)
    torch.testing.assert_close(fg.jit(twice(scan))(*given), twice(by_loop)(*given), rtol=1e-4, atol=1e-4)


def test_results_that_nobody_reads_are_not_computed():
    def body(c, x):
        return (c[0] + x, c[1] * 2), (x.exp(), c[1].cos())

    c = fg.jit(lambda init, xs: scan(body, (init, init * 1), xs)[1][0])
    torch.testing.assert_close(c(INIT, XS), XS.exp())
    text = str(c.program(INIT, XS).joint)
    assert "aten.exp" in text and "aten.cos" not in text and "aten.add" not in text


@pytest.mark.sweep(8)
@pytest.mark.parametrize("transform", ["grad", "jvp", "hessian", "vmap", "vmap of grad", "grad of vmap", "grad of jvp"])
@pytest.mark.parametrize("loop", [(scan, by_loop), (torch.cond, choice)], ids=["scan", "cond"])
def test_a_compiled_function_with_control_flow_under_transforms_of_torch(loop, transform):
    apply, of = TRANSFORMS[transform], recurrent if loop[0] is scan else chosen
    found, expected = apply(fg.jit(of(loop[0])))(*given(transform)), apply(of(loop[1]))(*given(transform))
    torch.testing.assert_close(found, expected)


def test_a_while_loop_of_a_jit_runs_forward_and_raises_in_backward():
    leaf = INIT.clone().requires_grad_()
    out, n = fg.jit(grown(while_loop))(leaf, XS)
    torch.testing.assert_close((out, n), grown(while_by_loop)(leaf, XS))
    with pytest.raises(fg.UnsupportedTransformError, match="while_loop is differentiated in reverse"):
        out.sum().backward()


def test_what_a_loop_takes():
    """Operations of a body count as often as it runs."""
    few, many = (fg.grad_compiled(wide(scan)).cost(torch.randn(8, 64), torch.randn(n, 8, 64)) for n in (4, 40))
    product = 2 * 8 * 64 * 64
    # two in forward, one in backward, which asks for the gradient of the first argument alone
    assert few.flops > 4 * 3 * product
    assert 9 < many.flops / few.flops < 11


def by_sign(cond):
    return lambda init, xs: cond(init.sum() > 0, lambda a: a.sin(), lambda a: a.cos() * 2, init).sum() * xs.sum()


BY_OPERATORS = {
    "scan": (recurrent(scan), recurrent(by_loop)),
    "cond": (by_sign(lambda p, f, g, a: torch.cond(p, f, g, (a,))),
    by_sign(lambda p, f, g, a: torch.where(p, f(a), g(a)))),
    "a reversed scan of a choice": (
        lambda init, xs: scan(
            lambda c, x: (torch.cond(x.sum() > 0, torch.sin, lambda c: c * 2, (c,)) + x, c.exp()), init, xs,
            reverse=True
        )[1].sum(),
        lambda init, xs: by_loop(
            lambda c, x: (torch.where(x.sum() > 0, c.sin(), c * 2) + x, c.exp()), init, xs, reverse=True
        )[1].sum(),
    ),
    "map": (lambda init, xs: (map(lambda x, a: x.sin() * a, xs, init) ** 2).sum(), lambda init,
    xs: ((xs.sin() * init) ** 2).sum()),
}  # fmt: skip


@pytest.mark.parametrize("transform", ["vmap of grad", "vmap of the jacobian of grad", "grad of vmap", "vmap of vjp"])
@pytest.mark.parametrize("name", BY_OPERATORS)
def test_torch_func_over_a_compiled_function(name, transform):
    """Of halves that a level of reverse mode has made, vmap takes control flow as it takes the function's own."""
    transforms = TRANSFORMS | {
        "vmap of the jacobian of grad": lambda f: torch.vmap(torch.func.jacrev(torch.func.grad(f))),
        "vmap of vjp": lambda f: lambda a, b: torch.vmap(lambda a, b: torch.func.vjp(f, a, b)[1](a.sum().cos()))(a, b),
    }
    f, expected = BY_OPERATORS[name]
    args = (
        INIT.double().expand(3, 2, 3) / torch.tensor([1, -2, 3])[:, None, None],
        torch.stack([XS, -XS, XS.cos()]).double(),
    )
    torch.testing.assert_close(
        transforms[transform](fg.jit(f, backend="aten"))(*args), transforms[transform](expected)(*args)
    )
