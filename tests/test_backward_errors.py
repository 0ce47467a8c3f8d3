"""What the caller's Python raises in a backward pass comes out of that pass, not of the call; and what it has done
before stays done, as in eager PyTorch. (But for gradients of leaves that are reached before: a compiled function is one
node of autograd, which gives all or none.)"""

from __future__ import annotations

import contextlib
import gc
import io
import logging
import traceback
import warnings
import weakref

import pytest
import torch

import funcgrad as fg


class OwnError(Exception):
    def __init__(self, said, number):
        super().__init__(said, number)
        self.number = number


class State:
    strict, n = True, 0
    log: list[int] = []  # noqa: RUF012
    kept = None


@pytest.fixture(autouse=True)
def state_as_it_was():
    State.strict, State.n, State.log, State.kept = True, 0, [], None


def custom(body):
    class Custom(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return body(g)

    return lambda w, v: Custom.apply(w).sum() * v.sum()


def hooked(body):
    def f(w, v):
        y = w * 2
        y.register_hook(body)
        return y.sum() * v.sum()

    return f


def module(body):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return x * 2

    twice = Twice()
    twice.register_full_backward_hook(lambda m, inputs, outputs: (body(outputs[0]),))
    return lambda w, v: twice(w).sum() * v.sum()


def raises(kind):
    def body(g):
        raise kind("no", 3)

    return body


def on_data(g):
    if (g > 5).any():
        raise OwnError("large", g.max().item())
    return g * 1


def on_state(g):
    if State.strict:
        raise KeyError(f"strict {State.n}")
    return g * 1


def counts(g):
    State.n += 1
    if State.n > 1:
        raise ValueError(f"the pass {State.n}")
    return g * 1


def logs(g):
    State.log.append(len(State.log))
    print("logged")
    raise ValueError(f"{State.log}")


def own_error_on_its_way(g):
    try:
        raise ValueError
    except ValueError:
        return g * 3


BODIES = on_data, on_state, counts, logs, own_error_on_its_way


def passes(f, create_graph=False):
    """What five calls and their backward passes do; before the fourth, Python state changes."""
    happened, printed = [], io.StringIO()
    with contextlib.redirect_stdout(printed):
        for i, scale in enumerate((1.0, 1.0, 10.0, 1.0, 10.0)):
            w, v = torch.ones(3, requires_grad=True), torch.full((3,), scale, requires_grad=True)
            loss = f(w, v)
            State.strict = i < 3
            try:
                loss.backward(create_graph=create_graph)
                happened.append("none raised")
            except Exception as error:
                lines = [f.name for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__]
                happened.append((type(error), error.args, getattr(error, "number", None), lines))
            happened.append((w.grad, State.n, list(State.log)))
            w.grad = v.grad = None
    return happened, printed.getvalue()


@pytest.mark.parametrize("create_graph", [False, pytest.param(True, marks=pytest.mark.filterwarnings("ignore:Using"))])
@pytest.mark.parametrize("body", BODIES)
@pytest.mark.parametrize("make", [custom, hooked, module])
def test_raises_in_the_pass_what_eager_raises_there(make, body, create_graph):
    expected = passes(make(body), create_graph)
    State.n, State.log = 0, []
    assert_same(passes(fg.jit(make(body)), create_graph), expected)


@pytest.mark.parametrize("kind", [ValueError, KeyError, AssertionError, StopIteration, RuntimeError, OwnError])
@pytest.mark.parametrize("make", [custom, hooked, module])
def test_raises_errors_of_any_class(make, kind):
    assert_same(passes(fg.jit(make(raises(kind)))), passes(make(raises(kind))))


def assert_same(found, expected):
    assert repr(found) == repr(expected)


@pytest.mark.parametrize("make", [custom, hooked, module])
def test_a_gradient_raises_in_its_call(make):
    f = fg.grad_compiled(make(raises(OwnError)), argnums=(0, 1))
    for _ in range(2):
        with pytest.raises(OwnError, match="no"):
            f(torch.ones(3), torch.ones(3))


def test_what_cannot_be_differentiated_can_be_called_without_gradients():
    f = fg.jit(custom(raises(KeyError)))
    with torch.no_grad():
        assert f(torch.ones(3), torch.ones(3)) == 18
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(KeyError):
        f(w, torch.ones(3)).backward()
    assert w.grad is None


def test_each_pass_raises_an_error_of_its_own():
    f = fg.jit(hooked(raises(ValueError)))
    w = torch.ones(3, requires_grad=True)
    found = []
    for _ in range(2):
        with pytest.raises(ValueError, match="no") as raised:
            f(w, w).backward()
        found.append(raised.value)
    assert found[0] is not found[1]


def test_errors_keep_nothing_of_a_trace_alive():
    class Large:
        pass

    seen = []

    def body(g):
        large = Large()
        seen.append(weakref.ref(large))
        raise ValueError("no")

    f = fg.jit(custom(body))
    w = torch.ones(3, requires_grad=True)
    with pytest.raises(ValueError, match="no"):
        f(w, w).backward()
    gc.collect()
    assert seen
    assert not [ref for ref in seen if ref() is not None]


def test_results_that_do_not_lead_there_are_differentiated():
    def f(w, v):
        return custom(raises(ValueError))(w, v), (v * 3).sum()

    w, v = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    bad, good = fg.jit(f)(w, v)
    good.backward(retain_graph=True)
    assert v.grad.tolist() == [3, 3, 3]
    with pytest.raises(ValueError, match="no"):
        bad.backward()


def test_a_second_derivative_raises_in_its_pass():
    class Once(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        def backward(ctx, g):
            return Twice.apply(*ctx.saved_tensors) * g

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 3 * x**2

        @staticmethod
        def backward(ctx, g):
            raise OwnError("no second derivative", 2)

    x = torch.ones(3, requires_grad=True)
    loss = fg.jit(lambda x: Once.apply(x).sum())(x)
    (g,) = torch.autograd.grad(loss, x, create_graph=True)
    assert g.tolist() == [3, 3, 3]
    with pytest.raises(OwnError, match="no second derivative"):
        g.sum().backward()


LOGGER = logging.getLogger(__name__)


def warns(g):
    warnings.warn("careful", UserWarning, stacklevel=1)
    return g * 3


def warns_on_data(g):
    if g.sum() > 0:
        warnings.warn("above zero", UserWarning, stacklevel=1)
    return g * 3


def prints_and_logs(g):
    print("passed")
    LOGGER.warning("passed %d times", 3)
    return g * 3


def said_in_passes(f, caplog):
    """What is said in the call, and in two passes; in the third of four calls, warnings are errors."""
    found, printed = [], io.StringIO()
    with contextlib.redirect_stdout(printed):
        for i in range(4):
            w, v = torch.ones(3, requires_grad=True), torch.ones(3)
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("error" if i == 2 else "always")
                loss = f(w, v)
                said = [len(given), printed.tell(), len(caplog.messages)]
                try:
                    loss.backward(retain_graph=True)
                    loss.backward()
                except UserWarning as error:
                    said.append(str(error))
            found += [said, [(str(w.message), w.lineno) for w in given], w.grad, list(caplog.messages)]
            caplog.clear()
    return found, printed.getvalue()


@pytest.mark.parametrize("body", [warns, warns_on_data, prints_and_logs])
@pytest.mark.parametrize("make", [custom, hooked, module])
def test_what_a_pass_says_it_says_each_time_it_runs(make, body, caplog):
    expected = said_in_passes(make(body), caplog)
    assert_same(said_in_passes(fg.jit(make(body)), caplog), expected)
