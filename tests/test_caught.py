"""Errors of values, which a function catches: an index that is out of bounds, a matrix that is singular."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import funcgrad as fg

GOOD, BAD = torch.tensor([0, 2, 1]), torch.tensor([0, 9, -7])
OPERATIONS = {
    "index": lambda x, i: x[i] * 2,
    "gather": lambda x, i: x.gather(0, i),
    "index_add": lambda x, i: x.index_add(0, i, x),
    "index_put": lambda x, i: x.index_put((i,), x * 3),
    "embedding": lambda x, i: F.embedding(i, x[:, None] * torch.ones(2)),
    "one_hot": lambda x, i: F.one_hot(i, 3) * x,
    "nll_loss": lambda x, i: F.nll_loss(torch.log_softmax(x.expand(3, 3), -1), i),
    "bincount": lambda x, i: torch.bincount(i) + 0 * x.sum(),
    "repeat_interleave": lambda x, i: x.repeat_interleave(i),
    "cholesky": lambda x, i: torch.linalg.cholesky(torch.diag(x + 1) - (i.max() > 5) * 9 * torch.eye(3)),
    "multinomial": lambda x, i: torch.multinomial(torch.where(i < 5, 1.0, -1.0) + 0 * x.detach(), 1),
    "binary_cross_entropy": lambda x, i: F.binary_cross_entropy(x.sigmoid() * torch.where(i > 5, 9.0, 1.0), x**0),
    "floor_divide": lambda x, i: 10 // torch.where(i > 5, 0, i + 1) * x,
    "item": lambda x, i: x * x[i].sum().item(),
    "branch": lambda x, i: x * 2 if x[i].sum() > 0 else x * 3,
}
TRANSFORMS = {
    "call": lambda f: f,
    "backward": lambda f: lambda x, i: torch.autograd.grad(f(y := x.clone().requires_grad_(), i), y)[0],
    "grad": torch.func.grad,
    "jvp": lambda f: lambda x, i: torch.func.jvp(lambda x: f(x, i), (x,), (x,))[1],
}


class Careful:
    def __init__(self, operation):
        self.operation, self.calls = operation, 0

    def __call__(self, x, i):
        self.calls += 1
        noise = torch.rand(())
        try:
            y = self.operation(x, i)
        except (IndexError, RuntimeError):
            y = x * 2 + self.calls
            self.calls += 10
        return y.double().sum() + noise * x.sum()


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("backend", ["aten", "c"])
@pytest.mark.parametrize("indices", [(GOOD, BAD, GOOD, BAD), (BAD, GOOD, BAD)], ids=["good first", "bad first"])
def test_what_an_operation_raises_for_values_is_caught(indices, backend, operation, transform):
    found = []
    for make in (lambda f: f, lambda f: fg.jit(f, backend=backend)):
        torch.manual_seed(0)
        careful, x = Careful(OPERATIONS[operation]), torch.tensor([0.1, 0.5, 0.3])
        call = TRANSFORMS[transform](make(careful))
        found.append([(call(x, i), careful.calls, torch.rand(())) for i in indices])
    torch.testing.assert_close(*found)


def test_a_function_that_catches_again_and_again_says_so():
    careful = fg.jit(Careful(OPERATIONS["index"]), backend="aten")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for _ in range(17):
            careful(torch.ones(3), BAD)
    assert {w.filename for w in told} == {__file__}  # the caller's line
    assert [str(w.message) for w in told if w.category is fg.ReadsWarning] == [
        "Careful has caught what an operation raised for the values it was given in 16 calls, each of which ran in "
        "eager PyTorch. Ask for what makes it raise first (torch.linalg.cholesky_ex, an index that is compared with "
        "the size)."
    ]


def test_what_a_store_raises_is_not_run_again():
    class Full(dict):
        def __setitem__(self, key, value):
            stored.append(key)
            raise RuntimeError("it is full")

    stored, full = [], Full()

    def f(x):
        try:
            y = x * 2
        finally:
            full["y"] = x + 1
        return y

    for call in (f, fg.jit(f, backend="aten")):
        with pytest.raises(RuntimeError, match="it is full"):
            call(torch.ones(3))
    assert stored == ["y", "y"]


def test_nothing_is_kept_for_errors_that_no_operation_raises():
    def f(x):
        with torch.no_grad():
            noise = torch.rand(3)
        return F.dropout(x * noise).exp().sum(0)

    assert "Tentative" not in str(fg.jit(f, backend="aten").lower(torch.ones(2, 3)).compile().call)
    indexed = fg.jit(lambda x, i: f(x)[i], backend="aten")
    assert "Tentative" in str(indexed.lower(torch.ones(2, 3), GOOD).compile().call)


def test_what_nobody_catches_has_drawn():
    """A program that reads takes back what it has drawn for another path alone."""

    def f(x, i):
        noise = torch.rand(3)
        if x.sum() > 0:
            return (x * noise)[i]
        return x * noise

    found = []
    for call in (f, fg.jit(f, backend="aten")):
        torch.manual_seed(0)
        call(torch.ones(3), GOOD)
        with pytest.raises(IndexError):
            call(torch.ones(3), BAD)
        found.append((call(-torch.ones(3), BAD), torch.rand(())))
    torch.testing.assert_close(*found)
