"""Functions that are named anew in each call of ``jvp_compiled``, ``vjp_compiled`` and ``linearize_compiled``."""

import functools
import types

import numpy
import pytest
import torch
from torch import func

import funcgrad as fg
from funcgrad.transforms import closures

F64 = torch.float64
P, T = torch.randn(4, 3, dtype=F64), torch.randn(4, 3, dtype=F64)


def loss(p, x):
    return (torch.tanh(x @ p) ** 2).sum()


def scaled(x, p, n):
    return loss(p, x) * n


def pushed(of):
    return lambda f: of.jvp(f, (P,), (T,))


def pulled(of):
    def run(f):
        out, vjp_fn = of.vjp(f, P)
        return out, vjp_fn(torch.ones_like(out))

    return run


def linearised(of):
    def run(f):
        out, jvp_fn = of.linearize(f, P)
        return out, jvp_fn(T)

    return run


class Ours:
    jvp, vjp, linearize = fg.jvp_compiled, fg.vjp_compiled, fg.linearize_compiled


ROWS, OWN = numpy.ones(2), types.SimpleNamespace(k=1.5)
RING: list = [2.0]
RING.append(RING)
MODEL = torch.nn.Linear(4, 3, dtype=F64)
NAMED_ANEW = {
    "a tensor": lambda x: lambda p: loss(p, x),
    "a batch": lambda x: (lambda batch: lambda p: loss(p, batch["x"]))({"x": x, "n": 3}),
    "a module": lambda x: (lambda model: lambda p: (model(x) * loss(p, x)).sum())(MODEL),
    "a gradient": lambda x: func.grad(lambda p: loss(p, x)),
    "a gradient inside": lambda x: lambda p: func.grad(lambda q: loss(q, x))(p),
    "a partial function": lambda x: functools.partial(loss, x=x),
    "a partial function of both": lambda x: functools.partial(scaled, x, n=2.5),
    "what is no data": lambda x: (lambda rows, own: lambda p: loss(p, x) * float(rows.sum()) * own.k)(ROWS, OWN),
    "a list that holds itself": lambda x: (lambda ring: lambda p: loss(p, x) * ring[0])(RING),
    "of a closure": lambda x: (lambda scaled: lambda p: scaled(p).sum())(lambda p: loss(p, x) * 2),
}


@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
@pytest.mark.parametrize("transform", [pushed, pulled, linearised])
@pytest.mark.parametrize("named", NAMED_ANEW)
def test_closures_of_one_code_share_programs(named, transform):
    make, ours, theirs = NAMED_ANEW[named], transform(Ours), transform(func)
    for i in range(3):
        x = torch.randn(5, 4, dtype=F64)
        with fg.no_retrace() if i else torch.enable_grad():
            found = ours(make(x))
        torch.testing.assert_close(found, theirs(make(x)))


def test_what_is_named_at_module_level_is_known_by_its_code():
    space = {"loss": loss, "torch": torch}
    make = "f = lambda p: loss(p, x)"
    for i in range(3):
        space["x"] = torch.randn(5, 4, dtype=F64)
        exec(compile(make, "named", "exec"), space)
        with fg.no_retrace() if i else torch.enable_grad():
            found = pushed(Ours)(space["f"])
        torch.testing.assert_close(found, pushed(func)(space["f"]))


def test_a_closure_that_writes_to_its_variables_does():
    def run(transform):
        log, count, found = [], 0, []
        for step in range(3):
            x = torch.full((5, 4), step + 0.5, dtype=F64)

            def f(p):
                nonlocal count
                count += 1
                log.append(step)
                return loss(p, x) * count

            def again(p, n=2):
                return p.sum() if not n else again(p * x.mean(), n - 1)

            found += [transform(f), transform(again)]
        return found, log, count

    (found, *state), (expected, *wanted) = run(pushed(Ours)), run(pushed(func))
    torch.testing.assert_close(found, expected)
    assert state == wanted


def test_what_a_closure_brings_is_of_an_outer_level_or_has_a_history():
    rows = torch.randn(6, 4, dtype=F64)
    ours, theirs = (lambda x, of=of: of.jvp(lambda p: loss(p, x), (P,), (T,))[1] for of in (Ours, func))
    torch.testing.assert_close(func.vmap(ours)(rows), func.vmap(theirs)(rows))
    torch.testing.assert_close(func.grad(ours)(rows), func.grad(theirs)(rows))
    torch.testing.assert_close(fg.jit(ours)(rows), theirs(rows))
    tracked = rows.clone().requires_grad_()
    gradients = [torch.autograd.grad(f(tracked), tracked) for f in (ours, theirs)]
    torch.testing.assert_close(*gradients)


def test_functions_that_mean_something_else_share_nothing():
    x = torch.randn(5, 4, dtype=F64)
    made = [eval(f"lambda p, n={n}: loss(p, x) * n", {"loss": loss, "x": x}) for n in (2, 3)]
    found = [pushed(Ours)(f) for f in made]
    torch.testing.assert_close(found, [pushed(func)(f) for f in made])
    assert closures._converted(made[0])[0] != closures._converted(made[1])[0]
