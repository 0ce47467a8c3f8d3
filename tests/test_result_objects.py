"""Objects that a function makes of what it computed, and returns: each call makes its own, as in eager PyTorch."""

import gc
import weakref

import pytest
import torch
import torch.distributions as D
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


class Holder:
    def __init__(self):
        self.table, self.log, self.weight = {"n": 0}, [torch.ones(2)], torch.ones(2, requires_grad=True)


def _counts(own, x):
    own.table["n"] += 1
    return x * 2, own.table


def _grows(own, x):
    own.log.append((x * own.weight).sum())
    return {"log": own.log, "y": x + 1}


def _makes(own, x):
    own.table = {"k": [x * own.weight], "m": {"z": x.sum()}}
    return own.table, own.table["k"], own.table["m"]


def _makes_one_for_two(own, x):
    made = {"q": x * 2}
    own.table, own.other = made, [made]
    return [made, {"in": made}]


def _stores_in_one(own, x):
    own.table.setdefault("l", []).append((x * own.weight).sum())
    return own.table


HELD = {
    "counts": (_counts, lambda own, r: (r[1] is own.table, dict(r[1]))),
    "grows": (_grows, lambda own, r: (r["log"] is own.log, len(own.log), r["y"])),
    "makes": (_makes, lambda own, r: (r[0] is own.table, r[1] is own.table["k"], r[2] is own.table["m"], r[1][0])),
    "one for two": (_makes_one_for_two, lambda own, r: (r[0] is own.table, r[1]["in"] is own.other[0], r[0]["q"])),
    "stores in one": (_stores_in_one, lambda own, r: (r is own.table, len(r["l"]), r["l"][-1])),
}


@pytest.mark.parametrize("backend", ["c", "aten"])
@pytest.mark.parametrize("name", HELD)
def test_a_container_that_python_state_holds_is_returned_itself(name, backend):
    """It was a copy; what the caller did with it was lost. Another object in its place is another result."""
    f, look = HELD[name]

    def run(wrap):
        own, found = Holder(), []
        call = wrap(lambda x: f(own, x))
        for i in range(5):
            result = call(torch.ones(2) * i)
            found.append(look(own, result))
            if i == 2:
                own.table, own.log = {"n": 7}, [torch.zeros(2)]
            elif name in ("makes", "stores in one"):
                last = own.table["k"][0].sum() if name == "makes" else own.table["l"][-1]
                found.append(torch.autograd.grad(last, own.weight)[0])
        return found

    torch.testing.assert_close(_plain(run(lambda f: fg.jit(f, backend=backend))), _plain(run(lambda f: f)))


def _plain(found):
    """As a sequence of tensors."""
    return [torch.as_tensor(v) for v in torch.utils._pytree.tree_leaves(found) if v is not None]


def test_what_the_caller_does_with_it_is_done_to_the_state():
    own = Holder()
    call = fg.jit(lambda x: _counts(own, x))
    first = call(torch.ones(2))[1]
    first["done"] = True
    assert call(torch.ones(2))[1] is first is own.table and own.table == {"n": 2, "done": True}


DISTRIBUTIONS = {
    "categorical": lambda h: D.Categorical(logits=h),
    "of probabilities": lambda h: D.Categorical(probs=h.softmax(-1)),
    "bernoulli": lambda h: D.Bernoulli(logits=h),
    "multivariate": lambda h: D.MultivariateNormal(h, torch.eye(4)),
    "mixture": lambda h: D.MixtureSameFamily(D.Categorical(logits=h), D.Normal(h, h.exp())),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_is_returned_whose_parameters_are_computed_when_they_are_asked_for(name):
    """Its attributes stand where its class has properties that compute them once."""
    weight = torch.linspace(-1, 1, 12).view(3, 4).requires_grad_()

    def policy(x):
        return DISTRIBUTIONS[name](x @ weight)

    compiled = fg.jit(policy, backend="aten")
    for n in (2, 3, 2):
        x, found = torch.linspace(0, 1, 3 * n).view(n, 3), []
        for call in (policy, compiled):
            torch.manual_seed(0)
            given = call(x)
            log_prob = given.log_prob(given.sample())
            found.append((log_prob, torch.autograd.grad(log_prob.sum(), weight), type(given)))
        torch.testing.assert_close(found[1][:2], found[0][:2])
        assert found[1][2] is found[0][2]
    assert compiled.cache_info().misses == 2
