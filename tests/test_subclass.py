"""Wrapper subclasses as inputs, captured tensors and outputs: eager PyTorch is the oracle. The ids are those of
``docs/mechanisms.md``."""

import operator
import weakref

import pytest
import torch
import torch.distributed as dist
import torch.utils._pytree as pytree
from torch.distributed.tensor import DTensor, Replicate, Shard, init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves

import funcgrad as fg
from funcgrad.layers.subclass import subclass
from funcgrad.slots import Arg, Final, InnerTensor, Out, Saved, Signature, inner_slot
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
    stages = [
        seen(outs),
        seen(list(inputs)),
        [[(a is b, getattr(b, "_base", None) is a) for a in inputs] for b in outs],
    ]
    tensors = [i for t in (*outs, *inputs) if isinstance(t, torch.Tensor) for i in inner_tensors(t)]
    stages.append([[a.untyped_storage()._cdata == b.untyped_storage()._cdata for a in tensors] for b in tensors])
    tracked = [o for o in outs if isinstance(o, torch.Tensor) and o.requires_grad]
    if backward and tracked:
        torch.autograd.backward([(o * o).sum() for o in tracked])
        stages.append([seen(t.grad) for t in leaves])
        stages.append(seen(list(inputs)))
    return rounded(stages)


def assert_like_eager(f, make, backward=True):
    compiled = fg.jit(f, backend="aten")  # which is equal to the last bit
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


CONSTANT = torch.full((3,), 7.0)


def test_a_subclass_is_made_of_a_captured_tensor():
    assert_like_eager(lambda x: TwoTensor(x, CONSTANT), lambda: [torch.ones(3)])
    assert fg.jit(lambda x: TwoTensor(x.sin(), CONSTANT))(torch.ones(3)).b is CONSTANT


def test_an_inner_tensor_as_a_result_is_the_very_object():
    for grad in (False, True):
        x = two(3, grad=grad)
        a, b, c = fg.jit(lambda x: (x.a, x.b[1:], x * 2))(x)
        assert a is x.a and b.untyped_storage()._cdata == x.b.untyped_storage()._cdata
        assert c.requires_grad is grad and not a.requires_grad


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
        found = (
            result[{fg.value_and_grad_compiled: 1, fg.grad_and_value_compiled: 0}[transform]]
            if type(result) is tuple
            else result
        )
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
        assert_like_eager(
            f, lambda: [computed(make(2, 3, grad=True)) if kind == "computed" else make(2, 3, grad=kind == "leaf")]
        )


def transposes(x):
    y = x
    x.t_()
    return y, x.t(), x * 2


def transposes_without_grad(x):
    with torch.no_grad():
        x.transpose_(0, 1)
    return x + 1


def writes_and_transposes(x):
    x.mul_(2)
    x.t_()
    x.add_(1)
    return x * 3, x.sum()


def multiplies_and_transposes(x):
    """Where it is a view, what comes after ``t_`` has a wrong gradient in eager PyTorch: that of the transposed."""
    x.mul_(2)
    x.t_()
    return x * 3


def adds_dimensions(x):
    x.unsqueeze_(0).unsqueeze_(-1).squeeze_(0)
    return x * 2


def counts_as_a_write(x):
    x.squeeze_(0)  # changes nothing
    return x * 2


def transposes_its_own(x):
    y = x * 2
    y.t_()
    y.add_(1)
    return y, y.sum(0)


def detaches(x):
    x.detach_()
    return x * 2


def looks_at_the_front(x):
    x.as_strided_((3,), (1,))
    return x * 2


def shrinks(x):
    x.resize_(3)
    return x * 2


def reads_an_inner_tensor(x):
    return x.t_().a + 1


def gives_data(x):
    """Of wrappers that look alike, this changes nothing."""
    x.data = x * 5
    return x + 1


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize(
    ("f", "kinds"),
    [
        (transposes, ("plain", "computed")),
        (transposes_without_grad, ("plain", "leaf")),
        (writes_and_transposes, ("plain", "computed")),
        (adds_dimensions, ("plain", "computed")),
        (counts_as_a_write, ("plain", "computed")),
        (transposes_its_own, ("plain", "computed", "leaf")),
        (detaches, ("plain", "computed", "leaf")),
        (looks_at_the_front, ("plain", "computed")),
        (shrinks, ("plain",)),
        (reads_an_inner_tensor, ("plain", "computed")),
        (gives_data, ("plain", "computed", "leaf")),
    ],
)
def test_how_a_subclass_looks_changes_in_place(f, kinds, make):
    for kind in kinds:
        assert_like_eager(
            f, lambda: [computed(make(2, 3, grad=True)) if kind == "computed" else make(2, 3, grad=kind == "leaf")]
        )


def test_changed_sizes_count_as_a_write():
    def versions(call):
        x = two(2, 3)
        call(x)
        return x._version

    assert versions(fg.jit(transposes)) == versions(transposes) == 1


def test_what_the_class_refuses_is_refused_in_its_own_words(mesh):
    def f(x):
        return x.t_() * 2

    x = DTensor.from_local(torch.ones(2, 3), mesh, [Replicate()])
    for call in (f, fg.jit(f)):
        with pytest.raises(Exception, match=r"aten\.t_\.default does not have a sharding strategy"):
            call(x)
    assert x.shape == (2, 3)


def test_a_dtensor_is_detached_in_place(mesh):
    def f(x):
        x.detach_()
        x.squeeze_()
        x.data = x * 5
        return x * 2

    def shown(call):
        x = DTensor.from_local(torch.arange(6.0).view(2, 3).requires_grad_(), mesh, [Shard(0)])
        out = call(x)
        return x.requires_grad, x.to_local().tolist(), out.requires_grad, out.to_local().tolist(), out.placements

    assert shown(fg.jit(f)) == shown(f)


@pytest.mark.parametrize("make", [two, nested])
@pytest.mark.parametrize(
    "view",
    [
        lambda t: t[1:],
        lambda t: t.t(),
        lambda t: t.view(-1).view(3, 4),
        lambda t: t[1:][:, :2],
    ],
)
@pytest.mark.parametrize("f", [write, no_grad_write, multiplies_and_transposes, write_and_return])
def test_a_write_to_a_view_reaches_what_it_is_a_view_of(f, view, make):
    """Its values and its history: gradients go on to the rest of it, too."""

    def shown(call):
        leaf = make(4, 3, grad=True)
        base = leaf * 1
        part = view(base)
        out = call(part)
        found = [seen(out), seen(base), seen(part)]
        outs = out if isinstance(out, tuple) else (out,)
        sum([(t * t).sum() for t in (*outs, base) if t.requires_grad]).backward()
        return [*found, seen(leaf.grad)]

    compiled, expected = fg.jit(f, backend="aten"), shown(f)
    for _ in range(2):
        assert_close(shown(compiled), expected)


def assert_close(found, expected):
    pairs = list(zip(tree_leaves(found), tree_leaves(expected), strict=True))
    assert [a for a, _ in pairs if not isinstance(a, float)] == [b for _, b in pairs if not isinstance(b, float)]
    numbers = [pair for pair in pairs if isinstance(pair[0], float)]
    assert [a for a, _ in numbers] == pytest.approx([b for _, b in numbers], rel=1e-4, abs=1e-5)


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
    assert (
        Final(InnerTensor(Arg("buffer" if "buffer" in program.key.paths else "b"), "a"), "backward")
        in program.joint.signature.outs
    )


def test_a_buffer_written_to_between_forward_and_backward():
    def gradient(call):
        x, buffer = two(3, grad=True), two(3)
        out = call(x, buffer)
        buffer.add_(10)
        out.sum().backward()
        return rounded(seen([x.grad, buffer]))

    assert gradient(fg.jit(Count.apply)) == gradient(Count.apply)


@pytest.mark.parametrize("make", [two, torch.ones])
def test_what_autograd_saves_must_not_change(make):
    def error(call):
        x, y = two(3, grad=True), make(3)
        out = call(x, y)
        y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()

    error(lambda x, y: x * y)
    error(fg.jit(lambda x, y: x * y))


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


# ── subclasses that do more on the way ───────────────────────────────────────────────────────────────────────────


class Doubling(TwoTensor):
    """Its ``copy_`` computes: the second tensor gets twice what it is given. ``calls`` counts how often it ran."""

    calls = 0

    @staticmethod
    def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
        return Doubling(inner["a"], inner["b"], outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func is torch.ops.aten.copy_.default:
            Doubling.calls += 1
            target, source = args[:2]
            a, b = (source.a, source.b) if isinstance(source, Doubling) else (source, source)
            target.a.copy_(a)
            target.b.copy_(b.sin().asin() * 2)
            return target
        return super().__torch_dispatch__(func, types, args, kwargs or {})


class Freshening(TwoTensor):
    """Its ``copy_`` makes tensors of its own: empty ones, constants, clones."""

    @staticmethod
    def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
        return Freshening(inner["a"], inner["b"], outer_size, outer_stride)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        if func is torch.ops.aten.copy_.default:
            target, source = args[:2]
            for old, new in ((target.a, source.a), (target.b, source.b)):
                room = torch.empty_like(old).fill_(1.0)
                old.copy_(torch.zeros(old.shape) + torch.tensor(1.0) * room * new.clone())
            return target
        return super().__torch_dispatch__(func, types, args, kwargs or {})


def of_kind(kind, *shape, grad=False):
    value = two(*shape)
    return kind(value.a, value.b).requires_grad_(grad)


def copies(x, y):
    with torch.no_grad():
        x.copy_(y)
    return x * 3


def multiplies(x, y):
    with torch.no_grad():
        x.mul_(2)
    return x * y


@pytest.mark.parametrize("f", [copies, multiplies])
@pytest.mark.parametrize("grad", [False, True])
def test_a_copy_that_computes_runs_where_eager_runs_it_and_once(f, grad):  # S1-12
    assert_like_eager(f, lambda: [of_kind(Doubling, 3), of_kind(Doubling, 3, grad=grad) * 1])
    compiled, inputs = fg.jit(f), [of_kind(Doubling, 3), of_kind(Doubling, 3)]
    counts = [Doubling.calls]
    for call in (f, compiled, compiled):  # what is written to goes back into the inner tensors, not through copy_
        call(*inputs)
        counts.append(Doubling.calls)
    assert [*map(operator.sub, counts[1:], counts)] == 3 * [int(f is copies)]


@pytest.mark.parametrize("f", [copies, multiplies])
@pytest.mark.parametrize("grad", [False, True])
def test_a_copy_that_makes_tensors_of_its_own(f, grad):  # S1-10
    assert_like_eager(f, lambda: [of_kind(Freshening, 3), of_kind(Freshening, 3, grad=grad) * 1])


def test_a_nested_subclass_is_put_together_by_its_classes():
    def f(x):
        return x * 2, TwoTensor(x, x.sin())

    compiled = assert_like_eager(f, lambda: [nested(3)])
    inner = [str(slot) for slot in compiled.program(nested(3)).joint.signature.ins]
    assert inner == ["x.a.a", "x.a.b", "x.b.a", "x.b.b"]


# ── DTensor ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


def training(call, mesh):
    def make(value, placement):
        return DTensor.from_local(value, mesh, [placement], run_check=False).detach()

    torch.manual_seed(0)
    w, b, x = (
        make(torch.randn(3, 3), Shard(0)).requires_grad_(),
        make(torch.zeros(3, 3), Replicate()),
        make(torch.randn(3, 3), Shard(1)),
    )
    for _ in range(3):
        out = call(w, b, x)
        out.sum().backward()
    return [(t.placements, t.to_local().tolist()) for t in (w.grad, b, out.detach())]


def test_a_buffer_that_is_a_dtensor_in_a_training_step(mesh):  # S1-11
    def f(w, b, x):
        with torch.no_grad():
            b.add_(1)
        return (x @ w).sin() * b

    compiled = fg.jit(f)
    ours, theirs = tree_leaves(training(compiled, mesh)), tree_leaves(training(f, mesh))
    assert [x for x in ours if not isinstance(x, float)] == [x for x in theirs if not isinstance(x, float)]
    assert [x for x in ours if isinstance(x, float)] == pytest.approx(
        [x for x in theirs if isinstance(x, float)], rel=1e-4, abs=1e-5
    )
    assert compiled.cache_info().misses == 1


def test_an_incoming_gradient_is_placed_as_it_was_traced(mesh):
    def gradient(call, placement):
        x = DTensor.from_local(torch.arange(4.0).view(2, 2), mesh, [Replicate()]).detach().requires_grad_()
        out = call(x)
        out.backward(DTensor.from_local(torch.ones(2, 2), mesh, [placement]))
        return x.grad.to_local().tolist()

    def f(x):
        return x * x

    compiled = fg.jit(f)
    for placement in (Replicate(), Shard(0), Shard(1)):
        assert gradient(compiled, placement) == gradient(f, placement)


# ── the key ──────────────────────────────────────────────────────────────────────────────────────────────────────


class Scaled(torch.Tensor):
    """One inner tensor, and a number as metadata."""

    @staticmethod
    def __new__(cls, elem, scale):
        return torch.Tensor._make_wrapper_subclass(
            cls, elem.shape, strides=elem.stride(), dtype=elem.dtype, device=elem.device
        )

    def __init__(self, elem, scale):
        self.elem, self.scale = elem, scale

    def __tensor_flatten__(self):
        return ["elem"], self.scale

    @classmethod
    def __tensor_unflatten__(cls, inner, scale, size, stride):
        return cls(inner["elem"], scale)

    @classmethod
    def __torch_dispatch__(cls, func, types, args, kwargs=None):
        scale = next(t.scale for t in pytree.tree_leaves(args) if isinstance(t, cls))
        inner = pytree.tree_map_only(cls, lambda t: t.elem, args)
        if func is torch.ops.aten.mul.Tensor:
            scale = args[0].scale * (args[1].scale if isinstance(args[1], cls) else 1)
        return cls(func(*inner, **(kwargs or {})), scale)


def test_programs_differ_by_type_metadata_and_inner_tensors():
    compiled = fg.jit(lambda x: x * x)

    def misses(x):
        before = compiled.cache_info().misses
        compiled(x)
        return compiled.cache_info().misses - before

    value = torch.arange(3.0)
    assert misses(value) == 1
    assert misses(Scaled(value, 2)) == 1
    assert misses(Scaled(value, 2)) == 0
    assert misses(Scaled(value.double(), 2)) == 1
    assert "metadata was" in compiled.explain_miss(Scaled(value, 3))
    out = compiled(Scaled(value, 3))
    assert out.scale == 9 and torch.equal(out.elem, value * value)

    compiled = fg.jit(lambda x: x * x)
    assert misses(two(3)) == 1
    assert misses(TwoTensor(torch.ones(3), torch.ones(3))) == 0
    assert "requires_grad" in compiled.explain_miss(
        TwoTensor(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))
    )
    shared = torch.ones(3)
    assert "aliasing" in compiled.explain_miss(TwoTensor(shared, shared))
    assert misses(nested(3)) == 1


class Uncomparable(Scaled):
    def __tensor_flatten__(self):
        return ["elem"], object()


class Vague(Scaled):
    def __tensor_flatten__(self):
        return ["elem"], torch.ones(2)


class Empty(Scaled):
    def __tensor_flatten__(self):
        return [], 1


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Uncomparable, "is not equal to itself"), (Vague, "cannot be compared"), (Empty, "names no inner tensor")],
)
def test_a_protocol_that_does_not_hold_is_refused(kind, said):
    with pytest.raises(fg.UnsupportedTensorError, match=said) as raised:
        fg.jit(lambda x: x * 2)(kind(torch.ones(3), 2))
    assert raised.value.where == "x"


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────


def refused(kind, f, *inputs):
    before = rounded(seen(list(inputs)))
    with pytest.raises(kind) as raised:
        fg.jit(f)(*inputs)
    assert rounded(seen(list(inputs))) == before, "nothing is changed when it raises"
    assert raised.value.where and raised.value.fix
    return str(raised.value)


def adds(x, *others):
    x.add_(1)
    return [y * 2 for y in others]


def test_a_write_to_memory_that_a_subclass_shares_is_refused():
    x = two(2, 3)
    assert "shares memory" in refused(fg.AliasContractError, adds, x, x.view(-1))
    assert "shares memory" in refused(fg.AliasContractError, adds, x, x.a)
    assert "shares memory" in refused(fg.AliasContractError, adds, x.b, x)
    plain = torch.ones(3)
    assert "shares memory" in refused(fg.AliasContractError, adds, TwoTensor(plain, plain))
    assert_like_eager(lambda x, y: x * y, lambda: [(x := two(3)), x.a])


def test_a_write_to_a_view_that_autograd_forbids_is_refused():
    assert "writes into a tensor" in refused(fg.MutationError, adds, (two(2, 4, grad=True) * 1).unbind()[0])
    base = two(4, grad=True) * 1
    with torch.no_grad():
        view = base[1:]
    assert "writes into a tensor" in refused(fg.MutationError, adds, view)


def test_what_a_class_does_its_own_way_is_refused():
    """It is told apart on a view: the tensor itself is left alone."""

    def f(x):
        return x.t_() + 1

    class Stiff(TwoTensor):
        @staticmethod
        def __tensor_unflatten__(inner, meta, outer_size, outer_stride):
            return Stiff(inner["a"], inner["b"], outer_size, outer_stride)

        @classmethod
        def __torch_dispatch__(cls, func, types, args, kwargs=None):
            if func is torch.ops.aten.t_.default:
                return args[0]
            return super().__torch_dispatch__(func, types, args, kwargs or {})

    assert "changes the sizes of a Stiff" in refused(fg.MutationError, f, of_kind(Stiff, 2, 3))

    def g(x, y):
        x.data = y
        return x + 1

    assert "other memory of another class" in refused(fg.MutationError, g, two(2, 3), two(3, 2))
    assert "other memory of another class" in refused(fg.MutationError, lambda x: x.set_(x * 2), two(2, 3))


def test_changed_metadata_is_refused():
    def f(x):
        x.scale = 5
        return x * 2

    assert "changes the metadata" in refused(fg.MutationError, f, Scaled(torch.ones(3), 2))


def test_an_inner_tensor_that_is_replaced_is_refused():
    def f(x):
        x.a = x.a * 2
        return x + 1

    assert "other memory" in refused(fg.MutationError, f, two(3))


def test_a_result_over_the_memory_of_a_subclass_that_is_written_to_is_refused():
    def f(x):
        x.mul_(2)
        return x.a

    assert "over its inner memory" in refused(fg.AliasContractError, f, two(3))

    def g(x, y):
        x.mul_(2)
        return TwoTensor(x, y)

    assert "over its inner memory" in refused(fg.AliasContractError, g, torch.ones(3), torch.ones(3))


def test_a_gradient_into_an_inner_tensor_is_refused():
    def make():
        return TwoTensor(torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True))

    assert "inner tensor of a subclass" in refused(fg.UnsupportedTensorError, lambda x: x.a * 2, make())
    assert_like_eager(lambda x: x * 2, lambda: [make()])  # the outer one is differentiated, as in eager


def test_an_incoming_gradient_of_another_kind_is_refused():
    out = fg.jit(lambda x: x * 2)(two(3, grad=True))
    with pytest.raises(fg.TraceError, match="an incoming gradient is a plain tensor"):
        out.backward(torch.ones(3))


def test_a_cond_of_a_subclass_is_refused():
    def f(x):
        return torch.cond(x.a.sum() > 0, torch.sin, torch.cos, (x,))

    assert "torch.cond takes no tensor subclass" in refused(fg.UnsupportedTensorError, f, two(3))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: torch.func.vmap(torch.sin)(x),
        lambda x: torch.func.grad(lambda x: x.sin().sum())(x),
        lambda x: torch.func.grad(lambda x: (torch.func.grad(lambda x: (x.sin() * x).sum())(x) * x).sum())(x),
    ],
)
def test_a_transform_over_a_subclass_inside(f):
    assert_like_eager(f, lambda: [TwoTensor(torch.arange(6.0).view(2, 3), torch.ones(2, 3))])


def test_a_gradient_where_one_of_two_results_is_used():
    """Incoming gradients of what is not used are zeros of their kind: the gradient of a plain tensor may be of that
    kind, too."""
    w = torch.ones(3, requires_grad=True)
    _, other = fg.jit(lambda x, w: (x * w, w * 2))(two(3), w)
    other.sum().backward()
    assert isinstance(w.grad, TwoTensor)  # eager: a plain tensor
    assert torch.equal(w.grad.a, torch.full((3,), 2.0)) and torch.equal(w.grad.b, torch.full((3,), 2.0))


def test_what_was_saved_dies_as_backward_goes_on():
    """The layer around the backward half holds nothing that is in the list its kernel empties."""
    x, saved = Arg("x"), Saved("sin")
    layer = subclass(Signature((inner_slot(x, ("a",)), inner_slot(x, ("b",)), saved), (Out("[0]"),)), {})
    values = [TwoTensor(torch.ones(3), torch.ones(3)), torch.ones(3)]
    alive = [weakref.ref(t) for t in (values[0].a, values[1])]

    def kernel(box):
        a, b, value = box
        assert box is values
        box.clear()
        out = a + b + value
        del a, b, value
        assert [ref() for ref in alive] == [None, None]
        return (out,)

    (out,) = layer.boxed(kernel)(values)
    torch.testing.assert_close(out, torch.full((3,), 3.0))


class SaysItself(torch.Tensor):
    """No wrapper: it says itself what a sine is."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        func = torch.cos if func is torch.sin else func
        return super().__torch_function__(func, types, args, kwargs or {})


class OwnParameter(torch.nn.Parameter):
    pass


@pytest.mark.parametrize("kind", [SaysItself, OwnParameter])
@pytest.mark.parametrize("how", ["argument", "captured", "gradient", "vmap"])
def test_no_program_of_plain_tensors_takes_a_subclass_that_is_no_wrapper(kind, how):
    box = {}
    plain = {
        "argument": lambda: fg.jit(lambda x: x.sin()),
        "captured": lambda: fg.jit(lambda: box["x"].sin()),
        "gradient": lambda: fg.grad_compiled(lambda x: x.sin().sum()),
        "vmap": lambda: fg.vmap_compiled(lambda x: x.sin()),
    }[how]()

    def called(x):
        box["x"] = x
        return plain() if how == "captured" else plain(x)

    is_parameter = issubclass(kind, torch.nn.Parameter)
    x = torch.ones(3, requires_grad=is_parameter)
    for own in (x, torch.nn.Parameter(x.detach(), is_parameter), x):
        torch.testing.assert_close(called(own).detach(), x.cos() if how == "gradient" else x.sin(), check_stride=False)
    with pytest.raises(fg.UnsupportedTensorError, match=kind.__name__):
        called(x.detach().as_subclass(kind).requires_grad_(is_parameter))
    assert plain.cache_info().misses == 1
