"""Known values: what is computed of no input, no captured tensor and no draw is the same in every call, so Python may read it.

Below functionalisation a value never changes, so a fake stands for one value, and a write to a constant is one more constant. The calls
whose operands are all constants are noted (the *tape*); nothing is computed before Python asks. Then the slice of the tape that leads
to the value is run for real, by the operators of eager PyTorch, each once. A size that is a symbol is fixed to its value now, by a guard.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from attrs import frozen
from torch import Tensor

from ..torch_private import (
    FakeTensor,
    draws_random,
    fake_below,
    is_operator,
    is_torchs_own,
    outside_transforms,
    returns_nothing,
    without_function_modes,
    without_modes,
    writes_inputs,
)
from .autocast import autocast_as

if TYPE_CHECKING:
    from .trace import Trace

aten = torch.ops.aten

READS: set[Any] = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__format__}
"""Methods that read values by no operator."""
_ARRAYS: set[Any] = {Tensor.numpy, Tensor.__array__}
_SPLITS: set[Any] = {torch.tensor_split, Tensor.tensor_split}
_INDEXES: set[Any] = {Tensor.__getitem__, Tensor.__setitem__}
TAKES_DATA: set[Any] = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, *_SPLITS, *_INDEXES}
"""Functions that read tensors among their arguments where no mode hears of it: those in lists, and where to split."""
_LIFTS = {aten.lift_fresh.default, aten.lift_fresh_copy.default}
"""How data enters that Python wrote down (``torch.tensor([1, 2])``): the operand is a real tensor."""
_NUMBERS: tuple[tuple[type, Callable[[Any], Any]], ...] = ((torch.SymInt, int), (torch.SymFloat, float), (torch.SymBool, bool))
_BY_LOOKS = {
    aten.ones_like.default, aten.zeros_like.default, aten.full_like.default, aten.empty_like.default, aten.new_ones.default,
    aten.new_zeros.default, aten.new_full.default, aten.new_empty.default, aten.new_empty_strided.default, aten.zero.default,
    aten.fill.Scalar, aten.fill.Tensor, aten.copy.default,
}  # fmt: skip
"""Operators to whose result the first operand gives no values: only sizes, strides, dtype and device."""
BY_MASK = {
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.masked_select.default, aten.masked_scatter.default,
}  # fmt: skip
"""Operators whose second operand is a mask, or a list of indices that may be masks."""
_SMALL = 1 << 16
"""Results of so many bytes become data of the program; larger ones are computed by it where that is sure to give the same sizes."""


@frozen(eq=False)
class _Call:
    """A call of an operator whose operands are all constants, and the default dtype it was made under."""

    op: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    outs: Sequence[Any]
    default: torch.dtype

    @property
    def operands(self) -> Iterator[Tensor]:
        """The constants its values come from."""
        return _fakes([self.args[1:] if self.op in _BY_LOOKS else self.args, self.kwargs])


class Known:
    """The tape of one run."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._calls: dict[int, _Call] = {}
        self._values: dict[int, Tensor] = {}
        self._found: dict[int, tuple[Any, Sequence[Tensor]]] = {}

    def release(self) -> None:
        """The run is over: let go of what was noted."""
        self._calls.clear()
        self._values.clear()
        self._found.clear()

    def forget(self, value: Any) -> None:
        """From now on these fakes stand for what is given, or chosen, when the program runs."""
        for fake in _fakes(value):
            self._calls.pop(id(fake), None)

    def note(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any) -> None:
        """Remember a call if all its operands are constants. Every call comes by here."""
        first = _first_that_counts(op)
        if first is None:
            return
        if op in _LIFTS:
            if isinstance(args[0], FakeTensor) and id(args[0]) not in self._calls:
                return
        elif not (all(map(self.knows, args[first:] if first else args)) and all(map(self.knows, kwargs.values()))):
            return
        outs = out if isinstance(out, (list, tuple)) else (out,)
        call = _Call(op, args, kwargs, outs, torch.get_default_dtype())
        for value in outs:
            if isinstance(value, Tensor):
                self._calls.setdefault(id(value), call)  # which keeps it alive, so that its id stays its own

    def knows(self, value: Any) -> bool:
        """Whether an argument is, or is made of, constants."""
        if isinstance(value, Tensor):
            return id(value) in self._calls
        return not isinstance(value, (list, tuple)) or all(map(self.knows, value))

    # ── what Python asks ─────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator says of the values of constants (``item``, ``equal``); ``NotImplemented`` of other tensors."""
        return self._evaluated(op, args, kwargs) if self.knows([*args, *kwargs.values()]) else NotImplemented

    def read(self, method: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """What a method makes of the values of a constant. An array may not be written to: the trace would not see it."""
        real = self.real(tensor)
        if real is None:
            return NotImplemented
        with without_modes(), without_function_modes(), outside_transforms():
            made = method(real.requires_grad_(tensor.requires_grad), *args, **kwargs)  # of which eager PyTorch makes no array
        if method in _ARRAYS:
            made.flags.writeable = False
        return made

    def real(self, value: Any) -> Tensor | None:
        """A real tensor of the values of a constant of the function's."""
        fake = fake_below(value) if isinstance(value, Tensor) else None
        return self._evaluated(torch.clone, [fake], {}) if fake is not None and self.knows(fake) else None

    def with_data(self, func: Any, args: Sequence[Any]) -> list[Any]:
        """The arguments of a function of ``TAKES_DATA``: with real tensors where it reads constants."""
        if func in _SPLITS:
            return [args[0], *map(self._as_data, args[1:])]
        if func in _INDEXES:
            at = args[1]
            return [args[0], tuple(self._as_data(i) if type(i) is list else i for i in at) if type(at) is tuple else at, *args[2:]]
        return [a if isinstance(a, Tensor) else self._as_data(a) for a in args]

    def _as_data(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._as_data(v) for v in value] if any(isinstance(v, (Tensor, list, tuple)) for v in value) else value
        real = self.real(value)
        return value if real is None else real

    # ── sizes that depend on values ──────────────────────────────────────────────────────────────────────────────

    def sized(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operator whose size depends on values, if these are known; ``NotImplemented`` if not."""
        if not self.knows([*args, *kwargs.values()]):
            return NotImplemented
        real = self._evaluated(op, args, kwargs)
        reals = real if isinstance(real, (list, tuple)) else (real,)
        if sum(r.nbytes for r in reals) <= _SMALL or not self._is_exact([*args, *kwargs.values()]):
            with self._trace.tracer:
                outs = tuple(aten.lift_fresh.default(r) for r in reals)
            return outs if isinstance(real, (list, tuple)) else outs[0]
        with without_modes():
            outs = tuple(self._trace.fakes.from_tensor(r, static_shapes=True) for r in reals)
        out = outs if isinstance(real, (list, tuple)) else outs[0]
        self.note(op, args, kwargs, out)
        self._values.update(zip(map(id, outs), reals, strict=True))
        if self._trace.graph is not None:
            self._trace.record(op, args, kwargs, out)
        return out

    def _is_exact(self, value: Any) -> bool:
        """Whether constants are computed of whole numbers and bools alone: rounding, which a kernel may do otherwise, changes no size."""
        pending, seen = list(_fakes(value)), set()
        while pending:
            fake = pending.pop()
            if fake.is_floating_point() or fake.is_complex():
                return False
            if id(fake) not in seen:
                seen.add(id(fake))
                pending += self._calls[id(fake)].operands if id(fake) in self._calls else ()
        return True

    def by_places(self, op: Any, args: Sequence[Any]) -> Any:
        """The result of an operator of ``BY_MASK`` whose masks are constants, computed with the places where they are true: so its size is
        known, and that of its gradient. ``NotImplemented`` where eager PyTorch's call is as good."""
        x, masks, *rest = args
        if not isinstance(masks, Tensor):
            return self._at_places(op, x, masks, rest) if any(map(self._is_mask, masks)) else NotImplemented
        if not self.knows(masks):
            return NotImplemented
        shape = torch.broadcast_shapes(x.shape, masks.shape) or (1,)  # type: ignore[no-untyped-call]
        with self._trace.tracer:
            masks = masks if shape == masks.shape else masks.expand(shape)
            if op is aten.masked_select.default:
                return aten.index.Tensor(x.expand(shape), [masks])
            places, (source,) = self._places(masks) if shape == x.shape else (), rest
            if not places or places[0].numel() > source.numel():
                return NotImplemented
            flat = source if source.is_contiguous() else aten.clone.default(source, memory_format=torch.contiguous_format)
            return aten.index_put.default(x, places, aten.view.default(flat, [source.numel()])[: places[0].numel()])

    def _at_places(self, op: Any, x: Tensor, given: Sequence[Any], rest: Sequence[Any]) -> Any:
        if op is aten.index_put.default and not rest[0].dim():
            return NotImplemented  # one number is put by a choice at each place
        found: list[Any] = []
        with self._trace.tracer:
            for i, at in enumerate(given):
                d = len(found)
                if not self._is_mask(at):
                    found.append(at)
                elif at.shape == x.shape[d : d + at.dim()]:
                    found += self._places(at)
                else:
                    raise IndexError(
                        f"The shape of the mask {list(at.shape)} at index {i} does not match the shape of the indexed tensor "
                        f"{list(x.shape)} at index {d}"
                    )
            return op(x, found, *rest)

    def _is_mask(self, index: Any) -> bool:
        return isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) and index.dim() > 0 and self.knows(index)

    def _places(self, mask: Tensor) -> Sequence[Tensor]:
        """Where a mask is true, along each dimension: one answer serves all who ask, forward and backward."""
        graph, places = self._found.get(id(mask), (None, None))
        if places is None or graph is not self._trace.graph:  # a body of control flow has a graph of its own
            places = aten.nonzero.default(mask).unbind(1)
            self._found[id(mask)] = self._trace.graph, places
        return places

    # ── values ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _evaluated(self, op: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator makes of the values of constants."""
        default = torch.get_default_dtype()
        with without_modes(), without_function_modes(), outside_transforms(), torch.no_grad(), autocast_as(()):
            pending = list(_fakes([args, kwargs]))
            try:
                while pending:
                    call = self._calls[id(pending[-1])]
                    before = [v for v in call.operands if id(v) not in self._values]
                    if before:
                        pending += before
                    elif id(pending.pop()) not in self._values:
                        self._run(call)
            finally:
                torch.set_default_dtype(default)
            return op(*map(self._real, args), **{k: self._real(v) for k, v in kwargs.items()})

    def _run(self, call: _Call) -> None:
        if call.default != torch.get_default_dtype():
            torch.set_default_dtype(call.default)
        args = list(call.args)
        if call.op in _BY_LOOKS:
            like = args[0]
            args[0] = torch.empty_strided(*map(self._real, (like.shape, like.stride())), dtype=like.dtype, device=like.device)
        out = call.op(*map(self._real, args), **{k: self._real(v) for k, v in call.kwargs.items()})
        for fake, real in zip(call.outs, out if isinstance(out, (list, tuple)) else (out,), strict=True):
            if isinstance(fake, Tensor):
                assert fake.dtype == real.dtype, f"{call.op} made {real.dtype} of constants, and {fake.dtype} of their fakes"
                self._values[id(fake)] = real

    def _real(self, value: Any) -> Any:
        """An argument as the operator is to get it; a symbol is fixed, which leaves a guard."""
        if isinstance(value, FakeTensor):
            return self._values[id(value)]
        if isinstance(value, (list, tuple)):
            return [self._real(v) for v in value]
        for symbolic, python in _NUMBERS:
            if isinstance(value, symbolic):
                return python(value)
        return value


def _fakes(value: Any) -> Iterator[Tensor]:
    if isinstance(value, FakeTensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _fakes(v)
    elif isinstance(value, dict):
        yield from _fakes(list(value.values()))


@functools.cache
def _first_that_counts(op: Any) -> int | None:
    """The first operand whose values matter; None for an operator that is not the same whenever it is called: a draw, a custom one."""
    if not is_operator(op) or not is_torchs_own(op) or draws_random(op) or writes_inputs(op) or returns_nothing(op):
        return None
    return int(op in _BY_LOOKS)
