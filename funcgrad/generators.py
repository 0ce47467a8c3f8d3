"""Draws from generators of one's own, where operators would draw from the default ones: these are never put back, as
other threads draw from them, too. And what a function does to a default generator besides drawing, as operators:
they stand in a graph like draws."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from .inside import set_to
from .torch_private.fakes import without_modes
from .torch_private.modes import TorchDispatchMode, modes_entered, without_function_modes
from .torch_private.operators import argument_names, draws_random, generator_id, is_operator, overload_name

_CPU = torch.device("cpu")
_drawing: ContextVar[OwnDraws | None] = ContextVar("funcgrad_own_draws", default=None)
_seed_everywhere, _seed = torch.manual_seed, torch.Generator.manual_seed
_get, _set, initial_seed = torch.Generator.get_state, torch.Generator.set_state, torch.Generator.initial_seed
"""Torch's own: in a trace others stand there."""


Drawn = torch.device | torch.Generator
"""What is drawn from: the default generator of a device, or one that is named."""


def state_of(of: Drawn) -> Tensor:
    """The state of the generator that operators draw from now, on a device or where they name one."""
    return _get(_generator(of))


def set_state_of(of: Drawn, state: Tensor) -> None:
    """Set it to a state."""
    _set(_generator(of), state)


def default_devices() -> list[torch.device]:
    """The devices that have a default generator."""
    return [_CPU, *(generator.device for generator in torch.cuda.default_generators)]


def _generator(of: Drawn) -> torch.Generator:
    own = _drawing.get()
    if own is not None:
        return own.generator(of)
    return of if isinstance(of, torch.Generator) else _default(of)


def mark_of(of: Drawn) -> int:
    """What tells that state from others, in less memory."""
    return _mark(state_of(of))


def _key(of: Drawn) -> object:
    return generator_id(of) if isinstance(of, torch.Generator) else of


def _mark(state: Tensor) -> int:
    return hash(ctypes.string_at(state.data_ptr(), state.nbytes))


@contextlib.contextmanager
def own_draws(
    states: Mapping[Drawn, Tensor] | None = None, passing: Mapping[Drawn, int] | None = None
) -> Iterator[OwnDraws]:
    """Inside, random operators draw from generators of their own, which begin in these states, as they would from
    others. States with the marks in ``passing`` they are to pass; those they did not are ``not_passed``."""
    own = OwnDraws(states or {}, passing or {})
    with own.entered():
        yield own


class OwnDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives random operators a generator."""

    supports_higher_order_operators = True

    def __init__(self, states: Mapping[Drawn, Tensor], passing: Mapping[Drawn, int]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.not_passed = {_key(of): mark for of, mark in passing.items()}
        self._generators: dict[object, torch.Generator] = {}
        self._stand_for: list[Drawn] = []  # they live on: their identities are keys
        for of, state in states.items():
            _set(self.generator(of), state)
            self._pass(of)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Inside, random operators draw from these generators."""
        with set_to(_drawing, self), modes_entered(), self:
            yield

    def generator(self, of: Drawn) -> torch.Generator:
        """The one that is drawn from on a device, or instead of one that is named: that begins as that one is."""
        key = _key(of)
        if key not in self._generators:
            self._stand_for.append(of)
            self._generators[key] = torch.Generator(of.device if isinstance(of, torch.Generator) else of)
            if isinstance(of, torch.Generator):
                _set(self._generators[key], _get(of))
        return self._generators[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not is_operator(func) or not draws_random(func):
            return func(*args, **kwargs)
        device = _device_of(args, kwargs)
        if device.type == "meta":  # there is nothing to draw
            return func(*args, **kwargs)
        named = next((v for v in (*args, *kwargs.values()) if isinstance(v, torch.Generator)), None)
        of: Drawn = device if named is None or is_default(named) else named
        out = self._drawn(of, device, func, args, kwargs)
        self._pass(of)
        return out

    def seed(self, seed: int) -> None:
        """As ``torch.manual_seed``."""
        for device in {_CPU, *(of for of in self._stand_for if isinstance(of, torch.device))}:
            _seed(self.generator(device), seed)

    def _pass(self, of: Drawn) -> None:
        key = _key(of)
        if key in self.not_passed and _mark(_get(self.generator(of))) == self.not_passed[key]:
            del self.not_passed[key]

    def _drawn(self, of: Drawn, device: torch.device, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func in ON_GENERATORS:
            return func(*args, **kwargs)  # to the one that stands for what it names
        own, named = self.generator(of), _with_generator(func)
        if named is not None:
            given = dict(zip(argument_names(func), args, strict=False)) | kwargs
            return named(**given | {"generator": own})
        if func is torch.ops.aten.native_dropout.default and device == _CPU:
            return _dropout(own, *args, **kwargs)
        if device == _CPU:  # none of them draws there
            return func(*args, **kwargs)
        default = _default(device)
        # on a GPU some name no generator: for one call, the default one is in the state of our own
        before = default.get_state()
        default.set_state(own.get_state())
        try:
            out = func(*args, **kwargs)
            own.set_state(default.get_state())
        finally:
            default.set_state(before)
        return out


def _default(device: torch.device) -> torch.Generator:
    if device.type == "cpu":
        return torch.default_generator
    return torch.cuda.default_generators[device.index]


def outside_own_draws() -> contextlib.AbstractContextManager[Any]:
    """Inside, no mode is there that gives operators a generator: a trace begins below it."""
    return contextlib.nullcontext() if _drawing.get() is None else without_modes()


def _device_of(args: Any, kwargs: Mapping[str, Any]) -> torch.device:
    """Where a call draws."""
    tensors = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
    device = (
        tensors[0].device if kwargs.get("device") is None and tensors else torch.device(kwargs.get("device") or _CPU)
    )
    return (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )


@functools.cache
def _with_generator(op: Any) -> Any:
    """The overload that takes a generator, beside the arguments of this one; None if there is none."""
    wanted = {*argument_names(op), "generator"}
    overloads = (getattr(op.overloadpacket, name) for name in (overload_name(op), *op.overloadpacket.overloads()))
    return next((o for o in overloads if set(argument_names(o)) == wanted), None)


# ── what is done to a generator besides drawing from it ──────────────────────────────────────────────────────────────

_library: Any = torch.library.Library("funcgrad", "DEF")  # type: ignore[no-untyped-call]
_BYTES = {"cpu": torch.default_generator.get_state().numel(), "cuda": 16}
"""What a state takes."""


def _seed_all(seed: int) -> Tensor:
    own = _drawing.get()
    if own is None:
        _seed_everywhere(seed)
    else:
        own.seed(seed)
    return torch.empty(0)


def _seed_one(seed: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    _seed(_generator(generator or device), seed)
    return torch.empty(0, device=device)


def _set_state(state: Tensor, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    _set(_generator(generator or device), state)
    return torch.empty(0, device=device)


def _state(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    return state_of(generator or device)


def define(schema: str, run: Callable[..., Any], like: Callable[..., Any], tags: Sequence[torch.Tag] = ()) -> Any:
    """An operator of our own; ``like`` makes its result of fake tensors."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=tags)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"funcgrad::{name}", like, lib=_library)
    return getattr(torch.ops.funcgrad, name).default


_ordered = functools.partial(define, tags=(torch.Tag.nondeterministic_seeded,))
"""An operator that is ordered among draws, as it is tagged like one."""


def _nothing(_: object, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    return torch.empty(0, device=device)


def _bytes(device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    return torch.empty(_BYTES[device.type], dtype=torch.uint8)


manual_seed = _ordered("manual_seed(int seed) -> Tensor", _seed_all, lambda seed: torch.empty(0))
"""``torch.manual_seed``: of the generators of all devices. Its result, as those of the next two, is a tensor of no
elements."""

seed_generator = _ordered(
    "seed_generator(int seed, Device device, Generator? generator=None) -> Tensor", _seed_one, _nothing
)
"""``Generator.manual_seed``, of the default generator of a device or of one that is named."""

set_generator_state = _ordered(
    "set_generator_state(Tensor state, Device device, Generator? generator=None) -> Tensor", _set_state, _nothing
)
"""``Generator.set_state``."""

generator_state = _ordered("generator_state(Device device, Generator? generator=None) -> Tensor", _state, _bytes)
"""``Generator.get_state``: a tensor of bytes."""

bernoulli = _ordered(
    "bernoulli(Tensor like, Scalar p, *, Generator? generator=None) -> Tensor",
    lambda like, p, *, generator=None: torch.bernoulli(like, p, generator=generator),
    lambda like, p, *, generator=None: torch.empty_like(like),
)
"""``torch.bernoulli(like, p)``, where ``p`` may be a symbol."""

ON_GENERATORS = (manual_seed, seed_generator, set_generator_state, generator_state)


def is_new(generator: torch.Generator) -> bool:
    """Whether nothing was drawn from it but what seeding it anew would give again."""
    like = torch.Generator(generator.device)
    _seed(like, initial_seed(generator))
    with without_modes(), without_function_modes():
        return torch.equal(_get(generator), _get(like))


def is_default(generator: torch.Generator) -> bool:
    """Whether it is one that operators draw from where none is named."""
    return any(
        generator_id(generator) == generator_id(other)
        for other in (torch.default_generator, *torch.cuda.default_generators)
    )


def _dropout(generator: torch.Generator, input: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """``native_dropout`` on a CPU."""
    if train is False or not input.numel():
        return torch.ops.aten.native_dropout.default(input, p, train)  # type: ignore[no-any-return] # draws nothing
    mask = torch.empty_like(input, dtype=torch.bool).bernoulli_(1 - p, generator=generator)
    return input.mul(mask).mul_(0.0 if p == 1 else 1 / (1 - p)), mask
