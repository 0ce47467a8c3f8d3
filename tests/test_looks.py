"""What is computed, looked at in several ways, and copied: where a kernel writes it, and in which shape, follows from
the looks."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg

SIZES = st.sampled_from((1, 2, 4, 8))
"""Powers of two: parts that are repeated have as many elements as the whole."""


def look(x: torch.Tensor, kind: str, i: int, j: int) -> torch.Tensor:
    if not x.ndim or x.numel() > 512:
        return x.reshape(-1)[:4]
    dim, other = i % x.ndim, j % x.ndim
    n = x.shape[dim]
    match kind:
        case "half":
            return x.narrow(dim, 0, max(1, n // 2))
        case "rest":
            return x.narrow(dim, j % n, n - j % n)
        case "every other":
            return x[(slice(None),) * dim + (slice(j % 2 if n > 1 else 0, None, 2),)]
        case "repeat":
            return x.expand(2 + 2 * (j % 2), *x.shape)
        case "spread":
            return x.unsqueeze(dim).expand(*x.shape[:dim], 2, *x.shape[dim:])
        case "transpose":
            return x.transpose(dim, other)
        case "flatten":
            return x.flatten()
        case "in rows":
            return x.reshape(-1, n)
        case "flip":
            return x.flip(dim)
        case "select":
            return x.select(dim, j % n)
        case "unfold":
            return x.unfold(dim, min(n, 2), 1 + j % 2)
        case "diagonal":
            return x.diagonal(0, dim, other) if dim != other else x
        case "write":
            y = x.clone()
            y.select(dim, j % n).mul_(2)
            return y
        case "compute":
            return x.tanh()
    raise AssertionError(kind)


KINDS = [
    "half", "rest", "every other", "repeat", "spread", "transpose", "flatten", "in rows", "flip", "select", "unfold",
    "diagonal", "write", "compute",
]  # fmt: skip


@settings(max_examples=25)
@given(
    st.lists(SIZES, min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 7), st.integers(0, 7)), min_size=1, max_size=6),
)
def test_any_looks(shape, steps):
    def f(x):
        y = x.sin()
        for step in steps:
            y = look(y, *step)
        return y.clone(memory_format=torch.contiguous_format), y.flatten(), y.contiguous().sum(0) if y.ndim else y

    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for found, expected in zip(fg.jit(f, backend="c")(x), f(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_a_part_that_is_repeated_until_it_is_as_large_as_the_whole():
    """It was taken for the whole."""
    x = torch.arange(8.0)
    for f in (
        lambda x: x.exp()[:4].expand(2, 4).clone(),
        lambda x: x.exp()[:4].expand(2, 4).reshape(8),
        lambda x: x.exp()[:2].expand(2, 2, 2).contiguous().sum(0),
        lambda x: x.exp().view(2, 4)[:, :2].expand(2, 2, 2).permute(1, 0, 2).contiguous(),
    ):
        torch.testing.assert_close(fg.jit(f, backend="c")(x), f(x))


def test_a_part_that_is_repeated_of_what_was_written_to():
    def f(written, repeated):
        y = repeated.expand(2, 4)
        with torch.no_grad():
            written.exp_()
        return y.flatten()

    def made():
        base = torch.arange(8.0)
        return base[1], base[:4]

    torch.testing.assert_close(fg.jit(f, backend="c")(*made()), f(*made()))


def test_a_library_look_that_is_read_in_another_shape():
    """By a kernel as memory, and by who is given the result in its own shape."""

    def f(x):
        y = x.sin().unfold(1, 1, 1)
        return y.clone(memory_format=torch.contiguous_format), y.flatten()

    x = torch.randn(4, 1, 2)
    for found, expected in zip(fg.jit(f, backend="c")(x), f(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_what_is_put_into_windows_that_overlap():
    """A copy of them overlaps, too, but not one of an expanded tensor."""

    def f(x):
        windows, repeated = x.sin().unfold(0, 2, 1), x[:1].expand(7, 2)
        return [
            put
            for base in (windows, repeated)
            for put in (
                torch.select_scatter(base, torch.zeros(2), 0, 1),
                torch.slice_scatter(base, torch.zeros(7, 1), 1, 1, 2),
                torch.diagonal_scatter(base, torch.zeros(2)),
            )
        ]

    x = torch.arange(8.0)
    for found, expected in zip(fg.jit(f, backend="c")(x), f(x), strict=True):
        torch.testing.assert_close(found, expected)
