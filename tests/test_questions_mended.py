"""What a function asks of a tensor besides its values: its class, its attributes, who shares its memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import funcgrad as fg

BY_TYPE: dict[type, Callable[[Any], Any]] = {Tensor: lambda x: x * 2, nn.Parameter: lambda x: x * 5}


def ones(*_: Any) -> Tensor:
    return torch.ones(2)


def parameter() -> Tensor:
    return nn.Parameter(torch.ones(2))


def by_match(x):
    match type(x):
        case nn.Parameter:
            return x * 5
        case torch.Tensor:
            return x * 2
    return x * 3


def by_variable(x):
    of = type
    return x * 2 if of(x) is Tensor else x * 3


@functools.singledispatch
def dispatched(x):
    return x * 3


dispatched.register(nn.Parameter)(lambda x: x * 5)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(2))

    def forward(self, x):
        return x * self.w.detach() * (2 if type(self.w.detach()) is type(x) else 3)


gate = Gate()
captured = torch.ones(2)

ASK_CLASSES: dict[str, Callable[[Any], Any]] = {
    "is": lambda x: x * 2 if type(x) is torch.Tensor else x * 3,
    "equal": lambda x: x * 2 if type(x) == torch.Tensor else x * 3,  # noqa: E721
    "in": lambda x: x * 2 if type(x) in (torch.Tensor, int) else x * 3,
    "name": lambda x: x * len(type(x).__name__),
    "attribute": lambda x: x * len(type(x).__mro__),
    "table": lambda x: BY_TYPE[type(x)](x),
    "get": lambda x: BY_TYPE.get(type(x), lambda x: x * 3)(x),
    "map": lambda x: x * 2 if [*map(type, [x, x + 1])] == [torch.Tensor, torch.Tensor] else x * 3,
    "key": lambda x: x * len(sorted([x], key=lambda v: type(v).__name__)[0]) * len(max([x], key=type)),
    "tree": lambda x: x * 2 if torch.utils._pytree.tree_map(type, {"a": x}) == {"a": torch.Tensor} else x * 3,
    "match": by_match,
    "variable": by_variable,
    "nested": lambda x: (lambda y: y * 2 if type(y) is torch.Tensor else y * 3)(x),
    "subclass": lambda x: x * 2 if issubclass(type(x), nn.Parameter) else x * 3,
    "of what is computed": lambda x: x * 2 if type(x + 1) is torch.Tensor else x * 3,
    "of what is captured": lambda x: x * 2 if type(captured) is type(captured.detach()) else x * 3,
    "of a parameter": lambda x: x * 2 if type(nn.Parameter(x.detach())) is nn.Parameter else x * 3,
    "of a module": lambda x: gate(x),
    "__class__": lambda x: x * 2 if x.__class__ is torch.Tensor else x * 3,
    "__class__ by name": lambda x: x * 2 if getattr(x, "__class__") is torch.Tensor else x * 3,
    "__class__ of a library's": dispatched,
    "elem": lambda x: x * 2 if hasattr(x, "elem") else x * 3,
    "vars": lambda x: x * (1 + len(vars(x))),
    "__dict__": lambda x: x * (2 if "tag" in x.__dict__ else 3),
    "type of another": lambda x: x * (2 if type("A", (), {"v": 1})().v == 1 and isinstance(int, type) else 3),
    "type itself": lambda x: x * (2 if type(int) is type and {type: 1}[type(int)] else 3),
}


@pytest.mark.parametrize("f", ASK_CLASSES.values(), ids=ASK_CLASSES)
def test_a_class_is_that_of_a_tensor_outside(f):
    compiled = fg.jit(f)
    for make in (ones, parameter, ones, parameter):
        x = make()
        torch.testing.assert_close(compiled(x), f(x))
    x = ones()
    for transform in (
        lambda f: fg.grad_compiled(lambda x: f(x).sum()),
        lambda f: torch.func.grad(lambda x: f(x).sum()),
    ):
        torch.testing.assert_close(transform(fg.jit(f))(x), torch.func.grad(lambda x: f(x).sum())(x))


def test_what_is_made_by_the_class_of_a_tensor():
    for f in (lambda x: x * type(x)([1.0, 2.0]), lambda x: x * x.__class__([1.0, 2.0])):
        torch.testing.assert_close(fg.jit(f)(ones()), f(ones()))


def test_the_type_of_a_number_that_is_a_symbol_is_that_of_the_number():
    def f(x, n):
        return x * (n if type(n) is float else 0) * (2 if [type(x.shape[0]), type(x)] == [int, Tensor] else 3)

    compiled = fg.jit(f)
    for n, size in ((2.0, 3), (3.0, 4), (5.0, 5), (7.0, 6)):
        torch.testing.assert_close(compiled(torch.ones(size), n), f(torch.ones(size), n))


def test_code_is_as_it_was_after_a_trace():
    def f(x):
        return x * 2 if type(x) is Tensor else x * 3

    code = f.__code__
    fg.jit(f)(ones())
    assert f.__code__ is code and type(ones()) is Tensor and f(ones()).tolist() == [2.0, 2.0]


def test_attributes_are_those_that_the_tensor_has():
    def f(x, seen):
        made = x + 1
        made.tag = 3
        seen.append((dict(vars(x)), dict(vars(made))))
        return made * (1 + len(vars(x))) * getattr(x, "elem", 1)

    compiled, seen, expected = fg.jit(lambda x: f(x, seen)), [], []
    with_attributes = ones()
    with_attributes.scale, with_attributes.elem = 5, 7
    for x in (ones(), with_attributes, ones(), with_attributes):
        torch.testing.assert_close(compiled(x), f(x, expected))
    assert seen == expected


class Holder:
    w: Tensor


@pytest.mark.parametrize(
    "asks",
    [
        lambda w: isinstance(w, nn.Parameter),
        lambda w: type(w) is nn.Parameter,
        lambda w: w.__class__ is nn.Parameter,
        lambda w: type(w).__name__ == "Parameter",
    ],
)
def test_the_class_of_a_tensor_of_python_state_is_guarded(asks):
    holder, tensors = Holder(), (nn.Parameter(torch.ones(2)), torch.ones(2, requires_grad=True))

    def f(x):
        return x * holder.w * (10 if asks(holder.w) else 1)

    for first, second in (tensors, tensors[::-1]):
        compiled = fg.jit(f)
        for holder.w in (first, second, first, second):
            torch.testing.assert_close(compiled(ones()), f(ones()))
        assert compiled.cache_info().currsize == 2


def test_what_a_tensor_of_python_state_has_is_guarded():
    def f(x):
        return x * holder.w * getattr(holder.w, "scale", 1)

    holder, scaled, compiled = Holder(), ones(), fg.jit(f)
    for scaled.scale in (5, 7):
        for holder.w in (ones(), scaled, ones()):
            torch.testing.assert_close(compiled(ones()), f(ones()))


def test_a_gradient_is_compared_with_what_it_is_given_as():
    p = nn.Parameter(torch.ones(2))
    p.grad = gradient = torch.ones(2)
    holder = Holder()
    holder.w = p
    for f in (
        lambda x: x * 2 if p.grad is x else x * 3,
        lambda x: x * 2 if holder.w.grad is x else x * 3,
        lambda x: x * 2 if any(t.grad is x for t in [holder.w]) else x * 3,
    ):
        compiled = fg.jit(f)
        for x in (gradient, ones(), gradient):
            torch.testing.assert_close(compiled(x), f(x))


def one_twice() -> tuple[Tensor, ...]:
    return (x := ones()), x


def two() -> tuple[Tensor, ...]:
    return ones(), ones()


def one_and_a_view() -> tuple[Tensor, ...]:
    return (x := ones())[:], x


@pytest.mark.parametrize(
    "f",
    [
        lambda v, x: x * 2 if v.untyped_storage() is x.untyped_storage() else x * 3,
        lambda v, x: x * 2 if v.untyped_storage() == x.untyped_storage() else x * 3,
        lambda v, x: x * 2 if v.untyped_storage()._cdata == x.untyped_storage()._cdata else x * 3,
        lambda v, x: x * 2 if x.untyped_storage() is x[:1].untyped_storage() else x * 3,
        lambda v, x: x * 2 if (x + 1).untyped_storage() is x.untyped_storage() else x * 3,
        lambda v, x: x * 2 if v.untyped_storage() in {x.untyped_storage(): 1} else x * 3,
        lambda v, x: x * 2 if v._base is None else x * 3,
        lambda v, x: x * 2 if (base := v._base) is not None and base is not None else x * 3,
    ],
)
def test_tensors_share_memory_where_they_do_outside(f):
    compiled = fg.jit(f)
    for make in (one_twice, two, one_and_a_view, one_twice, two, one_and_a_view):
        torch.testing.assert_close(compiled(*make()), f(*make()))


@pytest.mark.parametrize("asks", [Tensor.is_inference, torch.is_inference])
def test_an_inference_tensor_says_that_it_is_one(asks):
    with torch.inference_mode():
        made = ones()
    compiled = fg.jit(lambda x: x * 2 if asks(x) else x * 3)
    for x, expected in ((made, 2.0), (ones(), 3.0), (made, 2.0), (ones(), 3.0)):
        assert compiled(x).tolist() == [expected] * 2


def test_a_tensor_without_hooks_has_none():
    compiled = fg.jit(lambda x: x * 2 if x._backward_hooks is None else x * 3)
    assert compiled(ones()).tolist() == [2.0, 2.0]
    hooked = torch.ones(2, requires_grad=True)
    hooked.register_hook(lambda g: g)
    with pytest.raises(fg.UnsupportedTensorError, match="_backward_hooks"):
        compiled(hooked)
