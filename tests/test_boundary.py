"""What a backward pass from some results of a compiled function comes to, and what it leaves for others: beside eager
PyTorch."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

import funcgrad as fg


def leaves():
    return torch.arange(1.0, 4, requires_grad=True), torch.arange(2.0, 5, requires_grad=True)


def apart(x, y):
    return x * x, y * y, x * y


def joined(x, y):
    h = x * y
    return h * 2, h.exp(), y * y


def of_a_sum(x, y):
    """The nodes that lead to all of these save nothing."""
    h = x + y
    return h.sum(), h.view(3, 1).mean(), h * x


class Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.scale = 2
        return x + y * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient * ctx.scale


def of_a_custom_sum(x, y):
    h = Sum.apply(x, y)
    return h, h.sum(), h.exp()


def saves_nothing(x, y):
    return x + 1, x * y


def over_a_base(x, y):
    z = x * 1
    w = z[1:]
    z[0] = y[0]
    return z, w, x * 2


class Zeros(torch.autograd.Function):
    """Its backward pass gets zeros where nothing comes in."""

    @staticmethod
    def forward(ctx, x, y):
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return a * 2, b * 3


def made_zeros(x, y):
    return *Zeros.apply(x, y), y * 2


def reads(x, y):
    h = x * x
    h.register_hook(lambda g: g * g.sum().item())
    return h, y * y


def zeros_of_a_formula(x, y):
    """Backward of ``pow`` makes zeros of no gradient that comes in."""
    return x**0 * y, x * y


def second_derivative(x, y):
    return torch.func.jvp(torch.func.grad(lambda x: (x**2).sum()), (x,), (y,))


FUNCTIONS = [apart, joined, saves_nothing, over_a_base, made_zeros, reads, zeros_of_a_formula, second_derivative]


def gradients(f, *passes):
    """The gradients after each of these passes, of the results by number; or what it raised."""
    args, found, raised = leaves(), [], []
    outs = f(*args)
    for i, picked in enumerate(passes):
        try:
            sum(outs[i].sum() for i in picked).backward()
        except RuntimeError as error:
            assert "backward through the graph a second time" in str(error)
            raised.append(i)
        found.append([None if x.grad is None else x.grad.clone() for x in args])
    return found, raised


@pytest.mark.parametrize("f", FUNCTIONS)
def test_none_where_a_backward_pass_does_not_come(f):
    compiled = fg.jit(f)
    for i in range(len(f(*leaves()))):
        torch.testing.assert_close(gradients(compiled, [i]), gradients(f, [i]))


@pytest.mark.parametrize(
    "passes", [[[0], [1]], [[1], [0]], [[0, 2], [1]], [[2], [0, 1]], [[2], [0, 1], [0, 1]], [[0], [0]]]
)
@pytest.mark.parametrize("f", [apart, joined, of_a_sum, of_a_custom_sum])
def test_one_backward_pass_after_the_other(f, passes):
    """Those that need what another one has freed raise; others go on."""
    torch.testing.assert_close(gradients(fg.jit(f), *passes), gradients(f, *passes))


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("backend", ["aten", "c"])
def test_a_gradient_that_is_zeros_without_memory(backend, create_graph):
    """Forward derivatives begin with such zeros, and backward through them hands them on."""
    x = torch.ones(3, dtype=torch.float64, requires_grad=True)
    out = fg.jit(torch.sin, backend=backend)(x)
    zeros = torch._efficientzerotensor(1, dtype=torch.float64).expand(3)  # type: ignore[attr-defined]
    (found,) = torch.autograd.grad(out, x, zeros, create_graph=create_graph)
    assert torch.equal(found, torch.zeros_like(x)) and found.requires_grad == create_graph


def test_what_is_unused_is_an_error_as_in_eager_pytorch():
    x, y = leaves()
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        torch.autograd.grad(fg.jit(apart)(x, y)[0].sum(), (x, y))


def test_a_value_that_is_written_to_between_two():
    x, y = leaves()
    first, second, _ = fg.jit(apart)(x, y)
    second.sum().backward()
    with torch.no_grad():
        x.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.a(x * 2).sum(), self.b(x.exp()).sum()


def test_a_step_for_one_head_between_two_passes():
    """It writes to what the other pass does not need."""
    model, found = Heads(), []
    before = copy.deepcopy(model.state_dict())
    for f in (model, fg.jit(model)):
        model.load_state_dict(before)
        x = torch.ones(3, 2, requires_grad=True)
        first, second = f(x)
        first.backward()
        with torch.no_grad():
            model.a.weight.sub_(model.a.weight.grad)
        second.backward()
        found.append(x.grad)
    torch.testing.assert_close(*found)


def test_what_no_later_pass_reads_is_not_kept():
    x, y = torch.rand(2, 1000, requires_grad=True).unbind()
    h, s = fg.jit(lambda x, y: (x + y, (x.exp() * y).sin()))(x, y)
    node = h.grad_fn
    h.sum().backward()
    assert sum(v.untyped_storage().nbytes() for v in node.left[0]) >= 8000
    s.sum().backward()
    assert sum(v.untyped_storage().nbytes() for v in node.left[0]) < 100
    h.sum().backward()


def test_a_history_that_no_result_leads_to():
    """A backward pass leaves it as it is, for the caller to go back through."""
    for f in (lambda h, y: h.detach() * y, fg.jit(lambda h, y: h.detach() * y)):
        x, y = leaves()
        h = x.exp()
        f(h, y).sum().backward()
        h.sum().backward()
        torch.testing.assert_close(x.grad, x.exp().detach())


def test_heads_of_a_model():
    model = Heads()
    fg.jit(model)(torch.ones(1, 2))[0].sum().backward()
    assert model.a.weight.grad is not None and model.b.weight.grad is None


def test_a_deep_history_is_walked_once():
    """Two ways lead on from each of its nodes."""

    def f(x, y):
        for _ in range(40):
            x = x * 0.5 + x.sin()
        return x, x * y

    torch.testing.assert_close(gradients(fg.jit(f, backend="aten"), [0]), gradients(f, [0]))


def test_what_is_left_for_other_results_is_no_ring():
    """A ring through autograd's nodes is one that no garbage collection finds."""
    compiled = fg.jit(lambda x, y: (x.exp(), y.exp()))
    x, y = (torch.ones(3, requires_grad=True) for _ in "xy")
    a, b = compiled(x, y)
    node = weakref.ref(a.grad_fn)
    a.sum().backward()
    del a, b
    gc.collect()
    assert node() is None


def of_zero(x):
    """At zero, what comes of no gradient is zero times infinity."""
    return (x * x).sum(), (x * x).sqrt(), x.log()


@pytest.mark.parametrize(
    "gradient",
    [
        lambda f, x: torch.func.grad(lambda x: f(x)[0])(x),
        lambda f, x: torch.func.grad(lambda x: f(x)[2][1:].sum() + f(x)[1][1:].sum())(x),
        lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x)[0]))(torch.stack([x, x])),
        lambda f, x: torch.func.jacrev(lambda x: f(x)[0])(x),
        lambda f, x: torch.autograd.grad(f(x.requires_grad_())[0], x),
        lambda f, x: torch.autograd.grad(f(x.requires_grad_())[0], x, create_graph=True),
        lambda f, x: torch.autograd.grad(f(x.requires_grad_())[0].expand(2), x, torch.eye(2), is_grads_batched=True),
    ],
)
def test_what_no_gradient_comes_to_is_not_computed(gradient):
    x = torch.tensor([0.0, 1, 2])
    found, wanted = gradient(fg.jit(of_zero), x.clone()), gradient(of_zero, x.clone())
    torch.testing.assert_close(found, wanted, equal_nan=True)


def test_a_half_is_compiled_once_for_the_results_that_have_gradients():
    compiled, (x, y) = fg.jit(apart), leaves()
    program = compiled(x, y)[0].grad_fn.program
    for _ in range(3):
        first, second, third = compiled(x, y)
        torch.autograd.grad(first.sum(), x, retain_graph=True)
        torch.autograd.grad((second * third).sum(), (x, y), retain_graph=True)
        torch.autograd.grad((first * second * third).sum(), (x, y))
    half = program.half([True, False, False])
    assert half is program.half([True, False, False]) and half is not program.half([True] * 3) is program.backward
    assert [str(slot) for slot in half.outs] == ["grad(x)"]
    assert sum(n.op == "call_function" for n in half.graph.fx.nodes) == 3


def test_a_half_of_sizes_that_vary():
    def f(x, y):
        a, b = torch.cat([x, y]).split([len(x), len(y)])
        return a.exp(), b * x.sum(), x.log()

    def passes(f):
        found = []
        for n in (3, 4, 5):
            x, y = torch.zeros(n, requires_grad=True), torch.ones(2 * n, requires_grad=True)
            outs = f(x, y)
            found += [torch.autograd.grad(outs[i].sum(), (x, y), retain_graph=True) for i in (0, 1)]
        return found

    compiled = fg.jit(f, dynamic=True)
    torch.testing.assert_close(passes(compiled), passes(f))
    assert compiled.cache_info().misses == 1


def two_heads(x, y):
    h = x * y
    return h.exp(), y * 2, x.sin()


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
@pytest.mark.parametrize("how", ["computed", "hooks", "after", "views"])
def test_the_engine_goes_on_only_to_what_is_reached(how, region):
    """No hook of a leaf is called, or of what was computed outside, nor does an optimiser step."""

    def passes(f):
        args, log, found = leaves(), [], []
        given = list(args)
        for i, x in enumerate(args):
            if how in ("computed", "views"):
                given[i] = x * 1 if how == "computed" else (x * 1).view(3)
                given[i].register_hook(lambda g, i=i: log.append((i, g.tolist())))
            elif how == "hooks":
                x.register_hook(lambda g, i=i: log.append((i, g.clamp(-2, 2).tolist())))
            else:
                x.register_post_accumulate_grad_hook(lambda p, i=i: log.append((i, p.grad.tolist())))
        outs = f(*given)
        with region():
            for of in ([0], [1], [2], [1, 2], [0, 1, 2]):
                sum(outs[i].sum() for i in of).backward(retain_graph=True)
                found.append((sorted(log), [None if x.grad is None else x.grad.tolist() for x in args]))
            torch.autograd.grad(outs[1].sum(), given[1], retain_graph=True)
            second = torch.autograd.grad(outs[0].sum(), given, create_graph=True)
            (second[0] * second[1]).sum().backward()
            found.append((sorted(log), [x.grad.tolist() for x in args]))
        return found

    torch.testing.assert_close(passes(fg.jit(two_heads)), passes(two_heads))


def test_a_graph_of_gates_is_freed():
    compiled, (x, y) = fg.jit(two_heads), leaves()
    h, g = x * 1, y * 1
    outs = compiled(h, g)
    nodes = [weakref.ref(v.grad_fn) for v in outs]
    outs[0].sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        outs[0].sum().backward()
    del outs, h, g
    gc.collect()
    assert [node() for node in nodes] == [None] * 3


def test_results_may_be_written_to_behind_gates():
    def run(f):
        x, y = leaves()
        a, b, c = f(x * 1, y * 1)
        b.mul_(2)
        c[0] = 0
        (a.detach() * b).sum().backward()
        return x.grad, y.grad, a, b, c

    torch.testing.assert_close(run(fg.jit(two_heads)), run(two_heads))


def test_what_comes_from_another_thread_is_not_left_out():
    x, y = leaves()
    for _ in range(50):  # numbers of nodes count in each thread for itself
        x, y = x * 1, y * 1
    outs, found = fg.jit(two_heads)(x, y), []

    def later():
        late = outs[2]
        for _ in range(3):
            late = late * 1
        try:
            found.append(torch.autograd.grad(late.sum() + outs[1].sum(), (x, y)))
        except fg.FuncgradError as error:
            found.append(str(error))

    thread = threading.Thread(target=later)
    thread.start()
    thread.join()
    assert "in one thread" in found[0] or found[0][0] is not None


def apart_and_together(x, y):
    return x * y, x.sin(), y.exp()


def same_gradients(found, expected):
    assert [v is None for v in found] == [v is None for v in expected]
    torch.testing.assert_close(*([v for v in side if v is not None] for side in (found, expected)))


@pytest.mark.parametrize("outer", [(0, 1), (0, 2), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("inner", [0, 1, 2])
def test_a_pass_within_a_pass_loses_nothing(outer, inner):
    def run(f):
        x, y = leaves()
        outs, seen = f(x * 1, y * 1), []
        other = (outs[inner] * 5).sum()

        def hook(g):
            seen.extend(torch.autograd.grad(other, (x, y), retain_graph=True, allow_unused=True))

        if inner not in outer:
            for i in outer:
                outs[i].register_hook(hook)
        sum((outs[i] * (i + 2)).sum() for i in outer).backward(retain_graph=True)
        return x.grad, y.grad, *seen

    same_gradients(run(fg.jit(apart_and_together)), run(apart_and_together))


def test_a_pass_in_another_thread_does_not_mix_with_one_that_runs():
    def run(f):
        x, y = leaves()
        a, b, c = f(x * 1, y * 1)
        seen = []

        def later(g):
            thread = threading.Thread(
                target=lambda: seen.extend(torch.autograd.grad((c * 3).sum(), y, retain_graph=True))
            )
            thread.start()
            thread.join()

        a.register_hook(later)
        (a.sum() + (b * 2).sum()).backward()
        return x.grad, y.grad, *seen

    same_gradients(run(fg.jit(apart_and_together)), run(apart_and_together))


def test_gradients_that_nobody_asks_for_are_not_kept():
    x, y = leaves()
    outs = fg.jit(two_heads)(x * 1, y * 1)
    sum(v.sum() for v in outs).backward(retain_graph=True)
    gc.collect()
    before = sum(isinstance(v, torch.Tensor) and v.shape == x.shape for v in gc.get_objects())
    for _ in range(3):
        torch.autograd.grad(sum(v.sum() for v in outs), x, retain_graph=True)
    gc.collect()
    assert sum(isinstance(v, torch.Tensor) and v.shape == x.shape for v in gc.get_objects()) == before


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
@pytest.mark.parametrize("from_", [(2,), (0, 2), (0, 1, 2), (1,)])
def test_a_result_that_leads_to_no_input_requires_grad(from_, region):
    def run(f):
        x, y = leaves()
        outs, seen = f(x * 1, y * 1), []
        outs[2].register_hook(seen.append)
        with region():
            sum((outs[i] * (i + 2)).sum() for i in from_).backward(retain_graph=True)
        return x.grad, y.grad, *seen, *[v.detach() for v in outs], *[torch.tensor(v.requires_grad) for v in outs]

    def of_its_own(x, y):
        return x * y, x * 2, torch.ones(3, requires_grad=True) * 3

    same_gradients(run(fg.jit(of_its_own)), run(of_its_own))


def test_a_hook_behind_a_result_that_leads_to_no_input_runs():
    heard = []

    def hooked(x, y):
        w = torch.ones(3, requires_grad=True) * 1
        w.register_hook(lambda g: heard.append(g.tolist()))
        return x * y, x * 2, w * 3

    for f in (hooked, fg.jit(hooked)):
        x, y = leaves()
        outs = f(x * 1, y * 1)
        (outs[2] * 5).sum().backward()
        assert (x.grad, y.grad) == (None, None)
    assert heard == [[15.0] * 3] * 2


@pytest.mark.parametrize("name", ["asked", "saved", "then", "context"])
def test_a_context_has_no_names_but_the_callers(name):
    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            setattr(ctx, name, 7)
            return x * 7

        @staticmethod
        def backward(ctx, g):
            return g * getattr(ctx, name)

    (x,) = leaves()[:1]
    with fg.compiled_autograd():
        Scale.apply(x * 1).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3,), 7.0))


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
@pytest.mark.parametrize("given", ["leaves", "computed", "number"])
@pytest.mark.parametrize("which", [0, 1])
def test_zeros_of_a_size_that_nothing_else_has(which, given, region):
    def wide(x, y, n):
        return Zeros.apply(x, y if n is None else y.sum() + torch.zeros(n))

    compiled = fg.jit(wide)
    for n in (3, 4, 5):

        def run(f, n=n):
            x, y = torch.ones(n, requires_grad=True), torch.ones(2 * n, requires_grad=True)
            number = 3 * n if given == "number" else None
            outs = f(x, y, number) if given == "leaves" else f(x * 1, y * 1, number)
            with region():
                (outs[which] * 5).sum().backward(retain_graph=True)
                sum(v.sum() for v in outs).backward()
            return x.grad, y.grad

        same_gradients(run(compiled), run(wide))


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
def test_a_hook_of_a_leaf_that_is_not_reached_gets_a_tensor(region):
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, x):
            return self.a(x), self.b(x)

    module = Two()
    for p in module.parameters():
        p.register_hook(lambda g: g.clamp(-1, 1))
    compiled = fg.jit(module)
    with region():
        for _ in range(2):
            compiled(torch.ones(4, 3))[0].sum().backward()
    torch.testing.assert_close(module.a.bias.grad, torch.full((2,), 2.0))


K = torch.ones(3)


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
@pytest.mark.parametrize("made", [lambda g: K * 5, lambda g: K, lambda g: torch.full((3,), 7.0)])
def test_what_a_hook_gives_comes_from_the_results_that_lead_to_it(made, region):
    """Though it depends on no gradient that comes in."""

    def f(x, y):
        z = x * 2
        z.register_hook(made)
        return z * y, y * 3

    def passes(f):
        found = []
        for of in ([0], [1], [0, 1]):
            args = leaves()
            with region():
                outs = f(*(x * 1 for x in args))
                sum(outs[i].sum() for i in of).backward()
            found.append([x.grad for x in args])
        return found

    torch.testing.assert_close(passes(fg.jit(f)), passes(f))


class Branches(torch.autograd.Function):
    """Its backward is told where no gradient comes in, by a helper, and does otherwise then."""

    @staticmethod
    def forward(x):
        return x * 2, x * 3

    @staticmethod
    def setup_context(ctx, inputs, output):
        take_none(ctx)

    @staticmethod
    def backward(ctx, g, h):
        if h is None:
            return g * 2
        return h * 100 if g is None else g * 7 + h * 3


def take_none(ctx):
    ctx.set_materialize_grads(False)


class Materializes(torch.autograd.Function):
    """Says that it is given zeros, as it would be anyhow."""

    @staticmethod
    def forward(ctx, x):
        ctx.set_materialize_grads(True)
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, g, h):
        (x,) = ctx.saved_tensors
        return g / (x - 1) + h


class Two(nn.Module):
    def forward(self, x):
        return x * 2, x * 3


def hooked(register, hook):
    module = Two()
    getattr(module, register)(hook)
    return lambda x, y: (*module(x), y)


def hooks_a_node(x, y):
    a, b = Materializes.apply(x * y)

    def times(given):
        return tuple(g if g is None else g * (1 + sum(v is None for v in given)) for g in given)

    a.grad_fn.register_prehook(times)
    return a, b * y


def hooks_a_node_below(x, y):
    a, b = torch.var_mean(x * y)
    c = a * 1
    hooks_the_one_below(c)
    return c, b * y


def hooks_a_node_below_what_it_drops(x, y):
    a, b = torch.var_mean(x * y)
    hooks_the_one_below(a.exp())
    return a, b * y


def hooks_the_one_below(result):
    ((node, _),) = (edge for edge in result.grad_fn.next_functions if edge[0] is not None)
    node.register_prehook(lambda given: tuple(g if g is None else g * (2 if None in given else 5) for g in given))


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, y: (*Branches.apply(x * y), y * 3),
        lambda x, y: Branches.apply((x * torch.rand(3)).exp()),
        lambda x, y: Materializes.apply(x),
        hooks_a_node,
        hooks_a_node_below,
        hooks_a_node_below_what_it_drops,
        hooked("register_full_backward_hook", lambda module, gi, go: (gi[0] * (10 if go[1] is None else 1000),)),
        hooked("register_full_backward_pre_hook", lambda module, go: [torch.ones(3) if g is None else g for g in go]),
    ],
)
def test_python_that_hears_of_it_where_no_gradient_comes_in(f, region):
    """What it does then is traced of its own."""

    def passes(f, region):
        found = []
        for of in ([0], [1], [0, 1], [-1]):
            torch.manual_seed(0)
            args = torch.tensor([1.0, 2, 3], requires_grad=True), torch.tensor([1.0, 2, 5], requires_grad=True)
            with region():
                outs = f(*args)
                sum(outs[i].sum() for i in of).backward()
            found.append([x.grad for x in args])
        return found

    torch.testing.assert_close(passes(fg.jit(f), region), passes(f, contextlib.nullcontext), equal_nan=True)


def test_python_that_hears_of_it_at_a_level():
    def gradients(f):
        return [torch.func.grad(lambda x, i=i: f(x)[i].sum())(torch.ones(3)) for i in (0, 1)]

    torch.testing.assert_close(gradients(fg.jit(Branches.apply)), gradients(Branches.apply))


class Six(torch.autograd.Function):
    """Its backward hears of each gradient that is not there."""

    @staticmethod
    def forward(ctx, x):
        take_none(ctx)
        return tuple(x * i for i in range(1, 7))

    @staticmethod
    def backward(ctx, *incoming):
        return sum(g * (i + len([v for v in incoming if v is None])) for i, g in enumerate(incoming) if g is not None)


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
def test_more_passes_than_are_traced_are_refused_by_name(region):
    compiled = fg.jit(Six.apply)

    def gradient(f, of):
        x = torch.ones(2, requires_grad=True)
        with region() if f is compiled else contextlib.nullcontext():
            outs = f(x)
            sum(outs[i].sum() for i in of).backward()
        return x.grad

    for of in ([0], [3], [0, 1, 2, 3, 5], range(6)):
        torch.testing.assert_close(gradient(compiled, of), gradient(Six.apply, of))
    with pytest.raises(fg.UnsupportedTransformError, match="none of the 16 passes that were traced"):
        gradient(compiled, [3, 4, 5])


class Fails(Branches):
    """Its backward is made for all gradients."""

    @staticmethod
    def backward(ctx, g, h):
        return g * 2 + h * K


def test_what_a_pass_raises_it_raises_when_it_runs():
    compiled, (x, y) = fg.jit(Fails.apply), leaves()
    for f in (Fails.apply, compiled):
        with pytest.raises(TypeError, match="unsupported operand"):
            f(x)[0].sum().backward()
    both = [torch.autograd.grad(sum(v.sum() for v in f(x * y)), (x, y)) for f in (Fails.apply, compiled)]
    torch.testing.assert_close(*both)


class Captures(Branches):
    """It reads a tensor, and writes to it, where a gradient is not there."""

    @staticmethod
    def backward(ctx, g, h):
        if g is None:
            COUNT.add_(1)
            return h * COUNT
        return g


COUNT = torch.zeros(3)


def test_what_is_written_in_some_passes():
    def passes(f):
        COUNT.zero_()
        found = []
        for of in ([0], [1], [1], [0, 1]):
            x, _ = leaves()
            outs = f(x)
            sum(outs[i].sum() for i in of).backward()
            found += [x.grad, COUNT.clone()]
        return found

    torch.testing.assert_close(passes(fg.jit(Captures.apply)), passes(Captures.apply))


def test_such_passes_do_not_run_forward_again():
    called = []

    class Heard(Branches):
        @staticmethod
        def forward(x):
            return fg.pure_callback(lambda x: called.append(1) or x * 2, x, x), x * 3

    compiled, (x, _) = fg.jit(lambda x: Heard.apply(x.exp())), leaves()
    outs = compiled(x)
    before = len(called)
    outs[0].sum().backward()
    assert len(called) == before


def of_many(x):
    return tuple((x * i).sin() for i in range(1, 8))


@pytest.mark.parametrize("how", ["engine", "level"])
def test_halves_from_other_results_each_time_are_bounded_and_warned_of(how, monkeypatch):
    monkeypatch.setattr("funcgrad.runtime.halves.AT_MOST", 20)
    monkeypatch.setattr("funcgrad.transforms.programs.AT_MOST", 20)
    compiled, x = fg.jit(of_many, backend="aten"), torch.ones(2)
    outs = compiled(x.requires_grad_())
    chosen = [[i for i in range(7) if mask >> i & 1] for mask in range(1, 31)]

    def gradient(of):
        if how == "engine":
            return torch.autograd.grad(sum(outs[i].sum() for i in of), x, retain_graph=True)[0]
        return at_level(compiled, of)

    def at_level(f, of):
        return torch.func.grad(lambda x: (lambda outs: sum(outs[i].sum() for i in of))(f(x)))(x.detach())

    with pytest.warns(fg.RecompileWarning, match="backward passes of of_many come from other results") as warned:
        for of in chosen:
            torch.testing.assert_close(gradient(of), at_level(of_many, of))
    assert len(warned) == 1
    if how == "engine":
        assert len(outs[0].grad_fn.program._halves._made) == 20


@pytest.mark.parametrize("how", ["engine", "level"])
def test_the_half_that_was_asked_for_longest_ago_is_dropped(how, monkeypatch):
    monkeypatch.setattr("funcgrad.runtime.halves.AT_MOST", 2)
    monkeypatch.setattr("funcgrad.transforms.programs.AT_MOST", 2)
    compiled, x, made = fg.jit(of_many, backend="aten"), torch.ones(2), []
    outs = compiled(x.requires_grad_())
    monkeypatch.setattr("funcgrad.transforms.programs.warn_of_many", lambda n, name: made.append(n))
    monkeypatch.setattr("funcgrad.runtime.halves.warn_of_many", lambda n, name: made.append(n))
    for i, n in ((0, 1), (1, 2), (0, 2), (2, 3), (0, 3), (1, 4)):
        if how == "engine":
            outs[i].sum().backward(retain_graph=True)
        else:
            torch.func.grad(lambda x, i=i: compiled(x)[i].sum())(x.detach())
        assert len(made) == n + (how == "level")  # there, that of all results is one of them


@pytest.mark.parametrize("register", ["register_hook", "register_post_accumulate_grad_hook"])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_leaf_that_gets_a_hook_after_the_call(register, elsewhere):
    """It hears of passes that come to it, and of no other."""

    def passes(f):
        (x, y), log = leaves(), []
        outs = f(x, y)
        handle = getattr(y, register)(lambda v: log.append((v if register == "register_hook" else v.grad).tolist()))
        for of in ([2], [1], [2], [0, 2]):
            more = (y * 5).sum() if elsewhere else 0
            (sum(outs[i].sum() for i in of) + more).backward(retain_graph=True)
            log.append(None if y.grad is None else y.grad.tolist())
        handle.remove()
        outs[2].sum().backward(retain_graph=True)
        outs[1].sum().backward()
        return log, x.grad, y.grad

    found, wanted = passes(fg.jit(two_heads)), passes(two_heads)
    assert found[0] == wanted[0]
    same_gradients(found[1:], wanted[1:])


def writes_beside(x, y, w):
    class Counts(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            COUNT.add_(1)
            return g * 2

    return Counts.apply(y), x * w, x.exp()


def test_what_leads_to_inputs_that_nobody_asks_for_does_not_run():
    """Though a gate leads to others that are asked for."""

    def written(f):
        COUNT.zero_()
        x, y = leaves()
        given, w = x * 1, torch.ones(3, requires_grad=True)
        outs = f(given, y, w)
        torch.autograd.backward([v.sum() for v in outs], inputs=[x, w])
        return x.grad, w.grad, COUNT.clone()

    torch.testing.assert_close(written(fg.jit(writes_beside)), written(writes_beside))


class GivesNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2, None


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
@pytest.mark.parametrize(
    "f", [lambda x, y: (x * 2, y * 3), lambda x, y: (GivesNone.apply(x, y), x), lambda x, y: (x, GivesNone.apply(x, y))]
)
def test_a_leaf_that_is_hooked_after_the_call_hears_what_it_hears_in_eager(f, region):
    """Nothing where the pass does not come to it, None where Python has none for it."""

    def heard(f):
        log = []
        for which in (0, 0, 1, 1):
            x, y = leaves()
            outs = f(x, y)
            y.register_hook(lambda g: log.append(None if g is None else g.tolist()))
            y.register_post_accumulate_grad_hook(lambda p: log.append(("after", p.grad is None)))
            with region():
                outs[which].sum().backward()
            log.append(y.grad is None)
        return log

    assert heard(fg.jit(f)) == heard(f)


def times(x, y):
    return x * 2, y * 3


def gives_of_others(x, y, calls):
    """``x`` gets a gradient in the second pass alone."""
    o, _ = calls
    torch.autograd.grad(o[1].sum(), [y, x], retain_graph=True, allow_unused=True)
    o[0].sum().backward()


def adds_up_what_a_gradient_was_asked_for(x, y, calls):
    o, _ = calls
    torch.autograd.grad(o[1].sum(), [y], retain_graph=True)
    o[1].sum().backward()


def comes_from_two_calls(x, y, calls):
    o, q = calls
    (o[1].sum() + q[1].sum()).backward(retain_graph=True)
    (o[1].sum() + q[0].sum()).backward()


def asks_for_another(x, y, calls):
    o, _ = calls
    o[1].sum().backward(inputs=[y])


def fails_elsewhere(x, y, calls):
    o, q = calls
    stop = o[1].sum() * 1
    handle = y.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        stop.backward()
    handle.remove()
    q[0].sum().backward()


def one_within_another(x, y, calls):
    o, q = calls
    y.register_hook(lambda g: q[0].backward(g))
    o[1].sum().backward()


def takes_its_own_values_for_a_gradient(x, y, calls):
    o, _ = calls
    (o[1].sum() + x.view_as(x)).backward(gradient=x)


@pytest.mark.parametrize(
    "passes",
    [
        gives_of_others,
        adds_up_what_a_gradient_was_asked_for,
        comes_from_two_calls,
        asks_for_another,
        fails_elsewhere,
        one_within_another,
        takes_its_own_values_for_a_gradient,
    ],
)
def test_a_leaf_that_a_pass_does_not_come_to_has_its_hooks_afterwards(passes):
    def heard(f):
        log = []
        x, y = leaves()
        calls = f(x, y), f(x, y)
        hooks = lambda g: log.append(g), lambda p: log.append(None if p.grad is None else p.grad.clone())
        handles = x.register_hook(hooks[0]), x.register_post_accumulate_grad_hook(hooks[1])
        passes(x, y, calls)
        assert list(x._backward_hooks.values()) == [hooks[0]]
        assert list(x._post_accumulate_grad_hooks.values()) == [hooks[1]]
        for handle in handles:
            handle.remove()
        return log, x.grad, y.grad

    torch.testing.assert_close(heard(fg.jit(times)), heard(times))


def test_threads_pass_over_one_leaf():
    x, f, n = torch.ones(2, requires_grad=True), fg.jit(times), 40
    calls = [[f(x, torch.ones(2, requires_grad=True)) for _ in range(n)] for _ in range(4)]
    log = []
    x.register_hook(log.append)
    after = []
    x.register_post_accumulate_grad_hook(lambda p: after.append(None))

    def work(i):
        for k, outs in enumerate(calls[i]):
            outs[(k + i) % 2].sum().backward()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert (len(log), len(after)) == (2 * n, 2 * n)
    assert not any(g is None for g in log)
    assert len(x._backward_hooks) == len(x._post_accumulate_grad_hooks) == 1


def test_hooks_of_leaves_run_in_the_order_of_eager():
    """They log, and draw noise; one of them is of a leaf to which not all outputs lead."""

    def made(compile_):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
        heard = []

        def noisy(name, gradient):
            heard.append(name)
            return gradient + torch.rand_like(gradient)

        for name, p in model.named_parameters():
            p.register_hook(functools.partial(noisy, name))
            p.register_post_accumulate_grad_hook(lambda p, name=name: heard.append(f"{name} is there"))
        step = compile_(lambda x: (model(x).square().sum(), model[0](x).sum()))
        for n in range(2):
            loss, other = step(torch.ones(2, 3))
            torch.manual_seed(n)
            (loss if n else loss + other).backward()
        return heard, [p.grad for p in model.parameters()]

    heard, gradients = made(functools.partial(fg.jit, backend="aten"))
    expected, others = made(lambda f: f)
    assert heard == expected
    torch.testing.assert_close(gradients, others)
