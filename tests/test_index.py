"""Index arithmetic: whatever it is simplified to is the same number."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from funcgrad.loops.index import Axis, Index, Quotient, at_axis, flat, row_major, substitute, unravel

AXES = (Axis("a", 3), Axis("b", 4), Axis("c", 6))


def value(index: Index, at: dict[Axis, int]) -> int:
    total = index.const
    for atom, by in index.terms:
        if isinstance(atom, Axis):
            total += by * at[atom]
        else:
            inside = value(atom.of, at)
            assert inside >= 0, f"{index}: C and Python divide negative numbers differently"
            total += by * (inside // atom.by if isinstance(atom, Quotient) else inside % atom.by)
    return total


@st.composite
def expressions(draw):
    """An index, and the Python function it stands for."""
    kind = draw(st.sampled_from(["axis", "const", "add", "mul", "div", "mod"]))
    if kind == "axis":
        axis = draw(st.sampled_from(AXES))
        return at_axis(axis), lambda at: at[axis]
    if kind == "const":
        n = draw(st.integers(-20, 20))
        return Index((), n), lambda at: n
    a, f = draw(expressions())
    if kind == "add":
        b, g = draw(expressions())
        return a + b, lambda at: f(at) + g(at)
    n = draw(st.integers(-4, 4)) if kind == "mul" else draw(st.integers(1, 8))
    if kind == "mul":
        return a * n, lambda at: f(at) * n
    return (a // n, lambda at: f(at) // n) if kind == "div" else (a % n, lambda at: f(at) % n)


@given(expressions())
def test_simplified_is_the_same_number(pair):
    index, function = pair
    for numbers in itertools.product(*(range(a.size) for a in AXES)):
        at = dict(zip(AXES, numbers, strict=True))
        found = value(index, at)
        assert found == function(at)
        assert index.range[0] <= found <= index.range[1]


@given(expressions(), expressions())
def test_substitution(outer, inner):
    index, function = outer
    other, g = inner
    low, high = other.range
    if low < 0 or high >= AXES[0].size:
        return
    replaced = substitute(index, {AXES[0]: other})
    for numbers in itertools.product(*(range(a.size) for a in AXES)):
        at = dict(zip(AXES, numbers, strict=True))
        assert value(replaced, at) == function({**at, AXES[0]: g(at)})


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_unravel_is_undone_by_flat(shape):
    """A reshape there and back is no reshape: the index of a contiguous tensor stays affine."""
    axis = Axis("i", 4**4)
    n = 1
    for size in shape:
        n *= size
    axis = Axis("i", n)
    assert flat(unravel(at_axis(axis), shape), row_major(shape)) == at_axis(axis)
