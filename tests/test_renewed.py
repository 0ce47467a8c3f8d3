"""Objects that are replaced between calls: other ones of their types are in the same program, and what is done to each
is as in eager PyTorch."""

from __future__ import annotations

import collections
import functools
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.distributions as D
from torch import Tensor, nn

import funcgrad as fg


class Config:
    def __init__(self, k: Any = 1.0, **more: Any) -> None:
        self.k = k
        self.__dict__.update(more)

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.k


class Shifted(Config):
    def scaled(self, x: Tensor) -> Tensor:
        return x + self.k


class Renaming(Config):
    """What says how its attributes are read."""

    names: ClassVar[dict[str, str]] = {}

    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(super().__getattribute__("names").get(name, name))


@functools.lru_cache
def kept(own: Any) -> float:
    return float(own.k)


class Slotted:
    __slots__ = ("k", "n")

    def __init__(self, k: float) -> None:
        self.k, self.n = k, 0


def x(i: int = 0) -> Tensor:
    return torch.arange(1.0, 5.0) + i


def seen(value: Any) -> Any:
    """What can be compared with ``==``."""
    if isinstance(value, Tensor):
        return value.detach().tolist()
    if isinstance(value, (list, tuple, collections.deque)):
        return [seen(v) for v in value]
    if isinstance(value, dict):
        return {k: seen(v) for k, v in value.items()}
    if isinstance(value, Slotted):
        return value.k, value.n
    return seen(vars(value)) if isinstance(value, (Config, types.SimpleNamespace)) else value


World = tuple[Callable[..., Any], list[Callable[[Callable[..., Any]], Any]]]
"""A function, and what is done with it, step by step."""


def each(change: Callable[[int], Any], n: int = 5) -> list[Callable[[Callable[..., Any]], Any]]:
    """So many calls, before each of which something is replaced."""
    return [lambda g, i=i: (change(i), g(x(i)))[1] for i in range(n)]  # type: ignore[misc]


def replaced(make: Callable[[int], Any], read: str, held: Any = types.SimpleNamespace) -> Callable[[], World]:
    """A function that reads what is in ``h.c``, which is made anew before each call."""

    def world() -> World:
        h = held()
        space = {"h": h, "torch": torch, "kept": kept, "names": Renaming(2.0, names={"a": "k"})}
        exec(f"def f(v):\n    {read}", space)

        def step(g: Callable[..., Any], i: int) -> Any:
            h.c = make(i)
            return seen(g(x(i))), seen(g(x(i))), seen(h.c)

        return space["f"], [lambda g, i=i: step(g, i) for i in range(5)]  # type: ignore[misc]

    return world


REPLACED = {
    "an object": replaced(lambda i: Config(1.0 + i), "return h.c.scaled(v)"),
    "an object of tensors": replaced(lambda i: Config(x(i), b=x(2 * i)), "return v * h.c.k + h.c.b"),
    "with slots": replaced(lambda i: Slotted(2.0 + i), "h.c.n += 1; return v * h.c.k"),
    "a namespace": replaced(lambda i: types.SimpleNamespace(k=1.5 + i), "return v * h.c.k"),
    "a dict": replaced(lambda i: {"k": 1.5 + i, "w": x(i)}, "return v * h.c['k'] + h.c['w']"),
    "a list": replaced(lambda i: [1.5 + i, 2.5], "return v * h.c[0] + h.c[1]"),
    "objects in a list": replaced(lambda i: [Config(1.5 + i), Config(2.5)], "return sum(v * c.k for c in h.c)"),
    "objects in one": replaced(lambda i: Config(a=Config(2.5 + i, n=0)), "h.c.a.n = h.c.a.k; return v * h.c.a.k"),
    "a deque": replaced(
        lambda i: collections.deque([x(i)], maxlen=2), "h.c.append(v.sum()); return sum(t.sum() for t in h.c)"
    ),
    "written to": replaced(lambda i: Config(2.5 + i, log=[]), "h.c.k = h.c.k * 2; return v * h.c.k"),
    "made anew inside": replaced(lambda i: {"h": x(i)}, "h.c = {'h': torch.tanh(h.c['h'] + v)}; return h.c['h']"),
    "kept elsewhere": replaced(lambda i: Config(1.5 + i), "h.last = h.c; return v * h.last.k"),
    "a module": replaced(lambda i: _linear(i), "return h.c(v)"),
    "a tree of modules": replaced(lambda i: nn.Sequential(_linear(i), nn.Tanh(), _linear(2 * i)), "return h.c(v)"),
}


HEARD: list[str] = []


def test_what_is_made_anew_is_found_beside_hooks_that_keep_plain_values():
    """As models of Pyro do: they store a dict in each call, are looked at as a whole, and warn of NaN in hooks."""
    h = types.SimpleNamespace(made={})
    HEARD.clear()

    def f(v):
        n, h.made = len(vars(h)), {}
        y = v.sin()
        y.register_hook(lambda g, site="y": HEARD.append(site))
        return (y * n).sum()

    compiled = fg.jit(f)
    for i in range(4):
        v = x(i).requires_grad_()
        compiled(v).backward()
        torch.testing.assert_close(v.grad, v.detach().cos())
    assert HEARD == ["y"] * 4 and compiled.cache_info()[:2] == (2, 2)


def _linear(i: int) -> nn.Linear:
    made = nn.Linear(4, 4)
    with torch.no_grad():
        made.weight.copy_(torch.eye(4) * (i + 1))
        made.bias.fill_(float(i))
    return made


def _same(world: Callable[[], World]) -> Any:
    """The compiled function, when each step gave what it gives in eager PyTorch."""
    function, steps = world()
    wanted = [seen(step(function)) for step in steps]
    function, steps = world()
    compiled = fg.jit(function, backend="aten")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.RecompileWarning)
        for i, step in enumerate(steps):
            found = seen(step(compiled))
            same = torch.utils._pytree.tree_map(
                lambda a, b: a == pytest.approx(b) if isinstance(b, float) else a == b, found, wanted[i]
            )
            assert all(torch.utils._pytree.tree_leaves(same)), (i, found, wanted[i])
    return compiled


def _drop_modules(value: Any) -> Any:
    return None if isinstance(value, nn.Module) else value


@pytest.mark.parametrize("world", REPLACED.values(), ids=REPLACED.keys())
def test_the_third_object_is_a_hit(world: Callable[[], World], monkeypatch: pytest.MonkeyPatch) -> None:
    plain = seen
    monkeypatch.setitem(globals(), "seen", lambda value: plain(_drop_modules(value)))
    assert _same(world).cache_info().misses <= 5  # of ten calls: what is kept, and in a deque, is another twice


@pytest.mark.parametrize(
    "read",
    [
        "return v * h.c.k * names.a",  # beside one whose class says how it is read
        "return v * (h.c.k if h.c.k else kept(h.c))",  # beside a cache that is not asked
        "return v * h.c.k * {id(m): 2.0 for m in [names]}.get(id(names), 1.0)",  # beside one whose id is asked
        "h.known = {id(names): 'names'}; return v * h.c.k * len(h.known)",
    ],
)
def test_what_others_read_is_not_asked_of_the_object(read: str) -> None:
    assert _same(replaced(lambda i: Config(1.5 + i), read, Config)).cache_info().misses <= 3


def test_a_size_is_a_symbol_at_its_second_value_beside_a_list_of_objects_that_is_new() -> None:
    def world() -> World:
        def call(g: Callable[..., Any], i: int) -> Any:
            return g(torch.arange(4.0 + i), Config(parts=[Config(1.5), Config(2.5)]))

        f = lambda v, c: v.sum() * sum(own.k for own in c.parts)  # noqa: E731
        return f, [lambda g, i=i: call(g, i) for i in range(5)]  # type: ignore[misc]

    assert _same(world).cache_info().misses == 2


def test_an_object_all_of_which_is_read_has_a_part_that_is_made_anew() -> None:
    def world() -> World:
        h = Config(Config(1.5), n=0)

        def f(v: Tensor) -> Tensor:
            out = v * h.k.k
            h.__dict__.update({**h.__dict__, "k": Config(h.k.k), "n": h.n + 1})
            return out

        return f, [lambda g, i=i: (g(x(i)), h) for i in range(5)]  # type: ignore[misc]

    assert _same(world).cache_info().misses == 2


def test_another_object_that_looks_the_same_is_told_from_it() -> None:
    h = types.SimpleNamespace(c={"k": 1.5, "known": [2]})
    compiled = fg.jit(lambda v: v * (1.0 if h.c is h.d else 2.0), backend="aten")
    h.d = h.c
    compiled(x())
    h.c = {"k": 1.5, "known": [2]}
    assert "now another one that looks like it" in compiled.explain_miss(x())


def test_a_closure_made_anew_is_a_hit() -> None:
    def world() -> World:
        def call(g: Callable[..., Any], i: int) -> Any:
            k, w = 1.5 + i, x(i)
            return g(x(), lambda v: v * k + w)

        return (lambda v, fn: fn(v) * 2), [lambda g, i=i: call(g, i) for i in range(5)]  # type: ignore[misc]

    assert _same(world).cache_info().misses == 2


class Graph:
    """What compares its tensors, as no program can."""

    def __init__(self, i: int) -> None:
        self.x = torch.arange(4.0).view(4, 1) + i

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and bool(self.x == other.x)

    __hash__ = None  # type: ignore[assignment]


def test_an_argument_whose_class_compares_its_tensors_is_read_like_python_state() -> None:
    def world() -> World:
        return (lambda v, g: (v * g.x).sum()), [lambda g, i=i: g(x(), Graph(i)) for i in range(5)]  # type: ignore[misc]

    assert _same(world).cache_info().misses == 2


class Batch:
    """What keeps its attributes in a dict of its own."""

    def __init__(self, **given: Any) -> None:
        self.__dict__["store"] = given

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__["store"]:
            raise AttributeError(name)
        return self.store[name]

    def __setattr__(self, name: str, value: Any) -> None:
        self.store[name] = value


@pytest.mark.parametrize("read", ["b.out = v * b.x; return b.out", "return v * b.a.x + b.l[0].x", "return v * b.n"])
def test_an_object_that_keeps_its_attributes_elsewhere_is_a_hit(read: str) -> None:
    def world() -> World:
        space: dict[str, Any] = {}
        exec(f"def f(v, b):\n    {read}", space)

        def call(g: Callable[..., Any], i: int) -> Any:
            batch = Batch(x=x(i), a=Batch(x=x(2 * i)), l=[Batch(x=x(3 * i))], n=1.5 + i)
            return g(x(), batch), getattr(batch, "out", None)

        return space["f"], [lambda g, i=i: call(g, i) for i in range(5)]  # type: ignore[misc]

    assert _same(world).cache_info().misses <= 3


def test_an_argument_that_is_an_object_is_a_hit_and_is_written_to() -> None:
    def world() -> World:
        def f(v: Tensor, batch: Any) -> Tensor:
            batch.n += 1
            batch.loss = (v * batch.k).sum()
            return batch.loss * 2

        def call(g: Callable[..., Any], i: int) -> Any:
            batch = Config(x(i), n=i)
            return g(x(), batch), batch

        return f, [lambda g, i=i: call(g, i) for i in range(5)]  # type: ignore[misc]

    assert _same(world).cache_info().misses <= 4


# ── which object it is ───────────────────────────────────────────────────────────────────────────────────────────


def two_places() -> World:
    h = types.SimpleNamespace()

    def f(v: Tensor) -> Tensor:
        h.a.k = h.a.k + 1
        return v * h.b.k

    def step(g: Callable[..., Any], is_one: bool, i: int) -> Any:
        h.a = Config(1.5 + i)
        h.b = h.a if is_one else Config(5.5 + i)
        return g(x()), h.a, h.b

    return f, [lambda g, own=own: step(g, *own) for own in [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (0, 5), (1, 6)]]  # type: ignore[misc]


def asked_for(read: str) -> Callable[[], World]:
    """A function that asks which object is there."""

    def world() -> World:
        objects = [Config(1.5 + i) for i in range(6)]
        h = types.SimpleNamespace(d=objects[3], known={objects[3]: 10.0, objects[1]: 20.0}, found=[objects[3]])
        h.by_id = {id(held): number for held, number in h.known.items()}
        space = {"h": h, "same": lambda a, b: map(id, [a]).__next__() == id(b)}
        exec(f"def f(v):\n    return {read}", space)

        def put(i: int) -> None:
            h.c = objects[(0, 2, 4, 3, 1, 5, 3, 0)[i]]

        return space["f"], each(put, 8)

    return world


def two_arguments() -> World:
    def f(v: Tensor, a: Any, b: Any) -> Tensor:
        a.k = a.k + 1
        return v * b.k

    def step(g: Callable[..., Any], is_one: bool, i: int) -> Any:
        a = Config(1.5 + i)
        b = a if is_one else Config(5.5 + i)
        return g(x(), a, b), a, b

    return f, [lambda g, own=own: step(g, *own) for own in [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (0, 5)]]  # type: ignore[misc]


def variables_of_closures() -> World:
    h = types.SimpleNamespace()

    def make(n: float) -> tuple[Callable[[], None], Callable[[], float]]:
        def more() -> None:
            nonlocal n
            n += 1

        return more, lambda: n

    def f(v: Tensor) -> Tensor:
        h.more()
        return v * h.get()

    def step(g: Callable[..., Any], is_one: bool, i: int) -> Any:
        one, other = make(1.5 + i), make(11.5 + i)
        h.more, h.get = one[0], (one if is_one else other)[1]
        return g(x()), g(x()), h.get()

    return f, [lambda g, own=own: step(g, *own) for own in [(1, 0), (1, 1), (1, 2), (0, 3), (0, 4), (1, 5), (0, 6)]]  # type: ignore[misc]


def tied_modules() -> World:
    h = types.SimpleNamespace()

    def step(g: Callable[..., Any], is_tied: bool, i: int) -> Any:
        h.m = nn.Module()
        h.m.a = _linear(i)
        h.m.b = h.m.a if is_tied else _linear(i + 1)
        loss = g(x())
        loss.backward()
        return loss, h.m.a.weight.grad, h.m.b.weight.grad

    steps = [lambda g, own=own: step(g, *own) for own in [(0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (0, 5)]]  # type: ignore[misc]
    return (lambda v: h.m.a(h.m.b(v)).sum()), steps


def other_classes() -> World:
    h = types.SimpleNamespace()

    def put(i: int) -> None:
        h.c = (Config, Config, Shifted, Config, Shifted, Shifted)[i](1.5 + i)

    return (lambda v: h.c.scaled(v)), each(put, 6)


def other_attributes() -> World:
    h = types.SimpleNamespace()

    def put(i: int) -> None:
        h.c = Config(1.5 + i, **({"z": 5.0 + i} if i in (2, 4, 5) else {}))

    return (lambda v: v * getattr(h.c, "z", 2.0)), each(put, 6)


def renaming() -> World:
    h = types.SimpleNamespace()

    def put(i: int) -> None:
        h.c = Renaming(1.5 + i, j=5.5 + i, names={"a": "j" if i in (2, 4, 5) else "k"})

    return (lambda v: v * h.c.a), each(put, 8)


def asked_of_a_cache() -> World:
    h = types.SimpleNamespace()

    def step(g: Callable[..., Any], i: int) -> Any:
        h.c = Config(1.5 + i)
        kept(h.c)
        h.c.k = 7.5
        return g(x())

    return (lambda v: v * kept(h.c)), [lambda g, i=i: step(g, i) for i in range(5)]  # type: ignore[misc]


def opaque() -> World:
    h = types.SimpleNamespace()

    def put(i: int) -> None:
        h.c = Config(1.5 + i)

    return (lambda v: fg.pure_callback(h.c.scaled, v, v)), each(put)


ASKED = {
    "is": "v * 2 if h.c is h.d else v * h.c.k",
    "==": "v * 2 if h.c == h.d else v * h.c.k",
    "in a list": "v * 2 if h.c in h.found else v * 3",
    "in a dict": "v * h.known.get(h.c, 3.0)",
    "id": "v * (1.0 if id(h.c) == id(h.d) else 2.0)",
    "id, kept": "v * h.by_id.get(id(h.c), 3.0)",
    "id of its attributes": "v * (1.0 if id(h.c.__dict__) == id(h.d.__dict__) else 2.0)",
    "id by another function": "v * (1.0 if same(h.c, h.d) else 2.0)",
    "id in a function that is made": "v * (lambda own: h.by_id.get(id(own), 3.0))(h.c)",
    "hash": "v * (1.0 if hash(h.c) == hash(h.d) else 2.0)",
    "text": "v * (1.0 if repr(h.c) == repr(h.d) else 2.0)",
}
WHICH = {
    "in two places": two_places,
    "of two arguments": two_arguments,
    "of variables": variables_of_closures,
    "of modules": tied_modules,
    "of classes": other_classes,
    "of attributes": other_attributes,
    "in Python that no trace sees": opaque,
    "of one whose class says how it is read": renaming,
    "asked of a cache": asked_of_a_cache,
} | {f"asked by {name}": asked_for(read) for name, read in ASKED.items()}


@pytest.mark.parametrize("world", WHICH.values(), ids=WHICH.keys())
def test_which_object_it_is(world: Callable[[], World]) -> None:
    _same(world)


# ── what else reads it ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("changes", [False, True])
def test_a_backward_pass_that_is_differentiated_has_the_object_of_its_call(changes: bool) -> None:
    def world() -> World:
        h = types.SimpleNamespace()

        def step(g: Callable[..., Any], i: int) -> Any:
            h.c = Config(x(i), t=1.5 + i)
            leaf = x().requires_grad_()
            (slope,) = torch.autograd.grad(g(leaf), leaf, create_graph=True)
            if changes:
                h.c = Config(x(i + 5), t=9.0)
            return slope, torch.autograd.grad(slope.sum(), leaf)[0]

        return (lambda v: (v * h.c.k).pow(3).sum() * h.c.t), [lambda g, i=i: step(g, i) for i in range(4)]  # type: ignore[misc]

    _same(world)


@pytest.mark.parametrize(
    "writes", ["pass", "h.n += 1", "h.last = v.detach() * 2", "h.l.append(h.n)", "h.c.t = h.c.t + 1"]
)
@pytest.mark.parametrize("kind", [int, float])
def test_a_second_derivative_where_the_object_was_replaced_since(writes: str, kind: type) -> None:
    def world() -> World:
        h = types.SimpleNamespace(n=0)
        space = {"h": h}
        exec(f"def f(v):\n    {writes}\n    return (v.pow(3) * h.c.k * h.c.t).sum()", space)

        def step(g: Callable[..., Any], i: int) -> Any:
            h.n, h.l, h.c = i, [i, i], Config(kind(i + 2), t=kind(i + 3))
            leaf = x().requires_grad_()
            (slope,) = torch.autograd.grad(g(leaf), leaf, create_graph=True)
            after = h.c, h.c.t, [*h.l]
            h.c = after[0] if i % 2 or "h.c" in writes else Config(kind(i + 7), t=kind(2))
            return slope, torch.autograd.grad(slope.sum(), leaf)[0], after[1:], h.n

        return space["f"], [lambda g, i=i: step(g, i) for i in range(6)]  # type: ignore[misc]

    _same(world)


@pytest.mark.parametrize(
    "transform", [torch.func.grad, torch.func.jacrev, lambda f: torch.func.vmap(torch.func.grad(f))]
)
def test_under_transforms_of_torch_func(transform: Callable[..., Any]) -> None:
    def world() -> World:
        h = types.SimpleNamespace()

        def step(g: Callable[..., Any], i: int) -> Any:
            h.c = Config(x(i), t=1.5 + i)
            return transform(g)(torch.stack([x(), x(1)]) if "lambda" in repr(transform) else x())

        return (lambda v: (v * h.c.k).pow(2).sum() * h.c.t), [lambda g, i=i: step(g, i) for i in range(4)]  # type: ignore[misc]

    _same(world)


def test_the_explanation_says_that_any_will_do() -> None:
    h = types.SimpleNamespace()

    def f(v: Tensor) -> Tensor:
        return v * h.c.k

    compiled = fg.jit(f, backend="aten")
    for i in range(3):
        h.c = Config(1.5 + i)
        compiled(x())
    assert "any Config" in str(compiled.explain(x()))
    assert compiled.explain_miss(x()) == "a program fits: this call would not compile"
    h.c = Shifted(1.5)
    assert "h.c" in compiled.explain_miss(x())


class Named:
    """Functions of one code that differ in what is no cell."""

    @staticmethod
    def by_keyword(value: Any) -> Callable[..., Any]:
        def f(v: Tensor, *, by: Any = value) -> Tensor:
            return v * by

        return f

    @staticmethod
    def by_name(value: Any) -> Callable[..., Any]:
        def f(v: Tensor) -> Tensor:
            return v

        f.__name__, f.__doc__ = f"f{value}", "." * value
        return f


@pytest.mark.parametrize(
    ("made", "asked"),
    [
        (lambda i: Named.by_keyword((1, 1.0, True, 2)[i]), lambda f, v: f(v)),
        (lambda i: Named.by_keyword(x(i)), lambda f, v: f(v)),
        (lambda i: Named.by_name(i), lambda f, v: f(v) * int(f.__name__[1:])),
        (lambda i: Named.by_name(i), lambda f, v: f(v) * len(f.__doc__)),
    ],
    ids=["keyword", "tensor", "name", "doc"],
)
def test_functions_that_differ_in_more_than_their_cells(made: Callable[..., Any], asked: Callable[..., Any]) -> None:
    def world() -> World:
        h = types.SimpleNamespace()

        def step(g: Callable[..., Any], i: int) -> Any:
            h.f = made(i)
            return g(x())

        return (lambda v: asked(h.f, v)), [lambda g, i=i: step(g, i) for i in range(4)]  # type: ignore[misc]

    _same(world)


@pytest.mark.parametrize("kind", ["mapping", "set", "reference"])
def test_objects_that_are_known_by_weak_references(kind: str) -> None:
    def world() -> World:
        h, made = types.SimpleNamespace(), [Config(float(i)) for i in range(4)]
        by_key = weakref.WeakKeyDictionary({c: i + 2.0 for i, c in enumerate(made[:2])})
        held, one = weakref.WeakSet(made[:2]), types.SimpleNamespace(of=weakref.ref(made[0]))
        asked: dict[str, Callable[[], Any]] = {
            "mapping": lambda: by_key.get(h.c, 10.0),
            "set": lambda: 3.0 if h.c in held else 4.0,
            "reference": lambda: 3.0 if one.of() is h.c else 4.0,
        }

        def step(g: Callable[..., Any], i: int) -> Any:
            h.c = made[i]
            return g(x())

        return (lambda v: v * asked[kind]()), [lambda g, i=i: step(g, i) for i in (2, 3, 0, 1, 3, 2, 0)]  # type: ignore[misc]

    _same(world)


def _normal(t, n):
    return D.Normal(t * n, torch.ones(3) * (abs(n) + 1))


DISTRIBUTIONS = {
    "log_prob": (lambda x, d: d.log_prob(x), _normal),
    "rsample": (lambda x, d: d.rsample((2,)) * x, _normal),
    "kl_divergence": (lambda x, d: D.kl_divergence(d, D.Normal(x, x.exp())), _normal),
    "computed when it is asked for": (
        lambda x, d: d.probs * x + d.entropy() + d.probs.sum(),
        lambda t, n: D.Categorical(logits=t * n),
    ),
    "independent": (lambda x, d: d.log_prob(x), lambda t, n: D.Independent(_normal(t, n), 1)),
    "transformed": (
        lambda x, d: d.log_prob(x * 0.3),
        lambda t, n: D.TransformedDistribution(_normal(t, n), [D.TanhTransform()]),
    ),
    "of two": (
        lambda x, d: d.log_prob(x),
        lambda t, n: _normal(t, n) if n % 2 else D.Laplace(t * n, torch.ones(3)),
    ),
    "a mixture": (
        lambda x, d: d.log_prob(x),
        lambda t, n: D.MixtureSameFamily(D.Categorical(logits=t), _normal(t, n)),
    ),
    "in a list": (lambda x, d: sum(one.log_prob(x) for one in d), lambda t, n: [_normal(t, n), _normal(t, -n)]),
}


KEEP_WHAT_THEY_COMPUTE = ("computed when it is asked for", "transformed")
"""Where a gradient goes through that, programs are for one object."""


@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_distribution_as_an_argument_is_any_of_its_class(name, backend):
    """Each one that was made anew was a program."""
    f, make = DISTRIBUTIONS[name]
    compiled, x = fg.jit(f, backend=backend), torch.tensor([0.5, 1.0, 1.5])
    for n in range(1, 6):
        found = []
        for call in (f, compiled):
            torch.manual_seed(n)
            t = torch.tensor([0.2, -0.1, 0.3], requires_grad=name not in KEEP_WHAT_THEY_COMPUTE)
            out = call(x, make(t, n))
            found.append((out, torch.autograd.grad(out.sum(), t) if t.requires_grad else ()))
        torch.testing.assert_close(*found)
    assert compiled.cache_info().misses <= (4 if name == "of two" else 2)


def test_a_distribution_in_python_state_is_any_of_its_class():
    own = types.SimpleNamespace()
    compiled = fg.jit(lambda x: own.prior.log_prob(x), backend="aten")
    for n in range(5):
        own.prior = _normal(torch.tensor([0.2, -0.1, 0.3]), n)
        torch.testing.assert_close(compiled(torch.ones(3)), own.prior.log_prob(torch.ones(3)))
    assert compiled.cache_info().misses == 2


def test_a_tensor_that_is_stored_on_a_class_whose_members_are_asked_for():
    """Members may be other tensors: each was another program."""

    class Kept:
        scale = torch.ones(2)

    def f(x):
        for member in vars(Kept).values():
            if isinstance(member, torch.Tensor):
                x = x * member
        Kept.last = x.detach() + 1
        return x

    def results(call):
        Kept.scale, Kept.last = torch.ones(2), torch.ones(2)
        found = []
        for k in range(5):
            if k > 2:
                Kept.scale = torch.full((2,), float(k))
            found.append(call(torch.ones(2) * 0.3))
        return [*found, Kept.last]

    compiled = fg.jit(f)
    torch.testing.assert_close(results(compiled), results(f))
    assert compiled.cache_info().misses == 1
