"""Other memory and sizes in place, one after the other: ``x.resize_(n)`` that shrinks, ``x.t_()`` before and after
``x.data = y``, and ``x.set_(y)`` that autograd tracks leave the caller's tensors, and what backward reads, as eager
PyTorch does."""

import pytest
import torch
from laws.programs import Case, require_as_eager

import funcgrad as fg


def leaf(n=3):
    return (torch.arange(float(n)) + 1).requires_grad_()


def matrix():
    return torch.arange(6.0).view(2, 3)


def plain():
    return matrix(), torch.arange(8.0).view(4, 2)


def parts():
    base = torch.arange(6.0)
    return base[2:5], base[1:]


def flat():
    return torch.arange(6.0), leaf()


def computed():
    return matrix().requires_grad_() * 2, torch.ones(2, 3)


# ── sizes, and other memory ──────────────────────────────────────────────────────────────────────────────────────────


def transposed_before(x, y):
    x.t_()
    x.data = y
    return (x * 2,)


def unsqueezed_after(x, y):
    x.data = y
    x.unsqueeze_(0)
    return x * 2, x[0]


def transposed_and_written_after(x, y):
    x.data = y * 2
    part = x[1:]
    x.t_()
    x.mul_(3)
    return part, x[0]


def given_what_was_transposed(x, y):
    x.t_()
    y.data = x[1:]
    y.t_()
    y.mul_(2)
    x.add_(1)
    return x, y[1:], y, x[0]


def given_what_is_transposed_after(x, y):
    y.data = x
    x.t_()
    y.mul_(2)
    return x, y, y[1:]


def set_to_what_was_transposed(x, y):
    x.t_()
    y.set_(x)
    x.add_(1)
    return y[1:], y


def given_what_is_given_other_memory_after(x, y):
    x.t_()
    y.data = x
    x.data = torch.ones(3)
    return x, y


def given_as_memory_and_as_a_gradient(x, y):
    x.t_()
    y.data = x
    y.grad = x
    return y, y.grad


@pytest.mark.parametrize(
    "f",
    [
        given_what_was_transposed, given_what_is_transposed_after, set_to_what_was_transposed,
        given_what_is_given_other_memory_after, given_as_memory_and_as_a_gradient,
    ],
)  # fmt: skip
@pytest.mark.parametrize("make", [lambda: plain(), lambda: (matrix(), torch.ones(4))])
def test_memory_is_that_of_another_tensor_whose_sizes_change(f, make):
    """The look that the other one had then, whether it has it in the end or not."""
    require_as_eager(Case(make, f))


def test_memory_that_was_given_and_transposed_is_refused_as_that_of_another():
    def f(x, y):
        x.data = torch.ones(2, 3)
        x.t_()
        y.data = x

    with pytest.raises(fg.MutationError, match="changes how the one looks"):
        fg.jit(f)(*plain())


def given_twice(x, y):
    x.data = y
    x.t_()
    x.data = y[0]
    x.unsqueeze_(-1)
    return (x * 2,)


def set_then_transposed(x, y):
    x.set_(y)
    x.t_()
    x.mul_(2)
    return (y * 2,)


def given_then_shrunk(x, y):
    x.data = y
    x.resize_(3)
    return x * 2, y


def an_empty_one_takes_what_is_computed(x, y):
    torch.mul(y, 2, out=x)
    return (x[0],)


def grown_then_unsqueezed(x, y):
    x.resize_(9).zero_()
    x.unsqueeze_(0)
    return (x + 1,)


def before_with_a_history(x, y):
    x.t_()
    x.data = y.t()
    return (x * 2,)


def after_with_a_history(x, y):
    x.data = y
    x.t_()
    return (x * 2,)


def shrunk(x, y):
    x.resize_(2, 2)
    return (x * 2,)


def shrunk_beside_a_view(x, y):
    part = x[1:]
    x.resize_(4)
    x.mul_(2)
    return x * 2, part


def shrunk_then_written_through_a_view(x, y):
    part = x[0]
    x.resize_(4)
    part.mul_(2)
    return x[1:], x, part


def transposed_and_shrunk(x, y):
    x.t_()
    x.resize_(4)
    x.mul_(2)
    return (x * 2,)


def a_result_is_shrunk(x, y):
    z = x.t() * 2
    part = z[1:]
    z.resize_(2, 2)
    z.mul_(2)
    return z, part


def a_part_is_shrunk(x, y):
    z = x[1:]
    z.resize_(2)
    z.mul_(2)
    return z, x


def shrunk_to_nothing(x, y):
    x.resize_(0)
    x.sin_()
    return (x * 2,)


def shrunk_to_a_scalar(x, y):
    x.resize_(())
    return (x * 2,)


def the_other_is_written_first(x, y):
    y.mul_(2)
    x.resize_(2)
    return x, y * 2


SIZES = [
    *((f, plain) for f in (
        transposed_before, unsqueezed_after, transposed_and_written_after, given_twice, set_then_transposed,
        given_then_shrunk, shrunk,
        shrunk_beside_a_view, shrunk_then_written_through_a_view, transposed_and_shrunk, a_result_is_shrunk,
        a_part_is_shrunk,
        shrunk_to_nothing, shrunk_to_a_scalar,
    )),
    *((f, computed) for f in (before_with_a_history, after_with_a_history)),
    *((f, parts) for f in (a_part_is_shrunk, the_other_is_written_first, shrunk_to_nothing, shrunk_to_a_scalar)),
    *((f, lambda: (torch.empty(0), matrix())) for f in (grown_then_unsqueezed, an_empty_one_takes_what_is_computed)),
    (shrunk_to_nothing, lambda: (torch.tensor(2.0), matrix())),
]  # fmt: skip


# ── set_ that is tracked: nothing computed of it has a derivative ────────────────────────────────────────────────────


def set_to_what_requires_grad(x, w):
    x.set_(w * 2)
    return (x * 2,)


def set_beside_what_is_differentiated(x, w):
    x.set_(w * 2)
    return (w * 2,)


def set_to_a_leaf(x, w):
    x.set_(w)
    return (x,)


def set_to_itself(x, w):
    x.set_(x)
    return (w,)


def saved_before(x, w):
    product = x * w
    x.set_(w)
    return (product,)


def added_before(x, w):
    total = x + w
    x.set_(w.detach())
    return (total,)


def set_and_written(x, w):
    x.set_(w * 2)
    x.mul_(2)
    return ()


def set_and_unsqueezed(x, w):
    x.set_(w * 2)
    x.unsqueeze_(0)
    return (w * 2,)


def set_in_grad_mode_alone(x, w):
    with torch.no_grad(), torch.enable_grad():
        x.set_(w * 2)
    return ()


def set_beside_others(x, y):
    x.set_(y.detach() * 2)
    return ()


def kin():
    base = leaf(5) * 2
    return base[1:4], base[2:]


def plain_kin():
    base = torch.arange(5.0)
    return base[1:4], leaf()


TRACKED = [
    *((f, make) for f in (set_beside_others, set_to_what_requires_grad) for make in (kin, plain_kin)),
    *((f, flat3) for f in (
        set_to_what_requires_grad, set_beside_what_is_differentiated, set_to_a_leaf, set_and_written,
        set_and_unsqueezed,
        set_in_grad_mode_alone,
    ) for flat3 in (lambda: (torch.arange(3.0), leaf()), lambda: (torch.arange(3.0)[1:], leaf()))),
    *((f, lambda: (leaf() * 2, leaf())) for f in (set_to_what_requires_grad, set_to_itself, set_to_a_leaf, saved_before,
    added_before)),
    (set_to_a_leaf, lambda: ((leaf(5) * 2)[1:], leaf())),
]  # fmt: skip


def keeps_its_gradient(x, y):
    x.data = y
    return (x.grad * 2,)


def with_gradient():
    x = leaf()
    x.grad = torch.ones(3)
    return x, torch.arange(4.0)


# ── what backward reads ──────────────────────────────────────────────────────────────────────────────────────────────


def saved_then_shrunk(x, w):
    product = x[:3] * w
    x.resize_(3)
    return (product,)


def shrunk_then_saved(x, w):
    x.resize_(3)
    return (x * w,)


def shrunk_and_written_what_requires_grad(x, w):
    x.resize_(3).mul_(w)
    return (x * w,)


def a_part_is_saved(x, w):
    product = x[1:4] * w
    x.data = x * 7
    return (product,)


def saved_then_set(x, w):
    product = x[:3] * w
    with torch.no_grad():
        x.set_(w * 2)
    return (product,)


def given_and_looked_at_without_history(x, y):
    with torch.no_grad():
        x.data = y * 2
        look = x.view_as(x)
    return look * look, x.detach() * 2


def set_and_looked_at_without_history(x, y):
    with torch.no_grad():
        x.set_(y * 2)
        look = x[:1]
    return (look * look,)


BACKWARD = [(f, flat) for f in (
    saved_then_shrunk, shrunk_then_saved, shrunk_and_written_what_requires_grad, a_part_is_saved, saved_then_set,
)] + [(keeps_its_gradient, with_gradient)] + [
    (f, make) for f in (given_and_looked_at_without_history, set_and_looked_at_without_history) for make in (
        computed, lambda: (leaf(), torch.ones(3)),
        lambda: ((torch.arange(8.0).requires_grad_() * 1)[2:5], torch.ones(3)),
    )
]  # fmt: skip


@pytest.mark.parametrize(("f", "make"), [*SIZES, *TRACKED, *BACKWARD])
def test_as_in_eager(f, make):
    require_as_eager(Case(make, f))


def used_after(x, w):
    x.data = x * 7
    return x * w


def set_and_used_after(x, w):
    with torch.no_grad():
        x.set_(w * 7)
    return x * w


def partly_used_before(x, w):
    product = x[1:] * w[1:]
    x.data = x * 7
    return product


@pytest.mark.parametrize("f", [used_after, set_and_used_after, partly_used_before])
def test_a_write_to_what_backward_reads_is_noticed_when_it_runs(f):
    """To the caller's tensor, after the call: its version counter moves, whichever memory it has been given."""
    for function in (f, fg.jit(f)):
        x, w = torch.arange(3.0) + 1, leaf()
        out = function(x, w)
        x.mul_(100)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("of", [lambda y: y, lambda y: y * 2])
def test_a_write_to_memory_that_was_given_moves_the_counter_of_what_it_was_given_to(of):
    def f(x, y):
        x.data = of(y)
        with torch.no_grad():
            x.mul_(2)
        return y + 1

    for function in (f, fg.jit(f)):
        x, y = leaf(), torch.arange(3.0)
        before = x * x
        function(x, y)
        assert (x._version, y._version) == (1, 0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            before.sum().backward()


def test_the_printed_call():
    program = fg.jit(unsqueezed_after).program(*plain())
    assert [str(e) for layer in program.layers for e in layer.effects] == ["x.data = memory(x)", "x: unsqueeze_"]
    program = fg.jit(set_beside_what_is_differentiated).program(torch.arange(3.0), leaf())
    assert [str(e) for layer in program.layers for e in layer.effects] == ["x.set_(memory(x)) (tracked)"]
    program = fg.jit(shrunk).program(*plain())
    assert "x.as_strided_((2, 2), (2, 1))" in program.call.text


def test_a_captured_tensor_that_the_function_resizes_with_out():
    """The run that is recorded asks how much memory it holds, as the dry run must have."""
    found = []
    for transform in (lambda f: f, lambda f: fg.jit(f, backend="aten")):
        held = torch.zeros(4)
        call = transform(lambda x, held=held: (torch.add(x, 1, out=held), x * 2)[1])
        results = [call(torch.ones(n, 4)) for n in (2, 2, 3, 1)]
        found.append(([t.tolist() for t in results], held.tolist()))
    assert found[0] == found[1]


def takes_the_sizes_and_values(x, y):
    x.resize_as_(y).copy_(y)
    return (x * 2,)


def written_in_grad_mode(x, y):
    x.data = x.detach() * 2
    x.sin_()
    part = x[1:]
    x.mul_(y.sum())
    return part, x * 3


def set_and_written(x, y):
    with torch.no_grad():
        x.set_(y * 2)
    x[0] = y.mean()
    return (x.exp(),)


def set_without_a_derivative_and_written(x, y):
    x.set_(x)
    x.mul_(2)
    return x.detach() * 2, y * 2


def computed():
    return torch.ones(3, requires_grad=True) * 2


REWRITTEN = [
    (takes_the_sizes_and_values, lambda: (torch.empty(0), computed())),
    (written_in_grad_mode, lambda: (computed(), torch.ones(2, requires_grad=True))),
    (written_in_grad_mode, lambda: (computed(), torch.ones(2))),
    (written_in_grad_mode, lambda: (torch.ones(6).view(2, 3), torch.ones(2, requires_grad=True))),
    (set_and_written, lambda: (computed(), torch.ones(3, requires_grad=True))),
    (set_and_written, lambda: (torch.ones(3), torch.ones(3, requires_grad=True))),
    (set_without_a_derivative_and_written, lambda: (computed(), computed())),
]


@pytest.mark.parametrize(("f", "make"), REWRITTEN)
def test_what_requires_grad_is_written_to_memory_that_was_given(f, make):
    """The caller's tensor takes the memory, and is written to as eager PyTorch does, so that it has the history."""
    require_as_eager(Case(make, f))


def has_a_view_of_before(x, y):
    view = x.view(-1)
    x.data = x.detach() * 2
    x.mul_(y.mean())
    return (view,)


@pytest.mark.parametrize(
    ("f", "make"),
    [
        (has_a_view_of_before, lambda: (computed(), torch.ones(3, requires_grad=True))),
        (written_in_grad_mode, lambda: (lambda base: (base[:2], base[1:]))(computed())),
    ],
)
def test_what_requires_grad_is_not_written_to_memory_that_views_do_not_follow(f, make):
    with pytest.raises(fg.MutationError, match="gives x other memory"):
        fg.jit(f)(*make())


def saved_and_written_elsewhere(x, y):
    x.data = y
    x.view(-1)
    y[:1].mul_(2)
    return (x[1:],)


def test_memory_that_backward_does_not_read_is_written_elsewhere():
    require_as_eager(Case(lambda: (computed(), torch.ones(3)), saved_and_written_elsewhere))


@pytest.mark.parametrize("make", [lambda b: b[2:6], lambda b: b[4:]])
def test_data_that_is_a_look_at_itself_is_one_after_a_write(make):
    def f(x):
        with torch.no_grad():
            x[0] = 3.0
        x.data = x.view_as(x)
        x.mul_(2)

    bases = torch.arange(8.0), torch.arange(8.0)
    for call, base in zip((f, fg.jit(f)), bases, strict=True):
        call(make(base))
    assert torch.equal(*bases)


@pytest.mark.parametrize("of", [lambda base: base.unbind(0)[1], lambda base: base.split(2)[1], lambda base: base[1]])
def test_memory_that_is_a_view_of_what_has_changed_its_sizes(of):
    """A view of one of several results is taken in two steps, both before it is given."""

    def f(x, base):
        with torch.no_grad():
            x.unsqueeze_(0)
            x.data = x.unsqueeze(0)
        return ()

    def make():
        base = leaf(4) * 1
        return of(base), base

    require_as_eager(Case(make, f))
