"""Custom Functions and operators of the caller's inside of compiled functions, and under every transform over these:
PyTorch's own tables of them, and some that they do not have."""

import re

import pytest
import torch
from torch import func
from torch.autograd.function import once_differentiable
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from transformed import F64, OPTIONS, same

import funcgrad as fg

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def squares(result):
    own = [v for v in tree_leaves(result) if isinstance(v, torch.Tensor) and v.is_floating_point()]
    return sum(((v**2).sum() for v in own), torch.zeros((), dtype=F64))


class Case:
    """A call of ``f``, as a function of its floating-point tensors."""

    def __init__(self, f, args, kwargs):
        self.f = f
        self.leaves, self.tree = tree_flatten((args, kwargs))
        self.places = [i for i, v in enumerate(self.leaves) if isinstance(v, torch.Tensor) and v.is_floating_point()]
        self.n = tuple(range(len(self.places)))

    @property
    def own(self):
        return tuple(self.leaves[i].detach().clone() for i in self.places)

    def call(self, *own):
        leaves = list(self.leaves)
        for i, v in zip(self.places, own, strict=True):
            leaves[i] = v.clone()
        args, kwargs = tree_unflatten(leaves, self.tree)
        return self.f(*args, **kwargs)

    def floats(self, *own):
        return tuple(v for v in tree_leaves(self.call(*own)) if isinstance(v, torch.Tensor) and v.is_floating_point())

    def loss(self, *own):
        return squares(self.call(*own))

    def gradients(self, *own):
        own = [v.clone().requires_grad_() for v in own]
        return torch.autograd.grad(self.loss(*own), own, materialize_grads=True)

    def second(self, *own):
        own = [v.clone().requires_grad_() for v in own]
        first = torch.autograd.grad(self.loss(*own), own, create_graph=True, allow_unused=True)
        return torch.autograd.grad(
            squares([g for g in first if g is not None and g.requires_grad]), own, materialize_grads=True
        )

    def batch(self, own):
        return tuple(torch.stack([v, v * 0.5]) for v in own)


WORDS = {
    "call": lambda c: c.call,
    "gradients": lambda c: c.gradients,
    "second": lambda c: c.second,
    "grad": lambda c: func.grad(c.loss, c.n),
    "grad of grad": lambda c: func.grad(lambda *own: squares(func.grad(c.loss, c.n)(*own)), c.n),
    "jacrev": lambda c: func.jacrev(c.floats, c.n),
    "vmap": lambda c: lambda *own: func.vmap(c.floats)(*c.batch(own)),
    "vmap of grad": lambda c: lambda *own: func.vmap(func.grad(c.loss, c.n))(*c.batch(own)),
    "grad of vmap": lambda c: (
        lambda *own: func.grad(lambda *own: squares(func.vmap(c.floats)(*own)), c.n)(*c.batch(own))
    ),
}
FORWARD = {
    "jvp": lambda c: lambda *own: func.jvp(c.floats, own, own),
    "jacfwd": lambda c: func.jacfwd(c.floats, c.n),
    "hessian": lambda c: func.hessian(c.loss, c.n),
    "vmap of jvp": lambda c: lambda *own: func.vmap(lambda *own: func.jvp(c.floats, own, own))(*c.batch(own)),
}
NOT_LINEAR = {"CubeGenVmapAutogradFunction": ("second", "grad of grad", "hessian")}
"""Its backward is not linear in its cotangents: a second derivative depends on how often autograd calls it."""
USES_NUMPY = {"CubeGenVmapAutogradFunction": ("jvp", "jacfwd", "vmap of jvp")}
OF_VALUES = {"NumpyNonzeroCustomOp", "NumpyNMSCustomOp"}


def words_of(info):
    if not info.supports_autograd:
        return {name: WORDS[name] for name in ("call", "vmap")}
    return WORDS | FORWARD if info.supports_forward_ad else WORDS


REFUSED = "|".join(
    (
        "to use an autograd.Function with functorch transforms",  # the derivatives of most custom operators
        "does not have vmap support",
        "data-dependent and cannot be vmapped",
        r"too many values to unpack \(expected 1\)",  # NumpyCatCustomOp's own rule for vmap, of more than one tensor
        "must implement the jvp function",
        # torch's own rule for vmap of what writes to its argument
        "marked as dirty during the forward method were not returned",
        "does not require grad and does not have a grad_fn",  # a second derivative, where the first is zero
    )
)
"""What eager PyTorch says where it cannot carry out a word."""


def wanted_of(word, case):
    """What eager PyTorch gives, or None where it cannot."""
    try:
        return word(case)(*case.own)
    except (RuntimeError, NotImplementedError, ValueError) as error:
        assert re.search(REFUSED, str(error)), error
        return None


def test_the_tables_are_there():
    assert len(autograd_function_db) > 10 and len(custom_op_db) > 8


@pytest.mark.sweep(4)
@pytest.mark.parametrize("info", [*autograd_function_db, *custom_op_db], ids=lambda info: info.name)
def test_as_in_eager_pytorch(info):
    compared = 0
    for sample in list(info.sample_inputs("cpu", F64, requires_grad=False))[:2]:
        args = (sample.input, *sample.args)
        plain, compiled = Case(info.op, args, sample.kwargs), Case(fg.jit(info.op, **OPTIONS), args, sample.kwargs)
        for name, word in words_of(info).items():
            wanted = wanted_of(word, plain)
            if wanted is None or name in NOT_LINEAR.get(info.name, ()):
                continue
            for run in (word(compiled), fg.jit(word(plain), **OPTIONS)):
                if info.name in OF_VALUES:
                    with pytest.raises(fg.DataDependentShapeError):
                        run(*plain.own)
                elif info in autograd_function_db and ("Numpy" in info.name or name in USES_NUMPY.get(info.name, ())):
                    with pytest.raises(fg.DataDependentControlFlowError, match="NumPy"):
                        run(*plain.own)
                else:
                    same(run(*plain.own), wanted)
                compared += 1
    assert compared


@pytest.mark.parametrize("info", [i for i in custom_op_db if i.supports_autograd], ids=lambda info: info.name)
def test_gradients_of_operators_that_torch_func_does_not_take(info):
    sample = next(iter(info.sample_inputs("cpu", F64, requires_grad=False)))
    case = Case(info.op, (sample.input, *sample.args), sample.kwargs)
    same(fg.grad_compiled(case.loss, case.n, **OPTIONS)(*case.own), case.gradients(*case.own))


# ── what the tables do not have ──────────────────────────────────────────────────────────────────────────────────────


class Doubles(torch.autograd.Function):
    """Writes to its argument."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x.mul_(2)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_dirty(inputs[0])

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Sorts(torch.autograd.Function):
    """Results that have no derivative, and one that is no tensor."""

    @staticmethod
    def forward(x, scale, more):
        values, places = x.sort(-1)
        return values * scale, places, more["name"]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.scale = inputs[1]
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    def backward(ctx, g, none, nothing):
        (places,) = ctx.saved_tensors
        return torch.zeros_like(g).scatter(-1, places, g * ctx.scale), None, None

    @staticmethod
    def vmap(info, in_dims, x, scale, more):
        return Sorts.apply(x.movedim(in_dims[0], 0), scale, more), (0, 0, None)


class Once(torch.autograd.Function):
    """No second derivative."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, g):
        return g * 3 * ctx.saved_tensors[0] ** 2


class OfView(torch.autograd.Function):
    """A view of its argument."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x[..., 1:].transpose(-1, 0) if x.dim() > 1 else x[1:]

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.dim = inputs[0].dim()

    @staticmethod
    def backward(ctx, g):
        g = 3 * (g.transpose(-1, 0) if ctx.dim > 1 else g)
        return torch.nn.functional.pad(g, (1, 0))


OWN = {
    "writes": lambda x: Doubles.apply(x * 1).sin(),
    "non-differentiable": lambda x: Sorts.apply(x.sin(), 2.0, {"name": "sorted"}),
    "once": Once.apply,
    "view": OfView.apply,
}


@pytest.mark.parametrize("name", OWN)
def test_other_functions(name):
    x = torch.linspace(-1, 1.3, 6, dtype=F64).view(2, 3)
    plain, compiled = Case(OWN[name], (x,), {}), Case(fg.jit(OWN[name], **OPTIONS), (x,), {})
    compared = 0
    for word in (WORDS | FORWARD).values():
        wanted = wanted_of(word, plain)
        for run in (word(compiled), fg.jit(word(plain), **OPTIONS)):
            if wanted is not None:
                same(run(*plain.own), wanted)
                compared += 1
    assert compared > 8


@torch.library.custom_op("funcgrad_function_db::add_into", mutates_args=("into",))
def add_into(into: torch.Tensor, x: torch.Tensor) -> None:
    into.copy_(torch.from_numpy(into.numpy() + x.numpy()))


@add_into.register_vmap
def _(info, in_dims, into, x):
    into = into.movedim(in_dims[0], 0)
    add_into(into, x.expand_as(into) if in_dims[1] is None else x.movedim(in_dims[1], 0))
    return None, None


def test_an_operator_that_writes():
    def f(into, x):
        y = into * 1
        add_into(y, x)
        return y * 2

    x, y = torch.arange(6.0, dtype=F64).view(2, 3), torch.ones(3, dtype=F64)
    same(fg.jit(f, **OPTIONS)(x[0], y), f(x[0], y))
    same(func.vmap(fg.jit(f, **OPTIONS), (0, None))(x, y), func.vmap(f, (0, None))(x, y))
    same(fg.vmap_compiled(f, (0, None), **OPTIONS)(x, y), func.vmap(f, (0, None))(x, y))
    mine, theirs = x.clone(), x.clone()
    fg.jit(lambda x: add_into(x, x.sin()), **OPTIONS)(mine)
    add_into(theirs, theirs.sin())
    same(mine, theirs)
    leaf = y.clone().requires_grad_()
    same(fg.jit(lambda x, y: (f(x.detach(), y.detach()) * x).sum(), **OPTIONS)(leaf, y), (f(y, y) * y).sum())
