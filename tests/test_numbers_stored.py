"""Numbers that are others in other calls, stored where an equal one lies in the call that compiles: the dry run finds
what it found, which is a write for all that. Eager PyTorch is the oracle, step by step."""

import copy

import pytest
import torch
from torch import nn

import funcgrad as fg


class Host(nn.Module):
    def __init__(self):
        super().__init__()
        self.n, self.calls, self.log, self.d, self.pair = 0, 0, [0, 1], {"a": 0}, (0, 1)
        self.register_buffer("seen", torch.zeros(()))


HOST = Host()
NUMBER = 0


def default(n=0):
    return n


def attribute(x):
    HOST.n = int(HOST.seen)


def attribute_and_another_effect(x):
    HOST.n = int(HOST.seen)
    HOST.calls += 1


def past_the_hook(x):
    object.__setattr__(HOST, "n", int(HOST.seen))


def item(x):
    HOST.log[0] = int(HOST.seen)


def item_after_a_method(x):
    HOST.log.sort()
    HOST.log[0] = int(HOST.seen)


def item_anew(x):
    HOST.log.pop(0)
    HOST.log.insert(0, int(HOST.seen))


def slice_of_items(x):
    HOST.log[:] = [int(HOST.seen), 1]


def key(x):
    HOST.d.update(a=int(HOST.seen))


def within_a_tuple(x):
    HOST.pair = (int(HOST.seen), 1)


def global_variable(x):
    global NUMBER
    NUMBER = int(HOST.seen)


def defaults(x):
    default.__defaults__ = (int(HOST.seen),)


def size(x):
    HOST.n = x.shape[-1] - 3


def size_as_an_item(x):
    HOST.log[0] = x.shape[-1] - 3


class InBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        HOST.n = int(HOST.seen)
        HOST.log[1] = int(HOST.seen) + 1
        return g


class ReadBefore(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        HOST.calls = HOST.log[0] = HOST.d["a"] = ctx.n = int(HOST.seen)
        return x * 1

    @staticmethod
    def backward(ctx, g):
        HOST.n = HOST.calls = ctx.n
        HOST.calls = HOST.log[0] = HOST.d["a"] = ctx.n * 2
        return g


STORES = [
    attribute, attribute_and_another_effect, past_the_hook, item, item_after_a_method, item_anew, slice_of_items, key,
    within_a_tuple, global_variable, defaults, size, size_as_an_item,
]  # fmt: skip
STEPS = [((2, 3), 0), ((3,), 0), ((3,), 3), ((2, 5), 4), ((2, 3), 0), ((2, 7), 0), ((2, 3), -1)]
"""The shape of the argument, and what the buffer holds."""


def _stored(call, with_backward=False):
    """What is stored after each call."""
    global HOST, NUMBER
    HOST, NUMBER, default.__defaults__, found = Host(), 0, (0,), []
    for shape, seen in STEPS:
        HOST.seen.fill_(seen)
        result = call(torch.ones(shape, requires_grad=with_backward))
        if with_backward:
            result.backward()
        found.append(copy.deepcopy((HOST.n, HOST.calls, HOST.log, HOST.d, HOST.pair, NUMBER, default())))
    return found


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("how", ["jit", "any size", "gradient"])
def test_a_number_that_is_there_already_is_stored(store, how):
    def f(x):
        store(x)
        return x.sin().sum()

    given = {"dynamic": True} if how == "any size" else {}
    compiled = (fg.grad_compiled if how == "gradient" else fg.jit)(f, backend="aten", **given)
    assert _stored(compiled) == _stored(f)


@pytest.mark.parametrize("function", [InBackward, ReadBefore])
@pytest.mark.parametrize("transform", [fg.jit, fg.grad_compiled])
def test_so_it_is_in_backward(function, transform):
    def f(x):
        return function.apply(x).sin().sum()

    compiled = transform(f, backend="aten")
    assert _stored(compiled, transform is fg.jit) == _stored(f, True)
