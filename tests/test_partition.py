"""The minimum cut and the split: exact, under tags, and every forward op runs once."""

import itertools
import math

import pytest
import torch
from functions import CASES
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.graphs import has_effect, is_view, pass_of, value_of
from funcgrad.partition.cut import minimum_cut
from funcgrad.partition.partition import partition
from funcgrad.passes.tagging import tag_joint
from funcgrad.slots import Grad
from funcgrad.tags import Tag, tag, tags_of


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_minimum_cut_is_the_smallest_of_all(data):
    """Against all 2^n cuts of small networks."""
    n = data.draw(st.integers(2, 7))
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    capacity = st.integers(0, 10**10) | st.just(math.inf)
    edges = data.draw(st.dictionaries(st.sampled_from(pairs), capacity, max_size=12))

    def cost(side):
        return sum(c for (a, b), c in edges.items() if a in side and b not in side)

    columns = [a for a, _ in edges], [b for _, b in edges], list(edges.values())
    cuts = [{0, *rest} for k in range(n - 1) for rest in itertools.combinations(range(2, n), k)]
    best = min(map(cost, cuts))
    if best == math.inf:
        with pytest.raises(ValueError, match="must not be cut"):
            minimum_cut(*columns, 0, 1, n)
        return
    side = {i for i, reached in enumerate(minimum_cut(*columns, 0, 1, n)) if reached}
    assert 0 in side and 1 not in side
    # capacities are scaled to int32: exact to one part in 2^28 of their sum
    assert cost(side) <= best + sum(c for c in edges.values() if c != math.inf) / 2**28 + len(edges)


def programs():
    for name, (f, make) in CASES.items():
        yield pytest.param(f, make, id=name)


def joint_of(f, make):
    return fg.value_and_grad_compiled(f).program(*make()).joint


@pytest.mark.parametrize(("f", "make"), list(programs()))
def test_no_forward_op_runs_twice(f, make):
    """Only views stand in both halves; every effect and every random draw stands in exactly one."""
    split = partition(joint_of(f, make))
    halves = [[n for n in g.fx.nodes if n.op == "call_function"] for g in (split.forward, split.backward)]
    twice = {n.name for n in halves[0]} & {n.name for n in halves[1]}
    by_name = {n.name: n for half in halves for n in half}
    assert all(is_view(by_name[name]) for name in twice)
    assert not any(has_effect(by_name[name]) for name in twice)


def small_joint(data, transform=fg.grad_compiled):
    """A random chain of pointwise ops and reductions with its gradient."""
    steps = data.draw(st.lists(st.sampled_from(["sin", "exp", "mul", "relu", "mm", "t"]), min_size=1, max_size=4))

    def f(x, w):
        for step in steps:
            x = {
                "sin": x.sin,
                "exp": x.exp,
                "relu": x.relu,
                "t": x.t,
                "mul": lambda x=x: x * w,
                "mm": lambda x=x: x @ w,
            }[step]()
        return x.sum()

    return transform(f, argnums=(0, 1), backend="aten").program(torch.randn(3, 3), torch.randn(3, 3)).joint


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_saved_bytes_are_minimal(data):
    """Against all sets of intermediates from which backward can be computed without running a forward op again."""
    joint = small_joint(data)
    split = partition(joint)
    graph = joint.graph
    outs = [v for s, v in zip(graph.signature.outs, graph.results, strict=True) if isinstance(s, Grad)]
    forward_ops = {n.name for n in split.forward.fx.nodes if n.op == "call_function"}
    first = next(n for n in graph.fx.nodes if Tag.MUST_BE_IN_BACKWARD in tags_of(n).flags)
    incoming = {first}
    for n in graph.fx.nodes:
        if any(i in incoming for i in n.all_input_nodes):
            incoming.add(n)
    known = [n for n in graph.fx.nodes if n.op == "call_function" and n not in incoming and not is_view(n)]
    required = {n.name for n in known if n.name in forward_ops and pass_of(n) == "forward"}

    def allowed(saved):
        """Whether backward needs no forward op besides what is saved."""
        pending, seen = [v for v in outs if isinstance(v, torch.fx.Node)], set()
        while pending:
            n = pending.pop()
            if n in seen or n.name in saved:
                continue
            seen.add(n)
            if n.name in required:
                return False
            pending += n.all_input_nodes
        return True

    size = {n.name: value_of(n).numel() * value_of(n).element_size() for n in known}
    chosen = {k.slot.name for k in split.saved if hasattr(k.slot, "name")}
    assert allowed(chosen)
    for k in range(len(known) + 1):
        for saved in itertools.combinations(size, k):
            if allowed(set(saved)):
                assert sum(size[s] for s in chosen) <= sum(size[s] for s in saved) + 0
    assert split.saved_bytes <= sum(size[s] for s in chosen)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_what_is_saved_and_computed_again_is_cheapest(data):
    """Bytes saved plus the cost of what is computed again, against all sets of intermediates."""
    joint = small_joint(data, fg.value_and_grad_compiled)
    nodes = [n for n in joint.graph.fx.nodes if n.op == "call_function" and not is_view(n)]
    forward = {n for n in nodes if pass_of(n) == "forward"}
    costs = {
        n: float(data.draw(st.integers(0, 60), label=n.name))
        for n in nodes
        if n in forward and data.draw(st.booleans())
    }
    split = partition(joint, costs)
    cotangent = next(n for n in joint.graph.fx.nodes if Tag.MUST_BE_IN_BACKWARD in tags_of(n).flags)
    late = {cotangent}
    for n in joint.graph.fx.nodes:
        if any(i in late for i in n.all_input_nodes):
            late.add(n)
    outs = [v for s, v in zip(joint.graph.signature.outs, joint.graph.results, strict=True) if isinstance(s, Grad)]

    def is_kept_by_eager(n):
        return any(is_kept_by_eager(u) if is_view(u) else pass_of(u) == "backward" for u in n.users if u.op != "output")

    def price(saved):
        total, pending, seen = 0.0, list(outs), set()
        while pending:
            n = pending.pop()
            if not isinstance(n, torch.fx.Node) or n in seen:
                continue
            seen.add(n)
            if n.op == "placeholder":
                total += 1 if is_kept_by_eager(n) else math.inf
            elif n in saved:
                total += value_of(n).numel() * value_of(n).element_size() + 1
            else:
                total += costs.get(n, math.inf) if n in forward else 0
                pending += n.all_input_nodes
        return total

    result = joint.graph.results[0]
    may_be_saved = [n for n in nodes if n not in late and (n is not result or is_kept_by_eager(n))]
    best = min(price(set(s)) for k in range(len(may_be_saved) + 1) for s in itertools.combinations(may_be_saved, k))
    chosen = {n for n in nodes if n.name in split.kept}
    assert price(chosen) == best < math.inf
    assert {a.name for a in split.again} <= {n.name for n in costs}


def test_a_mask_is_saved_instead_of_the_float_it_comes_from():
    split = (
        fg.grad_compiled(lambda x: torch.where((x * 2) > 1, x.exp() * 0 + x * 3, -x).sum())
        .program(torch.randn(100))
        .partition
    )
    assert split.saved_bytes <= 200


def test_dropout_mask_is_drawn_in_forward_and_saved():
    program = fg.grad_compiled(lambda x: torch.nn.functional.dropout(x.exp(), 0.5).sum()).program(torch.randn(10))
    draws = [n for n in program.joint.graph.fx.nodes if "bernoulli" in n.name]
    assert len(draws) == 1
    assert tags_of(draws[0]).flags == Tag.MUST_SAVE | Tag.MUST_BE_IN_FORWARD
    assert "generator" in tags_of(draws[0]).reason(Tag.MUST_BE_IN_FORWARD)
    assert any("bernoulli" in n.name for n in program.partition.forward.fx.nodes)
    assert not any(n.op == "call_function" and "bernoulli" in n.name for n in program.partition.backward.fx.nodes)


def test_contradicting_tags_name_both_reasons():
    joint = fg.grad_compiled(lambda x: x.exp().sum()).program(torch.randn(3)).joint
    node = next(n for n in joint.graph.fx.nodes if n.name == "exp")
    tag(node, Tag.MUST_BE_IN_FORWARD, "reason one")
    with pytest.raises(fg.PartitionError, match=r"(?s)reason one.*reason two"):
        tag(node, Tag.MUST_BE_IN_BACKWARD, "reason two")
    assert Tag.MUST_BE_IN_BACKWARD not in tags_of(node).flags


def test_a_forward_value_that_needs_backward_is_an_error():
    joint = fg.value_and_grad_compiled(lambda x: x.exp().sum()).program(torch.randn(3)).joint
    tag_joint(joint)
    node = next(n for n in joint.graph.fx.nodes if n.name == "exp")
    tag(node, Tag.MUST_BE_IN_BACKWARD, "a test says so")
    with pytest.raises(fg.PartitionError, match=r"an output of the function needs it.*a test says so"):
        partition(joint)


def test_every_saved_value_has_a_reason_and_a_line():
    split = (
        fg.jit(lambda x, w: (x @ w).tanh().sin().sum())
        .program(torch.randn(3, 4, requires_grad=True), torch.randn(4, 2))
        .partition
    )
    assert split.saved and all(k.why for k in split.saved)
    assert all("test_partition.py" in k.where for k in split.saved if k.nbytes)
    assert "fewest bytes" in str(split)


def test_a_product_is_not_computed_twice_in_one_program():
    """Nobody writes to the parameters between the passes of one program: what is made of them alone is kept like
    anything else."""

    def f(w, x):
        h = x @ w
        return torch.where(h * 2 > 1, h.exp() * 0 + h * 3, -h).sum()

    split = fg.grad_compiled(f).program(torch.randn(8, 8), torch.randn(6, 8)).partition
    products = [
        n.name
        for half in (split.forward, split.backward)
        for n in half.fx.nodes
        if "mm" in n.name or "matmul" in n.name
    ]
    assert len(products) == len(set(products)) == 2


INDEX = torch.arange(64) % 3


@pytest.mark.parametrize(
    "f",
    [
        pytest.param(lambda x: x.sin().cumsum(0).square().sum(), id="a scan"),
        pytest.param(lambda x: torch.zeros(64, 8).index_add(0, INDEX, x.sin()).square().sum(), id="a scatter"),
    ],
)
def test_what_takes_a_loop_of_its_own_is_not_computed_again(f):
    """It fuses into nothing, so that computing it in backward is no few operations in the kernel that reads it."""
    split = fg.jit(f, backend="c").program(torch.rand(64, 8, requires_grad=True)).partition
    assert not split.again


@pytest.mark.parametrize("of", [lambda h: h.amax(1, keepdim=True), lambda h: h.topk(3).values[:, -1:]])
def test_a_mask_of_what_lies_beyond_its_own_elements_is_saved(of):
    def f(x):
        h = x.tanh().exp()
        return torch.where(h >= of(h), h, 0).sin().sum()

    x = torch.randn(20, 30, requires_grad=True)
    compiled = fg.jit(f)
    assert "compares with" in str(compiled.program(x).partition)
    torch.testing.assert_close(*(torch.autograd.grad(g(x), x)[0] for g in (compiled, f)))


def test_a_backward_pass_compares_a_value_with_itself():
    """As formulas of NaN do; the tags of what is compared asked for two values."""

    class Masked(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x.exp())
            return x * 2

        @staticmethod
        def backward(ctx, g):
            (t,) = ctx.saved_tensors
            return g * (t == t)

    x = torch.randn(5, requires_grad=True)
    (g,) = torch.autograd.grad(fg.jit(lambda x: (Masked.apply(x) * x).sum(), backend="c")(x), x)
    torch.testing.assert_close(g, 3 * x)


@pytest.mark.parametrize(
    "pick",
    [
        torch.max,
        lambda h: h.view(8, 5).amin(1),
        lambda h: torch.linalg.vector_norm(h, float("inf")),
    ],
    ids=["max", "amin", "norm"],
)
def test_what_is_compared_with_its_own_maximum_is_saved(pick):
    """Computed again by another kernel, it may differ by a rounding: then no element is the maximum."""

    def f(x):
        return (pick(x.tanh()).sum() * x)[1:].sin().sum()

    x = torch.randn(40, dtype=torch.float64, requires_grad=True)
    compiled = fg.jit(f)
    assert "is compared with" in str(compiled.program(x).partition)
    torch.testing.assert_close(*(torch.autograd.grad(g(x), x)[0] for g in (compiled, f)))


@pytest.mark.parametrize("transform", [torch.func.jacfwd, torch.func.jacrev, torch.func.hessian])
@pytest.mark.parametrize(
    "f", [lambda x: (x + 0j).sgn().abs().sum(), lambda x: (x + 1j).sgn().real.sin().sum()], ids=["abs", "real"]
)
def test_a_view_of_a_gradient_that_is_taken_after_its_backward_pass(f, transform):
    """The gradient is the real part of what the pass computes; at a level it is a result like any other."""
    x = torch.tensor([1.0, -2.0], dtype=torch.float64)
    torch.testing.assert_close(transform(fg.grad_compiled(f))(x), transform(torch.func.grad(f))(x))
