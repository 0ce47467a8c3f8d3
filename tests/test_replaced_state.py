"""What a function reads is replaced by an object of which nothing that was read before is to be had."""

import collections
import types

import numpy as np
import pytest
import torch
from torch import nn

import funcgrad as fg


class Box:
    def __init__(self, v):
        self.v = v


def two():
    return torch.full((2,), 2.0)


KINDS = {
    "list": lambda: [two(), 1],
    "dict": lambda: {"a": two()},
    "tuple": lambda: (two(), 2),
    "nested": lambda: [{"a": [two()]}],
    "numbers": lambda: [1, 2.5],
    "deque": lambda: collections.deque([two()]),
    "defaultdict": lambda: collections.defaultdict(list, {"a": [two()]}),
    "array": lambda: np.ones(2),
    "number": lambda: 1.5,
    "box": lambda: Box([two()]),
    "namespace": lambda: types.SimpleNamespace(v=two()),
    "module": lambda: nn.Identity(),
    "tensor": two,
    "none": lambda: None,
    "class": lambda: Box,
}


def used(x, by):
    """What a tolerant user computes with any of them."""
    if by is None or isinstance(by, nn.Module):
        return x if by is None else by(x)
    if isinstance(by, (float, int, torch.Tensor)):
        return x * by
    if isinstance(by, np.ndarray):
        return x * torch.from_numpy(by).float()
    if isinstance(by, type):
        return x + len(by.__name__)
    if not isinstance(by, (dict, list, tuple, collections.deque)):
        return used(x, by.v)
    for v in by.values() if isinstance(by, dict) else by:
        x = used(x, v)
    return x * (1 + len(by))


@pytest.mark.filterwarnings("error:Using a non-tuple sequence", "ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("first", KINDS)
def test_what_a_function_reads_is_replaced_by_what_has_nothing_of_it(first):
    """A guard on what was below the one is asked of the other, which has no items, no length, no attributes."""
    inside, held = Box(None), [None]
    for where in (lambda: held[0], lambda: inside.v, lambda: inside.v.v):
        f = fg.jit(lambda x: used(x, where()), backend="aten")
        for kind in (first, "none", first, "box", "class", "number", first, "tuple", "module", first):
            held[0] = KINDS[kind]()
            inside.v = types.SimpleNamespace(v=held[0])
            assert torch.equal(f(two()), used(two(), held[0])), kind


ASKS_TYPE = {
    "isinstance": lambda t: isinstance(t, nn.Parameter),
    "type": lambda t: type(t) is nn.Parameter,
    "class": lambda t: t.__class__.__name__ == "Parameter",
}


@pytest.mark.parametrize("asks", ASKS_TYPE)
@pytest.mark.parametrize("kept", [Box, lambda v: types.SimpleNamespace(v=v), lambda v: [v], lambda v: {"v": v}])
def test_a_tensor_that_each_call_replaces_is_of_another_type(kept, asks):
    """It is computed with in no call, and may be another one in each; its type says what is computed."""

    def replace(box, by):
        if isinstance(box, (list, dict)):
            at = 0 if isinstance(box, list) else "v"
            held, box[at] = box[at], by
        else:
            held, box.v = box.v, by
        return held

    def f(box, x):
        return x * 2 if ASKS_TYPE[asks](replace(box, x + 1)) else x * 3

    own, plain = kept(two()), kept(two())
    compiled = fg.jit(lambda x: f(own, x))
    for i in range(6):
        if i in (2, 5):
            for box in (own, plain):
                replace(box, nn.Parameter(two()))
        x = torch.full((2,), float(i))
        assert torch.equal(compiled(x), f(plain, x)), i
    assert compiled.cache_info().misses == 2


ONES, TWOS = two() - 1, two()
IS_KEY = {
    "get": lambda x, held: x * {ONES: 5.0}.get(held, 3.0),
    "item": lambda x, held: x * {ONES: 5.0, TWOS: 6.0}[held],
    "length": lambda x, held: x * len({ONES, held}),
    "union": lambda x, held: x * len({ONES} | {held}),
    "counted": lambda x, held: x * collections.Counter([ONES, held])[ONES],
    "hash": lambda x, held: x * (2 if hash(held) == hash(ONES) else 3),
}


RATES = {ONES: 5.0, TWOS: 6.0}
IS_KEY["captured"] = lambda x, held: x * RATES.get(held, 1.0)


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("stores", [False, True])
@pytest.mark.parametrize("name", IS_KEY)
def test_a_tensor_is_a_key_and_another_one_takes_its_place(name, stores):
    """Which it is decides, and no comparison stands in the code."""
    own, plain = Box(ONES), Box(ONES)

    def f(box, x):
        found = IS_KEY[name](x, box.v)
        if stores:
            box.v = x + 1
        return found

    compiled = fg.jit(lambda x: f(own, x))
    for held in (ONES, TWOS, ONES, two(), TWOS):
        if not stores:
            own.v = plain.v = held
        x = two()
        try:
            wanted = f(plain, x)
        except KeyError:
            with pytest.raises(KeyError):
                compiled(x)
        else:
            assert torch.equal(compiled(x), wanted)


@pytest.mark.parametrize("kept", [dict, lambda: Box({})])
def test_each_call_stores_under_another_key(kept):
    """What stands under the others is another tensor then, and nobody has asked for it."""
    own, plain = kept(), kept()

    def items(of):
        return of.v if isinstance(of, Box) else of

    def f(of, x, k):
        into = of.v if isinstance(of, Box) else of
        into["abc"[k]] = x * (k + 1)
        return into["abc"[k]] + len(into)

    compiled = fg.jit(lambda x, k: f(own, x, k))
    for i in range(12):
        x = torch.full((2,), float(i))
        assert torch.equal(compiled(x, i % 3), f(plain, x, i % 3))
        if i == 5:
            misses = compiled.cache_info().misses
    assert all(torch.equal(items(own)[k], items(plain)[k]) for k in "abc")
    assert compiled.cache_info().misses == misses


def test_state_that_is_kept_by_parameters_and_code_that_compares_them():
    """An optimiser of the caller's own: a parameter that is a key is no tensor that must be no input."""

    def made():
        torch.manual_seed(0)
        module, state = torch.nn.Linear(3, 2), {}
        parameters = [*module.parameters()]

        def step(x):
            for p in parameters:
                p.grad = None
            loss = module(x).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in parameters:
                    state[p] = state[p] * 0.9 + p.grad if p in state else p.grad.clone()
                    p.sub_(state[p] if p is parameters[0] else state[p] * 0.5)
            return loss.detach()

        return step, parameters, state

    found = []
    for wrap in (lambda f: f, fg.jit):
        step, parameters, state = made()
        called = wrap(step)
        losses = [called(torch.linspace(-1, 1, 6).view(2, 3) * i) for i in range(4)]
        found.append((losses, [p.detach() for p in parameters], [state[p] for p in parameters]))
    torch.testing.assert_close(found[1], found[0])
    assert called.cache_info().misses == 2
