"""Products of groups of rows, as experts compute them: in every dtype that eager PyTorch takes, one program for all
sizes."""

import pytest
import torch
import torch.nn.functional as F

import funcgrad as fg

TOLERANCE = {torch.float32: {"rtol": 1e-4, "atol": 1e-4}, torch.bfloat16: {"rtol": 0.1, "atol": 0.1}}


def experts(x, up, down, scores):
    """Each row goes to two experts, sorted by expert."""
    top, chosen = scores.topk(2, -1)
    ids, order = chosen.reshape(-1).sort()
    ends = torch.histc(ids.float(), bins=len(up), min=0, max=len(up) - 1).cumsum(0, dtype=torch.int32)
    hidden = F.silu(F.grouped_mm(x[order // 2], up.transpose(-2, -1), offs=ends))
    out = F.grouped_mm(hidden, down.transpose(-2, -1), offs=ends) * top.reshape(-1)[order][:, None]
    return torch.zeros_like(x).index_add(0, order // 2, out).sin().sum()


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_experts_learn_from_batches_of_all_sizes(dtype):
    halves, whole = fg.jit(experts), fg.value_and_grad_compiled(experts, argnums=(0, 1, 2, 3))
    for n in (5, 6, 7, 9):
        shapes = (n, 8), (4, 16, 8), (4, 8, 16), (n, 4)
        given = [torch.randn(shape, dtype=dtype) * 0.5 for shape in shapes]
        eager, own = ([v.clone().requires_grad_() for v in given] for _ in range(2))
        value = experts(*eager)
        expected = torch.autograd.grad(value, eager)
        torch.testing.assert_close(whole(*given), (value.detach(), expected), **TOLERANCE[dtype])
        torch.testing.assert_close(torch.autograd.grad(halves(*own), own), expected, **TOLERANCE[dtype])
    assert halves.cache_info().misses == whole.cache_info().misses == 2


ENDS = torch.tensor([2, 4], dtype=torch.int32)
PAIRS = {
    "rows by group": ((6, 8), (2, 3, 8), True),
    "columns by group": ((2, 5, 8), (8, 4), False),
    "inner by group": ((5, 4), (4, 8), False),
    "batched": ((2, 5, 8), (2, 3, 8), True),
}


@pytest.mark.parametrize("name", PAIRS)
def test_rows_are_laid_out_as_in_eager_pytorch(name):
    first, second, is_transposed = PAIRS[name]
    ends = None if name == "batched" else ENDS

    def f(a, b):
        return F.grouped_mm(a, b.transpose(-2, -1) if is_transposed else b, offs=ends)

    given = torch.randn(first), torch.randn(second)
    found, expected = fg.jit(f)(*given), f(*given)
    assert found.shape == expected.shape and found.stride() == expected.stride()
    used = slice(4) if name == "rows by group" else slice(None)  # beyond the last group nothing is computed
    torch.testing.assert_close(found[used], expected[used])
