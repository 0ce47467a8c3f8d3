"""Launches: kernels that need nothing of one another share the threads, and those that differ in length alone are
one function."""

from __future__ import annotations

import re

import pytest
import torch
from closeness import assert_rounded
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg
from benchmarks.held_out import HELD_OUT
from benchmarks.workloads import WORKLOADS
from funcgrad.backends import c_files
from funcgrad.trees import flatten


def step(p, g, m):
    m = {k: 0.9 * m[k] + 0.1 * g[k] for k in p}
    return {k: p[k] - 1e-3 * m[k] / (m[k] * m[k] + 1e-8).sqrt() for k in p}, m


def leaves(sizes):
    torch.manual_seed(0)
    return tuple({f"w{i}": torch.randn(n) for i, n in enumerate(sizes)} for _ in range(3))


def c_text(program):
    return "\n".join(s.text for s in program.sources if s.language == "c")


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sampled_from([0, 1, 3, 255, 256, 257, 1000, 30_001, 100_000]), min_size=1, max_size=9))
def test_a_step_over_leaves_of_many_sizes(sizes):
    p, g, m = leaves(sizes)
    for ours, theirs in zip(flatten(fg.jit(step, backend="c")(p, g, m))[0], flatten(step(p, g, m))[0], strict=True):
        assert_rounded(ours, theirs)


def test_leaves_share_a_region_and_a_function():
    p, g, m = leaves([257, 1000, 5000, 30_001, 100_000, 100_001])
    compiled = fg.jit(step, backend="c")
    text = c_text(compiled.program(p, g, m))
    assert text.count("#pragma omp parallel") == 1, "one region"
    assert text.count("#pragma omp barrier") == 0, "no leaf waits for another"
    functions = re.findall(r"^void (k_\w+)\(", text, re.M)
    assert len(functions) == 2, "one whose rows threads share, one that a thread does"
    assert text.count("#pragma omp single nowait") == 3
    for n in (1, 2):
        torch.set_num_threads(n)
        for ours, theirs in zip(flatten(compiled(p, g, m))[0], flatten(step(p, g, m))[0], strict=True):
            assert_rounded(ours, theirs)


def test_what_waits_is_behind_a_barrier():
    def f(x, y):
        a, b = x.cumsum(1), y.cumsum(1)
        return a, a.t().cumsum(1), b, b.t().cumsum(1)

    x, y = torch.randn(300, 400), torch.randn(300, 500)
    compiled = fg.jit(f, backend="c")
    text = c_text(compiled.program(x, y))
    assert text.count("#pragma omp parallel") == 1
    assert text.count("#pragma omp barrier") == 2, "the second kernel and the third need nothing of one another"
    for ours, theirs in zip(compiled(x, y), f(x, y), strict=True):
        assert_rounded(ours, theirs)


MANY = ("lstm", "sinkhorn", "kalman filter", "heat equation", "graph convolution", "transformer", "gaussian process")


def in_reverse(monkeypatch):
    waves = c_files._waves

    def reversed_waves(printed, places):
        for wave in waves(printed, places):
            wave.calls.reverse()
            yield wave

    monkeypatch.setattr(c_files, "_waves", reversed_waves)


def results(workload):
    args = workload.inputs(True)
    return flatten(fg.value_and_grad_compiled(workload.loss, backend="c")(*args))[0]


@pytest.mark.sweep(4)
@pytest.mark.parametrize(
    "workload", [w for w in (*WORKLOADS, *HELD_OUT) if w.name.split(" (")[0] in MANY], ids=lambda w: w.name
)
def test_kernels_of_a_wave_may_run_in_any_order(monkeypatch, workload):
    expected = results(workload)
    in_reverse(monkeypatch)
    for ours, theirs in zip(results(workload), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_others_may_not(monkeypatch):
    """The law above can fail: memory of the arena is used again."""

    def f(x):
        for _ in range(4):
            x = x.cumsum(0).t().sin()
        return x

    x = torch.randn(5, 5)
    expected = fg.jit(f, backend="c")(x)
    monkeypatch.setattr(c_files._Wave, "joined_by", lambda *_: True)
    in_reverse(monkeypatch)
    assert not torch.equal(fg.jit(f, backend="c")(x), expected)
