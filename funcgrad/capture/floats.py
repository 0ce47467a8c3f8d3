"""Symbolic floats: numbers of Python that a program is given when it is called, in the trace of it.

A ``Float`` is computed with like the ``float`` it stands for, to the last bit, infinities, NaN and signed zeros included: its arithmetic
is written down as Python, for the program to carry out. Whatever else is asked of it (a comparison, ``if v:``, ``int(v)``,
``math.exp(v)``) is answered by its value now, its *hint*, and becomes a guard: the program is for the values with which the answer is the
same. No value is special, and none is looked at without a guard.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

from torch import SymBool, SymFloat, SymInt, Tensor

from ..torch_private import constant_bool, expression, python_text

_LONGEST = 4000
"""What takes more characters to write down is fixed to its value."""


class NotSymbolicError(Exception):
    """A function does not trace with symbols: it, or what it calls, has to know a number. It is traced with the value instead."""


class Floats:
    """The symbolic floats of one trace, and the guards they leave."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """By symbol, the name of what it stands for."""
        self.guards: dict[str, None] = {}
        """Conditions over symbols, as Python, in the order in which they were asked; one that raises does not hold."""

    def symbol(self, name: str, value: float) -> Float:
        """A new symbol for the float of this name."""
        symbol = f"float_{len(self.names)}"
        self.names[symbol] = name
        return Float(FloatNode(self, symbol, value, frozenset({symbol})))

    def node(self, value: Any) -> FloatNode | None:
        """A number as an expression; PyTorch's own symbols, too, which are sizes or are computed from sizes. None for what is no number."""
        if type(value) in (int, float, bool):
            return FloatNode(self, _written(value), value, frozenset())
        if isinstance(value, (SymFloat, SymInt, SymBool)):
            if isinstance(value.node, FloatNode):
                return value.node
            if not value.node.is_constant():
                expr = expression(value)
                return FloatNode(self, f"({python_text(expr)})", value.node.hint, frozenset(map(str, expr.free_symbols)))
        return None

    def exact(self, value: SymFloat) -> SymFloat:
        """A symbolic float of PyTorch's as one of ours: PyTorch takes real numbers for granted, and puts their terms in another order."""
        node = self.node(value)
        return value if node is None or node is value.node else Float(node)

    def ask(self, text: str, answer: Any) -> None:
        """A question that the trace went on by: from now on it must have the same answer."""
        if isinstance(answer, bool):
            self.guards[text if answer else f"not {text}"] = None
        elif isinstance(answer, complex) or answer == 0 or answer != answer:  # 0.0 is not -0.0, and NaN is NaN
            self.guards[f"repr({text}) == {str(answer)!r}"] = None
        else:
            self.guards[f"{text} == {_written(answer)}"] = None


class FloatNode:
    """An expression over symbols, as Python, and its value now. Its methods are what PyTorch asks for below a ``SymFloat``."""

    constant = None

    def __init__(self, floats: Floats, text: str, hint: Any, symbols: frozenset[str]) -> None:
        self.floats, self.text, self.hint, self.symbols = floats, text, hint, symbols

    def is_int(self) -> bool:
        return False

    def is_float(self) -> bool:
        return True

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def has_hint(self) -> bool:
        return True

    def bool_(self) -> bool:
        return self.answer("bool({})", bool)  # type: ignore[no-any-return]

    def guard_float(self, file: str = "", line: int = 0) -> float:
        """Its value: the program is for this one."""
        return self.answer("{}", float)  # type: ignore[no-any-return]

    def sym_float(self) -> FloatNode:
        return self

    def wrap_float(self, value: Any) -> FloatNode:
        node = self.floats.node(value)
        assert node is not None
        return node

    wrap_int = wrap_bool = wrap_float  # Python computes with those as they are

    def __repr__(self) -> str:
        return self.text

    _graph_repr = __repr__

    def answer(self, question: str, function: Callable[..., Any], *others: FloatNode) -> Any:
        """What is no arithmetic on floats: the answer now, which becomes a guard."""
        answer = function(self.hint, *(other.hint for other in others))
        text = question.format(self.text, *(other.text for other in others))
        if self.symbols.union(*(other.symbols for other in others)):
            self.floats.ask(text, answer)
        return answer

    def computed(self, text: str, function: Callable[..., Any], *others: FloatNode, may_raise: bool = False) -> Any:
        """What is computed of it and others: a node, or (a power may be complex) a number that is fixed. Where it may raise, that it does
        not is a guard, whether or not anybody reads it."""
        value = function(self.hint, *(other.hint for other in others))
        written = text.format(self.text, *(other.text for other in others))
        symbols = self.symbols.union(*(other.symbols for other in others))
        if symbols and (may_raise or type(value) is not float):
            self.floats.ask(f"(type({written}) is {type(value).__name__})", True)
        if type(value) is float and len(written) <= _LONGEST:
            return FloatNode(self.floats, written, value, symbols)
        if symbols:
            self.floats.ask(written, value)
        return FloatNode(self.floats, _written(value), value, frozenset()) if type(value) is float else value


def _written(value: Any) -> str:
    """A number as Python."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{'(-' if value < 0 else '('}math.{'nan' if value != value else 'inf'})"
    text = repr(value)
    return f"({text})" if text.startswith("-") else text


Operation = Callable[[FloatNode, FloatNode], Any]
"""Of two nodes: a node, or what Python makes of their values, fixed by a guard."""


def _arithmetic(sign: str, function: Callable[[Any, Any], Any], may_raise: bool = True) -> Operation:
    return lambda a, b: a.computed(f"({{}} {sign} {{}})", function, b, may_raise=may_raise)


def _comparison(sign: str, function: Callable[[Any, Any], bool]) -> Operation:
    return lambda a, b: a.answer(f"({{}} {sign} {{}})", function, b)


_ARITHMETIC: Mapping[str, Operation] = {
    "add": _arithmetic("+", operator.add, may_raise=False), "sub": _arithmetic("-", operator.sub, may_raise=False),
    "mul": _arithmetic("*", operator.mul, may_raise=False), "truediv": _arithmetic("/", operator.truediv),
    "floordiv": _arithmetic("//", operator.floordiv), "mod": _arithmetic("%", operator.mod), "pow": _arithmetic("**", operator.pow),
}  # fmt: skip
_COMPARISONS: Mapping[str, Operation] = {
    "eq": _comparison("==", operator.eq), "ne": _comparison("!=", operator.ne), "lt": _comparison("<", operator.lt),
    "le": _comparison("<=", operator.le), "gt": _comparison(">", operator.gt), "ge": _comparison(">=", operator.ge),
}  # fmt: skip
_OF_ONE: Mapping[str, Callable[[FloatNode], Any]] = {
    "neg": lambda a: a.computed("(-{})", operator.neg), "abs": lambda a: a.computed("abs({})", abs), "pos": lambda a: a,
}  # fmt: skip
_QUESTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "__bool__": ("bool({})", bool), "__float__": ("{}", float), "__int__": ("int({})", int), "__trunc__": ("int({})", int),
    "__floor__": ("math.floor({})", math.floor), "__ceil__": ("math.ceil({})", math.ceil), 
    "is_integer": ("{}.is_integer()", float.is_integer),
}  # fmt: skip
_BY_VALUE = ("__hash__", "__repr__", "__str__", "__format__", "as_integer_ratio", "hex", "__reduce_ex__")
"""Methods of a float that depend on all of it."""


class Float(SymFloat):
    """A symbolic float as the function sees it: to ``isinstance`` it is a float, which PyTorch's own is not."""

    def __init__(self, node: FloatNode) -> None:
        self.node = node

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def __round__(self, digits: int | None = None) -> Any:
        if digits is None:
            return self.node.answer("round({})", round)
        return _wrapped(self.node.computed(f"round({{}}, {digits!r})", lambda value: round(value, digits)))

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def conjugate(self) -> Float:
        return self

    def __copy__(self) -> Float:
        return self

    def __deepcopy__(self, known: Any) -> Float:
        return self

    @property
    def real(self) -> Float:
        return self

    @property
    def imag(self) -> float:
        return 0.0


def _wrapped(value: Any) -> Any:
    return Float(value) if isinstance(value, FloatNode) else value


def _method(function: Callable[[Any, Any], Any], operation: Operation, swapped: bool = False) -> Callable[[Float, Any], Any]:
    """A method of ``Float``. With what is neither a number nor a tensor, Python says what comes of the value."""

    def method(self: Float, other: Any) -> Any:
        node = self.node.floats.node(other)
        if node is not None:
            return _wrapped(operation(node, self.node) if swapped else operation(self.node, node))
        if isinstance(other, Tensor) or not isinstance(other, (int, float, complex)):
            return NotImplemented
        return function(other, float(self)) if swapped else function(float(self), other)

    return method


def _below(operation: Operation) -> Callable[[FloatNode, Any], Any]:
    """A method of a node, which PyTorch calls with nodes."""

    def method(self: FloatNode, other: Any) -> Any:
        node = other if isinstance(other, FloatNode) else self.floats.node(SymFloat(other))  # type: ignore[no-untyped-call]
        if node is None:
            raise NotSymbolicError(f"{other} is a constant")
        found = operation(self, node)
        if isinstance(found, bool):
            return constant_bool(found)
        if not isinstance(found, FloatNode):
            raise NotSymbolicError(f"{self} and {other} make {found!r}")
        return found

    return method


def _question(text: str, function: Callable[[Any], Any]) -> Callable[[Float], Any]:
    return lambda self: self.node.answer(text, function)


def _by_value(name: str) -> Callable[..., Any]:
    return lambda self, *args: getattr(float(self), name)(*args)


for _name, _operation in (*_ARITHMETIC.items(), *_COMPARISONS.items()):
    _function = getattr(operator, _name)
    setattr(Float, f"__{_name}__", _method(_function, _operation))
    if _name in _ARITHMETIC:
        setattr(Float, f"__r{_name}__", _method(_function, _operation, swapped=True))
    for _method_name in (_name, *{"truediv": ("float_truediv",), "floordiv": ("int_floordiv",), "pow": ("float_pow",)}.get(_name, ())):
        setattr(FloatNode, _method_name, _below(_operation))
for _name, _of_one in _OF_ONE.items():
    setattr(Float, f"__{_name}__", lambda self, of_one=_of_one: _wrapped(of_one(self.node)))
    setattr(FloatNode, _name, _of_one)
for _name, (_text, _ask) in _QUESTIONS.items():
    setattr(Float, _name, _question(_text, _ask))
for _name in _BY_VALUE:
    setattr(Float, _name, _by_value(_name))
