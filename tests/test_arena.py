"""Small buffers that kernels alone know lie in one arena of the program: fewer tensors are made, results and the peak stay."""

import pytest
import torch
from closeness import assert_rounded

import funcgrad as fg
from funcgrad.backends.backend import Allocate, Launch, alive_in
from funcgrad.loops.memory import ALIGNMENT


def recurrent(w, x):
    h = torch.zeros(8, 16)
    for step in x:
        i, f = (step + h @ w).chunk(2, -1)
        h = torch.sigmoid(f) * h + torch.tanh(i)
    return h.square().mean()


def inputs(steps=6):
    torch.manual_seed(0)
    return torch.randn(16, 32) / 4, torch.randn(steps, 8, 32)


def launches(schedule):
    return [s for s in schedule.steps if isinstance(s, Launch)]


@pytest.fixture(scope="module")
def compiled():
    c = fg.grad_compiled(recurrent)
    return c, c.program(*inputs()).schedule[0]


def test_results_are_those_of_autograd(compiled):
    w, x = inputs()
    expected = torch.func.grad(recurrent)(w, x)
    for _ in range(2):
        assert_rounded([compiled[0](w, x)], [expected])


def test_one_tensor_stands_for_many(compiled):
    _, schedule = compiled
    held = {name for launch in launches(schedule) for name in launch.places}
    (memory,) = {launch.memory for launch in launches(schedule) if launch.memory}
    allocated = [s.buffer.name for s in schedule.steps if isinstance(s, Allocate)]
    assert len(held) > 8 and memory.name in allocated and not held & set(allocated)
    assert f"for {len(held)} buffers" in str(schedule)


def test_what_is_alive_together_lies_apart(compiled):
    _, schedule = compiled
    life = {}
    for i, launch in enumerate(launches(schedule)):
        sizes = {b.name: b for b in launch.buffers}
        for name, at in launch.places.items():
            first, _, _, _ = life.get(name, (i, i, 0, 0))
            life[name] = (first, i, at, at + sizes[name].dtype.itemsize * torch.Size(sizes[name].shape).numel())
    over = {frozenset(pair) for launch in launches(schedule) for k in launch.kernels for pair in k.over.items()}
    for a, (first, last, begin, end) in life.items():
        assert begin % ALIGNMENT == 0
        for b, (other_first, other_last, other_begin, other_end) in life.items():
            if a < b and first <= other_last and other_first <= last and begin < other_end and other_begin < end:
                assert begin == other_begin and (frozenset((a, b)) in over or first == other_last or other_first == last), (a, b)


def test_what_the_library_reads_and_what_is_returned_is_a_tensor(compiled):
    _, schedule = compiled
    held = {name for launch in launches(schedule) for name in launch.places}
    graph = schedule.graph
    library = {n.name for s in schedule.steps if hasattr(s, "node") for n in s.node.all_input_nodes}
    assert not held & (library | {r.name for r in graph.results})


@pytest.mark.parametrize("f", [recurrent])
def test_the_peak_is_what_was_predicted(f):
    c = fg.jit(f)
    w, x = inputs(40)
    use = c.memory(w.requires_grad_(), x)
    assert abs(use.predicted_peak - use.measured_peak) <= 0.02 * use.measured_peak
    assert alive_in(c.program(w, x).schedule).peak == use.predicted_peak


def test_few_and_large_buffers_are_left_alone():
    def f(x):
        return (torch.softmax(x @ x.t(), -1) @ x).sum()

    schedule = fg.grad_compiled(f).program(torch.randn(300, 300)).schedule[0]
    assert not any(launch.memory for launch in launches(schedule))
