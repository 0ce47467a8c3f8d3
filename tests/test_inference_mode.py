"""Transforms in inference mode, of which their results do not depend: torch.func leaves it inside of a transform (2.13;
2.11 gives zeros)."""

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

import funcgrad as fg

func = torch.func
W = torch.randn(4, 4)
X = torch.randn(6, 4)


class Tripled(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(a):
        return a.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0] * 3


def functions():
    """Each call makes others: nobody has compiled them outside."""
    weight = nn.Parameter(W.clone())

    @fg.custom_vjp
    def ruled(a):
        return a.exp()

    ruled.defvjp(lambda a: (a.exp(), a), lambda a, g: (g * a.exp() * 5,))
    return {
        "captured": lambda a: (a @ W).sin().sum(),
        "parameter": lambda a: (a @ weight).sin().square().sum(),
        "custom Function": lambda a: Tripled.apply(a).sum(),
        "custom_vjp": lambda a: ruled(a).sum(),
        "asks for the mode": lambda a: a.sin().sum() * (2 if torch.is_inference_mode_enabled() else 1),
        "asks for grad mode": lambda a: a.sin().sum() * (2 if torch.is_grad_enabled() else 1),
    }


def of_vector(f):
    return lambda a: torch.stack([f(a), f(2 * a)])


TRANSFORMS = {
    "grad": (fg.grad_compiled, func.grad),
    "grad_and_value": (fg.grad_and_value_compiled, func.grad_and_value),
    "grad of grad": (
        lambda f: fg.grad_compiled(lambda a: fg.grad_compiled(f)(a).square().sum()),
        lambda f: func.grad(lambda a: func.grad(f)(a).square().sum()),
    ),
    "grad in jit": (lambda f: fg.jit(fg.grad_compiled(f)), func.grad),
    "torch.func's in jit": (lambda f: fg.jit(func.grad(f)), func.grad),
    "torch.func's of jit": (lambda f: func.grad(fg.jit(f)), func.grad),
    "vjp": (
        lambda f: lambda a: fg.vjp_compiled(f, a)[1](torch.ones(())),
        lambda f: lambda a: func.vjp(f, a)[1](torch.ones(())),
    ),
    "jacrev": (lambda f: fg.jacrev_compiled(of_vector(f)), lambda f: func.jacrev(of_vector(f))),
    "hessian": (fg.hessian_compiled, func.hessian),
    "vmap of grad": (lambda f: fg.vmap_compiled(fg.grad_compiled(f)), lambda f: func.vmap(func.grad(f))),
    "torch.func's vmap of grad": (lambda f: func.vmap(fg.grad_compiled(f)), lambda f: func.vmap(func.grad(f))),
}
FORWARD = {
    "jvp": (lambda f: lambda a: fg.jvp_compiled(f, (a,), (a,)), lambda f: lambda a: func.jvp(f, (a,), (a,))),
    "jvp in jit": (
        lambda f: fg.jit(lambda a: func.jvp(f, (a,), (a,))),
        lambda f: lambda a: func.jvp(f, (a,), (a,)),
    ),
    "jacfwd": (fg.jacfwd_compiled, func.jacfwd),
    "linearize": (
        lambda f: lambda a: fg.linearize_compiled(f, a)[1](a),
        lambda f: lambda a: func.jvp(f, (a,), (a,))[1],
    ),
}
CASES = [("grad", f) for f in functions()] + [(t, "parameter") for t in (TRANSFORMS | FORWARD) if t != "grad"]


@pytest.mark.skipif(torch.__version__ < "2.13", reason="torch.func itself gives zeros")
@pytest.mark.parametrize(("transform", "name"), CASES, ids=map(" ".join, CASES))
def test_derivatives_are_those_outside(transform, name):
    """They were zeros, without a word; and so they were outside, from then on."""
    compiled, eager = (TRANSFORMS | FORWARD)[transform]
    f = functions()[name]
    c = compiled(f)
    with torch.inference_mode():
        expected = eager(f)(X)
        for _ in range(2):
            found = c(X)
            torch.testing.assert_close(found, expected)
            assert [t.is_inference() for t in tree_leaves(found)] == [t.is_inference() for t in tree_leaves(expected)]
    torch.testing.assert_close(c(X), eager(f)(X))


def test_a_program_is_made_for_it():
    gradient, other = fg.grad_compiled(lambda a: (a * a).sum()), -X
    with torch.inference_mode():
        assert "in backward" in gradient.program(X).joint.headline()
        assert torch.equal(gradient(X), 2 * X)
        with fg.no_retrace():
            assert torch.equal(gradient(other), -2 * X)
