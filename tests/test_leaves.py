"""What only leaves have: ``.grad``, ``.backward()`` inside the function, ``requires_grad_()``. Eager PyTorch is the
oracle."""

import queue

import pytest
import torch
from closeness import assert_rounded
from laws.programs import Case, CountBackward, Double, difference, require_as_eager, run
from torch import nn

import funcgrad as fg


def leaf(requires_grad=True):
    return (torch.arange(4.0) / 5 + 0.1).requires_grad_(requires_grad)


def values():
    return torch.arange(4.0) + 1


def backward_inside(x, y):
    (x * x * y).sum().backward()
    return x.grad


def twice(x, y):
    (x * y).sum().backward()
    (x * x).sum().backward()


def descent(x, y):
    loss = (x * x * y).sum()
    loss.backward()
    with torch.no_grad():
        x.sub_(x.grad, alpha=0.1)
    return loss


def descent_from_zero(x, y):
    if x.grad is not None:
        x.grad.zero_()
    (x * x * y).sum().backward()
    with torch.no_grad():
        x -= 0.1 * x.grad


def descent_of_data(x, y):
    x.grad = None
    loss = (x * x * y).sum()
    loss.backward()
    x.data.sub_(x.grad, alpha=0.1)
    x.grad = None
    return loss.detach()


def the_graph_kept(x, y):
    loss = (x * x * y).sum()
    loss.backward(retain_graph=True)
    return loss


def set_to_an_input(x, y):
    x.grad = y
    return x * y.sum()


def set_to_a_view(x, y):
    x.grad = y.view(2, 2).view(4)
    y.mul_(2)
    return x * 2


def set_to_a_result(x, y):
    z = x.detach() * y
    x.grad = z
    return z


def read(x, y):
    return x * 2 + (0 if x.grad is None else x.grad)


def dropped(x, y):
    x.grad = None
    return x * y


def switched_on(x, y):
    before = x * 2
    x.requires_grad_()
    return before, x * x * y


def switched_off(x, y):
    before = x * 2
    x.requires_grad_(False)
    return before, x * y


def frozen_for_a_write(x, y):
    x.requires_grad_(False)
    x.mul_(2)
    x.requires_grad_(True)
    return x * y


def written_then_switched_on(x, y):
    with torch.no_grad():
        x.mul_(2)
    x.requires_grad = True
    return x * x


def switched_on_and_differentiated(x, y):
    x.requires_grad_()
    (x * x * y).sum().backward()
    return x.grad * 1


def a_gradient_of_what_is_switched_on(x, y):
    x.requires_grad_()
    (g,) = torch.autograd.grad((x * x * y).sum(), x)
    x.requires_grad_(False)
    return g


def a_view_before(x, y):
    before = x[1:]
    x.requires_grad_()
    return before, x * y, before * y[1:]


def on_and_off(x, y):
    x.requires_grad_()
    between = x * y
    x.requires_grad_(False)
    return between, x[1:]


def a_view_after(x, y):
    x.requires_grad_(False)
    return x[1:], y * 2


def nothing_to_track(x, y):
    with torch.no_grad():
        z = x.sin()
    x.requires_grad_()
    return z


def a_leaf_made_inside(x, y):
    z = (x.detach() * 2).requires_grad_()
    return z * y, y * 2


def a_leaf_and_what_it_was(x, y):
    z = x.detach() * 2
    same = z.detach()
    z.requires_grad_()
    same.unsqueeze_(0)
    return z, same


def a_leaf_and_a_part(x, y):
    z = x.detach() * 2
    part = z[1:]
    z.requires_grad_()
    return part, z.detach()


def a_leaf_over_an_input(x, y):
    z = x.data
    part = z[1:]
    z.requires_grad_()
    return part


CASES = (
    backward_inside, twice, descent, descent_from_zero, descent_of_data, the_graph_kept, set_to_an_input, set_to_a_view,
    set_to_a_result,
    read, dropped, switched_on, switched_off, frozen_for_a_write, written_then_switched_on,
    switched_on_and_differentiated,
    a_gradient_of_what_is_switched_on, a_view_before, on_and_off, a_view_after, nothing_to_track, a_leaf_made_inside,
    a_leaf_and_what_it_was, a_leaf_and_a_part, a_leaf_over_an_input,
)  # fmt: skip


def calls(f, x, y, n=3):
    """What there is to see after each of some calls on the same arguments, each followed by a backward pass, if one
    can be."""
    found = []
    for _ in range(n):
        outs = f(x, y)
        outs = outs if isinstance(outs, tuple) else (outs,) if outs is not None else ()
        looks = [(t.requires_grad, t.is_leaf, t is x.grad, x.grad is y) for t in (x, y, *outs)]
        gradients = [x.grad is None, torch.zeros(4) if x.grad is None else x.grad.clone()]
        memory = x.grad is not None and any(t.data_ptr() == x.grad.data_ptr() for t in (y, *outs))
        held = [t.detach().clone() for t in (x, y, *outs)]
        ran = "nothing to run"
        if any(t.requires_grad for t in outs):
            try:
                sum(t.sum() for t in outs if t.requires_grad).backward()
                ran = "runs"
            except RuntimeError:
                ran = "raises"
        found.append((held + gradients[1:], [looks, gradients[0], memory, ran, x.grad is None]))
        found.append(([torch.zeros(4) if x.grad is None else x.grad.clone()], []))
    return found


@pytest.mark.parametrize("before", [False, True], ids=["", "a gradient before"])
@pytest.mark.parametrize("requires_grad", [True, False], ids=["requires grad", "does not"])
@pytest.mark.parametrize("f", CASES, ids=lambda f: f.__name__)
def test_as_in_eager(f, requires_grad, before):
    results = []
    for function in (f, fg.jit(f)):
        x, y = leaf(requires_grad), values()
        if before:
            x.grad = torch.ones(4)
        try:
            results.append(calls(function, x, y))
        except RuntimeError:
            results.append(None)
    expected, found = results
    assert (expected is None) == (found is None)
    for (tensors, facts), (ours, own_facts) in zip(expected or (), found or (), strict=True):
        assert_rounded(ours, tensors)
        assert own_facts == facts


def training(optimizer, zero, transform, warm):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1))
    chosen = optimizer(model.parameters())
    x = torch.arange(12.0).view(4, 3) / 7

    def step(x):
        chosen.zero_grad(set_to_none=zero)
        loss = (model(x) ** 2).mean()
        loss.backward()
        chosen.step()
        return loss.detach()

    for _ in range(warm):
        step(x)
    compiled = transform(step)
    losses = [compiled(x).clone() for _ in range(4)]
    return losses, [*model.parameters(), *model.buffers()], [p.grad for p in model.parameters()], compiled


@pytest.mark.filterwarnings("ignore::funcgrad.UnresolvedCaptureWarning")
@pytest.mark.parametrize("zero", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_whole_training_step(momentum, zero):
    """With momentum, the optimizer has made its state before: a function stores no new tensor where another call
    would find it."""
    optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=momentum)  # noqa: E731
    expected = training(optimizer, zero, lambda f: f, 1)
    found = training(optimizer, zero, fg.jit, 1)
    for ours, theirs in zip(found[:3], expected[:3], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert found[3].cache_info().misses == 1


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=False),
        lambda p: torch.optim.Rprop(p, lr=0.1),
    ],
)
def test_a_whole_step_of_an_optimizer_with_the_state_it_makes(make):
    results = []
    for transform in (lambda f: f, fg.jit):
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = make(model.parameters())

        def step(x, model=model, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (model(x) ** 2).mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        compiled = transform(step)
        losses = [compiled(torch.randn(4, 3)) for _ in range(6)]
        state = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
        results.append((losses, list(model.parameters()), state))
    torch.testing.assert_close(results[0], results[1])
    assert compiled.cache_info().misses <= 3


def test_forward_and_backward_compiled_and_the_optimizer_outside():
    results = []
    for transform in (lambda f: f, fg.jit):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters())

        def both(x, model=model):
            loss = (model(x) ** 2).mean()
            loss.backward()
            return loss.detach()

        compiled = transform(both)
        for i in range(4):  # gradients of two batches add up
            optimizer.zero_grad()
            compiled(torch.full((2, 3), 1.0 + i))
            compiled(torch.ones(2, 3))
            optimizer.step()
        results.append([*model.parameters(), *(p.grad for p in model.parameters())])
    torch.testing.assert_close(*results)
    assert compiled.cache_info().misses == 2  # without a gradient, and with one


def test_the_printed_call():
    x = leaf()
    program = fg.jit(backward_inside).program(x, values())
    assert [str(e) for layer in program.layers for e in layer.effects] == ["x.grad = new(x.grad)"]
    assert "if x.grad is not None: return MISS" in program.call.text
    x.grad = torch.ones(4)
    c = fg.jit(backward_inside)
    program = c.program(x, values())
    lines = [line.strip() for line in program.call.text.splitlines()]
    assert "x_grad = x.grad" in lines and "x_grad.copy_(final_x_grad)" in lines
    x.grad = None
    assert "x.grad: is no tensor any more: None" in c.explain_miss(x, values())
    program = fg.jit(switched_on).program(leaf(False), values())
    lines = [line.strip() for line in program.call.text.splitlines()]
    assert lines.index("x.requires_grad_()") < next(i for i, line in enumerate(lines) if "= kernel(" in line)


@pytest.mark.parametrize("transform", [fg.jit, fg.grad_compiled])
def test_captured_tensors(transform):
    weight, frozen = torch.ones(4), nn.Parameter(torch.ones(4))
    frozen.grad = torch.ones(4)

    def f(x):
        weight.requires_grad_()
        frozen.requires_grad_(False)
        frozen.grad = None
        return (x * weight * frozen).sum()

    c = transform(f)
    for calls in (1, 2):
        torch.testing.assert_close(
            c(leaf(False)).detach(), f(leaf(False)).detach() if transform is fg.jit else torch.ones(4)
        )
        assert weight.requires_grad and not frozen.requires_grad and frozen.grad is None
    assert c.cache_info().misses == 2, calls  # the second call finds them as they are then


def test_a_gradient_that_is_an_argument_too():
    def f(x, g):
        x.grad.mul_(2)
        return g * x

    results = []
    for function in (f, fg.jit(f)):
        x = leaf()
        x.grad = values()
        results.append([function(x, x.grad), function(x, x.grad), x.grad])
    assert_rounded(results[1], results[0])


def test_one_object_under_two_names():
    def f(x, y):
        (x * y).sum().backward()
        return y.grad

    results = []
    for function in (f, fg.jit(f)):
        x = leaf()
        results.append([function(x, x).clone(), function(x, x).clone(), x.grad])
    assert_rounded(results[1], results[0])


@pytest.mark.parametrize("change", [lambda x: x.unsqueeze_(0), lambda x: x.t_(), lambda x: setattr(x, "data", WIDE)])
def test_one_object_under_two_names_has_a_gradient_of_before_its_sizes_changed(change):
    def f(x, y):
        x.grad = y.detach() * 2
        change(x)
        return (y * 2,)

    def make():
        x = torch.arange(6.0).view(2, 3)
        return x, x

    require_as_eager(Case(make, f))


WIDE = torch.ones(3, 4)


def test_one_object_under_two_names_is_a_view_of_what_comes_to_require_grad():
    def f(x, y, base):
        with torch.no_grad():
            base.requires_grad_()
        return (y.detach() * 2,)

    def make():
        base = torch.arange(8.0)
        view = base[:4]
        return view, view, base

    require_as_eager(Case(make, f))


def overlapping():
    base = torch.arange(6.0)
    return base[:4], base[2:]


def given_to_what_is_computed(x, y):
    x.grad = y * 2
    return x * 1, x.grad


def taken_from_what_is_computed(x, y):
    x.grad = None
    return (x * y,)


def given_and_written_to(x, y):
    x.grad = y
    x.mul_(2)
    return x * 1, y


def given_beside_a_write_to_its_memory(x, y):
    x.grad = x.detach() * 2
    x[:1].mul_(3)
    return x * 1, y


def test_a_view_that_is_written_to_is_given_a_gradient():
    def make():
        base = leaf() * 2
        return base[:2], base[1:]

    case, compiled = Case(make, given_beside_a_write_to_its_memory), fg.jit(given_beside_a_write_to_its_memory)
    assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
    assert found.error is None, found.error


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("f", [given_to_what_is_computed, taken_from_what_is_computed, given_and_written_to])
def test_what_is_computed_outside_is_given_a_gradient(f):
    require_as_eager(Case(lambda: (leaf() * 2, values()), f))


def test_a_program_for_a_leaf_is_none_for_what_is_computed():
    def f(x):
        (x * x).sum().backward()
        return x.detach() * 2

    compiled, x = fg.jit(f), leaf()
    compiled(leaf())
    compiled(x * 1)
    assert_rounded(x.grad, 2 * x.detach())
    compiled(y := leaf())
    assert_rounded(y.grad, 2 * y.detach())
    assert compiled.cache_info().misses == 2


def test_a_program_for_what_is_computed_is_none_for_a_leaf():
    def f(x, y):
        x.grad = y * 2
        return x * 1

    compiled, x, y = fg.jit(f), leaf(), values()
    compiled(leaf() * 1, y)
    assert compiled.explain_miss(x, y) == "x: is a leaf"
    compiled(x, y)
    assert_rounded(x.grad, y * 2)


REFUSED = {
    "retained": (lambda x, y: x.retain_grad(), lambda: (leaf() * 2, values()), "has it retained"),
    "overlap": (
        lambda x, y: (y.mul_(2), x.requires_grad_())[1] * 2,
        overlapping,
        "writes to one that overlaps with it",
    ),
    "sizes": (
        lambda x, y: (torch.no_grad()(x.unsqueeze_)(0), setattr(x, "grad", y[None]))[0],
        lambda: (leaf(), values()),
        "asks for its gradient",
    ),
    "memory": (
        lambda x, y: (x.requires_grad_(), setattr(x, "data", y))[0] * 2,
        lambda: (leaf(False), values()),
        "gives it other memory",
    ),
}


def a_view():
    return torch.arange(6.0)[1:5], values()


REFUSED |= {
    "tracked": (
        lambda x, y: (x.requires_grad_(False), x.copy_(y * y))[0] * 2,
        lambda: (leaf(), leaf()),
        "a leaf, what requires grad",
    ),
    "given, switched": (
        lambda x, y: (setattr(x, "data", y), x.requires_grad_(False))[1] * 2,
        lambda: (leaf(), values()),
        "other memory",
    ),
    "a hidden leaf": (
        lambda x, y: CountBackward.apply(x.clone().requires_grad_(), y),
        lambda: (leaf(False), values()),
        "a leaf it made itself",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_out_is_refused_before_anything_changes(name):
    f, make, message = REFUSED[name]
    x, y = make()
    with pytest.raises(fg.MutationError, match=message):
        fg.jit(f)(x, y)
    again, _ = make()
    assert_rounded([x.detach(), y], [again.detach(), make()[1]])
    assert x.requires_grad == again.requires_grad and x.shape == again.shape


def test_a_second_derivative_of_what_sets_a_gradient_is_refused():
    def f(x, y):
        x.grad = y
        return x**3

    x = leaf()
    out = fg.jit(f)(x, values())
    with pytest.raises(fg.UnsupportedTransformError, match=r"sets or reads x.grad"):
        torch.autograd.grad(out.sum(), x, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(fg.jit(f)(x, values()).sum(), x)[0], 3 * x.detach() ** 2)


def test_another_run_that_sets_another_gradient_is_refused():
    runs = queue.SimpleQueue()  # nothing watches it

    def f(x, y):
        if runs.qsize():
            x.grad = y
        runs.put("first")
        return x * 2

    with pytest.raises(fg.TraceError, match="sets the gradient of x in one of two runs"):
        fg.jit(f)(leaf(), values())


def given_to_a_result(x, y):
    z = x * 2
    z.grad = x.detach() * 3
    return z, z[:1]


def given_an_input(x, y):
    z = x * 2
    z.grad = y
    z.mul_(2)
    y.detach().add_(1)
    return z, z.grad


def given_to_a_constant(x, y):
    z = y.detach() * 2
    z.grad = y.detach() * 4
    return (z,)


def computed_for_a_leaf_it_made(x, y):
    z = (y.detach() * 2).requires_grad_()
    (z * z).sum().backward()
    return (z,)


def retained_inside(x, y):
    z = x * 2
    z.retain_grad()
    (z * z * y).sum().backward()
    return (z,)


def given_to_a_view(x, y):
    z = x[1:]
    z.grad = y[1:].detach()
    return z, x


def changed_when_it_has_one(x, y):
    z = x * 2
    z.grad = y
    z.unsqueeze_(0)
    return (z,)


def set_when_it_has_changed(x, y):
    z = x * 2
    with torch.no_grad():
        z.unsqueeze_(0)
    z.grad = y.unsqueeze(0)
    return (z,)


def resized_when_it_is_one(x, y):
    x.grad = y * 2
    with torch.no_grad():
        x.grad.resize_(9).zero_()
    return ()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize(
    "make", [lambda: (leaf(), values()), lambda: (leaf().sin(), values()), lambda: (leaf(), leaf())]
)
@pytest.mark.parametrize(
    "f",
    [
        given_to_a_result,
        given_an_input,
        given_to_a_constant,
        computed_for_a_leaf_it_made,
        retained_inside,
        given_to_a_view,
        changed_when_it_has_one,
        set_when_it_has_changed,
        resized_when_it_is_one,
    ],
)
def test_what_is_returned_has_the_gradient_it_was_given(f, make):
    case, compiled = Case(make, f), fg.jit(f)
    for _ in range(2):
        expected, found = run(case, lambda f: f), run(case, lambda f: compiled)
        assert difference(expected, found) is None
        assert found.error is None or expected.error is not None, found.error


@pytest.mark.parametrize("made", [lambda x, y: x * y, lambda x, y: x.view(2, 2)])
def test_a_result_keeps_the_gradient_that_comes_to_it(made):
    def f(x, y):
        z = made(x, y)
        z.retain_grad()
        return z

    for g in (f, fg.jit(f)):
        z = g(leaf(), values())
        (z * z).sum().backward()
        assert_rounded(z.grad, 2 * z.detach())


def beside_what_depends_on_it(x, y):
    z = x * 2
    z.retain_grad()
    return (z * y).sum(), z


def written_to_what_backward_reads(x, y):
    part = y[1:]
    part.requires_grad_()
    z = y * part.mean()
    with torch.no_grad():
        y.zero_()
    return z


def restrided_then_switched(x, y):
    z = y.detach() * 1
    view = z.view_as(z)
    z.unsqueeze_(0)
    z.requires_grad_()
    return view


def a_gradient_with_a_history(x, y):
    z = x * x
    y.transpose_(0, -1)
    x.grad = z


REFUSED_RESULTS = {
    "kept": (beside_what_depends_on_it, "keeps its gradient .* beside what depends on it"),
    "backward would fail": (written_to_what_backward_reads, "its backward pass would fail"),
    "switched": (restrided_then_switched, "and switches requires_grad"),
}


@pytest.mark.parametrize("name", REFUSED_RESULTS)
def test_what_cannot_be_done_to_a_result_is_refused(name):
    f, message = REFUSED_RESULTS[name]
    with pytest.raises(fg.MutationError, match=message):
        fg.jit(f)(leaf("backward" not in name), values())


def test_a_gradient_with_a_history_beside_a_change_of_sizes_is_refused():
    base = leaf() * 1
    with pytest.raises(fg.MutationError, match="has a history that goes by them"):
        fg.jit(a_gradient_with_a_history)(base[:3], base.view(2, 2))


def test_an_input_may_come_to_depend_on_a_leaf_that_nobody_has():
    def f(x, y):
        made = (y * 2).requires_grad_()
        x.add_(made.mean())
        return ()

    def make():
        base = torch.arange(6.0)
        return base[2:], values(), base[:4]

    case, compiled = Case(make, lambda x, y, z: f(x, y)), fg.jit(lambda x, y, z: f(x, y))
    for _ in range(2):
        assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
        assert found.error is None, found.error
    assert compiled.program(*make()).layers


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_leaf_with_a_gradient_comes_to_have_a_history():
    def f(w, x):
        w.grad.mul_(2)
        w.mul_(x.sum())
        return ()

    def make():
        w = values()
        w.grad = torch.ones(4)
        return w, leaf()

    require_as_eager(Case(make, f))


def test_a_gradient_that_is_set_of_what_was_a_leaf_is_set():
    """What requires grad was written to it, so it is a leaf no more."""

    def f(x, y):
        x.copy_(y.mean())
        x.grad = x.detach() * 2
        return ()

    case = Case(lambda: (torch.ones(3), torch.ones(3, requires_grad=True)), f)
    compiled = fg.jit(f)
    assert difference(run(case, lambda f: f), run(case, lambda f: compiled)) is None
    x = torch.ones(3)
    compiled(x, leaf())
    torch.testing.assert_close(x.grad, 2 * leaf().mean().expand(3))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("n", [0, 4])
def test_a_gradient_that_is_set_before_what_requires_grad_is_written_stays(n):
    def f(x, y):
        x.grad = x.detach() * 2
        x.mul_(y.sum())
        return ()

    require_as_eager(Case(lambda: (torch.ones(n), leaf() * 1), f))


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_custom_function_that_writes_takes_the_gradient_of_what_requires_grad():
    def f(x, y):
        x.copy_(y)
        Double.apply(x)
        return ()

    def make(with_gradient):
        x = values()
        x.grad = x.clone() if with_gradient else None
        return x, leaf()

    compiled = fg.jit(f)
    for with_gradient in (True, False, True):
        case = Case(lambda with_gradient=with_gradient: make(with_gradient), f)
        assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
        assert found.error is None, found.error
    x, y = make(True)
    with torch.no_grad():
        compiled(x, y)
    assert x.grad is not None


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("is_input", [True, False])
def test_it_takes_the_gradient_that_was_set_before_the_tensor_came_to_look_otherwise(is_input):
    def f(x):
        y = x if is_input else x * 2
        y.grad = y.detach() * 2
        y.unsqueeze_(0)
        Double.apply(y)
        return (y,)

    case, compiled = Case(lambda: ((leaf() * 1).clone(),), f), fg.jit(f)
    for _ in range(2):
        assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
        assert found.error is None and found.refused is None


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
def test_a_result_keeps_its_gradient_when_it_comes_to_look_otherwise():
    def restrided(x):
        z = x * 2
        z.grad = z.detach() * 2
        z.t_()
        z.grad.add_(z.detach())
        return z.grad

    def set_to_none(x):
        z = x * 2
        z.grad = z.detach() * 2
        z.unsqueeze_(0)
        z.grad = None
        return x * 2 if z.grad is None else x * 3

    def set_again(x):
        z = x * 2
        z.grad = z.detach() * 2
        z.unsqueeze_(0)
        z.grad = z.detach() * 5
        z.squeeze_(0)
        return z.grad * 2

    def given_other_memory(x):
        z = x.detach().clone().requires_grad_()
        z.data = x * 2
        (z * z).sum().backward()
        return z.grad

    for f in (restrided, set_to_none, set_again, given_other_memory):
        torch.testing.assert_close(fg.jit(f)(values()), f(values()))


def restrided_and_given(x, y):
    x.unsqueeze_(0)
    x.grad = x.detach() * 2
    return x.grad * 3, x


def given_and_restrided_back(x, y):
    x.grad = x.detach() * 2
    x.unsqueeze_(0)
    x.squeeze_()
    return (x.grad * 2,)


def given_and_restrided(x, y):
    x.grad = x.detach() * 2
    x.relu_()
    x.unsqueeze_(0)
    return x, x.cumsum(0)


def given_and_other_memory(x, y):
    x.grad = x.detach() * 2
    x.data = torch.ones(7, dtype=torch.float64)
    return x, x.grad


def restrided_and_set_to_none(x, y):
    x.unsqueeze_(-1)
    x.grad = None
    return (x * 2 if x.grad is None else x * 3,)


def given_other_memory_and_a_gradient(x, y):
    x.data = y[:2] * 2
    x.grad = y[:2] * 3
    return (x * 2,)


def written_to_beside_what_overlaps(x, y):
    y.mul_(2)
    x.grad = x.detach() * 2
    return (x * 3,)


def its_gradient_is_written_to(x, y):
    y.mul_(2)
    if x.grad is not None:
        x.grad.mul_(2)
    return x.grad if x.grad is None else (x.grad * 1,)


def plain():
    return leaf(False), values()


def kin():
    base = torch.arange(8.0)
    return base[:4], base[2:6]


def kin_with_a_gradient():
    x, y = kin()
    x.grad = torch.ones(4)
    return x, y


def computed_kin():
    base = torch.arange(8.0).requires_grad_() * 1
    return base[:4], base[2:6]


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize(
    ("f", "make"),
    [
        *((f, make) for f in (
            restrided_and_given, given_and_restrided_back, restrided_and_set_to_none, given_and_restrided,
            given_and_other_memory,
        ) for make in (plain, lambda: (leaf() * 2, values()), lambda: (values()[1:3], values()))),
        (given_other_memory_and_a_gradient, plain),
        *((written_to_beside_what_overlaps, make) for make in (kin, kin_with_a_gradient, computed_kin)),
        (its_gradient_is_written_to, kin_with_a_gradient),
    ],
)  # fmt: skip
def test_a_gradient_is_set_of_what_none_arrives_at(f, make):
    """What requires no grad, or is computed outside, has the gradient that it is given, whatever else is done to it."""
    require_as_eager(Case(make, f))


def looked_at_before(x, y):
    look = x[1:]
    x.requires_grad_()
    return look * 2, look, x * y, x[1:]


def looked_at_without_history(x, y):
    x.requires_grad_()
    with torch.no_grad():
        look = x[1:]
    return look * 2, look, x * y


def detached_after(x, y):
    x.requires_grad_()
    return x.detach() * 2, x.data[1:], (x * y).sum()


def differentiated_inside(x, y):
    x.requires_grad_()
    (x * x * y).sum().backward()
    with torch.no_grad():
        x -= 0.1 * x.grad
    return (x.detach() * 1,)


def penalty(x, y):
    """The norm of a gradient with respect to a part of a batch."""
    x.requires_grad_()
    (slope,) = torch.autograd.grad((x * x * y).sum(), x, create_graph=True)
    return (slope.square().sum(),)


def written_before_it_requires_grad(x, y):
    x.mul_(2)
    x.grad = x.detach() * 2
    x.requires_grad_()
    return (x * y,)


@pytest.mark.parametrize(
    "make",
    [a_view, plain, lambda: (torch.arange(8.0).view(2, 4)[:, 1], torch.ones(2)), kin],
    ids=["a_view", "plain", "view_of_ones", "kin"],
)
@pytest.mark.parametrize(
    "f",
    [
        looked_at_before, looked_at_without_history, detached_after, differentiated_inside, penalty,
        written_before_it_requires_grad,
    ],
)  # fmt: skip
def test_a_view_of_what_requires_no_grad_comes_to_require_it(f, make):
    """It does so for itself: its base does not, nor do its views that are taken without history."""
    case, compiled = Case(make, f), fg.jit(f)
    for _ in range(2):
        assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
        assert found.error is None or "overlaps with it" in found.error, found.error
    for other in (plain, a_view):  # one program for a view, one for what is none
        case = Case(other, f)
        assert difference(run(case, lambda f: f), run(case, lambda f: compiled)) is None


def descent_to_other_memory(x, y):
    loss = (x * x * y).sum()
    loss.backward()
    x.data = x.data - 0.1 * x.grad
    x.grad = None
    return (loss.detach(),)


def two_such_steps(x, y):
    for _ in range(2):
        x.grad = None
        (x * x * y).sum().backward()
        x.data = x.data - 0.1 * x.grad
    return (x * y,)


def other_memory_then_a_gradient(x, y):
    x.data = x.data * 2
    x.grad = y * 3
    (x * x * y).sum().backward()
    return x * 2, x.grad * 1


def a_gradient_then_other_memory(x, y):
    x.grad = y * 3
    x.data = x.data * 2
    (x * x * y).sum().backward()
    x.grad.mul_(2)
    return (x * 2,)


def a_view_of_what_requires_no_grad():
    return torch.arange(6.0)[1:5].requires_grad_(), values()


def with_a_gradient():
    x, y = leaf(), values()
    x.grad = y.clone()
    return x, y


@pytest.mark.parametrize("make", [lambda: (leaf(), values()), with_a_gradient, a_view_of_what_requires_no_grad])
@pytest.mark.parametrize(
    "f",
    [
        descent_to_other_memory,
        two_such_steps,
        other_memory_then_a_gradient,
        a_gradient_then_other_memory,
        backward_inside,
        twice,
    ],
)
def test_a_leaf_has_its_gradient_and_is_given_other_memory(f, make):
    case = Case(make, lambda x, y: (result if isinstance(result := f(x, y), tuple) else (),)[0])
    compiled = fg.jit(case.f)
    for _ in range(2):
        assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
        assert found.error is None, found.error


def test_a_leaf_that_is_a_view_is_one_for_itself():
    """What it is a view of requires no grad, so a view of it that is taken without history does not."""

    def f(x, y):
        with torch.no_grad():
            look = x[1:]
        return look * look, look, x * y

    for make in (a_view_of_what_requires_no_grad, lambda: (leaf(), values())):
        case, compiled = Case(make, f), fg.jit(f)
        assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
        assert found.error is None, found.error


def flat_parameter():
    """What the parameters are views of, which gets the gradient; and an input."""
    flat = torch.arange(8.0).div(5).requires_grad_()
    return flat, flat[:6].view(2, 3), flat[6:], torch.ones(3)


def flat_parameter_with_a_gradient():
    flat, w, b, x = flat_parameter()
    flat.grad = torch.ones(8)
    return flat, w, b, x


def step_of_all(flat, w, b, x):
    loss = (w @ x + b).square().sum()
    loss.backward()
    with torch.no_grad():
        flat.sub_(0.1 * flat.grad)
    return (loss.detach(),)


def step_of_each_view(flat, w, b, x):
    loss = (w @ x + b).square().sum()
    loss.backward()
    with torch.no_grad():
        w.sub_(0.1 * flat.grad[:6].view(2, 3))
        b.sub_(0.1 * flat.grad[6:])
    flat.grad.zero_()
    return (loss.detach(),)


def its_gradient_and_results(flat, w, b, x):
    flat.grad = None
    (w @ x + b).square().sum().backward()
    with torch.no_grad():
        b.mul_(0.5)
    return flat * 2, w + flat.grad[:6].view(2, 3)


@pytest.mark.parametrize("make", [flat_parameter, flat_parameter_with_a_gradient])
@pytest.mark.parametrize("f", [step_of_all, step_of_each_view, its_gradient_and_results])
def test_a_leaf_gets_its_gradient_and_views_of_it_are_written_to(f, make):
    require_as_eager(Case(make, f))


def test_training_steps_of_a_flat_parameter():
    def steps(transform):
        flat, w, b, x = flat_parameter()
        step = transform(lambda x: step_of_each_view(flat, w, b, x)[0])
        losses = [step(x * (i + 1) / 4) for i in range(4)]
        return [*losses, flat.detach(), w.detach(), flat.grad]

    assert_rounded(steps(fg.jit), steps(lambda f: f))


def switched_and_returned(x):
    with torch.no_grad():
        v = x[:2]
    return v.requires_grad_()


def switched_with_backward(x):
    with torch.no_grad():
        v = x[:2]
    before = v * 3
    v.requires_grad_()
    (v * v).sum().backward()
    return v.grad, before


@pytest.mark.parametrize("f", [switched_and_returned, switched_with_backward])
def test_a_view_taken_under_no_grad_comes_to_be_a_leaf(f):
    found = []
    for call in (f, fg.jit(f)):
        x = torch.arange(1.0, 5, requires_grad=True)
        outs = call(x)
        outs = outs if isinstance(outs, tuple) else (outs,)
        (outs[0] * 2 + outs[-1]).sum().backward()
        found.append([x.grad, *((out, out.requires_grad, out.is_leaf, out.is_leaf and out.grad) for out in outs)])
    assert str(found[0]) == str(found[1]).replace("_ApplyBackward", "MulBackward0")
