"""Library calls that wait, so that what they read is computed beside what another kernel computes of the same
memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.backends.peak import predicted_peak
from funcgrad.graphs import has_effect
from funcgrad.loops import fuse
from funcgrad.loops.ir import Kernel
from funcgrad.loops.lower import lower
from funcgrad.loops.order import in_turn

ACTIVATIONS = (
    F.gelu,
    F.silu,
    torch.tanh,
    lambda h: F.layer_norm(h, h.shape[-1:]),
    lambda h: F.softmax(h, -1) * h,
    F.mish,
)


def layers(acts, skips):
    def loss(ws, x):
        for act, skip, w in zip(acts, skips, ws, strict=True):
            x = act(x) @ w + x if skip else act(x @ w)
        return x.square().mean()

    return loss


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(ACTIVATIONS), st.booleans()), min_size=1, max_size=5), st.booleans())
def test_gradients_are_those_of_eager(steps, halves):
    loss = layers(*zip(*steps, strict=True))
    torch.manual_seed(0)
    ws = [(torch.randn(24, 24, dtype=torch.float64) * 0.2).requires_grad_() for _ in steps]
    x = torch.randn(16, 24, dtype=torch.float64)
    expected = torch.autograd.grad(loss(ws, x), ws)
    got = torch.autograd.grad(fg.jit(loss)(ws, x), ws) if halves else fg.grad_compiled(loss)(ws, x)
    assert_rounded(list(got), list(expected))


def perceptron(ws, x):
    for w in ws:
        x = F.gelu(x @ w)
    return x.square().mean()


def wide(n=64):
    return [(torch.randn(n, n) / n**0.5).requires_grad_() for _ in range(4)], torch.randn(4 * n, n)


def test_an_activation_and_its_derivative_are_one_kernel():
    backward = fg.jit(perceptron, policy="dots_saveable").program(*wide()).kernels[1]
    together = [set(k.computes) for k in backward.steps if isinstance(k, Kernel)]
    assert sum(any(n.startswith("gelu_backward") for n in names) and len(names) > 1 for names in together) == 3


def test_calls_wait_for_kernels_and_not_for_their_own_results():
    graph = fg.jit(perceptron, policy="dots_saveable").program(*wide()).partition.backward
    lowering = lower(graph)
    order, place = in_turn(lowering), {n: i for i, n in enumerate(graph.fx.nodes)}
    assert sorted(order, key=place.__getitem__) == sorted((*lowering.externs, *lowering.checks), key=place.__getitem__)
    assert [place[n] for n in order] != sorted(place[n] for n in order)
    for i, call in enumerate(order):
        assert not any(call in ancestors(later) for later in order[:i])


def test_a_call_that_is_waited_for_does_not_wait():
    """Else what stands between them would come before what it reads."""

    def f(z, g, z2, w, y):
        a, b = torch.sin(z) @ g, torch.sin(z2) @ w
        first = b * z
        between = a @ y
        c = y @ y
        return between, first, c * z2, F.embedding((a.abs() * 100).long()[0] % 7, y)

    args = [torch.randn(128, 128) for _ in range(5)]
    assert_rounded(list(fg.jit(f)(*args)), list(f(*args)))


def ancestors(node):
    found, pending = set(), [node]
    while pending:
        for n in pending.pop().all_input_nodes:
            if n not in found:
                found.add(n)
                pending.append(n)
    return found


@pytest.mark.parametrize("halves", [True, False])
def test_draws_keep_their_order(halves):
    def loss(ws, x):
        for w in ws:
            x = F.dropout(F.gelu(x @ w), 0.5)
        return x.square().mean()

    ws, x = wide()
    torch.manual_seed(3)
    expected = torch.autograd.grad(loss(ws, x), ws)
    compiled = fg.jit(loss) if halves else fg.grad_compiled(loss)
    for graph in [k.graph for k in compiled.program(ws, x).kernels]:
        effects = [n for n in in_turn(lower(graph)) if has_effect(n)]
        assert effects == [n for n in graph.fx.nodes if n in effects]
    torch.manual_seed(3)
    got = torch.autograd.grad(compiled(ws, x), ws) if halves else compiled(ws, x)
    assert_rounded(list(got), list(expected))


@pytest.mark.parametrize("budget", [None, 0.8])
def test_waiting_takes_no_more_memory(budget, monkeypatch):
    """What the kernel writes takes the place of what it reads."""
    ws, x = wide(128)
    waits = predicted_peak(fg.jit(perceptron, memory_budget=budget).program(ws, x).schedule)
    monkeypatch.setattr(fuse, "in_turn", lambda lowering: sorted((*lowering.externs, *lowering.checks)))
    assert waits <= predicted_peak(fg.jit(perceptron, memory_budget=budget).program(ws, x).schedule)
