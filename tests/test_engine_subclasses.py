"""Wrapper subclasses in captured backward passes: eager PyTorch is the oracle. The ids are those of
``docs/mechanisms.md``."""

from __future__ import annotations

import contextlib
import weakref

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.testing._internal.two_tensor import TwoTensor

import funcgrad as fg
from funcgrad.engine import region as regions
from funcgrad.subclasses import Wrapping, inner_tensors


def two(*shape, start=0.1, grad=True):
    a = torch.linspace(start, start + 1, torch.Size(shape).numel()).view(shape)
    return TwoTensor(a, a.cos()).requires_grad_(grad)


def nested(*shape, start=0.1, grad=True):
    return TwoTensor(two(*shape, start=start, grad=False), two(*shape, start=start + 1, grad=False)).requires_grad_(
        grad
    )


def plain(*shape, start=0.1, grad=True):
    return torch.linspace(start, start + 1, torch.Size(shape).numel()).view(shape).requires_grad_(grad)


def made(value):
    """How a tensor is made."""
    placements = value.placements if isinstance(value, DTensor) else None
    return type(value), value.shape, placements, [str(Wrapping.of(value)), *map(type, inner_tensors(value))]


def seen(values):
    """All there is to see of gradients: how they are made, and of what, as they are now."""
    values = [v for v in values if v is not None]
    return [made(v) for v in values], [t.detach().clone() for v in values for t in inner_tensors(v)]


def same_as_eager(program, times=4, compiles=1, backend="aten", **options):
    """``program(i)`` shows in a region what it shows in eager PyTorch, and is compiled: ``compiles`` graphs, none of
    them replayed but to learn what the caller's Python returns."""
    wanted = [seen(program(i)) for i in range(times)]
    regions.reset()
    with fg.compiled_autograd(backend=backend, **options) as region:
        found = [seen(program(i)) for i in range(times)]
    for (kinds, values), (wanted_kinds, wanted_values) in zip(found, wanted, strict=True):
        assert kinds == wanted_kinds
        torch.testing.assert_close(values, wanted_values)
    whys = [e.why for e in region.events if e.what == "replayed"]
    assert all("is learnt" in why for why in whys), region.explain()
    assert region.compiles == compiles, region.explain()
    return region


KINDS = [two, nested]


@pytest.mark.parametrize("backend", ["aten", "auto"])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_of_their_class(kind, backend):  # S3-26
    """The graph holds what they are made of; a wrapper is made where somebody sees one."""

    def program(i):
        x, w = kind(3, 4, start=i), plain(4, 2)
        ((x / 4).exp() @ w).sin().sum().backward()
        return [x.grad, w.grad]

    def programs_of_plain_gradients(i):
        x, b = kind(3, 4, start=i), plain(4)
        (grad, other) = torch.autograd.grad((x * b).sin().sum(), (x, b))
        return [grad, other, *inner_tensors(grad)]

    (capture,) = same_as_eager(program, backend=backend).captures
    names = [str(slot) for slot in capture.programs[0].joint.signature.ins]
    paths = [".a", ".b"] if kind is two else [".a.a", ".a.b", ".b.a", ".b.b"]
    assert all(f"inputs[0]{path}" in names for path in paths)
    same_as_eager(programs_of_plain_gradients, backend=backend)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_add_up(kind):
    x = {}

    def program(i):
        if i == 0:
            x[0] = kind(3)
        (x[0] * (i + 2)).sin().sum().backward()
        return [x[0].grad]

    same_as_eager(program, compiles=2)


@pytest.mark.parametrize("kind", KINDS)
def test_hooks_are_given_what_they_are_given_in_eager(kind):
    """A construction is a step of the call that sees the tensor."""

    def program(i):
        log = []
        x, w = kind(3, 4, start=i), plain(4)
        y = x * w
        x.register_hook(lambda g: log.append(g) or g * 3)
        y.register_hook(lambda g: log.append(g))
        y.grad_fn.register_prehook(lambda gs: (gs[0] * 2,))
        y.grad_fn.register_hook(lambda ins, outs: log.extend([*ins, *outs]))
        y.retain_grad()
        x.register_post_accumulate_grad_hook(lambda p: log.append(p.grad))
        w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad))
        y.sin().sum().backward()
        return [*log, y.grad, x.grad, w.grad]

    region = same_as_eager(program)
    (capture,) = region.captures
    text = str(capture.programs[0].graphs[0])
    assert "hook" in text


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx, g):
        x, factor = ctx.saved_tensors
        assert type(g) is type(x)
        return g * factor * 2, (g * x).sum(0, keepdim=True)


class Unwrapped(torch.autograd.Function):
    """A wrapper subclass in, a plain tensor out, as ``DTensor.to_local``."""

    @staticmethod
    def forward(ctx, x):
        return x.a.view_as(x.a)

    @staticmethod
    def backward(ctx, g):
        return TwoTensor(g, g * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_custom_functions(kind):
    def program(i):
        x, factor = kind(3, start=i), kind(1)
        Scaled.apply(x.exp(), factor).sin().sum().backward()
        return [x.grad, factor.grad]

    same_as_eager(program)


def test_what_a_custom_function_makes():
    def program(i):
        x, w = two(3, start=i), plain(3)
        (Unwrapped.apply(x.exp()) * w).sum().backward()
        return [x.grad, w.grad]

    same_as_eager(program)


def test_what_the_callers_python_makes_of_other_classes():
    def program(i):
        x = two(3)
        y = x.sin()
        y.register_hook(lambda g: TwoTensor(g.b, g.a) if i < 3 else g.a)
        y.sum().backward()
        return [x.grad]

    with pytest.raises(fg.OpaqueCallError, match=r"gave a plain tensor, and gave a TwoTensor of a, b before"):
        same_as_eager(program)


def test_plain_tensors_and_others_in_one_shape_of_graph():
    """Each kind has a program of its own."""

    def program(i):
        x = (two, plain, nested)[i % 3](3)
        x.sin().exp().sum().backward()
        return [x.grad]

    # the engine tells of classes apart, but not of what is in them
    assert len(same_as_eager(program, times=6, compiles=3).captures) == 2


def test_an_optimiser_in_backward():
    """The leaf that a hook is given is the caller's own, and what is read of it in backward is read before."""

    def program(i):
        models = [two(3, 3), two(3, 3, start=0.5)]
        found = []

        def step(p):
            with torch.no_grad():
                p.sub_(p.grad * 0.1)
            found.append(p.grad)
            p.grad = None

        for p in models:
            p.register_post_accumulate_grad_hook(step)
        x = plain(2, 3, grad=False)
        for _ in range(2):
            ((x @ models[0]).tanh() @ models[1]).sum().backward()
        assert all(p.grad is None for p in models)
        return [*found, *(p.detach() for p in models)]

    same_as_eager(program)


def test_what_was_saved_and_is_written_to_by_a_hook():
    """Autograd counts the versions of the wrapper, not of what it is made of."""

    def error(i):
        x, factor = two(3), two(3, grad=False)
        y = x * factor

        def writes(g):
            if i:
                factor.add_(1)

        y.register_hook(writes)
        with pytest.raises(RuntimeError, match="modified by an inplace operation") if i else contextlib.nullcontext():
            y.sin().sum().backward()
        return [x.grad]

    same_as_eager(error)


def test_what_the_engine_does_not_tell_of_runs_as_it_is():
    """It refuses views of wrapper subclasses that were written to."""

    def gradient():
        x = two(3, 2)
        y = x * 1
        y[0].mul_(x[1].detach())
        y.sin().sum().backward()
        return [x.grad]

    wanted = seen(gradient())
    with fg.compiled_autograd() as region:
        with pytest.warns(fg.UncompiledBackwardWarning, match="does not tell of it: view_fn not supported"):
            torch.testing.assert_close(seen(gradient())[1], wanted[1])
        with pytest.raises(RuntimeError, match="does not require grad"):
            two(3, grad=False).sum().backward()
        two(3).sin().sum().backward()
    assert [e.what for e in region.events] == ["left alone", "captured", "compiled", "ran"]


def test_a_leaf_that_shares_its_memory_is_read_before_a_hook_writes_to_it():
    def program(i):
        w = two(3, start=i)
        first = w * plain(3, grad=False)
        first.register_hook(lambda g: g * 1)

        def step(p):
            with torch.no_grad():
                p.a.mul_(0)

        w.register_post_accumulate_grad_hook(step)
        (first * w.detach()).sum().backward()
        return [w.grad, w.detach()]

    same_as_eager(program)


def inlined(region):
    """Whether the backward halves of compiled functions are parts of the graphs that were captured."""
    kinds = {event.what for event in region.events}
    graphs = [str(made.joint.graph) for capture in region.captures for made in capture.programs]
    return "called" not in kinds and "replayed" not in kinds and all("aot" in text for text in graphs)


@pytest.mark.parametrize("kind", [*KINDS, plain])
def test_compiled_functions_are_parts_of_the_graph(kind):
    """Their backward halves know the tensors that subclasses are made of: what stands around them is one graph with
    them."""
    f = fg.jit(lambda x, w, s: (x * w).sin() * s, backend="aten")

    def program(i):
        x, w = kind(3, start=i), plain(3)
        (f(x.exp(), w, (0.5, 0.5, 0.7, 0.9)[i]) * w).sum().backward()
        return [x.grad, w.grad]

    assert inlined(same_as_eager(program))  # the number is a symbol


@pytest.mark.parametrize("kind", KINDS)
def test_results_of_a_compiled_function_without_a_gradient(kind):
    """Zeros of their class stand for it."""
    f = fg.jit(lambda x: (x.sin(), x.exp(), x * 2), backend="aten")

    def program(i):
        x = kind(3, start=i)
        first, second, _ = f(x * 2)
        ((first if i % 2 else second) * 3).sum().backward()
        return [x.grad]

    assert inlined(same_as_eager(program, compiles=2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_function_that_reads_and_makes_subclasses(kind):
    """Of an argument it takes one part; a result is made inside, of plain arguments."""
    f = fg.jit(lambda x, two: x.sin() * inner_tensors(two)[0], backend="aten")
    g = fg.jit(lambda x, two: two * x, backend="aten")

    def program(i):
        x, two = plain(3, start=i), kind(3, grad=False)
        f(x.exp(), two).sum().backward()
        y = plain(3, start=i)
        g(y.exp(), two).sin().sum().backward()
        return [x.grad, y.grad]

    assert inlined(same_as_eager(program, compiles=2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_compiled_function_with_hooks_around_and_a_late_input(kind):
    """A hook is given a tensor of the class; what backward reads when it runs, it reads of the tensor as it is then."""
    from_the_outside = {}

    def inside(x):
        y = x.sin()
        y.register_hook(lambda g: g * from_the_outside["factor"])
        return y * 2

    f = fg.jit(inside, backend="aten")

    def program(i):
        log = []
        from_the_outside["factor"] = factor = kind(3, grad=False)
        x = kind(3, start=i)
        h = x.exp()
        h.register_hook(lambda g: log.append(g))
        z = f(h)
        z.register_hook(lambda g: log.append(g) or g * 2)
        with torch.no_grad():
            factor.mul_(i + 1)
        z.sum().backward()
        return [*log, x.grad]

    region = same_as_eager(program)
    assert all(event.what != "called" for event in region.events), region.explain()


@pytest.mark.parametrize("kind", [*KINDS, plain])
def test_what_a_compiled_function_writes_to_in_backward(kind):
    """Where that is a wrapper subclass, its backward half is a call."""

    class Counted(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, count):
            ctx.count = count
            return x.sin()

        @staticmethod
        def backward(ctx, g):
            ctx.count.add_(1)
            return g * 2, None

    def inside(x, count):
        return Counted.apply(x, count)

    f = fg.jit(inside, backend="aten")

    def program(i):
        x, count = two(3, start=i), kind(3, grad=False)
        f(x.exp(), count).sum().backward()
        return [x.grad, count]

    region = same_as_eager(program)
    assert ("which writes to wrapper subclasses in its backward pass" in region.explain()) is (kind is not plain)


def test_modules():
    def model():
        torch.manual_seed(0)
        made = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.LayerNorm(5), torch.nn.GELU(), torch.nn.Linear(5, 2))
        for m in (made[0], made[3]):
            m.weight = torch.nn.Parameter(TwoTensor(m.weight.detach(), m.weight.detach() * 0.5))
        return made

    def program(i):
        found = []
        made = model()
        optimizer = torch.optim.SGD(made.parameters(), 0.1, momentum=0.9)
        for k in range(3):
            optimizer.zero_grad()
            loss = made(plain(3, 4, start=k, grad=False)).square().mean()
            loss.backward()
            found += [p.grad.detach().clone() for p in made.parameters()]
            optimizer.step()
        return [*found, *(p.detach() for p in made.parameters())]

    same_as_eager(program, times=2)


def test_what_is_kept_is_no_more_than_a_leaf():
    """What forward saved, of a wrapper subclass too, is freed after its last reader."""
    freed = []

    def program(i):
        x = two(64)
        y = x.exp().sin().exp()
        for node in (y.grad_fn, y.grad_fn.next_functions[0][0]):
            saved = getattr(node, "_saved_result", None) if hasattr(node, "_saved_result") else node._saved_self
            weakref.finalize(saved.a, freed.append, len(freed))
        z = y.sum()
        del y, saved
        before = len(freed)
        z.backward()
        del z
        return [x.grad, torch.tensor(len(freed) - before)]

    same_as_eager(program)


# ── DTensor ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def mesh():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("backend", ["aten", "auto"])
@pytest.mark.parametrize("hooked", [False, True])
def test_dtensor_parameters(mesh, hooked, backend):
    def program(i):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
        for m, placement in ((model[0], Shard(0)), (model[2], Shard(1))):
            m.weight = torch.nn.Parameter(distribute_tensor(m.weight.detach(), mesh, [placement]))
            m.bias = torch.nn.Parameter(distribute_tensor(m.bias.detach(), mesh, [Replicate()]))
        log = []
        if hooked:
            for p in model.parameters():
                p.register_hook(lambda g: log.append(g) or g * 0.5)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for k in range(3):
            optimizer.zero_grad()
            x = distribute_tensor(plain(5, 4, start=k, grad=False), mesh, [Replicate()])
            model(x).square().mean().backward()
            optimizer.step()
        assert all(isinstance(p.grad, DTensor) for p in model.parameters())
        return [*log, *(p.grad for p in model.parameters()), *(p.detach() for p in model.parameters())]

    same_as_eager(program, times=2, backend=backend)


def test_dtensors_that_are_made_and_taken_apart(mesh):
    def program(i):
        w, x = plain(3, 3), plain(2, 3, start=i, grad=False)
        local = DTensor.from_local(w * 1, mesh, [Shard(0)])
        out = DTensor.from_local(x, mesh, [Replicate()]) @ local.redistribute(mesh, [Replicate()])
        out.to_local().sin().sum().backward()
        return [w.grad]

    same_as_eager(program)
