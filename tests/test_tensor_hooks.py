"""Hooks that a compiled function registers on what it computes, and what they write: beside eager PyTorch."""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import nn

import funcgrad as fg

LOG: list = []


@pytest.fixture(autouse=True)
def log():
    LOG.clear()
    return LOG


def keeps_floats(x):
    y = x * x
    y.register_hook(lambda g: LOG.append(float(g.sum())))
    return (y * 3).sum()


def counts_and_scales(x):
    def hook(g):
        LOG.append(len(LOG))
        return g * 2

    y = x * x
    y.register_hook(hook)
    return (y * 3).sum()


def of_a_result(x):
    y = (x * x).sum()
    y.register_hook(LOG.append)
    return y


def in_turn(x):
    for i in range(3):
        x = x.exp()
        x.register_hook(lambda g, i=i: LOG.append((i, g)))
    return x.sum()


def where_it_is_large(x):
    y = x * x
    y.register_hook(lambda g: LOG.append(g.norm().item()) if g.norm() > 1 else None)
    return y.sum()


def where_it_is_too_large(x):
    """In some passes; gradients of ones show nothing of it."""
    y = x * x
    y.register_hook(lambda g: LOG.append(g.max()) if g.max() > 20 else None)
    return (y * y).sum()


def in_place(x):
    def hook(g):
        LOG.append(g.clone())
        g.mul_(3)

    y = x * x
    y.register_hook(hook)
    return (y * 3).sum()


def removed(x):
    y = x * x
    y.register_hook(LOG.append).remove()
    y.register_hook(lambda g: LOG.append(1))
    return y.sum()


def passes(f, n=3):
    """What ``n`` passes leave in the log, and as the gradient."""
    LOG.clear()
    x = torch.linspace(0.5, 2, 4, requires_grad=True)
    for i in range(n):
        f(x * (i + 1)).backward()
    return list(LOG), x.grad


FUNCTIONS = [
    keeps_floats, counts_and_scales, of_a_result, in_turn, where_it_is_large, where_it_is_too_large, in_place, removed,
]  # fmt: skip


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("f", FUNCTIONS)
def test_it_writes_in_each_backward_pass(f, backend):
    torch.testing.assert_close(passes(fg.jit(f, backend=backend)), passes(f), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("f", FUNCTIONS)
def test_in_a_region_that_is_captured(f):
    def captured():
        with fg.compiled_autograd():
            return passes(fg.jit(f))

    torch.testing.assert_close(captured(), passes(f), rtol=1e-5, atol=1e-6)


def test_one_program_for_all_passes():
    compiled = fg.jit(keeps_floats)
    passes(compiled, 4)
    assert compiled.cache_info().misses == 1


def test_a_graph_that_is_kept_runs_it_again():
    loss = fg.jit(keeps_floats)(torch.ones(3, requires_grad=True))
    loss.backward(retain_graph=True)
    loss.backward()
    assert LOG == [9, 9]


class Kept(nn.Module):
    def __init__(self):
        super().__init__()
        self.gradients, self.n = None, 0

    def keep(self, gradient):
        self.gradients, self.n = gradient, self.n + 1

    def forward(self, x):
        y = x.sigmoid()
        y.register_hook(self.keep)
        return (y * y).sum()


def test_what_a_method_keeps():
    found = []
    for transform in (lambda f: f, fg.jit):
        model = Kept()
        call = transform(model)
        for n in range(3):
            call(torch.linspace(0, n, 3).requires_grad_()).backward()
            found.append((model.gradients, model.n))
    torch.testing.assert_close(found[:3], found[3:])


def test_what_it_prints(capsys):
    def printing(x):
        y = x * x
        y.register_hook(lambda g: print("gradient", g.sum().item()))
        return y.sum()

    passes(printing)
    wanted = capsys.readouterr().out
    passes(fg.jit(printing))
    assert capsys.readouterr().out == wanted


def test_one_that_writes_nothing_is_traced():
    def scaled(x):
        y = x * x
        y.register_hook(lambda g: g * 2)
        return y.sum()

    compiled, x = fg.jit(scaled), torch.ones(3, requires_grad=True)
    assert "opaque" not in str(compiled.program(x).joint)
    (gradient,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    gradient.sum().backward()
    assert torch.equal(gradient, torch.full((3,), 4.0)) and torch.equal(x.grad, torch.full((3,), 4.0))


def test_a_result_that_does_not_lead_to_it():
    """Of several hooks, those run to which the results lead that are differentiated."""

    def several(x):
        y, z = x * x, x.exp()
        y.register_hook(lambda g: LOG.append(("y", g.tolist())))
        z.register_hook(lambda g: LOG.append(("z", g.tolist())))
        return y.sum(), z.sum(), x * 2

    def passes(f):
        x = torch.ones(2, requires_grad=True)
        first, second, third = f(x)
        found = []
        for out in (third.sum(), second, first):
            out.backward(retain_graph=True)
            found.append((list(LOG), x.grad.tolist()))
        LOG.clear()
        return found

    assert passes(fg.jit(several)) == passes(several)


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
def test_a_gradient_that_is_asked_for_does_not_lead_to_it(region):
    def both(x, y):
        a, b = x * x, y * y
        a.register_hook(lambda g: LOG.append(("a", g.tolist())))
        b.register_hook(lambda g: LOG.append(("b", g.tolist())))
        return (a * b).sum()

    def passes(f):
        x, y = (torch.ones(2, requires_grad=True) for _ in "xy")
        found, loss = [], f(x, y * 1)
        with region():
            torch.autograd.grad(loss, x, retain_graph=True)
            found.append(list(LOG))
            loss.backward(inputs=[y], retain_graph=True)
            found.append(list(LOG))
            loss.backward()
        found.append(list(LOG))
        LOG.clear()
        return found, x.grad.tolist(), y.grad.tolist()

    assert passes(fg.jit(both)) == passes(both)


def test_a_hook_is_given_none_where_another_result_has_a_gradient():
    """Results of one operation, of which two get no gradient, in the function or outside."""

    def f(x):
        a, b, c = (x * 2).chunk(3)
        for part, name in ((a, "a"), (b, "b"), (c, "c")):
            part.register_hook(lambda g, name=name: LOG.append((name, g if g is None else g.tolist())))
        return a * 1, b * 1

    def passes(f):
        x = torch.ones(3, requires_grad=True)
        outs, found = f(x), []
        for of in ([0], [1], [0, 1]):
            sum(outs[i].sum() for i in of).backward(retain_graph=True)
            found.append((sorted(LOG, key=str), x.grad.tolist()))
            LOG.clear()
        return found

    assert passes(fg.jit(f)) == passes(f)


def test_a_second_derivative_does_not_run_it_again():
    x = torch.ones(3, requires_grad=True)
    (gradient,) = torch.autograd.grad(fg.jit(keeps_floats)(x), x, create_graph=True)
    assert LOG == [9]
    with pytest.raises(fg.UnsupportedTransformError, match="runs once"):
        gradient.sum().backward()
    assert LOG == [9]


def test_a_hook_of_a_module():
    """Wrapped as the refusal says."""
    found = []
    for transform, wrap in (lambda f: f, lambda f: f), (fg.jit, fg.opaque(like=None)):
        torch.manual_seed(0)
        model, n = nn.Sequential(nn.Linear(3, 3), nn.ReLU()), [0]

        def hook(module, given, made, n=n):
            n[0] += 1

        model[0].register_full_backward_hook(wrap(hook))
        call = transform(lambda x, model=model: model(x).sum())
        for _ in range(2):
            call(torch.ones(2, 3, requires_grad=True)).backward()
        found.append(n)
    assert found[0] == found[1] == [2]


@pytest.mark.parametrize("given", [False, True])
def test_a_hook_on_a_leaf_that_outlives_the_call_is_warned_of_once(given):
    """Eager PyTorch would keep it, and call it twice after the second call."""
    w = torch.ones(3, requires_grad=True)

    def f(x, own=None):
        leaf = w if own is None else own
        leaf.register_hook(lambda g: g * 2)
        return (leaf * x).sum()

    compiled = fg.jit(f)
    with pytest.warns(
        fg.UnwatchedStateWarning, match=r"registers a hook on a leaf that it is given .*Register it outside"
    ):
        compiled(torch.ones(3), *[w] * given).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(torch.ones(3), *[w] * given).backward()
        compiled((torch.ones(3) * 2), *[w] * given)
    assert w.grad.tolist() == [4.0] * 3
    with warnings.catch_warnings():  # of what is computed, and of tensors of a gradient transform, nothing is kept
        warnings.simplefilter("error")
        fg.jit(lambda x: f(x, w * 1))(torch.ones(3)).backward()
        fg.grad_compiled(lambda v: f(torch.ones(3), v))(torch.ones(3))


def hooks_a_leaf(x):
    x.register_hook(lambda g: g * 2)
    return x[:2], x[1:].t()


def hooks_a_leaf_and_computes(x):
    v = x[:2]
    x.register_hook(LOG.append)
    return v, x * 3


def hooks_a_view(x):
    v = x[:2]
    v.register_hook(lambda g: g * 2)
    return v * 2, v[1:]


def hooks_the_view_it_returns(x):
    v = (x * 2)[:2]
    v.register_hook(lambda g: g * 10)
    return v, v.t()


def hooks_one_of_two_views(x):
    a, b = (x * 2).chunk(2)
    a.register_hook(LOG.append)
    return a, b


def hooks_what_it_returns_and_a_view(x):
    y = x * 2
    y.register_hook(lambda g: g * 2)
    v = y[:1]
    v.register_hook(lambda g: g + 1)
    return y, v


@pytest.mark.parametrize("leaf", [True, False])
@pytest.mark.parametrize(
    "f",
    [
        hooks_a_leaf, hooks_a_leaf_and_computes, hooks_a_view, hooks_the_view_it_returns, hooks_one_of_two_views,
        hooks_what_it_returns_and_a_view,
    ],
)  # fmt: skip
def test_a_hook_hears_of_the_gradient_of_a_view_that_is_returned(f, leaf):
    """The view is taken again outside, of the caller's tensor: its gradient comes by way of the function's hooks."""
    found = []
    for call in (f, fg.jit(f, backend="aten")):
        LOG.clear()
        x = torch.arange(16.0).view(4, 4).requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", fg.UnwatchedStateWarning)
            given = x if leaf else x * 1
            outs = call(given)
        sum((out * out.detach()).sum() for out in outs).backward()
        shared = [out.untyped_storage()._cdata == given.untyped_storage()._cdata for out in outs]
        found.append((x.grad.tolist(), [g.tolist() for g in LOG], shared))
    assert found[0] == found[1]


class OwnHistory(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g * 3


@pytest.mark.parametrize("f", [OwnHistory.apply, lambda x: hooks_the_view_it_returns(x)])
def test_a_view_with_a_history_of_its_own_may_not_be_written_to(f):
    """What is written to it would go past that history, without a word."""
    given = torch.ones(4, 3, requires_grad=True) * 1
    out = fg.jit(f, backend="aten")(given)
    with pytest.raises(RuntimeError, match="is a view and is being modified inplace"):
        (out if isinstance(out, torch.Tensor) else out[1]).mul_(2)


class Counter:
    def __init__(self):
        self.n = 0

    def __call__(self, g):
        self.n += 1


def test_an_object_that_is_a_hook_is_one_that_was_there_before():
    counter = Counter()

    def f(x):
        y = x * 2
        y.register_hook(counter)
        return (y * y).sum()

    compiled, x = fg.jit(f), torch.ones(3, requires_grad=True)
    for n in range(1, 4):
        compiled(x).backward()
        assert counter.n == n

    class Keeps:
        def __call__(self, x):
            y = x * 2
            self.counter = Counter()
            y.register_hook(self.counter)
            return (y * y).sum()

    with pytest.raises(fg.MutationError, match="Counter"):
        fg.jit(Keeps())(x).backward()


def test_a_hook_that_reads_values_and_closes_over_a_computed_tensor_may_write_nothing():
    def f(x, writes):
        y = x * x
        z = y.sum().detach()
        y.register_hook(lambda g: (LOG.append(float(z)) if writes else g * z) if g.sum() > 0 else None)
        return y.sum()

    with pytest.raises(fg.MutationError, match="a hook that reads values"):
        fg.jit(f)(torch.ones(3, requires_grad=True), True).backward()


# ── hooks that leaves have: a backward pass in the function runs them ────────────────────────────────────────────────


def _net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Scale:
    by = 1.0


def _clamps(net):
    for p in net.parameters():
        p.register_hook(lambda g: g.clamp_(-0.05, 0.05))


def _reads_and_keeps(net):
    norms, scale = [], Scale()
    net[0].weight.register_hook(lambda g: norms.append(g.norm()))
    net[2].weight.register_hook(lambda g: g * 0.5 if g.norm() > 0.3 else None)
    net[2].bias.register_hook(lambda g: g * scale.by)

    def between():
        scale.by += 1

    return norms, between


def _steps_when_added(net):
    """As PyTorch's tutorial does it: an optimiser for each parameter, found by the parameter."""
    steps = {p: torch.optim.SGD([p], lr=0.1, momentum=0.9, foreach=False) for p in net.parameters()}

    def step(p):
        steps[p].step()
        steps[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(step)


def _come_and_go(net):
    handles = []

    def between():
        if len(handles) == 2:
            handles[0].remove()
        handles.append(net[0].weight.register_hook(lambda g: g * 2 + len(handles)))

    return [], between


@pytest.mark.parametrize("hooks", [_clamps, _reads_and_keeps, _steps_when_added, _come_and_go])
@pytest.mark.parametrize("parts", [1, 2])
def test_a_backward_pass_inside_runs_the_hooks_of_leaves(hooks, parts):
    def made():
        net = _net()
        kept, between = hooks(net) or ([], lambda: None)

        def step(x):
            for part in x.chunk(parts):
                net(part).square().mean().backward()

        return net, step, kept, between

    (net, f, kept, between), (own, g, its, own_between) = made(), made()
    compiled = fg.jit(g)
    for i in range(4):
        x = torch.arange(18.0).view(6, 3) / (20 + 10 * i)
        f(x), compiled(x)
        for p, q in zip(own.parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(p, q)
            torch.testing.assert_close(p.grad, q.grad)
        torch.testing.assert_close(its, kept)
        between(), own_between()
        for model in (net, own):
            model.zero_grad(set_to_none=i % 2 == 0)


def test_gradients_that_are_asked_for_go_through_the_hooks_of_leaves():
    net = _net()
    _clamps(net)

    def gradients(x):
        return torch.autograd.grad(net(x).square().mean(), list(net.parameters()))

    compiled = fg.jit(gradients)
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.ones(2, 3)), gradients(torch.ones(2, 3)))


def test_a_hook_that_returns_what_it_may_not_raises_as_outside():
    net = _net()
    net[0].bias.register_post_accumulate_grad_hook(lambda p: p.grad.mul_(2))

    def step(x):
        net(x).square().mean().backward()

    for f in (step, fg.jit(step)):
        with pytest.raises(RuntimeError, match="post accumulate grad hooks should return None"):
            f(torch.ones(2, 3))


@pytest.mark.filterwarnings("error")
def test_an_argument_with_a_hook_that_is_gone_over_twice():
    def f(x):
        (x * x).sum().backward()
        with torch.no_grad():
            x.sub_(x.grad)
        (x * x * x).sum().backward()
        return x * 2

    seen = []
    for g in (f, fg.jit(f)):
        x = torch.tensor([0.5, -1.5, 2.5], requires_grad=True)
        x.register_hook(lambda g: g * 2)
        g(x).sum().backward()  # outside, too
        seen.append((x.detach(), x.grad))
    torch.testing.assert_close(seen[1], seen[0])


def test_hooks_that_the_function_does_not_run_are_no_guard():
    w = torch.ones(3, requires_grad=True)
    compiled = fg.jit(lambda x: x * w)
    for _ in range(3):
        handle = w.register_hook(lambda g: g * 2)
        compiled(torch.ones(3)).sum().backward()
        handle.remove()
    assert compiled.cache_info().misses == 1
    assert w.grad.tolist() == [6.0, 6.0, 6.0]


# ── what the caller's Python writes in a backward pass that is no hook on a tensor ───────────────────────────────


def appends_a_number(module, inward, outward):
    LOG.append(outward[0].norm().item())


def appends_a_shape(module, inward, outward):
    LOG.append(tuple(outward[0].shape))


def appends_a_gradient(module, inward, outward):
    LOG.append(outward[0])


def where_it_exceeds(module, inward, outward):
    if outward[0].norm() > 3:
        LOG.append(True)


def prints(module, inward, outward):
    print(tuple(outward[0].shape), f"{outward[0].sum().item():.3f}")


def keeps_on_the_module(module, inward, outward):
    module.seen = getattr(module, "seen", 0) + 1
    module.scale = 0.5 * module.scale + outward[0].norm().item()


class Scaling(nn.Linear):
    scale = 1.0

    def forward(self, x):
        return super().forward(x) * self.scale


class Asking(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, hook):
        print("forward")
        ctx.hook = hook
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        ctx.hook(None, (g,), (g,))
        return g, None


def passes_with(hook, how, make):
    """What some passes with a hook of a module, or a custom Function that does the same, leave behind."""
    torch.manual_seed(0)
    LOG.clear()
    scaling = Scaling(3, 2)
    if how == "module":
        scaling.register_full_backward_hook(hook)
        call = make(lambda x: scaling(x).tanh())
    else:
        call = make(lambda x: Asking.apply(scaling(x).tanh(), lambda _, i, o: hook(scaling, i, o)))
    for n in range(4):
        call(torch.randn(2, 3)).sum().mul(n + 1).backward()
    return list(LOG), getattr(scaling, "seen", 0), scaling.scale, scaling.weight.grad


@pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, and of paths that differ
@pytest.mark.parametrize("how", ["module", "function"])
@pytest.mark.parametrize(
    "hook",
    [appends_a_number, appends_a_shape, appends_a_gradient, where_it_exceeds, prints, keeps_on_the_module],
)
def test_what_python_writes_in_a_backward_pass(hook, how, capsys):
    expected, wanted = passes_with(hook, how, lambda f: f), capsys.readouterr().out
    found, printed = passes_with(hook, how, lambda f: fg.jit(f, backend="aten")), capsys.readouterr().out
    torch.testing.assert_close(found, expected)
    assert printed == wanted


def test_it_writes_again_where_a_graph_is_kept():
    model = nn.Linear(3, 2)
    model.register_full_backward_hook(appends_a_number)
    loss = fg.jit(model, backend="aten")(torch.ones(1, 3, requires_grad=True)).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    assert len(LOG) == 2 and LOG[0] == LOG[1]


def two_calls_then_two_passes(make):
    """The second pass finds what the first one has written to what forward has read."""
    torch.manual_seed(0)
    model = Scaling(3, 2)
    model.register_full_backward_hook(keeps_on_the_module)
    call = make(model)
    losses = [call(torch.ones(1, 3, requires_grad=True) * i).sum() for i in (1, 2)]
    for loss in losses:
        loss.backward()
    return losses, model.scale, model.seen, model.weight.grad


@pytest.mark.parametrize("make", [lambda f: fg.jit(f, backend="aten"), lambda f: fg.jit(fg.jit(f), backend="aten")])
def test_what_it_writes_to_has_changed_since_the_forward_pass(make):
    torch.testing.assert_close(two_calls_then_two_passes(make), two_calls_then_two_passes(lambda f: f))


def test_what_both_passes_write_to():
    class Counting(Scaling):
        n = 0

        def forward(self, x):
            self.n += 1
            return super().forward(x)

    model = Counting(3, 2)

    @model.register_full_backward_hook
    def count(module, inward, outward):
        module.n += 1

    call, x = fg.jit(model, backend="aten"), torch.ones(1, 3, requires_grad=True)
    for i in range(1, 4):
        loss = call(x).sum()
        assert model.n == 2 * i - 1
        loss.backward()
        assert model.n == 2 * i


class PrintsAndScales(torch.autograd.Function):
    @staticmethod
    def forward(x, w):
        return x.clone()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, g):
        print("backward")
        return g * ctx.saved_tensors[0], None


@pytest.mark.parametrize("region", [contextlib.nullcontext, fg.compiled_autograd])
def test_what_backward_alone_reads_is_kept_where_it_is_compiled_when_it_runs(region, capsys):
    weight, compiled = torch.full((2,), 3.0), fg.jit(lambda x, w: PrintsAndScales.apply(x, w).sum())
    for _ in range(3):
        x = torch.ones(2, requires_grad=True)
        with region():
            compiled(x, weight.clone()).backward()
        assert x.grad.tolist() == [3.0, 3.0]
    assert capsys.readouterr().out == "backward\n" * 3


def test_what_backward_writes_at_a_level_is_refused():
    f = fg.jit(lambda x: PrintsAndScales.apply(x, x.detach() + 1).sum())
    with pytest.raises(fg.MutationError, match="lost at a level"):
        torch.func.grad(f)(torch.ones(2))


def removes_itself(p):
    def hook(g):
        handle.remove()
        return g * 7

    handle = p.register_hook(hook)


def removes_itself_after(p):
    def hook(q):
        handle.remove()
        q.grad = q.grad * 7

    handle = p.register_post_accumulate_grad_hook(hook)


@pytest.mark.parametrize("register", [removes_itself, removes_itself_after])
def test_a_hook_of_a_leaf_that_removes_itself_is_refused_and_stays(register):
    """What the dry run removed was gone: no call had it."""
    p, x = nn.Parameter(torch.tensor([1.0, 2.0])), torch.ones(2)
    register(p)

    def f(x):
        p.grad = None
        (p * x).sum().backward()
        return x * 1

    with pytest.raises(fg.MutationError, match="removes a hook of a tensor it was given"):
        fg.jit(f)(x)
    f(x)
    assert p.grad.tolist() == [7, 7]
    fg.jit(f)(x)
    assert p.grad.tolist() == [1, 1]


def test_a_function_that_removes_a_hook_of_a_leaf_is_refused():
    p = nn.Parameter(torch.tensor([1.0, 2.0]))
    handle = p.register_hook(lambda g: g * 7)

    def f(x):
        p.grad = None
        (p * x).sum().backward()
        with handle:  # removes it
            return x * 1

    with pytest.raises(fg.MutationError, match="removes a hook of a tensor it was given"):
        fg.jit(f)(torch.ones(2))
    assert len(p._backward_hooks) == 1


class Counters:
    def __init__(self):
        self.n, self.factor, self.seen, self.log, self.twice = 0, 1.0, None, [], 2.0


class Decaying(torch.autograd.Function):
    """Forward reads a factor that backward writes, after it has written other state."""

    @staticmethod
    def forward(ctx, x, state):
        ctx.state = state
        return x * state.factor

    @staticmethod
    def backward(ctx, g):
        state = ctx.state
        state.n += 1
        state.log.append(state.n)
        state.factor = state.factor * 0.5
        return g * 2, None


def test_what_forward_reads_a_backward_pass_has_written_since():
    def left(make):
        state = Counters()
        f = make(lambda x: Decaying.apply(x, state).sum())
        xs = [torch.ones(2, requires_grad=True) for _ in range(3)]
        losses = [f(x) for x in xs]
        for loss in losses:
            loss.backward()
        return [loss.item() for loss in losses], [x.grad.tolist() for x in xs], vars(state)

    assert left(lambda f: fg.jit(f, backend="aten")) == left(lambda f: f)


def counts_an_attribute(state):
    state.n += 1
    return lambda: state.n


def grows_a_list(state):
    state.log.append(1)
    return lambda: len(state.log)


CALLS = 0


def counts_a_variable(state):
    global CALLS
    CALLS += 1
    return lambda: CALLS


def writes_what_nobody_reads(state):
    state.n += 1
    return lambda: state.twice


class Reading(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, state, forward):
        ctx.state, ctx.read = state, forward(state)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.state.seen = ctx.read()
        return g * 2, None, None


@pytest.mark.parametrize("forward", [counts_an_attribute, grows_a_list, counts_a_variable])
def test_a_backward_pass_that_writes_reads_what_forward_has_written(forward):
    def seen(make):
        global CALLS
        CALLS = 0
        state, found = Counters(), []
        f = make(lambda x: Reading.apply(x, state, forward).sum())
        for _ in range(2):
            for loss in [f(torch.ones(2, requires_grad=True)) for _ in range(2)]:
                loss.backward()
                found.append(state.seen)
        return found, vars(state)

    assert seen(lambda f: fg.jit(f, backend="aten")) == seen(lambda f: f)


def test_it_may_read_what_forward_does_not_write():
    state = Counters()
    f = fg.jit(lambda x: Reading.apply(x, state, writes_what_nobody_reads).sum(), backend="aten")
    for i in range(3):
        outs = [f(torch.ones(2, requires_grad=True)) for _ in range(2)]
        state.twice = 2.0
        for out in outs:
            out.backward()
        assert (state.n, state.seen) == (2 * i + 2, 2.0)
