"""Whole numbers that a function computes of sizes with tensors: they are known at every size."""

from collections.abc import Callable

import pytest
import torch
from closeness import assert_rounded
from torch import Tensor

import funcgrad as fg

FEW = (9, 12, 15, 17)


def programs_for(f: Callable[[Tensor], Tensor]) -> int:
    compiled = fg.jit(f)
    for n in FEW:
        x = torch.randn(n, 4)
        assert_rounded(compiled(x), f(x))
    return compiled.cache_info().misses


def table(x: Tensor) -> Tensor:
    """Heights and widths of feature maps, as detectors write them down."""
    return torch.as_tensor([[x.shape[0], 7], [x.shape[0] // 2, -3]])


ASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda t: t[0, 0] + t[0, 1],
    "add, scaled": lambda t: torch.add(t[0, 0], t[0, 1], alpha=3),
    "sub": lambda t: t[0, 0] - t[1] - 2,
    "rsub": lambda t: 32 - t,
    "mul": lambda t: t * t[0],
    "neg": lambda t: -t,
    "floor_divide": lambda t: t // 2,
    "div": lambda t: torch.div(t, -2, rounding_mode="floor"),
    "div, trunc": lambda t: torch.div(t, -2, rounding_mode="trunc"),
    "div by a tensor": lambda t: torch.div(t[0], t[1, 1], rounding_mode="trunc"),
    "remainder": lambda t: t[:, 1:] % 3 + t % (t + 50),
    "minimum": lambda t: torch.minimum(t[0], t[1]),
    "maximum": lambda t: torch.maximum(t[0], t[1]),
    "clamp": lambda t: t.clamp(min=0),
    "clamp, both": lambda t: torch.clamp(t, -1, 100),
    "compare": lambda t: (t > 0).long() + (t <= -3) + (t == t[0]) + (t[0] != 7) + (t < t[1, 1]) + (t[0] >= t[1]),
    "sum": lambda t: t.sum() + t.sum(1) + t.sum((0, 1), keepdim=True),
    "sum of bools": lambda t: (t > 0).sum(),
    "sum of none": lambda t: t[:, 2:].sum(1),
    "prod": lambda t: t.prod(1) + t.prod(),
    "amax": lambda t: t.amax(1) + t.amin(),
    "max": lambda t: t.max() - t.min(),
    "cumsum": lambda t: t.cumsum(0) + t.cumsum(-1),
    "cat": lambda t: torch.cat((t.new_zeros((1,)), t.prod(1).cumsum(0)[:-1])),
    "stack": lambda t: torch.stack([t[0], t[1]], dim=1),
    "slice": lambda t: t[::2, -1:],
    "unsqueeze": lambda t: t[:, None].transpose(0, 1),
    "view": lambda t: t.T.reshape(-1),
    "permute": lambda t: t.permute(1, 0).t(),
    "clone": lambda t: t.clone().detach().contiguous().long(),
    "filled": lambda t: t.new_full((2,), 3) + torch.ones_like(t) * t.new_tensor(4),
    "unbind": lambda t: torch.stack([height * width for height, width in t]),
    "data": lambda t: t + torch.tensor([1, -1]),
}


@pytest.mark.parametrize("name", ASKED)
def test_what_is_computed_of_sizes_is_known_at_every_size(name: str) -> None:
    def f(x: Tensor) -> Tensor:
        for number in ASKED[name](table(x)).reshape(-1):
            x = x * int(number)
        return x

    assert programs_for(f) == 2


def test_a_size_in_a_tensor_bounds_a_slice() -> None:
    def f(x: Tensor) -> Tensor:
        span = torch.tensor(min(len(x), 32))  # transformers' DeBERTa
        rows = torch.linspace(0, 1, 64)[32 - span : 32 + span]
        return x.sum() * rows.sum() + torch.clamp(torch.arange(5) + span, 0, span * 2 - 1).sum()

    assert programs_for(f) == 2


def test_a_size_in_a_tensor_counts_elements() -> None:
    def f(x: Tensor) -> Tensor:
        n = torch.tensor(x.shape[0]) // 2 + 1
        return x[:n].sum() + x.new_ones(n).sum()

    assert programs_for(f) == 2


WRONG: dict[str, Callable[[Tensor], Tensor]] = {
    "wrapped around": lambda x: torch.tensor([253 + len(x)]).to(torch.uint8).long() + 1,
    "wrapped around in 64 bits": lambda x: torch.tensor([len(x)]) * 2**61,
    "rounded": lambda x: (torch.tensor([2**24 + len(x)]).float() + 1).long(),
    "many": lambda x: torch.full((65,), len(x)).cumsum(0)[-1:],
    "divided by none": lambda x: torch.tensor([6]) // torch.tensor([len(x)]),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_numbers_of_python_would_not_say_is_asked_of_the_tensor(name: str) -> None:
    programs_for(lambda x: x.double() * WRONG[name](x).item())


def test_the_bound_that_is_the_smaller_one_is_chosen_in_each_call() -> None:
    def f(x: Tensor) -> Tensor:
        return x[: int(torch.minimum(torch.tensor(len(x)), torch.tensor(13)) - 1)].sum()

    assert programs_for(f) <= 3
