"""What a backward pass writes to Python state is what it held before forward wrote to it, and stays: ``last.n += 1`` in
forward, ``last.n = 0`` in backward."""

import os
import types

import pytest
import torch

import funcgrad as fg


class Owner:
    pass


class Slots:
    __slots__ = ("n",)


TOTAL = 0


def _up_global():
    global TOTAL
    TOTAL += 1


def _zero_global():
    global TOTAL
    TOTAL = 0


def _of_a_cell():
    cell = 0

    def up():
        nonlocal cell
        cell += 1

    def zero():
        nonlocal cell
        cell = 0

    return up, zero, lambda: cell


def _of(owner):
    def up():
        owner.n += 1

    def zero():
        owner.n = 0

    owner.n = 0
    return up, zero, lambda: owner.n


def _of_items(held, key):
    def up():
        held[key] += 1

    def zero():
        held[key] = 0

    return up, zero, lambda: held[key]


def _of_what_is_made():
    owner = Owner()
    owner.last = None

    def up():
        owner.last = [1]
        owner.flag = 1
        os.environ["FUNCGRAD_LATE"] = "1"

    def zero():
        owner.last = None
        del owner.flag
        del os.environ["FUNCGRAD_LATE"]

    return up, zero, lambda: (owner.last, hasattr(owner, "flag"), "FUNCGRAD_LATE" in os.environ)


HELD = {
    "an attribute": lambda: _of(Owner()),
    "of a class": lambda: _of(type("Made", (), {})),
    "of a function": lambda: _of(lambda: None),
    "of a namespace": lambda: _of(types.SimpleNamespace()),
    "of a module": lambda: _of(torch.nn.Identity()),
    "a slot": lambda: _of(Slots()),
    "a global": lambda: (_up_global, _zero_global, lambda: TOTAL),
    "a cell": _of_a_cell,
    "an item of a dict": lambda: _of_items({"n": 0}, "n"),
    "an item of a list": lambda: _of_items([0], 0),
    "what is made": _of_what_is_made,
}


def _function(how, up, zero):
    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            zero()
            return gradient * 2

    layer = torch.nn.Linear(1, 1)
    layer.register_full_backward_hook(lambda *_: zero())

    def f(x):
        up()
        if how == "a custom function":
            return Doubled.apply(x).sum()
        if how == "a hook of a module":
            return layer(x[:1]).sum()
        y = x * 2
        y.register_hook(lambda _: zero())
        return y.sum()

    return f


@pytest.mark.parametrize("how", ["a custom function", "a hook of a module", "a hook of a tensor"])
@pytest.mark.parametrize("held", HELD)
def test_what_backward_puts_back_to_what_it_was_is_that(held, how):
    """It was lost: the function runs again for the pass, and found what it had found before."""

    def ran(wrap):
        _zero_global()
        up, zero, look = HELD[held]()
        call, found = wrap(_function(how, up, zero)), []
        for _ in range(3):
            loss = call(torch.ones(3, requires_grad=True))
            found.append(str(look()))
            loss.backward()
            found.append(str(look()))
        return found

    assert ran(lambda f: fg.jit(f, backend="aten")) == ran(lambda f: f)
