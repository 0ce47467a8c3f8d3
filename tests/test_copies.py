"""Transforms as decorators with options, and copies of what they return: ``copy``, ``deepcopy``, ``pickle``, another
process."""

import copy
import multiprocessing
import pickle

import pytest
import torch

import funcgrad as fg

X = torch.arange(3.0)

# a decorated method, of its own module
pytestmark = pytest.mark.filterwarnings("ignore::funcgrad.UnresolvedCaptureWarning")


def double(x):
    return x * 2


@fg.jit(backend="aten")
def square(x):
    return x * x


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.step = fg.jit(self._step, backend="aten")

    def _step(self, x):
        return self.linear(x)

    @fg.jit(backend="aten")
    def decorated(self, x):
        return self.linear(x).sum()


# ── decorators ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_transform_takes_its_options_first():
    def f(x, y):
        return (x * y**2).sum()

    def aux(x, y):
        return f(x, y), y

    y = torch.randn(3)
    assert torch.equal(fg.grad_compiled(argnums=1)(f)(X, y), 2 * X * y)
    value, grads = fg.value_and_grad_compiled(has_aux=True, backend="aten")(aux)(X, y)
    assert torch.equal(value[1], y) and torch.equal(grads, y**2)
    grads, value = fg.grad_and_value_compiled(argnums=(0, 1))(f)(X, y)
    assert torch.equal(grads[1], 2 * X * y) and torch.allclose(value, f(X, y))
    compiled = fg.jit(backend="aten", dynamic=True)(f)
    assert torch.equal(compiled(X, y), f(X, y)) and compiled.__name__ == "f"
    assert compiled.program(X, y).joint.sizes is not None

    @fg.checkpoint(policy="nothing_saveable")
    def region(x):
        return x.sin()

    assert torch.allclose(fg.grad_compiled(lambda x: region(x).sum())(X), X.cos())


class Decorated:
    factor = 3.0

    @fg.jit(backend="aten")
    @staticmethod
    def static(x):
        return x * 3

    @fg.grad_compiled(backend="aten")
    @staticmethod
    def gradient(x):
        return (x * 3).sum()

    @fg.jit(backend="aten")
    @classmethod
    def of_class(cls, x):
        return x * cls.factor

    @fg.checkpoint
    @staticmethod
    def region(x):
        return x * 3


@pytest.mark.parametrize("on", [Decorated, Decorated()])
def test_above_a_static_or_a_class_method(on):
    """It took the instance for the first argument."""
    for name in ("static", "of_class", "region"):
        assert torch.equal(getattr(on, name)(X), X * 3)
    assert torch.equal(on.gradient(X), torch.full_like(X, 3))
    assert on.static.cache_info().misses >= 1


def test_above_a_property_is_refused():
    with pytest.raises(fg.ArgumentError, match="write @property above"):
        fg.jit(property(lambda self: 1))


@pytest.mark.parametrize(
    "transform", [fg.jit, fg.grad_compiled, fg.value_and_grad_compiled, fg.grad_and_value_compiled, fg.checkpoint]
)
def test_what_is_decorated_must_be_a_function(transform):
    for wrong in (None, 3):
        with pytest.raises(fg.ArgumentError, match="must be a function"):
            transform(wrong)
        with pytest.raises(fg.ArgumentError, match="must be a function"):
            transform()(wrong)


def test_wrong_options_are_told_where_they_are_said():
    with pytest.raises(fg.OptionError, match="dynamik"):
        fg.jit(dynamik=True)
    with pytest.raises(fg.ArgumentError, match="argnums"):
        fg.grad_compiled(argnums="x")


# ── copies ───────────────────────────────────────────────────────────────────────────────────────────────────────

COPIES = {"copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": lambda value: pickle.loads(pickle.dumps(value))}
ALL = pytest.mark.parametrize("duplicate", COPIES.values(), ids=COPIES)


@ALL
def test_a_copy_has_the_definition_and_the_options_and_no_programs(duplicate):
    c = fg.grad_compiled(lambda x: x.sum()) if duplicate is not COPIES["pickle"] else fg.jit(double, backend="aten")
    c(X)
    other = duplicate(c)
    assert other is not c and other.__name__ == c.__name__ and repr(other) == repr(c)
    assert (other.cache_info().currsize, c.cache_info().currsize) == (0, 1)
    assert torch.equal(other(X), c(X)) and other._options == c._options


def test_what_is_known_by_name_is_pickled_by_name():
    assert pickle.loads(pickle.dumps(square)) is square
    assert pickle.loads(pickle.dumps(Model.decorated)) is Model.decorated
    model = Model()
    bound = pickle.loads(pickle.dumps(model.decorated))
    assert torch.equal(bound(X), model.decorated(X)) and bound.__func__ is Model.decorated


@pytest.mark.parametrize("duplicate", [COPIES["deepcopy"], COPIES["pickle"]], ids=["deepcopy", "pickle"])
def test_a_module_that_holds_one(duplicate):
    model = Model()
    model.step(X), model.decorated(X)
    other = duplicate(model)
    with torch.no_grad():
        other.linear.weight.zero_()
    assert torch.equal(other.step(X), other.linear.bias)
    assert torch.equal(other.decorated(X), other.linear.bias.sum())
    assert torch.equal(model.step(X), model._step(X))


def test_a_deep_copy_of_a_bound_method_is_bound_to_a_copy():
    model = Model()
    other = copy.deepcopy(model.decorated)
    assert other.__self__ is not model and torch.equal(other(X), model.decorated(X))
    assert copy.copy(model.decorated).__self__ is model


def test_what_pickle_refuses_it_refuses_itself():
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda"):
        pickle.dumps(fg.jit(lambda x: x))


def test_in_another_process():
    functions = (fg.jit(double, backend="aten"), square)
    functions[0](X)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = [pool.apply_async(c, (X,)) for c in functions]
        assert [r.get(120).tolist() for r in results] == [[0.0, 2.0, 4.0], [0.0, 1.0, 4.0]]


def test_a_bound_method_answers_as_the_function_and_is_one_with_another_of_its_instance():
    model = Model()
    method = model.decorated
    method(X)
    assert method.cache_info() == Model.decorated.cache_info()
    assert method.program(X) is Model.decorated.program(model, X)
    assert method.lower(X).compile() is method.program(X) and "fits" in method.explain_miss(X)
    assert method == model.decorated and hash(method) == hash(model.decorated)
    assert method != Model().decorated and method != Model.decorated and len({method, model.decorated}) == 1
    fg.vjp_compiled(method, X, backend="aten")
    with fg.no_retrace():  # what is compiled of it is kept for the method, not for one access
        _, pull = fg.vjp_compiled(model.decorated, X, backend="aten")
    assert torch.allclose(pull(torch.tensor(1.0))[0], model.linear.weight.sum(0))


# ── transforms with options, which are no functions of a module ──────────────────────────────────────────────────


def squares(x):
    return (x * x).sum()


@fg.custom_vjp
def doubled(x):
    return x * 2


doubled.defvjp(lambda x: (x * 2, ()), lambda residuals, g: (g * 5,))


@fg.checkpoint
def region(x):
    return x.sin()


@fg.opaque(like=X)
def shown(x):
    return x.cos()


PICKLED = {
    "custom_vjp by name": lambda: doubled,
    "checkpoint by name": lambda: region,
    "opaque by name": lambda: shown,
    "vmap": lambda: fg.vmap_compiled(double, in_dims=0, chunk_size=2, backend="aten"),
    "vmap as memory allows": lambda: fg.vmap_compiled(double, chunk_size="auto", backend="aten"),
    "jacrev": lambda: fg.jacrev_compiled(squares, backend="aten"),
    "jacfwd": lambda: fg.jacfwd_compiled(squares, backend="aten"),
    "hessian": lambda: fg.hessian_compiled(squares, backend="aten"),
    "checkpoint": lambda: fg.checkpoint(squares, policy="dots_saveable"),
    "opaque": lambda: fg.opaque(double, like=X),
}


@pytest.mark.parametrize("name", PICKLED)
def test_what_a_transform_returns_is_pickled(name):
    made = PICKLED[name]()
    assert torch.equal(pickle.loads(pickle.dumps(made))(X), made(X))


def test_a_deep_copy_of_a_vmap_as_memory_allows_has_a_module_of_its_own():
    model = Model()
    mapped = fg.vmap_compiled(model._step, chunk_size="auto", backend="aten")
    other = copy.deepcopy(mapped)
    with torch.no_grad():
        model.linear.weight.zero_()
    assert not torch.equal(other(X[None]), mapped(X[None]))


def test_a_deep_copy_of_a_module_recomputes_with_its_own_parameters():
    model = Model()
    model.step = fg.checkpoint(model._step)
    other = copy.deepcopy(model)
    with torch.no_grad():
        model.linear.weight.zero_()
    assert not torch.equal(other.step(X), model.step(X))
