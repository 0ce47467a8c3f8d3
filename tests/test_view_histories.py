"""What autograd makes of views: histories that a write makes anew, that a backward pass frees, or that come with a
base which is told to require grad. Eager PyTorch is the oracle."""

import pytest
import torch
from laws.programs import Case, Count, CountBackward, Double, difference, run

import funcgrad as fg

FILTERS = "ignore:The .grad attribute:UserWarning"


def leaf(n=3):
    return (torch.arange(float(n)) / 5 + 0.1).requires_grad_()


def numbers(n=4):
    return torch.arange(float(n)) + 1


def plain_view():
    return numbers()[1:], leaf()


def every_second():
    return numbers(6)[::2], leaf()


def computed_view():
    return (leaf(4) + 2)[1:], leaf()


def a_part_of_many():
    return (leaf(6) * 1).view(2, 3).unbind(0)[1], leaf()


def base_and_view():
    base = numbers()
    return base, base[1:]


def no_view():
    return numbers(3), leaf()


def require_like_eager(make, f, carried_out=True):
    case, compiled = Case(make, f), fg.jit(f)
    for _ in range(2):
        expected, found = run(case, lambda f: f), run(case, lambda f: compiled)
        assert difference(expected, found) is None
        assert not carried_out or found.refused is None
    return found


# ── a backward pass of the function's own frees the history of a view that was written to ────────────────────────


def a_pass_after_a_write(x, y):
    x.add_(y * 2)
    (x * x).sum().backward()
    return (x,)


def a_pass_that_keeps_the_graph(x, y):
    x.add_(y * 2)
    (x * x).sum().backward(retain_graph=True)
    return x, x[1:]


def a_pass_before_a_write(x, y):
    (x * y).sum().backward()
    x.add_(y * 2)
    return (x,)


def a_gradient_set_after_a_write(x, y):
    x.add_(y * 2)
    y.grad = x.detach()
    return x, x[1:]


def a_gradient_through_a_write(x, y):
    x.add_(y * 2)
    return torch.autograd.grad((x * x).sum(), y)


def a_gradient_up_to_a_write(x, y):
    x.add_(y * 2)
    return torch.autograd.grad((x * x).sum(), x)


def a_pass_after_a_write_and_a_restride(x, y):
    x.add_(y * 2)
    x.unsqueeze_(0)
    (x * x).sum().backward()
    return (x,)


def a_pass_and_another_memory(x, y):
    (x * y).sum().backward()
    x.add_(y * 2)
    x.data = y.detach() * 3
    return (x,)


PASSES = (
    a_pass_after_a_write, a_pass_that_keeps_the_graph, a_pass_before_a_write, a_gradient_set_after_a_write,
    a_gradient_through_a_write,
    a_gradient_up_to_a_write, a_pass_after_a_write_and_a_restride, a_pass_and_another_memory,
)  # fmt: skip


@pytest.mark.filterwarnings(FILTERS)
@pytest.mark.parametrize("make", [plain_view, every_second, computed_view, no_view])
@pytest.mark.parametrize("f", PASSES)
def test_a_written_view_and_a_backward_pass_inside(f, make):
    require_like_eager(make, f, carried_out=f is not a_pass_and_another_memory or make is not computed_view)


@pytest.mark.filterwarnings(FILTERS)
def test_a_part_of_unbind_is_written_to_by_none_of_them():
    for f in PASSES:
        require_like_eager(a_part_of_many, f, carried_out=False)


def test_whether_it_is_a_view_is_part_of_the_key():
    compiled = fg.jit(a_pass_after_a_write)
    for make in (plain_view, no_view, plain_view):
        case = Case(make, a_pass_after_a_write)
        assert difference(run(case, lambda f: f), run(case, lambda f: compiled)) is None


@pytest.mark.filterwarnings(FILTERS)
def test_a_view_with_a_gradient_that_a_custom_function_writes_to():
    def make():
        x, y = plain_view()
        x.grad = x.clone()
        return x, y

    def f(x, y):
        x.copy_(y)
        Double.apply(x)
        return ()

    require_like_eager(make, f)


# ── what looks otherwise since (t_) is no view to autograd ───────────────────────────────────────────────────────


def written_after_a_part_of_it(x, y):
    z = torch.ones(3, 1)
    part = z[:2]
    z.t_()
    part.copy_(y[:2].view(2, 1))
    z.mul_(part.mean())
    return z, part


def restrided_under_no_grad(x, y):
    with torch.no_grad():
        z = y.exp()
    same = z.squeeze()
    with torch.no_grad():
        z.transpose_(0, -1)
    same.copy_(y.clone())
    z.copy_(same.mean())
    return (z,)


def an_input_written_after_a_part_of_it(x, y):
    part = x[:1]
    x.unsqueeze_(0)
    part.copy_(y[:1])
    x.mul_(part.mean())
    return (part,)


@pytest.mark.parametrize("make", [plain_view, no_view])
@pytest.mark.parametrize(
    "f", [written_after_a_part_of_it, restrided_under_no_grad, an_input_written_after_a_part_of_it]
)
def test_what_was_restrided_is_written_to(f, make):
    require_like_eager(make, f)


# ── requires_grad_() ─────────────────────────────────────────────────────────────────────────────────────────────


def told_though_its_base_has_a_history(x, y):
    view = x.view(-1)
    x.copy_(y)
    with torch.no_grad():
        view.requires_grad_(False)  # nobody has asked for its history, so it counts as a leaf
    return (x,)


def told_after_a_use(x, y):
    view = x.view(-1)
    x.copy_(y)
    used = view * 2
    view.requires_grad_(False)
    return (used,)


def switched_off_after_a_write_to_a_view(x, y):
    view = y.squeeze()
    out = Count.apply(y, view)
    y.requires_grad_(False)
    return out + view.sum(), view


def made_and_switched_off(x, y):
    z = x.sin().requires_grad_()
    view = z.view(-1)
    with torch.no_grad():
        view.mul_(2)
    z.requires_grad_(False)
    return view * 3, z


def switched_on_after_a_write(x, y):
    x.mul_(2)
    part = x[:2]
    x.requires_grad_()
    return part, x * 2


def switched_on_between_views(x, y):
    before = x.view(-1)
    x.mul_(2)
    with torch.no_grad():
        part = x[:2]
    x.requires_grad_()
    return before, part, part * 2, x * 2


@pytest.mark.filterwarnings(FILTERS)
@pytest.mark.parametrize(
    "f",
    [
        told_though_its_base_has_a_history, told_after_a_use, switched_off_after_a_write_to_a_view,
        made_and_switched_off,
        switched_on_after_a_write, switched_on_between_views,
    ],
)  # fmt: skip
def test_switches_among_writes(f):
    require_like_eager(no_view, f)


def test_a_view_of_a_leaf_that_was_switched_off_and_written_to_is_refused():
    def f(x):
        view = x[1:]
        with torch.no_grad():
            view.mul_(2)
        x.requires_grad_(False)
        x.add_(1)
        return (view * 2,)

    with pytest.raises(fg.MutationError, match="writes to it, and uses a view that it took before"):
        fg.jit(f)(leaf())


def used(x, view):
    x.requires_grad_()
    return view * 2, CountBackward.apply(view, torch.zeros(()))


def used_before_and_after(x, view):
    before = view.sin()
    x.requires_grad_()
    return before, view * before, x * 3


def differentiated(x, view):
    x.requires_grad_()
    (view * 2).sum().backward()
    return (view,)


def given_a_gradient(x, view):
    x.requires_grad_()
    view.grad = view.detach() * 2
    return (view * 2,)


def looked_at(x, view):
    before = view.view(3, 1)
    x.requires_grad_()
    return before, before * 2, view[:1], view.view(1, 3)


def a_view_switched_on(x, view):
    view.requires_grad_()
    return view * 2, x * 3


@pytest.mark.filterwarnings(FILTERS)
@pytest.mark.parametrize(
    "f", [used, used_before_and_after, differentiated, given_a_gradient, looked_at, a_view_switched_on]
)
def test_a_view_requires_grad_when_its_base_does(f):
    require_like_eager(base_and_view, f)


# ── views of what autograd forbids to use ────────────────────────────────────────────────────────────────────────


def taken_after_a_write(x, y):
    with torch.no_grad():
        x.relu_()
        view = x.view_as(x)
    view.grad = view.detach() * 2
    return (view,)


def taken_of_a_view_after_a_write(x, y):
    part = x[1:]
    with torch.no_grad():
        x.relu_()
        view = part[1:]
    view.grad = view.detach() * 2
    return (view,)


def taken_before_a_write(x, y):
    with torch.no_grad():
        part = x[1:]
        x.relu_()
        view = part[1:]
    return part, view


@pytest.mark.filterwarnings(FILTERS)
@pytest.mark.parametrize("make", [a_part_of_many, computed_view])
@pytest.mark.parametrize("f", [taken_after_a_write, taken_of_a_view_after_a_write, taken_before_a_write])
def test_views_under_no_grad_of_what_was_written_to(f, make):
    require_like_eager(make, f)


def taken_of_an_earlier_view_and_returned_twice(x, y):
    part = x[1:]
    with torch.no_grad():
        x.relu_()
        view = part.view_as(part)
    return view, view


@pytest.mark.filterwarnings(FILTERS)
@pytest.mark.parametrize("make", [plain_view, a_part_of_many, computed_view])
def test_a_view_of_an_earlier_view_is_one_object_in_all_places(make):
    require_like_eager(make, taken_of_an_earlier_view_and_returned_twice)


def test_a_view_under_no_grad_requires_grad_as_long_as_its_base_does():
    def f(x):
        with torch.no_grad():
            return x.view_as(x)

    for function in (f, fg.jit(f)):
        base = leaf(6)
        view = function(base.view(2, 3).unbind(0)[1])
        assert view.requires_grad
        base.requires_grad_(False)
        assert not view.requires_grad


# ── other memory, and results that cannot all be differentiated ──────────────────────────────────────────────────


def test_a_leaf_that_is_given_memory_of_other_sizes_is_no_part_of_the_program():
    def f(x, y):
        x.mul_(2)
        y.data = x
        return (x * 3,)

    require_like_eager(lambda: ((leaf(8) * 1).view(2, 4).t(), leaf()), f)


@pytest.mark.filterwarnings(FILTERS)
def test_one_result_is_differentiated_where_another_cannot_be_and_was_restrided():
    def f(x):
        z = x * x.mean()
        other = z.transpose(0, -1)
        z.unsqueeze_(-1)
        x.grad = other * z.mean()  # of what is written to then
        z.add_(1)
        return other, z

    require_like_eager(lambda: ((leaf(8) * 1)[1:],), f)


def test_a_second_derivative_of_what_was_restrided():
    def f(x):
        z = x * x.mean()
        other = z.view(-1)
        z.t_()
        return other, z

    found = []
    for function in (f, fg.jit(f)):
        x = leaf(6).detach().view(2, 3).requires_grad_()
        other, z = function(x)
        (first,) = torch.autograd.grad((other**2).sum() + (z * numbers(2)).sum(), x, create_graph=True)
        found.append(torch.autograd.grad((first**2).sum(), x)[0])
    torch.testing.assert_close(*found)


# ── what leads to no leaf is run, too, and may find that what it saved was written to ────────────────────────────


def of_an_untold_view(x, y):
    with torch.no_grad():
        v = x.reshape(-1)
    out = v.sin()
    with torch.no_grad():
        x[:1].mul_(5)
    return (out,)


def beside_what_leads_to_a_leaf(x, y):
    return (of_an_untold_view(x, y)[0] + y * 2,)


def counted_of_an_untold_view(x, y):
    with torch.no_grad():
        v = x.reshape(-1)
    out = CountBackward.apply(v, v.detach())
    with torch.no_grad():
        x[:1].mul_(5)
    return (out,)


def written_by_another_backward(x, y):
    first = CountBackward.apply(x, x.detach())
    with torch.no_grad():
        v = x.squeeze()
    return first, CountBackward.apply(v, v.detach())


@pytest.mark.parametrize(
    "f", [of_an_untold_view, beside_what_leads_to_a_leaf, counted_of_an_untold_view, written_by_another_backward]
)
def test_what_leads_to_no_leaf_raises_as_in_eager(f):
    case = Case(lambda: (leaf() * 1 if f is written_by_another_backward else leaf(), leaf()), f)
    expected, found = run(case, lambda f: f), run(case, fg.jit)
    assert expected.stages["backward"] == found.stages["backward"] == "raises"
    assert found.refused is None and difference(expected, found) is None
