"""The figures of a machine decide: one graph, on two rows of figures, is compiled otherwise where it should be."""

import pytest
import torch
from attrs import evolve

import funcgrad as fg
from funcgrad.backends import c, triton
from funcgrad.backends.fused import CBackend
from funcgrad.loops.ir import Kernel
from funcgrad.loops.lower import Target
from funcgrad.machine import CPU, GPU, machine_of
from funcgrad.memory.steps import Launch
from funcgrad.partition.cost import bytes_moved, costs_again, fused_costs
from funcgrad.partition.partition import partition
from funcgrad.runtime import cost_report


def joint_of(f, *args):
    return fg.jit(f, backend="aten").program(*args).joint


def kernels_on(machine, f, *args):
    return [k for k in CBackend(machine).lower(joint_of(f, *args).graph).steps if isinstance(k, Kernel)]


def twice(x):
    y = x.sin().cos().tanh().erf()
    return y * y.sum()


def short_rows(x):
    return x - x.logsumexp(1, keepdim=True)


def side_by_side(x, w):
    """What has nothing in common but its loops; a megabyte is kept for it."""
    return (x @ w) * 2, (w @ x) * 3


ROWS = torch.zeros(4096, 16)
SQUARE = torch.zeros(512, 512)


@pytest.mark.parametrize(
    ("f", "args", "figure", "on_cpu", "on_gpu"),
    [
        # four functions take longer than a processor writes and reads an element: it is one more result
        (twice, (SQUARE,), "additions", [2, 1], [1, 1]),
        # a function of a number for each row has a loop of its own, or is done by the lanes of a tile
        (short_rows, (ROWS,), "columns_beside_a_function", [2, 1, 1], [1]),
        (side_by_side, (SQUARE, torch.ones(512, 512)), "launch", [1, 1], [2]),
    ],
)
def test_fusion_and_rematerialisation(f, args, figure, on_cpu, on_gpu):
    """What each kernel writes; of another processor, by the one figure that matters."""
    like_gpu = {"launch": 1e-4, "additions": 400e9, "columns_beside_a_function": 0}[figure]
    for machine, expected in ((CPU, on_cpu), (GPU, on_gpu), (evolve(CPU, **{figure: like_gpu}), on_gpu)):
        assert [len(kernel.writes) for kernel in kernels_on(machine, f, *args)] == expected, machine.name


def test_what_is_saved():
    x = torch.zeros(1000, requires_grad=True)
    joint = joint_of(lambda x: x.sin().cos().tanh().sin() ** 2, x)
    kept = [len(partition(joint, fused_costs(joint.graph, Target(m)), None, True).kept) for m in (CPU, GPU)]
    assert kept == [4, 1]  # its steps, or what all of them are computed from


@pytest.mark.parametrize("machine", [CPU, GPU])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_a_product_costs_again(machine, dtype):
    x = torch.zeros(256, 256, dtype=dtype, requires_grad=True)
    costs, _ = costs_again(joint_of(lambda x: (x @ x).sin(), x).graph, Target(machine))
    ((product, cost),) = ((n, c) for n, c in costs.items() if n.name == "mm")
    speed = machine.products.get(dtype, machine.products[torch.float32])
    assert cost == pytest.approx(bytes_moved(product) + 2 * 256**3 / speed * machine.bandwidth)


def test_threads_and_programs():
    program = fg.jit(lambda x: x.exp().sum(0), backend="c").program(torch.zeros(300, 300))
    (kernel,) = (k for s in program.schedule[0].steps if isinstance(s, Launch) for k in s.kernels)
    texts = [c.print_kernel(kernel, evolve(CPU, threads_from=n)).text for n in (1, 10**9)]
    assert ["omp parallel" in text for text in texts] == [True, False]
    grids = [triton.print_kernel(kernel, evolve(GPU, programs=n)).grid for n in (2, 1024)]
    assert grids == [(2, 1), (2, 75)]


def test_the_time_of_a_program_is_that_of_its_device():
    assert machine_of(torch.device("cuda")) is GPU and machine_of(torch.device("cpu")) is CPU
    assert cost_report._speeds(GPU) == (GPU.products[torch.float32], GPU.bandwidth)
