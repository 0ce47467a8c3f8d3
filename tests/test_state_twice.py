"""Python state that changes while a function is differentiated, once and twice: in the function, between its passes,
and where a backward pass reads it. Eager PyTorch is the oracle."""

from __future__ import annotations

import collections
import contextvars
import functools
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import funcgrad as fg

X = torch.tensor([0.3, -0.7, 1.2])
Fn = Callable[..., Any]
GLOBAL = 1.5


class _Holder:
    k: Any = 1.5


def _class() -> tuple[Fn, Fn]:
    kind = type("Own", (), {"k": 1.5})
    return lambda: kind.k, lambda v: setattr(kind, "k", v)


def _attribute() -> tuple[Fn, Fn]:
    own = _Holder()
    own.k = 1.5
    return lambda: own.k, lambda v: setattr(own, "k", v)


def _list() -> tuple[Fn, Fn]:
    own = [1.5]
    return lambda: own[-1] * len(own), own.append


def _set() -> tuple[Fn, Fn]:
    own = {1.5}
    return lambda: sum(own), own.add


def _deque() -> tuple[Fn, Fn]:
    own = collections.deque([1.5], maxlen=2)
    return lambda: own[-1], own.append


def _variable() -> tuple[Fn, Fn]:
    own = contextvars.ContextVar[float]("own")
    own.set(1.5)
    return own.get, own.set


def _environment() -> tuple[Fn, Fn]:
    os.environ["FUNCGRAD_TWICE"] = "1.5"
    return lambda: float(os.environ["FUNCGRAD_TWICE"]), lambda v: os.environ.update(FUNCGRAD_TWICE=str(v))


def _setting() -> tuple[Fn, Fn]:
    torch.set_float32_matmul_precision("highest")
    words = {"highest": 1.5, "high": 2.0, "medium": 3.0}
    by_value = {v: k for k, v in words.items()}
    return (
        lambda: words[torch.get_float32_matmul_precision()],
        lambda v: torch.set_float32_matmul_precision(by_value[v]),
    )


def _global() -> tuple[Fn, Fn]:
    globals()["GLOBAL"] = 1.5

    def put(value: Any) -> None:
        global GLOBAL
        GLOBAL = value

    return lambda: GLOBAL, put


def _cell() -> tuple[Fn, Fn]:
    cell = 1.5

    def put(value: Any) -> None:
        nonlocal cell
        cell = value

    return lambda: cell, put


def _array() -> tuple[Fn, Fn]:
    own = np.array([1.5])
    return lambda: float(own[0]), lambda v: own.__setitem__(0, v)


def _bytes() -> tuple[Fn, Fn]:
    own = bytearray([1])
    return lambda: own[0] * 1.5, lambda v: own.__setitem__(0, int(v))


STATE = {
    made.__name__[1:]: made
    for made in (
        _class, _attribute, _list, _set, _deque, _variable, _environment, _setting, _global, _cell, _array, _bytes,
    )
}  # fmt: skip
"""By the kind of state: a number that it is read from and put into."""


def once(f: Fn, between: Fn) -> Any:
    x = X.clone().requires_grad_()
    y = f(x)
    between()
    y.backward()
    return x.grad


def twice(f: Fn, between: Fn, later: Fn = lambda: None) -> Any:
    x = X.clone().requires_grad_()
    y = f(x)
    between()
    (gradient,) = torch.autograd.grad(y, x, create_graph=True)
    later()
    (gradient**2).sum().backward()
    return x.grad


def curved(f: Fn, between: Fn) -> Any:
    return torch.func.grad(lambda x: torch.func.grad(f)(x).sum())(X)


def hessian(f: Fn, between: Fn) -> Any:
    return torch.func.hessian(f)(X)


def pushed(f: Fn, between: Fn) -> Any:
    return torch.func.jvp(torch.func.grad(f), (X,), (X,))[1]


def mapped(f: Fn, between: Fn) -> Any:
    return torch.func.vmap(torch.func.grad(f))(torch.stack([X, X]))


USES = {use.__name__: use for use in (once, twice, curved, hessian, pushed, mapped)}
USES["later"] = lambda f, between: twice(f, lambda: None, between)


def outcomes(compiled: bool, make: Callable[[], tuple[Fn, Fn]], body: Callable[[Fn, Fn], Fn], use: Fn) -> list[Any]:
    """Of three calls, between whose passes the state changes as well."""
    get, put = make()
    f = fg.jit(body(get, put)) if compiled else body(get, put)
    return [[use(f, functools.partial(put, value)), get()] for value in (3.0, 2.0, 3.0)]


def body_that_writes(get: Fn, put: Fn) -> Fn:
    def f(x):
        y = (x * get()).sin().sum()
        put(3.0)
        return y

    return f


def body_that_reads_in_a_hook(get: Fn, put: Fn) -> Fn:
    def f(x):
        y = x * 2.0 * get()
        if y.requires_grad:
            y.register_hook(lambda g: g * get())
        return y.sin().sum()

    return f


@pytest.fixture
def as_before():
    precision = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(precision)
    os.environ.pop("FUNCGRAD_TWICE", None)


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("state", STATE)
@pytest.mark.parametrize("body", [body_that_writes, body_that_reads_in_a_hook])
def test_numbers_of_python_state(body, state, use, as_before):
    if body is body_that_reads_in_a_hook and use in ("hessian", "pushed"):  # forward mode over reverse
        with pytest.raises(fg.UnsupportedTransformError, match="asks whether a tensor that it computes requires grad"):
            outcomes(True, STATE[state], body, USES[use])
        return
    expected = outcomes(False, STATE[state], body, USES[use])
    torch.testing.assert_close(outcomes(True, STATE[state], body, USES[use]), expected, rtol=1e-4, atol=1e-4)


# ── tensors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tensor_that_is_stored_once_more():
    zeros, held = torch.zeros(3), _Holder()

    def f(x):
        held.k = zeros
        return x.sin().sum()

    for use in (twice, curved, hessian):
        held.k = torch.ones(3)
        torch.testing.assert_close(use(fg.jit(f), lambda: None), use(f, lambda: None))
        assert held.k is zeros


@pytest.mark.parametrize("use", ["twice", "curved", "hessian"])
def test_a_tensor_that_is_gone_when_the_function_runs_once_more(use):
    def make():
        module = torch.nn.Module()
        module.register_buffer("b", torch.ones(3))

        def f(x):
            y = x.sin() * (2.0 if module.b is None else module.b.sum())
            module.b = None
            return y.sum()

        return f

    f, compiled = make(), fg.jit(make())
    expected = [USES[use](f, lambda: None) for _ in range(2)]
    with pytest.raises(fg.TraceError, match=r"module\.b was rebound between a forward pass and a backward pass"):
        USES[use](compiled, lambda: None)
    torch.testing.assert_close(USES[use](compiled, lambda: None), expected[1])


def test_a_tensor_that_a_hook_reads_and_that_is_another_one_for_the_second_derivative():
    held = {"t": torch.tensor(1.5)}

    def f(x):
        y = x * 2.0
        y.register_hook(lambda g: g * held["t"])
        return y.sin().sum()

    torch.testing.assert_close(twice(fg.jit(f), lambda: None), twice(f, lambda: None))
    with pytest.raises(fg.TraceError, match="was rebound between"):
        twice(fg.jit(f), lambda: None, lambda: held.update(t=torch.tensor(3.0)))


def test_a_tensor_that_is_another_one_for_the_second_derivative_and_that_no_hook_reads():
    held = {"t": torch.tensor(1.5)}

    def f(x):
        return (x * held["t"]).sin().sum()

    found = []
    for c in (f, fg.jit(f)):
        held["t"] = torch.tensor(1.5)
        found.append(twice(c, lambda: None, lambda: held.update(t=torch.tensor(3.0))))
    torch.testing.assert_close(found[1], found[0])


def test_a_gradient_that_is_left_on_what_requires_none_is_no_part_of_a_second_derivative():
    frozen = torch.ones(3)
    frozen.grad = torch.ones(3)
    torch.testing.assert_close(twice(fg.jit(lambda x: (x**2 * frozen).sum()), lambda: None), torch.full((3,), 8.0) * X)


def test_a_cache_that_keeps_a_tensor_of_a_level():
    @functools.lru_cache
    def weights(n):
        return torch.arange(float(n))

    def f(x):
        return (x**2 * weights(3)).sum()

    samples = torch.stack([X, X])
    expected = 2 * samples * torch.arange(3.0)
    torch.testing.assert_close(fg.vmap_compiled(fg.grad_compiled(f))(samples), expected)
    torch.testing.assert_close(torch.func.vmap(torch.func.grad(fg.jit(f)))(samples), expected)


def test_a_gradient_that_is_retained_by_a_tensor_that_is_stored():
    held = _Holder()

    def beside(x):
        held.k = x * 2
        held.k.retain_grad()
        return x.sum()

    def below(x):
        held.k = x * 2
        held.k.retain_grad()
        return held.k.sum()

    x = X.clone().requires_grad_()
    fg.jit(beside)(x)
    held.k.sum().backward()
    assert held.k.grad.tolist() == [1, 1, 1]
    with pytest.raises(fg.MutationError, match=r"stores, .*which keeps its gradient"):
        fg.jit(below)(x)


@pytest.mark.parametrize("use", ["curved", "hessian", "pushed", "mapped"])
def test_an_exception_at_a_level_leaves_what_was_written_before_it(use):
    held = _Holder()

    def f(x):
        held.k += 1
        raise ValueError("after a write")

    held.k = 0
    compiled = fg.jit(f)
    for n in (1, 2):
        with pytest.raises(ValueError, match="after a write"):
            USES[use](compiled, lambda: None)
        assert held.k == n


def test_forward_mode_is_not_tracked_where_grad_mode_is_off():
    def f(x):
        return x.sin().sum()

    x = X.clone().requires_grad_()
    with torch.no_grad():
        found = torch.func.jvp(fg.jit(f), (x,), (X,))
        over = torch.func.jvp(torch.func.grad(fg.jit(f)), (x,), (X,))
    assert not any(t.requires_grad for t in (*found, *over))


def test_a_variable_of_a_context_that_was_not_set_is_refused_by_name():
    own = contextvars.ContextVar[float]("own", default=1.5)

    def f(x):
        y = (x * own.get()).sin().sum()
        own.set(3.0)
        return y

    def run():
        with pytest.raises(fg.TraceError, match="own was changed between a forward pass and a backward pass"):
            twice(fg.jit(f), lambda: None)
        torch.testing.assert_close(twice(fg.jit(f), lambda: None), twice(f, lambda: None))

    contextvars.copy_context().run(run)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_view_that_is_given_in_inference_mode(requires_grad):
    def f(x):
        return x * 2, x[0], x.view(-1)

    x = torch.arange(4.0)[1:].requires_grad_(requires_grad)
    with torch.inference_mode():
        found, expected = fg.jit(f)(x), f(x)
    assert [t.is_inference() for t in found] == [t.is_inference() for t in expected] == [True, False, False]
    assert [t.requires_grad for t in found] == [t.requires_grad for t in expected]


def test_a_variable_of_the_environment_that_is_taken_away_stays_away():
    def f(x):
        os.environ.pop("FUNCGRAD_TWICE", None)
        return x.sin().sum()

    os.environ["FUNCGRAD_TWICE"] = "4"
    torch.testing.assert_close(curved(fg.jit(f), lambda: None), curved(f, lambda: None))
    assert "FUNCGRAD_TWICE" not in os.environ


# ── values that are read ─────────────────────────────────────────────────────────────────────────────────────────────


def forward_mode(f):
    return lambda x: torch.func.jvp(f, (x,), (X,))


def over_reverse(f):
    return lambda x: torch.func.jvp(torch.func.grad(f), (x,), (X,))


def duals(f):
    def call(x):
        with torch.autograd.forward_ad.dual_level():
            return torch.autograd.forward_ad.unpack_dual(f(torch.autograd.forward_ad.make_dual(x, X)))

    return call


@pytest.mark.parametrize("use", [forward_mode, over_reverse, duals, torch.func.hessian, torch.func.grad])
def test_what_is_read_and_written_to_python_state_is_that_of_the_call(use):
    """Though the derivative does not depend on it."""
    seen: list[Any] = []

    def f(x):
        if x.sum() > 0:
            seen.append("positive")
        seen.append(round(x[0].item(), 4))
        return x.sin().sum()

    def outcomes(call):
        seen.clear()
        return [call(x) for x in (X, -X, X * 0.5, -X, X)], list(seen)

    expected, wrote = outcomes(use(f))
    found, written = outcomes(use(fg.jit(f)))
    torch.testing.assert_close(found, expected)
    assert written == wrote


def test_a_function_that_counts_its_calls_is_compiled_once_at_a_level():
    held = _Holder()

    def f(x):
        held.k += 1
        return x.sin().sum()

    held.k = 0
    compiled = fg.jit(f)
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.RecompileWarning)
        for n in range(8):
            torch.testing.assert_close(torch.func.grad(compiled)(X), X.cos())
            assert held.k == n + 1


@pytest.mark.parametrize("use", [forward_mode, over_reverse, torch.func.grad])
def test_what_is_drawn_and_read_is_drawn_once(use):
    def f(x):
        return (x.sin() if torch.rand(()) < 0.5 else x.cos()).sum() * torch.rand(())

    call, expected = use(fg.jit(f)), use(f)
    for seed in range(6):
        torch.manual_seed(seed)
        wanted, state = expected(X), torch.get_rng_state()
        torch.manual_seed(seed)
        torch.testing.assert_close(call(X), wanted)
        assert torch.equal(torch.get_rng_state(), state)


class _Remembers(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last, self.all, self.by = torch.zeros(3), list[torch.Tensor](), dict[str, torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * (self.last + 1) + sum(self.all[-2:], torch.zeros(3)) + self.by.get("k", torch.ones(3))
        self.last, self.by["k"] = y.detach(), y.detach().clone()
        self.all.append(y.detach() * 0.1)
        return y.sin().sum()


@pytest.mark.parametrize(
    "transform",
    [
        torch.func.grad,
        lambda f: lambda x: torch.func.jvp(f, (x,), (x,))[1],
        lambda f: lambda x: (f(x), torch.func.grad(f)(x), f(x * 2)),
    ],
    ids=["grad", "jvp", "mixed"],
)
@pytest.mark.parametrize("kind", ["attribute", "list", "dict", "all"])
def test_what_a_call_at_a_level_stores_is_read_by_the_next_one(transform, kind):
    """It is a tensor of a level that has ended by then: the first that was met was read in all calls."""

    def attribute(own, x):
        y = x * (own.last + 1)
        own.last = x.detach() * 2
        return y.sin().sum()

    def of_list(own, x):
        y = x * sum(own.all[-1:], torch.ones(3))
        own.all.append(x.detach() * len(own.all))
        return y.sin().sum()

    def of_dict(own, x):
        y = x * own.by.get("k", torch.ones(3))
        own.by["k"] = x.detach() * 2
        return y.sin().sum()

    bodies = {"attribute": attribute, "list": of_list, "dict": of_dict, "all": _Remembers.forward}
    found = []
    for compiled in (False, True):
        own = _Remembers()
        body = functools.partial(bodies[kind], own)
        call = transform(fg.jit(body, backend="aten") if compiled else body)
        results = [call(torch.ones(3) * 0.3 * k) for k in range(1, 6)]
        found.append([*results, body(torch.ones(3)), own.last, len(own.all), own.by])
    torch.testing.assert_close(found[1], found[0])


_BAG: dict[str, Any] = {}
_ITEMS: list[Any] = []


@pytest.mark.parametrize(
    "store",
    [
        lambda x: _BAG.__setitem__("new", torch.ones(3)),
        lambda x: _BAG.update(n=len(_BAG), pair=(x.detach(), 3)),
        lambda x: _BAG.pop("n", None),
        lambda x: _ITEMS.append(torch.ones(3) * len(_ITEMS)),
        lambda x: _ITEMS.__setitem__(1, (torch.zeros(3), 5)),
    ],
    ids=["a new item", "an item and a tuple", "an item less", "appended", "a tuple in a list"],
)
@pytest.mark.parametrize("gradient", [False, True])
def test_a_container_of_tuples_with_tensors_that_a_call_stores_to(store, gradient):
    """When the function runs once more, the container itself is as it was: what said what it was made of was put in
    its place, and then looked into."""

    def f(x):
        y = x * (len(_BAG) + len(_ITEMS) + _BAG["pair"][1])
        store(x)
        return (y * _ITEMS[1][0]).sin().sum()

    def seen(call):
        _BAG.clear()
        _BAG.update(h=torch.zeros(3), pair=(torch.ones(3), 2), n=1)
        _ITEMS[:] = [torch.ones(3), (torch.ones(3), 2)]
        found = [torch.func.grad(lambda x: call(x).sum())(X * k) for k in (1, 2, 3)]
        return found, [*_BAG], len(_ITEMS), _BAG["pair"][1], _ITEMS[1][1]

    compiled = fg.grad_compiled(f) if gradient else torch.func.grad(fg.jit(f))
    (expected, *state), (found, *state_now) = seen(torch.func.grad(f)), seen(compiled)
    torch.testing.assert_close(found, expected)
    assert state_now == state


_TWICE = {
    "grad": torch.func.grad,
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sin().sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (x,)),
    "jvp of grad": lambda f: lambda x: torch.func.jvp(torch.func.grad(f), (x,), (x,)),
}


def _under_no_grad(x):
    with torch.no_grad():
        k = x.cos()
    return (x * k).sin().sum()


def _into_a_view(x):
    y = x.clone()
    y[0] = y[1].detach()
    return (y * x).sin().sum()


@pytest.mark.parametrize("transform", _TWICE)
@pytest.mark.parametrize(
    "of",
    [
        lambda x: (x * x.detach()).sin().sum(),
        lambda x: (x.sin() * (torch.detach(x) ** 2)).sum(),
        lambda x: (x * x.data).sin().sum(),
        _under_no_grad,
        _into_a_view,
    ],
    ids=["detach", "torch.detach", "data", "no_grad", "into a view"],
)
def test_what_stops_gradients_in_a_function_that_stores_a_tensor(of, transform):
    """Its graph runs in its derivatives, and did not say what is detached, or was computed under ``no_grad``."""
    own = _Holder()

    def f(x):
        own.k = (x * 2).detach()
        return of(x)

    compiled, eager = _TWICE[transform](fg.jit(f, backend="aten")), _TWICE[transform](f)
    for x in (X, X * 2):
        torch.testing.assert_close(compiled(x), eager(x))


class _Sevenfold(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x):
        return x * 2

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7

    @staticmethod
    def jvp(ctx, tangent):
        return tangent * 7


def _hooked(x):
    y = x * 1
    y.register_hook(lambda gradient: gradient * 3)
    return (y * x).sin().sum()


@pytest.mark.parametrize(
    ("of", "transform"),
    [(lambda x: (_Sevenfold.apply(x) * x).sum(), name) for name in ("grad of grad", "jvp", "jvp of grad")]
    + [(_hooked, "grad of grad"), (lambda x: (x.sin().detach_() * x).sum(), "jvp")],
)
def test_a_derivative_of_its_own_in_a_function_that_stores_a_tensor(of, transform):
    """The graph does not say so: the function runs again in its derivatives, and what it stores then is taken back."""
    own = _Holder()

    def f(x):
        own.k = x.detach() * 2
        return of(x)

    compiled = fg.jit(f, backend="aten")
    for scale in (1.0, 0.5):
        torch.testing.assert_close(_TWICE[transform](compiled)(X * scale), _TWICE[transform](f)(X * scale))


@pytest.mark.parametrize("apart", [0, 1, 2])
def test_numbers_of_python_state_that_are_stored_in_a_function_that_runs_again(apart):
    """What stands for one of them while the function runs again may be what another one is."""

    def made(wrap):
        own = _Holder()
        own.n, own.k = 0, apart

        def f(x):
            own.n = own.n * 1 + 1
            own.k = own.k * 1 + 1
            return (x * own.n).sin().sum() * own.k

        call, found = wrap(f), []
        for i in range(6):
            if i == 1:
                own.n, own.k = own.n + 1, own.k + 1
            found.append((torch.func.grad(lambda x: torch.func.grad(call)(x).sum())(X), own.n, own.k))
        return found

    torch.testing.assert_close(made(lambda f: fg.jit(f, backend="aten")), made(lambda f: f))


def _shortened() -> dict[str, Any]:
    one, two, three, *others = map(torch.tensor, (1.5, 2.0, -1.0, 0.5, 3.0, 2.5, -0.5, 1.0, 4.0, 0.7, 1.2, 1.7))
    return {
        "list": [one, two, three],
        "deque": collections.deque(others[:3]),
        "dict": dict(zip("ab", others[3:], strict=False)),
        "ordered": collections.OrderedDict(zip("ab", others[5:], strict=False)),
        "nested": [others[7:], [torch.tensor(3.0)]],
    }


def _remove(held):
    held["list"].remove(held["list"][1])
    return held["list"][-1]


def _take_out(held):
    del held["dict"]["b"]
    return held["dict"]["a"]


def _empty(held):
    total = sum(held["list"])
    held["list"].clear()
    return total


def _look_first(held):
    if held["list"][-1] > 0:
        return held["list"].pop()
    return held["list"].pop(0) * held["list"][0]


SHORTENED: dict[str, Callable[[dict[str, Any]], Any]] = {
    "pop what is not used": lambda held: (held["list"].pop(), 2.0)[1],
    "pop": lambda held: held["list"].pop(),
    "pop the first": lambda held: held["list"].pop(0) * held["list"][0],
    "remove": _remove,
    "clear": _empty,
    "popleft": lambda held: held["deque"].popleft(),
    "pop of a deque": lambda held: held["deque"].pop() * held["deque"][0],
    "pop of a dict": lambda held: held["dict"].pop("a") * held["dict"]["b"],
    "del of a dict": _take_out,
    "popitem": lambda held: held["ordered"].popitem()[1],
    "within a list": lambda held: held["nested"][0].pop(),
    "read before": _look_first,
}
_HIGHER = {
    "grad": torch.func.grad,
    "grad of grad": lambda f: torch.func.grad(lambda x: torch.func.grad(f)(x).sum()),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),)),
    "hessian": torch.func.hessian,
}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("transform", _HIGHER)
@pytest.mark.parametrize("take", SHORTENED)
def test_a_function_that_takes_tensors_out_of_a_container_has_higher_derivatives(take, transform, requires_grad):
    """The function runs again for them, when the container is shorter than it was."""

    def seen(make):
        held = _shortened()
        f = _HIGHER[transform](make(lambda x: (x * SHORTENED[take](held)).sin().sum()))
        again = () if take in ("clear", "pop of a dict", "del of a dict") else (X * 2,)
        found = [f(x) for x in (X.clone().requires_grad_(requires_grad), *again)]
        return found, held

    (found, held), (expected, held_then) = seen(lambda f: fg.jit(f, backend="aten")), seen(lambda f: f)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(held, held_then)


@pytest.mark.parametrize("transform", _HIGHER)
def test_a_slot_that_a_function_deletes_and_that_is_another_number_in_the_next_call(transform):
    class Slots:
        __slots__ = ("n",)

    def seen(make):
        own, found = Slots(), []

        def f(x):
            by = own.n
            del own.n
            return (x * by).sin().sum()

        higher = _HIGHER[transform](make(f))
        for n in (2, 1.5, 3, 3, 2.5):
            own.n = n
            found.append(higher(X))
            assert not hasattr(own, "n")
        return found

    torch.testing.assert_close(seen(lambda f: fg.jit(f, backend="aten")), seen(lambda f: f))
