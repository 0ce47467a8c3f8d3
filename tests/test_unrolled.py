"""The hint that a Python loop was unrolled: only where a body is repeated of what it made before."""

import warnings

import pytest
import torch

import funcgrad as fg

X = torch.randn(3, 3)
WEIGHTS = [torch.randn(3, 3) for _ in range(80)]


def looped(x, steps):
    for _ in range(steps):
        y = x @ X
        x = torch.tanh(y)
    return x


def quiet(f, *args):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return fg.jit(f, backend="aten")(*args)


def test_a_long_loop_is_named_once_with_its_line_and_the_fix():
    with pytest.warns(fg.UnrolledLoopWarning) as found:
        fg.jit(lambda x: looped(x, 51), backend="aten")(X)
    (one,) = found
    text = str(one.message)
    assert "test_unrolled.py" in text and "in looped is traced 51 times" in text and "scan(" in text
    assert "aten.mm" in text and "aten.tanh" in text


def test_in_a_gradient_it_is_said_of_the_loop_not_of_its_backward_pass():
    with pytest.warns(fg.UnrolledLoopWarning) as found:
        fg.grad_compiled(lambda x: looped(x, 51).sum(), backend="aten")(X)
    assert len(found) == 1


def test_it_is_not_said_of_fewer_steps():
    quiet(lambda x: looped(x, 50), X)


def test_it_is_not_said_of_many_tensors_that_are_treated_alike():
    quiet(lambda x: sum((x @ w).tanh().sum() for w in WEIGHTS), X)
    quiet(lambda x: [(x @ w).tanh() for w in WEIGHTS], X)


def test_it_is_not_said_of_a_deep_model():
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 12, enable_nested_tensor=False)
    quiet(lambda x: model(x), torch.randn(2, 4, 8))
