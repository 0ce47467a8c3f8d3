"""Gradients, values and aux equal eager PyTorch's, with ``grad_compiled`` and with ``jit(...).backward()``."""

import functools

import pytest
import torch
from closeness import assert_rounded
from functions import CASES
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.trees import flatten, unflatten

EVERY = pytest.mark.parametrize("name", CASES)


def variables(tree):
    """The same tree with fresh leaf tensors that require grad."""
    leaves, structure, _ = flatten(tree)
    fresh = [v.detach().clone().requires_grad_() if isinstance(v, torch.Tensor) else v for v in leaves]
    return unflatten(fresh, structure), [v for v in fresh if isinstance(v, torch.Tensor)]


def eager(f, args):
    """Value and gradients of the first argument, by autograd."""
    first, leaves = variables(args[0])
    value = f(first, *args[1:])
    found = torch.autograd.grad(value, leaves, allow_unused=True) if value.requires_grad else [None] * len(leaves)
    return value.detach(), [torch.zeros_like(v) if g is None else g for v, g in zip(leaves, found, strict=True)]


def tensors(tree):
    return [v for v in flatten(tree)[0] if isinstance(v, torch.Tensor)]


def equal(found, expected):
    """Fused kernels round elsewhere, and sum in another order."""
    assert_rounded(found, expected)


def test_there_are_sixty_functions():
    assert len(CASES) >= 60


@pytest.mark.sweep(4)
@EVERY
def test_value_and_grad(name):
    f, make = CASES[name]
    args = make()
    value, grads = eager(f, args)
    c = fg.value_and_grad_compiled(f)
    for _ in range(2):  # the first call compiles, the second hits
        found_value, found = c(*args)
        equal(found_value, value)
        equal(tensors(found), grads)
        assert flatten(found)[1] == flatten(args[0])[1]
        assert not found_value.requires_grad
    assert c.cache_info()[:2] == (1, 1)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_aux_that_is_an_argument_is_that_very_tensor(requires_grad):
    """As in torch.func: not the variable that stood for it, a leaf that requires grad. So is the value."""
    x, w = torch.randn(3, requires_grad=requires_grad), torch.randn(3)
    (_, (same, both)), _ = fg.value_and_grad_compiled(lambda x: ((x * w).sum(), (x, {"x": x})), has_aux=True)(x)
    assert same is x and both["x"] is x and x.requires_grad is requires_grad
    one = torch.tensor(2.0, requires_grad=requires_grad)
    with torch.no_grad():
        assert fg.value_and_grad_compiled(lambda x: x)(one)[0] is one


@pytest.mark.sweep(4)
@EVERY
def test_grad_with_aux(name):
    f, make = CASES[name]
    args = make()
    value, grads = eager(f, args)

    def with_aux(*args):
        loss = f(*args)
        return loss, {"loss": loss, "twice": [loss * 2], "label": "aux"}

    found, aux = fg.grad_compiled(with_aux, has_aux=True)(*args)
    equal(tensors(found), grads)
    equal([aux["loss"], aux["twice"][0]], [value, value * 2])
    assert aux["label"] == "aux"
    assert not aux["loss"].requires_grad


@pytest.mark.sweep(4)
@EVERY
def test_jit_backward(name):
    f, make = CASES[name]
    args = make()
    value, grads = eager(f, args)
    c = fg.jit(f)
    for _ in range(2):
        first, leaves = variables(args[0])
        found = c(first, *args[1:])
        equal(found.detach(), value)
        if found.requires_grad:
            found.backward()
        equal([torch.zeros_like(v) if v.grad is None else v.grad for v in leaves], grads)
    assert found.requires_grad == f(first, *args[1:]).requires_grad


@pytest.mark.sweep(4)
@EVERY
def test_joint_equals_forward_then_backward(name):
    """The two halves of the partition compose to the joint graph, and the printed program is the joint graph, too."""
    f, make = CASES[name]
    args = make()
    program = fg.value_and_grad_compiled(f).program(*args)
    inputs = tensors(args)
    expected = program.joint.run(*inputs)
    forward, backward = program.partition.forward, program.partition.backward
    values = dict(zip(forward.signature.outs, forward.run(*inputs), strict=True))
    values |= dict(zip(program.joint.signature.ins, inputs, strict=True))
    gradients = backward.run(*[values[s] for s in backward.signature.ins])
    values |= dict(zip(backward.signature.outs, gradients, strict=True))
    for slot, value in zip(program.joint.signature.outs, expected, strict=True):
        equal(values[slot], value)


SECOND_ORDER = (
    "square transcendental logs rosenbrock dict_mlp layer_norm softmaxes pairwise logistic_regression solve".split()
)


@pytest.mark.sweep(4)
@pytest.mark.parametrize("name", SECOND_ORDER)
def test_second_derivatives(name):
    """By autograd through a compiled gradient, by nesting, and by ``create_graph`` through ``jit``: all the same."""
    f, make = CASES[name]
    args = make()
    torch.manual_seed(0)

    def second(gradient_of):
        first, leaves = variables(args[0])
        grads = gradient_of(first, *args[1:])
        return torch.autograd.grad(sum((g * g).sum() for g in tensors(grads)), leaves, allow_unused=True)

    def by_autograd(first, *rest):
        return list(torch.autograd.grad(f(first, *rest), tensors(first), create_graph=True))

    def by_jit(first, *rest):
        return list(torch.autograd.grad(fg.jit(f)(first, *rest), tensors(first), create_graph=True))

    expected = second(by_autograd)
    equal(second(fg.grad_compiled(f)), expected)
    equal(second(by_jit), expected)
    nested = fg.grad_compiled(lambda *a: sum((g * g).sum() for g in tensors(fg.grad_compiled(f)(*a))))
    result = nested(*args)
    equal(tensors(result), list(expected))
    assert not any(t.requires_grad for t in tensors(result))


def test_gradcheck():
    x = torch.randn(4, dtype=torch.float64, requires_grad=True)
    c = fg.jit(lambda x: (x.sin() * x.exp()).cumsum(0))
    assert torch.autograd.gradcheck(c, (x,))
    assert torch.autograd.gradgradcheck(c, (x,))


def test_third_order():
    x = torch.randn(3, dtype=torch.float64)
    sums = lambda f: lambda x: f(x).sum()  # noqa: E731
    third = fg.grad_compiled(sums(fg.grad_compiled(sums(fg.grad_compiled(lambda x: x.pow(4).sum())))))
    equal(third(x), 24 * x)


class TestArguments:
    def test_argnums(self):
        f = lambda x, y, z: (x * y**2 * z).sum()  # noqa: E731
        x, y, z = torch.randn(3, 4).unbind(0)
        for argnums in (0, 1, -1, (0, 2), (2, 0)):
            equal(fg.grad_compiled(f, argnums=argnums)(x, y, z), torch.func.grad(f, argnums=argnums)(x, y, z))

    def test_orders(self):
        f = lambda x: ((x**2).sum(), "aux")  # noqa: E731
        x = torch.randn(3)
        (value, aux), grads = fg.value_and_grad_compiled(f, has_aux=True)(x)
        grads2, (value2, aux2) = fg.grad_and_value_compiled(f, has_aux=True)(x)
        equal([value, grads], [value2, grads2])
        assert aux == aux2 == "aux"

    def test_keywords_and_defaults(self):
        def f(x, *, scale=2.0, shift=None):
            return (x * scale if shift is None else x * scale + shift * x).sum()

        c, x = fg.grad_compiled(f), torch.randn(3)
        equal(c(x), torch.full((3,), 2.0))
        equal(c(x, scale=3.0), torch.full((3,), 3.0))
        equal(c(x, shift=x), 2 + 2 * x * 0 + x)

    def test_keywords_called_as_positional_arguments_are(self):
        """Which Python allows where the one is positional alone, or among ``*args``."""
        named = lambda x, /, **others: (x * others["x"]["w"] * others["self"]).sum()  # noqa: E731
        among = lambda *args, **others: (args[0] * args[1] * others["args"][0]).sum()  # noqa: E731
        by_name, by_position = fg.grad_compiled(named), fg.grad_compiled(among, argnums=1)
        for scale in (2.0, 3.0, 4.0):
            x = torch.full((3,), scale)
            equal(by_name(x, x={"w": x + 1}, self=x + 2), (x + 1) * (x + 2))
            equal(by_position(x, x.sin(), args=[x + 1]), x * (x + 1))
        assert by_name.cache_info().misses == by_position.cache_info().misses == 1
        assert "kwargs['x']['w']" in str(by_name.explain(x, x={"w": x + 1}, self=x + 2))

    def test_static_argnums(self):
        def f(x, config):
            return (x * config["scale"]).sum()

        c = fg.grad_compiled(f, static_argnums=1)
        equal(c(torch.ones(2), {"scale": 2}), torch.full((2,), 2.0))
        c(torch.ones(2), {"scale": 2})
        assert c.cache_info().misses == 1
        equal(c(torch.ones(2), {"scale": 3}), torch.full((2,), 3.0))
        assert c.cache_info().misses == 2

    def test_static_argnums_of_what_is_given_by_keyword_or_not_at_all(self):
        def f(x, n=2, config={"scale": 2}):
            return (x * n * config["scale"]).sum()

        c, x = fg.grad_compiled(f, static_argnums=(1, 2), backend="aten"), torch.ones(2)
        calls = [((), {}, 4), ((3,), {}, 6), ((), {"n": 4}, 8), ((), {"n": 5}, 10), ((1,), {"config": {"scale": 7}}, 7)]
        for args, kwargs, gradient in (*calls, *calls):
            equal(c(x, *args, **kwargs), torch.full((2,), float(gradient)))
        assert c.cache_info().misses == len(calls)  # no number became a symbol

    def test_the_same_tensor_twice(self):
        x = torch.randn(3, requires_grad=True)
        f = lambda a, b: (a * b.exp()).sum()  # noqa: E731
        equal(
            fg.grad_compiled(f, argnums=(0, 1))(x.detach(), x.detach()),
            torch.func.grad(f, argnums=(0, 1))(x.detach(), x.detach()),
        )
        (expected,) = torch.autograd.grad(f(x, x), x)
        (found,) = torch.autograd.grad(fg.jit(f)(x, x), x)
        equal(found, expected)

    def test_partial_and_bound_method(self):
        class Model:
            def __init__(self):
                self.w = torch.randn(3)

            def loss(self, x):
                return (self.w * x).sum()

        m, x = Model(), torch.randn(3)
        c = fg.grad_compiled(m.loss)
        equal(c(x), m.w)
        m.w = torch.randn(3)
        equal(c(x), m.w)
        g = fg.grad_compiled(functools.partial(lambda k, x: (k * x).sum(), m.w))
        equal(g(x), m.w)

    def test_compiled_method(self):
        class Model:
            w = 3.0

            @fg.grad_compiled
            def unused(x):
                return x.sum()

            @fg.jit
            def forward(self, x):
                return x * self.w

        x = torch.randn(3)
        equal(Model().forward(x), x * 3)

    def test_positive_and_negative_zero_are_two_static_values(self):
        c = fg.jit(lambda x, k: torch.copysign(x, torch.tensor(k)))
        x = torch.ones(2)
        equal(c(x, 0.0), x)
        equal(c(x, -0.0), -x)


class TestJit:
    def test_outputs_of_all_kinds(self):
        def f(x, y):
            return {"a": x + y, "same": x, "none": None, "n": 3, "pair": (x * 2, "label"), "view": y[0]}

        x, y = torch.randn(3), torch.randn(2, 3)
        out = fg.jit(f)(x, y)
        expected = f(x, y)
        assert out["same"] is x
        assert out["none"] is None and out["n"] == 3 and out["pair"][1] == "label"
        equal([out["a"], out["pair"][0], out["view"]], [expected["a"], expected["pair"][0], expected["view"]])
        assert out["view"].data_ptr() == y.data_ptr()

    def test_an_output_that_is_an_input_carries_its_own_gradient(self):
        x, w = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        f = lambda x, w: (x, x * w)  # noqa: E731
        same, product = fg.jit(f)(x, w)
        assert same is x
        (same.sum() + product.sum()).backward()
        equal([x.grad, w.grad], [1 + w.detach(), x.detach()])

    def test_non_differentiable_outputs(self):
        x = torch.randn(4, 3, requires_grad=True)
        values, indices = fg.jit(lambda x: x.max(1))(x)
        assert values.requires_grad and not indices.requires_grad
        values.sum().backward()
        equal(x.grad, torch.nn.functional.one_hot(indices, 3).float())

    def test_unused_output_and_detached_part(self):
        x = torch.randn(3, requires_grad=True)
        out = fg.jit(lambda x: (x.exp(), x.detach() * 2, (x * x).sum()))(x)
        assert [o.requires_grad for o in out] == [True, False, True]
        out[2].backward()
        equal(x.grad, 2 * x.detach())

    def test_backward_twice_needs_retain_graph(self):
        x = torch.randn(3, requires_grad=True)
        loss = fg.jit(lambda x: x.exp().sum())(x)
        loss.backward(retain_graph=True)
        loss.backward()
        equal(x.grad, 2 * x.detach().exp())
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()

    def test_a_saved_value_changed_in_place_raises(self):
        x = torch.randn(3, requires_grad=True)
        w = torch.randn(3)
        loss = fg.jit(lambda x, w: (x * w).sum())(x, w)
        w.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_an_input_backward_does_not_need_may_change(self):
        x, b = torch.randn(3, requires_grad=True), torch.randn(3)
        loss = fg.jit(lambda x, b: (x * x + b).sum())(x, b)
        b.mul_(2)
        loss.backward()
        equal(x.grad, 2 * x.detach())

    def test_incoming_gradients_of_any_layout(self):
        x = torch.randn(4, 3, requires_grad=True)
        c = fg.jit(lambda x: x.t().exp())
        for weight in (
            torch.ones(3, 4),
            torch.ones(()).expand(3, 4),
            torch.randn(4, 3).t(),
            torch.randn(6, 8)[::2, ::2],
        ):
            (found,) = torch.autograd.grad(c(x), x, weight)
            equal(found, (weight * x.detach().t().exp()).t())

    def test_only_some_inputs_require_grad(self):
        x, y = torch.randn(3, requires_grad=True), torch.randn(3)
        out = fg.jit(lambda x, y: (x * y, y * 2))(x, y)
        assert [o.requires_grad for o in out] == [True, False]

    def test_no_grad_and_inference_mode(self):
        x = torch.randn(3, requires_grad=True)
        c = fg.jit(lambda x: x * 2)
        with torch.no_grad():
            assert not c(x).requires_grad
        with torch.inference_mode():
            assert c(x).is_inference()
        assert c(x).requires_grad

    def test_autocast_casts_once(self):
        a, b = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
        c = fg.jit(lambda a, b: (a @ b).sum())
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out, expected = c(a, b), (a @ b).sum()
        assert out.dtype == expected.dtype
        equal(out, expected)
        equal(torch.autograd.grad(out, a), torch.autograd.grad(expected, a))
        assert c(a, b).dtype == torch.float32

    def test_recurrent_cells_with_grad_in_eval(self):
        for kind in (torch.nn.LSTM, torch.nn.GRU):
            m, x = kind(3, 4).eval(), torch.randn(5, 2, 3)
            expected = torch.autograd.grad(m(x)[0].sum(), list(m.parameters()))
            equal(torch.autograd.grad(fg.jit(m)(x)[0].sum(), list(m.parameters())), expected)
            with torch.no_grad():  # the kernel holds a backward pass although grad mode is off outside
                named = dict(m.named_parameters())
                grads = fg.grad_compiled(lambda p: torch.func.functional_call(m, p, (x,))[0].sum())(named)
                equal(tuple(grads.values()), expected)


@settings(max_examples=12, deadline=None)
@given(st.data())
def test_random_programs(data):
    """Random straight-line programs of pure ops over three inputs: value and gradients equal eager's."""
    ops = {
        "add": lambda a, b: a + b,
        "mul": lambda a, b: a * b,
        "sub": lambda a, b: a - 2 * b,
        "tanh": lambda a, b: torch.tanh(a),
        "sin": lambda a, b: a.sin(),
        "matmul": lambda a, b: a @ b,
        "t": lambda a, b: a.t(),
        "where": lambda a, b: torch.where(a > b, a, b * 0.5),
        "softmax": lambda a, b: torch.softmax(a, 0),
        "flip": lambda a, b: a.flip(0) + b[0],
        "detach": lambda a, b: a.detach() + b,
        "max": lambda a, b: a.max(1, keepdim=True).values * b,
        "inplace": lambda a, b: a.clone().mul_(b).add_(1),
    }
    n = data.draw(st.integers(1, 8))
    draw = data.draw
    steps = [
        (draw(st.sampled_from(sorted(ops))), draw(st.integers(0, 2 + i)), draw(st.integers(0, 2 + i))) for i in range(n)
    ]

    def f(inputs):
        values = list(inputs)
        for op, i, j in steps:
            values.append(ops[op](values[i], values[j]))
        return values[-1].sum() + values[len(values) // 2].mean()

    torch.manual_seed(data.draw(st.integers(0, 1000)))
    inputs = [torch.randn(3, 3, dtype=torch.float64) for _ in range(3)]
    value, grads = eager(f, (inputs,))
    found_value, found = fg.value_and_grad_compiled(f)(inputs)
    equal(found_value, value)
    equal(found, grads)
    jit_inputs, leaves = variables(inputs)
    out = fg.jit(f)(jit_inputs)
    if out.requires_grad:
        out.backward()
    equal([torch.zeros_like(v) if v.grad is None else v.grad for v in leaves], grads)


@pytest.mark.parametrize("outside", ["neither", "x", "w"])
@pytest.mark.parametrize("f", [lambda x, w: (x * w * w).sum(), lambda x, w: (x * x * w).sum()], ids=["w", "x"])
def test_the_variables_of_an_inner_gradient_are_no_tensors_from_outside(f, outside):
    """Its result has a history that ends in them, where the outer one's variables are."""
    x, w = torch.rand(3).requires_grad_(outside == "x"), torch.rand(3).requires_grad_(outside == "w")

    def nested(grad, inner):
        return grad(lambda x: (inner(f, 1)(x, w).sum(), inner(f, 1)(x, w)), has_aux=True)(x)

    def pulled(f, i):
        return lambda x, w: fg.vjp_compiled(lambda w: f(x, w), w)[1](torch.ones(()))[0]

    for inner in (fg.grad_compiled, pulled):
        for found, expected in zip(
            nested(fg.grad_compiled, inner), nested(torch.func.grad, torch.func.grad), strict=True
        ):
            assert found.requires_grad == expected.requires_grad
            torch.testing.assert_close(found, expected)
