"""Symbolic sizes as torch knows them."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch

# FakeTensorMode and friends: 2.11, 2.13, 2.15
from torch._dispatch.python import enable_python_dispatcher
from torch._guards import SLoc
from torch._subclasses.fake_tensor import (
    FakeTensorMode,
)
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)
from torch.utils._sympy.printers import PythonPrinter

from ..inside import set_to

__all__ = ["GuardOnDataDependentSymNode", "ShapeEnv"]


class NumberBelow:
    """What stands below a ``SymInt`` or ``SymFloat`` and is no ``SymNode`` of torch's: the part of that protocol
    which says that it is a number of a kind (``int`` or ``float``), and that this is all that is known of it. Any
    other question is an ``AttributeError``."""

    constant = None
    kind: type

    def is_int(self) -> bool:
        return self.kind is int

    def is_float(self) -> bool:
        return self.kind is float

    def is_bool(self) -> bool:
        return False

    def is_nested_int(self) -> bool:
        return False

    def is_symbolic(self) -> bool:
        return True

    def is_constant(self) -> bool:
        return False

    def maybe_as_int(self) -> None:
        """Known before a program runs, which it is not."""


class _Guards(list[Any]):
    """The guards of an environment, and who is told of each as it is added."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told

    def append(self, guard: Any) -> None:
        super().append(guard)
        self._told(python_text(guard.expr))


_Arithmetic = Callable[[SymNode, SymNode], SymNode]
_REMEMBERED = ("add", "sub", "mul", "eq", "ne", "lt", "le", "gt", "ge")


@functools.cache
def _remember_arithmetic() -> None:
    """From now on arithmetic on sizes, in environments that have a memo, is done once for the same operands: PyTorch
    asks of each tensor anew how it lies, some 50,000 questions for a transformer of 12 blocks."""

    def remembering(name: str, original: _Arithmetic) -> _Arithmetic:
        def computed(self: SymNode, other: SymNode) -> SymNode:
            memo = getattr(self.shape_env, "funcgrad_memo", None)
            if memo is None:
                return original(self, other)
            key = name, self._expr, self.pytype, other._expr, other.pytype
            if key not in memo:
                memo[key] = original(self, other)
            return memo[key]  # type: ignore[no-any-return]

        return computed

    for name in _REMEMBERED:
        setattr(SymNode, name, remembering(name, getattr(SymNode, name)))


class _Environment(ShapeEnv):
    """``funcgrad_memo``: see ``_remember_arithmetic``."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.funcgrad_memo: dict[Any, SymNode] = {}
        super().__init__(*args, **kwargs)

    def _get_stack_summary(self, is_debug: bool = False, framework_loc: str | None = None) -> tuple[SLoc, str]:
        """Where in the code something was asked is for PyTorch's logs: to leave out its own files there, it imports its
        compiler, which takes half a second."""
        return SLoc(framework_loc, None), ""


def make_environment(told: Callable[[str], None]) -> ShapeEnv:
    """An environment for symbolic sizes, in which reading a value from a tensor stays an error;
    each of its guards is ``told``, as Python."""
    _remember_arithmetic()
    made = _Environment(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False, duck_shape=False)
    made.guards = _Guards(told)
    return made


def _named(name: str) -> Any:
    """What a symbol is of."""
    from torch._dynamo.source import ConstantSource  # importing torch._dynamo costs a second: only for symbols

    return ConstantSource(name)


def constant_bool(value: bool) -> Any:
    """What stands below a ``SymBool`` that is known."""
    return torch._C._get_constant_bool_symnode(value)


def expression(value: Any) -> Any:
    """The sympy expression behind a SymInt, SymFloat or SymBool."""
    return value.node.expr


def known_same(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Whether sizes are equal whatever their symbols are; leaves no guard."""
    a, b = ([expression(n) if isinstance(n, torch.SymInt) else n for n in sizes] for sizes in (a, b))
    return a == b


def known_contiguous(shape: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether a tensor is contiguous whatever the symbols in its sizes are; leaves no guard."""
    expected: Any = 1
    for size, step in zip(reversed(shape), reversed(stride), strict=True):
        if not known_same([size], [1]):
            if not known_same([step], [expected]):
                return False
            expected = expected * size
    return True


def replaced_symbols(environment: Any) -> dict[str, str]:
    """The symbols in whose place PyTorch has put others, which are equal: each with what stands for it now."""
    return {str(symbol): str(other) for symbol, other in _replaced(environment) if other.is_Symbol}


def fixed_symbols(environment: Any) -> dict[str, int]:
    """The symbols in whose place PyTorch has put numbers, as each one's only value: be it that two symbols are equal,
    and one of them is a number."""
    return {str(symbol): int(number) for symbol, number in _replaced(environment) if number.is_Integer}


def _replaced(environment: Any) -> Iterator[tuple[Any, Any]]:
    return ((symbol, environment.replace(symbol)) for symbol in environment.replacements)


def is_size(value: Any) -> bool:
    """Whether a value is a symbolic size of PyTorch's; funcgrad's own symbolic ints have nodes of their own."""
    return isinstance(value, torch.SymInt) and isinstance(value.node, SymNode)


def shape_environment(value: torch.SymInt) -> Any:
    """The environment a symbolic size belongs to."""
    return value.node.shape_env


def symbolic_fake(fakes: FakeTensorMode, tensor: torch.Tensor, name: str, dims: Collection[int]) -> torch.Tensor:
    """A fake of ``tensor`` whose sizes along ``dims`` are symbols of the mode's environment; ``~d``: the stride along
    ``d``. Strides that follow from no sizes are symbols, too, where one of these is."""
    kinds = [DimDynamic.DYNAMIC if d in dims else DimDynamic.STATIC for d in range(tensor.ndim)]
    strides = [DimDynamic.DYNAMIC if ~d in dims else DimDynamic.INFER_STRIDE for d in range(tensor.ndim)]
    context: Any = StatelessSymbolicContext(dynamic_sizes=kinds, dynamic_strides=strides)
    return fakes.from_tensor(tensor, static_shapes=False, source=_named(name), symbolic_context=context)


def symbol_name(value: torch.SymInt) -> str | None:
    """The symbol that a size of an input was made as, whatever it has been found to equal since."""
    made = value.node._expr
    return str(made) if made.is_Symbol else None


_symbolic: ContextVar[bool] = ContextVar("funcgrad_symbolic", default=False)


logging.getLogger("torch._subclasses.fake_tensor").addFilter(lambda record: not _symbolic.get())


@contextlib.contextmanager
def symbolic_shapes() -> Iterator[None]:
    """Inside, operators take their Python rules before those in C++ where they have both: C++ fixes some sizes. That
    an operator knows no symbolic sizes is an exception, and not logged as an error besides."""
    with set_to(_symbolic, True), enable_python_dispatcher():
        yield


def sizes_are_symbols() -> bool:
    """Whether this is inside ``symbolic_shapes()``."""
    return _symbolic.get()


def guard_expressions(env: ShapeEnv, first: int = 0) -> list[Any]:
    """The sympy conditions a trace relied on, from one on."""
    return [guard.expr for guard in env.guards[first:]]


def python_text(expr: Any) -> str:
    """A sympy expression as Python."""
    text: str = PythonPrinter().doprint(expr)
    return text


def hinted(value: Any) -> Any:
    """A symbol as its value in the call that is compiled; any other value as it is."""
    return value.node.hint if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else value
