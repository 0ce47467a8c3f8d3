"""What a kind of device takes for what: the figures by which partition, fusion, rematerialisation, kernels and thread
counts choose. A row for processors and one for graphics processors; another device is one of these with other figures
(``attrs.evolve``), which a backend is given.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from attrs import field, frozen


@frozen
class Cost:
    """What an operation on an element costs, in additions: ``alone``, where it is computed where it is needed;
    ``in_lanes``, as one of many in a row of a loop, as vectors."""

    alone: float = 1.0
    in_lanes: int = 1


@frozen
class Machine:
    """The figures of a kind of device."""

    name: str
    bandwidth: float
    """Bytes a second that its memory moves."""
    additions: float
    """Additions a second of elements in kernels, in single precision."""
    products: Mapping[torch.dtype, float] = field(hash=False)
    """Operations a second of matrix products, by dtype; where one is not named, those of single precision."""
    function: Cost
    """A transcendental function."""
    division: Cost
    """A division, or a root."""
    gathered: float
    """Reading an element at an index that is data, in additions."""
    launch: float
    """Seconds in which one more kernel begins."""
    columns_beside_a_function: int
    """Columns of a row beside which a function of one number for the row is nothing."""
    threads_from: int
    """Operations of a kernel below which threads cost more than they save; 0: a kernel always has its threads."""
    programs: int
    """Parts of a kernel that run at once; 0: as many as there are threads, which is known when it runs."""

    def bytes_meanwhile(self, operations: float) -> float:
        """Bytes that could be moved in the time of so many additions."""
        return operations * (self.bandwidth / self.additions)

    def bytes_beside_products(self, operations: float, dtype: torch.dtype) -> float:
        """The same for operations of matrix products."""
        return operations * (self.bandwidth / self.products.get(dtype, self.products[torch.float32]))

    def operations_meanwhile(self, nbytes: float) -> float:
        """Additions in the time in which so many bytes are moved."""
        return nbytes * (self.additions / self.bandwidth)


CPU = Machine(
    name="cpu",
    # Measured on two cores of a server with AVX2: a copy in memory, a loop of additions, and products of matrices
    # of 512 rows (on newer ones with AVX-512).
    bandwidth=20e9,
    additions=80e9,
    products={torch.float32: 320e9},
    # Measured: a function of libm beside libmvec's, eight at a time; a division has an eighth of the throughput.
    function=Cost(20.0, 8),
    division=Cost(8.0),
    gathered=4.0,
    # Kernels that follow one another are one C function.
    launch=0.0,
    # It is computed number by number, where a loop of its own would do sixteen at once.
    columns_beside_a_function=64,
    # Some 10 µs: threads wait for one another, on a busy machine for long.
    threads_from=200_000,
    programs=0,
)

GPU = Machine(
    name="gpu",
    # NVIDIA's data sheet of the H100 SXM: HBM3; half of the FMA rate; dense tensor cores where they keep the dtype
    # (PyTorch does not round single precision to TF32 unless it is told to).
    bandwidth=3.35e12,
    additions=33.5e12,
    products={torch.float32: 67e12, torch.float64: 67e12, torch.bfloat16: 989e12, torch.float16: 989e12},
    # CUDA C++ Programming Guide, throughput of instructions, compute capability 9.0: 16 special functions beside 128
    # additions a clock. exp and log are one of these with two or three multiplications, sin, erf and pow take more of
    # the others; a division is a reciprocal, and one step of Newton's. All lanes do it at once, wherever it stands.
    function=Cost(16.0, 16),
    division=Cost(10.0, 10),
    # An estimate: a sector of 32 bytes is read for each element, but rows that are looked up lie together.
    gathered=16.0,
    # From Triton's launcher to the kernel: some 4 µs.
    launch=4e-6,
    # The numbers of a tile's rows are computed at once, as its elements are.
    columns_beside_a_function=0,
    threads_from=0,
    # Eight for each of 132 multiprocessors, as a power of two.
    programs=1024,
)


def machine_of(device: torch.device) -> Machine:
    """The row for a device."""
    return CPU if device.type == "cpu" else GPU
