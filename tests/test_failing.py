"""What a program raises when it runs: PyTorch's error, with what eager PyTorch has written and drawn by then."""

import pytest
import torch

import funcgrad as fg


class State:
    calls = 0


def draws(x, w):
    w.add_(1)
    return torch.multinomial(x, 2)


def factors(x, w):
    w.add_(1)
    factor = torch.linalg.cholesky(x)
    w.add_(1)
    return factor


def counts(x, w):
    State.calls += 1
    w.mul_(3)
    return torch.linalg.inv(x)


def draws_first(x, w):
    w += torch.rand(3)
    return torch.linalg.cholesky(x) * torch.rand(2, 2)


def takes(x, w):
    w.mul_(3)
    return w[x.long()]


def only_draws(x, w):
    return torch.rand(2, 2) @ torch.linalg.cholesky(x) + torch.rand(2, 2)


CASES = {
    draws: (torch.ones(3), -torch.ones(3)),
    factors: (torch.eye(2), -torch.eye(2)),
    counts: (torch.eye(2), torch.zeros(2, 2)),
    draws_first: (torch.eye(2), -torch.eye(2)),
    takes: (torch.zeros(2), torch.full((2,), 7.0)),
    only_draws: (torch.eye(2), -torch.eye(2)),
}


def _run(f, inputs):
    State.calls, w, seen = 0, torch.ones(3), []
    torch.manual_seed(0)
    for x in inputs:
        try:
            seen.append(f(x, w).tolist())
        except Exception as error:
            seen.append(type(error))
        seen += [w.tolist(), State.calls, torch.get_rng_state().tolist()]
    return seen


@pytest.mark.parametrize("order", ["good bad", "bad good", "good bad bad good"])
@pytest.mark.parametrize(
    ("f", "rng"), [(f, "eager") for f in CASES] + [(f, "philox") for f in (factors, counts, takes)], ids=lambda v: getattr(v, "__name__", v)
)
def test_what_was_written_before_stays(f, rng, order):
    """It was lost: the kernel raised before anything was written back."""
    inputs = [CASES[f][word == "bad"] for word in order.split()]
    assert _run(fg.jit(f, rng=rng, backend="aten"), inputs) == _run(f, inputs)


def test_the_gradient_of_what_fails_leaves_what_eager_pytorch_leaves():
    def f(x, w):
        w.add_(1)
        return torch.linalg.cholesky(x).sum()

    for g in (fg.grad_compiled(f), torch.func.grad(f), fg.jit(f)):
        w = torch.zeros(3)
        g(torch.eye(2), w)
        with pytest.raises(torch.linalg.LinAlgError):
            g(-torch.eye(2), w)
        assert w.tolist() == [2.0] * 3


def test_a_text_of_a_tensor_says_its_values():
    """It said that the tensor was traced."""

    def f(x):
        y = x + 1
        texts = str(x), repr(y), f"{y}", f"{y.sum():.2f}", f"{y.sum()}", "%s" % y.detach()  # noqa: UP031
        return x * len(texts[1]), texts

    for requires_grad in (False, True):
        compiled = fg.jit(f, backend="aten")
        for values in ([1.0, 2.0], [1.5, 2.5], [1.0, 2.0]):
            x = torch.tensor(values, requires_grad=requires_grad)
            (out, texts), (want, wanted) = compiled(x), f(x)
            assert texts == wanted and torch.equal(out, want)
        assert compiled.cache_info().misses == 2


def test_a_text_of_a_parameter_says_that_it_is_one():
    model = torch.nn.Linear(2, 1)
    compiled = fg.jit(lambda x: (model(x), str(model.weight)), backend="aten")
    assert compiled(torch.ones(2))[1] == str(model.weight)
