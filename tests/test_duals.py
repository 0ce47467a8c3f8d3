"""Compiled functions of the dual tensors of ``torch.autograd.forward_ad``, which autograd's own level may know, too."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves
from transformed import F64, jit

import funcgrad as fg

WEIGHT = torch.tensor([1.5, -0.5, 2.0], dtype=F64, requires_grad=True)


class Sine(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0].cos()

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * ctx.saved_tensors[0].cos()


@fg.custom_jvp
def doubled(x):
    return x.sin()


doubled.defjvp(lambda primals, tangents: (primals[0].sin(), 2 * tangents[0] * primals[0].cos()))


def without_grad(x):
    with torch.no_grad():
        found = x.sin()
    return found, x.cos()


def without_grad_at_all(x):
    with torch.no_grad():
        return x.sin()


def written(x):
    x.mul_(2)
    return x.sin()


def written_without_grad(x):
    with torch.no_grad():
        x.copy_(x.sin())
    return x * 2


def written_detached(x):
    x.detach().mul_(2)
    return x.sin()


FUNCTIONS = {
    "of a detached value": lambda x: x.detach().sin(),
    "one of several": lambda x: (x.detach().sin(), x.cos()),
    "of a constant": lambda x: (torch.ones(3, dtype=F64), x * 2),
    "a custom function of a detached value": lambda x: Sine.apply(x.detach()),
    "a custom rule of a detached value": lambda x: (doubled(x.detach()), x * 2),
    "a detached value": lambda x: (x.detach(), x),
    "of another leaf": lambda x: (WEIGHT * 2, x * 3),
    "of both": lambda x: Sine.apply(x) * WEIGHT + doubled(x),
    "a captured leaf": lambda x: {"exp": x.exp(), "others": [x, WEIGHT]},
    "under no_grad, and not": without_grad,
    "under no_grad": without_grad_at_all,
    "dropout": lambda x: F.dropout(x, 0.5) * x * WEIGHT,
    "views": lambda x: (x.view(-1), (x * WEIGHT)[1:]),
    "no number": lambda x: (x.sum() > 0, x * 2, torch.arange(3)),
    "a gradient inside": lambda x: torch.func.grad(lambda y: (y**3).sum())(x) * WEIGHT,
    "written": written,
    "written under no_grad": written_without_grad,
    "written detached": written_detached,
}


def found_of(f, tracked, tangent_tracked):
    """Values, tangents, and what autograd knows of each; gradients of values and tangents; numbers drawn."""
    torch.manual_seed(1)
    x = torch.tensor([0.3, -1.2, 0.8], dtype=F64, requires_grad=tracked)
    tangent = torch.tensor([1.0, 0.5, -2.0], dtype=F64, requires_grad=tangent_tracked)
    leaves = [leaf for leaf in (x, tangent, WEIGHT) if leaf.requires_grad]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x * 1, tangent * 1)
        parts = [part for out in (*tree_leaves(f(dual)), dual) for part in forward_ad.unpack_dual(out)]
        gradients = []
        for i, part in enumerate(parts):
            if part is not None and part.requires_grad:
                weighted = (part * torch.arange(1.0, part.numel() + 1, dtype=F64)).sum()
                first = torch.autograd.grad(weighted, leaves, create_graph=True, materialize_grads=True)
                gradients.append((i, *first))
                twice = sum((g * g + leaf * 0).sum() for g, leaf in zip(first, leaves, strict=True))
                gradients.append(torch.autograd.grad(twice, leaves, materialize_grads=True, retain_graph=True))
        known = [None if part is None else part.requires_grad for part in parts]
    return parts, known, gradients, torch.rand(2)


@pytest.mark.sweep(3)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("tracked", [False, True])
@pytest.mark.parametrize("tangent_tracked", [False, True])
def test_values_and_tangents_are_those_of_eager_pytorch(name, tracked, tangent_tracked):
    f = FUNCTIONS[name]
    found, wanted = (found_of(g, tracked, tangent_tracked) for g in (jit(f), f))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ask", [lambda x: x.requires_grad, lambda x: x.is_leaf, lambda x: x.grad_fn is None])
@pytest.mark.parametrize("tracked", [False, True])
def test_what_a_function_asks_of_autograd(ask, tracked):
    def f(x):
        return x.sin() * 2 if ask(x) else x.cos() * 3

    found = []
    for call in (f, fg.jit(f)):
        with forward_ad.dual_level():
            x = torch.linspace(0, 1, 3).requires_grad_(tracked)
            found.append(forward_ad.unpack_dual(call(forward_ad.make_dual(x, torch.ones(3)))))
    torch.testing.assert_close(tuple(found[0]), tuple(found[1]))


def test_what_it_asks_of_what_it_computes():
    def f(x):
        y = x.sin()
        return y * 2 if y.requires_grad else y * 3

    with forward_ad.dual_level():
        x = forward_ad.make_dual(torch.ones(3, requires_grad=True), torch.ones(3))
        with pytest.raises(fg.UnsupportedTransformError, match="asks whether a tensor that it computes requires grad"):
            fg.jit(f)(x)
        torch.testing.assert_close(fg.jit(f)(x.detach()), f(x.detach()))
