"""What Python reads of a value that kernels compute, they compare themselves: no tensor is made for it."""

import concurrent.futures
import itertools

import pytest
import torch

import funcgrad as fg

LARGEST = 2**62 + 1
VALUES = {
    torch.float32: (0.0, -0.0, float("nan"), float("inf"), -float("inf"), 0.1, -1e-40, 16777217.0),
    torch.float64: (0.0, -0.0, float("nan"), float("inf"), 0.1, 0.1 + 2**-54, -5e-324, 1e300),
    torch.int64: (0, 7, -7, LARGEST, LARGEST + 1, 2**63 - 1, -(2**63) + 1),
    torch.int32: (0, 7, -(2**31) + 1),
    torch.int8: (0, 127, -127),
    torch.uint8: (0, 1, 255),
}
PAIRS = [(kind, a, b) for kind, own in VALUES.items() for a, b in itertools.product(own, own)]


def _reads(x):
    n = (-x).item()
    return x * 2, n


@pytest.mark.parametrize("kind, first, second", PAIRS)
def test_a_number_is_the_one_it_was_to_the_last_bit(kind, first, second):
    a, b = (torch.tensor([value], dtype=kind) for value in (first, second))
    compiled = fg.jit(_reads, backend="c")
    compiled(a), compiled(a)
    assert compiled.cache_info().misses == 1 and "expect(" not in str(compiled.program(a).schedule)
    (wanted, number), (found, read) = _reads(b), compiled(b)
    assert torch.equal(found, wanted) or (first != first or second != second)
    assert repr(read) == repr(number)
    assert compiled.cache_info().misses == 1 + (repr(_reads(a)[1]) != repr(number))


@pytest.mark.parametrize("backend", ["c", "aten", "triton"])
def test_numbers_of_computed_tensors_that_decide(backend):
    def f(x, w):
        y = (x @ w).relu()
        n = int((y > 0).sum())
        scale = float(y.max())
        for _ in range(n % 3):
            y = y * (2 if scale > 1 else 3)
        return y + n if (y.sum() > 4).item() else y - scale

    compiled = fg.jit(f, backend=backend)
    torch.manual_seed(0)
    for _ in range(12):
        x, w = torch.randn(3, 4), torch.randn(4, 2)
        torch.testing.assert_close(compiled(x, w), f(x, w))


def test_each_thread_is_told_its_own_number():
    def f(x):
        n = int(x.sum())
        return x + sum(range(n))

    compiled = fg.jit(f, backend="c")
    compiled(torch.tensor([1, 2]))

    def run(n):
        return all(torch.equal(compiled(x), f(x)) for x in [torch.tensor([n, 1])] * 5)

    with pytest.warns(fg.RecompileWarning), concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(8)))


def test_a_saved_program_checks_its_numbers(tmp_path):
    x = torch.tensor([3.0])
    compiled = fg.jit(_reads, backend="c")
    compiled(x)
    compiled.program(x).save(tmp_path / "program.fg")
    program = fg.load(tmp_path / "program.fg")
    assert torch.equal(program(x)[0], x * 2)
    with pytest.raises(fg.FuncgradError, match=r"-4\.0"):
        program(x + 1)


def test_numbers_are_compared_after_what_was_read_before_them():
    """A truth value that is computed of the number itself is not known where the number is."""

    def f(x):
        i = (x > 0).sum()
        return x.flatten()[i] if i < 6 else x.sum()

    compiled, x = fg.jit(f, backend="c"), torch.tensor([[0.3, -1.2, 0.7], [1.1, 0.4, -0.6]])
    for _ in range(3):
        assert torch.equal(compiled(x), f(x))
        assert compiled.cache_info().misses == 1
    assert torch.equal(compiled(-x), f(-x)) and compiled.cache_info().misses == 2
