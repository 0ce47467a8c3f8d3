"""Objects of Python's own library in what a function reads: loggers, handlers, threads, events, queues; settings of
the process that code of libraries reads, for which no symbol may stand."""

import contextlib
import decimal
import itertools
import logging
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import funcgrad as fg

_names = itertools.count()


class Holder:
    """What a model may carry along."""

    def __init__(self) -> None:
        self.log = logging.getLogger(f"funcgrad.tests.{next(_names)}")
        self.log.addHandler(logging.NullHandler())
        self.thread, self.event, self.stack = threading.Thread(target=print), threading.Event(), contextlib.ExitStack()
        self.thread.name = "first"
        for own in self.all():
            own.extra = 1.0

    def all(self) -> list[Any]:
        return [self.log, self.log.handlers[0], self.thread, self.event, self.stack]

    def change(self, step: int) -> None:
        for own in self.all():
            own.extra += 1
        self.thread.name = ("second", "third")[step % 2]
        self.log.setLevel((10, 40)[step % 2])
        self.log.propagate = bool(step % 2)
        if step == 1:
            self.log.addHandler(logging.NullHandler())

    def held(self) -> list[Any]:
        return [own.extra for own in self.all()]


def _counts(h: Holder, x: torch.Tensor) -> torch.Tensor:
    h.log.extra += 1
    return x * h.log.extra


READS: dict[str, Callable[[Holder, torch.Tensor], torch.Tensor]] = {
    "put on a logger": lambda h, x: x * h.log.extra,
    "put on a handler": lambda h, x: x * h.log.handlers[0].extra,
    "put on a thread": lambda h, x: x * h.thread.extra,
    "put on an event": lambda h, x: x * h.event.extra,
    "put on a stack": lambda h, x: x * h.stack.extra,
    "put there, by name": lambda h, x: x * getattr(h.log, "extra"),
    "counted on a logger": _counts,
    "the name of a thread": lambda h, x: x * len(h.thread.name),
    "the handlers": lambda h, x: x * len(h.log.handlers),
    "what goes on": lambda h, x: x * (2.0 if h.log.propagate else 3.0),
    "a level": lambda h, x: x * h.log.level,
    "the level of one that is asked for": lambda h, x: x * logging.getLogger(h.log.name).level,
    "what is let pass": lambda h, x: x * (2.0 if h.log.isEnabledFor(20) else 3.0),
    "the level that counts": lambda h, x: x * h.log.getEffectiveLevel(),
}


@pytest.mark.parametrize("what", READS)
def test_what_is_read_of_objects_of_the_library(what):
    own, eager, x, read = Holder(), Holder(), torch.ones(2), READS[what]
    compiled = fg.jit(lambda x: read(own, x), backend="aten")
    for step in range(6):
        assert torch.equal(compiled(x), read(eager, x)), step
        assert own.held() == eager.held()
        own.change(step)
        eager.change(step)
    assert compiled.cache_info().hits or what == "the handlers"


SETTINGS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[int], Any]]] = {
    "precision": (
        lambda x: x * float(decimal.Decimal(1) / 3),
        lambda k: setattr(decimal.getcontext(), "prec", (4, 5, 6, 7)[k % 4]),
    ),
    "threads": (lambda x: x * torch.get_num_threads(), lambda k: torch.set_num_threads(1 + k % 4)),
    "level": (
        lambda x: x * (1.0 if logging.getLogger("funcgrad.tests").isEnabledFor(20) else 2.0),
        lambda k: logging.getLogger("funcgrad.tests").setLevel((10, 20, 30, 40)[k % 4]),
    ),
    "what is let pass at all": (
        lambda x: x * logging.root.manager.disable,
        lambda k: logging.disable((0, 5, 15, 25)[k % 4]),
    ),
}


@pytest.mark.parametrize("what", SETTINGS)
def test_a_setting_that_code_of_libraries_reads_is_no_symbol(what):
    f, put = SETTINGS[what]
    compiled, x, before = fg.jit(f, backend="aten"), torch.ones(2), (decimal.getcontext().prec, torch.get_num_threads())
    try:
        for k in range(12):
            put(k)
            assert torch.equal(compiled(x), f(x)), k
    finally:
        put(0)
        decimal.getcontext().prec = before[0]
        torch.set_num_threads(before[1])
    assert compiled.cache_info().misses == 4


@pytest.mark.parametrize(
    ("own", "act"),
    [
        (threading.Event(), lambda own: own.set()),
        (threading.Event(), lambda own: own.is_set()),
        (threading.Thread(target=print), lambda own: own.is_alive()),
        (queue.SimpleQueue(), lambda own: own.put(1)),
        (queue.SimpleQueue(), lambda own: own.qsize()),
        (torch.ones(2).untyped_storage(), lambda own: own.nbytes()),
    ],
    ids=["sets an event", "asks an event", "asks a thread", "puts into a queue in C", "asks a queue", "asks a storage"],
)
def test_what_is_not_watched_is_said(own, act):
    def f(x):
        act(own)
        return x * 2

    with pytest.warns(fg.UnwatchedStateWarning):
        fg.jit(f, backend="aten")(torch.ones(2))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: np.random.default_rng().random(),
        lambda: np.random.RandomState().rand(),
        lambda: random.Random().random(),
        lambda: random.SystemRandom().random(),
        lambda: secrets.randbelow(9),
        lambda: len(time.strftime("%S")),
        lambda: len(time.ctime()),
    ],
)
def test_what_is_another_number_in_each_call_is_said(draw):
    with pytest.warns(fg.UnwatchedStateWarning, match="the value of the call in which it was traced"):
        fg.jit(lambda x: x * draw(), backend="aten")(torch.ones(2))


def test_what_is_seeded_is_the_same_number_in_each_call(recwarn):
    def f(x):
        drawn = np.random.default_rng(0).random() + random.Random(1).random()
        return x * drawn * len(time.strftime("%Y", time.gmtime(0)))

    assert torch.equal(fg.jit(f, backend="aten")(torch.ones(2)), f(torch.ones(2)))
    assert not [w for w in recwarn if issubclass(w.category, fg.UnwatchedStateWarning)]


def test_a_lock_is_taken_without_a_word(recwarn):
    lock = threading.Lock()

    def f(x):
        with lock:
            return x * 2

    assert torch.equal(fg.jit(f, backend="aten")(torch.ones(2)), torch.full((2,), 2.0))
    assert not [w for w in recwarn if issubclass(w.category, fg.UnwatchedStateWarning)]
