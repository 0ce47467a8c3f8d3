"""The calls besides ATen's that a graph may hold: expressions and sizes, checks, opaque calls, one of several
results."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from types import CodeType
from typing import Any

import torch
from attrs import field, frozen
from torch import Tensor

from .errors import OpaqueCallError
from .symbolic.polynomials import LEAST
from .torch_private.texts import contents_of


def scalar(expression: str | CodeType, **symbols: Any) -> Any:
    """The value of a Python expression over symbolic inputs: arithmetic on floats and sizes."""
    return eval(expression, {"math": math, "torch": torch}, symbols)


def all_of(conditions: Iterable[str]) -> CodeType:
    """Conditions over symbolic inputs as one, for ``guard_holds``: compiled once."""
    return compile(" and ".join(f"({c})" for c in conditions) or "True", "<guards>", "eval")


def guard_holds(condition: str | CodeType, **symbols: Any) -> bool:
    """Whether a condition over symbolic inputs holds; one that cannot be computed (a division by zero) does not."""
    try:
        return bool(scalar(condition, **symbols))
    except (ArithmeticError, ValueError):
        return False


def size(tensor: Tensor, dim: int) -> int:
    """A size of an input, where it is a symbol."""
    return tensor.shape[dim]


def stride(tensor: Tensor, dim: int) -> int:
    """A stride of an input, where it is a symbol that follows from no sizes."""
    return tensor.stride(dim)


SIZES = (size, stride)
"""What computes numbers of how tensors lie, and of none of their values."""


def require_false(condition: Tensor, message: str) -> None:
    """A check on values, made when the program runs: raises ``ValueError(message)`` where the condition is true."""
    if condition:
        raise ValueError(message)


def require_true(condition: Tensor, message: str) -> None:
    """A check of PyTorch's own on values, made when the program runs: raises ``RuntimeError(message)`` where the
    condition is false."""
    if not condition:
        raise RuntimeError(message)


def require_of_autograd(condition: Tensor, message: str) -> None:
    """The same of what autograd's own engine asks, and no transform of ``torch.func``."""
    require_true(condition, message)


@frozen
class AnyNumber:
    """In the place of a number that was read: one that is a symbol of the program. ``now``: its value in this call,
    where a kernel has computed it, which rounds otherwise than eager PyTorch."""

    kind: type
    now: Any = field(default=None, eq=False)

    def __repr__(self) -> str:
        return f"any {self.kind.__name__}"


Path = tuple[Any, ...]
"""What Python reads first, in this order: values, sizes of results, ``AnyNumber``; None for what it is now."""


@frozen
class Read:
    """What Python read: the value of a tensor, or the sizes of the results of an operator."""

    value: Any
    where: str | None
    during: str

    def __str__(self) -> str:
        return f"{self.value!r} at {self.where}"


class PathMiss(Exception):  # noqa: N818 another path of the program is asked for: no error
    """What Python read of a value while a program was made is another now: ``read`` is the number of the read."""

    def __init__(self, read: int, value: Any) -> None:
        self.read, self.value = read, _fixed(value)
        super().__init__(f"read {read} is {self.value!r} now")


def _fixed(value: Any) -> Any:
    """A value, where the graph runs in another trace: a symbol of that is the number it is now, from here on."""
    if type(value) in (tuple, list):
        return type(value)(map(_fixed, value))
    return (
        float(value) if isinstance(value, torch.SymFloat) else int(value) if isinstance(value, torch.SymInt) else value
    )


def expect(value: Any, read: int, expected: Any) -> None:
    """A check that the program is for this call: raises ``PathMiss`` where a value that Python read is not what it
    was."""
    expected = [*expected] if isinstance(expected, list) else expected  # a graph's own class of lists
    now = _read_as(type(expected), value) if isinstance(value, Tensor) else value
    if not is_same_value(now := _fixed(now), expected):
        raise PathMiss(read, now)


def _read_as(kind: type, value: Tensor) -> Any:
    """What Python reads of a tensor: its values as a list, or as text; or its only one."""
    return value.tolist() if kind is list else contents_of(value) if kind is str else value.item()


def on_path(holds: Any, read: int, value: Any) -> None:
    """The same where a number that was read is a symbol: raises ``PathMiss`` where a condition on it does not hold."""
    if not holds:
        raise PathMiss(read, value)


def item_of(value: Tensor) -> Any:
    """The number in a tensor, where Python reads it and it is a symbol."""
    return value.item()


def is_same_value(a: Any, b: Any) -> bool:
    """Whether two values that were read are one: 0.0 is not -0.0, and nan is nan."""
    if isinstance(a, AnyNumber) or isinstance(b, AnyNumber):
        return _kind(a) is _kind(b)
    if type(a) is tuple and type(b) is tuple:
        return len(a) == len(b) and all(map(is_same_value, a, b))
    return type(a) is type(b) and (a is b or repr(a) == repr(b))


def numbers_replaced(by: Callable[[AnyNumber, Any], Any], value: Any, beside: Any = None) -> Any:
    """What was read, with something else for each number in it that is a symbol: ``by`` is given what stands
    ``beside`` it, too."""
    if isinstance(value, AnyNumber):
        return by(value, beside)
    if type(value) is tuple:
        others = beside if type(beside) is tuple and len(beside) == len(value) else (None,) * len(value)
        return tuple(numbers_replaced(by, v, other) for v, other in zip(value, others, strict=True))
    return value


def in_any_call(value: Any) -> Any:
    """What was read, for another call: a number that is a symbol is another one then."""
    return numbers_replaced(lambda number, _: AnyNumber(number.kind), value)


def known_now(value: Any) -> Any:
    """What was read in this call, without symbols; None where it has to be read again."""
    found = numbers_replaced(lambda number, _: number.now, value)
    return None if type(found) is tuple and any(n is None for shape in found for n in shape) else found


def sizes_varied(now: Any, other: Any) -> Any:
    """Sizes that were read, with symbols for those that are others on another path."""
    if type(now) is tuple and type(other) is tuple and len(now) == len(other):
        found = tuple(map(sizes_varied, now, other))
        return now if all(a is b for a, b in zip(found, now, strict=True)) else found
    varies = (
        type(now) is int and now >= LEAST and (isinstance(other, AnyNumber) or (type(other) is int and other != now))
    )
    return AnyNumber(int, now) if varies else now


def has_sizes(value: Any) -> bool:
    """Whether a number among what was read may be a size that is a symbol."""
    return any(map(has_sizes, value)) if type(value) is tuple else isinstance(value, AnyNumber) and value.kind is int


def has_symbols(value: Any) -> bool:
    """Whether a number among what was read is a symbol."""
    return isinstance(value, AnyNumber) or (type(value) is tuple and any(map(has_symbols, value)))


def _kind(value: Any) -> type:
    return value.kind if isinstance(value, AnyNumber) else type(value)


Shapes = tuple[tuple[Any, ...], ...]
"""Sizes of the results of an operator, some of which may be ``AnyNumber``."""


def several(found: Any) -> Sequence[Any]:
    """What an operator made, one thing or several."""
    return found if isinstance(found, (list, tuple)) else (found,)


def shapes_of(found: Any) -> Shapes:
    """The sizes of what an operator made."""
    return tuple(tuple(t.shape) for t in several(found))


@frozen(eq=False, repr=False)
class Sized:
    """An operator whose results have other sizes for other values, called where Python went on by their sizes: raises
    ``PathMiss`` where they are not ``sizes``, before anybody sees them.

    ``symbols``: the names of those sizes that are symbols, and where each is: in which result, along which dimension.
    """

    op: Any
    read: int
    sizes: Shapes
    symbols: tuple[tuple[str, int, int], ...] = ()
    _known: tuple[tuple[int, int, int], ...] = field(init=False)
    """In which result, along which dimension, each size is that is no symbol, and the size."""

    @_known.default
    def _of_sizes(self) -> tuple[tuple[int, int, int], ...]:
        every = ((i, d, n) for i, shape in enumerate(self.sizes) for d, n in enumerate(shape))
        return tuple((i, d, n) for i, d, n in every if not isinstance(n, AnyNumber))

    @property
    def __name__(self) -> str:
        return str(self.op.__name__)

    __module__ = "funcgrad"  # fx asks a call's target for it

    def __repr__(self) -> str:
        return f"{self.op} of sizes {', '.join(map(str, self.sizes))}"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        found = self.op(*args, **kwargs)
        results = several(found)
        for i, d, n in self._known:
            if results[i].shape[d] != n:
                raise PathMiss(self.read, shapes_of(found))
        return found


@frozen(eq=False, repr=False)
class NumberAsSize:
    """A number where it is a size of what is made: a symbol of this name. ``read``: which of what Python read it is
    computed of; it is called with that, besides, and conditions on it are checked there. None for a number that is
    computed of what the call is given: conditions on it are guards."""

    symbol: str
    read: int | None

    @property
    def __name__(self) -> str:
        return "number_as_size"

    __module__ = "funcgrad"  # fx asks a call's target for it

    def __repr__(self) -> str:
        return "size that is given" if self.read is None else f"size of read {self.read}"

    def __call__(self, number: int, read: Any = None) -> int:
        return number


CHECKS = (require_false, require_true, require_of_autograd, expect, on_path)
"""Calls without a result, that may raise."""


def getitem(values: Sequence[Any], i: int) -> Any:
    """One of an op's several results."""
    return values[i]


def again(value: Tensor) -> Tensor:
    """The same tensor: what is computed from it is computed, whether or not an equal value was computed before."""
    return value


Look = tuple[torch.dtype, int] | type
"""Dtype and number of dimensions of a tensor: sizes may be symbols. The type of what is none."""


@frozen(eq=False, repr=False)
class Opaque:
    """What an opaque call runs: ``function``, of tensors and numbers, which returns a tensor, a tuple of some, or None.

    ``writes``: the positions of arguments that it may write to. ``returns``: how its results look, which is checked in
    each call. A program that calls it runs it once for each call in the graph, in the order of the graph, in the pass
    in which it was recorded. One that ``is_pure`` computes its results and does nothing else: it is dropped where
    nobody reads them, and keeps no order. ``traced``: the same as a call of a graph, for values that a trace or a
    transform knows; ``function`` knows real ones alone. ``takes_none``: a hook, which is given None where there is no
    gradient, and then gives none.
    """

    function: Callable[..., Any]
    name: str
    writes: tuple[int, ...] = ()
    returns: tuple[Look, ...] = field(default=(), kw_only=True)
    is_pure: bool = field(default=False, kw_only=True)
    traced: Callable[..., tuple[Any, ...]] | None = field(default=None, kw_only=True)
    takes_none: bool = field(default=False, kw_only=True)

    @property
    def __name__(self) -> str:
        return self.name

    __module__ = "funcgrad"  # fx asks a call's target for it

    def __repr__(self) -> str:
        return f"opaque {self.name}"

    def __call__(self, *values: Any) -> tuple[Any, ...]:
        """As a call of a graph: its results, then what each argument holds that it writes to. Its arguments stay as
        they are."""
        if self.traced is not None:
            return self.traced(*values)
        return self.in_place(*(v.clone() if i in self.writes else v for i, v in enumerate(values)))

    def in_place(self, *values: Any) -> tuple[Any, ...]:
        """The same, of arguments of which those it writes to are its own."""
        found = self.function(*values)
        if found is None and not (self.returns or self.writes):
            return ()
        results = (
            found
            if type(found) is tuple
            else ()
            if found is None
            else tuple(found)
            if isinstance(found, (tuple, list))
            else (found,)
        )
        if tuple(map(look_of, results)) != self.returns:
            now, then = (", ".join(map(_look_text, looks)) for looks in (map(look_of, results), self.returns))
            raise OpaqueCallError(
                f"{self.name} returned ({now}) and was to return ({then})",
                where=self.name,
                fix="let it return tensors of these dtypes and numbers of dimensions on each call, or name what it "
                "returns now",
            )
        return (*results, *(values[i] for i in self.writes)) if self.writes else results


def look_of(value: Any) -> Look:
    return (value.dtype, value.ndim) if isinstance(value, Tensor) else type(value)


def _look_text(look: Look) -> str:
    return look.__name__ if isinstance(look, type) else f"{str(look[0]).removeprefix('torch.')} {look[1]}-d"
