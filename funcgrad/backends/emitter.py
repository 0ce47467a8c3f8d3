"""What every language that kernels are printed in has in common: one walk over expressions, and a table of operations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from ..loops.index import Atom, Axis, Index, Quotient, at_axis, is_shifted_axis, substitute
from ..loops.ir import Const, Expr, Found, Load, Op, Position, Reduced, Scanned, walk

Operation = str | Callable[[torch.dtype, Sequence[str]], str]


class Language(Protocol):
    """A language: how it writes types, numbers, loads and operations."""

    operations: Mapping[str, Operation]

    def type(self, dtype: torch.dtype) -> str: ...

    def define(self, name: str, expr: Expr, text: str) -> str: ...

    def const(self, expr: Const) -> str: ...

    def load(self, expr: Load, at: str) -> str: ...

    def position(self, at: str) -> str: ...

    def clamp(self, axis: str, low: int, high: int) -> str: ...

    def element(self, number: str, size: int) -> str: ...

    def scanned(self, expr: Scanned, element: str) -> str: ...

    def choose(self, tests: Sequence[tuple[str, int, int]], at: str) -> str: ...

    def cast(self, text: str, given: torch.dtype, wanted: torch.dtype) -> str: ...


def print_expressions(language: Language, roots: Sequence[Expr], names: dict[Expr, str], only: Callable[[Expr], bool]) -> list[str]:
    """Lines that compute what ``roots`` need, each expression once; those already in ``names`` are not computed again.

    ``only`` says which expressions belong here; the others must have a name. Afterwards ``names`` has a text for each root.
    """
    lines: list[str] = []
    for expr in walk(roots, set(names)):
        if isinstance(expr, Const):
            names[expr] = language.const(expr)
        elif only(expr) and not isinstance(expr, Reduced):
            name = f"v{len(names)}"
            lines.append(language.define(name, expr, _text(language, expr, names)))
            names[expr] = name
    return lines


def _text(language: Language, expr: Expr, names: Mapping[Expr, str]) -> str:
    match expr:
        case Load():
            return language.load(expr, _inside(language, expr, elements(language, expr.found, names)))
        case Position():
            return language.position(index_text(substitute(expr.at, elements(language, expr.found, names))))
        case Scanned():
            return language.scanned(expr, names[expr.body])
        case Op(name="cast"):
            return language.cast(names[expr.operands[0]], expr.operands[0].dtype, expr.dtype)
        case Op():
            how = language.operations[expr.name]
            args = [names[a] for a in expr.operands]
            kind = expr.operands[-1].dtype if expr.dtype == torch.bool else expr.dtype
            return how.format(*args) if isinstance(how, str) else how(kind, args)
    raise AssertionError(expr)


def elements(language: Language, found: Found, names: Mapping[Expr, str]) -> dict[Axis, Index]:
    """Axes that stand for numbers, as the text of an index that is in bounds whatever the number is."""
    return {axis: at_axis(Axis(language.element(names[number], axis.size), axis.size)) for axis, number in found}


def _inside(language: Language, load: Load, found: Mapping[Axis, Index]) -> str:
    """The address of a load, which is a good one also where the guard does not hold: then the number is not used.

    A load under a condition would do, too; but compilers vectorise that with masks, and GCC 12 gets the masks wrong.
    """
    limits: dict[Axis, tuple[int, int]] = {}
    at, guard = substitute(load.at, found), [(substitute(i, found), low, high) for i, low, high in load.guard]
    for i, low, high in guard:
        if is_shifted_axis(i) and isinstance(axis := i.terms[0][0], Axis):
            least, most = limits.get(axis, axis.range)
            limits[axis] = max(least, low - i.const), min(most, high - 1 - i.const)
    if not all(is_shifted_axis(i) for i, _, _ in guard):
        return language.choose([(index_text(i), low, high) for i, low, high in guard], index_text(at))
    axes = {axis: at_axis(Axis(language.clamp(axis.name, *limit), axis.size)) for axis, limit in limits.items()}
    return index_text(substitute(at, axes))


def index_text(index: Index) -> str:
    """An index as C and Python both write it, given that it is not negative (the verifier has seen to that)."""
    terms = [_term_text(atom, by) for atom, by in index.terms]
    return " + ".join([*terms, *([str(index.const)] if index.const or not terms else [])])


def _term_text(atom: Atom, by: int) -> str:
    if isinstance(atom, Axis):
        return f"{atom.name} * {by}" if by != 1 else atom.name
    text = f"(({index_text(atom.of)}) {'/' if isinstance(atom, Quotient) else '%'} {atom.by})"
    return f"{text} * {by}" if by != 1 else text
