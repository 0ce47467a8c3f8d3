"""What a program cannot carry out on each call: draws from generators other than torch's, iterators that go on,
clocks."""

from __future__ import annotations

import datetime
import dis
import functools
import io
import logging
import os
import random
import secrets
import time
import types
import uuid
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import frozen

from .. import refusals
from ..errors import ImpureFunctionError, UnwatchedStateWarning
from .code import Mentions
from .lines import warn
from .places import MISSING, Place
from .uses import without_padding

_OF_TIME = {"strftime": 1, "ctime": 0, "localtime": 0, "gmtime": 0, "asctime": 0}
_CLOCKS: Mapping[Any, frozenset[str]] = {
    time: frozenset(
        name
        for name in dir(time)
        if name.removesuffix("_ns") in ("time", "perf_counter", "monotonic", "process_time", "thread_time")
        or name in _OF_TIME
    ),
    datetime.datetime: frozenset({"now", "utcnow", "today"}),
    datetime.date: frozenset({"today"}),
    uuid: frozenset({"uuid1", "uuid4"}),
    os: frozenset({"urandom", "getrandom", "getpid", "getloadavg", "times"}),
    secrets: frozenset(secrets.__all__) - {"compare_digest"},
    random: frozenset({"Random", "SystemRandom"}),
    np.random: frozenset({"RandomState", "SeedSequence", "default_rng"}),
}
"""Where another value comes from on each call, and under which names."""
_ASK_ALONE = _OF_TIME | dict.fromkeys(("Random", *_CLOCKS[np.random]), 0)
"""Those that ask for it only if they are given nothing more than so many arguments: no time, no seed."""
_CLOCK_FUNCTIONS = {
    id(getattr(owner, name)): f"{owner.__name__}.{name}"
    for owner, names in _CLOCKS.items()
    for name in names
    if hasattr(owner, name)
}
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_LENGTH = 624
"""Of the state of a Mersenne Twister: where one stands that was seeded."""
_SEEDS = ("seed", "setstate", "set_state")
_SEEDING = {id(getattr(module, name)) for module in (random, np.random) for name in _SEEDS if hasattr(module, name)}


@frozen(eq=False)
class Generator:
    """A generator of random numbers that is not torch's, and the state it had."""

    name: str
    state: Callable[[], Any]
    put: Callable[[Any], None]
    before: Any

    @staticmethod
    def of(value: Any, name: str) -> Generator:
        """One that a function may reach."""
        if isinstance(value, random.SystemRandom):  # it has no state
            return Generator(name, lambda: None, lambda state: None, None)
        if isinstance(value, random.Random):
            return Generator(name, value.getstate, value.setstate, value.getstate())
        if isinstance(value, (np.random.Generator, np.random.BitGenerator)):
            bits = value.bit_generator if isinstance(value, np.random.Generator) else value
            return Generator(name, lambda: bits.state, lambda state: setattr(bits, "state", state), bits.state)
        return Generator(name, lambda: value.get_state(legacy=False), value.set_state, value.get_state(legacy=False))

    def has_drawn(self) -> bool:
        return repr(self.state()) != repr(self.before)

    def is_fresh(self) -> bool:
        """Whether nothing was drawn since it was seeded: seeding it so once more, a function leaves it as it was."""
        state = self.before
        at = state["state"].get("pos") if isinstance(state, dict) else state[1][-1] if isinstance(state, tuple) else 0
        return bool(at == _LENGTH)


def global_generators() -> tuple[tuple[frozenset[str], Generator], ...]:
    """Those that belong to everybody, with the names by which a function mentions them."""
    python = Generator("random", random.getstate, random.setstate, random.getstate())
    numpy = Generator(
        "numpy.random",
        lambda: np.random.get_state(legacy=False),
        np.random.set_state,
        np.random.get_state(legacy=False),
    )
    return (frozenset({"random", "Random"}), python), (frozenset({"random"}), numpy)


def put_back(
    own: Collection[Generator],
    of_all: Collection[tuple[frozenset[str], Generator]],
    said: Mentions,
    functions: Collection[Any],
) -> list[Generator]:
    """The generators that have drawn, as they were before. Other threads draw from those of everybody, so these must
    be mentioned, too."""
    drawn = [g for g in (*own, *(g for names, g in of_all if _mentions(names, said, functions))) if g.has_drawn()]
    for generator in drawn:
        generator.put(generator.before)
    return drawn


def refuse_draw(generator: Generator, functions: Collection[types.FunctionType]) -> ImpureFunctionError:
    """For a generator that is in another state after these functions have run."""
    refused = refusals.SEEDS_ELSEWHERE if any(seeds(f, variables=True) for f in functions) else refusals.DRAWS_ELSEWHERE
    return refused(generator.name, where=generator.name)


def seeds(function: types.FunctionType, variables: bool = False) -> bool:
    """Whether a function may seed a generator of Python's or NumPy's, or set its state: one that it names, or
    ``variables``, too."""
    owner: Any = None
    for opname, name in _loads(function.__code__):
        if opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            owner = function.__globals__.get(name, MISSING)
        elif opname in ("LOAD_ATTR", "LOAD_METHOD"):
            if name in _SEEDS and (isinstance(owner, GENERATORS) or (variables and owner is None)):
                return True
            owner = getattr(owner, name, MISSING) if isinstance(owner, types.ModuleType) else MISSING
        else:
            owner = None
        if id(owner) in _SEEDING:
            return True
    return False


@functools.lru_cache(maxsize=1 << 16)
def _loads(code: types.CodeType) -> list[tuple[str, Any]]:
    """What a code object loads, and how: asked of all code that ran, at each compile."""
    return [(step.opname, step.argval) for step in dis.get_instructions(code) if step.opname.startswith("LOAD")]


def _mentions(names: frozenset[str], said: Mentions, functions: Collection[types.FunctionType]) -> bool:
    if names & (said.globals | said.attributes | said.modules):
        return True
    values = [function.__globals__.get(name) for function in functions for name in function.__code__.co_names]
    return any(isinstance(v, types.BuiltinMethodType) and isinstance(v.__self__, GENERATORS) for v in values)


def refuse_iterator(name: str) -> ImpureFunctionError:
    return refusals.ITERATES(name, where=name)


def is_iterator(value: Any) -> bool:
    """Whether a value is an iterator that no hook watches, as it goes on in C: files are none here."""
    is_proxy = type(value) in weakref.ProxyTypes  # has all methods there are
    next_ = None if is_proxy else getattr(type(value), "__next__", None)
    return isinstance(next_, types.WrapperDescriptorType) and not isinstance(value, io.IOBase)


def levels_of(logger: Any, name: str) -> Iterator[Place]:
    """Where it is kept what a ``logging.Logger`` lets pass."""
    if isinstance(logger, logging.Logger):
        yield Place("item", vars(logger.manager), "_disable", "logging.root.manager.disable")
    while isinstance(logger, logging.Logger):
        yield from (Place("item", vars(logger), key, f"{name}.{key}") for key in ("level", "disabled"))
        logger, name = logger.parent, f"{name}.parent"


_warned: set[tuple[str, str]] = set()


def warn_of_clocks(functions: Collection[types.FunctionType]) -> None:
    """An ``UnwatchedStateWarning`` for each line that asks a clock of these functions, which have run."""
    for function in functions:
        for clock, line in _clocks_in(function):
            where = f"{os.path.basename(function.__code__.co_filename)}:{line} in {function.__name__}"
            if (clock, where) not in _warned:
                _warned.add((clock, where))
                warn(
                    f"the function asks {clock}() ({where}): it gives the value of the call in which it was traced on "
                    "each call",
                    UnwatchedStateWarning,
                )


def _clocks_in(function: types.FunctionType) -> Iterator[tuple[str, int]]:
    names = function.__code__.co_names
    space = function.__globals__
    if not any(id(space.get(name)) in _CLOCK_FUNCTIONS or id(space.get(name)) in _OWNERS for name in names):
        return
    line, owner = function.__code__.co_firstlineno, None
    steps = [step for step in without_padding(function.__code__) if step.opname not in ("KW_NAMES", "PUSH_NULL")]
    for at, step in enumerate(steps):
        line = (step.positions.lineno if step.positions else None) or line
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            owner = space.get(step.argval)
            if (name := _CLOCK_FUNCTIONS.get(id(owner))) is not None and _asks(name.rpartition(".")[2], steps, at):
                yield name, line
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and owner is not None:
            if step.argval in _OWNERS.get(id(owner), ()) and _asks(step.argval, steps, at):
                yield f"{owner.__name__}.{step.argval}", line
            owner = getattr(owner, step.argval, None) if isinstance(owner, types.ModuleType) else None


def _asks(name: str, steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether what is loaded there is called with nothing by which it would be the same on each call."""
    if (given := _ASK_ALONE.get(name)) is None:
        return True
    call = steps[at + given + 1] if at + given + 1 < len(steps) else None
    return call is not None and call.opname == "CALL" and call.arg == given


_OWNERS = {id(owner): names for owner, names in (*_CLOCKS.items(), *((m, frozenset[str]()) for m in (datetime, np)))}
"""By identity: what a function mentions need have no hash."""
