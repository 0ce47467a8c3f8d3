"""Arguments and results in containers of a class of their own, and what is refused because it is no container."""

import collections
import dataclasses
import types

import attrs
import pytest
import torch
from test_trees import Attributed, Computed, Defaulting, Items, Mapping, Output, ordered, slotted

import funcgrad as fg
from funcgrad.trees import flatten


def same(a, b):
    """Equal in class, items and attributes, down to the tensors."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and a.requires_grad == b.requires_grad
    if type(a) is not type(b):
        return False
    pairs = []
    if isinstance(a, dict):
        # a subclass may say otherwise
        kind = collections.OrderedDict if isinstance(a, collections.OrderedDict) else dict
        if [*kind.keys(a)] != [*kind.keys(b)]:
            return False
        pairs += [(dict.__getitem__(a, k), dict.__getitem__(b, k)) for k in kind.keys(a)]
    elif isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return False
        pairs += zip(a, b, strict=True)
    elif not hasattr(a, "__dict__"):
        return a == b
    own, other = getattr(a, "__dict__", {}), getattr(b, "__dict__", {})
    if (own is a) != (other is b) or own.keys() != other.keys():
        return False
    return all(same(x, y) for x, y in pairs) and (own is a or all(same(own[k], other[k]) for k in own))


@dataclasses.dataclass
class Data:
    x: object
    y: object


@attrs.frozen
class Frozen:
    x: object
    y: object


MAKERS = {
    "Mapping": lambda x, y: Mapping(2, x=x, y=[y]),
    "Attributed": lambda x, y: Attributed(x=x, y=(y, 3)),
    "Slotted": lambda x, y: slotted([x, y]),
    "Ordered": lambda x, y: ordered({"b": x, "a": y}),
    "Defaulting": lambda x, y: Defaulting(list, {"a": x, "b": y}),
    "Items": lambda x, y: Items([x, [y]]),
    "Output": lambda x, y: Output(loss=x, hidden=[y]),
    "Output without": lambda x, y: Output(hidden=(x, y)),
    "Computed": lambda x, y: Computed(x * y),
    "UserDict": lambda x, y: collections.UserDict({"a": x, "b": y}),
    "UserList": lambda x, y: collections.UserList([x, y]),
    "ChainMap": lambda x, y: collections.ChainMap({"a": x}, {"b": y}),
}
WITH_MAKERS = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def total(value):
    leaves = [v for v in flatten(value)[0] if isinstance(v, torch.Tensor)]
    return sum(v.sin().sum() for v in leaves)


@WITH_MAKERS
def test_as_an_argument(make):
    c, g = fg.jit(total), fg.grad_compiled(total)
    for _ in range(2):
        value = make(torch.randn(3), torch.randn(3))
        assert torch.allclose(c(value), total(value))
        if not any(not isinstance(v, torch.Tensor) for v in flatten(value)[0]):
            grads = g(value)
            assert type(grads) is type(value)
            leaves = zip(flatten(grads)[0], flatten(value)[0], strict=True)
            assert all(torch.allclose(a, b.cos()) for a, b in leaves)
    assert c.cache_info().misses == 1


@WITH_MAKERS
def test_as_a_result(make):
    def f(x, y):
        return make(x * 2, x + y)

    c = fg.jit(f, backend="aten")
    for _ in range(2):
        x, y = torch.randn(3), torch.randn(3)
        assert same(c(x, y), f(x, y))


@WITH_MAKERS
def test_there_and_back(make):
    c = fg.jit(lambda value: (value, fg.tree_map(lambda leaf: leaf, value)))
    for _ in range(2):
        value = make(torch.randn(3), torch.randn(3))
        itself, again = c(value)
        assert itself is value and again is not value and same(again, value)


def test_a_result_that_is_kept_twice_is_one_tensor():
    out = fg.jit(lambda x: Output(loss=x.sum(), hidden=x * 2))(torch.randn(3))
    assert out["loss"] is out.loss and out[1] is out.hidden
    x = torch.randn(3, requires_grad=True)
    fg.jit(lambda x: Output(loss=x.sum()))(x).loss.backward()
    assert torch.equal(x.grad, torch.ones(3))


def test_attributes_are_part_of_the_key():
    c = fg.jit(lambda m: dict.__getitem__(m, "x") * m.label, dynamic=False)
    x = torch.randn(3)
    assert torch.equal(c(Mapping(2, x=x)), x * 2)
    assert torch.equal(c(Mapping(3, x=x)), x * 3)
    assert c.cache_info().misses == 2


def test_a_tensor_among_the_attributes_is_an_input():
    c = fg.jit(lambda m: dict.__getitem__(m, "x") + m.label)
    for _ in range(2):
        x, label = torch.randn(3), torch.randn(3)
        assert torch.equal(c(Mapping(label, x=x)), x + label)
    assert c.cache_info().misses == 1


def test_a_store_into_a_subclass_is_carried_out():
    def f(out):
        out["more"] = out.loss * 2
        return out.loss

    own, given = Output(loss=torch.ones(3)), Output(loss=torch.ones(3))
    assert torch.equal(fg.jit(f)(given), f(own))
    assert repr(given) == repr(own) and repr(vars(given)) == repr(vars(own))


# ── no containers ────────────────────────────────────────────────────────────────────────────────────────────────


class Box:
    def __init__(self, x):
        self.x = x


def test_an_argument_that_is_no_container_and_holds_tensors():
    c = fg.jit(lambda v: v.x * 2)
    with pytest.raises(fg.ContainerError, match="SimpleNamespace") as caught:
        c(types.SimpleNamespace(x=torch.ones(3)))
    assert caught.value.where == "v" and "register_pytree_node(SimpleNamespace" in caught.value.fix
    with pytest.raises(fg.ContainerError, match="mappingproxy"):
        fg.jit(lambda v: v["x"] * 2)(types.MappingProxyType({"x": torch.ones(3)}))
    with pytest.raises(fg.ContainerError, match="static argument"):
        fg.jit(lambda v: v["x"] * 2, static_argnums=0)({"x": torch.ones(3)})


def test_a_value_that_cannot_be_compared():
    class Odd:
        def __eq__(self, other):
            raise ValueError("cannot say")

        __hash__ = None

    c = fg.jit(lambda x, odd: x * 2)
    c(torch.ones(3), Odd())
    with pytest.raises(fg.ArgumentError, match="cannot say"):
        c(torch.ones(3), Odd())


@pytest.mark.parametrize(
    "wrap",
    [lambda y: {y}, lambda y: iter([y]), lambda y: lambda: y, lambda y: [Box(y)] * 2],
    ids=["set", "iterator", "function", "twice"],
)
def test_a_result_that_is_no_container_and_holds_what_is_computed(wrap):
    with pytest.raises(fg.ResultError, match="returns a") as caught:
        fg.jit(lambda x: {"a": wrap(x * 2)})(torch.ones(3))
    assert caught.value.where.startswith("result['a']")


def ring(kind):
    x = torch.ones(2)
    made = {"list": [x], "dict": {"x": x}, "dataclass": Pair(x, None), "subclass": Defaulting(list)}[kind]
    match made:
        case list():
            made.append((made,))
        case dict():
            made["k"] = [made]
        case _:
            made.second = made
    return made


@dataclasses.dataclass
class Pair:
    first: object
    second: object


INSIDE = {"list": "[1][0]", "dict": "['k'][0]", "dataclass": ".second", "subclass": "['k'][0]"}


@pytest.mark.parametrize("kind", INSIDE)
@pytest.mark.parametrize("transform", [fg.jit, fg.grad_compiled])
def test_an_argument_that_holds_itself(kind, transform):
    with pytest.raises(fg.ContainerError, match="holds itself") as caught:
        transform(lambda a: torch.ones(2).sum())(ring(kind))
    assert caught.value.where == f"a{INSIDE[kind]}"
    with pytest.raises(fg.ContainerError, match="holds itself") as caught:
        transform(lambda x, a: x.sum())(torch.ones(2), a=ring(kind))
    assert caught.value.where == f"a{INSIDE[kind]}"


@pytest.mark.parametrize("kind", INSIDE)
def test_a_result_that_holds_itself(kind):
    with pytest.raises(fg.ContainerError, match="holds itself") as caught:
        fg.jit(lambda x: ring(kind))(torch.ones(2))
    assert caught.value.where == f"result{INSIDE[kind]}"


def test_a_container_that_is_held_twice_holds_not_itself():
    part = {"x": torch.ones(2)}
    assert fg.jit(lambda a: a[0]["x"] + a[1][0]["x"])([part, (part, [part])]).tolist() == [2, 2]


def test_an_argument_that_the_function_puts_into_itself():
    def f(a):
        a.append(a)
        return a[0] * 2

    given = [torch.ones(2)]
    assert fg.jit(f)(given).tolist() == [2, 2]
    assert len(given) == 2 and given[1] is given
    with pytest.raises(fg.ContainerError, match="holds itself"):
        fg.jit(f)(given)

    def g(x, config):
        config["self"] = config
        return x * 2

    config = {"n": 1}
    assert fg.jit(g)(torch.ones(2), config).tolist() == [2, 2]
    assert config["self"] is config


def test_plain_objects_pass():
    config = types.SimpleNamespace(size=3, names=["a"])

    @dataclasses.dataclass
    class Static:
        size: int

    kept = Box(2)
    c = fg.jit(lambda x, config, static: (x * config.size * static.size, config, kept))
    for _ in range(2):
        y, back, box = c(torch.ones(3), config, Static(2))
        assert torch.equal(y, torch.full((3,), 6.0)) and back is config and box is kept


@pytest.mark.parametrize(
    "make",
    [
        lambda x: {"a": x, "b": [x * 2]},
        lambda x: [x, [x]],
        lambda x: (x, [x]),
        lambda x: Pair(x, [x]),
        lambda x: collections.OrderedDict(a=x, b=[x]),
        lambda x: collections.UserDict(a=x, b=[x]),
        lambda x: collections.deque([x, [x]]),
        lambda x: [],
    ],
)
def test_a_container_that_is_returned_is_that_of_the_call(make):
    whole = fg.jit(lambda v: (v, {"again": v}), backend="aten")
    for _ in range(2):
        given = make(torch.randn(3))
        first, second = whole(given)
        assert first is given and second["again"] is given
    assert fg.jit(lambda *, v: v, backend="aten")(v=given) is given


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_container_that_is_stored_into_and_returned_is_that_of_the_call(requires_grad):
    def f(v):
        v["new"] = v["x"] * 2
        v["x"].add_(1)
        v["list"].append(v["new"])
        return v, v["list"], v["new"]

    compiled = fg.jit(f, backend="aten")
    for _ in range(3):
        start = torch.randn(3)
        w = torch.ones(3, requires_grad=requires_grad)
        given, wanted = ({"x": start * w, "list": [start], "s": 2.0} for _ in range(2))
        result, inner, new = compiled(given)
        f(wanted)
        assert result is given and inner is given["list"] and new is given["new"] is inner[-1]
        assert same(given, wanted)
        if requires_grad:
            found, expected = (torch.autograd.grad((v["new"] + v["x"]).sum(), w)[0] for v in (given, wanted))
            assert torch.equal(found, expected)


# ── within the transforms of torch.func, which knows what is registered alone ────────────────────────────────────────

CLASSES = pytest.mark.parametrize("make", [Data, Frozen, MAKERS["Output"]], ids=["dataclass", "attrs", "dict"])
TRANSFORMS = {
    "vmap": (fg.vmap_compiled, torch.func.vmap),
    "vmap in chunks": (lambda f: fg.vmap_compiled(f, chunk_size=2), torch.func.vmap),
    "jacrev": (fg.jacrev_compiled, torch.func.jacrev),
    "jacfwd": (fg.jacfwd_compiled, torch.func.jacfwd),
    "hessian": (fg.hessian_compiled, torch.func.hessian),
    "jvp": (lambda f: lambda p: fg.jvp_compiled(f, (p,), (p,)), lambda f: lambda p: torch.func.jvp(f, (p,), (p,))),
    "linearize": (
        lambda f: lambda p: fg.linearize_compiled(f, p)[1](p),
        lambda f: lambda p: torch.func.linearize(f, p)[1](p),
    ),
    "vjp": (
        lambda f: lambda p: (lambda out, pull: pull(out))(*fg.vjp_compiled(f, p)),
        lambda f: lambda p: (lambda out, pull: pull(out))(*torch.func.vjp(f, p)),
    ),
}


@CLASSES
@pytest.mark.parametrize("name", TRANSFORMS)
def test_under_a_transform_of_torch_func(make, name):
    """What torch.func gives for tuples; each container is of its class, in arguments and in results."""
    of, of_tuples = TRANSFORMS[name]
    kind = type(make(0, 0))

    def f(p):
        assert type(p) is kind
        x, y = flatten(p)[0]
        return make(x * y, y.sin())

    def on_tuples(p):
        x, y = flatten(p)[0]
        return (x * y, y.sin())

    flat = [torch.randn(3), torch.randn(3)]
    found, wanted = of(f)(make(*flat)), of_tuples(on_tuples)(tuple(flat))
    torch.testing.assert_close(flatten(found)[0], flatten(wanted)[0])
    inside = found
    while type(inside) is tuple:
        inside = inside[0]
    assert type(inside) is kind


def test_batch_dimensions_in_a_container():
    x, y = torch.randn(4, 3), torch.randn(3)
    f = fg.vmap_compiled(lambda p: Data(p.x + p.y, p.y), (Data(0, None),), Data(1, None))
    found = f(Data(x, y))
    assert type(found) is Data and torch.equal(found.x, (x + y).t()) and torch.equal(found.y, y)
    with pytest.raises(ValueError, match="in_dims"):
        fg.vmap_compiled(lambda p: p.x, (Frozen(0, None),))(Data(x, y))
    with pytest.raises(ValueError, match="sizes"):
        fg.vmap_compiled(lambda p: p.x)(Data(x, y))


def test_a_leaf_without_a_derivative_is_named_by_its_attribute():
    with pytest.raises(fg.NonDifferentiableArgumentError, match=r"p\.y is an int"):
        fg.jacrev_compiled(lambda p: p.x)(Data(torch.ones(2), 3))


def test_a_container_that_holds_itself_has_no_pullback():
    p = Data(torch.ones(2), None)
    p.y = p
    with pytest.raises(fg.ContainerError, match="holds itself"):
        fg.vjp_compiled(lambda p: p.x, p)


def test_none_within_a_point_is_a_container_of_nothing():
    """As it is to ``grad_compiled``, and in JAX."""
    x, point = torch.arange(3.0), {"x": torch.arange(3.0), "bias": None}

    def f(p):
        return {"y": p["x"] ** 2, "state": None}

    out, pull = fg.vjp_compiled(f, point)
    assert out["state"] is None
    assert pull({"y": torch.ones(3), "state": None})[0]["bias"] is None
    torch.testing.assert_close(pull({"y": torch.ones(3), "state": None})[0]["x"], 2 * x)
    pushed = fg.jvp_compiled(f, (point,), (point,))[1], fg.linearize_compiled(f, point)[1](point)
    for tangent in pushed:
        assert tangent["state"] is None
        torch.testing.assert_close(tangent["y"], 2 * x * x)
    for jacobian in fg.jacrev_compiled, fg.jacfwd_compiled:
        found = jacobian(f)(point)
        assert found["state"] is None and found["y"]["bias"] is None
        torch.testing.assert_close(found["y"]["x"], torch.diag(2 * x))
