"""Compiled regions in a captured backward pass: those of ``fg.jit`` are a part of its graph, those of
``torch.compile`` calls of it."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from attrs import asdict
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._pytree import tree_leaves

import funcgrad as fg
from funcgrad.capture.floats import NotSymbolicError
from funcgrad.engine import inlined
from funcgrad.engine import program as programs
from funcgrad.graph_primitives import Opaque


@pytest.fixture
def compiled(monkeypatch):
    """The graphs that are compiled of captured backward passes."""
    found = []

    def noted(joint, *args, **kwargs):
        executable = programs_compile(joint, *args, **kwargs)
        found.append(executable)
        return executable

    programs_compile = programs.compile_joint
    monkeypatch.setattr(programs, "compile_joint", noted)
    return found


def names(executable):
    return [node.name for node in executable.joint.graph.fx.nodes if node.name.startswith("aot")]


def same_as_eager(f, step, steps, **options):
    """``step(f, i)``, the i-th step of a program that calls ``f``, gives tensors that are compared with those of
    eager PyTorch; ``step`` may be a function that makes one, where steps share tensors."""
    wanted = [step(f, i) for i in range(steps)]
    compiled = fg.jit(f, **options)
    with fg.compiled_autograd() as region:
        for i in range(steps):
            torch.testing.assert_close(step(compiled, i), wanted[i])
    assert region.events[-1].what == "ran", region.explain()
    return region


def what(region):
    return Counter(event.what for event in region.events)


def leaf(i, n=3):
    return torch.randn(n, 4, generator=torch.Generator().manual_seed(i)).requires_grad_()


def test_a_region_is_a_part_of_the_graph(compiled):  # S0-3, S3-23
    """All calls of its backward half are there; with what stands around them, they are one kernel."""

    def step(f, i):
        x = leaf(i)
        (f(x.exp()) * 2).sin().sum().backward()
        return [x.grad]

    region = same_as_eager(lambda x: x.sin().tanh(), step, 3)
    assert what(region)["compiled"] == 1 and not what(region)["replayed"] and not what(region)["called"], (
        region.explain()
    )
    (found,) = compiled
    assert [name.partition("_")[2] for name in names(found)] == ["tanh_backward", "cos", "mul"]
    assert [len(step.kernels) for step in found.schedules[0].steps if hasattr(step, "kernels")] == [1]
    prefix = names(found)[0].partition("_")[0]
    assert f"hooks and functions  the backward half of <lambda>, which is part of the graph, as {prefix}" in str(
        region.captures[0]
    )
    assert "0 of them calls of Python" in str(region.captures[0])


def test_sizes_vary(compiled):
    """The program of the second size serves all sizes, and so does the captured graph that it is a part of."""

    def step(f, i):
        x, w = leaf(i, (3, 5, 7, 9, 11)[i]), leaf(9, 4)
        (f(x.exp(), w) * 2).sum().exp().mul(1e-3).backward()
        return [x.grad, w.grad]

    region = same_as_eager(lambda x, w: torch.tanh(x @ w).mean() * x.shape[0], step, 5)
    assert what(region)["compiled"] == 3 and what(region)["captured"] == 2, region.explain()


def test_saved_sizes(compiled):
    """Where backward knows a size from what was saved alone, the engine hands it over as a number."""

    def step(f, i):
        x = leaf(i, (3, 5, 7, 9)[i])
        return list(torch.autograd.grad(f(x).sin(), x))

    same_as_eager(lambda x: x.sum() * 2, step, 4)
    assert len(compiled) == 3 and "sizes[" in str(compiled[-1].joint.graph)


def test_saved_numbers(compiled):
    """A float that varies is an input of the captured graph."""

    def step(f, i):
        x = leaf(i)
        f(x.exp(), (0.5, 0.7, 0.9, 1.1, -0.0)[i]).sum().backward()
        return [x.grad]

    region = same_as_eager(lambda x, a: (x * a).tanh(), step, 5)
    assert what(region)["compiled"] == 2 and "scalars[0]" in str(compiled[-1].joint.graph), region.explain()


def test_constants(compiled):  # S3-23
    """A tensor that the function makes of numbers is a constant of both graphs."""

    def step(f, i):
        x = leaf(i)
        f(x.exp()).sin().sum().backward()
        return [x.grad]

    same_as_eager(lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), step, 2)
    assert len(compiled) == 1 and compiled[0].joint.graph.constants


def test_a_region_twice(compiled):  # S3-51
    def step(f, i):
        x = leaf(i)
        f(f(x.exp()) * 2).sum().backward()
        return [x.grad]

    same_as_eager(lambda x: x.sin().tanh(), step, 2)
    number = names(compiled[0])[0].split("_")[0]
    assert [name.removeprefix(number) for name in names(compiled[0])] == [
        *("_tanh_backward", "_cos", "_mul"),
        *("_1_tanh_backward", "_1_cos", "_1_mul"),
    ]


def test_a_graph_that_is_kept():
    def step(f, i):
        x = leaf(i)
        y = (f(x.exp()) * 2).sum()
        y.backward(retain_graph=True)
        y.backward()
        return [x.grad]

    same_as_eager(lambda x: x.sin().tanh(), step, 3)


def test_results_without_a_gradient():  # S0-4, S3-24
    def step(f, i):
        x = leaf(i)
        sin, tanh, _ = f(x.exp())
        (sin if i % 2 else tanh).mul(2).sum().backward()
        return [x.grad]

    same_as_eager(lambda x: (x.sin(), x.tanh(), x.detach()), step, 4)


def test_gradients_that_nobody_asks_for(compiled):
    def step(f, i):
        x, y = leaf(i), leaf(i + 1)
        return list(torch.autograd.grad((f(x, y) * 2).sum(), [y]))

    same_as_eager(lambda x, y: x.sin() * y.cos(), step, 2)
    assert len(names(compiled[0])) == 4  # of the gradient of x nothing is left


def test_hooks_around():
    def step(f, i):
        log = []

        def twice(g):
            log.append(g.clone())
            return 2 * g

        x = leaf(i)
        before = x.exp()
        before.register_hook(twice)
        after = f(before)
        after.register_hook(twice)
        after.grad_fn.register_prehook(lambda gs: log.append(gs[0].clone()))
        after.grad_fn.register_hook(lambda gs, given: log.append(given[0].clone()))
        (after * 2).sum().backward()
        return [x.grad, *log]

    same_as_eager(lambda x: x.sin().tanh(), step, 3)


class HasABuffer(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer):
        ctx.buffer = buffer
        return x * 2


class CountsBackward(HasABuffer):
    """Writes to a buffer in backward."""

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.add_(1)
        return g * 2, None


class ReadsLate(HasABuffer):
    """Reads a buffer in backward as it is then."""

    @staticmethod
    def backward(ctx, g):
        return g * ctx.buffer, None


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 5, 7, 9)])
def test_writes_in_backward(compiled, sizes):  # S0-2, S0-4, S3-7
    """The epilogue writes, once backward has come there; what was computed of the buffer before is of what it held
    before."""

    def step(f, i):
        x, buffer, log = leaf(i, sizes[i]), torch.ones(sizes[i], 4), []
        before = x.exp()
        before.register_hook(lambda g: log.append(buffer.clone()))
        after = f(before, buffer)
        after.register_hook(lambda g: log.append(buffer.clone()))
        y = (after * buffer).sin()
        between = buffer.clone()
        y.sum().backward()
        return [x.grad, buffer, between, *log]

    def f(x, buffer):
        buffer.add_(10)
        return CountsBackward.apply(x, buffer).tanh()

    same_as_eager(f, step, len(sizes))
    for found in compiled:
        assert Counter(name.split("_")[-1] for name in names(found))["epilogue"] == 1
        assert Counter(name.split("_")[-1] for name in names(found))["prologue"] == 1


def test_what_a_prologue_closes_over(compiled):  # S3-21
    """It is a constant of the graph: it knows where things are, and finds them in each run."""

    def step(f, i):
        x, buffer = leaf(i), torch.ones(3, 4)
        f(x.exp(), buffer).sum().backward()
        return [x.grad, buffer]

    same_as_eager(lambda x, buffer: CountsBackward.apply(x, buffer).tanh(), step, 2)
    calls = [
        n.target for n in compiled[0].joint.graph.fx.nodes if isinstance(n.target, Opaque) and n.name.startswith("aot")
    ]
    assert len(calls) == 2 and all(type(v) in (int, str) for call in calls for v in tree_leaves(asdict(call.function)))


def test_hooks_inside(compiled):  # S3-22, S3-61
    """A hook that the function registers is a part of the graph of its backward half."""

    def f(x):
        y = x.sin()
        y.register_hook(lambda g: g * 2 + y)
        return y.tanh()

    def step(f, i):
        x = leaf(i, (3, 3, 5, 7)[i])
        f(x.exp()).sum().backward()
        return [x.grad]

    same_as_eager(f, step, 4)
    assert all(any("add" in name for name in names(found)) for found in compiled)


def test_writes_of_results_without_a_gradient(compiled):
    """What writes in backward does so where eager PyTorch runs it: where a gradient arrives there. Sizes vary."""

    def step(f, i):
        x, buffer = leaf(i, i + 3), torch.ones(i + 3, 4)
        a, b = f(x.exp(), buffer)
        (b if i in (1, 3) else a).sum().backward()
        return [x.grad, buffer]

    same_as_eager(lambda x, buffer: (CountsBackward.apply(x, buffer).tanh(), x.cos()), step, 5)
    assert {any("epilogue" in name for name in names(found)) for found in compiled} == {True, False}


@pytest.mark.parametrize("sizes", [(3, 3, 3), (3, 5, 7, 9)])
def test_late_inputs(sizes):
    """A buffer that is written to between forward and backward, by a hook before the region, and by one after it."""

    def step(f, i):
        x, buffer = leaf(i, sizes[i]), torch.ones(sizes[i], 4)
        before = x.exp()
        before.register_hook(lambda g: (buffer.mul_(3), None)[1])
        after = f(before, buffer)
        buffer.add_(1)
        y = after.sin()
        y.register_hook(lambda g: (buffer.mul_(2), None)[1])
        y.sum().backward()
        return [x.grad, buffer]

    same_as_eager(lambda x, buffer: ReadsLate.apply(x, buffer).tanh(), step, len(sizes))


def test_what_was_saved_is_looked_at(compiled):  # S0-2
    """Where autograd does not know that a tensor is saved, the prologue looks whether somebody has written to it:
    the error of eager PyTorch, in the place where eager PyTorch raises it."""

    def f(x, buffer):
        buffer.mul_(2)
        return (x * buffer).sin()

    def step(f, i):
        x, buffer, log = leaf(i), torch.ones(3, 4), []
        after = f(x.exp(), buffer)
        after.register_hook(lambda g: log.append(g.clone()))
        if i == 1:
            buffer.add_(1)
        y = (after * 2).sum()
        if i != 1:
            y.backward()
            return [x.grad, *log]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.backward()
        return [torch.tensor(x.grad is None)]

    same_as_eager(f, step, 4)
    assert any(name.endswith("prologue") for name in names(compiled[0]))


def test_modules():
    torch.manual_seed(0)
    layers = (
        torch.nn.Conv2d(2, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(1),
    )
    body, head = torch.nn.Sequential(*layers), torch.nn.Linear(36, 2)
    state = {k: v.clone() for k, v in body.state_dict().items()}

    def step(f, i):
        if i == 0:
            body.load_state_dict(state)
        body.zero_grad()
        head.zero_grad()
        x = torch.randn((3, 3, 4, 5)[i], 2, 8, 8, generator=torch.Generator().manual_seed(i))
        head(f(x)).pow(2).sum().backward()
        return [p.grad.clone() for p in [*body.parameters(), *head.parameters()]] + [b.clone() for b in body.buffers()]

    region = same_as_eager(lambda x: body(x), step, 4)
    assert what(region)["compiled"] == 3, region.explain()


@pytest.mark.parametrize("rng", ["eager", "philox"])
def test_dropout(rng):
    """The mask of forward, saved or made again of its seed."""
    f = fg.jit(lambda x: torch.nn.functional.dropout(x, 0.5), rng=rng)
    with fg.compiled_autograd() as region:
        for i, n in enumerate((3, 3, 5, 7)):
            x = leaf(i, n)
            y = f(x)
            (y * 3).sum().backward()
            torch.testing.assert_close(x.grad, torch.where(y == 0, 0.0, 6.0))
    assert not what(region)["called"] and region.events[-1].what == "ran", region.explain()


def test_control_flow():
    def f(x):
        return torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)).tanh()

    def step(f, i):
        x = leaf(i)
        (f(x * 1.5) * 2).sum().backward()
        return [x.grad]

    same_as_eager(f, step, 4)


def test_tensors_that_were_packed():
    def step(f, i):
        x, log = leaf(i), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.double(), lambda t: (log.append(t.sum()), t.float())[1]
        ):
            y = f(x.exp()) * 2
        y.sum().backward()
        return [x.grad]

    same_as_eager(lambda x: x.sin().tanh(), step, 3)


def test_create_graph():
    def step(f, i):
        x = leaf(i)
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        return [g, *torch.autograd.grad(g.sin().sum(), x)]

    region = same_as_eager(lambda x: x.sin().exp(), step, 3)
    assert "is itself a gradient" in region.explain()


def test_what_cannot_be_traced_becomes_a_call(compiled, monkeypatch):
    """What fails when it is copied is a call from then on: what it returns is learnt in one run."""

    def fails(*_):
        raise NotSymbolicError("for this test")

    monkeypatch.setattr(inlined.Copy, "__call__", fails)

    def step(f, i):
        x = leaf(i)
        sin, tanh = f(x.exp(), 2.5 + i)
        (sin if i < 3 else tanh).sum().backward()
        return [x.grad]

    region = same_as_eager(lambda x, a: (x.sin() * a, x.tanh()), step, 5)
    assert "their backward halves could not be traced: NotSymbolicError: for this test" in region.explain()
    assert len(compiled) == 2 and not any(map(names, compiled))
    done = [event.what for event in region.events if event.what != "left alone"]
    assert done[:4] == ["captured", "called", "replayed", "ran"]


@pytest.mark.parametrize(
    "options, why", [({"numerics": "eager"}, 'numerics="eager"'), ({"memory_budget": "1MiB"}, "memory_budget")]
)
def test_what_a_region_promises_is_kept(compiled, options, why):
    """That it computes to the last bit what eager PyTorch does, or stays within a budget, a larger graph would not
    keep."""

    def step(f, i):
        x = leaf(i)
        f(x.exp()).sum().backward()
        return [x.grad]

    region = same_as_eager(lambda x: x.sin().tanh(), step, 3, **options)
    assert why in region.explain() and not any(map(names, compiled))


@pytest.mark.parametrize("compiled", [False, True])
def test_leaves_that_are_subclasses(compiled):
    def f(x):
        return (x * 2).sin()

    def step(f, i):
        x = leaf(i).detach()
        two = TwoTensor(x.clone(), x * 2).requires_grad_()
        middle = two.exp()
        (grad,) = torch.autograd.grad(f(two * 3).sum(), two)  # no leaf is given to this one
        f(middle).sum().backward()
        assert isinstance(two.grad, TwoTensor) and isinstance(grad, TwoTensor)
        return [two.grad.a, two.grad.b, grad.a, grad.b]

    wanted = [step(f, i) for i in range(3)]
    f = fg.jit(f) if compiled else f
    with fg.compiled_autograd() as region:
        for i in range(3):
            torch.testing.assert_close(step(f, i), wanted[i])
    assert region.compiles == 2 and what(region)["replayed"] == 0, region.explain()
    assert any("aot" in str(capture.programs[0].joint.graph) for capture in region.captures) is compiled


@pytest.mark.parametrize("dynamic", [False, True])
def test_regions_of_torch_compile(dynamic):  # S3-20
    """Their backward halves are calls of the captured graph; sizes of them are numbers that vary from run to run."""

    def plain(x, w):
        return torch.tanh(x @ w).sin().sum() * x.shape[0]

    compiled = torch.compile(plain, backend="aot_eager", dynamic=dynamic)
    mine = fg.jit(plain)

    def gradients(f, n):
        x, w = leaf(n, n), leaf(9, 4)
        (f(x.exp(), w) * 2 + mine(x.sin(), w)).backward()
        return [x.grad, w.grad]

    for n in (3, 5, 7):  # outside: torch compiles nothing inside of a region
        torch.testing.assert_close(gradients(compiled, n), gradients(plain, n))
    with fg.compiled_autograd() as region:
        for n in (3, 3, 5, 5, 7, 7):
            torch.testing.assert_close(gradients(compiled, n), gradients(plain, n))
    assert region.events[-1].what == "ran" and region.compiles, region.explain()


@pytest.mark.long
def test_a_region_of_torch_compile_that_was_on_disk():  # S3-62
    def plain(x, w):
        return torch.tanh(x @ w).sin().sum()

    with fresh_cache(), torch._functorch.config.patch(enable_autograd_cache=True):
        for found in ("autograd_cache_miss", "autograd_cache_hit"):
            torch._dynamo.reset()
            counters.clear()
            f = torch.compile(plain)
            x, w = leaf(0), leaf(1, 4)
            y = f(x.exp(), w)
            assert counters["aot_autograd"][found] == 1
            with fg.compiled_autograd() as region:
                y.backward()
            assert region.events[-1].what == "ran"
            wanted = leaf(0)
            torch.testing.assert_close(x.grad, torch.autograd.grad(plain(wanted.exp(), w), wanted)[0])
