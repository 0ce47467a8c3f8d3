"""Other memory that a tensor is given, and what looks at the old and at the new: as in eager PyTorch, whichever
tensor it was."""

from collections import Counter

import pytest
from laws.programs import Program, check

BASES = [
    "(torch.arange(8.) / 5).requires_grad_()",
    "(torch.arange(8.) / 5).requires_grad_() * 1",
    "torch.arange(8.) / 5",
]
COMPUTED, PLAIN = "torch.ones(4, requires_grad=True) * 2", "torch.arange(4.) + 1"


def assert_carried_out(inputs, statements, returns, base=BASES[1]):
    refused = Counter()
    assert check(Program(base, inputs, statements, returns), refused) is None
    assert not refused


@pytest.mark.parametrize("tensor", ["base[4:]", COMPUTED, "torch.ones(4, requires_grad=True)", PLAIN])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("returns", [("v",), ("v", "x0")])
def test_a_view_of_what_was_given_memory_looks_at_that(tensor, base, returns):
    assert_carried_out((tensor, PLAIN), ("x0.data = x1.detach() * 2", "v = x0[:2]"), returns, base)


@pytest.mark.parametrize("tensor", ["base[4:]", COMPUTED, PLAIN])
@pytest.mark.parametrize("value", ["x1", "x1.detach() * 2"])
def test_a_view_of_memory_that_was_given_and_taken_back_keeps_it(tensor, value):
    twice = (f"x0.data = {value}", "v = x0[:2]", "x0.data = x1 * 3", "w = x0[1:]")
    assert_carried_out((tensor, PLAIN), twice, ("v",))
    assert_carried_out((tensor, PLAIN), twice, ("v", "x0", "w"))


@pytest.mark.parametrize(
    "statements",
    [
        ("x0.mul_(2)", "x0.set_(x0 * 2)"),
        ("x0.mul_(2)", "v = x0[1:]", "x0.data = x1", "v.add_(1)"),
        ("x0.mul_(2)", "v = x0[1:]", "x0.set_(x1.detach() * 2)", "v.add_(x0[1:])"),
        ("x0.view(-1).add_(1)", "with torch.no_grad(): x0.data = x1.detach() * 2", "x0.exp_()"),
    ],
)
@pytest.mark.parametrize("tensor", ["base[4:]", PLAIN])
def test_what_is_written_to_memory_before_another_is_given_stays_there(tensor, statements):
    assert_carried_out((tensor, PLAIN, "x0"), statements, ("x0", "x2"), BASES[2])


def test_what_shares_a_version_counter_is_saved_after_that_was_moved():
    inputs = "base.detach()[:3]", "base[:4]"
    assert_carried_out(inputs, ("x0.set_(x0 * 2)", "v = x0.sigmoid() * (x1 * x1).sum()"), ("v",))
    # and before: that raises in backward
    assert_carried_out(inputs, ("v = (x1 * x1).sum()", "x0.set_(x0 * 2)"), ("v",))
