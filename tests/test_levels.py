"""Compiled functions at levels of torch.func: what flows between levels. ``tests/laws/words.py`` has whole words."""

import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch.utils._pytree import tree_leaves, tree_structure
from transformed import F64, OPTIONS, jit, same

import funcgrad as fg
from funcgrad.transforms import nodes


def jvp(f):
    return lambda x: func.jvp(f, (x,), (x.detach().cos(),))[1]


@pytest.fixture
def x():
    return torch.linspace(-1, 1.2, 6, dtype=F64).view(2, 3)


# ── custom autograd functions ────────────────────────────────────────────────────────────────────────────────────────


class Cube(torch.autograd.Function):
    """With a rule of each kind, none of them right: who takes another one is seen. They read a captured tensor."""

    scale = torch.tensor(2.0, dtype=F64)

    @staticmethod
    def forward(x):
        return x**3 * Cube.scale, 3 * x**2

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output[1])
        ctx.save_for_forward(inputs[0], output[1])

    @staticmethod
    def backward(ctx, cubed, slope):
        x, found = ctx.saved_tensors
        return cubed * found * Cube.scale * 5 + slope * 6 * x

    @staticmethod
    def jvp(ctx, tangent):
        x, found = ctx.saved_tensors
        return tangent * found * Cube.scale * 7, tangent * 6 * x

    @staticmethod
    def vmap(info, in_dims, x):
        cubed, slope = Cube.apply(x)
        return (cubed * 11, slope), in_dims * 2


class GeneratedRule(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx, found):
        return found * ctx.saved_tensors[0].cos() * 3  # not the derivative: who took that would be seen


@pytest.mark.parametrize("name", ["grad", "jvp", "vmap", "vmap of grad"])
@pytest.mark.parametrize("inside", [True, False])
def test_a_custom_function_has_its_own_rules(x, name, inside):
    outer = {
        "grad": lambda f: func.grad(lambda x: f(x).sum()),
        "jvp": jvp,
        "vmap": func.vmap,
        "vmap of grad": lambda f: func.vmap(func.grad(lambda x: f(x).sum())),
    }[name]

    def f(x):
        cubed, slope = Cube.apply(x)
        return cubed.sin() * x + slope

    c = jit(outer(f)) if inside else outer(jit(f))
    same(c(x), outer(f)(x))
    with fg.no_retrace():
        same(c(x), outer(f)(x))


@pytest.mark.parametrize("inside", [True, False])
def test_a_custom_function_with_a_generated_rule(x, inside):
    def outer(f):
        return func.jacrev(func.vmap(func.grad(lambda x: f(x).square().sum())))

    c = jit(outer(GeneratedRule.apply)) if inside else outer(jit(lambda x: GeneratedRule.apply(x)))
    same(c(x), outer(GeneratedRule.apply)(x))


class Tripled(torch.autograd.Function):
    """A view, of which its rules say something else."""

    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, found):
        return found * 3

    @staticmethod
    def jvp(ctx, tangent):
        return (tangent * 3).view_as(tangent)

    @staticmethod
    def vmap(info, in_dims, x):
        return Tripled.apply(x), in_dims[0]


@pytest.mark.parametrize("f", [
    lambda x: Tripled.apply(x), lambda x: Tripled.apply(x)[0], lambda x: Tripled.apply(x).t(),
    lambda x: Tripled.apply(x.t()),
    lambda x: Tripled.apply(x.detach()), lambda x: Tripled.apply(Tripled.apply(x)), lambda x: Tripled.apply(x * 2),
])  # fmt: skip
@pytest.mark.parametrize("name", ["vjp", "jvp", "jacfwd", "jvp of jvp", "vjp of jvp"])
def test_a_custom_function_that_returns_a_view_has_its_own_rules(x, f, name):
    word = {
        "vjp": lambda f: lambda x: func.vjp(f, x)[1](f(x).cos())[0],
        "jvp": jvp,
        "jacfwd": func.jacfwd,
        "jvp of jvp": lambda f: jvp(jvp(f)),
        "vjp of jvp": lambda f: lambda x: func.vjp(jvp(f), x)[1](f(x).cos())[0],
    }[name]
    c = jit(f)
    same(word(c)(x), word(f)(x))
    assert (c(x).data_ptr() == f(x).data_ptr()) == (f(x)._base is not None and f(x)._base.data_ptr() == x.data_ptr()), (
        "it is still a view"
    )


class Column(torch.autograd.Function):
    """A view with gaps, of which its rule says something else."""

    @staticmethod
    def forward(x):
        return x[:, 1]

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def jvp(ctx, tangent):
        return tangent[:, 1] * 2


@pytest.mark.parametrize("f", [
    lambda x: Column.apply(x), lambda x: Column.apply(x.t()), lambda x: Column.apply(x[1:]),
    lambda x: (Column.apply(x * x), x[1:]),
])  # fmt: skip
def test_a_view_with_gaps_has_tangents_of_tangents(x, f):
    same(jvp(jvp(jit(f)))(x), jvp(jvp(f))(x))


# ── what is batched, and what is not ─────────────────────────────────────────────────────────────────────────────────


def test_a_primal_that_is_no_batch_stays_none(x):
    """Under jacfwd tangents are a batch and primals are not: what is written to an argument is as it was."""

    def calling(f):
        def g(x):
            y = x * 2
            f(y)
            return y

        return g

    def write(y):
        y.mul_(y.sin())

    same(func.jacfwd(calling(jit(write)))(x), func.jacfwd(calling(write))(x))


@pytest.mark.parametrize("outer", ["jacfwd", "jacrev", "hessian", "grad of jacfwd", "hessian of jvp"])
def test_running_statistics_of_batch_norm(x, outer):
    """They are of the primal, so they are written once for all samples of a batch of tangents; below, autograd saved
    them."""
    word = {
        "jacfwd": func.jacfwd,
        "jacrev": func.jacrev,
        "hessian": func.hessian,
        "grad of jacfwd": lambda f: func.grad(lambda x: func.jacfwd(f)(x).square().sum()),
        "hessian of jvp": lambda f: func.hessian(jvp(f)),
    }[outer]

    def make():
        mean, var = torch.zeros(3, dtype=F64), torch.ones(3, dtype=F64)
        return (lambda x: F.batch_norm(x, mean, var, training=True).square()), mean, var

    f, *wanted_left = make()
    g, *left = make()
    c = jit(g)
    for _ in range(2):
        same(word(c)(x), word(f)(x))
        same(left, wanted_left)


@pytest.mark.parametrize("outer", ["grad", "jvp", "vmap"])
def test_tensors_of_two_levels_under_vmap(x, outer):
    """Where the batch is of the inner level and the other one of the outer: a program at the outer level has no use
    for the batch."""

    def closing(make):
        return lambda w: func.vmap(lambda row: make(lambda v: (v * w * row).sin())(row.cos()))(x)

    word = {
        "grad": lambda f: func.grad(lambda w: f(w).sum()),
        "jvp": jvp,
        "vmap": lambda f: lambda w: func.vmap(f)(w.expand(2, 3)),
    }[outer]
    for _ in range(2):
        same(word(closing(jit))(x[0]), word(closing(lambda f: f))(x[0]))


# ── tangents ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_expanded_value_has_a_tangent(x):
    def f(x):
        return (x * 2)[..., 1:]

    same(jvp(fg.hessian_compiled(f, **OPTIONS))(x), jvp(func.hessian(f))(x))


@pytest.mark.parametrize("make", [jvp, func.jacfwd])
def test_a_tangent_that_is_zero_everywhere(x, make):
    """It has no memory; as a result of a program it has."""

    def f(x):
        return x.detach() * x + x.sum(-1, keepdim=True).where(x.sum(-1, keepdim=True) > 0, x)

    same(fg.jit(func.jacrev(make(f)), **OPTIONS)(x), func.jacrev(make(f))(x))
    same(fg.jit(func.hessian(make(f)), **OPTIONS)(x), func.hessian(make(f))(x))
    same(func.hessian(make(jit(f)))(x), func.hessian(make(f))(x))
    found = fg.jit(lambda x: func.jvp(lambda x: (x.detach() * 1, x), (x,), (x,))[1], **OPTIONS)(x)[0]
    found.add_(1)  # the caller may write to it
    same(found, torch.ones_like(x))


def test_a_zero_tangent_lies_as_its_primal_does(x):
    net = torch.nn.BatchNorm1d(3).double().eval()

    def f(x):
        return net(x.square()) * x.sum()

    same(jvp(func.hessian(jit(f)))(x), jvp(func.hessian(f))(x))
    same(fg.hessian_compiled(func.hessian(f), **OPTIONS)(x), func.hessian(func.hessian(f))(x))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: F.layer_norm(x, (3,), torch.linspace(-1, 1, 3, dtype=F64).exp()) * x,
        lambda x: (x.exp().square().sum(-1, keepdim=True) * (torch.linspace(-1, 1, 3, dtype=F64) * x)).sin(),
    ],
)
@pytest.mark.parametrize("inner", [func.jacfwd, func.hessian])
def test_a_zero_tangent_of_an_inner_level_is_one_at_the_outer(x, f, inner):
    """What a trace makes of zeros without memory, a view of them too, is of that kind: beside it torch lays out no
    other tangent."""

    def outer(f):
        return jvp(func.vmap(inner(f)))

    batch = x.unsqueeze(0).repeat(2, 1, 1)
    same(jit(outer(f))(batch), outer(f)(batch))
    same(outer(jit(f))(batch), outer(f)(batch))
    same(jvp(func.vmap(jit(inner(f))))(batch), outer(f)(batch))


@pytest.mark.parametrize(
    "given",
    [
        torch.linspace(-1, 2, 9, dtype=F64)[1:],
        torch.linspace(-1, 2, 15, dtype=F64).view(5, 3)[1:],
        torch.linspace(-1, 2, 27, dtype=F64).view(3, 9)[:, 1::2],
        torch.linspace(-1, 2, 24, dtype=F64).view(3, 4, 2)[1:].permute(2, 0, 1),
    ],
    ids=["offset", "rows", "strided", "permuted"],
)
@pytest.mark.parametrize("word", [jvp, func.jacfwd, func.hessian, lambda f: jvp(func.jacfwd(f))])
def test_a_tangent_lies_as_its_primal_does(given, word):
    """In memory, too: views of both are taken at the same offset."""

    def f(x):
        return x[0].sin().sum() * x.flatten()[1:].sum()

    for compiled in (jit(word(f)), fg.jit(word(f), dynamic=True, **OPTIONS), word(jit(f))):
        same(compiled(given), word(f)(given))


def test_a_tangent_of_an_offset_that_varies():
    def f(x):
        return x[0].sin().sum()

    compiled, whole = fg.jacfwd_compiled(f, **OPTIONS), torch.linspace(-1, 2, 9, dtype=F64)
    for begin, end in ((1, 9), (2, 8), (3, 6), (0, 5)):
        same(compiled(whole[begin:end]), func.jacfwd(f)(whole[begin:end]))


# ── complex numbers ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_number_that_is_conjugated(x):
    def f(x):
        return (torch.complex(x, x.sin()) * 1j).abs().square()

    def outer(f):
        return func.grad(lambda x: f(x).sum())

    same(outer(fg.jacrev_compiled(f, **OPTIONS))(x), outer(func.jacrev(f))(x))


# ── other tracers, other forward modes ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outer", [lambda f: func.grad(lambda x: f(x).sum()), func.vmap, jvp, func.hessian])
def test_functionalize_over_a_transform(x, outer):
    def f(x):
        y = x * 1
        y.mul_(2)
        return y.square()

    c = jit(f)
    for _ in range(2):
        same(func.functionalize(outer(c))(x), outer(f)(x))


def test_linearize_inside_is_refused(x):
    def f(x):
        return func.linearize(torch.sin, x)[1](x)

    with pytest.raises(fg.UnsupportedTransformError, match=r"linearize(.|\n)*test_levels.py:\d+ in f") as raised:
        jit(f)(x)
    assert "fg.linearize_compiled" in str(raised.value)
    same(func.linearize(jit(torch.sin), x)[1](x), x * x.cos())
    same(jit(lambda x: fg.linearize_compiled(torch.sin, x)[1](x))(x), x * x.cos())


def test_a_batch_of_tangents_of_autograd_functional(x):
    c = jit(torch.sin)
    same(torch.autograd.functional.jacobian(c, x, vectorize=True, strategy="forward-mode"), func.jacfwd(torch.sin)(x))
    same(torch.autograd.functional.jacobian(c, x, vectorize=True), func.jacfwd(torch.sin)(x))


FORWARD = {"vectorize": True, "strategy": "forward-mode"}
FORWARD_OVER_REVERSE = {"vectorize": True, "outer_jacobian_strategy": "forward-mode"}
OF_AUTOGRAD = torch.autograd.functional
GO_FORWARD = {
    "one": lambda x: OF_AUTOGRAD.jacobian(torch.sin, x, **FORWARD),
    "a number": lambda x: OF_AUTOGRAD.jacobian(torch.exp, x[0, 0], **FORWARD),
    "several": lambda x: OF_AUTOGRAD.jacobian(lambda x, y: (x.sin() @ y.mT, y.sum()), (x, x.cos()), **FORWARD),
    "unused": lambda x: OF_AUTOGRAD.jacobian(lambda x, y: (x.sin(), torch.ones(2)), (x, x[0]), **FORWARD),
    "a tuple of one": lambda x: OF_AUTOGRAD.jacobian(lambda x: (x.sin(),), (x,), **FORWARD),
    "hessian": lambda x: OF_AUTOGRAD.hessian(lambda x: x.sin().prod(), x, **FORWARD_OVER_REVERSE),
    "hessians": lambda x: OF_AUTOGRAD.hessian(lambda x, y: (x * y.exp()).prod(), (x, x[0]), **FORWARD_OVER_REVERSE),
}


@pytest.mark.parametrize("name", GO_FORWARD)
def test_autograd_functional_goes_forward_inside(name, x):
    f = GO_FORWARD[name]
    c = jit(f)
    for own in (x, x.cos(), x.clone().requires_grad_()):
        found, wanted = c(own), f(own)
        assert tree_structure(found) == tree_structure(wanted)
        same(found, wanted)
    of_both = (torch.autograd.grad(tree_leaves(of(own))[0].pow(2).sum(), own) for of in (c, f))
    same(*of_both)


# ── what forward saved ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("of", [func.grad, lambda f: lambda x: func.vjp(f, x)[1](torch.ones((), dtype=F64))])
def test_a_result_that_backward_reads_may_not_be_written_to(of, x):
    def written(f):
        def loss(x):
            y = f(x)
            y.mul_(2.0)
            return y.sum()

        return loss

    for f in (torch.exp, jit(torch.exp)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            of(written(f))(x)
    for f in (torch.sin, jit(torch.sin)):  # of this one backward reads the argument alone
        same(of(written(f))(x), 2 * x.cos())


def test_a_constant_of_a_level_may_be_written_to_before_the_pullback(x):
    def f(x, w, b):
        return (x * w + b).sin()

    for call in (f, jit(f)):
        w, b = x.cos(), x.exp()
        _, pull = func.vjp(lambda x, w=w, b=b, call=call: call(x, w, b), x)
        b.add_(1.0)
        same(pull(torch.ones_like(x))[0], (x * w + b - 1).cos() * w)


def test_a_gradient_at_a_level_is_differentiated_at_that_level_again(x):
    def f(x, y):
        return (x.sin() * y * x).exp()

    def loss(call):
        def of(x, y):
            out = call(x, y)
            first, second = torch.autograd.grad(out.sum(), (x, y), create_graph=True)
            return (first * second).sum() + torch.autograd.grad(first.sum(), y, create_graph=True)[0].sum()

        return of

    y = x.cos()
    same(func.grad(loss(jit(f)), argnums=(0, 1))(x, y), func.grad(loss(f), argnums=(0, 1))(x, y))


# ── printed calls at a level of reverse mode ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "outer",
    [
        lambda f, x: func.grad(f)(x),
        lambda f, x: func.vjp(f, x)[1](x.sum()),
        lambda f, x: func.vmap(func.grad(f))(x),
    ],
    ids=["grad", "vjp", "vmap of grad"],
)
def test_a_call_at_a_level_is_printed_for_what_its_values_are(x, outer, monkeypatch):
    def f(x):
        return (x.sin() * x).sum()

    compiled = jit(f)
    outer(compiled, x)
    monkeypatch.setattr(nodes, "_ran", lambda passage, *_: pytest.fail(f"taken apart again: {passage.compiled}"))
    same(outer(compiled, 2 * x), outer(f, 2 * x))


def _no_grad(f, x, w):
    with torch.no_grad():
        return f(x, w)[0]


def _tracked_by_autograd(f, x, w):
    w = w.clone().requires_grad_()
    return torch.autograd.grad(func.grad(lambda x: f(x, w)[0].sum())(x).sum(), w)


_AT_A_LEVEL = {
    "one is tracked": lambda f, x, w: func.grad(lambda x: f(x, w)[0].sum())(x),
    "the other is": lambda f, x, w: func.grad(lambda w: f(x, w)[0].sum())(w),
    "both are": lambda f, x, w: func.grad(lambda x, w: f(x, w)[0].sum(), (0, 1))(x, w),
    "one is of the level": lambda f, x, w: func.grad(lambda x: f(x, (w + 0 * x).detach())[0].sum())(x),
    "without gradients": lambda f, x, w: func.grad(lambda x: (_no_grad(f, x, w) * x).sum())(x),
    "an outer level tracks": lambda f, x, w: func.grad(
        lambda w: func.grad(lambda x: f(x, w)[0].sum())(x).sum() + f(x, w)[1].sum()
    )(w),
    "autograd tracks": _tracked_by_autograd,
    "symbolic zeros": lambda f, x, w: func.vjp(lambda x: f(x, w), x)[1](
        (torch._efficientzerotensor(x.shape, dtype=x.dtype), torch._efficientzerotensor((), dtype=x.dtype))
    ),
    "one cotangent": lambda f, x, w: func.grad(lambda x: f(x, w)[1])(x),
    "forward over reverse": lambda f, x, w: func.jvp(func.grad(lambda x: f(x, w)[0].sum()), (x,), (w,)),
    "in a batch": lambda f, x, w: func.vmap(func.grad(lambda x, w: f(x, w)[0].sum()), (0, None))(x, w[0]),
}


def test_other_values_than_those_a_call_was_printed_for(x):
    def f(x, w):
        return (x * w).sin() * x, (w.exp() * x).sum()

    compiled, w = jit(f), x.cos()
    for turn in (1, -1):
        for call in [*_AT_A_LEVEL.values()][::turn]:
            for values in ((x, w), (2 * x, w)):
                same(call(compiled, *values), call(f, *values))


# ── graphs of halves under vmap ──────────────────────────────────────────────────────────────────────────────────────


def _to_the_end(y, x):
    y[1:] = x[0]


def _from_the_end(y, x):
    y[-2:-1] = x[:1]
    y[-9:].mul_(x[1])


def _beyond(y, x):
    y[1:99:2] = x[:1]
    y[2:1] = x[0]


def _filled(y, x):
    y[:2].fill_(x[0])
    y[2:].fill_(3.0)


def _zeroed(y, x):
    y[1].zero_()


@pytest.mark.parametrize("write", [_to_the_end, _from_the_end, _beyond, _filled, _zeroed])
def test_a_written_slice_in_a_half_under_vmap(x, write, recwarn):
    def f(x):
        y = x * 1
        write(y, x)
        return (y * y.sum()).sum()

    for transform in (func.grad, lambda f: func.jacrev(func.grad(f))):
        same(func.vmap(transform(jit(f)))(x), func.vmap(transform(f))(x))
    assert not [w for w in recwarn if "performance drop" in str(w.message)]


def test_as_strided_at_a_level(x):
    def f(x):
        return x.as_strided((2, 2), (1, 1)).square().sum()

    for transform in (func.grad, func.hessian, lambda f: func.vmap(func.grad(f))):
        same(transform(jit(f))(x), transform(f)(x))
    with pytest.raises(RuntimeError, match="out of bounds"):
        func.grad(jit(lambda x: x.as_strided((7,), (1,)).sum()))(x)


@pytest.mark.parametrize("how", ["jvp outside", "jvp inside", "dual"])
@pytest.mark.parametrize(
    "f",
    [lambda x: (2 * x).lerp_(x, x.sin()), lambda x: torch.quantile(x, 0.3, 1), lambda x: torch.nanquantile(x, 0.3)],
    ids=["lerp_", "quantile", "nanquantile"],
)
def test_an_operator_whose_overload_is_looked_for_below_autograd(x, f, how):
    """C++ writes the arguments down on the way to the one that fits."""
    t = x.cos()
    wanted = func.jvp(f, (x,), (t,))
    if how == "jvp outside":
        found = func.jvp(jit(f), (x,), (t,))
    elif how == "jvp inside":
        found = fg.jvp_compiled(f, (x,), (t,), **OPTIONS)
    else:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(x, t)
            found = tuple(torch.autograd.forward_ad.unpack_dual(jit(f)(dual)))
    same(found, wanted)
    same(func.jvp(f, (x,), (t,)), wanted)


def _adds(held, x):
    held[0] = held[0] + x.sum().detach()
    return (x * x).sum()


def _counts(held, x):
    held["n"] += 1
    return (x * held["n"]).sum()


STORES = {
    "adds": (_adds, lambda: [torch.zeros((), dtype=torch.float64)]),
    "sets": (lambda held, x: (held.__setitem__("y", x.sum().detach()), x.sin().sum())[1], lambda: {"y": None}),
    "appends": (lambda held, x: (held["all"].append(x.sum().detach()), x.sin().sum())[1], lambda: {"all": []}),
    "counts": (_counts, lambda: {"n": 0}),
    "appends a constant": (lambda held, x: (held.append(1), (x * len(held)).sum())[1], list),
}


@pytest.mark.parametrize(
    "transform",
    {
        "vjp": lambda f: lambda x: func.vjp(f, x)[0],
        "grad": func.grad,
        "jvp": lambda f: lambda x: func.jvp(f, (x,), (x,)),
        "jvp of grad": lambda f: lambda x: func.jvp(func.grad(f), (x,), (x,)),
        "vjp_compiled": lambda f: lambda x: fg.vjp_compiled(f, x)[0],
    }.items(),
    ids=lambda named: named[0],
)
@pytest.mark.parametrize("stores", STORES)
def test_what_is_stored_into_an_argument_at_a_level(x, stores, transform):
    """The first call stored into a copy, as did all in which the container held a tensor of a level that had ended;
    what runs again for a derivative looked for it in the containers of another call."""
    f, make = STORES[stores]

    def held(f):
        container, of = make(), []
        for i in range(4):
            of.append(transform[1](lambda x: f(container, x))(x + i))
        return of, fg.trees.flatten([container])[0]

    if (stores, transform[0]) == ("adds", "jvp of grad"):  # torch.func refuses to go on from a level that has ended
        assert float(held(jit(f))[1][0]) == pytest.approx(sum(float((x + i).sum()) for i in range(4)))
    else:
        same(held(jit(f)), held(f))


@pytest.mark.parametrize("under", [func.vmap, func.functionalize])
def test_a_transform_that_has_other_containers_refuses_what_is_stored_into_them(x, under):
    """It was lost."""
    held = {"n": 0}
    compiled = jit(lambda held, x: (held.__setitem__("n", held["n"] + 1), x * 2)[1])
    with pytest.raises(fg.MutationError, match="stores into a container it was given, at held"):
        under(lambda x: compiled(held, x))(x)
    assert held == {"n": 0}
