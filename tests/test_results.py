"""Leaves of a result that are no tensors: what hides a tensor, or is made anew by each call, is refused by name; the
rest is as it was."""

import collections
import functools
import time
from types import SimpleNamespace

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

import funcgrad as fg

X = torch.tensor([1.0, 2.0])


class Box:
    def __init__(self, content):
        self.content = content


class Slotted:
    __slots__ = ("content",)

    def __init__(self, content):
        self.content = content


class Keyed:
    """A pytree whose registration takes a tensor for constant."""

    def __init__(self, tensor, key):
        self.tensor, self.key = tensor, key


pytree.register_pytree_node(Keyed, lambda k: ([k.tensor], k.key), lambda children, key: Keyed(*children, key))

HIDING = {
    ".content": lambda x: Box(x * 2),
    "['a'][0].content['h']": lambda x: {"a": [Box({"h": x * 2})]},
    ".content.content[1]": lambda x: Slotted(Box((1, x * 2))),
    ".x": lambda x: SimpleNamespace(x=x * 2),
    "{…}": lambda x: {x * 2},
    ".content[0]": lambda x: Box(collections.deque([x * 2])),
    ".args[0]": lambda x: functools.partial(torch.add, x * 2),
    "closing over y": lambda x: (lambda y: lambda: y)(x * 2),
    "__defaults__[0]": lambda x: lambda y=x * 2: y,
    "__kwdefaults__['y']": lambda x: lambda *, y=x * 2: y,
    "running with": lambda x: (y for y in [x * 2]),
    "weight": lambda x: nn.Linear(2, 2),
    " …": lambda x: (x * 2).numpy,
    "context": lambda x: Keyed(x, Box(x * 2)),
}


OF_ATTRIBUTES = [".content", "['a'][0].content['h']", ".content.content[1]", ".x", ".content[0]"]
"""``jit`` makes such objects on each call (``test_result_objects.py``)."""


def with_aux(f):
    return fg.value_and_grad_compiled(lambda x: ((x * x).sum(), f(x)), has_aux=True)


@pytest.mark.parametrize(
    ("transform", "where"),
    [(t, where) for t in (fg.jit, with_aux) for where in HIDING if t is with_aux or where not in OF_ATTRIBUTES],
)
def test_a_tensor_hidden_in_a_result_is_named(transform, where):
    with pytest.raises(fg.ResultError, match=r"result|context") as caught:
        transform(HIDING[where])(X)
    assert where in caught.value.what


def test_the_class_to_register_is_named_and_registering_it_helps():
    class Local:
        def __init__(self, h):
            self.h = h

    compiled = with_aux(lambda x: Local(x * 2))
    with pytest.raises(fg.ResultError, match=r"register_pytree_node\(.*Local, flatten, unflatten\)"):
        compiled(X)
    pytree.register_pytree_node(Local, lambda v: ([v.h], None), lambda children, _: Local(*children))
    torch.testing.assert_close(compiled(X)[0][1].h, X * 2)


@pytest.mark.parametrize(
    "make", [lambda: Box(3), set, lambda: {1, 2}, lambda: bytearray(b"a"), object, lambda: iter([1])]
)
def test_a_new_object_is_not_returned_by_two_calls(make):
    with pytest.raises(fg.ResultError, match="a new one from each call"):
        fg.jit(lambda x: (x * 2, make()))(X)


SHARED = Box(3)


AS_IT_IS = [SHARED, 3, "a", None, torch.float32, range(3), slice(0, 2), frozenset({1}), ..., Box, len, 1.5, (1, "b")]


@pytest.mark.parametrize("value", AS_IT_IS)
def test_what_was_there_before_the_call_is_returned_as_it_is(value):
    compiled = fg.jit(lambda x: (x * 2, value))
    for _ in range(2):
        assert compiled(X)[1] == value
    assert value is not SHARED or compiled(X)[1] is SHARED


class Equal(Box):
    def __eq__(self, other):
        return self.content == other.content

    def __hash__(self):
        return hash(self.content)


def test_an_argument_that_is_returned_is_the_argument_of_this_call():
    compiled = fg.jit(lambda x, box: (x * 2, box))
    first, second = Equal(3), Equal(3)
    assert compiled(X, first)[1] is first
    assert compiled(X, second)[1] is second
    assert compiled.cache_info().currsize == 1


def test_a_clock_in_a_result_is_noticed():
    with pytest.raises(fg.TraceError, match=r"result\[1\] was .* in its first run"):
        fg.jit(lambda x: (x * 2, time.perf_counter()))(X)


def test_a_tensor_stored_in_an_object_among_the_arguments_is_that_of_each_call():
    def store(x, box):
        box.content = x * 2
        return x.sum()

    compiled, first, second = fg.jit(store), Box(None), Box(None)
    for n, box in enumerate((first, second, first, second)):
        compiled(X + n, box)
        torch.testing.assert_close(box.content, (X + n) * 2)
    assert compiled.cache_info().misses == 2 and first.content is not second.content


def test_a_symbolic_size_does_not_hide():
    compiled = fg.jit(lambda x: (x * 2, functools.partial(int, x.shape[0])), dynamic=True)
    for n in (3, 5, 7):
        assert compiled(torch.ones(n))[1]() == n


def test_a_size_is_a_size():
    compiled = fg.jit(lambda x: (x.shape, {"rest": x.size()[1:], "strides": x.stride()}), backend="aten")
    for n in (2, 3, 4):
        x = torch.ones(n, 5)
        whole, parts = compiled(x)
        assert type(whole) is type(parts["rest"]) is torch.Size and type(parts["strides"]) is tuple
        assert (whole, parts["rest"], parts["strides"]) == (x.shape, x.shape[1:], x.stride())


W = torch.linspace(-1, 1, 16).view(4, 4).requires_grad_()
V = torch.linspace(1, 2, 4).requires_grad_()


class _Stores:
    def __call__(self, x):
        self.h = (x @ W).tanh()
        return self.h.sin().sum()


RESULTS = {
    "beside": lambda x: ((h := (x @ W).tanh()), h.sin().sum()),
    "to several inputs": lambda x: ((h := (x @ W).tanh()), (h * V).sum() + V.sum()),
}


def _backward_inside(loss):
    with fg.compiled_autograd():
        loss.backward()


@pytest.mark.parametrize("backward", [torch.Tensor.backward, _backward_inside])
@pytest.mark.parametrize("listen", [lambda h: h.retain_grad(), lambda h: h.register_hook(lambda g: None)])
@pytest.mark.parametrize("name", [*RESULTS, "stored"])
def test_who_listens_to_a_result_that_another_one_is_computed_from(name, listen, backward):
    """The gradient of that one does not come by the result: it was a part of it that was heard of."""
    stores = _Stores()
    call = fg.jit(RESULTS.get(name, lambda x: stores(x)), backend="aten")
    found = call(torch.randn(4))
    h, loss = (stores.h, found) if name == "stored" else found
    listen(h)
    with pytest.raises(fg.ResultError, match="does not go through it"):
        backward(loss)
    h, loss = call(torch.randn(4)) if name != "stored" else (None, call(torch.randn(4)))
    backward(loss)  # nobody listens


INDEPENDENT = {
    "the result itself": (lambda x: ((h := (x @ W).tanh()), h.sin().sum()), False),
    "computed twice": (lambda x: ((x @ W).tanh(), (x @ W).tanh().sin().sum()), True),
    "another part": (lambda x: ((p := (x @ W).tanh().unbind())[0] * 1, p[1].sin().sum()), True),
    "a view": (lambda x: ((h := (x @ W).tanh()), h[:2]), True),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_who_listens_to_a_result_hears_of_its_gradient(name):
    f, of_both = INDEPENDENT[name]
    x, heard = torch.randn(4), []
    for call in (f, fg.jit(f, backend="aten")):
        h, other = call(x)
        h.retain_grad()
        (h.sum() + (other.sum() if of_both else 0)).backward()
        heard.append(h.grad)
    torch.testing.assert_close(*heard)
