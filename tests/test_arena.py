"""Small buffers that kernels alone know lie in arenas of the program: fewer tensors are made, results and the peak
stay."""

import itertools

import pytest
import torch
from closeness import assert_rounded

import funcgrad as fg
from funcgrad.memory.liveness import alive_in
from funcgrad.memory.scratch import ALIGNMENT
from funcgrad.memory.steps import Allocate, Launch, size_of


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
    places = {name: at for launch in launches(schedule) for name, at in launch.places.items()}
    allocated = {s.buffer.name for s in schedule.steps if isinstance(s, Allocate)}
    arenas = {arena.name for arena, _ in places.values()}
    assert len(places) > 8 and arenas <= allocated and not places.keys() & allocated
    assert len(arenas) == 1 and f"an arena for {len(places)} buffers" in str(schedule)


def test_buffers_lie_apart(compiled):
    """But for those that are written in the place of others, and parts of what they are put together to."""
    _, schedule = compiled
    over = {new: old for launch in launches(schedule) for k in launch.kernels for new, old in k.over.items()}
    spans = {}
    for launch in launches(schedule):
        for b in launch.buffers:
            if b.name in launch.places and b.name not in over:
                arena, at = launch.places[b.name]
                assert at % ALIGNMENT == 0 and at + size_of(b) <= size_of(arena)
                spans[b.name] = (arena.name, at, at + size_of(b))
    for (arena, begin, end), (other, first, last) in itertools.combinations(spans.values(), 2):
        is_part = (begin <= first and last <= end) != (first <= begin and end <= last)
        assert arena != other or end <= first or last <= begin or is_part


def test_what_the_library_reads_and_what_is_returned_is_a_tensor(compiled):
    _, schedule = compiled
    held = {name for launch in launches(schedule) for name in launch.places}
    graph = schedule.graph
    library = {n.name for s in schedule.steps if hasattr(s, "node") for n in s.node.all_input_nodes}
    assert not held & (library | {r.name for r in graph.results})


def test_the_peak_is_what_was_predicted():
    c = fg.jit(recurrent)
    w, x = inputs(40)
    use = c.memory(w.requires_grad_(), x)
    assert abs(use.predicted_peak - use.measured_peak) <= 0.02 * use.measured_peak
    assert alive_in(c.program(w, x).schedule).peak == use.predicted_peak


def test_few_and_large_buffers_are_left_alone():
    def f(x):
        return (torch.softmax(x @ x.t(), -1) @ x).sum()

    schedule = fg.grad_compiled(f).program(torch.randn(300, 300)).schedule[0]
    assert not any(launch.places for launch in launches(schedule))
