"""Backward passes captured from the autograd engine: gradients, and the order of what the caller's Python sees, are
eager PyTorch's."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch._dynamo import compiled_autograd as torchs_own

import funcgrad as fg
from funcgrad.engine import region as regions


def mlp(seed=0):
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))


def gradients(model, x, run):
    model.zero_grad()
    run(model(x).pow(2).mean())
    return [p.grad.clone() for p in model.parameters()]


def same_as_eager(program, times=2):
    """``program(log)`` builds tensors, registers hooks that write to ``log``, runs backward, and returns gradients."""
    wanted_log: list = []
    wanted = program(wanted_log)
    with fg.compiled_autograd() as region:
        for _ in range(times):
            log: list = []
            found = program(log)
            torch.testing.assert_close(found, wanted)
            assert log == wanted_log
    return region


def test_training():  # S3-6, S3-11, S3-30, S0-7
    """One capture for every batch; the second size compiles once more, and that program serves all."""
    model = mlp()
    batches = [torch.randn(n, 8) for n in (16, 16, 12, 7, 20)]
    wanted = [gradients_in_eager(model, x) for x in batches]
    regions.reset()
    with fg.compiled_autograd() as region:
        for i, x in enumerate(batches):
            torch.testing.assert_close(gradients(model, x, lambda loss: loss.backward()), wanted[i])
            assert region.compiles == (1 if i < 2 else 2), region.explain()
    assert len(region.captures) == 1


def gradients_in_eager(model, x):
    model.zero_grad()
    return list(torch.autograd.grad(model(x).pow(2).mean(), list(model.parameters())))


def test_gradients_add_up():
    model, x = mlp(), torch.randn(5, 8)
    wanted = [2 * g for g in gradients_in_eager(model, x)]
    with fg.compiled_autograd():
        for _ in range(3):
            model.zero_grad()
            for _ in range(2):
                model(x).pow(2).mean().backward()
            torch.testing.assert_close([p.grad for p in model.parameters()], wanted)


def test_hooks_run_in_the_order_of_eager():  # S3-38, S3-39, S3-40, S3-41, S3-44, S3-47
    def program(log):
        torch.manual_seed(0)
        w, v = torch.randn(3, 3, requires_grad=True), torch.randn(3, requires_grad=True)
        say = lambda text: lambda *values: log.append(text)  # noqa: E731
        h = torch.randn(4, 3) @ w
        h.register_hook(lambda g: (log.append("h"), g * 2)[1])
        h.retain_grad()
        y = h.tanh() + v
        z = h.sin() * y
        y.register_hook(say("y"))
        z.grad_fn.register_prehook(say("pre"))
        z.grad_fn.register_hook(say("post"))
        w.register_hook(say("w"))
        w.register_post_accumulate_grad_hook(lambda p: log.append(("after w", p.grad is not None, v.grad is not None)))
        v.register_post_accumulate_grad_hook(lambda p: log.append(("after v", p.grad is not None, w.grad is not None)))
        z.sum().backward()
        return [w.grad, v.grad, h.grad]

    region = same_as_eager(program, 3)
    assert region.compiles == 1 and region.events[-1].what == "ran", region.explain()


def test_a_hook_on_each_of_many_parameters_is_one_program():
    def program(log):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(10)))
        for i, p in enumerate(layers.parameters()):
            p.register_post_accumulate_grad_hook(lambda p, i=i: log.append(i))
        layers(torch.ones(2, 4)).sum().backward()
        return [p.grad for p in layers.parameters()]

    assert same_as_eager(program).compiles == 1


class Twice(torch.autograd.Function):
    calls = 0

    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x.sin() * k

    @staticmethod
    def backward(ctx, g):
        Twice.calls += 1
        (x,) = ctx.saved_tensors
        return (g * x.cos() * ctx.k if x.sum().item() < 1e9 else g), None  # Python that no trace could follow


def test_custom_functions_are_calls():  # S0-1, S3-27, S3-28
    def program(log):
        x = torch.linspace(-1, 1, 6, requires_grad=True)
        before = Twice.calls
        (Twice.apply(x.exp(), 3) * x).sum().backward()
        log.append(Twice.calls - before)
        return [x.grad]

    assert same_as_eager(program, 3).compiles == 1


def test_create_graph():  # S3-70
    with fg.compiled_autograd():
        for _ in range(2):
            x = torch.linspace(0.1, 1, 5, requires_grad=True)
            (g,) = torch.autograd.grad(x.sin().pow(3).sum(), x, create_graph=True)
            (found,) = torch.autograd.grad(g.sum(), x)
            s, c = x.detach().sin(), x.detach().cos()
            torch.testing.assert_close(found, 6 * s * c * c - 3 * s**3)


def test_saved_tensor_hooks():  # S3-36
    def program(log):
        x = torch.linspace(0.1, 1, 5, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: (log.append("pack"), t.double())[1], lambda t: (log.append("unpack"), t.float())[1]
        ):
            y = x.sin().exp()
        y.sum().backward()
        return [x.grad]

    assert same_as_eager(program, 3).compiles == 1


def test_views_that_are_written_to():  # S3-32
    def program(log):
        x = torch.linspace(0.1, 1, 12, requires_grad=True)
        y = x.clone().view(3, 4)
        y[1:3].mul_(x[:4])
        (y * y).sum().backward()
        return [x.grad]

    same_as_eager(program)


def test_a_hook_that_raises():
    def program(log):
        x = torch.ones(3, requires_grad=True)
        y = x.sin()
        y.register_hook(lambda g: log.append("y"))
        x.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            y.exp().sum().backward()
        return [torch.tensor(x.grad is None)]

    same_as_eager(program)


def test_a_hook_that_changes_the_size():
    x = torch.ones(3, requires_grad=True)
    x.register_hook(lambda g: g.sum())
    with fg.compiled_autograd(), pytest.raises(RuntimeError, match="has changed the size of value"):
        x.exp().sum().backward()


def test_callbacks_and_backward_in_a_hook():  # S3-59, S3-60
    def program(log):
        x, other = torch.ones(3, requires_grad=True), torch.ones(2, requires_grad=True)

        def hook(g):
            torch.autograd.Variable._execution_engine.queue_callback(lambda: log.append("end"))
            other.grad = None
            with torch.enable_grad():
                other.exp().sum().backward()
            log.append("hook")

        x.exp().register_hook(hook)
        y = x.sin()
        y.register_hook(hook)
        y.register_hook(lambda g: log.append("second"))
        (y * x).sum().backward()
        return [x.grad, other.grad]

    same_as_eager(program)


def test_inputs_of_grad():
    def program(log):
        a, b = torch.ones(3, requires_grad=True), torch.full((3,), 2.0, requires_grad=True)
        y = a * b
        z = y.exp()
        y.register_hook(lambda g: log.append("y"))
        return list(torch.autograd.grad(z.sum(), [b, y]))

    same_as_eager(program)


def test_one_shape_built_in_another_order():
    """The engine's key does not tell them apart; who looks on can."""

    def program(swapped):
        def run(log):
            x = torch.linspace(0, 1, 3, requires_grad=True)
            a, b = (x.sin(), None) if not swapped else (None, x.sin())
            a = x.sin() if a is None else a
            b = x.sin() if b is None else b
            a.register_hook(lambda g: log.append("a"))
            b.register_hook(lambda g: log.append("b"))
            (a * b).sum().backward()
            return [x.grad]

        return run

    logs = []
    with fg.compiled_autograd():
        for swapped in (False, True, False):
            log: list = []
            program(swapped)(log)
            logs.append(log)
    assert logs == [["b", "a"], ["a", "b"], ["b", "a"]]


def test_jit_inside():
    f = fg.jit(lambda x, w: torch.tanh(x @ w).sum())

    def program(log):
        torch.manual_seed(0)
        w = torch.randn(4, 4, requires_grad=True)
        f(torch.ones(2, 4), w).mul(2).backward()
        return [w.grad]

    same_as_eager(program, 3)


def test_what_cannot_be_traced_says_so():  # S3-9, S3-29
    x = torch.randn(4, 4, requires_grad=True)
    with fg.compiled_autograd() as region, pytest.warns(fg.UncompiledBackwardWarning):
        torch.sparse.mm(torch.eye(4).to_sparse(), x).sum().backward()
    torch.testing.assert_close(x.grad, torch.ones(4, 4))
    assert "replayed" in region.explain()


def test_regions_leave_nothing_behind():  # S3-63, S3-64, S3-65, S3-66
    entry = torch.autograd.graph._engine_run_backward
    threads = torch.autograd.is_multithreading_enabled()
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(ZeroDivisionError), fg.compiled_autograd() as outer:
        with fg.compiled_autograd() as inner:
            x.exp().sum().backward()
            assert not torch.autograd.is_multithreading_enabled()
            with pytest.raises(fg.FuncgradError):
                regions.reset()
        1 / 0
    assert torch.autograd.graph._engine_run_backward is entry and torch.autograd.is_multithreading_enabled() == threads
    assert inner.events and not outer.events
    x.exp().sum().backward()
    assert inner.events[-1].what == "ran"
    regions.reset()
    with fg.compiled_autograd() as again:
        x.exp().sum().backward()
    assert len(again.captures) == 1 and again.events[0].graph == 0


def test_a_region_is_entered_once():
    region = fg.compiled_autograd()
    with region, pytest.raises(fg.FuncgradError, match="this region is open already"), region:
        pass


def test_what_is_unpacked_in_sizes_that_alternate():
    """Of each of them, what it looks like was learnt in a run of its own."""

    def step(n):
        x = torch.linspace(0.1, 1, n).requires_grad_()
        with torch.autograd.graph.save_on_cpu():
            x.exp().sin().sum().backward()
        return x.grad

    wanted = {n: step(n) for n in (3, 4)}
    with fg.compiled_autograd(backend="aten") as region:
        for n in (3, 4, 3, 4, 3):
            torch.testing.assert_close(step(n), wanted[n])
    assert region.compiles == 2 and [e.what for e in region.events].count("replayed") == 2, region.explain()


def test_what_is_unpacked_keeps_its_shape():
    """The engine hands over no size of what was packed: what was learnt of it is checked."""
    shapes = [(4,), (4,), (1,)]

    def run(shape):
        x = torch.ones(4, requires_grad=True)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: t[: shape[0]]):
            y = x.sin()
        y.sum().backward()

    with fg.compiled_autograd():
        for shape in shapes[:2]:
            run(shape)
        with pytest.raises(fg.OpaqueCallError, match="and gave one of shape"):
            run(shapes[2])


def test_a_result_without_a_gradient_is_zeros_to_a_custom_function():
    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x.sum(0)

        @staticmethod
        def backward(ctx, a, b):
            assert a.shape[1:] == b.shape
            return 2 * a + b

    def program(log):
        x = torch.ones(3, 2, requires_grad=True)
        first, second = Two.apply(x)
        (first if not log else second).sum().backward()
        log.append(1)
        return [x.grad]

    same_as_eager(program, 3)


def test_what_a_formula_asks_of_a_saved_tensor():
    """That of ``linalg.solve`` makes a gradient of the matrix if the matrix it has saved requires grad."""

    def program(log):
        torch.manual_seed(0)
        a, b = torch.randn(3, 3, requires_grad=True), torch.randn(3, 2, requires_grad=True)
        torch.linalg.solve(a, b).sum().backward()
        torch.linalg.solve(a.detach(), b).sum().backward()
        return [a.grad, b.grad]

    assert len(same_as_eager(program, 3).captures) == 2


def test_hooks_that_are_given_no_gradient():
    """What an ``autograd.Function`` is given for a result without one is zeros, where a hook of its node has seen
    None."""

    class Two(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.sin(), x.cos()

        @staticmethod
        def backward(ctx, a, b):
            return a * 2 + b

    def program(log):
        x = torch.linspace(0, 1, 3, requires_grad=True)
        a, _ = Two.apply(x.exp())
        a.grad_fn.register_prehook(lambda gs: log.append([g is None for g in gs]))
        a.grad_fn.register_hook(lambda made, given: log.append([g is None for g in given]))
        a.sum().backward()
        return [x.grad]

    assert same_as_eager(program, 3).compiles == 1


def test_what_is_none_stays_none():
    """Whether a custom function's gradient is None, the program knows from a run before: another time is refused,
    and stores nothing."""

    class Fickle(torch.autograd.Function):
        gives = True

        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2 if Fickle.gives else None

    def run():
        x = torch.ones(3, requires_grad=True)
        Fickle.apply(x).sum().backward()
        return x.grad

    with fg.compiled_autograd() as region:
        assert torch.equal(run(), run()) and region.compiles == 1
        Fickle.gives = False
        with pytest.raises(fg.OpaqueCallError, match="gave None, and gave a tensor before"):
            run()


def test_python_at_a_node_is_one_call():
    """A hook, the sum in the leaf's gradient, and what comes after it: they see what they see in eager PyTorch."""

    def program(log):
        torch.manual_seed(0)
        leaves = [torch.randn(3, requires_grad=True) for _ in range(3)]
        for i, leaf in enumerate(leaves):
            leaf.register_hook(lambda g, i=i: log.append(("hook", i, g.sum().item())) or g * 2)
            leaf.register_hook(lambda g, i=i: log.append(("again", i, g.sum().item())))
            leaf.register_post_accumulate_grad_hook(
                lambda p, i=i: log.append(("after", i, p.grad.sum().item(), leaves[0].grad is None))
            )
        for _ in range(2):
            (leaves[0].exp() * leaves[1] + leaves[2]).sum().backward()
        return [leaf.grad for leaf in leaves]

    region = same_as_eager(program, 3)
    calls = [node.name for node in region.captures[0].programs[0].graphs[0].fx.nodes if "tensor_hook" in node.name]
    assert calls == [f"tensor_hook_and_accumulate_grad_and_after_store{end}" for end in ("", "_1", "_2")]


def test_a_hook_that_keeps_what_it_returns():
    """What the caller's Python has made is not the leaf's own: adding to the leaf's gradient changes nothing of it."""

    def program(log):
        kept = []
        x = torch.ones(3, requires_grad=True)
        x.register_hook(lambda g: kept.append(g * 2) or kept[-1])
        for _ in range(2):
            x.exp().sum().backward()
        return [x.grad, *kept]

    same_as_eager(program, 3)


@pytest.mark.parametrize("function", [False, True])
def test_what_was_saved_and_is_written_to_by_a_hook(function):
    """Eager PyTorch raises where it is read next, and no hook runs any more."""

    def program(log):
        saved, x = torch.ones(3), torch.ones(3, requires_grad=True)
        y = x.exp() * saved
        z = Twice.apply(y, 3) if function else y.sin()
        x.register_hook(lambda g: log.append("x"))
        y.register_hook(lambda g: log.append("y"))
        z.register_hook(lambda g: (log.append("z"), saved.add_(1))[0])
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            (z * 2).sum().backward()
        assert x.grad is None
        return [saved]

    same_as_eager(program, 3)


class Reads(torch.autograd.Function):
    """Multiplies by what it has saved, if it reads it."""

    @staticmethod
    def forward(ctx, x, factor, reads):
        ctx.save_for_backward(x, factor)
        ctx.reads = reads
        return x * factor

    @staticmethod
    def backward(ctx, g):
        return (g * ctx.saved_tensors[1] if ctx.reads else g), None, None


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("hook", ["before", "beside"])
def test_what_a_custom_function_saved_and_is_written_to_by_a_hook(reads, hook):
    """Eager PyTorch raises where the function reads it, if it does."""

    def program(writes):
        factor, x = torch.ones(3), torch.ones(3, requires_grad=True)
        y = Reads.apply(x.exp(), factor, reads)
        z = y.sin() if hook == "before" else y

        def hooked(g):
            if writes:
                factor.add_(1)

        z.register_hook(hooked)
        with (
            pytest.raises(RuntimeError, match="modified by an inplace operation")
            if reads and writes
            else contextlib.nullcontext()
        ):
            z.sum().backward()
        return [x.grad, factor]

    wanted = [program(writes) for writes in (False, True, True)]
    regions.reset()
    with fg.compiled_autograd(backend="aten") as region:
        found = [program(writes) for writes in (False, True, True)]
    torch.testing.assert_close(found, wanted)
    assert region.compiles == 1, region.explain()


@pytest.mark.parametrize("error", [ArithmeticError, RuntimeError])
@pytest.mark.parametrize(
    "inner", [torchs_own._disable, lambda: torchs_own._enable(lambda gm, *_: gm), contextlib.nullcontext]
)
def test_a_hook_that_raises_where_torchs_own_is_beside(inner, error):
    """It has run once, and its error is the caller's: nothing runs again. Torch's own knows the graph, and is on in
    here, or off."""
    seen = []

    def raising(g):
        seen.append(g)
        raise error

    def backward():
        y = torch.ones(3, requires_grad=True).exp()
        y.register_hook(raising)
        with pytest.raises(error):
            y.sin().sum().backward()

    regions.reset()
    with torchs_own._enable(lambda gm, *_: gm):
        backward()
    seen.clear()
    with fg.compiled_autograd(), inner():
        backward()
    assert len(seen) == 1


def test_what_was_saved_may_be_written_to_once_it_is_read():
    """An optimiser that steps in backward, as soon as it has a gradient."""
    torch.manual_seed(0)
    model = mlp()

    def program(log):
        here = mlp()
        here.load_state_dict(model.state_dict())
        for p in here.parameters():
            p.register_post_accumulate_grad_hook(sgd)
        here(torch.ones(2, 8)).pow(2).sum().backward()
        return list(here.parameters())

    def sgd(p):
        with torch.no_grad():
            p.sub_(0.1 * p.grad)

    same_as_eager(program, 3)
