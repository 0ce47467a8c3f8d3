"""What leaves get in captured backward passes: the memory of a gradient, as in eager PyTorch."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import funcgrad as fg
from funcgrad.engine import program
from funcgrad.engine.region import reset


@pytest.fixture(autouse=True)
def _fresh():
    reset()


def run(hook, contexts=(contextlib.nullcontext, fg.compiled_autograd, fg.compiled_autograd)):
    """The leaf, after a backward pass with a hook on its gradient, in eager PyTorch and captured."""
    for context in contexts:
        leaf = torch.linspace(0.1, 1, 12).reshape(3, 4).requires_grad_()
        leaf.register_hook(hook)
        with context():
            leaf.exp().sum().backward()
        yield leaf


def test_a_gradient_that_a_hook_made_and_nobody_keeps_is_not_copied():
    at = []

    def hook(g):
        made = g * 2
        at.append(made.data_ptr())
        return made

    for leaf in run(hook):
        assert leaf.grad.data_ptr() == at.pop()
        torch.testing.assert_close(leaf.grad, 2 * leaf.detach().exp())


KEPT = []
KEEPING = {
    "itself": lambda made: KEPT.append(made) or made,
    "its memory": lambda made: KEPT.append(made.detach()) or made,
    "a view": lambda made: KEPT.append(made) or made.view(3, 4),
    "in a graph": lambda made: KEPT.append(torch.enable_grad()(lambda: made.requires_grad_().sin())()) or made,
}


@pytest.mark.parametrize("how", KEEPING)
def test_a_gradient_that_a_hook_keeps_is_copied(how):
    for leaf in run(lambda g: KEEPING[how](g * 2), [fg.compiled_autograd] * 2):
        expected = 2 * leaf.detach().exp()
        kept = KEPT.pop()
        with torch.no_grad():
            kept.fill_(7.0)
        torch.testing.assert_close(leaf.grad, expected)
        assert not leaf.grad.requires_grad


def test_a_gradient_that_a_hook_made_with_a_history_has_none():
    def hook(g):
        with torch.enable_grad():
            return g.detach().requires_grad_() * 2

    for leaf in run(hook):
        assert leaf.grad.grad_fn is None
        torch.testing.assert_close(leaf.grad, 2 * leaf.detach().exp())


def test_a_gradient_that_lies_otherwise_than_its_leaf_is_laid_out():
    for leaf in run(lambda g: (g * 2).t().contiguous().t()):
        assert leaf.grad.stride() == leaf.stride()


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        KEPT.append(None if g is None else g.tolist())
        return g


class Asked(Doubled):
    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(False)
        return x * 2


@pytest.mark.parametrize("function", [Doubled, Asked])
@pytest.mark.filterwarnings("ignore")
def test_a_custom_function_behind_a_hook_that_gives_none_is_given_zeros_if_it_did_not_say_otherwise(function):
    found = []
    for context in (contextlib.nullcontext, fg.compiled_autograd, fg.compiled_autograd):
        leaf = torch.ones(2, requires_grad=True)
        y = function.apply(leaf)
        y.grad_fn.register_prehook(lambda gs: (None,))
        with context():
            y.sum().backward()
        found.append((KEPT.pop(), None if leaf.grad is None else leaf.grad.tolist()))
    assert found == [found[0]] * 3
    assert found[0][0] == (None if function is Asked else [0.0, 0.0])


@pytest.mark.parametrize("context", [contextlib.nullcontext, fg.compiled_autograd])
@pytest.mark.filterwarnings("ignore")
def test_a_function_that_is_first_compiled_inside_a_checkpoint_saves_there_what_it_saves_later(context):
    f = fg.jit(lambda x, w: torch.tanh(x @ w))
    packed = []
    for _ in range(2):
        w, x = torch.full((4, 4), 0.1, requires_grad=True), torch.ones(2, 4, requires_grad=True)
        with context():
            checkpoint(lambda x, w=w: f(x, w).sin(), x, use_reentrant=False).sum().backward()
        expected = torch.autograd.grad((x @ w).tanh().sin().sum(), (x, w))
        torch.testing.assert_close((x.grad, w.grad), expected)
    g = fg.jit(lambda x: (x.sin() * x).exp())
    for _ in range(2):
        packed.append(0)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: (packed.append(packed.pop() + 1), t)[1], lambda t: t):
            g(torch.ones(3, requires_grad=True))
    assert packed[0] == packed[1] > 0


def test_so_many_programs_of_a_graph_are_kept(monkeypatch):
    monkeypatch.setattr(program, "_AT_MOST", 3)
    with fg.compiled_autograd(backend="aten", dynamic=False) as region:
        for size in (2, 3, 4, 5, 6, 6, 2):
            leaf = torch.ones(size, requires_grad=True)
            leaf.exp().sum().backward()
            torch.testing.assert_close(leaf.grad, leaf.detach().exp())
    (captured,) = region.captures
    assert len(captured.programs) == 3
    assert region.compiles == 6  # that of the first size was gone


def _embedding(log, leaf_hook=None, after=None, node_hook=None, tied=False, bag=False):
    torch.manual_seed(0)
    make = torch.nn.EmbeddingBag if bag else torch.nn.Embedding
    embedding, linear = make(10, 4, sparse=True), torch.nn.Linear(4, 4)
    weight = embedding.weight
    if leaf_hook is not None:
        weight.register_hook(lambda g: leaf_hook(log, g))
    if after is not None:
        weight.register_post_accumulate_grad_hook(lambda p: after(log, p))

    def loss(rows):
        found = embedding(rows[None] if bag else rows)
        if node_hook is not None:
            found.grad_fn.register_hook(lambda made, given: log.append([g.layout for g in (*made, *given)]))
        return (linear(found) * (embedding(rows + 1) if tied else linear(found))).sum()

    return [weight, *linear.parameters()], loss


SPARSE = {
    "alone": {},
    "a hook that scales it": {"leaf_hook": lambda log, g: (log.append(g.layout), 2 * g)[1]},
    "a hook after it": {"after": lambda log, p: log.append((p.grad.layout, p.grad._nnz()))},
    "a step in backward": {"after": lambda log, p: torch.optim.SparseAdam([p]).step()},
    "a hook at its node": {"node_hook": True},
    "two of one leaf": {"tied": True},
    "of a bag": {"bag": True},
}


@pytest.mark.parametrize("case", SPARSE.values(), ids=SPARSE.keys())
@pytest.mark.parametrize("adds_up", [False, True])
def test_a_sparse_gradient_goes_to_its_leaf_in_one_call_of_a_compiled_pass(case, adds_up):
    def steps(context):
        log, tensors = [], []
        leaves, loss = _embedding(log, **case)
        for i in range(6):
            for p in leaves:
                p.grad = p.grad if adds_up else None
            value = loss(torch.tensor([1, 2, 3, 1 + i]))
            with context() as region:
                value.backward()
            log.append([p.grad.layout for p in leaves])
            tensors += [(p.grad.to_dense(), p.detach().clone()) for p in leaves]
        return log, tensors, region

    wanted_log, wanted, _ = steps(contextlib.nullcontext)
    found_log, found, region = steps(fg.compiled_autograd)
    torch.testing.assert_close(found, wanted)
    assert found_log == wanted_log
    assert [e.what for e in region.events] == ["ran"], region.explain()


def test_a_sparse_gradient_that_is_returned_is_no_result_of_a_program():
    leaves, loss = _embedding([])
    for _ in range(3):
        with fg.compiled_autograd() as region:
            found = torch.autograd.grad(loss(torch.tensor([1, 2, 1])), leaves)
        assert [g.layout for g in found] == [torch.sparse_coo, torch.strided, torch.strided]
    assert "a sparse gradient is returned" in region.explain()
