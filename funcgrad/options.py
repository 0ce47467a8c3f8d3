"""Options, and the environment: the one place where environment variables are read.

An ``Options`` is frozen and hashable. What a later version will do and this one does not is refused here, by name,
so that no option is ever accepted and ignored.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import platformdirs
from attrs import evolve, field, fields, frozen

from .checkpoint_policies import policy_of
from .errors import OptionError

Randomness = Literal["eager", "philox"]
Numerics = Literal["fast", "eager"]
Reading = Literal["guard", "error"]
Donating = Literal["warn", "strict"]


def _positions(value: int | Iterable[int]) -> tuple[int, ...]:
    positions = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not all(type(p) is int for p in positions):
        raise OptionError(f"{value!r} names no positions of arguments", fix="pass an int, or a tuple of ints")
    return positions  # type: ignore[return-value]


_UNITS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}


def _budget(value: int | float | str | None) -> int | float | None:
    """Bytes as an int, a fraction as a float."""
    if isinstance(value, str):
        found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)\s*", value)
        if found:
            return int(float(found[1]) * _UNITS[found[2]])
    elif value is None or (type(value) is int and value >= 0) or (type(value) is float and 0 < value <= 1):
        return value
    raise OptionError(
        f"memory_budget={value!r} is neither bytes nor a fraction",
        fix='pass bytes as an int, a text like "512MiB" or "2GB", or a fraction of what autograd needs as a float up '
        "to 1.0",
    )


BackwardAutocast = None | str | tuple[tuple[tuple[str, Any], ...], ...]
"""``None``, ``"off"``, ``"same_as_forward"``, or keyword arguments for each ``torch.autocast`` to enter."""


def _autocasts(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or all(isinstance(keywords, tuple) for keywords in value if value):
        return tuple(value) if isinstance(value, list) else value
    if not all(isinstance(keywords, Mapping) and "device_type" in keywords for keywords in value):
        raise OptionError(
            f"backward_autocast={value!r} is no list of keywords of torch.autocast",
            fix='[{"device_type": "cpu", "dtype": torch.bfloat16}]',
        )
    return tuple(tuple(sorted(keywords.items())) for keywords in value)


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@frozen(kw_only=True, cache_hash=True)
class Options:
    """What a compiled function may be told (keyword arguments of every transform).

    backend: ``"c"`` (fused kernels, compiled by the system's C compiler, for tensors of the CPU), ``"triton"`` (fused
    kernels for those of a CUDA device; under TRITON_INTERPRET=1 for those of the CPU too, slowly), ``"aten"`` (the
    graph as one Python function of ATen calls) or ``"auto"``, which picks the fastest one for the tensors of the call.
    static_argnums: positions of positional arguments that are compared by value and baked in, as in JAX. rng:
    ``"eager"``: random ops draw exactly what eager PyTorch draws for the same seed. ``"philox"``: each call draws one
    number from the default generator, and all that is random in it is a function of that (Philox4x32-10): fused into
    kernels, computed again in backward instead of saved, the same on every backend. Of nested compiled functions the
    outermost one's option holds. numerics: ``"eager"`` is bit-equal to eager ATen: the aten backend, with floats
    static. ``"fast"``: fused kernels, which round elsewhere; half precision is computed in float32 and rounded where it
    is stored, or cast to. dynamic: ``None``: a float argument, and a size of an argument tensor, becomes a symbol at
    its second value: that program serves all values with which the function, and its compilation, take the same
    branches (``isinstance(x, float)`` is False inside the function, ``isinstance(x.shape[0], int)`` too). ``True``:
    sizes are symbols from the first call on. ``False``: one program for each set of values. Sizes of 0 and 1 are never
    symbols, nor are those of other inputs that share memory, or with a ``memory_budget``. reads:
    ``"guard"``: what Python reads of values of tensors (``if x.any():``, ``x.item()``, the size of ``x[mask]``) is
    checked inside the program, and another value is another program: one for each path through the function, 16 at most
    (then a ``ReadsWarning``, and calls that take other paths run in eager PyTorch). Numbers and sizes that are read
    become symbols as arguments do. ``"error"``: reading raises, as in JAX. backward_autocast: what a custom
    ``autograd.Function`` sees of autocast in its backward: ``"off"`` (as where ``backward()`` is called outside of it),
    ``"same_as_forward"``, or a list of keyword dicts for ``torch.autocast``. ``None``: off, with an ``AutocastWarning``
    where autocast is on when its gradient is compiled. policy: what may be saved for backward, as if the whole function
    were one ``fg.checkpoint``: the name of a policy of ``fg.checkpoint_policies`` (``"dots_saveable"``), a function, or
    a list of operators to save. ``None``: whatever is fastest. memory_budget: the most bytes a call may have allocated
    at a time, forward and backward together, above what is there before, results included: an int, a text like
    ``"2GiB"``, or, as a float up to 1, a fraction of what it would be if everything were saved that autograd saves.
    What does not fit is computed again. ``PartitionError`` where nothing keeps the budget. ``None``: whatever is
    fastest. donate_argnums: positions of positional arguments whose tensors are given away, as in JAX: results and
    intermediates may take their memory, and what is left of them raises ``DonationError`` when it is read. A tensor
    that somebody else can still read (a view, a graph of autograd, a NumPy array) is kept. Where a tensor could not be
    made use of, donate ``"warn"``s once, ``"strict"`` raises; the call that is inside another one's trace, or under
    a transform of torch.func, donates nothing.

    Raises ``OptionError`` for an unknown value.
    """

    backend: str = "auto"
    dynamic: bool | None = None
    memory_budget: int | float | None = field(default=None, converter=_budget)
    policy: Any = field(default=None, converter=_hashable)
    backward_autocast: BackwardAutocast = field(default=None, converter=_autocasts)
    static_argnums: tuple[int, ...] = field(default=(), converter=_positions)
    donate_argnums: tuple[int, ...] = field(default=(), converter=_positions)
    donate: Donating = "warn"
    rng: Randomness = "eager"
    numerics: Numerics = "fast"
    reads: Reading = "guard"

    def __attrs_post_init__(self) -> None:
        _check("backend", self.backend, now=("auto", "c", "triton", "aten"))
        _check("dynamic", self.dynamic, now=(None, True, False))
        _check("rng", self.rng, now=("eager", "philox"))
        _check("numerics", self.numerics, now=("fast", "eager"))
        _check("reads", self.reads, now=("guard", "error"))
        if self.numerics == "eager" and self.backend in ("c", "triton"):
            raise OptionError(
                f'numerics="eager" runs the kernels of eager PyTorch, backend="{self.backend}" its own',
                fix="leave one of the two out",
            )
        if not isinstance(self.backward_autocast, tuple):
            _check("backward_autocast", self.backward_autocast, now=(None, "off", "same_as_forward"))
        policy_of(self.policy)
        _check("donate", self.donate, now=("warn", "strict"))

    @property
    def of_derived(self) -> Options:
        """Those of a function that is made of this one's, which takes other arguments."""
        return evolve(self, static_argnums=(), donate_argnums=())


def _check(name: str, value: Any, *, now: tuple[Any, ...]) -> None:
    if any(value is v or (type(value) is type(v) and value == v) for v in now):
        return
    raise OptionError(f"{name}={value!r} is not a value of this option", fix=f"use one of {', '.join(map(repr, now))}")


_DEFAULT = Options()


def make_options(keywords: Mapping[str, Any]) -> Options:
    """``Options(**keywords)``, with an ``OptionError`` that lists the known names for an unknown one."""
    if not keywords:
        return _DEFAULT
    known = [a.name for a in fields(Options)]
    for name in keywords:
        if name not in known:
            raise OptionError(f"there is no option {name!r}", fix=f"use one of {', '.join(known)}")
    return Options(**keywords)


@frozen
class Environment:
    """The environment variables funcgrad reads, as values. Read once, at import."""

    log: int
    cache_dir: Path | None
    backend: str | None
    compiler: str | None
    verify: bool
    fuel: int | None
    interpret: bool


def read_environment(variables: Mapping[str, str] = os.environ) -> Environment:
    """Read ``FUNCGRAD_LOG`` (0..5), ``FUNCGRAD_CACHE_DIR`` (a folder, or ``off``), ``FUNCGRAD_BACKEND``,
    ``FUNCGRAD_VERIFY`` (0 or 1), ``FUNCGRAD_FUEL`` (a number), ``CC``, and ``TRITON_INTERPRET``, as Triton reads it.

    Raises ``OptionError`` where a value makes no sense.
    """
    level = variables.get("FUNCGRAD_LOG", "0")
    if level not in ("0", "1", "2", "3", "4", "5"):
        raise OptionError(
            f"FUNCGRAD_LOG={level!r}", where="the environment", fix="use 1 (why and how long) to 5 (rewrites)"
        )
    folder = variables.get("FUNCGRAD_CACHE_DIR", platformdirs.user_cache_dir("funcgrad"))
    verify = variables.get("FUNCGRAD_VERIFY", "0")
    if verify not in ("0", "1"):
        raise OptionError(
            f"FUNCGRAD_VERIFY={verify!r}",
            where="the environment",
            fix="use 1 to compare first calls with eager PyTorch",
        )
    fuel = variables.get("FUNCGRAD_FUEL")
    if fuel is not None and not fuel.isdecimal():
        raise OptionError(
            f"FUNCGRAD_FUEL={fuel!r}",
            where="the environment",
            fix="use a number: so many values are fused in each graph",
        )
    backend = variables.get("FUNCGRAD_BACKEND")
    if backend is not None:
        Options(backend=backend)
    return Environment(
        log=int(level),
        cache_dir=None if folder == "off" else Path(folder),
        backend=backend,
        compiler=variables.get("CC"),
        verify=verify == "1",
        fuel=None if fuel is None else int(fuel),
        interpret=variables.get("TRITON_INTERPRET", "0").lower() in ("1", "true", "yes", "on", "y"),
    )


ENVIRONMENT = read_environment()


def log(level: int, text: object) -> None:
    """Print to stderr if ``FUNCGRAD_LOG`` is at least ``level``: 1 why and how long, 2 keys, 3 graphs, 4 kernels, 5
    rewrites."""
    if ENVIRONMENT.log >= level:
        print(f"funcgrad: {text}", file=sys.stderr, flush=True)
