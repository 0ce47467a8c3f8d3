"""What a tensor answers about itself inside a compiled function: as in eager PyTorch, or part of the key, or refused
by name."""

import contextlib
import copy
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import funcgrad as fg

QUESTIONS = {
    "is a parameter": lambda t: isinstance(t, nn.Parameter),
    "is a buffer": lambda t: isinstance(t, nn.Buffer),
    "is a tensor": lambda t: (isinstance(t, torch.Tensor), torch.is_tensor(t), issubclass(type(t), torch.Tensor)),
    "is a float tensor": lambda t: (isinstance(t, torch.FloatTensor), t.type()),
    "is a leaf": lambda t: t.is_leaf,
    "has a history": lambda t: (t.grad_fn is None, t.grad_fn and t.grad_fn.name()),
    "requires grad": lambda t: t.requires_grad,
    "retains grad": lambda t: t.retains_grad,
    "gradient": lambda t: t.grad is None if t.is_leaf else None,
    "offset": lambda t: t.storage_offset(),
    "layout in memory": lambda t: (t.stride(), t.is_contiguous(), t.dim_order(), t.layout),
    "inference": lambda t: t.is_inference(),
    "shared": lambda t: (t.is_shared(), t.is_pinned()),
    "output number": lambda t: t.output_nr,
    "base": lambda t: t._base is None,
    "view": lambda t: t._is_view(),
    "bytes": lambda t: (t.element_size(), t.nbytes, t.numel(), len(t)),
    "kind": lambda t: (
        t.device,
        t.dtype,
        t.is_cpu,
        t.is_meta,
        t.is_sparse,
        t.is_quantized,
        t.is_nested,
        t.is_neg(),
        t.is_conj(),
    ),
    "identity": lambda t: (t is t, hash(t) == hash(t), {t: 1}[t], weakref.ref(t)() is t, id(t) == id(t)),
    "attributes": lambda t: (getattr(t, "tag", None), hasattr(t, "tag"), hasattr(t, "other")),
}


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self.weight.tag = "decay"
        self.own = nn.Buffer(torch.ones(3))
        self.register_buffer("other", torch.ones(3))


MODULE = Module()
CAPTURED = torch.ones(3)
CAPTURED_VIEW = torch.ones(10)[4:7]


def arguments():
    parameter = nn.Parameter(torch.ones(3))
    parameter.tag = 1
    leaf = torch.ones(3, requires_grad=True)
    computed = leaf * 2
    return {
        "plain": torch.ones(3),
        "parameter": parameter,
        "leaf": leaf,
        "computed": computed,
        "view": torch.ones(10)[2:5],
        "transposed": torch.ones(3, 2).t()[0],
        "view of a leaf": torch.ones(10, requires_grad=True)[2:5],
        "second of two": (leaf * 3).repeat(2).split(3)[1],
        "buffer": nn.Buffer(torch.ones(3)),
    }


def asked_of(tensors):
    """All tensors there are in a function: what it was given, captured, makes, and views of these."""
    weight = MODULE.weight
    known = {
        **tensors,
        "captured": CAPTURED,
        "captured view": CAPTURED_VIEW,
        "weight": weight,
        "own": MODULE.own,
        "other": MODULE.other,
    }
    plain, leaf = tensors["plain"], tensors["leaf"]
    made = {
        "sum": plain + 1,
        "tracked": leaf * 2,
        "row": (leaf * 2)[None],
        "detached": weight.detach(),
        "new": nn.Parameter(torch.ones(3)),
    }
    views = {f"{name}[1:]": t[1:] for name, t in known.items()}
    return known | made | views


@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("grad", [True, False])
def test_tensors_answer_as_in_eager(question, grad):
    answers = []

    def function(tensors):
        answers.append({name: QUESTIONS[question](t) for name, t in asked_of(tensors).items()})
        return sum(t.sum() for t in tensors.values())

    given = [arguments() for _ in range(3)]
    compiled = fg.jit(function, backend="aten")
    with torch.set_grad_enabled(grad):
        function(given[0])
        compiled(given[1])
        compiled(given[2])
    expected, *found = answers
    assert len(found) == 2  # the dry run and the recorded one
    different = {
        name: (expected[name], [a[name] for a in found])
        for name in expected
        if any(a[name] != expected[name] for a in found)
    }
    assert not {
        name: v for name, v in different.items() if not (question in ("base", "view") and name.endswith("[1:]"))
    }
    assert not different


def tagged(tag):
    x = torch.ones(3)
    x.tag = tag
    return x


SEVERAL = {
    "is a leaf": [torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True) * 1],
    "is a parameter": [torch.ones(3, requires_grad=True), nn.Parameter(torch.ones(3))],
    "is a buffer": [torch.ones(3), nn.Buffer(torch.ones(3))],
    "offset": [torch.ones(3), torch.ones(9)[2:5], torch.ones(9)[4:7]],
    "view": [torch.ones(3), torch.ones(9)[2:5]],
    "base": [torch.ones(3), torch.ones(9)[2:5]],
    "output number": [torch.ones(6, requires_grad=True).split(3)[0], torch.ones(6, requires_grad=True).split(3)[1]],
    "attributes": [torch.ones(3), tagged(1), tagged(2), tagged("a")],
}


@pytest.mark.parametrize("question", SEVERAL)
def test_another_answer_is_another_program(question):
    def function(x):
        return x * {str(QUESTIONS[question](t)): n for n, t in enumerate(SEVERAL[question], 2)}.get(
            str(QUESTIONS[question](x)), 1
        )

    ask = QUESTIONS[question]
    factors = {str(ask(t)): float(n) for n, t in enumerate(SEVERAL[question], 2)}
    compiled = fg.jit(lambda x: x * factors[str(ask(x))], backend="aten")
    for x in [*SEVERAL[question], *SEVERAL[question]]:
        torch.testing.assert_close(compiled(x), x * factors[str(ask(x))])
    assert compiled.cache_info().currsize == len(SEVERAL[question])
    compiled = fg.jit(lambda x: x * 2, backend="aten")
    for x in SEVERAL[question]:
        compiled(x)
    assert compiled.cache_info().currsize <= 2, "what is not asked is not part of the key"


def test_an_offset_of_a_view_goes_by_that_of_the_argument():
    compiled = fg.jit(lambda x: x * x[1:].storage_offset(), backend="aten")
    for x in (torch.ones(3), torch.ones(9)[4:7], torch.ones(3)):
        torch.testing.assert_close(compiled(x), x * x[1:].storage_offset())


@pytest.mark.parametrize("name", ["tag", "other"])
def test_attributes_of_captured_tensors_are_watched(name):
    w = torch.ones(3)
    w.tag = 2.0
    compiled = fg.jit(lambda x: x * w * getattr(w, name, 7.0), backend="aten")
    for value in (2.0, 3.0, 3.0, 4.0):
        setattr(w, name, value)
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3) * value)
    delattr(w, name)
    torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3) * 7)


def test_a_second_derivative_hears_what_the_first_run_heard():
    def function(x):
        return x * x * x * (2 if x.is_leaf else 3) * (5 if isinstance(x, nn.Parameter) else 7)

    def third(f):
        x = nn.Parameter(torch.tensor([1.0, 2.0]))
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (h,) = torch.autograd.grad(g.sum(), x, create_graph=True)
        return h

    torch.testing.assert_close(third(fg.jit(function)), third(function))


UNKNOWABLE = {
    "data_ptr": lambda x: x * (x.data_ptr() % 2),
    "_version": lambda x: x * x._version,
    "copied by the copy module": lambda x: copy.copy(x) * 2,
    "deep copy": lambda x: copy.deepcopy(x) * 2,
    "_base": lambda x: x._base * 2,
}


@pytest.mark.parametrize("n", [4, 5])
def test_version_counters_of_what_the_function_made(n):
    """As in eager PyTorch, views and what is detached too: augmentations of ``kornia`` keep them."""

    def f(x):
        y = x.clone()
        versions = [y._version]
        y.add_(1)
        y[1:].mul_(2)
        z = torch.rand(3)
        z[0] = 1
        w = z.view(3, 1).t()
        w.copy_(w + 1)
        versions += [t._version for t in (y, y[1:], y.detach(), y.data, y.exp(), z, w)]
        return y * sum(10.0**i * v for i, v in enumerate(versions)), versions

    x = torch.arange(float(n), requires_grad=n == 5)
    compiled = fg.jit(f)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), f(x))


def with_gradient():
    x = torch.ones(3, requires_grad=True)
    x.sum().backward()
    return x


COPIED = {
    "an argument": (lambda x: copy.deepcopy(x) * 2, lambda: torch.arange(3.0)),
    "a leaf": (lambda x: (copy.deepcopy(x) * 2, x * 3), lambda: torch.arange(3.0, requires_grad=True)),
    "a parameter": (lambda x: copy.deepcopy(x) * 2, lambda: nn.Parameter(torch.arange(3.0))),
    "what is computed": (lambda x: copy.deepcopy(x * 2), lambda: torch.arange(3.0)),
    "what is no leaf": (lambda x: copy.deepcopy(x * 2), lambda: torch.arange(3.0, requires_grad=True)),
    "an input that is no leaf": (lambda x: copy.deepcopy(x), lambda: torch.arange(3.0, requires_grad=True) * 2),
    "written to": (lambda x: (copy.deepcopy(x).add_(1), x.mul_(2), copy.deepcopy(x)), lambda: torch.arange(3.0)),
    "one object twice": (lambda x: [t.add_(1) for t in copy.deepcopy([x, x, {"a": x}])[:2]], lambda: torch.ones(3)),
    "transposed": (lambda x: copy.deepcopy(x.clone()), lambda: torch.arange(6.0).view(2, 3).t()),
}


@pytest.mark.parametrize("mode", [contextlib.nullcontext, torch.no_grad])
@pytest.mark.parametrize("what", COPIED)
def test_deep_copies(what, mode):
    """They were refused."""
    f, make = COPIED[what]
    compiled = fg.jit(f, backend="aten")

    def seen(called):
        x = make()
        with mode():
            try:
                out = called(x)
            except RuntimeError as error:
                return str(error)
        outs = out if isinstance(out, (tuple, list)) else (out,)
        looks = [(t.tolist(), t.stride(), t.requires_grad, t.is_leaf, t.data_ptr() == x.data_ptr()) for t in outs]
        if outs[0].requires_grad and x.is_leaf:
            sum(t.sum() for t in outs).backward()
        return looks, x.grad, x.tolist()

    assert str(seen(compiled)) == str(seen(compiled)) == str(seen(f))


SHARING = {
    "a gradient": (lambda x: copy.deepcopy(x) * 2, with_gradient),
    "a view": (lambda x: copy.deepcopy([x, x[1:]])[1], lambda: torch.ones(3)),
    "its memory": (lambda x: copy.deepcopy([x, x.data])[1], lambda: torch.ones(3)),
    "an expanded tensor": (lambda x: copy.deepcopy(x), lambda: torch.ones(1).expand(3)),
}


@pytest.mark.parametrize("what", SHARING)
def test_deep_copies_of_more_than_values_are_refused(what):
    f, make = SHARING[what]
    with pytest.raises(fg.UnsupportedTensorError, match="deep copy"):
        fg.jit(f, backend="aten")(make())


@pytest.mark.parametrize("what", UNKNOWABLE)
def test_what_cannot_be_known_is_refused(what):
    with pytest.raises(fg.UnsupportedTensorError, match=what):
        fg.jit(UNKNOWABLE[what])(torch.ones(9)[2:5])


def test_an_attribute_set_of_an_argument_is_refused():
    def function(x):
        x.tag = 3
        return x * 2

    with pytest.raises(fg.MutationError, match=r"x\.tag"):
        fg.jit(function)(torch.ones(3))


# ── parameters and attributes in results ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("grad", [True, False])
def test_parameters_come_back_as_parameters(grad):
    outside = nn.Parameter(torch.ones(2))

    def function(p, x):
        made = nn.Parameter(x * 2)
        return (
            p,
            outside,
            made,
            [made],
            nn.Parameter(torch.zeros(3), requires_grad=False),
            nn.Parameter(p),
            nn.Parameter(x),
            x * 2,
        )

    def look(results, p, x):
        flat = [*results[:3], *results[3], *results[4:]]
        kinds = [(type(t), t.requires_grad, t.is_leaf, t.tolist()) for t in flat]
        where = [[t is o for o in (p, outside, *flat)] + [t.data_ptr() == o.data_ptr() for o in (p, x)] for t in flat]
        return kinds, where

    p, x = nn.Parameter(torch.ones(2)), torch.tensor([1.0, 2.0])
    with torch.set_grad_enabled(grad):
        compiled = fg.jit(function, backend="aten")
        for _ in range(2):
            assert look(compiled(p, x), p, x) == look(function(p, x), p, x)


def test_a_made_tensor_keeps_what_the_function_gave_it():
    def function(x):
        y = x * 2
        y.scale, y.name_of_it = 2, "y"
        return y, nn.Buffer(x + 1)

    compiled = fg.jit(function)
    for _ in range(2):
        y, buffer = compiled(torch.ones(3))
        assert (y.scale, y.name_of_it) == (2, "y")
        assert isinstance(buffer, nn.Buffer)
        assert buffer.persistent


def test_a_tensor_hidden_in_an_attribute_is_refused():
    def function(x):
        y = x * 2
        y.source = x + 1
        return y

    with pytest.raises(fg.ResultError, match=r"result\.source"):
        fg.jit(function)(torch.ones(3))


class Held:
    """Tensors of Python state."""

    def __init__(self):
        self.h, self.w, self.all = torch.zeros(3), torch.full((3,), 0.5), [torch.ones(3), torch.ones(3)]


def _stores_and_compares(held, x):
    held.w = x
    return x * (2 if held.h is held.w else 3)


def _finds(held, x):
    at = next((i for i, t in enumerate(held.all) if t is x), None)
    return x * 2 if at is None else x * at


def _writes(held, x):
    if x is held.h:
        x.mul_(2)
    return x.view(-1), x is held.h


def _differentiates(held, x):
    (x * x).sum().backward()
    return x.grad * (2 if x is held.h else 3)


@pytest.mark.parametrize("function", [_stores_and_compares, _finds, _writes, _differentiates])
@pytest.mark.parametrize("backend", ["aten", "c"])
def test_an_argument_is_the_tensor_that_python_state_holds(function, backend):
    """Whether it is, or comes to be, or ceases to be."""
    results = []
    for transform in (lambda f: f, lambda f: fg.jit(f, backend=backend)):
        held, own = Held(), []
        leaf = function is _differentiates
        a, b = torch.ones(3, requires_grad=leaf), torch.full((3,), 3.0, requires_grad=leaf)
        call = transform(lambda x, held=held: function(held, x))
        for change in (
            lambda: None,
            lambda held=held: setattr(held, "h", held.w),
            lambda held=held, a=a: setattr(held, "h", a),
            lambda held=held, a=a: held.all.__setitem__(1, a),
            lambda held=held, b=b: setattr(held, "h", b),
            lambda held=held, a=a: held.all.reverse(),
        ):
            change()
            for x in (a, b, a):
                result = call(x)
                own.append(str((result, a, b, held.h is x, held.w is x, x.grad)))
        results.append(own)
    assert results[0] == results[1]


def test_an_argument_of_torch_func_is_none_that_python_state_holds():
    held = torch.ones(3)
    f = lambda x: (x * (2 if x is held else 3)).sum()  # noqa: E731
    assert torch.equal(fg.grad_compiled(f)(held), torch.func.grad(f)(held))
    assert torch.equal(fg.vmap_compiled(f)(held), torch.func.vmap(f)(held))


HELD = Held()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * 2 if x is HELD.w else x * HELD.w.sum(),
        lambda x: (HELD.w * 1 + x) * (2 if x is HELD.w else 3),
    ],
    ids=["what it holds", "both"],
)
def test_an_argument_is_itself_where_the_function_computes_with_what_is_held(function):
    compiled, other = fg.jit(function), torch.ones(3)
    HELD.w = torch.arange(3.0)
    for x in (HELD.w, other, HELD.w):
        torch.testing.assert_close(compiled(x), function(x))


def test_the_arguments_of_a_function_that_is_mapped_are_none_that_state_holds():
    def function(x):
        return x * 2 if x is HELD.w else x * 3

    HELD.w = torch.arange(3.0)
    torch.testing.assert_close(torch.vmap(fg.jit(function))(HELD.w), HELD.w * 3)
    torch.testing.assert_close(fg.vmap_compiled(function)(HELD.w), HELD.w * 3)


WEIGHT = torch.randn(7, 3, requires_grad=True)
GIVEN_TWICE = {
    "labels are what is read": (
        lambda ids, labels: F.cross_entropy(WEIGHT[ids[:-1]], labels[1:] % 3),
        lambda n: torch.randint(7, (n,)),
    ),
    "it is written to through both": (
        lambda x, y: (x.mul_(2), y.add_(1), (x + y) * WEIGHT.sum())[-1],
        lambda n: torch.randn(n, 2),
    ),
    "a leaf": (lambda x, y: (x * y.sin() * WEIGHT.sum()).sum(0), lambda n: torch.randn(n, 2, requires_grad=True)),
    "a view, of which a view is returned": (lambda x, y: (x * 2, y.t()), lambda n: torch.randn(n + 1, 2)[1:]),
    "one of them is captured": (lambda x, y: x * CAPTURED.sum() + CAPTURED, lambda n: torch.randn(n, 2)),
}


@pytest.mark.parametrize("name", GIVEN_TWICE)
def test_two_programs_serve_all_sizes_of_a_tensor_that_is_given_twice(name, monkeypatch):
    function, make = GIVEN_TWICE[name]
    compiled, found = fg.jit(function, backend="aten"), {function: [], fg.jit: []}
    for n in (4, 5, 6, 8):
        for key, f in ((function, function), (fg.jit, compiled)):
            torch.manual_seed(n)
            x = make(n)
            monkeypatch.setitem(globals(), "CAPTURED", x)
            WEIGHT.grad = None
            result = f(x, x)
            loss = sum(r.sum() for r in result) if isinstance(result, tuple) else result.sum()
            if loss.requires_grad:
                loss.backward()
            found[key].append((result, x.detach(), x.grad, WEIGHT.grad))
    torch.testing.assert_close(found[fg.jit], found[function])
    assert compiled.cache_info().misses == 2


def test_another_tensor_than_the_one_given_twice_is_another_program():
    compiled = fg.jit(lambda x, y: x + y, backend="aten")
    for n in (3, 4):
        compiled(x := torch.randn(n), x)
    x, y = torch.randn(5), torch.randn(5)
    assert "aliasing" in compiled.explain_miss(x, y)
    torch.testing.assert_close(compiled(x, y), x + y)
    assert compiled.cache_info().misses == 3


def test_what_is_not_quantised_is_itself_dequantised():
    def f(x):
        return torch.dequantize(x).mul_(2), x.dequantize() is x, x.double().dequantize()

    x, y = torch.ones(3), torch.ones(3)
    expected, found = f(x), fg.jit(f)(y)
    assert found[0] is y and found[1] is expected[1] is True and found[2].dtype is torch.float32
    assert torch.equal(x, y)
