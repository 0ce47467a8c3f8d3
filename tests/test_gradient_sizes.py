"""Gradients that are set (``x.grad = v``) before, between and after changes of their sizes, and of the sizes of what
they are set of. Eager PyTorch is the oracle."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from laws.programs import Case, difference, run

import funcgrad as fg

_TARGETS = "x", "y", "v", "w", "z"
_CHANGES = (
    "{0}.unsqueeze_(0)",
    "{0}.squeeze_(0)",
    "{0}.t_()",
    "{0}.resize_(9).fill_(2)",
    "{0}.resize_(2)",
    "{0}.data = torch.ones(2, 2)",
    "{0}.data = torch.ones(3)",
    "{0}.data = torch.ones(4, dtype=torch.float64)",
    "{0}.mul_(2)",
)
_SET = "{0}.grad = {1}", "{0}.grad = {1}", "{0}.grad = None"
_STATEMENTS = [f.format(a) for f in _CHANGES for a in _TARGETS]
_SETTINGS = [f.format(a, b) for f in _SET for a in _TARGETS[:2] for b in _TARGETS[2:]]


def _program(statements, returned):
    """A function that sets gradients of an argument and of a result, with what else it does; eager raises where the
    sizes do not fit."""
    body = [f"    {s}" for s in statements]
    lines = ["def f(x, z):", "    y, v, w = z * 3, (z * 2).detach(), torch.ones(2, 2)", *body]
    space = {"torch": torch}
    exec("\n".join([*lines, f"    return {returned}"]), space)
    return space["f"]


def _differs(statements, returned, requires_grad):
    f = _program(statements, returned)
    case = Case(lambda: (torch.ones(2, 2).requires_grad_(requires_grad), torch.arange(4.0).view(2, 2).sin()), f)
    compiled = fg.jit(f)
    for _ in range(2):
        expected, found = run(case, lambda f: f), run(case, lambda f: compiled)
        if found.error is not None and expected.error is None:
            assert "\n  to fix: " in found.error, found.error  # refused, by name
            return None
        if (differs := difference(expected, found)) is not None:
            return differs
    return None


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@given(
    st.lists(st.sampled_from(_STATEMENTS) | st.sampled_from(_SETTINGS), min_size=2, max_size=6),
    st.sampled_from(["(y,)", "(y, v)", "(y, v, w)", "()"]),
    st.booleans(),
)
@example(["y.t_()", "y.grad = v", "y.t_()"], "(y, v)", False)
@example(["x.grad = v", "v.t_()"], "()", True)
@example(["x.grad = v", "v.resize_(9).fill_(2)"], "(y,)", False)
def test_set_whenever(statements, returned, requires_grad):
    assert _differs(statements, returned, requires_grad) is None
