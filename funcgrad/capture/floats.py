"""Symbolic floats and ints: numbers of Python that a program is given when it is called, in the trace of it.

A ``Float`` is computed with like the ``float`` it stands for, to the last bit, infinities, NaN and signed zeros
included, an ``Int`` like the ``int``, however large: the arithmetic, and what functions of ``math`` make of it, is
written down as Python, for the program to carry out. Whatever else is asked of one (a comparison, ``if v:``,
``int(v)``, ``range(v)``) is answered by its value now, its *hint*, and becomes a guard: the program is for the values
with which the answer is the same. No value is special, and none is looked at without a guard.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import SymBool, SymFloat, SymInt, Tensor

from ..state.lines import user_line
from ..torch_private.symbols import NumberBelow, constant_bool, expression, python_text

_LONGEST = 4000
"""What takes more characters to write down is fixed to its value."""
_EXACT = 1 << 53
"""Up to here each int is a float."""
_FINEST = 1 << 10
"""A size times a fraction with so large a denominator, a power of two, is exact."""


class NotSymbolicError(Exception):
    """A function does not trace with symbols: it, or what it calls, has to know a number. It is traced with the
    value instead."""


class VaryingNumbersError(NotSymbolicError):
    """A function returns, or stores, numbers that are computed of sizes, which its dry run saw as constants:
    ``names`` says where."""

    def __init__(self, names: frozenset[str]) -> None:
        super().__init__(f"{', '.join(sorted(names))} is computed of sizes")
        self.names = names


class Floats:
    """The symbolic floats and ints of one trace, and the guards they leave."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """By symbol, the name of what it stands for."""
        self.guards: dict[str, None] = {}
        """Conditions over symbols, as Python, in the order in which they were asked; one that raises does not hold."""
        self.by_value: set[str] = set()
        """Those that fix what is computed of symbols to its value."""
        self.lines: dict[str, str] = {}
        """Where in the caller's code a guard was asked first."""
        self.ints = False
        """Whether some are ints."""
        self.shown: Callable[[Any, str, tuple[str, ...]], str | None] = lambda *_: None
        """What stands for the text of a number where that is only printed, or logged; ``None`` elsewhere."""

    def symbol(self, name: str, value: float) -> Float | Int:
        """A new symbol for the number of this name."""
        symbol = f"{type(value).__name__}_{len(self.names)}"
        self.names[symbol] = name
        return wrapped(NumberNode(self, symbol, value, frozenset({symbol})))  # type: ignore[no-any-return]

    def object(self, value: Any) -> Any:
        """A number as one that is told by identity from any other, as those the function makes are; ints of Python
        are not."""
        if type(value) is not int:
            return value
        return wrapped(NumberNode(self, _written(value), value, frozenset()))

    def node(self, value: Any) -> NumberNode | None:
        """A number as an expression; PyTorch's own symbols, too, which are sizes or are computed from sizes. None
        for what is no number."""
        if type(value) in (int, float, bool):
            return NumberNode(self, _written(value), value, frozenset())
        if isinstance(value, (SymFloat, SymInt, SymBool)):
            if isinstance(value.node, NumberNode):
                return value.node
            if not value.node.is_constant():
                expr = expression(value)
                return NumberNode(
                    self, f"({python_text(expr)})", value.node.hint, frozenset(map(str, expr.free_symbols))
                )
        return None

    def exact(self, value: SymFloat, quotient: tuple[Any, Any] | None = None) -> SymFloat:
        """A symbolic float of PyTorch's as one of ours: PyTorch takes real numbers for granted, and puts their terms
        in another order. ``quotient``: the sizes of which it is one, which rounds to a size."""
        node = self.node(value)
        if node is None or node is value.node:
            return value
        node.quotient = quotient
        return Float(node)

    def ask(self, text: str, answer: Any) -> None:
        """A question that the trace went on by: from now on it must have the same answer."""
        if isinstance(answer, bool):
            self._note(text if answer else f"not {text}")
            return
        exact = isinstance(answer, complex) or answer == 0 or answer != answer  # 0.0 is not -0.0, and NaN is NaN
        guard = f"repr({text}) == {str(answer)!r}" if exact else f"{text} == {_written(answer)}"
        self._note(guard)
        self.by_value.add(guard)

    def _note(self, guard: str) -> None:
        self.guards[guard] = None
        self.note_line(guard)

    def note_line(self, guard: str) -> None:
        """Remember the line of the caller's code that runs now as that which makes a guard."""
        if guard not in self.lines and (line := user_line()) is not None:
            self.lines[guard] = line


class NumberNode(NumberBelow):
    """An expression over symbols, as Python, and its value now. Its methods are what PyTorch asks for below a
    ``SymFloat``."""

    def __init__(self, floats: Floats, text: str, hint: Any, symbols: frozenset[str]) -> None:
        self.floats, self.text, self.hint, self.symbols = floats, text, hint, symbols
        self.kind = type(hint)
        self.quotient: tuple[Any, Any] | None = None
        """The sizes of PyTorch's of which it is the quotient."""

    def has_hint(self) -> bool:
        return True

    def bool_(self) -> bool:
        return self.answer("bool({})", bool)  # type: ignore[no-any-return]

    def guard_float(self, file: str = "", line: int = 0) -> float:
        """Its value: the program is for this one."""
        return self.answer("{}", float)  # type: ignore[no-any-return]

    def guard_int(self, file: str = "", line: int = 0) -> int:
        """The same for an int."""
        return self.answer("{}", int)  # type: ignore[no-any-return]

    def sym_float(self) -> NumberNode:
        return self

    def wrap_float(self, value: Any) -> NumberNode:
        node = self.floats.node(value)
        assert node is not None
        return node

    wrap_int = wrap_bool = wrap_float  # Python computes with those as they are

    def __repr__(self) -> str:
        return self.text

    _graph_repr = __repr__

    def answer(self, question: str, function: Callable[..., Any], *others: NumberNode) -> Any:
        """What is no arithmetic on floats: the answer now, which becomes a guard."""
        answer = function(self.hint, *(other.hint for other in others))
        text = question.format(self.text, *(other.text for other in others))
        if self.symbols.union(*(other.symbols for other in others)):
            self.floats.ask(text, answer)
        return answer

    def computed(self, text: str, function: Callable[..., Any], *others: NumberNode, may_raise: bool = False) -> Any:
        """What is computed of it and others: a node, or (a power may be complex) a number that is fixed. Where it
        may raise, that it does not is a guard, whether or not anybody reads it: an int may be too large for the
        float that it is to be."""
        value = function(self.hint, *(other.hint for other in others))
        written = text.format(self.text, *(other.text for other in others))
        symbols = self.symbols.union(*(other.symbols for other in others))
        rounds = (
            self.floats.ints
            and type(value) is float
            and any(n.symbols and type(n.hint) is int for n in (self, *others))
        )
        if symbols and (may_raise or rounds or type(value) not in (int, float)):
            self.floats.ask(f"(type({written}) is {type(value).__name__})", True)
        if type(value) in (int, float) and len(written) <= _LONGEST:
            return NumberNode(self.floats, written, value, symbols)
        if symbols:
            self.floats.ask(written, value)
        return NumberNode(self.floats, _written(value), value, frozenset()) if type(value) in (int, float) else value

    def as_float(self) -> NumberNode | None:
        """An int as a float that is equal to it, which is a guard; None where there may be none."""
        if not self.answer(f"(-{_EXACT} <= {{}} <= {_EXACT})", lambda value: -_EXACT <= value <= _EXACT):
            return None
        # not float(), of which no symbol comes out where a graph is traced again
        return NumberNode(self.floats, f"({self.text} / 1)", float(self.hint), self.symbols)


def _written(value: Any) -> str:
    """A number as Python."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{'(-' if value < 0 else '('}math.{'nan' if value != value else 'inf'})"
    # Python writes no long ones in decimals
    text = hex(value) if type(value) is int and value.bit_length() > 4096 else repr(value)
    return f"({text})" if text.startswith("-") else text


Operation = Callable[[NumberNode, NumberNode], Any]
"""Of two nodes: a node, or what Python makes of their values, fixed by a guard."""


def _arithmetic(sign: str, function: Callable[[Any, Any], Any], may_raise: bool = True) -> Operation:
    def operation(a: NumberNode, b: NumberNode) -> Any:
        # that makes an int of any other
        is_plain = not b.symbols and type(a.hint) is int and type(b.hint) is int and b.hint > 0
        return a.computed(f"({{}} {sign} {{}})", function, b, may_raise=may_raise and not is_plain)

    return operation


def _product(a: NumberNode, b: NumberNode) -> Any:
    found = _times(a, b)
    if isinstance(found, NumberNode):
        found.quotient = _scaled(a, b) or _scaled(b, a)
    return found


def _scaled(number: NumberNode, factor: NumberNode) -> tuple[Any, Any] | None:
    """The sizes of which a quotient of sizes is the quotient times a fraction that is exact: ``n * 0.5``."""
    of, by = number.quotient or (0, 0)
    if type(by) is not int or factor.symbols or not math.isfinite(factor.hint):
        return None
    times, parts = factor.hint.as_integer_ratio()
    return (of * times, by * parts) if 0 < by * parts <= _FINEST and by & (by - 1) == 0 else None


def _comparison(sign: str, function: Callable[[Any, Any], bool]) -> Operation:
    return lambda a, b: a.answer(f"({{}} {sign} {{}})", function, b)


_times = _arithmetic("*", operator.mul, may_raise=False)
_ARITHMETIC: Mapping[str, Operation] = {
    "add": _arithmetic("+", operator.add, may_raise=False), "sub": _arithmetic("-", operator.sub, may_raise=False),
    "mul": _product, "truediv": _arithmetic("/", operator.truediv), "floordiv": _arithmetic("//", operator.floordiv),
    "mod": _arithmetic("%", operator.mod), "pow": _arithmetic("**", operator.pow),
}  # fmt: skip
_OF_BITS: Mapping[str, Operation] = {
    "and": _arithmetic("&", operator.and_, may_raise=False), "or": _arithmetic("|", operator.or_, may_raise=False),
    "xor": _arithmetic("^", operator.xor, may_raise=False),
    "lshift": _arithmetic("<<", operator.lshift), "rshift": _arithmetic(">>", operator.rshift),
}  # fmt: skip
_COMPARISONS: Mapping[str, Operation] = {
    "eq": _comparison("==", operator.eq), "ne": _comparison("!=", operator.ne), "lt": _comparison("<", operator.lt),
    "le": _comparison("<=", operator.le), "gt": _comparison(">", operator.gt), "ge": _comparison(">=", operator.ge),
}  # fmt: skip
_OF_ONE: Mapping[str, Callable[[NumberNode], Any]] = {
    "neg": lambda a: a.computed("(-{})", operator.neg), "abs": lambda a: a.computed("abs({})", abs), "pos": lambda a: a,
}  # fmt: skip
_QUESTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "__bool__": ("bool({})", bool), "__float__": ("{}", float), "__int__": ("int({})", int),
    "is_integer": ("{}.is_integer()", float.is_integer),
}  # fmt: skip
_QUESTIONS_TO_INTS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "__bool__": ("bool({})", bool), "__float__": ("float({})", float), "__int__": ("{}", int), "__index__": ("{}", int),
    "bit_length": ("{}.bit_length()", int.bit_length), "bit_count": ("{}.bit_count()", int.bit_count),
}  # fmt: skip
_BY_VALUE = ("__hash__", "as_integer_ratio", "__reduce_ex__")
"""Methods of a number that depend on all of it."""
_WRITES = ("__repr__", "__str__", "__format__")


class _Number:
    """What symbolic floats and ints have in common, as the function sees them."""

    __array_ufunc__ = None
    """NumPy is told to leave arithmetic to it: its value, which is no array, keeps the array's dtype."""

    def __init__(self, node: NumberNode, *_: Any) -> None:
        if not isinstance(node, NumberNode):  # code that has the class by type(number)
            raise NotSymbolicError("a number is made by the type of another, and that of a symbol is no number's")
        self.node = node

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def text_by(self, how: str) -> str:
        """Its text by a conversion of ``%``."""
        text = _shown(self, "%", how)
        return how % fixed(self) if text is None else text

    def conjugate(self) -> Any:
        return self

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, known: Any) -> Any:
        return self

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray[Any, Any]:
        return np.array(fixed(self), dtype)

    @property
    def real(self) -> Any:
        return self


class Float(_Number, SymFloat):
    """A symbolic float as the function sees it: to ``isinstance`` it is a float, which PyTorch's own is not."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def __round__(self, digits: int | None = None) -> Any:
        if digits is None:
            return wrapped(self.node.computed("round({})", round, may_raise=True))
        return wrapped(self.node.computed(f"round({{}}, {digits!r})", lambda value: round(value, digits)))

    def __floor__(self) -> Any:
        return _rounded(self.node, "floor", lambda of, by: of // by)

    def __ceil__(self) -> Any:
        return _rounded(self.node, "ceil", lambda of, by: -(-of // by))

    def __trunc__(self) -> Any:
        return _rounded(self.node, "trunc", lambda of, by: of // by if (of >= 0) == (by > 0) else -(-of // by))

    @property
    def imag(self) -> float:
        return 0.0


class Int(_Number, SymInt):
    """A symbolic int as the function sees it: to ``isinstance`` it is an int. PyTorch is never given one (see
    ``ints``)."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __round__(self, digits: int | None = None) -> Any:
        return (
            self
            if digits is None
            else wrapped(self.node.computed(f"round({{}}, {digits!r})", lambda value: round(value, digits)))
        )

    def __invert__(self) -> Any:
        return wrapped(self.node.computed("(~{})", operator.invert))

    def __pow__(self, other: Any, modulo: Any = None) -> Any:
        return _power(self, other) if modulo is None else pow(fixed(self), other, modulo)

    def __trunc__(self) -> Int:
        return self

    __floor__ = __ceil__ = __trunc__

    def to_bytes(self, *args: Any, **kwargs: Any) -> bytes:
        return fixed(self).to_bytes(*args, **kwargs)  # type: ignore[no-any-return]

    @property
    def numerator(self) -> Int:
        return self

    @property
    def denominator(self) -> int:
        return 1

    @property
    def imag(self) -> int:
        return 0


def _rounded(node: NumberNode, name: str, of_sizes: Callable[[Any, Any], Any]) -> Any:
    """A float as the whole number beside it: where it is a quotient of sizes, a size."""
    if node.quotient is not None and abs(node.hint) < _EXACT:
        return of_sizes(*node.quotient)
    return wrapped(node.computed(f"math.{name}({{}})", getattr(math, name), may_raise=True))


def own(value: Any) -> Any:
    """A number that came by way of PyTorch as the function is to see it."""
    return wrapped(value.node) if isinstance(value.node, NumberNode) else value


def fixed(number: Any) -> Any:
    """The value of a symbolic number now: the program is for this one."""
    return number.node.answer("{}", type(number.node.hint))


def wrapped(value: Any) -> Any:
    if not isinstance(value, NumberNode):
        return value
    if type(value.hint) is float:
        return Float(value)
    value.floats.ints = True
    return Int(value)


def _method(
    function: Callable[[Any, Any], Any], operation: Operation, swapped: bool = False
) -> Callable[[Any, Any], Any]:
    """A method of a number. With what is neither a number nor a tensor, Python says what comes of the value."""

    def method(self: Any, other: Any) -> Any:
        node = self.node.floats.node(other)
        if node is not None:
            return wrapped(operation(node, self.node) if swapped else operation(self.node, node))
        if isinstance(other, Tensor) or not isinstance(other, (int, float, complex, np.ndarray, np.generic)):
            return NotImplemented
        return function(other, fixed(self)) if swapped else function(fixed(self), other)

    return method


_power = _method(operator.pow, _ARITHMETIC["pow"])


def _below(operation: Operation) -> Callable[[NumberNode, Any], Any]:
    """A method of a node, which PyTorch calls with nodes."""

    def method(self: NumberNode, other: Any) -> Any:
        node = other if isinstance(other, NumberNode) else self.floats.node(SymFloat(other))  # type: ignore[no-untyped-call]
        if node is None:
            raise NotSymbolicError(f"{other} is a constant")
        found = operation(self, node)
        if isinstance(found, bool):
            return constant_bool(found)
        if not isinstance(found, NumberNode):
            raise NotSymbolicError(f"{self} and {other} make {found!r}")
        return found

    return method


def _question(text: str, function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda self: self.node.answer(text, function)


def _by_value(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(fixed(self), name)(*args)


def _shown(number: Any, method: str, *args: str) -> str | None:
    node = number.node
    is_given = node.symbols and node.symbols <= node.floats.names.keys()  # in the dry run, too
    return node.floats.shown(number, method, args) if is_given else None


def _text(name: str) -> Callable[..., str]:
    def method(self: Any, *args: str) -> str:
        text = _shown(self, name, *args)
        return getattr(fixed(self), name)(*args) if text is None else text

    return method


for _name, _operation in (*_ARITHMETIC.items(), *_COMPARISONS.items()):
    _function = getattr(operator, _name)
    for _kind in (Float, Int):
        if (_kind, _name) != (Int, "pow"):
            setattr(_kind, f"__{_name}__", _method(_function, _operation))
        if _name in _ARITHMETIC:
            setattr(_kind, f"__r{_name}__", _method(_function, _operation, swapped=True))
    for _method_name in (
        _name,
        *{"truediv": ("float_truediv",), "floordiv": ("int_floordiv",), "pow": ("float_pow",)}.get(_name, ()),
    ):
        setattr(NumberNode, _method_name, _below(_operation))
for _name, _operation in _OF_BITS.items():
    _function = getattr(operator, f"__{_name}__")
    setattr(Int, f"__{_name}__", _method(_function, _operation))
    setattr(Int, f"__r{_name}__", _method(_function, _operation, swapped=True))
for _name, _of_one in _OF_ONE.items():
    for _kind in (Float, Int):
        setattr(_kind, f"__{_name}__", lambda self, of_one=_of_one: wrapped(of_one(self.node)))
    setattr(NumberNode, _name, _of_one)
for _kind, _questions in ((Float, _QUESTIONS), (Int, _QUESTIONS_TO_INTS)):
    for _name, (_asked, _ask) in _questions.items():
        setattr(_kind, _name, _question(_asked, _ask))
    for _name in _BY_VALUE:
        setattr(_kind, _name, _by_value(_name))
    for _name in _WRITES:
        setattr(_kind, _name, _text(_name))
setattr(Float, "hex", _by_value("hex"))  # noqa: B010
Float.__name__, Int.__name__ = "float", "int"
