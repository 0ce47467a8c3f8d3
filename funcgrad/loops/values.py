"""Values: tensors as functions of their index, before anything is said about loops or memory.

A value is made from others by a pointwise operation (``Map``), a reduction (``Reduce``) or another way to look at it
(``View``); by an index that is computed, or in order, in ``gather``, ``scatter`` and ``scan``. ``Memory`` is where it
begins, a tensor that exists when the kernels run. Equal values are one object (hash consing): common subexpressions are
gone. Operators work as on tensors: ``x * sigmoid(x)``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from attrs import field, frozen

from ..errors import GraphError
from ..symbolic.known import is_few, same_sizes
from ..symbolic.sizes import Size, hint
from .index import ZERO, Axis, Bound, Index, at_axis, bounded, flat, row_major, substitute, unravel

_known: WeakValueDictionary[tuple[Any, ...], Value] = WeakValueDictionary()


@frozen(eq=False)
class Value:
    """A tensor: ``shape`` and ``dtype``; a subclass says how an element is computed."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    _about: int | None = field(init=False, repr=False, default=None)

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def about(self) -> int:
        """How many elements there are in the call that is compiled: for costs, of which many ask."""
        found = self._about
        if found is None:
            found = hint(self.numel)
            object.__setattr__(self, "_about", found)
        return found

    @property
    def nbytes(self) -> int:
        """In the call that is compiled: for costs."""
        return self.about * self.dtype.itemsize

    @property
    def inputs(self) -> tuple[Value, ...]:
        return ()

    def __add__(self, other: Any) -> Value:
        return pointwise("add", self, other)

    def __sub__(self, other: Any) -> Value:
        return pointwise("sub", self, other)

    def __mul__(self, other: Any) -> Value:
        return pointwise("mul", self, other)

    def __truediv__(self, other: Any) -> Value:
        return pointwise("div", self, other)

    def __radd__(self, other: Any) -> Value:
        return pointwise("add", other, self)

    def __rsub__(self, other: Any) -> Value:
        return pointwise("sub", other, self)

    def __rmul__(self, other: Any) -> Value:
        return pointwise("mul", other, self)

    def __rtruediv__(self, other: Any) -> Value:
        return pointwise("div", other, self)

    def __neg__(self) -> Value:
        return pointwise("neg", self)


@frozen(eq=False)
class Memory(Value):
    """A tensor in memory when the kernels run: an input, or what a library call returned. Strides count elements."""

    name: str
    strides: tuple[int, ...]


@frozen(eq=False)
class Scalar(Memory):
    """A float of Python that is known when the program runs: it takes on the dtype of what it is computed with."""


@frozen(eq=False)
class Number(Value):
    """One number, the same on every run."""

    value: Any


@frozen(eq=False)
class Count(Value):
    """The index along one dimension, as a value."""

    dim: int


def is_given(value: Value) -> bool:
    """Whether it takes no operation of its own: memory, a number, the index, or another way to look at a value."""
    return isinstance(value, (Memory, Number, Count, View))


def whole(value: Value) -> Value:
    """What a view looks at; else the value itself."""
    while isinstance(value, View):
        value = value.arg
    return value


@frozen(eq=False)
class Map(Value):
    """One operation for each element; the arguments are broadcast to ``shape``."""

    op: str
    args: tuple[Value, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        return self.args


@frozen(eq=False)
class Reduce(Value):
    """``kind`` over the dimensions ``dims`` of ``arg``, which are gone from the result."""

    kind: str
    arg: Value
    dims: tuple[int, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.arg,)


@frozen(eq=False)
class View(Value):
    """Elements of another value: ``where`` says, in terms of ``axes_of(shape)``, which one stands at an index."""

    arg: Value
    where: tuple[Index, ...]

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.arg,)


@frozen(eq=False)
class Within(Value):
    """Elements of ``arg`` at ``where`` if every one of ``bounds`` holds, else those of ``other`` (all in terms of
    ``axes_of(shape)``)."""

    arg: Value
    where: tuple[Index, ...]
    bounds: tuple[Bound, ...]
    other: Value

    @property
    def inputs(self) -> tuple[Value, ...]:
        return (self.arg, self.other)


def broadcast_shapes(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The shape of an operation on tensors of these shapes."""
    rank = max(map(len, shapes))
    columns = zip(*((1,) * (rank - len(shape)) + tuple(shape) for shape in shapes), strict=True)
    return tuple(next((n for n in sizes if n != 1), 1) for sizes in columns)


class MixedDtypesError(TypeError):
    """An operation was asked for on values of different dtypes; a row of the table has to say how they are promoted."""


def axes_of(shape: Sequence[int]) -> tuple[Axis, ...]:
    """The axes in terms of which views of this shape are written."""
    return tuple(Axis(f"d{i}", size) for i, size in enumerate(shape))


def own_index(shape: Sequence[int]) -> tuple[Index, ...]:
    return tuple(at_axis(axis) for axis in axes_of(shape))


def broadcast(shape: Sequence[int], to: Sequence[int]) -> tuple[Index, ...]:
    """The index into a tensor of ``shape`` that is broadcast to a shape, in terms of ``axes_of(to)``."""
    own = own_index(to)[len(to) - len(shape) :]
    return tuple(ZERO if n == 1 else i for i, n in zip(own, shape, strict=True))


def made(kind: type[Value], *fields: Any) -> Any:
    """The value with these fields: equal ones are one object."""
    # numbers are told apart by how they are written: 0.0 is not -0.0, True is not 1, and nan is nan
    key = (kind, *(repr(f) if kind is Number and f is fields[-1] and not isinstance(f, Size) else f for f in fields))
    found = _known.get(key)
    if found is None:
        found = kind(*fields)
        _known[key] = found
    return found


# ── making ───────────────────────────────────────────────────────────────────────────────────────────────────────


def memory(name: str, shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype) -> Memory:
    """A tensor that exists; each call makes another one."""
    return Memory(tuple(shape), dtype, name, tuple(strides))


def number(value: Any, dtype: torch.dtype, shape: Sequence[int] = ()) -> Value:
    """A tensor that holds one number everywhere."""
    return made(Number, tuple(shape), dtype, value)  # type: ignore[no-any-return]


def zeros(shape: Sequence[int], dtype: torch.dtype) -> Value:
    """A tensor of zeros."""
    return number(0.0 if dtype.is_floating_point else False if dtype == torch.bool else 0, dtype, shape)


def count(shape: Sequence[int], dim: int) -> Value:
    """The index along ``dim``, int64."""
    return made(Count, tuple(shape), torch.int64, dim)  # type: ignore[no-any-return]


HALF = (torch.float16, torch.bfloat16)

_JUMPS = {"floor", "ceil", "trunc", "round", "sign", "fmod", "remainder"}
"""Operations of which the least difference in an argument may make another result, beside those whose result is no
float: comparisons, casts to whole numbers."""


def held(value: Value) -> Value:
    """The numbers that a tensor of the value's dtype holds: half precision is computed as float, and rounded where it
    is written to memory."""
    found = whole(value)
    if value.dtype not in HALF or is_given(found) or (isinstance(found, Map) and found.op == "cast"):
        return value
    return made(Map, value.shape, value.dtype, "cast", (value,))  # type: ignore[no-any-return]


def pointwise(op: str, *args: Any, dtype: torch.dtype | None = None) -> Value:
    """An operation on values and numbers, all of one dtype (that of the first value), giving that dtype unless told
    otherwise."""
    kind = next(a.dtype for a in args if isinstance(a, Value))
    values = tuple(a if isinstance(a, Value) else number(a, kind) for a in args)
    if op in _JUMPS or not (dtype or kind).is_floating_point:
        values = tuple(map(held, values))
    if op not in ("where", "cast") and any(v.dtype != kind for v in values):
        raise MixedDtypesError(f"{op} of {', '.join(str(v.dtype) for v in values)}")
    return made(Map, broadcast_shapes([v.shape for v in values]), dtype or kind, op, values)  # type: ignore[no-any-return]


def compare(op: str, a: Any, b: Any) -> Value:
    """A comparison: bool."""
    return pointwise(op, a, b, dtype=torch.bool)


def where(condition: Value, a: Any, b: Any) -> Value:
    """``a`` where the condition holds, else ``b``."""
    kind = next(x.dtype for x in (a, b) if isinstance(x, Value))
    a, b = (x if isinstance(x, Value) else number(x, kind) for x in (a, b))
    return pointwise("where", condition, a, b, dtype=kind)


def cast(value: Value, dtype: torch.dtype) -> Value:
    """The same numbers in another dtype, rounded as PyTorch rounds."""
    if value.dtype == dtype:
        return value
    if isinstance(value, Number) and dtype.is_floating_point and not isinstance(value.value, complex):
        return number(value.value if isinstance(value.value, Size) else float(value.value), dtype, value.shape)
    return pointwise("cast", value, dtype=dtype)


_UNROLLED = 8
"""A sum of so few elements is a sum, not a loop."""


def reduce(kind: str, value: Value, dims: Sequence[int] | None = None, keepdim: bool = False) -> Value:
    """``kind`` (sum, prod, max, min, any, all) over dimensions; all of them by default."""
    rank = len(value.shape)
    gone = tuple(sorted({d % rank for d in dims})) if dims is not None and rank else tuple(range(rank))
    rest = tuple(n for d, n in enumerate(value.shape) if d not in gone)
    length = math.prod(value.shape[d] for d in gone)
    parts = parts_of(value, gone)
    if length == 1:
        result = reshape(value, rest)
    elif parts:  # no element need ask which part it is of
        result = functools.reduce(
            functools.partial(pointwise, PAIRWISE[kind]), [reduce(kind, part, gone) for part in parts[1]]
        )
    elif is_few(length, _UNROLLED) and length > 0 and math.prod(rest) > 1:
        result = _unrolled(kind, value, gone, rest)
    else:
        result = made(Reduce, rest, value.dtype, kind, value, gone)
    return reshape(result, tuple(1 if d in gone else n for d, n in enumerate(value.shape))) if keepdim else result


PAIRWISE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
"""The operation that a reduction repeats."""


def neutral(kind: str, dtype: torch.dtype) -> float:
    """What a reduction of numbers of a dtype begins with."""
    if kind in ("sum", "any"):
        return 0
    if kind in ("prod", "all"):
        return 1
    if dtype.is_floating_point:
        return -math.inf if kind == "max" else math.inf
    info = torch.iinfo(dtype)
    return info.min if kind == "max" else info.max


def parts_of(value: Value, dims: Sequence[int]) -> tuple[int, list[Value]] | None:
    """One of ``dims``, and what a tensor is if it is parts one after the other along it."""
    for dim in dims if isinstance(value, Within) else ():
        found: list[Value] = []
        own, end, rest = own_index(value.shape), 0, value
        while isinstance(rest, Within) and rest.bounds[0][:2] == (own[dim], end):
            if len(rest.bounds) > 1 or rest.where != (*own[:dim], own[dim] - end, *own[dim + 1 :]):
                break
            found.append(rest.arg)
            end, rest = rest.bounds[0][2], rest.other
        if found and end == value.shape[dim]:
            return dim, found
    return None


def _unrolled(kind: str, value: Value, gone: Sequence[int], rest: tuple[int, ...]) -> Value:
    sizes = [value.shape[d] for d in gone]
    result: Value | None = None
    for i in range(math.prod(sizes)):
        at = dict(zip(gone, unravel(Index((), i), sizes), strict=True))
        axes = iter(own_index(rest))
        term = look(value, rest, [at[d] if d in at else next(axes) for d in range(len(value.shape))])
        result = term if result is None else pointwise(PAIRWISE[kind], result, term)
    assert result is not None
    return result


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────


def look(value: Value, shape: Sequence[int], where: Sequence[Index]) -> Value:
    """The view of ``value`` with the element at ``where`` (in terms of ``axes_of(shape)``) at each index."""
    shape, where = tuple(shape), tuple(where)
    require_inside(value, where, ())
    if isinstance(value, Number):
        return number(value.value, value.dtype, shape)
    value, where = _element(value, where)
    if where == own_index(shape) and same_sizes(shape, value.shape):
        return value
    return made(View, shape, value.dtype, value, where)  # type: ignore[no-any-return]


def reshape(value: Value, shape: Sequence[int]) -> Value:
    """The same elements in row-major order."""
    shape = tuple(shape)
    if same_sizes(shape, value.shape):
        return value
    if math.prod(shape) == 0 or isinstance(value, Number):
        return look(value, shape, [ZERO] * len(value.shape))
    return look(value, shape, unravel(flat(own_index(shape), row_major(shape)), value.shape))


def permute(value: Value, dims: Sequence[int]) -> Value:
    """Dimension ``i`` of the result is dimension ``dims[i]`` of ``value``."""
    rank = len(value.shape)
    dims = [d % rank for d in dims]
    shape = [value.shape[d] for d in dims]
    own = own_index(shape)
    return look(value, shape, [own[dims.index(d)] for d in range(rank)])


def expand(value: Value, shape: Sequence[int]) -> Value:
    """Broadcast; -1 keeps a size."""
    new = len(shape) - len(value.shape)
    sizes = [value.shape[i - new] if n == -1 else n for i, n in enumerate(shape)]
    own = own_index(sizes)
    return look(value, sizes, [ZERO if n == 1 else own[i + new] for i, n in enumerate(value.shape)])


def narrow(value: Value, dim: int, start: int, length: int, step: int = 1) -> Value:
    """Every ``step``-th element from ``start`` on along one dimension, ``length`` of them."""
    dim %= len(value.shape)
    shape = [length if d == dim else n for d, n in enumerate(value.shape)]
    own = list(own_index(shape))
    own[dim] = own[dim] * step + start
    return look(value, shape, own)


def select(value: Value, dim: int, at: int) -> Value:
    """One element along a dimension, which is gone."""
    dim %= len(value.shape)
    shape = [n for d, n in enumerate(value.shape) if d != dim]
    own: list[Index] = list(own_index(shape))
    own.insert(dim, Index((), at % value.shape[dim]))
    return look(value, shape, own)


def flip(value: Value, dims: Sequence[int]) -> Value:
    """Back to front along dimensions."""
    rank = len(value.shape)
    gone = {d % rank for d in dims}
    own = own_index(value.shape)
    return look(
        value,
        value.shape,
        [i * -1 + (n - 1) if d in gone else i for d, (i, n) in enumerate(zip(own, value.shape, strict=True))],
    )


def within(value: Value, where: Sequence[Index], bounds: Sequence[Bound], other: Value) -> Value:
    """``other``, with elements of ``value`` in the places that ``bounds`` describe."""
    require_inside(value, where, bounds)
    if value.dtype == other.dtype and _element(value, where) == _element(other, own_index(other.shape)):
        return other  # what is put there was taken from there: x[1:] += y ends so
    return made(Within, other.shape, other.dtype, value, tuple(where), tuple(bounds), other)  # type: ignore[no-any-return]


def _element(value: Value, where: Sequence[Index]) -> tuple[Value, tuple[Index, ...]]:
    """What is read at an index, and where there."""
    if not isinstance(value, View):
        return value, tuple(where)
    inner = dict(zip(axes_of(value.shape), where, strict=True))
    return value.arg, tuple(substitute(index, inner) for index in value.where)


def require_inside(value: Value, where: Sequence[Index], bounds: Sequence[Bound]) -> None:
    """Prove that an element asked for is one of the value's."""
    for index, n in zip(where, value.shape, strict=True):
        low, high = bounded(index, bounds)
        if (low < 0 or high >= n) and low <= high and value.numel:
            raise GraphError(f"element {index} of a dimension of {n} elements may be asked for: from {low} to {high}")


def insert(value: Value, other: Value, dim: int, start: int, step: int = 1) -> Value:
    """``other``, with ``value`` at every ``step``-th place from ``start`` on along one dimension."""
    dim %= len(other.shape)
    own = list(own_index(other.shape))
    at, n = own[dim], value.shape[dim]
    bounds: list[Bound] = [(at, start, start + (n - 1) * step + 1)]
    if step > 1:
        bounds.append(((at + -start % step) % step, 0, 1))
    own[dim] = (at - start) // step if step > 1 else at - start
    return within(value, own, bounds, other)


def concatenate(values: Sequence[Value], dim: int) -> Value:
    """One after the other along a dimension."""
    dim %= len(values[0].shape)
    total = sum(v.shape[dim] for v in values)
    shape = [total if d == dim else n for d, n in enumerate(values[0].shape)]
    last, start = values[-1], total - values[-1].shape[dim]
    own = list(own_index(shape))
    at = own[dim]
    own[dim] = at - start
    # every place but the last one's is written by another: where nothing is, zero is read
    result = within(last, own, [(at, start, total)], zeros(shape, last.dtype))
    for value in reversed(values[:-1]):
        start -= value.shape[dim]
        result = insert(value, result, dim, start)
    return result


# ── walking ──────────────────────────────────────────────────────────────────────────────────────────────────────


def below(roots: Sequence[Value], stop: Callable[[Value], bool] = lambda v: False) -> list[Value]:
    """All values some are made of, themselves included, each after what it is made of; not beyond those where
    ``stop``."""
    found: dict[Value, None] = {}
    pending: list[tuple[Value, bool]] = [(root, False) for root in reversed(roots)]
    while pending:
        value, ready = pending.pop()
        if value in found:
            continue
        if ready or stop(value):
            found[value] = None
        else:
            pending.append((value, True))
            pending += [(v, False) for v in reversed(value.inputs) if v not in found]
    return list(found)
