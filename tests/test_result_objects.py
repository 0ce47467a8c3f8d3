"""Objects that a function makes of what it computed, and returns: each call makes its own, as in eager PyTorch."""

import gc
import weakref

import pytest
import torch
from torch import nn

import funcgrad as fg


class Layer:
    def __init__(self, keys):
        self.keys, self.is_ready, self.kind = keys, True, type(keys)
        self.sizes = []


class Cache:
    """As the caches of language models are."""

    made = 0

    def __init__(self, n):
        type(self).made += 0
        self.layers = [Layer(None) for _ in range(n)]
        self.seen = 0
        self._hidden = {"scale": 2.0}

    @property
    def first(self):
        return self.layers[0].keys

    def update(self, i, keys):
        self.layers[i].keys = keys if self.layers[i].keys is None else torch.cat([self.layers[i].keys, keys])
        self.seen += 1
        return self.layers[i].keys


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


class Config:
    width = 3


CONFIG = Config()
KNOWN = [1, 2]


def shown(value):
    """What can be seen of a value."""
    if isinstance(value, torch.Tensor):
        return value.detach().round(decimals=4).add(0.0).tolist(), value.requires_grad
    if isinstance(value, (list, tuple)):
        return type(value), [shown(v) for v in value]
    if isinstance(value, dict):
        return {k: shown(v) for k, v in value.items()}
    if isinstance(value, (Cache, Layer)):
        return type(value), {k: shown(v) for k, v in vars(value).items()}
    return (type(value), shown(value.x), shown(value.y)) if isinstance(value, Slotted) else value


def numbers(seed=0, grad=False):
    return torch.randn(3, generator=torch.Generator().manual_seed(seed), requires_grad=grad)


def model(x, cache=None):
    cache = Cache(2) if cache is None else cache
    for i in range(2):
        x = cache.update(i, torch.tanh(x)).sum() * x
    return {"logits": x, "cache": cache}


def slotted(x, cache=None):
    return Slotted(x * 2, [x + 1, Slotted(x.sin(), None)])


def views(x, cache=None):
    made = Layer(x[1:])
    made.whole = x
    return made, x.mul_(2)


@pytest.mark.parametrize("f", [model, slotted, views])
@pytest.mark.parametrize("grad", [False, True])
def test_as_in_eager(f, grad):
    compiled = fg.jit(f)
    results = []
    for seed in range(3):
        own = [numbers(seed, grad) * 1 for _ in range(2)]
        found, expected = compiled(own[0]), f(own[1])
        assert shown(found) == shown(expected)
        results.append(found)
        if grad and f is model:
            pairs = zip((found, expected), own, strict=True)
            torch.testing.assert_close(*(torch.autograd.grad(r["cache"].first.sum(), x)[0] for r, x in pairs))
    assert compiled.cache_info().currsize == 1
    assert len({id(r["cache"]) if isinstance(r, dict) else id(r) for r in results}) == 3


def test_a_view_of_an_argument_is_one():
    x = numbers()
    made, same = fg.jit(views)(x)
    assert made.whole is x and same is x and made.keys._base is x


def test_what_was_there_before_is_that_very_object():
    def f(x):
        made = Layer(x * 2)
        made.config, made.known = CONFIG, KNOWN
        return made

    compiled = fg.jit(f)
    for seed in range(2):
        made = compiled(numbers(seed))
        assert made.config is CONFIG and made.known is KNOWN and made.sizes == []
    assert compiled(numbers()).sizes is not compiled(numbers()).sizes


def test_a_step_of_generation():
    """What one call returns, the next one is given."""
    compiled = fg.jit(model)
    found, expected = (call(numbers(), None) for call in (compiled, model))
    for seed in range(1, 4):
        found, expected = (call(numbers(seed), r["cache"]) for call, r in ((compiled, found), (model, expected)))
        torch.testing.assert_close(found["logits"], expected["logits"])
        torch.testing.assert_close(found["cache"].first, expected["cache"].first)
        assert found["cache"].seen == expected["cache"].seen


def test_nothing_is_kept_of_a_result():
    compiled = fg.jit(model)
    compiled(numbers())
    made = weakref.ref(compiled(numbers())["cache"])
    gc.collect()
    assert made() is None


class Keeps(nn.Module):
    def forward(self, x):
        self.last = Layer(x * 2)
        return self.last


def twice(x):
    made = Layer(x * 2)
    return made, made


def inside_itself(x):
    made = Layer(x * 2)
    made.me = made
    return made


@pytest.mark.parametrize("f", [Keeps(), twice, inside_itself, lambda x: {x * 2}])
def test_what_would_be_another_object_is_refused(f):
    with pytest.raises(fg.FuncgradError) as caught:
        fg.jit(f)(numbers())
    assert isinstance(caught.value, (fg.ResultError, fg.ContainerError)) and caught.value.fix


def test_under_transforms_it_is_refused():
    for call in (torch.func.vmap(fg.jit(slotted)), fg.vmap_compiled(slotted)):
        with pytest.raises((fg.ResultError, ValueError)):
            call(torch.ones(2, 3))
    with pytest.raises(fg.ResultError):
        fg.grad_compiled(lambda x: (x.sum(), Layer(x * 2)), has_aux=True)(numbers())
