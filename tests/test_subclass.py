"""Wrapper subclasses as inputs, captured tensors and outputs: eager PyTorch is the oracle. The ids are those of ``docs/mechanisms.md``."""

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import funcgrad as fg
from funcgrad.slots import Arg, Final, InnerTensor
from funcgrad.subclasses import inner_tensors


def two(*shape, grad=False, start=0.0):
    n = torch.Size(shape).numel()
    a = (torch.arange(float(n)).view(shape) + start) / 7
    return TwoTensor(a, a.cos()).requires_grad_(grad)


def nested(*shape, grad=False):
    return TwoTensor(two(*shape), two(*shape, start=1.0)).requires_grad_(grad)


def seen(value):
    """Everything there is to see of a result or an input: its type, its inner tensors, what autograd knows."""
    if isinstance(value, torch.Tensor):
        inner = [t.detach().clone() for t in inner_tensors(value)]
        looks = (tuple(value.shape), value.stride(), value.requires_grad, value.is_leaf)
        return type(value).__name__, [(t.shape, t.stride(), t.tolist()) for t in inner], looks
    if isinstance(value, (tuple, list)):
        return [seen(v) for v in value]
    if isinstance(value, dict):
        return {k: seen(v) for k, v in value.items()}
    return value


def rounded(value):
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, (list, tuple)):
        return [rounded(v) for v in value]
    return {k: rounded(v) for k, v in value.items()} if isinstance(value, dict) else value


def shows(call, make, backward=True):
    """What a call and its backward pass show: results, inputs, gradients, which are one object or share memory."""
    inputs = make()
    leaves = [t for t in inputs if isinstance(t, torch.Tensor) and t.requires_grad and t.is_leaf]
    inputs = [t * 1 if isinstance(t, torch.Tensor) and getattr(t, "computed", False) else t for t in inputs]
    out = call(*inputs)
    outs = [out] if isinstance(out, torch.Tensor) else list(out)
    stages = [seen(outs), seen(list(inputs)), [[(a is b, getattr(b, "_base", None) is a) for a in inputs] for b in outs]]
    tensors = [i for t in (*outs, *inputs) if isinstance(t, torch.Tensor) for i in inner_tensors(t)]
    stages.append([[a.untyped_storage()._cdata == b.untyped_storage()._cdata for a in tensors] for b in tensors])
    tracked = [o for o in outs if isinstance(o, torch.Tensor) and o.requires_grad]
    if backward and tracked:
        torch.autograd.backward([(o * o).sum() for o in tracked])
        stages.append([seen(t.grad) for t in leaves])
        stages.append(seen(list(inputs)))
    return rounded(stages)


def assert_like_eager(f, make, backward=True):
    compiled = fg.jit(f)
    expected = shows(f, make, backward)
    for _ in range(2):
        assert shows(compiled, make, backward) == expected
    assert compiled.cache_info().misses == 1
    return compiled


def computed(tensor):
    """Is passed as a result of a computation, not as a leaf."""
    tensor.computed = True
    return tensor


# ── calls ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (x * y).sin(),
        lambda x, y: (x @ y.t(), x.sum()),
        lambda x, y: x.relu() + y.mean() * 3,
        lambda x, y: torch.nn.functional.softmax(x * y, -1),
        lambda x, y: (x + 1, y, x),
        lambda x, y: (x.t(), y[1:], x.view(-1)),
        lambda x, y: torch.cat([x, y]).chunk(2)[1],
        lambda x, y: ((z := x * y)[1:], z.view(-1), z.t()),
        lambda x, y: x.detach() * y,
        lambda x, y: x.clone().mul_(2) + y,
    ],
)
def test_a_call(f, make, grad):
    assert_like_eager(f, lambda: [make(2, 3, grad=grad), make(2, 3)])


@pytest.mark.parametrize("x_grad", [False, True])
@pytest.mark.parametrize("y_grad", [False, True])
def test_plain_tensors_beside(x_grad, y_grad):
    def f(x, y, z):
        return x * z.cos(), y * z, y * x

    assert_like_eager(f, lambda: [two(3, grad=x_grad), torch.ones(3, requires_grad=y_grad), torch.full((3,), 2.0)])


def test_a_subclass_is_made_and_taken_apart_inside():
    def f(x, y):
        return TwoTensor(x, y) * 2, TwoTensor(x.sin(), y).a, y

    assert_like_eager(f, lambda: [torch.ones(3), torch.zeros(3)])
    assert_like_eager(lambda x: x.a * 2 + x.b, lambda: [two(3)])


def test_the_graph_is_of_plain_tensors():
    program = fg.jit(lambda x: x * 2).program(two(3))
    a, b = InnerTensor(Arg("x"), "a"), InnerTensor(Arg("x"), "b")
    assert program.joint.signature.ins == (a, b)
    assert len([n for n in program.joint.graph.fx.nodes if n.op == "call_function"]) == 2


@pytest.mark.parametrize("transform", [fg.grad_compiled, fg.value_and_grad_compiled, fg.grad_and_value_compiled])
def test_gradients_of_a_subclass_are_subclasses(transform):  # S0-6
    def loss(params, x):
        return ((params["w"] * x).sin().sum() + params["b"].sum()) ** 2

    params = {"w": two(3), "b": torch.ones(3)}
    x = two(3, start=2.0)
    compiled = transform(loss)
    leaves = [params["w"].detach().requires_grad_(), params["b"].detach().requires_grad_()]
    value = loss({"w": leaves[0], "b": leaves[1]}, x)
    grads = torch.autograd.grad(value, leaves)
    for _ in range(2):
        result = compiled(params, x)
        found = result[{fg.value_and_grad_compiled: 1, fg.grad_and_value_compiled: 0}[transform]] if type(result) is tuple else result
        assert rounded(seen([found["w"], found["b"]])) == rounded(seen(list(grads)))
        assert type(found["w"]) is TwoTensor
    assert compiled.cache_info().misses == 1


class Scale(torch.nn.Module):
    def __init__(self, make):
        super().__init__()
        self.weight = torch.nn.Parameter(make(3))
        self.bias = torch.nn.Parameter(torch.ones(3))
        self.register_buffer("count", make(3))

    def forward(self, x):
        with torch.no_grad():
            self.count.add_(1)
        return x * self.weight + self.bias * self.count


@pytest.mark.parametrize("make", [two, nested])
def test_parameters_and_buffers(make):  # S0-6
    def step(model, call):
        for i in range(3):
            out = call(make(3) + i)
            out.sum().backward()
        return rounded(seen([out, model.weight.grad, model.bias.grad, model.count, model.weight]))

    eager, model = Scale(make), Scale(make)
    compiled = fg.jit(model)
    assert step(model, compiled) == step(eager, eager)
    assert type(model.weight.grad) is TwoTensor
    assert compiled.cache_info().misses == 1
    model.weight = torch.nn.Parameter(make(3) * 5)
    eager.weight = torch.nn.Parameter(make(3) * 5)
    assert step(model, compiled) == step(eager, eager)


def test_second_derivatives():
    def derivatives(call):
        x = two(3, grad=True)
        (g,) = torch.autograd.grad(call(x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
        (k,) = torch.autograd.grad(h.sum(), x)
        return rounded(seen([g.detach(), h.detach(), k]))

    def f(x):
        return x.sin() * x * x

    assert derivatives(fg.jit(f)) == derivatives(f)


def test_an_output_without_a_gradient_of_its_own():
    """Its incoming gradient is one of zeros, made by autograd."""

    def gradient(call):
        x = two(3, grad=True)
        _, second = call(x)
        second.sum().backward()
        return rounded(seen(x.grad))

    def f(x):
        return x.sin(), x * x

    assert gradient(fg.jit(f)) == gradient(f)


# ── writes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def no_grad_write(x):
    with torch.no_grad():
        x.mul_(2)
    return x * 3


def write(x):
    x.mul_(2)
    x.add_(x.sum())
    return x * 3


def detached_write(x):
    x.detach().mul_(2)
    return x * 3


def data_write(x):
    x.data.mul_(2)
    return x * 3


def write_through_a_view(x):
    x.view(-1)[1:].mul_(2)
    return x.sum()


def write_and_return(x):
    x.mul_(2)
    return x, x.t(), x.detach()


def write_to_an_inner_tensor(x):
    x.b.mul_(2)
    return x + 1


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize(
    ("f", "kinds"),
    [
        (write, ("plain", "computed")),
        (no_grad_write, ("plain", "computed", "leaf")),
        (detached_write, ("plain", "computed", "leaf")),
        (data_write, ("plain", "computed", "leaf")),
        (write_through_a_view, ("plain", "computed")),
        (write_and_return, ("plain", "computed")),
    ],
)
def test_writes_to_a_subclass(f, kinds, make):
    for kind in kinds:
        assert_like_eager(f, lambda: [computed(make(2, 3, grad=True)) if kind == "computed" else make(2, 3, grad=kind == "leaf")])


def test_a_write_to_an_inner_tensor():
    assert_like_eager(write_to_an_inner_tensor, lambda: [two(2, 3)])


def test_a_write_moves_the_version_counter():
    def error(call):
        x = two(3, grad=True)
        buffer = two(3)
        out = x * buffer
        call(buffer)
        with pytest.raises(RuntimeError) as raised:
            out.sum().backward()
        return "modified by an inplace operation" in str(raised.value)

    assert error(lambda b: b.add_(1)) and error(fg.jit(lambda b: b.add_(1)))


def test_a_write_under_grad():
    def loss(x, buffer):
        buffer.mul_(2)
        return (x * buffer).sum()

    expected = two(3)
    expected.mul_(2)
    buffer = two(3)
    grads = fg.grad_compiled(loss)(two(3), buffer)
    assert rounded(seen(buffer)) == rounded(seen(expected)) == rounded(seen(grads))


class Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer):
        buffer.add_(1)
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.mul_(3)
        return g * ctx.buffer, None


@pytest.mark.parametrize("x", [two, lambda *shape, grad: torch.ones(*shape, requires_grad=grad)])
def test_a_buffer_written_to_in_forward_and_in_backward(x):
    compiled = assert_like_eager(lambda x, b: Count.apply(x, b), lambda: [x(3, grad=True), two(3)])
    program = compiled.program(x(3, grad=True), two(3))
    assert Final(InnerTensor(Arg("buffer" if "buffer" in program.key.paths else "b"), "a"), "backward") in program.joint.signature.outs


def test_a_buffer_written_to_between_forward_and_backward():
    def gradient(call):
        x, buffer = two(3, grad=True), two(3)
        out = call(x, buffer)
        buffer.add_(10)
        out.sum().backward()
        return rounded(seen([x.grad, buffer]))

    assert gradient(fg.jit(Count.apply)) == gradient(Count.apply)


def test_a_buffer_written_to_in_backward_under_grad():
    def loss(x, buffer):
        return Count.apply(x, buffer).sum()

    expected, leaf = two(3), two(3, grad=True)
    (gradient,) = torch.autograd.grad(loss(leaf, expected), leaf)
    buffer = two(3)
    found = fg.grad_compiled(loss)(two(3), buffer)
    assert rounded(seen([found, buffer])) == rounded(seen([gradient, expected]))


def test_one_object_passed_twice():
    def f(x, y):
        x.mul_(2)
        return x + y

    def make():
        x = two(3)
        return [x, x]

    assert_like_eager(f, make)
