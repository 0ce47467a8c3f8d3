"""The C and the Triton of some kernels, as text: what fuses with what, in which stages, and what is kept.

``python -m tests.golden.test_kernels`` writes the files anew.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import funcgrad as fg
from funcgrad.backends import c, triton
from funcgrad.memory.steps import Launch


def softmax_and_layer_norm(p):
    return (torch.nn.functional.layer_norm(torch.softmax(p["x"], -1), (64,), p["w"]) ** 2).mean()


def pairwise(x):
    d = x[:, None] - x[None]
    return (1 / ((d * d).sum(-1) + torch.eye(40))).sum()


def chain(x):
    return torch.exp(torch.sin(torch.tanh(x)) ** 2).sum()


def put_together(x):
    return torch.cat([x[1:], x[:1].flip(1) * 2]).cos().sum()


LINES = torch.zeros(8, 300)


def in_place(w):
    """The gradient of a softmax is written over what it is a softmax of: there, the product of two matrices."""
    return (torch.softmax(LINES @ w, -1) ** 2).sum()


AT = torch.zeros(7, dtype=torch.int64)


def looked_up(table):
    found = torch.nn.functional.embedding(AT, table)
    return (found.cumsum(1) * found.argmax(1, keepdim=True)).sum()


CLASSES = torch.zeros(300, dtype=torch.int64)


def few_classes(x):
    """What a few columns add up to is kept in registers."""
    return torch.nn.functional.cross_entropy(x, CLASSES) + x.sum(0).square().sum()


CASES = {
    "softmax_and_layer_norm": (softmax_and_layer_norm, {"x": torch.zeros(8, 64), "w": torch.zeros(64)}),
    "pairwise": (pairwise, torch.zeros(40, 3)),
    "chain": (chain, torch.zeros(1000)),
    "put_together": (put_together, torch.zeros(5, 30)),
    "in_place": (in_place, torch.zeros(300, 64)),
    "few_classes": (few_classes, torch.zeros(300, 3)),
    "looked_up": (looked_up, torch.zeros(50, 16)),
}


PRINTERS = {"c": lambda kernel: c.print_kernel(kernel).text, "triton": lambda kernel: triton.print_kernel(kernel).text}


def text_of(name, language):
    f, argument = CASES[name]
    program = fg.grad_compiled(f, backend="c").program(argument)
    kernels = [k for step in program.schedule[0].steps if isinstance(step, Launch) for k in step.kernels]
    return "\n\n".join(map(PRINTERS[language], kernels)) + "\n"


def file_of(name, language):
    return Path(__file__).with_name(f"{name}.{language}")


@pytest.mark.parametrize("language", PRINTERS)
@pytest.mark.parametrize("name", CASES)
def test_kernel(name, language):
    assert text_of(name, language) == file_of(name, language).read_text()


if __name__ == "__main__":
    for case in CASES:
        for printer in PRINTERS:
            file_of(case, printer).write_text(text_of(case, printer))
