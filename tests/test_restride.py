"""Sizes and strides changed in place under ``no_grad``: autograd does not hear of it, and goes on as it does in
eager PyTorch."""

import pytest
import torch
from laws.programs import Case, CountBackward, Double, difference, require_as_eager, run
from torch import Tensor

import funcgrad as fg


def restride(name, *args):
    def change(x):
        with torch.no_grad():
            getattr(x, name)(*args)

    return change


transpose, column, row, squeeze = (
    restride("t_"),
    restride("unsqueeze_", -1),
    restride("unsqueeze_", 0),
    restride("squeeze_"),
)
WEIGHTS = torch.arange(6.0).view(3, 2) + 1


def leaf():
    return torch.arange(6.0).div(5).view(2, 3).clone().requires_grad_()


def base():
    return torch.arange(8.0).div(5).requires_grad_() * 1


def with_gradient():
    x = leaf()
    x.grad = torch.ones(2, 3)
    return x


def a_leaf(x):
    transpose(x)
    return (x * WEIGHTS,)


def a_leaf_and_back(x):
    transpose(x)
    transpose(x)
    return (x * WEIGHTS.t(),)


def nothing_else(x):
    transpose(x)
    return ()


def returned(x):
    transpose(x)
    return (x,)


def with_a_row(x):
    row(x)
    return (x * 2,)


def beside_a_write(x, y):
    y[:1].mul_(5)
    column(x)
    return (x * 2,)


def after_a_write(x, y):
    x.mul_(2)
    column(x)
    return (x * y.sum(),)


def after_a_write_through_a_view(x, y):
    x.view(-1).add_(1)
    transpose(x)
    return ()


def before_a_write(x, y):
    column(x)
    x.mul_(y.sum())
    return ()


def before_a_write_to_another(x, y):
    transpose(x)
    with torch.no_grad():
        y.sin_()
    return ()


def of_a_part(x, y):
    part = x.split(1)[0]
    with torch.no_grad():
        part.mul_(2)
    squeeze(part)
    return ()


def used_then(x, y):
    transpose(x)
    return (x * 2,)


def used_with_another(x, y):
    transpose(x)
    return (x * y.mean(),)


def of_a_hidden_view(x, y):
    with torch.no_grad():
        view = x.view_as(x)
    x.squeeze_()
    transpose(view)
    return ()


def a_look_of_before(x, y):
    x.transpose_(0, 1)
    look = x.view_as(x)
    x.unsqueeze_(0)
    with torch.no_grad():
        return (look[0],)


def a_part_of_a_look_of_before(x, y):
    x.transpose_(0, 1)
    with torch.no_grad():
        look = x.view_as(x)
    x.unsqueeze_(0)
    return look.split(1)[:1]


def a_look_of_before_that_is_forbidden(x, y):
    x.transpose_(0, 1)
    with torch.no_grad():
        look = x.view_as(x)
    x.unsqueeze_(0)
    return (look,)


def a_look_of_before_a_write(x, y):
    x.transpose_(0, 1)
    look = x.view_as(x)
    x.unsqueeze_(0)
    x.mul_(y)
    with torch.no_grad():
        return (look[0],)


def seen_by_backward(x, y):
    out = CountBackward.apply(y, x.detach())
    column(x)
    return (out,)


def a_view_with_a_history_of_its_own(x, y):
    column(x)
    values = x.data
    values.add_(x.mean())
    return (values,)


CASES = {
    "a view with a history of its own": (a_view_with_a_history_of_its_own, lambda: (base()[1:], torch.ones(2))),
    "a leaf": (a_leaf, lambda: (leaf(),)),
    "a leaf whose values backward needs": (used_with_another, lambda: (leaf(), torch.ones(2, requires_grad=True))),
    "a leaf with a gradient": (a_leaf, lambda: (with_gradient(),)),
    "a leaf that is a view": (a_leaf, lambda: (torch.arange(6.0).view(2, 3).requires_grad_(),)),
    "a leaf and back": (a_leaf_and_back, lambda: (leaf(),)),
    "a leaf alone": (nothing_else, lambda: (leaf(),)),
    "a row of a leaf": (with_a_row, lambda: (leaf(),)),
    "a row of a leaf with a gradient": (with_a_row, lambda: (with_gradient(),)),
    "a row of what was computed": (with_a_row, lambda: (leaf() * 2,)),
    "computed outside, and left alone": (nothing_else, lambda: (leaf() * 2,)),
    "computed outside, and returned": (returned, lambda: (leaf() * 2,)),
    "computed outside, then used under no_grad": (torch.no_grad()(a_leaf), lambda: (leaf() * 2,)),
    "untracked": (a_leaf, lambda: (leaf().detach(),)),
    "beside a write": (beside_a_write, lambda: (lambda b: (b.view(2, 4)[:, 1:3], b[2:6]))(base())),
    "after a write": (after_a_write, lambda: (base()[1:], torch.ones(3, requires_grad=True))),
    "after a write, untracked": (after_a_write, lambda: (base().detach()[1:], torch.ones(3))),
    "after a write through a view": (after_a_write_through_a_view, lambda: (leaf() * 2, torch.ones(3))),
    "before a write": (before_a_write, lambda: (torch.ones(4), torch.ones(3, requires_grad=True))),
    "before a write to a view": (before_a_write, lambda: (torch.ones(4)[1:], torch.ones(3, requires_grad=True))),
    "before a write to another": (
        before_a_write_to_another,
        lambda: (lambda b: (b.view(2, 4).unbind(0)[1], b[2:6]))(base()),
    ),
    "of a part": (of_a_part, lambda: (torch.ones(4, requires_grad=True) * 2, torch.ones(2))),
    "of a view taken under no_grad": (of_a_hidden_view, lambda: (base().view(4, 2).t(), torch.ones(2))),
    "a look of before, under no_grad": (a_look_of_before, lambda: (base().view(4, 2), torch.ones(()))),
    "a part of a look of before under no_grad": (
        a_part_of_a_look_of_before,
        lambda: (base().view(4, 2), torch.ones(())),
    ),
    "a look of before, forbidden": (a_look_of_before_that_is_forbidden, lambda: (base().view(4, 2), torch.ones(()))),
    "a look of before a write, under no_grad": (
        a_look_of_before_a_write,
        lambda: (base().view(4, 2) * 1, torch.ones((), requires_grad=True)),
    ),
    "seen by backward": (
        seen_by_backward,
        lambda: (torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)),
    ),
    "forbidden, then used": (used_then, lambda: (base().view(2, 4).unbind(0)[1], torch.ones(2))),
    "forbidden, then used under no_grad": (
        torch.no_grad()(used_then),
        lambda: (base().view(2, 4).unbind(0)[1], torch.ones(2)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_it_is_as_in_eager(name):
    f, make = CASES[name]
    case, compiled = Case(make, f), fg.jit(f)
    expected = run(case, lambda f: f)
    for _ in range(2):
        assert difference(expected, run(case, lambda f: compiled)) is None


def of_what_was_computed(x):
    y = x * 2
    transpose(y)
    return y * WEIGHTS


def of_a_leaf_used_before(x):
    y = x * 2
    transpose(x)
    return y.t() * x


def of_a_result(x):
    y = x * 2
    transpose(y)
    return y


def of_a_result_and_back(x):
    y = x * 2
    transpose(y)
    column(y)
    return y.sin()


def of_what_a_function_reads(x):
    y = x * 2
    transpose(y)
    return CountBackward.apply(y, torch.ones(()))


def of_a_view_of_a_result(x):
    y = x * 2
    view = y.t()
    transpose(y)
    return view


def of_what_a_view_of_a_result_computes(x):
    y = x * 2
    view = y.view(-1)
    part = view[1:]
    transpose(y)
    return part.sin()


FORGOTTEN = [
    of_what_was_computed, of_a_leaf_used_before, of_a_result, of_a_result_and_back, of_what_a_function_reads,
    of_a_view_of_a_result,
    of_what_a_view_of_a_result_computes,
]  # fmt: skip


@pytest.mark.parametrize("f", FORGOTTEN)
def test_what_autograd_would_forget_is_refused(f):
    """In eager PyTorch, backward raises for these sizes, and is wrong without a word for a square matrix."""
    x = leaf()
    with pytest.raises(RuntimeError, match="invalid gradient"):
        f(x).sum().backward()
    x = leaf()
    with pytest.raises(fg.MutationError, match=r"computed or used, under no_grad \(t_\)"):
        fg.jit(f)(x)
    assert x.shape == (2, 3)


def of_no_result(x):
    y = x * 2
    transpose(y)
    return (y * WEIGHTS).detach()


def of_a_leaf_used_before_for_nothing(x):
    y = x * 2
    transpose(x)
    return y.detach().t() + x.detach()


def beside_another_result(x):
    y = x * 2
    transpose(y)
    unused = y[0] * 3
    return unused.detach(), x * WEIGHTS.t()


def test_a_view_taken_under_no_grad_that_was_used_is_refused():
    def f(x):
        with torch.no_grad():
            view = x.split(1)[0]
        view.select(0, 0)
        squeeze(view)

    with pytest.raises(fg.MutationError, match="computed or used, under no_grad"):
        fg.jit(f)(base().view(2, 4))


@pytest.mark.parametrize("f", [of_no_result, of_a_leaf_used_before_for_nothing, beside_another_result])
@pytest.mark.parametrize("make", [leaf, lambda: leaf() * 2])
def test_what_autograd_would_forget_is_no_matter_where_no_gradient_comes(f, make):
    def both(x):
        found = f(x)
        return found if isinstance(found, tuple) else (found,)

    case, compiled = Case(lambda: (make(),), both), fg.jit(both)
    for _ in range(2):
        assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
        assert found.error is None, found.error


@pytest.mark.parametrize(
    "view", [lambda b: b[2:6], lambda b: b[::2], lambda b: b.view(2, 4)[:, 1:3], lambda b: b.view(2, 4).t()]
)
def test_a_look_at_all_of_an_input_is_known_as_one_after_a_write(view):
    """Also where the input begins further on in its memory."""

    def f(x):
        tail = x[1:]
        x.add_(x.mean())
        x.copy_(x.detach())
        x[1:].copy_(tail)
        return (torch.cumsum(x.detach(), 0, out=x),)

    case, compiled = Case(lambda: (view(torch.arange(8.0)),), f), fg.jit(f)
    assert difference(run(case, lambda f: f), run(case, lambda f: compiled)) is None


def sets_a_gradient_it_then_changes(x, y):
    x.grad = y
    y.unsqueeze_(-1)
    return ()


def returns_a_leaf_with_a_gradient(x, y):
    out = x.sin()
    out.requires_grad_()
    out.grad = y
    return (out,)


def gives_a_view_of_what_gets_a_history(x, y):
    view = x[1:]
    view.data = y
    x.mul_(leaf().sum())
    return (view,)


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (gives_a_view_of_what_gets_a_history, "to what it is a view of"),
    ],
)
def test_what_a_call_could_not_carry_over_is_refused(f, message):
    x, y = torch.ones(3), torch.ones(3)
    with pytest.raises(fg.FuncgradError, match=message):
        fg.jit(f)(x, y)
    assert x.grad is None and y.shape == (3,) and torch.equal(x, torch.ones(3))


def test_a_gradient_that_then_changes_its_sizes_is_set():
    compiled = fg.jit(sets_a_gradient_it_then_changes)
    for _ in range(2):
        x, y = torch.ones(3), torch.ones(3)
        compiled(x, y)
        assert x.grad is y and y.shape == (3, 1)


def test_a_part_of_unbind_changes_its_sizes_before_its_base_gets_a_history():
    def f(part, base, w):
        part.t_()
        base.add_(w.mean())
        return ()

    def make():
        base = torch.arange(8.0)
        return base.view(2, 4).unbind(0)[1], base, torch.ones(3, requires_grad=True)

    require_as_eager(Case(make, f))


def test_a_view_taken_under_no_grad_of_what_is_forgotten_is_no_matter_of_it():
    def f(x, y):
        z = x * y.sum()
        view = z.t()
        transpose(z)
        with torch.no_grad():
            return (view[1:],)

    case, compiled = Case(lambda: (torch.ones(2, 3), torch.ones(3, requires_grad=True)), f), fg.jit(f)
    assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
    assert found.error is None, found.error


def test_a_view_that_required_grad_and_changes_its_sizes_is_refused():
    def f(x):
        x.requires_grad_()
        with torch.no_grad():
            x.transpose_(0, -1)
        return x.view_as(x)

    with pytest.raises(fg.MutationError, match="and changes its sizes"):
        fg.jit(f)(torch.arange(8.0).view(4, 2)[:3])
    case = Case(lambda: (torch.arange(8.0)[:3],), f)  # of one dimension, nothing changes
    assert difference(run(case, lambda f: f), found := run(case, fg.jit)) is None
    assert found.error is None


@pytest.mark.parametrize("change", [Tensor.t_, Tensor.squeeze_, lambda x: x.unsqueeze_(0), lambda x: x.set_(x)])
@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("make", [lambda: (torch.arange(6.0).view(2, 3), leaf()), lambda: (torch.ones(2, 3), leaf())])
def test_a_view_of_whose_new_history_nobody_asked_is_a_leaf_to_autograd(make, asked, change):
    """Eager PyTorch raises where its base has come to require grad through another view."""

    def f(x, y):
        x.view(-1).copy_(y.mean())
        if asked:
            x.view_as(x)
        change(x)
        return ()

    case, compiled = Case(make, f), fg.jit(f)
    expected = run(case, lambda f: f)
    assert (expected.error is None) is (asked or not make()[0]._is_view())
    for _ in range(2):
        assert difference(expected, found := run(case, lambda f: compiled)) is None
        assert expected.error is not None or found.error is None, found.error


def test_a_leaf_is_returned_with_its_gradient():
    case, compiled = (
        Case(lambda: (torch.ones(3), torch.ones(3)), returns_a_leaf_with_a_gradient),
        fg.jit(returns_a_leaf_with_a_gradient),
    )
    for _ in range(2):
        assert difference(run(case, lambda f: f), found := run(case, lambda f: compiled)) is None
        assert found.error is None, found.error


NOTHING_CHANGES = {"transpose_": (0, -1), "t_": (), "squeeze_": (), "swapaxes_": (0, 0)}


@pytest.mark.parametrize("name", NOTHING_CHANGES)
@pytest.mark.parametrize(
    "make",
    [
        lambda: (torch.arange(3.0),),
        lambda: (torch.arange(3.0).requires_grad_(),),
        lambda: (torch.arange(3.0).requires_grad_() * 2,),
        lambda: (torch.arange(8.0).requires_grad_()[2:5],),
        lambda: (torch.arange(8.0)[2:5],),
    ],
    ids=["untracked", "leaf", "computed", "view", "untracked view"],
)
def test_a_change_that_leaves_sizes_and_strides_as_they_are_is_a_write_and_nothing_else(name, make):
    def f(x):
        used = x * 2
        restride(name, *NOTHING_CHANGES[name])(x)
        x.grad = None
        return used, x.sin(), x[1:]

    case = Case(make, f)
    assert difference(expected := run(case, lambda f: f), found := run(case, fg.jit)) is None
    assert expected.error is found.error is None
    (x,), (y,) = make(), make()
    f(x)
    fg.jit(f)(y)
    assert x._version == y._version


def test_a_change_that_leaves_sizes_as_they_are_lets_them_vary():
    compiled = fg.jit(lambda x: x.squeeze_() * 2)
    for n in (3, 4, 5, 6):
        assert compiled(torch.ones(2, n)).shape == (2, n)
    assert compiled(torch.ones(2, 1)).shape == (2,)
    assert compiled.cache_info().misses == 3


def test_what_was_saved_is_out_of_date_all_the_same():
    def f(x):
        y = x.exp()
        out = y * y
        with torch.no_grad():
            y.t_()
        return out

    x = torch.arange(3.0).requires_grad_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        f(x).sum().backward()
    with pytest.raises(RuntimeError):
        fg.jit(f)(x).sum().backward()


def without_grad(move):
    def moves(x, y):
        with torch.no_grad():
            move(x, y)

    return moves


MOVES = {
    "y.t_": lambda x, y: y.t_(),
    "y.squeeze_": lambda x, y: y.squeeze_(),
    "y.as_strided_": lambda x, y: y.as_strided_((3,), (1,)),
    "y.set_": lambda x, y: y.set_(y),
    "x.t_": lambda x, y: x.t_(),
    "y.view.t_": lambda x, y: y.view(3).t_(),
    "x.detach.t_": lambda x, y: x.detach().t_(),
    "increment_version": lambda x, y: torch.autograd.graph.increment_version(y),
}
"""What moves the version counter of a tensor and writes to nothing."""


def a_view_and_its_base():
    y = torch.arange(3.0)
    return y[:3], y


def a_leaf_of_its_own_and_its_base():
    x, y = a_view_and_its_base()
    return x.requires_grad_(), y


def a_tensor_and_itself_detached():
    y = torch.arange(3.0)
    return y.detach(), y


@pytest.mark.parametrize("make", [a_view_and_its_base, a_leaf_of_its_own_and_its_base])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("name", MOVES)
def test_a_view_that_comes_to_follow_its_base_is_refused(name, first, make):
    def f(x, y):
        if not first:
            y.requires_grad_()
        without_grad(MOVES[name])(x, y)
        if first:
            y.requires_grad_()
        return x * 2

    x, y = make()
    f(x, y).sum().backward()
    assert torch.equal(y.grad, torch.full((3,), 2.0)) and x.grad is None
    x, y = make()
    with pytest.raises(fg.MutationError, match="a view of it comes to follow it"):
        fg.jit(f)(x, y)
    assert not y.requires_grad and y._version == 0


@pytest.mark.parametrize("name", MOVES)
def test_the_version_moves_beside_what_no_view_follows(name):
    def of_a_view(x, y):
        without_grad(MOVES[name])(x, y)
        x.requires_grad_()
        return x * 2

    def detached(x, y):
        without_grad(MOVES[name])(x, y)
        y.requires_grad_()
        return x * 2 + y

    cases = [
        Case(a_view_and_its_base, of_a_view),
        Case(lambda: (torch.arange(3.0), torch.ones(3)), detached),
        Case(a_tensor_and_itself_detached, detached),
    ]
    for case in cases:
        assert difference(expected := run(case, lambda f: f), found := run(case, fg.jit)) is None
        assert expected.error is found.error is None, found.error


def test_a_view_that_is_a_leaf_of_its_own_has_its_gradient_where_its_base_comes_to_require_grad():
    def f(x, y):
        y.requires_grad_()
        return x * 2 + y.sum()

    compiled = fg.jit(f)
    for _ in range(2):
        x, y = a_leaf_of_its_own_and_its_base()
        compiled(x, y).sum().backward()
        assert torch.equal(x.grad, torch.full((3,), 2.0)) and torch.equal(y.grad, torch.full((3,), 3.0))


def written_again_through_a_view(x):
    x.resize_(2)
    x.view(-1).add_(1)
    x[:1].mul_(5)


def written_again_by_strides(x):
    x.as_strided_((2, 2), (2, 1))
    x.add_(1)
    x.t()[0].mul_(5)
    x.as_strided((2,), (1,)).sub_(7)


def written_again_by_a_view_of_a_view(x):
    x.resize_(3)
    v = x[1:]
    v.add_(1)
    v[:1].mul_(5)
    x.view(3, 1)[:2].t().neg_()


@pytest.mark.parametrize("make", [lambda b: b[2:6], lambda b: b[1:9:2], lambda b: b[4:]])
@pytest.mark.parametrize(
    "f", [written_again_through_a_view, written_again_by_strides, written_again_by_a_view_of_a_view]
)
def test_views_of_a_restrided_part_of_memory_are_where_they_were_after_a_write(f, make):
    """The value that the first write leaves lies otherwise than the input: where new views of it lie is no matter."""
    bases = torch.arange(10.0), torch.arange(10.0)
    xs = [make(base) for base in bases]
    for call, x in zip((f, fg.jit(f)), xs, strict=True):
        call(x)
    assert torch.equal(*bases) and torch.equal(*xs)


def test_a_custom_function_writes_to_what_was_resized():
    def f(x, y):
        x.resize_as_(y).copy_(y)
        Double.apply(x)

    found = []
    for call in (f, fg.jit(f)):
        y, x = torch.arange(5.0).requires_grad_(), torch.ones(2, 3)
        call(x, y[:4] * 1)
        x.sum().backward()
        found.append((x.detach(), y.grad))
    assert all(map(torch.equal, *found))
