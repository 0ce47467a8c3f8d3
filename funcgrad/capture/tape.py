"""The tape of a run: which call made each value. With it a value can be computed for real as soon as Python asks for
it.

Below functionalisation a value never changes, so a fake stands for one value, and a write to a tensor makes one more.
All calls are noted; nothing is computed before it is asked for. Then the slice of the tape that leads to the value is
run, by the operators of eager PyTorch, each once: from data that Python wrote down (a *constant*: the same in every
call), or from what this call is given, and draws.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from ..generators import OwnDraws, default_devices, state_of
from ..graph_primitives import several
from ..torch_private.fakes import FakeTensor, without_modes
from ..torch_private.levels import outside_transforms
from ..torch_private.modes import without_function_modes
from ..torch_private.operators import draws_random, is_operator, is_torchs_own, returns_nothing, writes_inputs
from ..torch_private.symbols import hinted
from ..walks import reached
from .autocast import autocast_as
from .elements import Array, numbers_in
from .uniform import filled_with, keeps_uniform

aten = torch.ops.aten

_LIFTS = {aten.lift_fresh.default, aten.lift_fresh_copy.default}
"""How data enters that Python wrote down (``torch.tensor([1, 2])``): the operand is a real tensor."""
_NUMBERS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (torch.SymInt, int),
    (torch.SymFloat, float),
    (torch.SymBool, bool),
)
_BY_LOOKS = {
    aten.ones_like.default, aten.zeros_like.default, aten.full_like.default, aten.empty_like.default,
    aten.new_ones.default, aten.new_zeros.default, aten.new_full.default, aten.new_empty.default,
    aten.new_empty_strided.default, aten.zero.default, aten.fill.Scalar, aten.fill.Tensor, aten.copy.default,
}  # fmt: skip
"""Operators to whose result the first operand gives no values: only sizes, strides, dtype and device."""


class RaisedByValues(BaseException):  # a signal, which no code of the caller's takes for the error
    """An operator raises for the values of this call: the program of others would not."""


class UnknownValue(Exception):  # noqa: N818 a signal
    """A value that this call does not determine: a cotangent that comes in later, an operand of a body that runs
    many times."""


@frozen(eq=False)
class _Call:
    """A call of an operator, and the default dtype it was made under."""

    op: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    outs: Sequence[Any]
    default: torch.dtype
    is_constant: bool
    """Whether all its operands are constants."""
    is_uniform: bool
    """Whether it makes constants of which no symbolic size decides what their values are."""

    @property
    def operands(self) -> Iterator[Tensor]:
        """The values its own come from."""
        return fakes_in([self.args[1:] if self.op in _BY_LOOKS else self.args, self.kwargs])


class Tape:
    """What one run noted."""

    def __init__(self) -> None:
        self._calls: dict[int, _Call] = {}
        self._constants: dict[int, Tensor] = {}
        self._now: dict[int, Tensor] = {}
        self._numbers: dict[int, Array] = {}
        self._given: list[Tensor] = []
        self._draws: list[_Call] = []
        self._own: OwnDraws | None = None
        self._callbacks: dict[int, str] = {}

    def give(self, fake: Tensor, real: Tensor) -> None:
        """A fake stands for a tensor of this call's."""
        self._given.append(fake)  # so that its id stays its own
        self._now[id(fake)] = real

    def called_back(self, name: str, fakes: Sequence[Tensor]) -> None:
        """Python that no trace sees computes these, when the program runs."""
        self._given += fakes
        self._callbacks.update((id(fake), name) for fake in fakes)

    def callback_below(self, value: Any) -> str | None:
        """The name of such Python that fakes are computed of, where one is."""
        return next((self._callbacks[id(v)] for v in self._below(value, self._now) if id(v) in self._callbacks), None)

    def forget(self, value: Any) -> None:
        """From now on these fakes stand for what is given, or chosen, when the program runs."""
        for fake in fakes_in(value):
            self._calls.pop(id(fake), None)
            self._constants.pop(id(fake), None)

    def note(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Remember a call. Every call comes by here."""
        first = _first_that_counts(op)
        if first is None:
            return
        outs = several(out)
        if op in _LIFTS:
            is_constant = not isinstance(args[0], FakeTensor) or self.is_constant(args[0])
        else:
            is_constant = first >= 0 and all(map(self.is_constant, args[first:] if first else args))
            is_constant = is_constant and all(map(self.is_constant, kwargs.values()))
        is_uniform = is_constant and self.is_uniform([args[first:], kwargs])
        if is_uniform:
            shapes = [fake.shape for fake in (*fakes_in([args[first:], kwargs]), *fakes_in(outs))]
            is_uniform = keeps_uniform(op, args, kwargs, shapes)
        call = _Call(op, args, kwargs, outs, torch.get_default_dtype(), is_constant, is_uniform)
        if draws_random(op):
            self._draws.append(call)
        for value in outs:
            if isinstance(value, Tensor):
                self._calls.setdefault(id(value), call)  # which keeps it alive, so that its id stays its own

    def is_constant(self, value: Any) -> bool:
        """Whether an argument is, or is made of, constants."""
        if isinstance(value, Tensor):
            call = self._calls.get(id(value))
            return call is not None and call.is_constant
        return not isinstance(value, (list, tuple)) or all(map(self.is_constant, value))

    def is_uniform(self, value: Any) -> bool:
        """Whether no symbolic size decides what the values of constants are."""
        return all(self._calls[id(fake)].is_uniform for fake in fakes_in(value))

    def number(self, constant: Tensor) -> Any:
        """The whole number, or bool, that a constant is, where it is known at every size; else None."""
        with without_modes(), without_function_modes(), outside_transforms():
            found = numbers_in(constant, lambda fake: self._calls.get(id(fake)), self._numbers)
        return None if found is None else found.item()

    def filling(self, constant: Tensor) -> Any:
        """The whole number, or bool, that is all over a constant at every size; None where none is known."""
        return filled_with(constant, lambda fake: self._calls.get(id(fake)))

    def is_exact(self, value: Any) -> bool:
        """Whether constants are computed of whole numbers and bools alone: rounding, which a kernel may do
        otherwise, changes no size."""
        return not any(fake.is_floating_point() or fake.is_complex() for fake in self._below(value))

    def require_determined(self, value: Any) -> None:
        """Raises ``UnknownValue`` where fakes stand for what this call does not determine; computes nothing."""
        if not all(id(fake) in self._now or id(fake) in self._calls for fake in self._below(value, self._now)):
            raise UnknownValue

    def sources(self, fake: Tensor) -> list[Tensor]:
        """The tensors of this call's that a value is made of. Raises ``UnknownValue`` where it is made of a draw, or
        of what this call does not determine."""
        found = []
        for value in self._below(fake):
            call = self._calls.get(id(value))
            if call is None and id(value) in self._now:
                found.append(self._now[id(value)])
            elif call is None or draws_random(call.op):
                raise UnknownValue
        return found

    def _below(self, value: Any, known: Container[int] = ()) -> Iterator[Tensor]:
        """Some fakes, and what they are made of, each once; nothing of what those are made of that are ``known``."""

        def made_of(fake: Tensor) -> Iterable[Tensor]:
            return () if id(fake) in known or id(fake) not in self._calls else self._calls[id(fake)].operands

        return reached(fakes_in(value), made_of)

    def keep(self, fakes: Sequence[Tensor], reals: Sequence[Tensor], is_constant: bool) -> None:
        """What was computed already, of operators that are noted."""
        (self._constants if is_constant else self._now).update(zip(map(id, fakes), reals, strict=True))

    def constant(self, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator makes of the values of constants. A size that is a symbol is fixed to its value now, by a
        guard."""
        return self._evaluated(op, args, kwargs, self._constants, _fixed)

    def now(self, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator makes of values in this call. Raises ``UnknownValue``; ``RaisedByValues`` where it, or what
        leads to them, raises."""
        try:
            return self._evaluated(op, args, kwargs, self._now, hinted)
        except (IndexError, RuntimeError, ValueError) as error:
            raise RaisedByValues from error

    def _evaluated(
        self,
        op: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        values: dict[int, Tensor],
        number: Callable[[Any], Any],
    ) -> Any:
        default = torch.get_default_dtype()
        with without_modes(), without_function_modes(), outside_transforms(), torch.no_grad(), autocast_as(()):
            try:
                self._compute(list(fakes_in([args, kwargs])), values, number)
            finally:
                torch.set_default_dtype(default)
            return op(
                *(_real(a, values, number) for a in args), **{k: _real(v, values, number) for k, v in kwargs.items()}
            )

    def _compute(self, pending: list[Tensor], values: dict[int, Tensor], number: Callable[[Any], Any]) -> None:
        """Compute the values that these fakes stand for."""
        while pending:
            if id(pending[-1]) in values:
                pending.pop()
                continue
            call = self._calls.get(id(pending[-1]))
            if call is None:
                raise UnknownValue
            before = [v for v in call.operands if id(v) not in values]
            if before:
                pending += before
            elif draws_random(call.op):
                self._draw_until(call, values, number)
            else:
                _run(call, values, number)

    def _draw_until(self, last: _Call, values: dict[int, Tensor], number: Callable[[Any], Any]) -> None:
        """Make the draws up to this one, in order, from generators that begin as those of the call do."""
        if self._own is None:
            self._own = OwnDraws({device: state_of(device) for device in default_devices()}, {})
        while self._draws:
            call = self._draws.pop(0)
            self._compute([v for v in call.operands if id(v) not in values], values, number)
            with self._own.entered():
                _run(call, values, number)
            if call is last:
                return
        raise UnknownValue


def _run(call: _Call, values: dict[int, Tensor], number: Callable[[Any], Any]) -> None:
    if call.default != torch.get_default_dtype():
        torch.set_default_dtype(call.default)
    args = list(call.args)
    if call.op in _BY_LOOKS:
        like = args[0]
        size, stride = (_real(v, values, number) for v in (like.shape, like.stride()))
        args[0] = torch.empty_strided(size, stride, dtype=like.dtype, device=like.device)
    args, kwargs = (
        [_real(a, values, number) for a in args],
        {k: _real(v, values, number) for k, v in call.kwargs.items()},
    )
    outs = several(call.op(*args, **kwargs))
    if any(real is None and isinstance(fake, Tensor) for fake, real in zip(call.outs, outs, strict=True)):
        with torch.enable_grad():  # what an operator keeps for its derivative alone, as the workspace of an LSTM
            outs = [real.detach() if isinstance(real, Tensor) else real for real in several(call.op(*args, **kwargs))]
    for fake, real in zip(call.outs, outs, strict=True):
        if isinstance(fake, Tensor):
            assert fake.dtype == real.dtype, f"{call.op} made {real.dtype} of values, and {fake.dtype} of their fakes"
            values[id(fake)] = real


def _real(value: Any, values: dict[int, Tensor], number: Callable[[Any], Any]) -> Any:
    """An argument as the operator is to get it."""
    if isinstance(value, FakeTensor):
        return values[id(value)]
    if isinstance(value, (list, tuple)):
        return [_real(v, values, number) for v in value]
    return number(value)


def _fixed(value: Any) -> Any:
    """A symbol as its value: the program is for this one."""
    return next((python(value) for symbolic, python in _NUMBERS if isinstance(value, symbolic)), value)


def fakes_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, FakeTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from fakes_in(v)
    elif isinstance(value, dict):
        yield from fakes_in(list(value.values()))


_VARIES = -1


@functools.cache
def _first_that_counts(op: Any) -> int | None:
    """The first operand whose values matter; ``_VARIES`` for an operator that makes no constants: a draw, a custom
    one; None for one that makes no value."""
    if not is_operator(op) or writes_inputs(op) or returns_nothing(op):
        return None
    return int(op in _BY_LOOKS) if is_torchs_own(op) and not draws_random(op) else _VARIES
