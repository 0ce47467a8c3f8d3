"""What tests of transforms over compiled functions share. Where the backend is not what is tested, it is the
quickest one to compile."""

import torch
from torch import func, nn
from torch.utils._pytree import tree_leaves

import funcgrad as fg

OPTIONS = {"backend": "aten"}
F64 = torch.float64


def jit(f):
    return fg.jit(f, **OPTIONS)


def same(found, wanted):
    """Tensor by tensor equal to nine digits; what is no tensor is equal."""
    found, wanted = tree_leaves(found), tree_leaves(wanted)
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        if isinstance(b, torch.Tensor):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)
        else:
            assert a == b


EAGER = {
    "jit": lambda f, **options: f, "grad": func.grad, "vmap": func.vmap, "jacrev": func.jacrev, "jacfwd": func.jacfwd,
    "hessian": func.hessian, "vjp": func.vjp, "jvp": func.jvp, "linearize": func.linearize,
    "grad_and_value": func.grad_and_value,
    "value_and_grad": lambda f, *args, **kwargs: lambda *own: func.grad_and_value(f, *args, **kwargs)(*own)[::-1],
}  # fmt: skip
COMPILED = {name: getattr(fg, f"{name}_compiled", None) or fg.jit for name in EAGER}


class Transforms:
    """The transforms a program is made of: compiled is the one at ``position``, in the order in which the program names
    them; none (None); or each (-1)."""

    def __init__(self, position):
        self.position, self.n = position, 0

    def __getattr__(self, name):
        self.n += 1
        if self.position not in (-1, self.n - 1):
            return EAGER[name]
        return lambda *args, **kwargs: COMPILED[name](*args, **kwargs, **OPTIONS)


def data(*shape, seed=0, grad=False):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64, requires_grad=grad)


def mlp(*layers):
    """A perceptron, and its parameters apart."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        parts = [m for pair in layers for m in (nn.Linear(*pair), nn.Tanh())][:-1]
        model = nn.Sequential(*parts).double()
    return model, {k: v.detach() for k, v in model.named_parameters()}
