"""The order of calls: the same numbers, and less alive at a time, as it is measured."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from functions import CASES
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.backends.fused import CBackend
from funcgrad.backends.peak import predicted_peak
from funcgrad.graphs import has_effect
from funcgrad.partition.order import ordered
from funcgrad.trees import flatten

PRODUCTS = torch.ops.aten.mm.default, torch.ops.aten.addmm.default


def perceptron(ws, x):
    for w in ws:
        x = F.gelu(x @ w)
    return x.square().mean()


def in_parts(ws, x, parts=8):
    return sum(perceptron(ws, part) for part in x.chunk(parts)) / parts


def weights(n, width):
    torch.manual_seed(0)
    return [torch.randn(width, width) / width**0.5 for _ in range(n)]


# ── laws ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def same_calls_same_numbers(graph, *values):
    """The calls of a graph and those of the graph in order are the same, each after what it needs, effects in their
    order."""
    new = ordered(graph)
    assert {n.name for n in new.fx.nodes} == {n.name for n in graph.fx.nodes}
    assert [n.name for n in new.fx.nodes if has_effect(n)] == [n.name for n in graph.fx.nodes if has_effect(n)]
    new.fx.lint()
    found = []
    for one in (graph, new):
        torch.manual_seed(0)
        found.append(one.run(*values))
    for ours, theirs in zip(*found, strict=True):
        assert torch.equal(ours, theirs) if isinstance(ours, torch.Tensor) else ours == theirs


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CASES)
def test_every_case(name):
    f, make = CASES[name]
    args = make()
    program = fg.grad_compiled(f).program(*args)
    tensors = [leaf.detach().clone() for leaf in flatten(args)[0] if isinstance(leaf, torch.Tensor)]
    if len(tensors) == len(program.joint.signature.ins):
        same_calls_same_numbers(program.joint.graph, *tensors)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 5), st.sampled_from(["mm", "sin", "add", "dropout", "head"])),
        max_size=14,
    )
)
def test_random_graphs(steps):
    """Branches that are added up, and draws among them."""

    def f(ws, x):
        found, loss = [x, x.sin()], 0.0
        for i, j, kind in steps:
            a, b = found[i % len(found)], found[j % len(found)]
            if kind == "head":
                loss = loss + a.square().mean()
            else:
                found.append(
                    {
                        "mm": lambda: a @ ws[j % 3],
                        "sin": lambda: b.sin(),
                        "add": lambda: a + b,
                        "dropout": lambda: F.dropout(a, 0.5),
                    }[kind]()
                )
        return loss + found[-1].mean()

    ws, x = weights(3, 8), torch.randn(4, 8)
    program = fg.grad_compiled(f, argnums=(0, 1)).program(ws, x)
    same_calls_same_numbers(program.joint.graph, *ws, x)


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_parts_of_a_batch_come_one_after_the_other():
    """The gradient of a mean over parts takes the memory of one part, and of the gradients: nothing is computed
    again."""
    ws, x = weights(6, 64), torch.randn(2048, 64)
    compiled, whole = fg.grad_compiled(in_parts), fg.grad_compiled(perceptron)
    one = whole.memory(ws, x.chunk(8)[0]).measured_peak
    found = compiled.memory(ws, x)
    assert found.measured_peak <= 1.02 * (one + sum(w.nbytes for w in ws))
    assert found.measured_peak <= found.predicted_peak * 1.02
    assert 3 * found.measured_peak < whole.memory(ws, x).measured_peak
    products = [n for k in compiled.program(ws, x).kernels for n in k.graph.fx.nodes if n.target in PRODUCTS]
    assert len(products) == 8 * (3 * 6 - 1), "forward, and both products of backward, but for the gradient of x"
    for ours, theirs in zip(compiled(ws, x), torch.func.grad(in_parts)(ws, x), strict=True):
        assert_rounded(ours, theirs)


def test_branches():
    def f(ws, x):
        return sum((x @ w).sin().square().sum() for w in ws)

    ws, x = weights(8, 64), torch.randn(512, 64)
    for backend in ("c", "aten"):
        compiled = fg.grad_compiled(f, backend=backend)
        assert compiled.memory(ws, x).measured_peak < 0.5 * 8 * x.nbytes
        for ours, theirs in zip(compiled(ws, x), torch.func.grad(f)(ws, x), strict=True):
            assert_rounded(ours, theirs)


@pytest.mark.parametrize("f", [in_parts, perceptron])
def test_no_order_is_worse_than_that_of_autograd(f):
    program = fg.grad_compiled(f, backend="c").program(weights(3, 32), torch.randn(64, 32))
    backend = CBackend()
    assert predicted_peak(program.schedule) <= predicted_peak([backend.schedule(backend.lower(program.joint.graph))])


def test_draws_keep_their_order():
    def f(ws, x):
        return sum(F.dropout(part @ w, 0.5).square().sum() for part, w in zip(x.chunk(4), ws, strict=True))

    ws, x = weights(4, 32), torch.randn(64, 32)
    torch.manual_seed(3)
    expected = torch.func.grad(f)(ws, x)
    torch.manual_seed(3)
    for ours, theirs in zip(fg.grad_compiled(f)(ws, x), expected, strict=True):
        assert_rounded(ours, theirs)
