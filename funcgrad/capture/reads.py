"""Values of tensors that Python reads: ``if x.any():``, ``x.item()``, the size of ``x[mask]``.

A constant (what is computed of no input, no captured tensor and no draw) is the same in every call, and known. Any
other value is computed for this call, from the tape, and the program that is made is for calls in which Python reads
the same: it takes one *path* through the function. A check in the graph says at run time whether it is (``expect``,
``Sized``); where not, it raises ``PathMiss`` before anything has happened, and another program is found, or made, for
what was read.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..graph_primitives import (
    AnyNumber,
    NumberAsSize,
    Path,
    Read,
    Shapes,
    Sized,
    expect,
    has_symbols,
    item_of,
    numbers_replaced,
    several,
    shapes_of,
    sizes_varied,
)
from ..state.lines import user_line
from ..symbolic.polynomials import LEAST
from ..torch_private.fakes import DataDependentOutputException, DynamicOutputShapeException, fake_below, without_modes
from ..torch_private.levels import is_mapped, outside_transforms
from ..torch_private.modes import without_function_modes
from ..torch_private.operators import is_operator
from ..torch_private.symbols import expression
from ..torch_private.texts import contents_of
from .floats import Int, NotSymbolicError, fixed
from .recorder import Recorder
from .tape import Tape, UnknownValue
from .traced_sizes import seen

aten = torch.ops.aten

READS: set[Any] = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__format__}
"""Methods that read values by no operator."""
_ARRAYS: set[Any] = {Tensor.numpy, Tensor.__array__}
_SPLITS: set[Any] = {torch.tensor_split, Tensor.tensor_split}
_INDEXES: set[Any] = {Tensor.__getitem__, Tensor.__setitem__}
_COUNTED: set[Any] = {
    torch.arange, torch.zeros, torch.ones, torch.empty, torch.full, torch.rand, torch.randn, Tensor.new_zeros,
    Tensor.new_ones, Tensor.new_empty, Tensor.new_full,
}  # fmt: skip
"""Functions that make a tensor, and take tensors for numbers where they ask how large."""
TAKES_DATA: set[Any] = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor, *_SPLITS, *_INDEXES, *_COUNTED}
"""Functions that read tensors among their arguments where no mode hears of it: those in lists, where to split, and
sizes."""
BY_MASK = {
    aten.index.Tensor, aten._unsafe_index.Tensor, aten.index_put.default, aten.masked_select.default,
    aten.masked_scatter.default,
}  # fmt: skip
"""Operators whose second operand is a mask, or a list of indices that may be masks."""
_COUNTS = {
    aten.nonzero.default, aten.argwhere.default, aten._unique.default, aten._unique2.default,
    aten.unique_consecutive.default, aten.bincount.default, aten.repeat_interleave.Tensor,
}  # fmt: skip
"""Operators that make as many elements, or rows, as they find."""
_SMALL = 1 << 16
"""Constants of so many bytes become data of the program; larger ones are computed by it where that is sure to give
the same sizes."""

_MOST = 1 << 31
"""A number that is given is a symbol as a size below this: what is computed of sizes is to fit into 64 bits."""

READS_LATER = (DataDependentOutputException, DynamicOutputShapeException)
"""What a trace raises where Python reads a value that is known later: one of a cotangent, or of another call."""


def asks_for_value(op: Any) -> bool:
    """Whether an operator answers with what is no tensor, by values."""
    return is_operator(op) and _is_tagged(op, torch.Tag.data_dependent_output)


def makes_sizes(op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Whether the sizes of what an operator makes depend on values, in this call of it."""
    if not is_operator(op) or not _is_tagged(op, torch.Tag.dynamic_output_shape):
        return False
    if op is aten.index.Tensor:
        return any(isinstance(i, Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])
    return op is not aten.repeat_interleave.Tensor or kwargs.get("output_size") is None


@functools.cache
def _is_tagged(op: Any, tag: torch.Tag) -> bool:
    return tag in op.tags


class Reads:
    """The reads of one run. ``known``: what is read first, in this order, whatever the values are now.
    ``may_be_sizes``: whether numbers that the call is given may be symbols where they are sizes."""

    def __init__(self, trace: Recorder, known: Path | None, may_be_sizes: bool = False) -> None:
        self._trace = trace
        self.tape = Tape()
        self.allowed = known is not None
        self._may_be_sizes = may_be_sizes
        self._known = known or ()
        self.done: list[Read] = []
        self.numbers: dict[str, int] = {}
        """The symbols of numbers that were read, sizes among them, in order, and which read each is."""
        self.values: dict[int, Any] = {}
        """What was read where there are symbols in it."""
        self._as_sizes: dict[str, Any] = {}
        self._found: dict[int, tuple[Any, Sequence[Tensor]]] = {}
        self.callback: str | None = None
        """The Python that no trace sees which computes what was asked for last, where nobody knew that."""

    def release(self) -> None:
        """The run is over: let go of what was noted."""
        self.tape = Tape()
        self._found.clear()

    # ── what Python asks ─────────────────────────────────────────────────────────────────────────────────────────

    def answer(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator says of values (``item``, ``equal``). Raises ``DataDependentOutputException`` where
        nobody knows."""
        is_item = op is aten._local_scalar_dense.default
        if self.tape.is_constant([*args, *kwargs.values()]):
            if self.tape.is_uniform([args, kwargs]):
                return self.tape.now(op, args, kwargs)
            number = self.tape.number(args[0]) if is_item else None
            return self.tape.constant(op, args, kwargs) if number is None else seen(number)
        value = self._read(lambda: self._now(op, args, kwargs), [args, kwargs], is_item)
        if value is NotImplemented:
            self.callback = self.tape.callback_below([args, kwargs])
            raise DataDependentOutputException(op)
        if isinstance(value, AnyNumber):
            return self._symbol(args[0], value.now)
        self._expect(self._node(args[0]) if is_item else self._asked(op, args, kwargs, value), value)
        return value

    @property
    def _may_read(self) -> bool:
        """What a body of control flow reads may be another value in each step."""
        return self.allowed and not (self._trace.bodies.given or self._trace.bodies.searches)

    def _read(self, look: Callable[[], Any], operands: Any, has_numbers: bool = False) -> Any:
        """What is read next of ``operands``: as it is known, or as it is now; ``NotImplemented`` where nobody knows."""
        i = len(self.done)
        try:
            if not self._may_read:
                return NotImplemented
            known = self._known[i] if i < len(self._known) else None
            if known is not None and self._trace.current_pass == "backward":
                # another run may have read of an input what this one reads when backward runs
                self.tape.require_determined(operands)
            is_open = known is None or (isinstance(known, AnyNumber) and known.now is None)
            value = look() if is_open else known  # a number that is expected may be no number on this path
        except UnknownValue:
            return NotImplemented
        if has_symbols(value) and not has_numbers:
            raise NotSymbolicError("a text or a list is made of a number that is a symbol")
        self.done.append(Read(value, user_line(), self._trace.current_pass))
        return value

    def _now(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """What an operator says of values now. A number that is read after one that is a symbol is a symbol, too: it
        may be the same."""
        value = self.tape.now(op, args, kwargs)
        return AnyNumber(type(value)) if type(value) in (float, int) and has_symbols(self._known) else value

    def _symbol(self, fake: Tensor, now: Any) -> Any:
        """The number that was read last as a symbol."""
        trace, i = self._trace, len(self.done) - 1
        hint = self.tape.now(aten._local_scalar_dense.default, (fake,), {}) if now is None else now
        symbol = trace.symbols.floats.symbol(f"read {i}", hint)
        self.numbers[symbol.node.text], self.values[i] = i, symbol
        if trace.graph is not None:
            trace.symbol_is(symbol.node.text, trace.call(item_of, (trace.node(fake),), {}, symbol))
        return symbol

    def as_size(self, number: Int) -> Any:
        """A number that is a symbol, where PyTorch takes it for a size: a symbol of PyTorch's."""
        node, trace = number.node, self._trace
        reads = [self.numbers.get(symbol) for symbol in node.symbols]
        if trace.graph is None:  # sizes are no symbols in this run
            return node.hint
        is_given = None in reads
        if not reads or (is_given and not self._may_be_sizes) or abs(node.hint) < LEAST or trace.bodies.given:
            return fixed(number)
        if node.hint < 0:  # counted from the end
            end = self.as_size(-number)
            return -end if isinstance(end, torch.SymInt) else fixed(number)
        if is_given and not node.answer(f"({{}} < {_MOST})", lambda value: value < _MOST):
            return fixed(number)
        if node.text not in self._as_sizes:
            read = max((read for read in reads if read is not None), default=None)
            with without_modes(), without_function_modes(), outside_transforms():
                size = trace.symbols.number(node.text, node.hint, read)
            symbol = str(expression(size))
            of = () if read is None else (self.values[read],)
            trace.symbol_is(symbol, trace.call(NumberAsSize(symbol, read), (number, *of), {}, size))
            if read is not None:
                self.numbers[symbol] = read
            self._as_sizes[node.text] = seen(size)
        return self._as_sizes[node.text]

    def read(self, method: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        """What a method makes of values. An array may not be written to: the trace would not see it."""
        real = self.real(tensor, method not in _ARRAYS or self._is_lasting(tensor))
        if real is None:
            return NotImplemented
        with without_modes(), without_function_modes(), outside_transforms():
            # of which eager PyTorch makes no array
            made = method(real.requires_grad_(tensor.requires_grad), *args, **kwargs)
        if method in _ARRAYS:
            made.flags.writeable = False
            self._trace.writes.show_in_array(tensor, made)
        return made

    def _is_lasting(self, value: Any) -> bool:
        """Whether a value is small, and made of captured tensors alone that are not trained: an array of another one
        would be a path in nearly every call."""
        fake = fake_below(value) if isinstance(value, Tensor) else None
        if fake is None or fake.requires_grad or fake.numel() * fake.element_size() > _SMALL:
            return False
        try:
            sources = self.tape.sources(fake)
        except UnknownValue:
            return False
        return all(id(real) in self._trace.captured and not real.requires_grad for real in sources)

    def real(self, value: Any, reads: bool = False) -> Tensor | None:
        """A real tensor of the values of a constant of the function's; of any other, if it ``reads`` them."""
        fake = fake_below(value) if isinstance(value, Tensor) else None
        if fake is None:
            return None
        if self.tape.is_constant(fake):
            return self.tape.constant(torch.clone, [fake], {})  # type: ignore[no-any-return]
        found = self._read(lambda: self.tape.now(Tensor.tolist, [fake], {}), fake) if reads else NotImplemented
        if found is NotImplemented:
            self.callback = self.tape.callback_below(fake) if reads else None
            return None
        self._expect(self._node(fake), found)
        with without_modes(), without_function_modes(), outside_transforms():
            return torch.tensor(found, dtype=fake.dtype, device=fake.device).reshape(fake.shape)

    def contents(self, fake: Tensor) -> str | None:
        """The values of a tensor as text; None where nobody knows them."""
        if self.tape.is_constant(fake):
            return str(self.tape.constant(contents_of, [fake], {}))
        found = self._read(lambda: self.tape.now(contents_of, [fake], {}), fake)
        if found is NotImplemented:
            return None
        self._expect(self._node(fake), found)
        return str(found)

    def with_data(self, func: Any, args: Sequence[Any]) -> list[Any]:
        """The arguments of a function of ``TAKES_DATA``: with real tensors where it reads values."""
        if func in _SPLITS:
            return [args[0], *map(self._as_sections, args[1:])]
        if func in _INDEXES:
            at = args[1]
            return [args[0], tuple(map(self._as_index, at)) if type(at) is tuple else self._as_bounds(at), *args[2:]]
        if func in _COUNTED:
            first = args[:1] if getattr(Tensor, func.__name__, None) is func else []  # what a method is of
            return [*first, *map(self._as_number, args[len(first) :])]
        return [a if isinstance(a, Tensor) else self._as_data(a) for a in args]

    def _as_sections(self, at: Any) -> Any:
        """How many parts, or where each begins, as numbers; what is no tensor of such is for PyTorch to refuse."""
        data = self._as_data(at)
        return data.tolist() if isinstance(data, Tensor) and data.dtype == torch.int64 and data.dim() < 2 else data

    def _as_index(self, at: Any) -> Any:
        return self._as_data(at) if type(at) is list else self._as_bounds(at)

    def _as_bounds(self, at: Any) -> Any:
        """A slice, or a whole number in a tensor, which says where a view begins."""
        if isinstance(at, Tensor) and at.dtype not in (torch.bool, torch.uint8) and not is_mapped(at):
            return self._as_number(at)
        return slice(*map(self._as_number, (at.start, at.stop, at.step))) if type(at) is slice else at

    def _as_number(self, value: Any) -> Any:
        """A whole number in a tensor, or those in a list, as Python reads it where it is a size."""
        if isinstance(value, (tuple, list)):
            return type(value)(map(self._as_number, value)) if type(value) in (tuple, list) else value
        if (
            not isinstance(value, Tensor)
            or value.dim()
            or value.is_floating_point()
            or value.is_complex()
            or not self.allowed
        ):
            return value
        number = seen(value.item())
        return self.as_size(number) if type(number) is Int else number

    def _as_data(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return (
                [self._as_data(v) for v in value] if any(isinstance(v, (Tensor, list, tuple)) for v in value) else value
            )
        real = self.real(value, True)
        return value if real is None else real

    # ── sizes that depend on values ──────────────────────────────────────────────────────────────────────────────

    def sized(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """The result of an operator whose size depends on values. Raises ``DynamicOutputShapeException`` where
        nobody knows it."""
        if self.tape.is_constant([*args, *kwargs.values()]):
            if op is aten.nonzero.default and self.tape.filling(args[0]) is True:
                return self._all_places(args[0])
            return self._sized_constant(op, args, kwargs)
        try:
            real = self.tape.now(op, args, kwargs) if self._may_read else None
        except UnknownValue:
            real = None
        if real is None:
            self.callback = self.tape.callback_below([args, kwargs])
            raise DynamicOutputShapeException(op)
        shapes = self._read(lambda: self._shapes_now(op, real), [args, kwargs], has_numbers=True)
        now = numbers_replaced(lambda number, size: size if number.now is None else number.now, shapes, shapes_of(real))
        with without_modes(), without_function_modes(), outside_transforms():
            reals = [
                r if tuple(r.shape) == shape else _like(r, shape) for r, shape in zip(several(real), now, strict=True)
            ]
        outs = self._as_fakes(reals) if self._trace.graph is None else self._as_symbolic_fakes(reals, shapes)
        if shapes_of(real) == now:
            self.tape.keep(outs, reals, is_constant=False)
        out = outs if isinstance(real, (list, tuple)) else outs[0]
        self.tape.note(op, args, kwargs, out)
        if self._trace.graph is not None:
            self._record_sized(op, args, kwargs, out, shapes)
        return out

    def _shapes_now(self, op: Any, real: Any) -> Shapes:
        """The sizes of what an operator makes now. Those that are read after a symbol are symbols, too, where they
        count what was found."""
        shapes = shapes_of(real)
        if op not in _COUNTS or not has_symbols(self._known):
            return shapes
        n, other = shapes[0][0], AnyNumber(int)
        found: Shapes = sizes_varied(shapes, tuple((other if shape[:1] == (n,) else n, *shape[1:]) for shape in shapes))
        return found

    def _as_symbolic_fakes(self, reals: Sequence[Tensor], shapes: Shapes) -> tuple[Tensor, ...]:
        """Fakes of real tensors of which some sizes are symbols."""
        found = []
        for i, (real, shape) in enumerate(zip(reals, shapes, strict=True)):
            dims = [d for d, n in enumerate(shape) if isinstance(n, AnyNumber)]
            if dims:
                with without_modes():
                    found.append(self._trace.symbols.result(len(self.done) - 1, i, real, dims))
            else:
                found += self._as_fakes([real])
        return tuple(found)

    def _record_sized(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], out: Any, shapes: Shapes) -> None:
        """The call in the graph, and the sizes that are symbols."""
        trace, read = self._trace, len(self.done) - 1
        symbolic = [
            (tensor, i, d) for i,
            (tensor, shape) in enumerate(zip(several(out), shapes, strict=True)) for d in range(len(shape))
            if isinstance(tensor.shape[d], torch.SymInt)
        ]  # fmt: skip
        symbols = tuple((str(expression(tensor.shape[d])), i, d) for tensor, i, d in symbolic)
        trace.record(Sized(op, read, shapes, symbols), args, kwargs, out)
        self.values[read] = shapes_of(out)
        for (tensor, _, d), (symbol, _, _) in zip(symbolic, symbols, strict=True):
            self.numbers[symbol] = read
            trace.size_of(symbol, tensor, d)

    def _all_places(self, mask: Tensor) -> Tensor:
        """Where a mask is true that is true everywhere: as many places as it has elements, at every size."""
        if not any(isinstance(n, torch.SymInt) for n in mask.shape):
            return self._sized_constant(aten.nonzero.default, [mask], {})  # type: ignore[no-any-return]
        with self._trace.tracer:
            flat = aten.arange.default(math.prod(mask.shape), device=mask.device)
            steps = [math.prod(mask.shape[d + 1 :]) for d in range(mask.dim())]
            return torch.stack([flat // step % n for step, n in zip(steps, mask.shape, strict=True)], 1)

    def _sized_constant(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        real = self.tape.constant(op, args, kwargs)
        reals = several(real)
        if sum(r.nbytes for r in reals) <= _SMALL or not self.tape.is_exact([*args, *kwargs.values()]):
            with self._trace.tracer:
                outs = tuple(aten.lift_fresh.default(r) for r in reals)
            return outs if isinstance(real, (list, tuple)) else outs[0]
        outs = self._as_fakes(reals)
        out = outs if isinstance(real, (list, tuple)) else outs[0]
        self.tape.note(op, args, kwargs, out)
        self.tape.keep(outs, reals, is_constant=True)
        if self._trace.graph is not None:
            self._trace.record(op, args, kwargs, out)
        return out

    def _as_fakes(self, reals: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with without_modes():
            return tuple(self._trace.fakes.from_tensor(r, static_shapes=True) for r in reals)

    def by_places(self, op: Any, args: Sequence[Any]) -> Any:
        """The result of an operator of ``BY_MASK``, computed with the places where its masks are true: so its size
        is known, and that of its gradient: one read serves all who ask. ``NotImplemented`` where eager PyTorch's
        call is as good."""
        x, masks, *rest = args
        if not isinstance(masks, Tensor):
            return self._at_places(op, x, masks, rest) if any(map(self._is_mask, masks)) else NotImplemented
        if not ((self.allowed and op is aten.masked_select.default) or self.tape.is_constant(masks)):
            return NotImplemented
        shape = torch.broadcast_shapes(x.shape, masks.shape) or (1,)  # type: ignore[no-untyped-call]
        with self._trace.tracer:
            masks = masks if shape == masks.shape else masks.expand(shape)
            if op is aten.masked_select.default:
                return aten.index.Tensor(x.expand(shape), [masks])
            places, (source,) = self._places(masks) if shape == x.shape else (), rest
            if not places or places[0].numel() > source.numel():
                return NotImplemented
            flat = (
                source if source.is_contiguous() else aten.clone.default(source, memory_format=torch.contiguous_format)
            )
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
                        f"The shape of the mask {list(at.shape)} at index {i} does not match the shape of the indexed "
                        f"tensor {list(x.shape)} at index {d}"
                    )
            return op(x, found, *rest)

    def _is_mask(self, index: Any) -> bool:
        is_mask = isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) and index.dim() > 0
        return is_mask and (self.allowed or self.tape.is_constant(index))

    def _places(self, mask: Tensor) -> Sequence[Tensor]:
        """Where a mask is true, along each dimension: one answer serves all who ask, forward and backward."""
        graph, places = self._found.get(id(mask), (None, None))
        if places is None or graph is not self._trace.graph:  # a body of control flow has a graph of its own
            places = aten.nonzero.default(mask).unbind(1)
            self._found[id(mask)] = self._trace.graph, places
        return places

    # ── checks in the graph ──────────────────────────────────────────────────────────────────────────────────────

    def _node(self, fake: Tensor) -> Any:
        return None if self._trace.graph is None else self._trace.node(fake)

    def _asked(self, op: Any, args: Sequence[Any], kwargs: dict[str, Any], answer: Any) -> Any:
        """The node of an operator that answers with no tensor."""
        return None if self._trace.graph is None else self._trace.call(op, args, kwargs, answer)

    def _expect(self, node: Any, value: Any) -> None:
        """The program is for calls in which the last read is this."""
        if self._trace.graph is not None:
            self._trace.call(expect, (node, len(self.done) - 1, value), {}, None)


def _like(real: Tensor, size: Sequence[int]) -> Tensor:
    """A tensor of another size that lies as a real one does: what a kernel rounds otherwise may be more, or fewer,
    elements."""
    order = sorted(range(real.dim()), key=real.stride, reverse=True)
    made = real.new_empty([size[d] for d in order])
    return made.permute([order.index(d) for d in range(real.dim())])
