"""``torch.autograd.gradcheck`` and ``gradgradcheck`` of compiled functions: finite differences are the oracle, in
reverse mode, forward mode, batched, and one over the other."""

import functions
import pytest
import torch
import torch.nn.functional as F
from torch import func
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._pytree import tree_flatten, tree_unflatten

import funcgrad as fg

OPTIONS = {"backend": "aten"}
F64 = torch.float64
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

WEIGHT = torch.nn.Parameter(torch.linspace(0.2, 1.4, 3, dtype=F64))
OWN = {}


def own(*args):
    def register(f):
        OWN[f.__name__] = f, args
        return f

    return register


def line(*sizes, dtype=F64):
    n = torch.Size(sizes).numel()
    return (torch.linspace(-0.9, 1.1, n, dtype=F64) + torch.arange(n, dtype=F64).sin() * 0.1).view(sizes).to(dtype)


class Cubes(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        return 3 * g * ctx.saved_tensors[0] ** 2

    @staticmethod
    def jvp(ctx, t):
        return 3 * t * ctx.saved_tensors[0] ** 2


@own(line(2, 3))
def writes_to_a_copy(x):
    y = x * 1
    y.mul_(x.sin())
    y[0].add_(x[1] ** 2)
    return y


@own(line(2, 3))
def writes_to_its_argument(x):
    def inner(x):
        x.mul_(2)
        return x.sum() * x.cos()

    return fg.jit(inner, **OPTIONS)(x * 1)


@own(line(3), line(3))
def several_results(x, y):
    return x * y, (x + y).sin(), y


@own(line(4))
def one_tensor_twice(x):
    return fg.jit(lambda a, b: a * b.sin() + a, **OPTIONS)(x, x)


@own(line(4))
def overlapping_views(x):
    return fg.jit(lambda a, b: (a * b.sin()).sum() * b, **OPTIONS)(x[1:], x[:-1])


@own(line(3, 4))
def views(x):
    return x.t()[1:].reshape(-1), x.unfold(1, 2, 1).sin().sum(-1), x.diagonal().exp()


@own(line(2, 3))
def captured_parameter(x):
    return torch.tanh(x * WEIGHT) @ WEIGHT


@own(line(3, dtype=torch.complex128))
def complex_numbers(z):
    return z * z.conj() * (1 + 2j) + z.exp()


@own(line(3, dtype=torch.complex128))
def real_of_complex(z):
    return z.abs() + z.real * z.imag + torch.view_as_real(z).pow(3).sum(-1)


@own(line(4))
def complex_of_real(x):
    return torch.fft.rfft(x) * torch.complex(x[:3], x[1:])


@own(line(2, 3))
def custom_function(x):
    return Cubes.apply(x.sin()) * x


@fg.custom_jvp
def softened(x, k):
    return torch.log1p(torch.exp(k * x)) / k


@softened.defjvp
def softened_rule(primals, tangents):
    (x, k), (dx, dk) = primals, tangents
    out = softened(x, k)
    slope = torch.sigmoid(k * x)
    return out, slope * dx + (x * slope - out) / k * dk


@own(line(3), torch.tensor(1.5, dtype=F64))
def custom_jvp(x, k):
    return softened(x, k) * x


@own(line(3))
def gradient(x):
    return fg.grad_compiled(lambda x: (x.sin() * x).sum() ** 2, **OPTIONS)(x)


@own(line(3), line(3))
def value_and_gradient(x, y):
    return fg.value_and_grad_compiled(lambda x: ((x * y).exp()).sum(), **OPTIONS)(x)


@own(line(3))
def gradient_by_torch_func(x):
    return func.grad(lambda x: (x.sin() * x).sum() ** 2)(x)


@own(line(2, 3), line(3))
def mapped(x, y):
    return func.vmap(lambda row: (row * y).exp() / (1 + row**2), 0)(x)


@own(line(2, 3), line(3))
def mapped_gradient(x, y):
    return fg.vmap_compiled(
        fg.grad_compiled(lambda row, y: (row.sin() * y).sum() ** 2, **OPTIONS), (0, None), **OPTIONS
    )(x, y)


@own(line(2))
def jacobian(x):
    return func.jacrev(lambda x: x.sin() * x.sum())(x)


@own(line(2, 3))
def checkpointed(x):
    return fg.checkpoint(lambda x: x.sin().exp() * x)(x)


@own(line(3, 3))
def linear_algebra(x):
    return torch.linalg.solve(x @ x.T + 2 * torch.eye(3, dtype=F64), x[0]), torch.linalg.slogdet(
        x @ x.T + torch.eye(3, dtype=F64)
    )[1]


@own(line(2, 4), line(3, 4), line(3))
def layers(x, w, b):
    return F.layer_norm(F.gelu(F.linear(x, w, b)), (3,))


@own(line(3), torch.tensor([2, 0, 1]))
def with_integers(x, i):
    return x[i] * x, i + 1


def of_case(name):
    """A function of tests/functions.py, of its floating-point tensors, which are float64."""
    f, make = functions.CASES[name]
    leaves, tree = tree_flatten(make())
    places = [i for i, v in enumerate(leaves) if isinstance(v, torch.Tensor) and v.is_floating_point()]

    def of(*values):
        given = list(leaves)
        for i, v in zip(places, values, strict=True):
            given[i] = v
        return f(*tree_unflatten(given, tree))

    return of, [leaves[i].double() for i in places]


CASES = [
    "transcendental", "logs", "gelu_silu", "where_abs", "broadcast", "rosenbrock", "transpose_slice", "reshape_permute",
    "gather_index",
    "stack_cat_split", "pad_roll_flip", "in_place_on_own", "softmaxes", "layer_norm", "cumulative", "cross_entropy",
    "regression_losses",
    "batched", "dict_mlp", "nested_classes", "logistic_regression", "fourier",
]  # fmt: skip


def checked(name):
    f, args = OWN[name] if name in OWN else of_case(name)
    args = [a.clone().requires_grad_() if a.is_floating_point() or a.is_complex() else a for a in args]
    return fg.jit(f, **OPTIONS), args


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", [*OWN, *CASES])
def test_gradcheck(name):
    f, args = checked(name)
    gradcheck(f, args, check_batched_grad=True, check_forward_ad=True, check_batched_forward_grad=True)


NOT_BATCHED = {"complex_of_real"}
"""Autograd's own vmap has no rule for what comes up (``_neg_view``)."""


@pytest.mark.sweep(6)
@pytest.mark.parametrize("name", OWN)
def test_gradgradcheck(name):
    f, args = checked(name)
    gradgradcheck(f, args, check_fwd_over_rev=True, check_rev_over_rev=True, check_batched_grad=name not in NOT_BATCHED)


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_a_backward_pass_over_a_batch(backend, create_graph):
    """Kernels write over what dies: they must not meet tensors of a vmap."""
    x, basis = line(2, 3).requires_grad_(), torch.eye(6, dtype=F64).view(6, 2, 3)

    def f(x):
        return (x.sin() * x.cos().exp() + torch.tanh(x)) * x.sum()

    wanted = func.jacrev(f)(x.detach())
    out = fg.jit(f, backend=backend)(x)
    options = {"retain_graph": True, "create_graph": create_graph}
    for found in (
        torch.autograd.grad(out, x, basis, is_grads_batched=True, **options)[0],
        func.vmap(lambda g: torch.autograd.grad(out, x, g, **options)[0])(basis),
    ):
        torch.testing.assert_close(found.view(2, 3, 2, 3), wanted)
        assert found.requires_grad == create_graph


class Exponential(torch.autograd.Function):
    """Which no transform of torch.func takes."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.exp()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.exp()


def hooked(x):
    y = x * WEIGHT
    y.register_hook(lambda gradient: gradient * 2)
    return y.sin()


BATCHED = {
    "dropout": lambda: lambda x: F.dropout(x * WEIGHT, 0.5),
    "a Function of autograd's alone": lambda: lambda x: Exponential.apply(x * WEIGHT),
    "batch norm": lambda: torch.nn.BatchNorm1d(3, dtype=F64),
    "a hook": lambda: hooked,
    "a value that is read": lambda: lambda x: x * 2 if x.sum() > 0 else x.sin(),
    "in parts": lambda: lambda x: (x * WEIGHT)[1:].t(),
    "a recurrent network": lambda: (lambda network: lambda x: network(x)[0])(torch.nn.LSTM(3, 2).double()),
}


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize("backend", ["aten", "c"])
def test_a_backward_pass_over_a_batch_is_that_half_alone(name, backend):
    """It ran the function once more, under the vmap, where it may not draw, and Functions need rules of their own."""
    f, x = BATCHED[name](), line(2, 3).requires_grad_()
    wanted, out = None, None
    for call in (f, fg.jit(f, backend=backend)):
        torch.manual_seed(0)
        out = call(x)
        basis = torch.eye(out.numel(), dtype=F64).view(-1, *out.shape)
        for _ in range(2):
            found = torch.autograd.grad(out, x, basis, is_grads_batched=True, retain_graph=True)[0]
            wanted = found if wanted is None else wanted
            torch.testing.assert_close(found, wanted)
        one = torch.autograd.grad(out, x, basis[0], retain_graph=True)[0]
        torch.testing.assert_close(one, wanted[0])
    over = func.vmap(lambda g: torch.autograd.grad(out, x, g, retain_graph=True)[0])(basis)
    torch.testing.assert_close(over, wanted)


def test_a_gradient_of_more_than_values_over_a_batch_is_refused_by_name():
    f = fg.jit(lambda x: x.sin() * x * (1.0 if x.grad is None else 2.0))
    with pytest.raises(RuntimeError, match="more than values, is differentiated in forward mode"):
        gradgradcheck(f, (line(2).requires_grad_(),), check_batched_grad=True)


def test_there_are_forty():
    assert len({*OWN, *CASES}) >= 40
