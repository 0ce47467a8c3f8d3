"""The call key: what makes a call compile, what does not, and what a miss says."""

import keyword

import pytest
import torch
from attrs import frozen
from hypothesis import given, settings
from hypothesis import strategies as st

import funcgrad as fg
from funcgrad.runtime.key import aliasing
from funcgrad.trees import flatten


def f(x, y):
    return (x * y).sum()


def compiled(*args):
    c = fg.grad_compiled(f)
    c(*args)
    return c


X = torch.randn(4, 3)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: x.double(), "x: dtype was torch.float32, now torch.float64"),
        (lambda x: torch.randn(2, 3), "x: shape was (4, 3), now (2, 3)"),
        (lambda x: torch.randn(3, 4).t(), "x: stride was (3, 1), now (1, 4)"),
        (lambda x: torch.randn(4, 3, requires_grad=True), "x: requires_grad was False, now True"),
    ],
)
def test_a_tensor_that_differs(change, says):
    c = compiled(X, X.clone())
    other = change(X)
    assert says in c.explain_miss(other, X.clone().to(other.dtype)[: other.shape[0]])
    with fg.no_retrace(), pytest.raises(fg.RetraceError, match="x: "):
        c(other, X.clone())


def test_conjugated_and_inference_tensors():
    z = torch.randn(3, dtype=torch.complex64)
    c = fg.jit(lambda z: z * 2)
    for value in (z, z.conj()):
        torch.testing.assert_close(c(value), value * 2)
    assert c.cache_info().misses == 2
    with torch.inference_mode():
        assert "inference" in c.explain_miss(z + 1)


def test_structure():
    c = fg.jit(lambda p: p["a"] * 2)
    c({"a": X})
    assert "p" in c.explain_miss({"a": X, "b": X})
    assert "structure was" in c.explain_miss([X])
    torch.testing.assert_close(c({"a": X, "b": X}), X * 2)


def test_static_values():
    c = fg.jit(lambda x, k, flag: x * k if flag else x)
    for k, flag in ((2, True), (2, False), (3, True), (True, True)):
        torch.testing.assert_close(c(X, k, flag), X * k if flag else X)
    assert c.cache_info().misses == 4
    assert "k: value was" in c.explain_miss(X, 5, True)


@frozen
class Config:
    k: object


@pytest.mark.parametrize("make", [lambda k: (k,), lambda k: [k], lambda k: {"k": [k]}, Config])
def test_static_arguments_are_compared_by_type_and_sign_in_containers(make):
    c = fg.jit(lambda x, config: x * flatten(config)[0][0], static_argnums=(1,))
    x = torch.arange(1, 4)
    for i, k in enumerate((1, 1.0, True, 0.0, -0.0, 1j, 2)):
        for value in (k, type(k)(k)):
            found, expected = c(x, make(value)), x * k
            assert found.dtype == expected.dtype
            torch.testing.assert_close(found, expected)
            assert k != 0 or torch.equal(found.signbit(), expected.signbit())
        assert c.cache_info().misses == i + 1


def test_nan_in_a_static_argument():
    c = fg.jit(lambda x, config: x * config[0], static_argnums=(1,))
    for _ in range(2):
        assert c(X, (float("nan"),)).isnan().all()
    assert c.cache_info().misses == 1


def test_a_static_argument_its_owner_changes():
    c, config = fg.jit(lambda x, config: x * config["k"][0], static_argnums=(1,)), {"k": [2.0]}
    torch.testing.assert_close(c(X, config), X * 2)
    config["k"][0] = 3.0
    assert "config: value was {'k': [2.0]}, now {'k': [3.0]}" in c.explain_miss(X, config)
    torch.testing.assert_close(c(X, config), X * 3)


def test_floats_become_symbols_at_the_second_value():
    c = fg.jit(lambda x, lr: (x * (lr * 0.5) + lr * lr, lr + 1))
    for i, lr in enumerate((0.1, 0.2, 0.3, 0.4, -1.5)):
        found, number = c(X, lr)
        torch.testing.assert_close(found, X * (lr * 0.5) + lr * lr)
        assert number == pytest.approx(lr + 1)
        assert c.cache_info().misses == min(i + 1, 2)
    for lr in (0.0, -0.0, float("inf")):
        torch.testing.assert_close(c(X, lr)[0], X * (lr * 0.5) + lr * lr, equal_nan=True)


def test_a_branch_on_a_float_is_a_guard():
    c = fg.jit(lambda x, lr: x * lr if lr > 0.5 else x - lr)
    for lr in (0.1, 0.2, 0.3, 0.7, 0.8, 0.9, 0.4):
        torch.testing.assert_close(c(X, lr), X * lr if lr > 0.5 else X - lr)
    assert c.cache_info().misses == 3
    assert "no longer holds" not in c.explain_miss(X, 0.95)


def test_ambient_state():
    c = fg.jit(lambda x: x @ x.t())
    c(X)
    with torch.no_grad():
        assert "grad mode: was True, now False" in c.explain_miss(X)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert "autocast: was (), now (('cpu', torch.bfloat16),)" in c.explain_miss(X)
    torch.use_deterministic_algorithms(True)
    try:
        assert "deterministic: was False, now True" in c.explain_miss(X)
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.device("meta"):
        assert "function modes" in c.explain_miss(X)
    assert "would not compile" in c.explain_miss(X)


def test_default_dtype():
    c = fg.jit(lambda x: x + torch.ones(3))
    x = torch.randn(3, dtype=torch.float64)
    c(x)
    torch.set_default_dtype(torch.float64)
    try:
        assert "default dtype" in c.explain_miss(x)
    finally:
        torch.set_default_dtype(torch.float32)


def test_default_device_is_honoured():
    c = fg.jit(lambda x: torch.ones(3))
    assert c(X).device.type == "cpu"
    with torch.device("meta"):
        assert c(X).device.type == "meta"
    assert c(X).device.type == "cpu"


def test_inputs_that_alias_differently_are_different_programs():
    """Where they are written to; else it matters whether they share memory, and not where in it they lie."""
    base = torch.randn(8)
    c, pure = fg.jit(lambda a, b: a.mul_(1) * b), fg.jit(lambda a, b: a * b)
    calls = [(base[:4], base[4:]), (base[:4], base[:4]), (base[:4].clone(), base[4:].clone()), (base[:4], base[2:6])]
    for i, (a, b) in enumerate(calls):
        torch.testing.assert_close(c(a, b), a * b)
        torch.testing.assert_close(pure(a, b), a * b)
        assert c.cache_info().misses == i + 1
    assert pure.cache_info().misses == 2
    assert "aliasing" in fg_explain_alias(c, base)
    for a, b in calls:
        c(a, b)
    assert c.cache_info().misses == len(calls)


def fg_explain_alias(c, base):
    return c.explain_miss(base[1:5], base[3:7]) + c.explain_miss(base[:4], base[3:7])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=2, max_size=5))
def test_aliasing_pattern(places):
    """Equal patterns exactly where the same tensors share the same memory at the same offsets."""
    bases = [torch.zeros(8) for _ in range(3)]
    views = [bases[b][o : o + 4] for b, o in places]
    pattern = aliasing(views, anyhow=())
    for i, (b, o) in enumerate(places):
        first = next(j for j, (other, _) in enumerate(places) if other == b)
        alone = sum(other == b for other, _ in places) == 1
        assert pattern[i] == (i,) if alone else (*pattern[i][:3], pattern[i][4]) == (first, i, first, o)


def test_no_retrace():
    c = fg.jit(lambda x: x * 2)
    with fg.no_retrace(), pytest.raises(fg.RetraceError, match="not been compiled yet"):
        c(X)
    c(X)
    with fg.no_retrace():
        c(X)


def test_cache_is_bounded_and_keeps_what_is_used():
    c = fg.jit(lambda x, k: x * int(k))
    for k in range(70):
        c(X, f"{k}")
        c(X, "0")
    assert c.cache_info().currsize == 64
    misses = c.cache_info().misses
    c(X, "0")
    assert c.cache_info().misses == misses
    c(X, "1")
    assert c.cache_info().misses == misses + 1


def test_threads_compile_once():
    import threading

    traces = []

    def g(x):
        traces.append(1)
        return x * 2

    c = fg.jit(g)
    threads = [threading.Thread(target=c, args=(X,)) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert c.cache_info().misses == 1


@settings(max_examples=20, deadline=None)
@given(st.data())
def test_the_printed_guards_mean_the_key(data):
    """A call compiles exactly when its key differs from every key before."""
    shapes = [(2, 3), (3, 2), (6,)]
    c = fg.jit(lambda p, k, flag: [v * k for v in (p.values() if isinstance(p, dict) else p)])
    seen = set()
    for _ in range(data.draw(st.integers(1, 6))):
        shape, dtype = (
            data.draw(st.sampled_from(shapes)),
            data.draw(st.sampled_from([torch.float32, torch.float64, torch.int64])),
        )
        names = data.draw(st.permutations(["a", "b"]))
        kind, k, flag = (
            data.draw(st.sampled_from([dict, list])),
            data.draw(st.sampled_from([1, 2, "s", None])),
            data.draw(st.booleans()),
        )
        shared = data.draw(st.booleans())
        t = torch.ones(shape, dtype=dtype)
        values = [t, t if shared else t.clone()]
        p = dict(zip(names, values, strict=True)) if kind is dict else values
        if not isinstance(k, int):
            k = 3
        identity = (shape, dtype, tuple(names) if kind is dict else list, k, flag, shared)
        before = c.cache_info().misses
        c(p, k, flag)
        assert c.cache_info().misses == before + (identity not in seen)
        seen.add(identity)


def test_a_bool_tensor_beside_a_bool():
    """The name of the tensor's dtype must not stand for Python's type."""
    c = fg.jit(lambda x, mask, flag: torch.where(mask, x, 0.0) * (2 if flag else 1))
    x, mask = torch.randn(3), torch.tensor([True, False, True])
    assert torch.equal(c(x, mask, flag=True), torch.where(mask, x, 0.0) * 2)
    assert torch.equal(c(x, mask, flag=False), torch.where(mask, x, 0.0))


NAMED = {
    "draws": ("return torch.nn.functional.dropout(NAME, 0.5)", {"rng": "philox"}, None),
    "writes": ("NAME.add_(1)\n    return NAME.t(), NAME * 2", {}, None),
    "enters inference mode": ("with torch.inference_mode(): y = NAME * 2\n    return y", {}, None),
    "comes to lie otherwise": ("NAME.t_(); NAME.mul_(2)\n    return NAME", {}, None),
    "has a gradient": ("NAME.grad = NAME.detach() * 2\n    return NAME * 1", {}, None),
    "is given memory": ("NAME.data = torch.ones(5)\n    return NAME * 1", {}, None),
    "of sizes that vary": ("return NAME[: len(NAME) // 2] * len(NAME)", {"dynamic": True}, None),
    "differentiated": ("return (NAME * NAME).sum()", {}, torch.func.grad),
}


@pytest.mark.parametrize("what", NAMED)
def test_an_argument_may_have_the_name_of_what_a_printed_call_calls(what):
    body, options, transform = NAMED[what]

    def compiled(name):
        space = {"torch": torch}
        exec(f"def f({name}):\n    {body.replace('NAME', name)}", space)
        return fg.jit(space["f"], **options)

    def outcome(f):
        torch.manual_seed(0)
        x = torch.randn(3, 4)
        return (f if transform is None else transform(f))(x), x, x.grad

    expected = outcome(plain := compiled("x"))
    call = plain.program(torch.ones(3, 4)).call
    (code,) = (c for c in compile(call.text, "call", "exec").co_consts if hasattr(c, "co_varnames"))
    for name in sorted({*call.names, *code.co_varnames, "storage_id", "unwrap_dead"}):
        if name.isidentifier() and not keyword.iskeyword(name) and name != "torch":
            found = outcome(compiled(name))
            if options.get("rng") != "philox":
                torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["forward_launch0", "backward_launch0", "memory0", "empty", "over"])
def test_an_argument_may_have_the_name_of_what_its_kernels_are_called(name):
    space = {"torch": torch}
    exec(f"def f({name}, y): return (torch.tanh({name} @ y.t()) @ {name}).sin() * {name}", space)
    gradients = []
    for called in (fg.jit(space["f"]), space["f"]):
        x, y = (torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_() for _ in range(2))
        called(x, y).sum().backward()
        gradients.append((x.grad, y.grad))
    torch.testing.assert_close(*gradients)
