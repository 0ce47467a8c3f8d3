"""Containers that a function moves from one place of Python state to another, and places that are reached twice."""

import collections
import copy
import types

import pytest
import torch
from torch.utils import _pytree as pytree

import funcgrad as fg

Pair = collections.namedtuple("Pair", "a b")
MADE = {
    "dict": lambda y: {"w": y},
    "dict of plain values": lambda y: {"w": 1},
    "list": lambda y: [y],
    "empty list": lambda y: [],
    "tuple": lambda y: (y,),
    "tuple within": lambda y: {"w": (y, 1)},
    "namedtuple": lambda y: Pair(y, y + 1),
    "nested": lambda y: {"a": [{"b": y}]},
    "ordered": lambda y: collections.OrderedDict(w=y),
    "deque": lambda y: collections.deque([y]),
    "object": lambda y: types.SimpleNamespace(w=y),
    "tensor": lambda y: y,
    "number": lambda y: y.item(),
}


def chained(state, make, x):
    state.prev, state.cur = state.cur, make(x * 2)


def appended(state, make, x):
    state.log.append(state.cur)
    state.cur = make(x * 2)


def windowed(state, make, x):
    state.log.append(make(x * 2))
    if len(state.log) > 3:
        state.log.pop(0)


def sliced(state, make, x):
    state.log = [*state.log, make(x * 2)][-3:]


def in_items(state, make, x):
    state.items["prev"] = state.items["cur"]
    state.items["cur"] = make(x * 2)


def plain(value):
    """A value as numbers."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, types.SimpleNamespace):
        return {k: plain(v) for k, v in vars(value).items()}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return [plain(v) for v in value] if isinstance(value, (list, tuple, collections.deque)) else value


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("move", [chained, appended, windowed, sliced, in_items])
def test_what_is_moved_is_what_the_call_has_there(move, made):
    found = []
    for wrap in (lambda f: f, lambda f: fg.jit(f, backend="aten")):
        make, start = MADE[made], MADE[made](torch.zeros(()))
        state = types.SimpleNamespace(prev=None, cur=start, log=[], items={"prev": None, "cur": start})

        def f(x, state=state, make=make):
            move(state, make, x)
            return x + 1

        call = wrap(f)
        found.append([(call(torch.tensor(float(i))), copy.deepcopy(plain(state)))[1] for i in range(7)])
    assert found[0] == found[1]


def test_a_container_that_is_moved_stays_the_same_one():
    state = types.SimpleNamespace(prev=None, cur={"w": torch.zeros(())})

    @fg.jit(backend="aten")
    def f(x):
        state.prev, state.cur = state.cur, {"w": x * 2}
        return x + 1

    for _ in range(6):
        was = state.cur
        f(torch.ones(()))
        assert state.prev is was
    assert f.cache_info().misses == 2


@pytest.mark.parametrize("shape", [(), (1,), (3,)])
def test_tensors_are_keys_by_their_identity(shape):
    def world(wrap):
        keys = [torch.nn.Parameter(torch.zeros(shape)) for _ in range(2)]
        state = {key: types.SimpleNamespace(n=0.0, last=None) for key in keys}

        def f(x):
            state[keys[1]].last = x * 3
            return x * (state[keys[0]].n + state[keys[1]].n)

        call, found = wrap(f), []
        for i in range(6):
            state[keys[0]] = types.SimpleNamespace(n=float(i), last=None)
            if i == 3:
                state[keys[1]] = types.SimpleNamespace(n=100.0, last=None)
            found.append((call(torch.full((), i + 1.0)).item(), state[keys[1]].last.item()))
        return found

    assert world(lambda f: fg.jit(f, backend="aten")) == world(lambda f: f)


def test_the_state_of_an_optimiser_may_be_cleared():
    def world(wrap):
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 1)
        optimizer = torch.optim.Adam(model.parameters(), 0.1)

        def step(x):
            loss = model(x).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        call, found = wrap(step), []
        for i in range(6):
            if i == 2:
                optimizer.state.clear()
            found.append(call(torch.randn(4, 3)))
        return found

    torch.testing.assert_close(world(lambda f: fg.jit(f, backend="aten")), world(lambda f: f))


@pytest.mark.parametrize("over", [lambda f: f, torch.func.grad], ids=["call", "grad"])
def test_a_number_that_is_reached_twice_is_one(over):
    """The group is found in the list, and by the parameter in it."""

    def world(wrap):
        param = torch.nn.Parameter(torch.full((3,), 0.5))
        groups = [{"params": [param], "lr": 0.1}]

        def f(x):
            for group in groups:
                group["lr"] *= 0.5
            for group in groups:
                for p in group["params"]:
                    x = x + p * group["lr"]
            return x.sin().sum()

        call = over(wrap(f))
        return [(call(torch.arange(3.0)).detach(), groups[0]["lr"]) for _ in range(4)]

    torch.testing.assert_close(world(lambda f: fg.jit(f, backend="aten")), world(lambda f: f))


def swapped(state, x):
    state.a, state.b = state.b, state.a
    return x * state.b


def replaced(state, x):
    y = x * state.a
    state.a = state.b
    return y


def read_elsewhere(state, x):
    state.a, state.b = state.b, state.a
    return x * state.w


def rotated(state, x):
    y = x * state.items[0] + state.items[1]
    state.items.append(state.items.pop(0))
    return y


SECOND = {
    "grad of grad": lambda first: lambda f, x: torch.func.grad(lambda x: first(f)(x).sum())(x),
    "jvp of grad": lambda first: lambda f, x: torch.func.jvp(first(f), (x,), (x + 1,))[1],
    "jacrev of grad": lambda first: lambda f, x: torch.func.jacrev(first(f))(x),
    "vmap of grad": lambda first: lambda f, x: torch.func.vmap(first(f))(torch.stack([x, x * 2])),
}


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("second", SECOND)
@pytest.mark.parametrize("step", [swapped, replaced, read_elsewhere, rotated])
def test_tensors_that_change_places_are_where_they_were_in_a_second_derivative(step, second, trained):
    def world(first):
        w = torch.full((3,), 0.5)
        state = types.SimpleNamespace(a=w, b=w, w=w, items=[w, torch.ones(3)])

        def f(x):
            return torch.tanh(step(state, x)).sin().sum()

        found = []
        transform = SECOND[second](first(f))
        for i in range(3):
            if i != 1:
                state.a = torch.full((3,), 2.0 + i, requires_grad=trained)
                state.items[0] = torch.full((3,), 3.0 + i, requires_grad=trained)
            y = transform(f, torch.linspace(0.1, 0.3, 3))
            found += [y.detach(), y.requires_grad, *(t.detach() for t in (state.a, state.b, *state.items))]
        return found

    compiled = world(lambda f: (lambda c: lambda f: c)(fg.grad_compiled(f, backend="aten")))
    torch.testing.assert_close(compiled, world(lambda f: torch.func.grad))
    over = world(lambda f: (lambda c: lambda f: torch.func.grad(c))(fg.jit(f, backend="aten")))
    torch.testing.assert_close(over, world(lambda f: torch.func.grad))


STARTS = {"plain": (1.5, 2), "tensor": (torch.ones(3), 2), "nested": (torch.ones(3), (4, 5))}


@pytest.mark.parametrize("start", STARTS.values(), ids=STARTS)
def test_a_tuple_that_is_replaced_outside_is_the_one_that_is_there(start):
    def world(wrap):
        state, found = types.SimpleNamespace(pair=Pair(*start), log=[]), []

        def f(x):
            state.log.append(state.pair)
            state.pair = state.pair._replace(b=5)
            return x * 2

        call = wrap(f)
        for i in range(5):
            if i in (2, 4):
                state.pair = Pair(4 + i, 4) if start is STARTS["plain"] else Pair(torch.zeros(3), 4 + i)
            call(torch.ones(3))
            found.append(copy.deepcopy([plain(state.pair), plain(state.log)]))
        return found

    assert world(lambda f: fg.jit(f, backend="aten")) == world(lambda f: f)


def test_a_list_of_which_one_item_is_replaced_has_no_tensor_of_the_trace():
    """In a second derivative at a level, the others are put there while the function runs once more."""

    def run(wrap):
        held = [torch.ones(3), torch.full((3,), 0.5)]
        seven = torch.full((3,), 7.0)

        def f(x):
            held[0] = seven
            return (x * 1.0).sin().sum()

        c = wrap(f)
        found = [torch.func.grad(lambda x: torch.func.grad(c)(x).sum())(torch.ones(3) * i) for i in range(3)]
        return found, held, [type(t).__name__ for t in held]

    *expected, kinds = run(lambda f: f)
    *found, kinds_found = run(lambda f: fg.jit(f, backend="aten"))
    torch.testing.assert_close(found, expected)
    assert kinds_found == kinds


class _Slotted:
    __slots__ = ("h", "w")

    def __init__(self):
        self.h, self.w = torch.zeros(3), torch.full((3,), 0.5)


class _Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("h", torch.zeros(3))
        self.register_buffer("w", torch.full((3,), 0.5))


def _items():
    return {"h": torch.zeros(3), "w": torch.full((3,), 0.5)}


def _swap(held):
    if isinstance(held, dict):
        held["h"], held["w"] = held["w"], held["h"]
        return held["h"]
    held.h, held.w = held.w, held.h
    return held.h


@pytest.mark.sweep(1)
@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("make", [lambda: types.SimpleNamespace(**_items()), _items, _Slotted, _Module])
def test_tensors_of_an_object_that_is_met_on_the_way_change_places_below_a_second_derivative(make, reads):
    """A tensor of the trace was left there, of what the derivative met when stand-ins were in the places."""

    def run(wrap):
        host = types.SimpleNamespace(inner=types.SimpleNamespace(held=make()))

        class Host:
            def __init__(self):
                self.inner = host.inner

        own = Host()

        def f(x):
            h = _swap(own.inner.held)
            return (x.sin() * h if reads else x.sin()).sum()

        call, found = wrap(f), []
        for x in (torch.ones(3), torch.arange(3.0), torch.ones(3)):
            found.append(torch.func.grad(lambda x: torch.func.grad(call)(x).sum())(x))
            held = own.inner.held
            now = [held["h"], held["w"]] if isinstance(held, dict) else [held.h, held.w]
            assert [type(t) for t in now] == [torch.Tensor] * 2
            found += [t.clone() for t in now]
        return found

    torch.testing.assert_close(run(lambda f: fg.jit(f, backend="aten")), run(lambda f: f))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("kind", [tuple, Pair])
def test_a_number_beside_a_tensor_in_a_tuple_that_is_replaced(kind):
    """Code that asks by a name it computes may read all of an object: the container was compared as a whole, and the
    number in the tuple no more, once the tuple could be another one. It stood still at its third value."""

    def run(wrap):
        names = types.SimpleNamespace(by=2.0)
        made = kind(*(torch.ones(3), 2)) if kind is Pair else (torch.ones(3), 2)
        hub = types.SimpleNamespace(inner=types.SimpleNamespace(bag={"pair": made}))

        def f(x):
            y = x * getattr(names, "extra", 2.0)
            pair = hub.inner.bag["pair"]
            new = y.detach(), pair[1] + 1
            hub.inner.bag["pair"] = kind(*new) if kind is Pair else new
            return y * len(hub.inner.bag)

        call, found = wrap(f), []
        for _ in range(6):
            found.append((call(torch.ones(3)), hub.inner.bag["pair"][1]))
        return found

    assert [n for _, n in run(lambda f: f)] == list(range(3, 9))
    torch.testing.assert_close(run(lambda f: fg.jit(f, backend="aten")), run(lambda f: f))


def test_attributes_come_in_the_order_in_which_they_were_made_below_a_second_derivative():
    class Low:
        rate = 1.5

    def run(wrap):
        low = Low()

        def f(x):
            low.rate, low.second = 3, 4
            return (x * low.rate).sin().sum()

        call = wrap(f)
        found = torch.func.grad(lambda x: torch.func.grad(call)(x).sum())(torch.ones(3))
        assert list(vars(low)) == ["rate", "second"]
        return found

    torch.testing.assert_close(run(lambda f: fg.jit(f, backend="aten")), run(lambda f: f))


@pytest.mark.sweep(1)
@pytest.mark.parametrize("made", [torch.Tensor, torch.nn.Parameter])
def test_the_class_of_a_tensor_is_the_same_below_a_derivative(made):
    """The name of its class, which is not false, was taken for that it is a Parameter."""

    def run(wrap):
        bag = [made(torch.ones(3)), torch.zeros(3)]

        def f(x):
            y = x * (2 if isinstance(bag[0], torch.nn.Parameter) else 3)
            bag.pop()
            return y.sin().sum()

        return torch.func.jvp(wrap(f), (torch.ones(3),), (torch.ones(3),)), len(bag)

    torch.testing.assert_close(run(lambda f: fg.jit(f, backend="aten")), run(lambda f: f))


MODULE = types.ModuleType("module")


def given_by_a_function():
    return MODULE


def of_the_module(y):
    return y * len(given_by_a_function().sizes)


def test_what_a_module_holds_that_a_function_returns():
    """It was looked into when the first function mentioned it, for the names of the functions read by then."""

    def f(x):
        y = of_the_module(x) + getattr(given_by_a_function(), "state", 0)
        given_by_a_function().state = y.detach()
        return y

    def run(call):
        vars(MODULE).pop("state", None)
        MODULE.sizes, found = [1], []
        for i in range(5):
            found.append(call(torch.ones(3)))
            MODULE.sizes.extend([1] * (i % 2))
        return found

    torch.testing.assert_close(run(fg.jit(f, backend="aten")), run(f))


STORED = {
    "a tuple": lambda y, bag: (y.detach(), 2),
    "within a tuple": lambda y, bag: ((y.detach(),), bag["n"] + 1),
    "a list": lambda y, bag: [y.detach()],
    "a dict": lambda y, bag: {"y": y.detach()},
}


@pytest.mark.parametrize("name", STORED)
def test_what_is_met_after_the_function_stored_it_was_not_there_before(name):
    """The dict is in the cell of a method of ``Host``, too, which is looked into when ``type(self)`` is met: the tuple
    was taken for one that had been there, and a tensor of the trace was stored."""

    def run(wrap):
        bag = {"pair": (torch.ones(3), 2), "n": 1}

        class Scope:
            n = 0

            def __enter__(self):
                type(self).n += 1
                return self

            def __exit__(self, *_):
                return None

        scope = types.SimpleNamespace(t=Scope())

        class Host:
            def __init__(self):
                self.bag, self.scope = bag, scope

        host = Host()

        def f(x):
            y = x * 1.0
            host.bag["pair"] = STORED[name](y, host.bag)
            with host.scope.t:
                y = y + 1
            return y

        call, found = wrap(f), []
        for i in range(4):
            found += [call(torch.ones(3) * i), Scope.n, *pytree.tree_leaves(bag["pair"])]
        return found

    expected, found = run(lambda f: f), run(lambda f: fg.jit(f, backend="aten"))
    for one, other in zip(found, expected, strict=True):
        assert type(one) is type(other)
        assert (one == other).all() if isinstance(one, torch.Tensor) else one == other
