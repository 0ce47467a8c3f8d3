"""Random operators while tracing: as they are (``rng="eager"``), or as pure functions of a key (``rng="philox"``).

Then each takes as many counters as its result has elements, and is made of uniform numbers and ordinary tensor code, so
that nothing in the graph draws: it may be computed again, elsewhere, or fused. A rule is given the ``Draw`` and the
operator's own arguments.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import torch
from attrs import frozen
from torch import Tensor

from .. import refusals
from ..errors import FuncgradError, Refusal
from ..generators import (
    bernoulli,
    generator_state,
    initial_seed,
    is_default,
    is_new,
    manual_seed,
    seed_generator,
    set_generator_state,
)
from ..graphs import type_text
from ..inside import having
from ..philox import philox
from ..state.lines import user_line
from ..torch_private.fakes import without_modes
from ..torch_private.functional import from_functional
from ..torch_private.levels import outside_transforms
from ..torch_private.modes import without_function_modes
from ..torch_private.operators import argument_names, draws_random, generator_id, is_operator
from .reads import Reads
from .recorder import Recorder
from .torch_patches import seeds_noted
from .views import is_dense

aten = torch.ops.aten
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
_SWITCHES = ("dropout_p", "dropout", "training")
"""Arguments of random operators that are false, by default or said so, where nothing is drawn."""
_PAIRED = 16
"""From so many elements on, PyTorch draws normal numbers for a contiguous tensor eight pairs at a time."""
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}


class Draws:
    """What becomes of the random operators of one run."""

    def __init__(self, trace: Recorder, reads: Reads, rng: str, first_run: bool) -> None:
        self._trace, self._reads = trace, reads
        self._is_pure = rng == "philox"
        self._first_run = first_run
        self._key: Tensor | None = None
        self._used = 0
        self.drawn = 0
        """How often the function drew."""
        self._seeds = seeds_noted()
        self._states: list[tuple[Tensor, torch.Generator, int]] = []
        self._seeded_with: dict[int, int] = {}
        self._outside: Collection[int] | None = None
        self.named: dict[int, torch.Generator] = {}
        """The generators that are no default ones, and are named: drawn from, seeded."""
        self.met = False
        """Whether the function drew without a key: its program needs one."""

    @property
    def operands(self) -> list[Tensor]:
        """What a graph within the graph needs to draw."""
        return [] if self._key is None else [self._key]

    def undone(self) -> AbstractContextManager[None]:
        """What is drawn inside is not drawn."""
        return having(self, _used=self._used, drawn=self.drawn)

    def expect(self, generators: Sequence[torch.Generator]) -> None:
        """The generators that the first run named: any other one the function makes itself."""
        self._outside = {generator_id(generator) for generator in generators}

    def begin(self, key: Tensor) -> None:
        """From here on numbers are made of ``key``, from the first on: a function that runs again gets the same."""
        self._key, self._used = from_functional(key), 0

    # ── the generator: nothing that is traced touches it ────────────────────────────────────────────────────────────

    def manual_seed(self, _: Any, seed: Any) -> torch.Generator:
        """``torch.manual_seed``."""
        self._done(manual_seed, int(seed))
        self._seeded_with[generator_id(torch.default_generator)] = int(seed)
        return torch.default_generator

    def seed(self, _: Any, *args: Any, **kwargs: Any) -> NoReturn:
        """``torch.seed``: by another number in each call, which the function asks for."""
        self._refuse(refusals.SEEDED_UNTOLD)

    def seed_one(self, original: Callable[..., Any], generator: torch.Generator, *args: Any, **kwargs: Any) -> Any:
        """``Generator.manual_seed``."""
        (seed,) = map(int, (*args, *kwargs.values()))
        self._done(seed_generator, seed, *self._named(generator))
        self._seeded_with[generator_id(generator)] = seed
        return generator

    def clone(self, _: Any, generator: torch.Generator) -> NoReturn:
        """``Generator.clone_state``."""
        raise refusals.GENERATOR_COPIED(where=user_line())

    def initial_seed(self, original: Callable[..., Any], generator: torch.Generator) -> int:
        """``Generator.initial_seed``: known where the function has set it."""
        seed = self._seeded_with.get(generator_id(generator))
        if seed is not None:
            return seed % 2**64
        if is_default(generator) or generator_id(generator) in (self._outside or ()):
            self._refuse(refusals.SEED_ASKED_FOR)
        return original(generator)  # type: ignore[no-any-return]

    def get_state(self, original: Callable[..., Any], generator: torch.Generator) -> Tensor:
        """``Generator.get_state``: how much was drawn and seeded before is noted."""
        real = self._is_pure and is_default(generator)
        state: Tensor = original(generator) if real else self._call(generator_state, *self._named(generator))
        self._states.append((state, generator, self.drawn))
        return state

    def set_state(self, original: Callable[..., Any], generator: torch.Generator, state: Tensor) -> Any:
        """``Generator.set_state``; nothing is done where it is in that state (``torch.random.fork_rng`` around what
        draws nothing)."""
        if not any(known is state and of is generator and drawn == self.drawn for known, of, drawn in self._states):
            self._done(set_generator_state, state, *self._named(generator))
            self._seeded_with.pop(generator_id(generator), None)
            self._states.append((state, generator, self.drawn))
        return generator

    def _named(self, generator: torch.Generator) -> tuple[Any, ...]:
        """The arguments that say which generator it is."""
        if is_default(generator):
            return (generator.device,)
        self._met(generator, self._trace.functional)
        return generator.device, generator

    def _met(self, generator: torch.Generator, mode: AbstractContextManager[Any]) -> None:
        """The program has one generator for each that the function makes in this run (in the first one, nobody knows
        which it makes), and seeds it as new ones are, in each call."""
        known = generator_id(generator)
        if known in self.named:
            return
        self.named[known] = generator
        if self._outside is None or known in self._outside:
            return
        if self._trace.current_pass == "backward" or not is_new(generator):
            raise refusals.GENERATOR_IN_BACKWARD(where=user_line())
        with outside_transforms(), mode:
            seed_generator(initial_seed(generator), generator.device, generator)

    def _done(self, op: Any, *args: Any) -> None:
        """Something else is done to a generator than to draw from it."""
        if self._is_pure and not isinstance(args[-1], torch.Generator):
            self._refuse(refusals.STATE_OF_PHILOX)
        self._call(op, *args)
        self.drawn += 1

    def _call(self, op: Any, *args: Any) -> Tensor:
        with outside_transforms(), self._trace.functional:
            out: Tensor = op(*args)
        self._reads.tape.forget([out])
        return out

    def _refuse(self, refusal: Refusal[FuncgradError]) -> NoReturn:
        error = refusal(where=user_line())
        self._trace.refused = error
        raise error

    def require_settled(self) -> None:
        """Refuse a function that has seeded the generator by a method it took out of it before the trace (those
        cannot be replaced)."""
        seed, heard = seeds_noted()
        if heard == self._seeds[1] and seed != self._seeds[0]:
            self._refuse(refusals.SEEDED_BY_OLD_METHOD)

    def order_of(self, op: Any, args: Sequence[Any]) -> list[int] | None:
        """The dimensions of what ``bernoulli_`` fills, from the largest steps in memory to the smallest: eager
        PyTorch draws in that order, but in the functional form, ``bernoulli``, in the order of the dimensions (and
        that is contiguous). None where they agree, and for any other operator."""
        if op not in (aten.bernoulli_.float, aten.bernoulli_.Tensor):
            return None
        shape, stride = args[0].shape, args[0].stride()
        order = sorted(range(len(shape)), key=lambda d: (bool(shape[d] == 1), -stride[d]))
        moving = [d for d in order if shape[d] != 1]
        return None if moving == sorted(moving) else order

    def require_order(self, op: Any, args: Sequence[Any]) -> None:
        """Refuse ``normal_`` of a tensor with gaps in memory: of 16 elements on, eager PyTorch draws one by one for
        it, and in pairs of eight for the dense tensor that the functional form makes."""
        if op is aten.normal_.default and not self._is_pure and not is_dense(args[0]) and args[0].numel() >= _PAIRED:
            raise refusals.NORMAL_WITH_GAPS(type_text(args[0]), where=user_line())

    def __call__(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of a random operator; ``NotImplemented`` for one that is recorded as it is."""
        if not is_operator(op) or not draws_random(op):
            return NotImplemented
        arguments = dict(zip(argument_names(op), args, strict=False)) | kwargs
        if _is_off(op, arguments):
            return NotImplemented
        generator = arguments.pop("generator", None)
        if generator is not None and not is_default(generator):
            if self._is_pure:
                raise refusals.GENERATOR_OF_PHILOX(op, where=user_line())
            self._met(generator, self._trace.tracer)
        self.drawn += 1
        if not self._is_pure:
            return NotImplemented
        if op not in RULES:
            raise refusals.NO_PHILOX_RULE(op, where=user_line())
        if self._key is None and not self._first_run:
            raise refusals.DRAW_IN_TWO_RUNS(where=user_line())
        _require_accepted(op, args, kwargs)
        like = op(*args, **kwargs)
        if self._key is None:
            self.met = True
            return NotImplemented
        first = like[0] if isinstance(like, tuple) else like
        start, self._used = self._used, self._used + first.numel()
        with self._trace.tracer:
            return RULES[op](Draw(self._trace, self._key, start, first), **arguments)


def _is_off(op: Any, arguments: dict[str, Any]) -> bool:
    """Whether a call that could draw does not: attention without dropout, ``rrelu`` in evaluation."""
    return any(name in _SWITCHES and not arguments.get(name) for name in argument_names(op))


def _require_accepted(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
    """Raise what eager PyTorch raises of a probability, or a range, that makes no sense: by a call for no elements."""
    if op in (aten.randperm.default, aten.randperm.generator) or any(isinstance(a, torch.SymFloat) for a in args):
        return
    with without_modes(), without_function_modes():
        empty = (torch.empty(0, dtype=a.dtype) if isinstance(a, Tensor) else a for a in args)
        op(*([0] if isinstance(a, list) else a for a in empty), **kwargs)


@frozen(eq=False)
class Draw:
    """The numbers of one call: two for each element of ``like``, independent of each other."""

    _trace: Recorder
    _key: Tensor
    _start: int
    like: Tensor

    @property
    def kind(self) -> torch.dtype:
        """The dtype in which a result of several steps is computed: that of the result, or float32."""
        kind = _PARTS.get(self.like.dtype, self.like.dtype)
        return kind if kind == torch.float64 else torch.float32

    def bits(self, dtype: torch.dtype, half: int = 0) -> Tensor:
        """What ``philox`` makes."""
        like, trace = self.like, self._trace
        size, stride = tuple(like.shape), tuple(like.stride())
        with without_modes(), trace.fakes:
            made = torch.empty_strided(size, stride, dtype=dtype, device=like.device)
        if trace.graph is not None:
            trace.record(philox, (self._key, self._start, half, size, stride, dtype, like.device), {}, made)
        return made

    def uniform(self, half: int = 0) -> Tensor:
        """Numbers in [0, 1) of which the dtype of the result holds each, computed in ``kind``."""
        found, digits = self.bits(self.kind, half), _DIGITS.get(self.like.dtype, 24)
        return found if digits >= 24 else torch.floor(found * 2.0**digits) * 2.0**-digits

    def normal(self) -> tuple[Tensor, Tensor]:
        """Two independent numbers of the standard normal distribution (Box and Muller): within 5.8 of 0 in single
        precision."""
        radius = torch.sqrt(torch.log(1 - self.bits(self.kind, 0)) * -2)
        angle = self.bits(self.kind, 1) * (2 * math.pi)
        return radius * torch.cos(angle), radius * torch.sin(angle)

    def exponential(self) -> Tensor:
        """Numbers of the exponential distribution, none of them 0."""
        return torch.clamp_min(-torch.log(1 - self.bits(self.kind)), 2.0 ** -(_DIGITS[self.kind] + 1))

    def result(self, value: Tensor) -> Tensor:
        """A value as the operator returns it."""
        return _cast(value, self.like.dtype)


def _cast(value: Tensor, dtype: torch.dtype) -> Tensor:
    found: Tensor = value if value.dtype == dtype else aten._to_copy.default(value, dtype=dtype)
    return found


Rule = Callable[..., Any]

RULES: dict[Any, Rule] = {}
"""Random operator → what it returns, given its draw and its arguments by name."""


def _rule(*overloads: Any) -> Callable[[Rule], Rule]:
    def add(rule: Rule) -> Rule:
        RULES.update(dict.fromkeys(overloads, rule))
        return rule

    return add


# ── real numbers ─────────────────────────────────────────────────────────────────────────────────────────────────


@_rule(aten.rand.default, aten.rand.generator, aten.rand_like.default, aten.rand_like.generator)
def _rand(draw: Draw, **_: Any) -> Tensor:
    if draw.like.dtype in _PARTS:
        return torch.complex(draw.uniform(0), draw.uniform(1))
    return draw.result(draw.uniform())


@_rule(aten.uniform.default)
def _uniform(draw: Draw, self: Tensor, **limits: float) -> Tensor:
    low, high = limits.get("from", 0.0), limits.get("to", 1.0)
    return draw.result(draw.uniform() if (low, high) == (0.0, 1.0) else draw.uniform() * (high - low) + low)


@_rule(aten.randn.default, aten.randn.generator, aten.randn_like.default, aten.randn_like.generator)
def _randn(draw: Draw, **_: Any) -> Tensor:
    if draw.like.dtype in _PARTS:  # the two parts share a variance of 1
        return torch.complex(*(part * math.sqrt(0.5) for part in draw.normal()))
    return draw.result(draw.normal()[0])


@_rule(
    aten.normal_functional.default, aten.normal.Tensor_Tensor, aten.normal.Tensor_float, aten.normal.float_Tensor,
    aten.normal.float_float,
)  # fmt: skip
def _normal(draw: Draw, mean: Any = 0.0, std: Any = 1.0, **_: Any) -> Tensor:
    return draw.result(_scaled(draw.normal()[0], mean, std))


@_rule(aten.log_normal.default)
def _log_normal(draw: Draw, self: Tensor, mean: float = 1.0, std: float = 2.0) -> Tensor:
    return draw.result(torch.exp(_scaled(draw.normal()[0], mean, std)))


def _scaled(value: Tensor, mean: Any, std: Any) -> Tensor:
    scaled: Tensor = value * std + mean
    return scaled


@_rule(aten.exponential.default)
def _exponential(draw: Draw, self: Tensor, lambd: float = 1.0) -> Tensor:
    return draw.result(draw.exponential() / lambd)


@_rule(aten.cauchy.default)
def _cauchy(draw: Draw, self: Tensor, median: float = 0.0, sigma: float = 1.0) -> Tensor:
    return draw.result(median + sigma * torch.tan((draw.bits(draw.kind) - 0.5) * math.pi))


@_rule(aten.rrelu_with_noise_functional.default)
def _rrelu(
    draw: Draw, self: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False
) -> Any:
    slope = torch.where(self <= 0, draw.result(draw.uniform() * (upper - lower) + lower), 1.0)
    return self * slope, slope


# ── choices ──────────────────────────────────────────────────────────────────────────────────────────────────────


@_rule(aten.bernoulli.default, aten.bernoulli.p, aten.bernoulli.Tensor, bernoulli)
def _bernoulli(draw: Draw, self: Any = None, p: Any = None, like: Any = None) -> Tensor:
    p = self if p is None else p
    wide = isinstance(p, Tensor) and p.dtype == torch.float64
    return draw.result(draw.bits(torch.float64 if wide else torch.float32) < p)


@_rule(aten.native_dropout.default)
def _native_dropout(draw: Draw, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return input.clone(), torch.ones_like(input, dtype=torch.bool)
    mask = draw.bits(torch.float32) < 1 - p
    return input * mask * (0.0 if p == 1 else 1 / (1 - p)), mask


@_rule(aten.geometric.default)
def _geometric(draw: Draw, self: Tensor, p: float) -> Tensor:
    return draw.result(torch.clamp_min(torch.ceil(torch.log(1 - draw.bits(torch.float64)) / math.log1p(-p)), 1))


# ── whole numbers ────────────────────────────────────────────────────────────────────────────────────────────────


def _between(draw: Draw, low: int, high: int) -> Tensor:
    """Whole numbers from ``low`` to ``high - 1``; those of a span beyond 2^53 are, as in ATen, remainders of 64
    bits."""
    span = high - low
    if span <= 2**53:
        return draw.result(_cast(torch.floor(draw.bits(torch.float64) * span), torch.int64) + low)
    bits = draw.bits(torch.int64)
    if span & (span - 1) == 0:
        return draw.result((bits & (span - 1) if span < 2**64 else bits) + low)
    if span < 2**63:
        return draw.result(torch.remainder(bits, span) + low)
    raise refusals.DRAW_TOO_WIDE(low, high - 1, where=user_line())


@_rule(
    aten.randint.default, aten.randint.generator, aten.randint.low, aten.randint.low_generator,
    aten.randint_like.default,
    aten.randint_like.generator, aten.randint_like.low_dtype, aten.randint_like.low_generator_dtype,
)  # fmt: skip
def _randint(draw: Draw, high: int, low: int = 0, **_: Any) -> Tensor:
    return _between(draw, low, high)


@_rule(aten.random.default, aten.random.to, getattr(aten.random, "from"))
def _random(draw: Draw, self: Tensor, to: int | None = None, **limits: Any) -> Tensor:
    dtype = draw.like.dtype
    if to is None and dtype.is_floating_point:
        to = 2 ** _DIGITS[dtype] + 1
    elif to is None:
        to = 2 if dtype == torch.bool else torch.iinfo(dtype).max + 1
    return _between(draw, limits.get("from") or 0, to)


@_rule(aten.randperm.default, aten.randperm.generator)
def _randperm(draw: Draw, n: int, **_: Any) -> Tensor:
    return draw.result(torch.sort(draw.bits(torch.int64), stable=True).indices)
