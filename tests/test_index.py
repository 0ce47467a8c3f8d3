"""Index arithmetic: whatever it is simplified to is the same number; and no kernel reads where nothing is."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.loops.index import Axis, Bound, Index, Quotient, at_axis, bounded, flat, row_major, substitute, unravel
from funcgrad.loops.ir import Buffer, Expressions, Kernel, Stage, Store
from funcgrad.loops.verify import verify

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


@given(
    st.lists(
        st.tuples(st.sampled_from(AXES), st.integers(-6, 6), st.integers(-6, 6), st.integers(0, 6)),
        min_size=1,
        max_size=4,
    )
)
def test_bounds_hold_between_the_least_and_the_greatest(drawn):
    """Of single axes the range is exact: it is empty where bounds contradict."""
    bounds: list[Bound] = [(at_axis(axis) + by, low, low + n) for axis, by, low, n in drawn]
    for axis in {axis for axis, *_ in drawn}:
        mine = [(i, low, end) for i, low, end in bounds if axis in i.axes]
        possible = [k for k in range(axis.size) if all(low <= value(i, {axis: k}) < end for i, low, end in mine)]
        least, most = bounded(at_axis(axis), bounds)
        assert [*range(least, most + 1)] == possible


# ── what kernels read ────────────────────────────────────────────────────────────────────────────────────────────


def reading(*guard: Bound) -> Kernel:
    """A kernel that reads ``x[i - 5]`` of ten elements under a guard."""
    i = Axis("i", 20)
    x, y = (Buffer(name, (n,), torch.float32, (1,)) for name, n in (("x", 10), ("y", 20)))
    element = Expressions([i]).load("x", at_axis(i) + -5, torch.float32, guard)
    return Kernel("k", (), (i,), (Stage((), (), (Store("y", at_axis(i), element, True),)),), (x,), (y,), 0, {})


def test_what_is_read_under_a_guard_is_proven_to_be_there():
    i = at_axis(Axis("i", 20))
    inside = i + -5, 0, 10
    assert verify(reading(inside)) and verify(reading(inside, (i, 3, 8)))
    for guard in ([], [(i, 3, 8)], [(i + -5, 0, 11)], [inside, (i, 0, 3)], [inside, (i, 18, 20)]):
        with pytest.raises(fg.GraphError, match="may read or write x"):
            verify(reading(*guard))


def between_zeros(x: torch.Tensor) -> torch.Tensor:
    n = x.shape[0]
    z = torch.zeros(4 * n + 3)
    z[: n - 1] = torch.nn.functional.pad(x, (2 * n + 1, n + 2))[: n - 1]
    return z * 2


def test_what_no_element_needs_is_not_read():
    """Each bound can hold, but no two of them together."""
    x = torch.randn(100)
    compiled = fg.jit(between_zeros, backend="c")
    assert torch.equal(compiled(x), between_zeros(x))
    (kernel,) = [s for s in compiled.program(x).kernels[0].steps if isinstance(s, Kernel)]
    assert not kernel.reads


FENCED = """
import ctypes, mmap, torch, funcgrad as fg
from test_index import between_zeros

SIZE, ROOM = 1 << 22, 1 << 26
memory = mmap.mmap(-1, SIZE + 2 * ROOM)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
for fence in (start, start + ROOM + SIZE):
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(fence), ROOM, 0) == 0
x = torch.frombuffer(memory, dtype=torch.float32, offset=ROOM, count=SIZE // 4).normal_()

def shifted(x, by, to):  # whether by < to is not known
    y = torch.nn.functional.pad(x, (by.shape[0], 3))
    z = torch.zeros_like(y)
    z[: to.shape[0]] = y[: to.shape[0]]
    return z * 2

for f, dynamic, *sizes in (between_zeros, False), (between_zeros, True), (shifted, True, 5, 1000), (shifted, True, 1000, 10):
    args = x, *map(torch.zeros, sizes)
    assert torch.equal(fg.jit(f, backend="c", dynamic=dynamic)(*args), f(*args)), (f, sizes)
"""
"""Around the elements there is memory that must not be read."""


def test_nothing_is_read_beside_an_input():
    done = subprocess.run(
        [sys.executable, "-c", FENCED], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
