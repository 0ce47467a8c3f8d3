"""Graphs rewritten for the library: results are what they were, in the same layout; and what is rewritten is."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from closeness import assert_rounded
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils._pytree import tree_leaves

import funcgrad as fg
from funcgrad.memory.steps import Allocate, Call
from funcgrad.passes.library import for_library

aten = torch.ops.aten


def targets(program):
    return Counter(n.target for k in program.kernels for n in k.graph.fx.nodes)


def agree(f, *args):
    """The program of the gradient of ``f``; its results, also run node by node, are eager PyTorch's in values and
    strides."""
    compiled = fg.grad_compiled(f, argnums=tuple(range(len(args))), backend="c")
    program = compiled.program(*args)
    expected = torch.func.grad(f, argnums=tuple(range(len(args))))(*args)
    found = compiled(*args)
    for ours, theirs in zip(found, expected, strict=True):
        assert_rounded(ours, theirs)
        assert ours.stride() == theirs.stride()
    (kernels,) = program.kernels
    joint = program.joint.graph
    for ours, theirs in zip(for_library(joint).run(*args), joint.run(*args), strict=True):
        assert_rounded(ours, theirs)
        assert ours.stride() == theirs.stride()
    assert for_library(kernels.graph).fx.nodes.__len__() == len(kernels.graph.fx.nodes), (
        "rewriting again changes nothing"
    )
    return program


@settings(max_examples=6, deadline=None)
@given(
    st.integers(1, 3), st.integers(1, 5), st.integers(1, 5), st.integers(3, 9), st.integers(1, 3), st.integers(1, 2),
    st.integers(0, 1),
    st.sampled_from(["max", "mean", "none"]), st.booleans(),
)  # fmt: skip
def test_convolutions(n, channels, out, side, kernel, stride, padding, pool, grouped):
    torch.manual_seed(0)
    groups = channels if grouped else 1
    between = out * groups
    x, w1, b1 = (
        torch.randn(n, channels, side, side),
        torch.randn(between, channels // groups, kernel, kernel),
        torch.randn(between),
    )
    w2 = torch.randn(3, between, 1, 1)

    def f(x, w1, b1, w2):
        h = F.conv2d(x, w1, b1, stride=stride, padding=padding, groups=groups)
        h = (
            F.max_pool2d(h.relu(), 2, 1, 1)
            if pool == "max"
            else F.avg_pool2d(h, 2, 1, 1)
            if pool == "mean"
            else h.tanh()
        )
        return (F.conv2d(h, w2).flatten(1) * 0.1).sin().sum()

    program = agree(f, x, w1, b1, w2)
    laid_out = [n for k in program.kernels for n in k.graph.fx.nodes if n.target is aten.convolution.default]
    assert all(n.args[0].meta["val"].is_contiguous(memory_format=torch.channels_last) for n in laid_out)


def test_half_precision_and_other_convolutions_stay_what_they_are():
    def f(x, w, v):
        return F.conv_transpose2d(F.conv1d(x, w)[None], v).sum()

    agree(f, torch.randn(3, 4, 8), torch.randn(5, 4, 3), torch.randn(3, 2, 2, 2))


def recurrent(x, w, u, v):
    h = torch.zeros(x.shape[1], u.shape[0])
    for step in x:
        h = torch.tanh(step @ w + h @ u)
    return (h @ v).square().mean()


@settings(max_examples=4, deadline=None)
@given(st.integers(3, 6), st.integers(16, 33), st.integers(60, 70))
@example(11, 40, 60)
def test_a_recurrent_net(steps, batch, hidden):
    torch.manual_seed(0)
    x, w, u = torch.randn(steps, batch, 30) * 0.1, torch.randn(30, hidden) * 0.1, torch.randn(hidden, hidden) * 0.1
    program = agree(recurrent, x, w, u, torch.randn(hidden, 50) * 0.1)
    found = targets(program)
    products, added = found[aten.mm.default], found[aten.addmm.default]
    parts = math.ceil(steps / math.ceil(128 / batch))  # of some 128 rows
    forward = parts + steps + 1  # x @ w; h @ u; h @ v
    together = steps >= 4  # what a matrix gets from every step: of w one product for each part, of u another
    of_matrices = 2 * parts if together else 2 * steps
    backward = 2 + of_matrices + steps + (steps - 1)  # of v and the last h; of w and u; of x; of each h but the first
    assert products + added == forward + backward
    assert added == 2 * ((parts if together else steps) - 1)
    assert found[aten.concat.default] == (2 * parts if together else 0)  # of hidden states; of what comes in for them
    into = [s for schedule in program.schedule for s in schedule.steps if isinstance(s, Call) and s.into is not None]
    assert len(into) == added


@settings(max_examples=4, deadline=None)
@given(st.integers(4, 11), st.integers(16, 40), st.integers(50, 70))
@example(11, 40, 60)
def test_rows_of_all_steps_are_made_one_below_the_other(steps, batch, hidden):
    """Nothing is copied to where the library reads all of it; and what lies there is left alone until then, whoever
    else reads it."""

    def gated(x, w, u, b):
        h = torch.zeros(x.shape[1], u.shape[0])
        for step in x:
            i, g = (step @ w + h @ u + b).chunk(2, -1)
            h = i.sigmoid() * g.tanh()
        return h.square().mean()

    torch.manual_seed(0)
    x, w, u = (
        torch.randn(steps, batch, 30) * 0.1,
        torch.randn(30, 2 * hidden) * 0.1,
        torch.randn(hidden, 2 * hidden) * 0.1,
    )
    program = agree(gated, x, w, u, torch.randn(2 * hidden) * 0.1)
    assert targets(program)[aten.concat.default] > 0
    steps_done = [s for schedule in program.schedule for s in schedule.steps]
    assert not any(isinstance(s, Call) and s.node.target is aten.concat.default for s in steps_done)
    assert any(isinstance(s, Allocate) and s.at for s in steps_done)


@pytest.mark.parametrize("steps", [4, 6, 13])
@pytest.mark.parametrize("cell", [torch.nn.LSTMCell, torch.nn.GRUCell, torch.nn.RNNCell])
def test_a_sum_of_fewer_steps_reads_what_a_sum_of_all_has_stacked(cell, steps):
    """The first state is zeros: the gradient of its matrix has a term less, and its part is ready before the stack is
    that it reads."""

    def f(x):
        state = torch.zeros(x.shape[1], 64)
        state = (state, state) if cell is torch.nn.LSTMCell else state
        for step in x:
            state = module(step, state)
        return tree_leaves(state)[0].square().mean()

    torch.manual_seed(0)
    module, x = cell(32, 64), torch.randn(steps, 16, 32)
    f(x).backward()
    expected = [p.grad for p in module.parameters()]
    module.zero_grad()
    fg.jit(f, backend="c")(x).backward()
    for p, gradient in zip(module.parameters(), expected, strict=True):
        assert_rounded(p.grad, gradient)


def test_steps_done_together_do_not_keep_what_all_steps_need():
    """No more is kept than for backward: neither ``x @ w`` of all steps until the last, nor the gradients of all
    until the first."""
    steps, batch, hidden = 40, 64, 128
    x, w, u = torch.randn(steps, batch, 30) * 0.1, torch.randn(30, hidden) * 0.1, torch.randn(hidden, hidden) * 0.1
    kept = steps * batch * hidden * 4
    memory = fg.grad_compiled(recurrent, argnums=(1, 2)).memory(x, w, u, torch.randn(hidden, 50) * 0.1)
    assert memory.measured_peak < 1.25 * kept


@settings(max_examples=4, deadline=None)
@given(st.integers(60, 90), st.integers(2, 5), st.integers(9, 17))
def test_what_is_made_for_products_of_batches_lies_batch_by_batch(n, batches, d):
    """``x - mean`` is made in all places of its row; the products read it batch by batch, forward and backward."""

    def f(x, mean, root):
        z = torch.einsum("kij,nkj->nki", root, x[:, None] - mean)
        return z.square().sum(-1).sigmoid().sum()

    program = agree(f, torch.randn(n, d), torch.randn(batches, d), torch.randn(batches, d, d) * 0.1)
    (kernels,) = program.kernels
    products = [node for node in kernels.graph.fx.nodes if node.target is aten.bmm.default]
    assert len(products) == 3
    operands = [a.meta["val"] for node in products for a in node.args]
    assert all(v.is_contiguous() or v.mT.is_contiguous() for v in operands)


def test_a_view_of_batches_that_says_how_they_lie():
    def f(x, w):
        y = (x * 2).transpose(0, 1)
        return torch.bmm(torch.as_strided(y, (3, 64, 48), (48, 144, 1)), w).sum() + torch.bmm(y, w).sigmoid().sum()

    agree(f, torch.randn(64, 3, 48), torch.randn(3, 48, 40))


def test_what_others_read_too_is_made_as_it_was():
    def f(x, mean, root):
        away = x[:, None] - mean
        return torch.einsum("kij,nkj->nki", root, away).sigmoid().sum() + away.amax(1).sum()

    assert targets(agree(f, torch.randn(70, 12), torch.randn(3, 12), torch.randn(3, 12, 12)))[aten.clone.default] == 0


def test_a_sum_of_transposed_products_that_is_added_to():
    def f(a, b, c, d):
        first = (a @ b).t() + (c @ d).t()
        second = first + (b @ c).t()
        return second + d, first.sin(), second.sin()

    args = [torch.randn(40, 40) for _ in range(4)]
    compiled = fg.jit(f, backend="c")
    for ours, theirs in zip(compiled(*args), f(*args), strict=True):
        assert_rounded(ours, theirs)


def test_a_sum_whose_terms_are_returned_is_left_alone():
    def f(a, b, c):
        first = a @ b
        return first, first + a @ c

    args = [torch.randn(40, 40) for _ in range(3)]
    compiled = fg.jit(f, backend="c")
    for ours, theirs in zip(compiled(*args), f(*args), strict=True):
        assert_rounded(ours, theirs)
    assert targets(compiled.program(*args))[aten.addmm.default] == 0


def test_one_product_twice_is_not_added_to_itself():
    def f(a, b):
        first = a @ b
        return (first + first).sum()

    agree(f, torch.randn(40, 40), torch.randn(40, 40))


def test_zeros_without_memory():
    """What forward derivatives begin with is a tensor that has no address."""
    w = torch.randn(2, 2)

    def f(z):
        return torch.func.hessian(lambda r: (w @ r).sin().sum())(z).sum()

    z = torch.randn(2)
    assert_rounded(fg.grad_compiled(f, backend="c")(z), torch.func.grad(f)(z))


def residual(ws, x):
    for w in ws:
        x = F.relu(F.batch_norm(F.conv2d(x, w, padding=1), None, None, training=True)) + x
    return F.cross_entropy(F.max_pool2d(x, 2).flatten(1)[:, :10], torch.arange(len(x)) % 10), x


@pytest.mark.parametrize("dynamic", [None, True])
def test_images_lie_channels_last_from_the_first_convolution_on(dynamic):
    ws = [torch.randn(16, 16, 3, 3) / 10 for _ in range(3)]
    compiled = fg.value_and_grad_compiled(residual, has_aux=True, argnums=(0, 1), dynamic=dynamic)
    for n in (4, 6, 9):
        x = torch.randn(n, 16, 12, 12)
        (loss, out), (dws, dx) = compiled(ws, x)
        grads, (expected, expected_out) = torch.func.grad_and_value(residual, has_aux=True, argnums=(0, 1))(ws, x)
        assert_rounded([loss, out], [expected, expected_out])
        for found, wanted in zip([*dws, dx, out], [*grads[0], grads[1], expected_out], strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
            assert found.stride() == wanted.stride()
    graph = compiled.program(ws, x).joint.graph.fx
    turned = [n for n in graph.nodes if n.kwargs.get("memory_format") == torch.channels_last]
    assert len(turned) == 1  # the images that come in: what is made of them lies so


def test_images_that_are_drawn_for_lie_as_in_eager_pytorch():
    """Eager PyTorch draws in the order of memory."""

    def net(ws, x):
        return F.dropout(F.conv2d(F.conv2d(x, ws[0]), ws[1]), 0.5).sum()

    ws, x = [torch.randn(4, 4, 3, 3) for _ in range(2)], torch.randn(2, 4, 8, 8)
    torch.manual_seed(0)
    found = fg.value_and_grad_compiled(net)(ws, x)
    torch.manual_seed(0)
    grads, value = torch.func.grad_and_value(net)(ws, x)
    assert_rounded(found, (value, grads))


def test_images_that_are_returned_as_they_came_in_stay_where_they_are():
    def net(ws, x):
        return F.conv2d(F.conv2d(x, ws[0]), ws[1]).sum(), x.detach().view(2, -1)

    ws, x = [torch.randn(4, 4, 3, 3) for _ in range(2)], torch.randn(2, 4, 8, 8)
    (value, look), grads = fg.value_and_grad_compiled(net, has_aux=True)(ws, x)
    assert look.data_ptr() == x.data_ptr()
    expected, (expected_value, _) = torch.func.grad_and_value(net, has_aux=True)(ws, x)
    assert_rounded([value, grads], [expected_value, expected])


def test_what_has_no_tangent_is_not_multiplied():
    """Forward mode over a function of constants, of which PyTorch writes out a tangent that is nothing."""

    def of_both(w, x):
        return torch.tanh(x @ w) @ w

    def derivative(w, direction, x):
        return torch.func.jvp(lambda w: of_both(w, x), (w,), (direction,))

    def products(f, *args):
        compiled = fg.jit(f, backend="c")
        for ours, theirs in zip(tree_leaves(compiled(*args)), tree_leaves(f(*args)), strict=True):
            assert_rounded(ours, theirs)
            assert ours.stride() == theirs.stride()
        found = targets(compiled.program(*args))
        return found[aten.mm.default] + found[aten.addmm.default]

    w, direction, x = torch.randn(3, 40, 40)
    assert products(derivative, w, direction, x) == 5  # two of values, three of tangents
    assert products(lambda w: (torch.zeros(()).expand(40, 40) + 1) @ w, w) == 1
    of_any_size = fg.jit(lambda x, w: x + torch.zeros(()).expand(x.shape[0], 40) @ w, backend="c", dynamic=True)
    for rows in (30, 50):  # one program
        assert_rounded(of_any_size(torch.ones(rows, 40), w), torch.ones(rows, 40))
    assert of_any_size.cache_info().misses == 1
