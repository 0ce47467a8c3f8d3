"""``.backward()`` inside a function that goes on through what its inputs were computed from. Eager PyTorch is the
oracle."""

import queue
from collections import Counter

import pytest
import torch
from closeness import assert_rounded
from laws.programs import Case, Count, Program, check, difference, run

import funcgrad as fg


def leaf():
    return (torch.arange(4.0) / 5 + 0.1).requires_grad_()


def values():
    return torch.arange(4.0) + 1


def once(x, y):
    (x * y).sum().backward()
    return ()


def twice(x, y):
    (x * y).sum().backward()
    (x * x).sum().backward()
    return ()


def kept(x, y):
    (x * y).sum().backward(retain_graph=True)
    (x * x).sum().backward()
    return (x.detach() * 2,)


def used_again(x, y):
    (x * x * y).sum().backward()
    return (x * 2,)


def written_then(x, y):
    (x * y).sum().backward()
    x.mul_(2)
    return ()


def written_before(x, y):
    x.mul_(2)
    (x * y).sum().backward()
    return ()


def written_before_under_no_grad(x, y):
    with torch.no_grad():
        x.mul_(2)
    (x * y).sum().backward()
    return ()


def another_written_before(x, y):
    with torch.no_grad():
        y.mul_(2)
    (x * y).sum().backward()
    return (y * 2,)


def with_gradients(x, y):
    torch.autograd.backward([(x * y).sum(), x * x], [None, y.detach()])
    return ()


def from_an_input(x, y):
    x.backward(y.detach())
    y.detach().mul_(2)
    return ()


def restrided(x, y):
    (x * y).sum().backward()
    x.unsqueeze_(0)
    return (x,)


def transposed_in_place(x, y):
    v = x[1:]
    v.transpose_(0, -1)
    (x * y.sum()).sum().backward()
    return ()


FUNCTIONS = [
    once, twice, kept, used_again, written_then, written_before, written_before_under_no_grad, another_written_before,
    with_gradients,
    from_an_input, restrided, transposed_in_place,
]  # fmt: skip


def views(above):
    base = above((torch.arange(6.0) / 5).requires_grad_())
    return base[:4], base[2:]


def same(x):
    return x, x


INPUTS = {
    "sin": lambda: (leaf().sin(), values()),
    "exp": lambda: (leaf().exp(), values()),
    "clone": lambda: (leaf().clone(), values()),
    "a view of a leaf": lambda: ((torch.arange(6.0) / 5).requires_grad_()[:4], values()),
    "views of a leaf": lambda: views(lambda base: base),
    "views of what is computed": lambda: views(torch.exp),
    "one object": lambda: same(leaf() * 3),
    "two histories": lambda: (leaf() * 3, leaf().sin()),
    "a custom function": lambda: (Count.apply(leaf(), torch.zeros(2)), values()),
    "compiled": lambda: (fg.jit(lambda w: w.sin() * w)(leaf()), values()),
}


def agree(make, f, calls=2):
    """Eager PyTorch and the compiled function do the same, also from the cache; what eager ran into, if anything."""
    case, compiled = Case(make, f), fg.jit(f)
    for _ in range(calls):
        expected, found = run(case, lambda f: f), run(case, lambda f: compiled)
        assert difference(expected, found) is None
        assert expected.error is not None or found.error is None, found.error
    return expected.error


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("f", FUNCTIONS)
def test_backward_goes_on_through_the_history_of_an_input(f, name):
    agree(INPUTS[name], f)


def test_the_graph_outside_is_freed_or_kept_as_in_eager():
    assert "backward through the graph a second time" in agree(INPUTS["sin"], twice)
    assert agree(INPUTS["clone"], twice) is None  # which saves nothing
    assert agree(INPUTS["sin"], kept) is None
    assert "modified by an inplace operation" in agree(INPUTS["exp"], written_before)


def hooked(kind):
    w = leaf()
    x = w * 3
    if kind == "hook":
        x.register_hook(lambda g: g * 10)
    elif kind == "hook of the leaf":
        w.register_hook(lambda g: g * 10)
    elif kind == "retained":
        x.retain_grad()
    else:

        def step(p):
            with torch.no_grad():
                p.sub_(p.grad)
            p.grad = None

        w.register_post_accumulate_grad_hook(step)
    return x, values()


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("kind", ["hook", "hook of the leaf", "retained", "an optimiser in a hook"])
def test_what_hears_of_a_gradient_outside_does(kind):
    assert agree(lambda: hooked(kind), used_again) is None


def test_one_program_goes_on_through_any_history():
    compiled = fg.jit(once)
    for above in (torch.sin, torch.exp, lambda w: w[:] * 2):
        w, expected, y = leaf(), leaf(), values()
        compiled(above(w), y)
        once(above(expected), y)
        assert_rounded(w.grad, expected.grad)
    assert compiled.cache_info().misses == 1


def test_a_captured_tensor_has_a_history_too():
    w = leaf()
    h = w.sin()
    fg.jit(lambda y: (h * y).sum().backward())(values())
    assert_rounded(w.grad, w.detach().cos() * values())


def test_the_printed_call_says_so():
    text = str(fg.jit(once).program(*INPUTS["sin"]()).call)
    assert "go_on([x], [onward_x], False, [], [], versions)" in text


def a_leaf_and_a_view_of_it():
    w = leaf()
    return w, w.view(4)


def a_leaf_and_what_is_computed_of_it():
    w = leaf()
    return w, w.sin()


def a_leaf_that_is_stepped():
    w = leaf()
    x = w * 3
    w.register_post_accumulate_grad_hook(lambda p: torch.no_grad()(p.sub_)(p.grad))
    return x, w


def retained_in_what_is_written_to():
    x, y = views(lambda base: base * 2)
    x.retain_grad()
    return x, y


def of_the_first(x, y):
    (x * x).sum().backward()
    return (y.detach() * 2,)


def hidden_write(x, y):
    y.data.mul_(2)
    (x * y).sum().backward()


def switches_off_and_goes_on(p, x):
    p.requires_grad_(False)
    (x * x).sum().backward()
    return x.detach() * 1


REFUSED = {
    "a view of an input": (
        once,
        a_leaf_and_a_view_of_it,
        "history of y, to another input, a leaf that it is a view of",
    ),
    "a leaf that is an input": (once, a_leaf_and_what_is_computed_of_it, "to a leaf whose gradient it sets or reads"),
    "a hook that writes": (of_the_first, a_leaf_that_is_stepped, "writes to an input, which the function has read"),
    "heard of in a base": (
        another_written_before,
        retained_in_what_is_written_to,
        "has hooks, or its gradient retained",
    ),
    "a hidden write": (hidden_write, INPUTS["sin"], "after a write through .data"),
    "twice differentiable": (
        lambda x, y: (x * y).sum().backward(create_graph=True),
        INPUTS["sin"],
        "create_graph=True",
    ),
    "a leaf switched off": (switches_off_and_goes_on, a_leaf_and_what_is_computed_of_it, "after requires_grad_.. of a"),
    "to an input": (lambda x, y: (x * y).sum().backward(inputs=[x]), INPUTS["sin"], "inputs=…"),
}


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph:UserWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_handed_on_is_refused(name):
    f, make, message = REFUSED[name]
    with pytest.raises(fg.MutationError, match=message):
        fg.jit(f)(*make())


def test_a_gradient_transform_hands_nothing_on():
    def f(p, x):
        (x * x).sum().backward()
        return p.sum()

    with pytest.raises(fg.MutationError, match="would go on through the history of x"):
        fg.value_and_grad_compiled(f)(leaf().detach(), leaf() * 2)


def test_a_second_derivative_is_refused():
    w = leaf()
    (out,) = fg.jit(used_again)(w.clone(), values())
    with pytest.raises(fg.UnsupportedTransformError, match="through the history of x"):
        torch.autograd.grad(out.sum(), w, create_graph=True)


def test_another_run_that_hands_another_gradient_on_is_refused():
    runs = queue.SimpleQueue()  # nothing watches it

    def f(x, y):
        if runs.empty():
            (x * y).sum().backward()
        runs.put(1)
        return x * 2

    with pytest.raises(fg.TraceError, match="in one of two runs"):
        fg.jit(f)(leaf() * 2, values())


def test_it_goes_on_through_one_of_several_views_of_what_changes_its_sizes():
    def f(x, part, w):
        (part * part.sum()).sum().backward()
        x.t_()
        return w.grad.view_as(w)

    def made():
        root = values().requires_grad_()
        base, w = root * 1, leaf()
        w.grad = torch.ones_like(w)
        return root, (base[:2], base.unbind(0)[1], w)

    (root, args), (own, own_args) = made(), made()
    torch.testing.assert_close(fg.jit(f)(*own_args), f(*args))
    torch.testing.assert_close(own.grad, root.grad)


@pytest.mark.parametrize("own", ["base[4:]", "base.view(2, 4).unbind(0)[1]"])
@pytest.mark.parametrize(
    "base", ["(torch.arange(8.) / 5).requires_grad_()", "(torch.arange(8.) / 5).requires_grad_().clone()"]
)
@pytest.mark.parametrize("loss", ["(x1 * x1).sum()", "(x0 * x0).sum()", "((x0 * x0).sum() + x1.sum())"])
@pytest.mark.parametrize("after", [(), ("x0.grad.mul_(3)",), ("(x0 * x1.sum()).sum().backward()",)])
def test_the_gradient_that_was_set_of_what_is_no_leaf_outside_stays_as_it_is(own, base, loss, after):
    statements = ("x0.grad = x0.detach() * 2", f"{loss}.backward()", *after)
    refused = Counter()
    assert check(Program(base, (own, "base.view(4, 2)"), statements, ()), refused) is None
    assert not refused


@pytest.mark.parametrize("own", ["base.view(2, 4).unbind(0)[1]", "base[2:6]"])
def test_what_a_custom_function_writes_to_in_that_pass_had_its_history_before(own):
    statements = ("v0 = CountBackward.apply(x0, x0)", "(v0 * x0.sum()).sum().backward()")
    refused = Counter()
    assert check(Program("(torch.arange(8.) / 5).requires_grad_()", (own,), statements, ()), refused) is None
    assert not refused


@pytest.mark.parametrize("write", ["Double.apply(x0)", "x0.mul_(2)", "x0[1:].sin_()", "x0.copy_(torch.ones(4))"])
@pytest.mark.parametrize("keeps", ["", "retain_graph=True"])
def test_a_write_to_another_view_is_in_the_history_that_is_freed(write, keeps):
    statements = (write, f"(x1 * x1).sum().backward({keeps})")
    base = "(torch.arange(8.) / 5).requires_grad_().clone()"
    refused = Counter()
    assert check(Program(base, ("base[4:]", "base[:4]"), statements, ()), refused) is None
    assert not refused


@pytest.mark.parametrize("loss", ["(x1 * 2).sum()", "(x1 * x1).sum()", "(x0 * 3).sum()"])
def test_what_is_written_to_is_the_base_itself_where_it_is_an_input(loss):
    """The history of a view would be freed, that of the base is not."""
    base = "(torch.arange(8.) / 5).requires_grad_().clone()"
    statements = ("x1.add_(1)", f"{loss}.backward()")
    refused = Counter()
    assert check(Program(base, ("base[1::2]", "base"), statements, ("x1",)), refused) is None
    assert not refused


def of_both(x, y):
    return torch.autograd.grad(x.square().sum() * y.sum(), x)[0]


def of_one(x, y):
    return torch.autograd.grad(y.sum(), x)[0]


MADE_OF_X = {
    "a view": lambda x: x[1:],
    "computed": lambda x: x.sin(),
    "far below": lambda x: (x * 2).exp().chunk(2)[1] + 1,
}
APART = {
    "a leaf": lambda x: x.detach()[1:].requires_grad_(),
    "of another leaf": lambda x: torch.ones(2, requires_grad=True).exp(),
    "without a gradient": lambda x: x.detach() * 2,
}


@pytest.mark.parametrize("make", MADE_OF_X.values(), ids=MADE_OF_X)
@pytest.mark.parametrize("f", [of_both, of_one])
def test_a_gradient_that_would_come_through_a_history_outside_is_refused(f, make):
    """It was left out, without a word."""
    x = leaf()
    with pytest.raises(fg.MutationError, match="from which another one, y, was computed") as caught:
        fg.jit(f)(x, make(x))
    assert "y.detach()" in caught.value.fix
    if f is of_both:
        y = make(x).detach()
        torch.testing.assert_close(fg.jit(f)(x, y), f(x, y))


@pytest.mark.parametrize("apart", APART.values(), ids=APART)
@pytest.mark.parametrize("make", MADE_OF_X.values(), ids=MADE_OF_X)
def test_a_program_for_what_is_apart_does_not_serve_what_is_not(make, apart):
    compiled, x = fg.jit(of_both), leaf()
    for _ in range(2):
        y = apart(x)
        torch.testing.assert_close(compiled(x, y), of_both(x, y))
    assert compiled.cache_info().misses == 1
    with pytest.raises(fg.MutationError, match="from which another one, y, was computed"):
        compiled(x, make(x))
    y = apart(x)
    torch.testing.assert_close(compiled(x, y), of_both(x, y))


def test_parts_of_one_computation_are_apart():
    """One node made both: a gradient of the one is none of the other."""
    compiled = fg.jit(of_both)
    for _ in range(2):
        x, y = leaf().exp().chunk(2)
        torch.testing.assert_close(compiled(x, y), of_both(x, y))
    assert compiled.cache_info().misses == 1


def test_what_is_computed_inside_has_all_of_the_gradient():
    compiled = fg.jit(lambda x: of_both(x, x.sin()))
    torch.testing.assert_close(compiled(leaf()), of_both(*(lambda x: (x, x.sin()))(leaf())))


def test_a_gradient_transform_is_with_respect_to_its_argument_alone():
    """As torch.func's: whatever the other one was computed from."""
    x = leaf()
    y = x.sin()
    compiled = fg.grad_compiled(lambda x, y: (x * y).sum())
    torch.testing.assert_close(compiled(x, y), torch.func.grad(lambda x, y: (x * y).sum())(x, y))


def test_captured_tensors_are_apart_too():
    x, w, made = leaf(), torch.ones(4, requires_grad=True), torch.ones(4, requires_grad=True).exp()
    compiled = fg.jit(lambda x: torch.autograd.grad((x.square() * w * made).sum(), x)[0])
    for _ in range(2):
        torch.testing.assert_close(compiled(x), 2 * x * w * made)
    assert compiled.cache_info().misses == 1
    made = x.sin()
    with pytest.raises(fg.MutationError, match="was computed"):
        compiled(x)
