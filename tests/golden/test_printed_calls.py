"""The printed calls of a few functions, word for word: each text stands in a file beside this one.

They show what a call does besides its kernel, and what a layer costs. Guards are left out (other tests read them), and
so are line numbers. ``python -m tests.golden.test_printed_calls`` writes the files anew; read the difference before you
keep it.
"""

import re
from pathlib import Path

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import funcgrad as fg

HERE = Path(__file__).parent


class Count(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, buffer):
        buffer.add_(1)
        ctx.buffer = buffer
        return x * 2

    @staticmethod
    def backward(ctx, g):
        ctx.buffer.add_(10)
        return g * 2, None


def pure():
    return lambda x, y: x * y + 1, (torch.ones(3), torch.ones(3))


def duplicate():
    def f(p, q):
        p.mul_(2)
        return p + q

    x = torch.ones(3)
    return f, (x, x)


def overlapping_views():
    def f(a, b):
        a.mul_(2)
        return b + 1

    base = torch.ones(8)
    return f, (base[:4], base[2:6])


def metadata_and_data():
    def f(x):
        x.mul_(2)
        x.t_()
        return x.sum(0)

    return f, (torch.ones(2, 3),)


def buffer_in_both_passes():
    return lambda x, buffer: Count.apply(x, buffer), (torch.ones(3, requires_grad=True), torch.zeros(3))


def alias_output():
    return lambda x: (x, x[1:], x * 2), (torch.ones(3),)


def order_of_effects():
    """Copies first, then views of what is as it will be, then sizes, then views of what has got its sizes."""

    def f(m, v, w):
        m.mul_(2)
        m.t_()
        w.add_(1)
        return m[1:], v.view(-1), w * 2

    return f, (torch.ones(2, 3), torch.ones(4), torch.ones(3))


def subclass():
    """A subclass that is written to, and one as a result."""

    def f(x, y):
        x.mul_(2)
        return x + y

    return f, (TwoTensor(torch.ones(3), torch.zeros(3)), torch.ones(3))


def subclass_in_two_halves():
    return lambda x, y: x * y, (TwoTensor(torch.ones(3), torch.zeros(3)).requires_grad_(), torch.ones(3))


def other_memory():
    """The memory of two tensors, swapped: both are looked at before one is changed."""

    def f(x, y):
        x.data, y.data = y, x.data
        return x - y, x[1:]

    return f, (torch.ones(3), torch.zeros(3))


CASES = (
    pure, duplicate, overlapping_views, metadata_and_data, buffer_in_both_passes, alias_output, order_of_effects,
    other_memory,
    subclass, subclass_in_two_halves,
)  # fmt: skip


def after_the_guards(call):
    lines = call.splitlines()
    last = max(i for i, line in enumerate(lines) if line.endswith("return MISS"))
    return "\n".join([lines[0], "    ...", *lines[last + 1 :]]) + "\n"


def text_of(case):
    """The printed call, and for a program of two halves their printed code."""
    f, args = case()
    program = fg.jit(f, backend="aten").program(*args)
    halves = [source.text for source in program.sources] if len(program.sources) == 2 else []
    return re.sub(r" · \S+:\d+ in \w+", "", "\n".join([after_the_guards(program.call.text), *halves]))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_printed_call(case):
    assert text_of(case) == (HERE / f"{case.__name__}.txt").read_text()


if __name__ == "__main__":
    for case in CASES:
        (HERE / f"{case.__name__}.txt").write_text(text_of(case))
