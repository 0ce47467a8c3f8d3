"""A budget in bytes is kept by what is measured, at the least cost that oracles know, and never changes a number."""

import functools
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from functions import CASES
from hypothesis import given, settings
from hypothesis import strategies as st
from milp import least_cost
from torch import func

import funcgrad as fg
from funcgrad.backends.aten import AtenBackend
from funcgrad.backends.peak import predicted_peak
from funcgrad.loops.lower import Target
from funcgrad.machine import CPU
from funcgrad.partition.budget import frontier
from funcgrad.partition.cost import costs_again
from funcgrad.partition.roles import Roles
from funcgrad.partition.timeline import Model
from funcgrad.trees import flatten

# ── models ───────────────────────────────────────────────────────────────────────────────────────────────────────


def weights(n, *shape):
    return [torch.randn(shape) / math.sqrt(shape[0]) for _ in range(n)]


def chain(ws, x):
    for w in ws:
        x = torch.tanh(x @ w)
    return x.sum()


def dropped(ws, x):
    for w in ws:
        x = x + F.dropout(F.relu(x @ w), 0.3)
    return x.square().mean()


def transformer(ws, x):
    b, t, d = x.shape
    for qkv, out, up, down in (
        itertools.batched(ws, 4) if hasattr(itertools, "batched") else zip(*[iter(ws)] * 4, strict=True)
    ):
        q, k, v = (F.layer_norm(x, (d,)) @ qkv).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.dropout((q @ k.transpose(-1, -2) / 4).softmax(-1), 0.1) @ v
        x = x + mixed.transpose(1, 2).reshape(b, t, d) @ out
        x = x + F.gelu(F.layer_norm(x, (d,)) @ up) @ down
    return x.square().mean()


def convolutions(ws, x):
    for w in ws:
        x = F.relu(F.conv2d(x, w, padding=1))
        x = F.batch_norm(x, None, None, training=True)
    return F.max_pool2d(x, 2).mean()


def recurrent(ws, x):
    w, u = ws
    h = c = x.new_zeros(x.shape[1], u.shape[0])
    for step in x.unbind(0):
        i, f, o, g = (step @ w + h @ u).chunk(4, -1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
    return h.sum()


def transformer_inputs(layers, d=32):
    shapes = [(d, 3 * d), (d, d), (d, 4 * d), (4 * d, d)] * layers
    return [torch.randn(s) / math.sqrt(s[0]) for s in shapes], torch.randn(2, 16, d)


NETS = {
    "chain": (chain, lambda: (weights(12, 32, 32), torch.randn(64, 32))),
    "dropped": (dropped, lambda: (weights(8, 32, 32), torch.randn(64, 32))),
    "transformer": (transformer, lambda: transformer_inputs(3)),
    "convolutions": (
        convolutions,
        lambda: ([torch.randn(8, 8, 3, 3) / 8 for _ in range(4)], torch.randn(4, 8, 12, 12)),
    ),
    "recurrent": (recurrent, lambda: ([torch.randn(8, 64) / 4, torch.randn(16, 64) / 4], torch.randn(10, 4, 8))),
}
SMALL_CHANGE = 6 * 1024
"""Bytes beside the tensors of a program: the state of the generator, which a differentiable program with draws
keeps, and scalars."""
MODELS = {**NETS, **{name: CASES[name] for name in CASES}}


def smallest_peak(make_compiled, args):
    """What the error says that has to be allowed."""
    with pytest.raises(fg.PartitionError, match="keeps the peak within") as caught:
        make_compiled(memory_budget=1).program(*args)
    return int(caught.value.fix.split("allow at least ")[1].split(" bytes")[0])


def laws_hold(f, make, backend, transform, steps):
    """Gradients equal at budgets from the smallest to the whole; predicted and measured peaks stay within, and grow
    with the budget."""
    args = make()
    leaves = [t.requires_grad_() for t in flatten(args[0])[0] if isinstance(t, torch.Tensor) and t.is_floating_point()]

    def compiled(**options):
        return getattr(fg, transform)(f, backend=backend, **options)

    def gradients(c):
        torch.manual_seed(5)
        if transform == "jit":
            value = c(*args)  # of a constant there is no gradient, as in eager PyTorch
            return torch.autograd.grad(value, leaves, allow_unused=True) if value.requires_grad else [value]
        return [t for t in flatten(c(*args))[0] if isinstance(t, torch.Tensor)]

    free = compiled()
    expected = gradients(free)
    most = predicted_peak(free.program(*args).schedule)
    least = smallest_peak(compiled, args)
    before = None
    for k in range(steps):
        budget = least + round((max(most, least) - least) * k / (steps - 1))
        c = compiled(memory_budget=budget)
        assert_rounded(gradients(c), expected)
        limit, memory = c.program(*args).partition.limit, c.memory(*args)
        assert limit.peak == memory.predicted_peak <= limit.nbytes == budget
        assert memory.measured_peak <= budget * 1.02 + SMALL_CHANGE
        assert 0 <= limit.bound <= limit.cost + 1e-9
        if before is not None:
            assert (limit.peak, memory.measured_peak) >= (before[0].peak, before[1]) and limit.cost <= before[0].cost
        before = limit, memory.measured_peak


@pytest.mark.sweep(6)
@pytest.mark.parametrize(
    ("transform", "name"), [*itertools.product(["grad_compiled"], NETS), ("jit", "chain"), ("jit", "dropped")]
)
def test_peaks_stay_within_budgets(name, transform):
    laws_hold(*NETS[name], "aten", transform, 3)


@pytest.mark.parametrize("backend", ["aten", "c"])
def test_what_backward_recorded_and_forward_keeps(backend):
    """A copy that a derivative makes of a view of an input, which the caller may write to before backward."""
    f, make = MODELS["stack_cat_split"]
    laws_hold(f, make, backend, "jit", 3)
    (x,) = make()
    x.requires_grad_()
    c = fg.jit(f, backend=backend, memory_budget=1.0)
    assert c.program(x).partition.kept == {"clone"}
    assert_rounded(torch.autograd.grad(c(x), x), torch.autograd.grad(f(x), x))


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ["solve", "cholesky", "conv_pool_1d"])
def test_what_a_small_call_takes_is_predicted(name):
    """Its workspace is measured on made-up numbers, of which pivots must be possible ones; a convolution of 240
    bytes takes 37 KiB."""
    laws_hold(*MODELS[name], "aten", "grad_compiled", 2)


I = torch.arange(1024).remainder(7).view(256, 4)
WITH_WORKSPACE = {
    "embedding_bag": lambda x: F.embedding_bag(I, x),
    "masked_scatter": lambda x: x.masked_scatter(x > 0, x * 2),
    "kthvalue": lambda x: x.kthvalue(3, 1)[0],
    "bfloat16": lambda x: x.bfloat16() @ x.bfloat16(),
    "complex": lambda x: (torch.complex(x, x).mH @ torch.complex(x, -x)).abs(),
    "index_reduce": lambda x: x.index_reduce(0, torch.arange(256), x.detach(), "mean"),
    "scatter_reduce": lambda x: x.scatter_reduce(0, I[:, :1].expand(256, 256), x, "amax"),
    "cdist": lambda x: torch.cdist(x, 2 * x),
    "softmax": lambda x: x.t().softmax(0),
    "median": lambda x: x.median(1)[0],
    "cumsum": lambda x: x.t().cumsum(0),
    "logsumexp": lambda x: x.t().logsumexp(0),
    "roll": lambda x: x.roll(3, 0),
    "layer_norm": lambda x: F.layer_norm(x.t(), (256,)),
    "batch_norm": lambda x: F.batch_norm(x.t(), None, None, training=True),
    "strided": lambda x: x[:, ::2] @ x[::2] + x.t() @ x[:, :1],
    "unfold": lambda x: F.unfold(x[None, None], 3),
}


@pytest.mark.sweep(4)
@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("name", WITH_WORKSPACE)
def test_what_the_library_allocates_is_predicted(name, backend):
    f, x = WITH_WORKSPACE[name], torch.randn(256, 256)
    use = fg.value_and_grad_compiled(lambda x: f(x).float().square().mean(), memory_budget=1.0, backend=backend).memory(
        x
    )
    assert use.measured_peak <= 1.02 * use.predicted_peak


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", ["dropped", "transformer"])
def test_peaks_of_fused_programs_stay_within_budgets(name):
    laws_hold(*NETS[name], "c", "grad_compiled", 3)


@pytest.mark.long
@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("transform", ["grad_compiled", "jit"])
@pytest.mark.parametrize("name", MODELS)
def test_eleven_budgets_of_every_model(name, transform, backend):
    laws_hold(*MODELS[name], backend, transform, 11)


@settings(max_examples=5, deadline=None)
@given(
    st.lists(st.sampled_from(["mm", "tanh", "drop", "norm", "residual", "wide", "cat"]), min_size=2, max_size=6),
    st.floats(0.4, 1),
)
def test_random_graphs_within_a_fraction(ops, fraction):
    makes = {
        "mm": lambda x: x @ x.t() @ x / 24, "tanh": torch.tanh, "drop": lambda x: F.dropout(x, 0.4),
        "norm": lambda x: F.layer_norm(x, (8,)),
        "residual": lambda x: x + x.sin() * x.exp().reciprocal(), "wide": lambda x: (x.unsqueeze(1) - x).tanh().sum(1),
        "cat": lambda x: torch.cat([x.cos(), x * 2], 0)[: len(x)],
    }  # fmt: skip

    def f(x):
        return functools.reduce(lambda x, op: makes[op](x), ops, x).square().sum()

    x = torch.linspace(-1, 1, 48 * 8).view(48, 8)
    torch.manual_seed(1)
    expected = fg.grad_compiled(f, backend="aten")(x)
    c = fg.grad_compiled(f, backend="aten", memory_budget=fraction)
    try:
        torch.manual_seed(1)
        assert_rounded([c(x)], [expected])
    except fg.PartitionError as error:
        assert "the smallest found is" in str(error)
    else:
        limit = c.program(x).partition.limit
        assert c.memory(x).measured_peak <= 1.02 * limit.nbytes + SMALL_CHANGE


# ── oracles ──────────────────────────────────────────────────────────────────────────────────────────────────────


def model_of(f, args):
    joint = fg.value_and_grad_compiled(f, backend="aten").program(*args).joint
    costs, _ = costs_again(joint.graph, Target(CPU, fuses=False))
    return Model(joint.graph, Roles(joint.graph, False), costs, ())


SMALL = {
    "chain": lambda w, x: (x @ w).tanh().exp().sum(),
    "two": lambda w, x: ((x @ w).tanh() @ w).sigmoid().sum(),
    "wide": lambda w, x: (torch.cat([x, x @ w], 1).sin() * 2).exp().mean(),
}


@pytest.mark.parametrize("name", SMALL)
def test_the_best_of_all_choices_in_tiny_graphs(name):
    """Every set of values, counted by a simulation of its own: dictionaries, moment by moment."""
    model = model_of(SMALL[name], (torch.randn(16, 16), torch.randn(24, 16)))
    assert len(model.nodes) <= 18
    free = [i for i in range(len(model.nodes)) if model.repeatable[i] and i not in model.always]
    every = [
        (t.peak, t.cost)
        for k in range(len(free) + 1)
        for s in itertools.combinations(free, k)
        if (t := model.run(model.always | set(s)))
    ]
    points = [(t.peak, t.cost) for t in frontier(model, model.run(model.always))]
    for peak, _ in every:
        within = [cost for p, cost in points if p <= peak]
        assert min(within) == min(cost for p, cost in every if p <= peak)


def whole(model):
    """The cost of forward and of backward, which takes about twice as much."""
    return 3 * sum(map(model.cost, range(len(model.nodes))))


@pytest.mark.parametrize(
    ("name", "layers"),
    [("chain", 7), *(pytest.param(*case, marks=pytest.mark.long) for case in (("chain", 10), ("dropped", 6)))],
)
def test_within_three_per_cent_of_an_integer_program(name, layers):
    """On graphs of up to 200 nodes: a program on the frontier takes at most 1.03 times as long as any of its peak."""
    f, _ = NETS[name]
    model = model_of(f, (weights(layers, 16, 16), torch.randn(32, 16)))
    first = model.run(model.always)
    for point in frontier(model, first):
        assert whole(model) + point.cost <= 1.03 * (whole(model) + least_cost(model, point.peak))
    assert frontier(model, first)[-1].peak < 0.85 * first.peak


@pytest.mark.parametrize("name", [name for name in NETS if name != "convolutions"])
def test_the_model_takes_as_much_memory_as_the_schedule(name):
    """In the order of the joint graph, but for what the schedule computes in place; and the library's convolutions
    take memory of their own."""
    f, make = NETS[name]
    program = fg.value_and_grad_compiled(f, backend="aten").program(*make())
    joint, backend = program.joint, AtenBackend()
    peak = predicted_peak([backend.schedule(backend.lower(joint.graph))])
    costs, _ = costs_again(joint.graph, Target(CPU, fuses=False))
    model = Model(joint.graph, Roles(joint.graph, False), costs, ())
    assert 0.99 <= model.run(model.start(program.partition.kept)).peak / peak <= 1.2


@pytest.mark.parametrize("transform", [func.jacfwd, func.jacrev, lambda g: lambda x: func.jvp(g, (x,), (x,))])
def test_a_fraction_for_a_gradient_at_a_level(transform):
    """There the gradient is a result like any other: its backward pass needs nothing but inputs."""

    def f(x):
        return x.sin().exp().sum()

    x = torch.linspace(-1, 1, 5, dtype=torch.float64)
    found, wanted = transform(fg.grad_compiled(f, memory_budget=1.0))(x), transform(func.grad(f))(x)
    torch.testing.assert_close(found, wanted)


def test_what_is_saved_in_another_layout_counts():
    """Convolutions run, and save, in the library's layout: the peak is predicted for what forward really hands over."""

    def net(ws, x):
        for w in ws:
            x = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True)) + x
        return x.square().mean()

    ws, x = [(torch.randn(16, 16, 3, 3) / 10).requires_grad_() for _ in range(3)], torch.randn(8, 16, 32, 32)
    for budget in (None, 0.75):
        use = fg.jit(net, memory_budget=budget).memory(ws, x)
        assert abs(use.predicted_peak - use.measured_peak) <= 0.02 * use.measured_peak


def test_what_backward_computes_again_it_computes_when_it_is_read():
    """All that the products of a perceptron read fits with two of their results besides: no product is done twice."""

    def perceptron(ws, x):
        for w in ws:
            x = F.gelu(x @ w)
        return x.square().mean()

    ws, x = weights(8, 128, 128), torch.randn(1024, 128)
    compiled = fg.jit(perceptron, memory_budget=10 * x.nbytes + 64, backend="c")
    program = compiled.program([w.requires_grad_() for w in ws], x)
    assert predicted_peak(program.schedule) <= 10 * x.nbytes + 64
    products = [
        n for kernels in program.kernels for n in kernels.graph.fx.nodes if n.target is torch.ops.aten.mm.default
    ]
    assert len(products) == 3 * 8 - 1
