"""Logs in Python state that a function fills by keys that are computed: what is in their lists is no part of a program,
unless it is read."""

import logging
import types
import warnings
from collections import defaultdict

import pytest
import torch

import funcgrad as fg
from funcgrad.state.code import mentions
from funcgrad.state.uses import ANY


def _loop(s, x):
    for name, value in {"loss": x.sum().item(), "mean": x.mean().item()}.items():
        s.log[name].append(value)


def _setdefault(s, x):
    s.log.setdefault("loss", []).append(x.sum().item())
    s.log.setdefault(f"step of {x.shape[0]}", []).append(1)


def _nested(s, x):
    s.nested["train"]["loss"].append(x.sum().detach())


def _variable(s, x):
    own = s.log["loss"]
    own.append(x.sum().item())
    own.append(2)


def _made_where_it_is_missing(s, x):
    for name in ("loss", "other"):
        if name not in s.log:
            s.log[name] = []
        s.log[name].append(x.sum().item())


def _chosen(s, x):
    s.log["loss" if s.log else "mean"].append(x.sum().item())


GROWS = [_loop, _setdefault, _nested, _variable, _made_where_it_is_missing]


def test_a_key_may_be_what_a_call_gives():
    """Python 3.11 counts the arguments of a call apart from the call: what came after was taken for an item's use."""

    def f(s, t, g, a, b, v):
        s.grown[g(a, b)].append(v)
        s.stored[g(a, b)] = v
        t[s.key[g(a, b)]] = v
        t[s.place[g(a)]].append(v)

    uses = {name: [(use.keys == (ANY,), use.then) for use in own] for name, own in mentions(f.__code__).uses.items()}
    names = ("grown", "stored", "key", "place")
    assert [uses[name] for name in names] == [[(True, then)] for then in ("grow", "store", "read", "read")]


def _reads_the_last(s, x):
    s.log["loss"].append(x.sum().item())
    return s.log["loss"][-2] if len(s.log["loss"]) > 1 else 0.0


def _reads_by_a_variable(s, x):
    own = s.log["loss"]
    own.append(x.sum().item())
    return len(own)


def _reads_all(s, x):
    s.log["loss"].append(x.sum().item())
    return sum(sum(own) for own in s.log.values())


def _is_among(s, x):
    s.rows[0].append(2)
    return 5.0 if [2, 2, 2] in s.rows else 3.0


def _takes_a_part(s, x):
    s.log["loss"].append(x.sum().item())
    return sum(s.log["loss"][1:3])


def _reads_elsewhere(s, x):
    held = s.log
    s.log["loss"].append(x.sum().item())
    return len(held["loss"])


READS = [_chosen, _reads_the_last, _reads_by_a_variable, _reads_all, _is_among, _takes_a_part, _reads_elsewhere]


def outcome(fills, wrap, n):
    nested = defaultdict(lambda: defaultdict(list))
    s = types.SimpleNamespace(log={"loss": [], "mean": []}, nested=nested, rows=[[], [1.0]])

    def f(x):
        return x * (fills(s, x) or 2.0)

    call, found = wrap(f), []
    for i in range(n):
        found.append(call(torch.full((2,), float(i))).tolist())
        found.append(repr((s.log, {k: dict(v) for k, v in nested.items()}, s.rows)))
        if i == 4:  # somebody else does
            s.log["loss"].append(7.0)
            s.rows[0].append(2)
    return found, call


@pytest.mark.sweep(1)
@pytest.mark.parametrize("fills", GROWS)
def test_a_log_may_hold_what_it_will(fills):
    found, compiled = outcome(fills, lambda f: fg.jit(f, backend="aten"), 9)
    assert found == outcome(fills, lambda f: f, 9)[0]
    assert len(compiled._cache.programs) <= 3


@pytest.mark.sweep(1)
@pytest.mark.parametrize("fills", READS)
@pytest.mark.filterwarnings("ignore::funcgrad.RecompileWarning", "ignore::funcgrad.ReadsWarning")
def test_what_is_read_of_a_log_is_noticed(fills):
    assert outcome(fills, lambda f: fg.jit(f, backend="aten"), 9)[0] == outcome(fills, lambda f: f, 9)[0]


def test_several_values_that_are_others_are_warned_of():
    s = types.SimpleNamespace(step=0, log={})

    @fg.jit
    def f(x):
        s.log[s.step] = x.sum().item()
        s.step += 1
        return x * 2

    with pytest.warns(fg.RecompileWarning, match="values it reads are others in each call"):
        for i in range(8):
            f(torch.full((2,), float(i)))


def test_a_logger_that_a_call_makes_is_whole():
    """What its own making sets was taken back at the end of the trace, and the logger was left without."""
    name = "funcgrad.tests.made"

    def f(x):
        logging.getLogger(name).debug("nobody listens")
        return x * 2

    compiled = fg.jit(f, backend="aten")
    for n in (2, 3):
        compiled(torch.ones(n))
    logger = logging.getLogger(name)
    assert logger.propagate and not logger.disabled and not logger.isEnabledFor(logging.DEBUG)


def test_a_function_that_is_transformed_anew_in_each_call():
    def loss(p, x):
        return (x @ p).tanh().sum()

    p, x = torch.ones(3), torch.ones(2, 3)
    with pytest.warns(fg.RecompileWarning, match=r"loss is transformed anew in each call at test_logs\.py") as caught:
        for _ in range(5):
            fg.grad_compiled(loss)(p, x)
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", fg.RecompileWarning)
        compiled = fg.grad_compiled(loss)
        for _ in range(5):
            compiled(p, x)
        for _ in range(5):
            fg.grad_compiled(lambda p: (x @ p).sum())(p)  # another function in each call
