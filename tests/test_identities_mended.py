"""Which object is which, and what keys are: over several calls, a compiled function does what it does eagerly."""

import collections
import copy
import dataclasses
import functools
import operator
from types import SimpleNamespace

import pytest
import torch

import funcgrad as fg


def outcome(make, calls, compiled=True):
    """What calls return, and what the state holds after each; with how many programs there are then."""
    function, probe = make()
    function = fg.jit(function) if compiled else function
    found, programs = [], []
    for arguments in calls:
        result = function(*arguments)
        found.append((result.tolist() if isinstance(result, torch.Tensor) else result, probe()))
        programs.append(len(function._cache.programs) if compiled else 0)
    return found, programs


def compare(make, calls, programs=None):
    """As in eager PyTorch; ``programs``: how many there are in the end."""
    eager, _ = outcome(make, calls, compiled=False)
    compiled, n = outcome(make, calls)
    assert compiled == eager
    assert programs is None or n[-1] == programs, n


ONE, OTHER = torch.ones(2), torch.ones(2)
CALLS = [(ONE,), (ONE,), (ONE,), (OTHER,), (OTHER,), (ONE,), (ONE,)]


def replaces(asks, last, store):
    """A function that asks whether its argument is what it was given before."""

    def make():
        s = SimpleNamespace(last=copy.deepcopy(last), n=0)

        def f(x):
            y = x * 2 if asks(s, x) else x * 3
            s.n += 1
            store(s, x)
            return y

        return f, lambda: s.n

    return make


def _store(s, x):
    s.last = x


def _store_item(s, x):
    s.last[0] = x


def _store_tuple(s, x):
    s.last = (x,)


REPLACED = {
    "is": replaces(lambda s, x: x is s.last, torch.zeros(2), _store),
    "is not": replaces(lambda s, x: x is not s.last, torch.zeros(2), _store),
    "from nothing": replaces(lambda s, x: x is s.last, None, _store),
    "id": replaces(lambda s, x: id(x) != id(s.last), torch.zeros(2), _store),
    "among": replaces(lambda s, x: any(x is q for q in [s.last]), torch.zeros(2), _store),
    "operator": replaces(lambda s, x: operator.is_(x, s.last), torch.zeros(2), _store),
    "an item": replaces(lambda s, x: x is s.last[0], [torch.zeros(2)], _store_item),
    "of a tuple": replaces(lambda s, x: x is s.last[0], (torch.zeros(2),), _store_tuple),
}


@pytest.mark.parametrize("make", REPLACED.values(), ids=REPLACED)
def test_a_tensor_that_is_replaced_is_compared_with_what_comes_in(make):
    compare(make, CALLS, programs=3 if make is REPLACED["from nothing"] else 2)


def test_what_is_computed_once_for_each_tensor_is_computed_once():
    def make():
        s = SimpleNamespace(x=torch.zeros(2), y=None, n=0)

        def f(x):
            if x is not s.x:
                s.x, s.y, s.n = x, x.sum(), s.n + 1
            return s.y * 2

        return f, lambda: s.n

    compare(make, CALLS)


def test_tensors_that_are_replaced_in_turns_are_compared():
    def make():
        s = SimpleNamespace(a=torch.zeros(2), b=torch.zeros(2))

        def f(x):
            y = x * 2 if x is s.a else x * 3 if x is s.b else x * 5
            s.a, s.b = s.b, x
            return y

        return f, lambda: None

    compare(make, CALLS, programs=4)


def test_an_item_of_an_argument_is_compared_with_what_is_replaced():
    def make():
        s = SimpleNamespace(x=torch.zeros(2))

        def f(batch):
            y = batch["x"] * 2 if batch["x"] is s.x else batch["x"] * 3
            s.x = batch["x"]
            return y

        return f, lambda: None

    compare(make, [({"x": x},) for (x,) in CALLS], programs=2)


def test_the_reason_says_which_tensors_are_one():
    s = SimpleNamespace(last=torch.zeros(2))

    @fg.jit
    def f(x):
        y = x * 2 if x is s.last else x * 3
        s.last = x
        return y

    f(ONE)
    assert "s.last: is one object with x" in f.explain_miss(ONE)


def test_operator_is_compares_with_a_tensor_that_is_computed_with():
    kept = torch.ones(2)

    def make():
        return lambda x: x * 2 if operator.is_(x, kept) else x * 3 + kept, lambda: None

    compare(make, [(ONE,), (kept,), (ONE,)], programs=2)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor


CONTAINERS = {
    "list": lambda x: [x],
    "tuple": lambda x: (x,),
    "dict": lambda x: {"x": x},
    "dataclass": Batch,
    "nested": lambda x: [x, [x], ()],
}


def inside(container):
    """The tensor in one of them."""
    if isinstance(container, Batch):
        return container.x
    return container["x"] if isinstance(container, dict) else container[0]


containers = pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)


@containers
def test_containers_that_are_one_are_one(container):
    one, other = container(ONE), container(ONE)

    def make():
        return lambda a, c: inside(a) * (2 if a is c else 3), lambda: None

    compare(make, [(one, one), (one, other), (one, one), (other, one)], programs=2)


@containers
def test_containers_within_an_argument_that_are_one_are_one(container):
    one, other = container(ONE), container(ONE)

    def make():
        return lambda batch: inside(batch["a"]) * (2 if batch["a"] is batch["c"] else 3), lambda: None

    compare(make, [({"a": one, "c": one},), ({"a": one, "c": other},), ({"a": one, "c": one},)], programs=2)


def test_numbers_in_a_container_that_is_given_twice():
    calls = [(ONE, own, own) for own in ([0.5], [0.25], [0.75], [1.5])] + [(ONE, [0.5], [0.25]), (ONE, [0.5], [0.75])]
    compare(lambda: (lambda x, a, c: x * a[0] + c[0], lambda: None), calls)


def test_a_tuple_of_numbers_is_known_by_these():
    size = (2, 3)
    calls = [(ONE, size, size), (ONE, (2, 3), tuple([2, 3])), (ONE, size, tuple([2, 3]))]
    compare(lambda: (lambda x, a, c: x * (a[0] + c[1]), lambda: None), calls, programs=1)


@containers
def test_an_argument_that_is_stored_is_stored_itself(container):
    s = SimpleNamespace(last=None)

    @fg.jit
    def f(batch):
        s.last = batch
        return inside(batch) * 2

    for given in (container(ONE), container(OTHER), container(ONE)):
        f(given)
        assert s.last is given


@containers
def test_an_argument_that_python_state_holds_is_not_compared_with_it(container):
    """It is refused: the function is given copies of containers."""
    s = SimpleNamespace(last=None, n=0)

    @fg.jit
    def f(batch):
        if batch is not s.last:
            s.last, s.n = batch, s.n + 1
        return inside(batch) * s.n

    one, other = container(ONE), container(ONE)
    assert f(one).tolist() == [1.0, 1.0]
    with pytest.raises(fg.AliasContractError, match="too, and compares objects"):
        f(one)
    assert f(other).tolist() == [2.0, 2.0]
    assert s.n == 2
    assert s.last is other
    assert f(one).tolist() == [3.0, 3.0]


def _types(value):
    """A value with the types of what is in it."""
    if isinstance(value, dict):
        return [(_types(k), _types(v)) for k, v in value.items()]
    if isinstance(value, (list, tuple, frozenset)):
        return type(value), [*map(_types, value)]
    return type(value), value if not isinstance(value, torch.Tensor) else value.tolist()


def _stores_key(s, x, lr):
    s.c[lr] = x.sum().item()


def _stores_tuple(s, x, lr):
    s.c[lr, "a"] = s.c[frozenset([lr])] = s.c[((lr,), 1)] = 1


def _stores_nested(s, x, lr):
    s.c["a"] = {lr: 1, (lr, 2): [{lr: x * lr}]}


def _stores_ordered(s, x, lr):
    s.c["a"] = collections.OrderedDict({lr: 1})
    s.c["b"] = collections.defaultdict(list, {lr: 1})


def _stores_in_object(s, x, lr):
    s.c["a"] = SimpleNamespace(d={lr: 1}).d


def _stores_what_is_read(s, x, lr):
    s.c[(x * lr).sum().item()] = 1


def _stores_sizes(s, x, lr):
    s.c[x.shape] = s.c[x.shape[0]] = s.c[x.shape[0] / 2] = 1


def _counts_keys(s, x, lr):
    s.n += 1
    s.c[s.n] = lr


def _stores_sets(s, x, lr):
    s.c["a"] = frozenset([lr])
    s.c["b"] = slice(0, lr)


KEYS = [
    _stores_key, _stores_tuple, _stores_nested, _stores_ordered, _stores_in_object, _stores_what_is_read,
    _stores_sizes, _counts_keys, _stores_sets,
]  # fmt: skip


@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning")
@pytest.mark.parametrize("stores", KEYS)
def test_keys_are_plain_numbers(stores):
    def make():
        s = SimpleNamespace(c={}, n=0)
        return functools.partial(stores, s), lambda: _types(s.c)

    compare(make, [(torch.ones(n), lr) for n, lr in ((2, 0.0), (2, 0.5), (3, 0.25), (4, 0.75), (5, 0.75))])
