"""torch.func over compiled functions, compiled functions over torch.func's, and forward mode: as in eager PyTorch."""

import collections
import copy
import gc
import math
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import func, nn
from torch.autograd import forward_ad
from torch.utils import _pytree as pytree
from transformed import F64, OPTIONS, jit, same

import funcgrad as fg


def scalar(x):
    return (x.sin() * x).sum()


def vector(x):
    return x.exp() * x.sum()


@pytest.fixture
def x():
    return torch.linspace(-1, 1.2, 5, dtype=F64)


@pytest.fixture
def batch():
    return torch.linspace(-1, 1.3, 12, dtype=F64).view(4, 3)


# ── the compiled transforms ──────────────────────────────────────────────────────────────────────────────────────────


def test_vmap_compiled(batch):
    def f(p, row, k):
        return {"a": (row * p["w"]).sum() * k, "b": row}

    p = {"w": torch.ones(3, dtype=F64) * 2}
    for in_dims, out_dims in (((None, 0, None), 0), ((None, 1, None), {"a": 0, "b": 1}), (({"w": None}, 0, None), -1)):
        c = fg.vmap_compiled(f, in_dims, out_dims, **OPTIONS)
        row = batch if in_dims[1] == 0 else batch.t()
        w = p if in_dims[1] == 0 else {"w": torch.ones(3, dtype=F64)}
        same(c(w, row, 3.0), func.vmap(f, in_dims, out_dims)(w, row, 3.0))


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_vmap_in_chunks(batch, chunk):
    same(fg.vmap_compiled(scalar, chunk_size=chunk, **OPTIONS)(batch), func.vmap(scalar)(batch))


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_vmap_draws_what_eager_pytorch_draws(batch, randomness):
    def f(row):
        return F.dropout(row, 0.4) + torch.randn(3)

    torch.manual_seed(0)
    wanted = func.vmap(f, randomness=randomness)(batch)
    for compiled in (fg.vmap_compiled(f, randomness=randomness, **OPTIONS), func.vmap(jit(f), randomness=randomness)):
        for _ in range(2):
            torch.manual_seed(0)
            same(compiled(batch), wanted)
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(jit(f))(batch)


def test_jacobians(x):
    def f(x, w):
        return vector(x) * w, x.sum()

    w = torch.tensor(3.0, dtype=F64)
    for argnums in (0, 1, (0, 1)):
        wanted = func.jacrev(f, argnums)(x, w)
        same(fg.jacrev_compiled(f, argnums, **OPTIONS)(x, w), wanted)
        same(fg.jacrev_compiled(f, argnums, chunk_size=2, **OPTIONS)(x, w), wanted)
        same(fg.jacfwd_compiled(f, argnums, **OPTIONS)(x, w), wanted)
    same(
        fg.jacrev_compiled(lambda x: (vector(x), x), has_aux=True, **OPTIONS)(x),
        func.jacrev(lambda x: (vector(x), x), has_aux=True)(x),
    )


def test_hessian(x):
    same(fg.hessian_compiled(scalar, **OPTIONS)(x), func.hessian(scalar)(x))

    def f(x):
        return x.tanh().sum()

    graph = fg.hessian_compiled(f, **OPTIONS).program(x).joint.graph
    # one forward pass, whatever is taken of it
    assert [n.target for n in graph.fx.nodes].count(torch.ops.aten.tanh.default) == 1


def test_jvp_compiled(x):
    same(fg.jvp_compiled(vector, (x,), (x.cos(),), **OPTIONS), func.jvp(vector, (x,), (x.cos(),)))
    has_aux = fg.jvp_compiled(lambda x: (vector(x), {"n": x * 2}), (x,), (x,), has_aux=True, **OPTIONS)
    same(has_aux, func.jvp(lambda x: (vector(x), {"n": x * 2}), (x,), (x,), has_aux=True))


def test_vjp_compiled(x):
    out, pull = fg.vjp_compiled(lambda x, w: vector(x) * w, x, x.cos(), **OPTIONS)
    wanted, eager = func.vjp(lambda x, w: vector(x) * w, x, x.cos())
    same(out, wanted)
    for cotangent in (x, x.sin(), torch.zeros_like(x)):
        same(pull(cotangent), eager(cotangent))
    basis = torch.eye(5, dtype=F64)
    same(func.vmap(pull)(basis), func.vmap(eager)(basis))
    same(func.jacfwd(lambda t: pull(t)[0])(x), func.jacfwd(lambda t: eager(t)[0])(x))


def weighted(p, x):
    return {"y": torch.tanh(p["w"] @ x) * p["b"], "z": (x * x).sum(), "same": x}


@pytest.fixture
def point(x):
    return {"w": torch.linspace(-1, 1, 15, dtype=F64).view(3, 5), "b": torch.linspace(0.5, 1, 3, dtype=F64)}, x


def basis(point):
    """A batch of tangents."""
    generator = torch.Generator().manual_seed(0)
    return fg.tree_map(lambda v: torch.randn(4, *v.shape, dtype=F64, generator=generator), point)


def test_what_has_no_derivative_comes_out_of_linearize_as_zeros_or_as_it_is(x):
    for f in (lambda x: (x.sin(), (x > 0).sum(), {"n": 3, "s": "t", "none": None}), lambda x: "t", lambda x: x > 0):
        out, push = fg.linearize_compiled(f, x, **OPTIONS)
        wanted, eager = func.linearize(f, x)
        same(out, wanted)
        found, expected = push(x.cos()), eager(x.cos())
        assert fg.tree_map(type, found) == fg.tree_map(
            lambda v: torch.Tensor if torch.is_tensor(v) else type(v), expected
        )
        for a, b in zip(pytree.tree_leaves(found), pytree.tree_leaves(expected), strict=True):
            assert torch.equal(a, b) and a.dtype == b.dtype if torch.is_tensor(a) else a == b
        batch = torch.eye(5, dtype=F64)
        if isinstance(out, tuple):
            same(func.vmap(lambda t: push(t)[:2])(batch), (torch.diag(x.cos()), torch.zeros(5, dtype=torch.int64)))


@pytest.mark.parametrize(
    "wrong", [torch.ones(5), torch.ones(4, dtype=F64), 1.0, torch.ones(5, dtype=F64, device="meta")]
)
def test_tangents_are_of_the_kind_of_their_primals(x, wrong):
    push = fg.linearize_compiled(torch.mul, x, x, **OPTIONS)[1]
    with pytest.raises(fg.ArgumentError, match=r"tangents\[1\] is a float(.|\n)*float64 tensor of shape \[5\] on cpu"):
        push(x, wrong)


def test_linearize_compiled(point):
    out, jvp_fn = fg.linearize_compiled(weighted, *point, **OPTIONS)
    same(out, weighted(*point))
    tangents = basis(point)
    for i in range(4):
        own = fg.tree_map(lambda v, i=i: v[i], tangents)
        same(jvp_fn(*own), func.jvp(weighted, point, own)[1])
    same(func.vmap(jvp_fn)(*tangents), func.vmap(lambda *own: func.jvp(weighted, point, own)[1])(*tangents))
    with pytest.raises(fg.TreeMismatchError):
        jvp_fn(point[1])


def test_linearize_compiled_inside_and_under_transforms(x):
    def product(x):
        return fg.linearize_compiled(vector, x, **OPTIONS)[1](torch.ones_like(x)).sum()

    def expected(x):
        return func.jvp(vector, (x,), (torch.ones_like(x),))[1].sum()

    for outer in (func.grad, func.hessian, lambda f: fg.grad_compiled(f, **OPTIONS)):
        same(outer(product)(x), outer(expected)(x))
    batch = torch.stack([x, 2 * x])
    same(func.vmap(product)(batch), func.vmap(expected)(batch))


def test_the_linear_part_alone_runs(x):
    compiled = jit(vector)
    _, jvp_fn = fg.linearize_compiled(compiled, x)
    assert sum(c.cache_info().misses for c in made_of(compiled)) == 2  # the layers of the level, and the forward half
    jvp_fn(x)
    linear = [c for c in made_of(compiled) if "aten.exp(" in str(c._cache.programs[0].joint)]
    assert len(linear) == 2, "exp is computed by the forward half alone"


def test_symbolic_zeros_are_no_input():
    with pytest.raises(fg.UnsupportedTensorError, match=r"symbolic zeros[^$]*torch.zeros_like"):
        jit(vector)(torch._efficientzerotensor(3))


INFINITE = math.inf
TIMES_WHAT_IS_NOT_FINITE = {
    "number": lambda x: torch.add(x, 1, alpha=INFINITE).tanh(),
    "tensor": lambda x: torch.sub(x, torch.ones(3), alpha=INFINITE).tanh(),
    "product": lambda x: torch.addcmul(x, torch.ones(3), torch.ones(3), value=INFINITE).tanh(),
    "dot": lambda x: torch.dot(x / 0, x.detach()),
    "what was read": lambda x: torch.add(x, 1, alpha=x.sum().item() * INFINITE).tanh(),
}


@pytest.mark.parametrize("place", ["inside", "outside"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", TIMES_WHAT_IS_NOT_FINITE)
def test_no_tangent_times_what_is_not_finite_is_none(name, dynamic, place):
    """PyTorch makes zeros of it; zeros in memory make nan."""
    f, x, t = TIMES_WHAT_IS_NOT_FINITE[name], torch.tensor([0.5, 1.0, 2.0]), torch.ones(3)
    options = {"backend": "aten", "dynamic": dynamic}
    if place == "inside":
        found = fg.jit(lambda x, t: torch.func.jvp(f, (x,), (t,)), **options)(x, t)
    else:
        found = torch.func.jvp(fg.jit(f, **options), (x,), (t,))
    torch.testing.assert_close(found, torch.func.jvp(f, (x,), (t,)), equal_nan=True)


def made_of(compiled):
    """The compiled functions behind one that have programs."""
    found, pending = [], [compiled]
    while pending:
        one = pending.pop()
        programs = one._cache.programs
        found += [one] * bool(programs)
        pending += one._derived.values()
        # at a level, what calls it there is around it
        kernels = [getattr(k := p.call.names["kernel"], "args", (k,))[0] for p in programs]
        pending += [k for k in kernels if isinstance(k, type(compiled))]
    return found


def test_the_point_is_compiled_once(x):
    def f(x):
        return vector(x)

    fg.vjp_compiled(f, x, **OPTIONS)[1](x + 2)
    fg.jvp_compiled(f, (x,), (x + 2,), **OPTIONS)
    with fg.no_retrace():
        fg.vjp_compiled(f, x + 1, **OPTIONS)[1](x)
        fg.jvp_compiled(f, (x + 1,), (x,), **OPTIONS)


def test_as_decorators(batch):
    @fg.vmap_compiled(in_dims=1, **OPTIONS)
    def f(row):
        return row.sum()

    same(f(batch), batch.sum(0))


# ── torch.func over compiled functions ───────────────────────────────────────────────────────────────────────────────

OUTER = {
    "vmap": lambda f: lambda x: func.vmap(f)(x.expand(2, 5) * torch.tensor([[1.0], [2.0]], dtype=F64)),
    "grad": lambda f: func.grad(lambda x: f(x).sum()),
    "vjp": lambda f: lambda x: func.vjp(f, x)[1](f(x)),
    "jvp": lambda f: lambda x: func.jvp(f, (x,), (x,)),
    "jacrev": func.jacrev,
    "jacfwd": func.jacfwd,
    "hessian": func.hessian,
    "linearize": lambda f: lambda x: func.linearize(f, x)[1](x),
    "functionalize": func.functionalize,
}


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.parametrize("f", [scalar, vector, lambda x: (x * 2)[1:], lambda x: x])
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")
def test_a_transform_of_a_compiled_function(outer, f, x):
    wanted, c = OUTER[outer](f)(x), OUTER[outer](jit(f))
    for _ in range(2):
        same(c(x), wanted)


@pytest.mark.parametrize("outer", OUTER)
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr")
def test_a_transform_of_a_compiled_gradient(outer, x):
    same(OUTER[outer](fg.grad_compiled(scalar, **OPTIONS))(x), OUTER[outer](func.grad(scalar))(x))


def test_a_second_call_compiles_nothing(x, batch):
    c, g = jit(vector), fg.grad_compiled(scalar, **OPTIONS)
    calls = [
        lambda: func.jacrev(c)(x),
        lambda: func.hessian(c)(x),
        lambda: func.vmap(func.grad(g_sum))(batch),
        lambda: func.jvp(g, (x,), (x,)),
    ]

    def g_sum(row):
        return g(row).sum()

    for call in calls:
        call()
    with fg.no_retrace():
        for call in calls:
            call()


def test_per_sample_gradients():
    net = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 1)).double()
    params = {name: p.detach() for name, p in net.named_parameters()}
    batch = torch.randn(4, 3, dtype=F64)

    def loss(params, row):
        return func.functional_call(net, params, (row,)).square().sum()

    wanted = func.vmap(func.grad(loss), (None, 0))(params, batch)
    same(func.vmap(fg.grad_compiled(loss, **OPTIONS), (None, 0))(params, batch), wanted)
    same(func.vmap(func.grad(jit(loss)), (None, 0))(params, batch), wanted)
    same(fg.vmap_compiled(func.grad(loss), (None, 0), **OPTIONS)(params, batch), wanted)
    same(fg.vmap_compiled(fg.grad_compiled(loss), (None, 0), **OPTIONS)(params, batch), wanted)


def test_no_slow_rule_is_taken():
    """vmap of a compiled function is a program of the whole batch: nothing falls back to a loop."""
    batch = torch.randn(4, 3, dtype=F64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        func.vmap(func.grad(jit(lambda row: F.layer_norm(row * row, (3,)).sum())))(batch)


# ── what functions close over, write to, and draw ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("outer", ["vmap", "grad", "jvp", "jacrev", "hessian"])
def test_tensors_of_an_outer_level(outer, x):
    def closing(make):
        return lambda w: make(lambda v: (v * w).sin())(torch.ones(5, dtype=F64))

    for _ in range(2):
        same(OUTER[outer](closing(jit))(x), OUTER[outer](closing(lambda f: f))(x))


def test_a_tensor_of_an_outer_level_under_vmap(x, batch):
    def closing(make):
        return func.grad(lambda w: func.vmap(make(lambda row: (row * w[:3]).sin().sum()))(batch).sum())

    same(closing(jit)(x), closing(lambda f: f)(x))


def test_a_rebound_tensor_of_an_outer_level(batch):
    """Where it lives is read in each call."""
    held = {}
    c = jit(lambda v: v * held["w"])

    def row(w):
        held["w"] = w
        return c(2.0)

    for _ in range(2):
        same(func.vmap(row)(batch), 2 * batch)
        same(func.vmap(row)(batch + 1), 2 * batch + 2)


def writes(y):
    y.mul_(2)
    y[0] = 3.0
    return y.sin()


@pytest.mark.parametrize("outer", ["grad", "jvp", "vmap", "jacrev", "functionalize"])
def test_writes_to_an_argument(outer, x):
    def calling(f):
        def g(x):
            y = x * 1
            out = f(y)
            return (out * y).sum()

        return g

    for _ in range(2):
        same(OUTER[outer](calling(jit(writes)))(x), OUTER[outer](calling(writes))(x))


def test_writes_to_a_view_that_is_read_later(x):
    def calling(f):
        def g(x):
            y = x * 1
            a, b = y[:3], y[2:]
            f(a)
            return (b * y.sum()).sum()

        return g

    def write(a):
        a.mul_(a.exp().detach() * 2)

    for outer in ("grad", "jvp"):
        same(OUTER[outer](calling(jit(write)))(x), OUTER[outer](calling(write))(x))


def test_a_result_that_is_a_view_may_be_written_to(x):
    def calling(f):
        def g(x):
            y = x * 1
            f(y).mul_(3)
            return y.square().sum()

        return g

    for outer in ("grad", "jvp"):
        same(OUTER[outer](calling(jit(lambda y: y[1:])))(x), OUTER[outer](calling(lambda y: y[1:]))(x))


def test_a_written_buffer_is_written_once():
    total = torch.zeros((), dtype=F64)
    c = jit(lambda x: (total.add_(1), (x * x).sum())[1])
    for outer, times in ((func.grad(c), 1), (lambda x: func.jvp(c, (x,), (x,)), 2)):
        outer(torch.ones(3, dtype=F64))
        assert total == times


@pytest.mark.parametrize("outer", ["grad", "jacrev", "jvp", "hessian"])
def test_backward_sees_what_forward_drew(outer, x):
    def f(x):
        return F.dropout(x.sin(), 0.5) * x

    def seeded(f):
        torch.manual_seed(1)
        return OUTER[outer](f)(x) if outer != "hessian" else func.jacfwd(func.jacrev(f), randomness="same")(x)

    wanted, left = seeded(f), torch.get_rng_state()
    c = jit(f)
    for _ in range(2):
        same(seeded(c), wanted)
        assert torch.equal(torch.get_rng_state(), left)


def test_batch_norm_in_training_under_grad():
    """torch.func raises for the buffers that are written; here they are, once a call."""
    net = nn.BatchNorm1d(3).double()
    twin, batch = copy.deepcopy(net), torch.randn(8, 3, dtype=F64)
    weight = torch.rand(8, 3, dtype=F64)
    (wanted,) = torch.autograd.grad((twin(leaf := batch.clone().requires_grad_()) * weight).sum(), leaf)
    same(func.grad(lambda x: (jit(net)(x) * weight).sum())(batch), wanted)
    same(dict(net.named_buffers()), dict(twin.named_buffers()))


BATCH_NORM, INSTANCE_NORM = lambda: nn.BatchNorm1d(3), lambda: nn.InstanceNorm1d(3, track_running_stats=True)
PER_SAMPLE = [
    lambda f: func.vmap(fg.grad_compiled(f)),
    lambda f, *dims: func.vmap(func.grad(jit(f)), *dims),
    lambda f: func.vmap(lambda x: func.vjp(jit(f), x)[1](torch.ones((), dtype=F64))[0]),
    lambda f: func.vmap(func.jacrev(jit(f))),
    lambda f, *dims: fg.vmap_compiled(func.grad(f), *dims),
    lambda f: fg.vmap_compiled(func.grad(f), chunk_size=4),
    lambda f: lambda x: func.vmap(func.vmap(fg.grad_compiled(f)))(x[:, None]).squeeze(1),
    lambda f: jit(func.grad(lambda x: func.vmap(f)(x).sum())),
    lambda f: lambda x: func.jvp(func.vmap(fg.grad_compiled(f)), (x,), (x,))[0],
]


@pytest.mark.parametrize("make", [BATCH_NORM, INSTANCE_NORM])
@pytest.mark.parametrize("word", PER_SAMPLE)
def test_running_statistics_are_written_once_a_call_from_the_whole_batch(word, make):
    """torch.func raises; the gradients are those of a module that keeps none."""
    net = make().double()
    twin, without = copy.deepcopy(net), copy.deepcopy(net)
    without.running_mean = without.running_var = without.num_batches_tracked = None
    batch = torch.randn(4, 5, 3, 6, dtype=F64)
    compiled, of_samples = word(lambda x: net(x).pow(3).sum()), func.vmap(func.grad(lambda x: without(x).pow(3).sum()))
    for _ in range(3):
        same(compiled(batch), of_samples(batch))
        twin(batch.flatten(0, 1))
        same(dict(net.named_buffers()), dict(twin.named_buffers()))


@pytest.mark.parametrize("make", [BATCH_NORM, INSTANCE_NORM])
@pytest.mark.parametrize("word", PER_SAMPLE[1:2] + PER_SAMPLE[4:5])
def test_running_statistics_that_are_arguments(word, make):
    """As ``functional_call`` takes them: all samples share them."""
    net = make().double()
    twin, buffers = copy.deepcopy(net), {name: b.clone() for name, b in net.named_buffers()}
    batch = torch.randn(4, 5, 3, 6, dtype=F64)

    def f(x, buffers):
        return func.functional_call(net, buffers, (x,)).pow(3).sum()

    for n in (4, 4, 3):
        word(f, (0, None))(batch[:n], buffers)
        twin(batch[:n].flatten(0, 1))
        same(buffers, dict(twin.named_buffers()))


@pytest.mark.parametrize("make", [BATCH_NORM, INSTANCE_NORM])
@pytest.mark.parametrize("train", [True, False])
def test_running_statistics_of_an_ensemble(make, train, recwarn):
    """Each model has its own. Under jvp inside of vmap, they belong to the vmap."""
    nets = [make().double().train(train) for _ in range(3)]
    (_, buffers), batch = func.stack_module_state(nets), torch.randn(3, 5, 3, 6, dtype=F64)

    def f(x, buffers):
        return func.functional_call(nets[0], buffers, (x,)).pow(3).sum()

    wanted, found = ({name: b.clone() for name, b in buffers.items()} for _ in range(2))
    for _ in range(2):
        same(func.vmap(func.grad(jit(f)))(batch, found), func.vmap(func.grad(f))(batch, wanted))
        same(found, wanted)
    func.vmap(lambda x, b: func.jvp(lambda x: jit(f)(x, b), (x,), (x,)))(batch, found)
    func.vmap(f)(batch, wanted)
    same(found, wanted)
    assert not [w for w in recwarn if "batching rule" in str(w.message)]


@pytest.mark.parametrize("word", [fg.jacrev_compiled, lambda f: jit(func.jacrev(f)), fg.hessian_compiled])
def test_batch_norm_in_training_under_jacobians(word):
    net, batch = nn.BatchNorm1d(3).double(), torch.randn(4, 3, dtype=F64)
    twin = copy.deepcopy(net)
    reference = func.jacrev if word is not fg.hessian_compiled else func.hessian
    found = word(lambda x: net(x).pow(3).sum())(batch)
    same(found, reference(lambda x: nn.functional.batch_norm(x, None, None, training=True).pow(3).sum())(batch))
    twin(batch)
    same(dict(net.named_buffers()), dict(twin.named_buffers()))


# ── torch.autograd above and below ───────────────────────────────────────────────────────────────────────────────────


def test_autograd_through_transforms(x):
    leaf = x.clone().requires_grad_()
    for make in (
        lambda f: func.grad(lambda x: f(x).sum()),
        func.jacrev,
        func.jacfwd,
        lambda f: lambda x: func.vmap(f)(x.expand(2, 5)),
    ):
        same(
            torch.autograd.grad(make(jit(vector))(leaf).sum(), leaf),
            torch.autograd.grad(make(vector)(leaf).sum(), leaf),
        )


def test_dual_tensors(x):
    def dual(f):
        with forward_ad.dual_level():
            given = forward_ad.make_dual(x.clone(), x.cos())
            out = f(given)
            return tuple(forward_ad.unpack_dual(out)), tuple(forward_ad.unpack_dual(given))

    for f in (vector, writes, fg.grad_compiled(scalar)):
        eager = func.grad(scalar) if isinstance(f, fg.Compiled) else f
        same(dual(f if isinstance(f, fg.Compiled) else jit(f)), dual(eager))


def test_dual_parameters(x):
    """A captured tensor has a tangent, too."""
    weight = [x.clone()]
    c = jit(lambda v: v * weight[0].sin())

    def call(f):
        with forward_ad.dual_level():
            weight[0] = forward_ad.make_dual(x, torch.ones_like(x))
            return tuple(forward_ad.unpack_dual(f(x)))

    c(x)
    same(call(c), call(lambda v: v * weight[0].sin()))


def test_grad_mode_of_a_level(x):
    """A value that torch.no_grad made has no gradient, at any level."""

    def f(x):
        with torch.no_grad():
            y = x.sin()
        return (y * x).sum()

    same(func.grad(jit(f))(x), func.grad(f)(x))
    same(func.grad(lambda x: jit(lambda x: x.detach() * x)(x).sum())(x), x)


# ── what is kept ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_compiled_of_a_function_goes_with_it(x):
    c = jit(lambda x: vector(x))
    for outer in OUTER:
        OUTER[outer](c)(x)
    gone = weakref.ref(c)
    del c
    gc.collect()
    assert gone() is None


def test_containers(batch):
    Pair = collections.namedtuple("Pair", "a b")

    def f(p, *, scale):
        return Pair(p["x"] * scale, [p["x"].sum(), None, 3])

    found = func.vmap(lambda row: jit(f)({"x": row}, scale=2.0)[:1])(batch)
    same(found, (batch * 2,))
    assert fg.vmap_compiled(lambda row: Pair(row, row.sum()), **OPTIONS)(batch)._fields == ("a", "b")


@pytest.mark.parametrize("outer", ["grad", "jvp", "jacrev", "vmap"])
def test_sizes_become_symbols_at_a_level(outer):
    c = jit(vector)
    for n in (5, 6, 7, 8):
        x = torch.linspace(-1, 1, n, dtype=F64)
        make = OUTER[outer] if outer != "vmap" else lambda f: lambda x: func.vmap(f)(x.expand(2, -1))
        same(make(c)(x), make(vector)(x))


def test_static_arguments_at_a_level(x):
    c = fg.jit(lambda mode, x: x * x if mode["square"] else x, static_argnums=(0,), **OPTIONS)
    for square in (True, False, True):
        same(func.grad(lambda x: c({"square": square}, x).sum())(x), 2 * x if square else torch.ones_like(x))
        same(func.vmap(lambda x: c({"square": square}, x))(x), x * x if square else x)


def test_floats_at_a_level(x):
    c = jit(lambda x, v: (x * v).exp() * (v if v > 1 else 2 * v))
    for v in (0.5, 0.25, 1.5, 3.0, 0.0, 1.0):
        for outer in ("grad", "jvp", "hessian", "vmap"):
            same(OUTER[outer](lambda x: c(x, v))(x), OUTER[outer](lambda x: (x * v).exp() * (v if v > 1 else 2 * v))(x))


def sharing():
    memory = torch.arange(6.0, dtype=F64)
    return torch.ones(4, dtype=F64), memory[:4], memory[2:]


def test_arguments_that_share_memory_are_tensors_of_their_own_at_a_level():
    def f(p, a, b):
        return (p * a * b).sum()

    def writes(p, a, b):
        a.mul_(2)
        return (p * a * b).sum()

    columns = torch.arange(6.0, dtype=F64).view(3, 2).unbind(1)
    for args in (sharing(), (torch.ones(3, dtype=F64), *columns)):
        same(func.grad(jit(f))(*args), func.grad(f)(*args))
    with pytest.raises(fg.AliasContractError, match="tensors of their own"):
        func.grad(jit(writes))(*sharing())


def test_a_tensor_of_a_level_that_has_ended(x):
    kept = []
    func.grad(lambda y: (kept.append(y), y.sum())[1])(x)
    compiled = jit(lambda a, b: (a * b).sum())
    for other in (x, kept[0], x, kept[0]):
        same(func.grad(lambda y, other=other: compiled(y, other))(x), x)
    same(func.vmap(compiled, (0, None))(torch.stack([x, x]), kept[0]), torch.stack([x @ x, x @ x]))


OUTER_OF_ANOTHER_ARGUMENT = {
    "grad of grad": lambda f: lambda x, y: func.grad(lambda x, y: func.grad(f)(x, y).pow(2).sum(), (0, 1))(x, y),
    "jacrev of jacrev": lambda f: lambda x, y: func.jacrev(lambda y: func.jacrev(lambda x: f(x, y))(x))(y),
    "jacfwd of jacrev": lambda f: lambda x, y: func.jacfwd(lambda y: func.jacrev(lambda x: f(x, y))(x))(y),
    "jacrev of jacfwd": lambda f: lambda x, y: func.jacrev(lambda y: func.jacfwd(lambda x: f(x, y))(x))(y),
    "grad of jvp": lambda f: lambda x, y: func.grad(lambda y: func.jvp(lambda x: f(x, y), (x,), (x.cos(),))[1])(y),
    "vmap of grad of grad": lambda f: lambda x, y: func.vmap(
        lambda x: func.grad(lambda y: func.grad(f)(x, y).pow(2).sum())(y)
    )(torch.stack([x, x.sin()])),
    "grad of grad of grad": lambda f: lambda x, y: func.grad(
        lambda y: func.grad(lambda x: func.grad(f, 1)(x, y).pow(2).sum())(x).sum()
    )(y),
}  # fmt: skip


@pytest.mark.parametrize("outer", OUTER_OF_ANOTHER_ARGUMENT)
def test_an_outer_level_differentiates_another_argument(outer, x):
    """Its program was traced for the inner level, to which that argument, and a result of it alone, are constants."""

    def of(f):
        def scalar(x, y):
            a, b = f(x, y)
            return (a**3 * b).sum()

        return OUTER_OF_ANOTHER_ARGUMENT[outer](scalar)

    def f(x, y):
        return x.sin() * y, y.cos()

    y = torch.linspace(0.3, 1.7, 5, dtype=F64)
    same(of(jit(f))(x, y), of(f)(x, y))


LAYER = nn.Linear(3, 3, dtype=F64)
MATRIX = torch.linspace(-1, 1, 9, dtype=F64).view(3, 3)
OF_WHAT_IT_CLOSES_OVER = {
    "grad": lambda x: func.grad(lambda w: (w @ x).square().sum())(MATRIX),
    "grad of a parameter": lambda x: func.grad(lambda w: (w @ x).square().sum())(LAYER.weight),
    "vmap": lambda x: func.vmap(lambda row: row @ x)(MATRIX),
    "vmap of grad": lambda x: func.vmap(func.grad(lambda row: (row * x).square().sum()))(MATRIX),
    "jvp": lambda x: func.jvp(lambda w: w @ x, (MATRIX,), (MATRIX.cos(),)),
    "jacrev": lambda x: func.jacrev(lambda w: w @ x)(MATRIX),
    "jacfwd": lambda x: func.jacfwd(lambda w: w @ x)(MATRIX),
    "hessian": lambda x: func.hessian(lambda w: (w @ x).sin().sum())(MATRIX),
    "module": lambda x: func.grad(lambda p: func.functional_call(LAYER, p,
    (x,)).square().sum())(dict(LAYER.named_parameters())),
    "in a loop": lambda x: torch._higher_order_ops.map(
    lambda row: func.grad(lambda w: (w @ row).square().sum())(MATRIX), x.expand(2, 3)),
}  # fmt: skip


@pytest.mark.parametrize("f", OF_WHAT_IT_CLOSES_OVER)
def test_a_transform_inside_of_what_the_function_closes_over(f, batch):
    function, x = OF_WHAT_IT_CLOSES_OVER[f], batch[0]
    same(jit(function)(x), function(x) if f != "in a loop" else torch.stack([OF_WHAT_IT_CLOSES_OVER["grad"](x)] * 2))
    if f != "in a loop":
        same(fg.vmap_compiled(function, **OPTIONS)(batch), func.vmap(function)(batch))
