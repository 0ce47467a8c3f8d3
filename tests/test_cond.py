"""``torch.cond`` under a trace: both branches are recorded, one runs, and gradients go through the one that ran."""

import pytest
import torch

import funcgrad as fg

W = torch.nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))


def by_cond(x):
    p = {"x": x, "w": W}
    out = torch.cond(x.sum() > 0, lambda p: {"y": p["x"].sin() * p["w"]}, lambda p: {"y": p["x"].cos() * 3}, (p,))
    return out["y"].sum()


def by_python(x):
    return (x.sin() * W if x.sum() > 0 else x.cos() * 3).sum()


@pytest.mark.parametrize("sign", [1, -1])
def test_values_and_gradients(sign):
    x = torch.tensor([0.5, 1.0, 2.0]) * sign
    c = fg.jit(by_cond)
    leaf = x.clone().requires_grad_()
    expected = torch.autograd.grad(by_python(leaf), [leaf, W], allow_unused=True)
    found = torch.autograd.grad(c(leaf), [leaf, W])
    torch.testing.assert_close(c(leaf), by_python(leaf))
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1], torch.zeros(3) if expected[1] is None else expected[1])
    torch.testing.assert_close(fg.grad_compiled(by_cond)(x), expected[0])


def test_one_program_serves_both_branches():
    c = fg.grad_compiled(by_cond)
    x = torch.tensor([0.5, 1.0, 2.0])
    for value in (x, -x, x):
        leaf = value.clone().requires_grad_()
        torch.testing.assert_close(c(value), torch.autograd.grad(by_python(leaf), leaf)[0])
    assert c.cache_info().misses == 1
    text = str(c.program(x).joint)
    assert "choose(" in text and "if_true(" in text and "if_false(" in text


def drops_in_a_branch(x):
    return torch.cond(x.sum() > 0, lambda x: torch.dropout(x, 0.5, True), lambda x: x * 2, (x,)).sum()


def test_dropout_in_a_branch_is_drawn_only_where_it_runs():
    c = fg.jit(drops_in_a_branch)
    for x in (torch.ones(32), -torch.ones(32)):
        torch.manual_seed(0)
        value, after = c(x), torch.rand(1)
        torch.manual_seed(0)
        expected = (torch.dropout(x, 0.5, True) if x.sum() > 0 else x * 2).sum()
        torch.testing.assert_close(value, expected)
        torch.testing.assert_close(after, torch.rand(1))


def test_dropout_in_a_branch_that_is_differentiated_is_refused():
    """Its backward pass runs the branch again, and would draw another mask."""
    with pytest.raises(fg.UnsupportedTransformError, match="would draw others"):
        fg.grad_compiled(drops_in_a_branch)(torch.ones(32))


def test_a_python_condition_is_a_python_choice():
    c = fg.jit(lambda x, flag: torch.cond(flag, lambda x: x + 1, lambda x: x - 1, (x,)))
    x = torch.randn(3)
    torch.testing.assert_close(c(x, True), x + 1)
    torch.testing.assert_close(c(x, False), x - 1)


def test_branches_of_different_types():
    with pytest.raises((fg.TraceError, RuntimeError)):
        fg.jit(lambda x: torch.cond(x.sum() > 0, lambda x: x, lambda x: x[:1], (x,)))(torch.randn(3))


def test_a_tensor_that_is_no_operand_is_an_input():
    c = fg.jit(lambda x: torch.cond(x.sum() > 0, lambda y: y * W, lambda y: y * 2, (x,)))
    for x in (torch.ones(3), -torch.ones(3)):
        torch.testing.assert_close(c(x), x * W if x.sum() > 0 else x * 2)


def test_torch_cond_is_torchs_own_outside_of_a_trace():
    before = torch.cond
    fg.jit(lambda x: x * 2)(torch.randn(3))
    assert torch.cond is before
