"""What every language that kernels are printed in has in common: one walk over expressions, and a table of
operations."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import torch

from ..loops.index import Atom, Axis, Bound, Index, Quotient, at_axis, substitute
from ..loops.ir import Const, Expr, Found, Load, Op, Position, Reduced, Scanned, walk

Operation = str | Callable[[torch.dtype, Sequence[str]], str]


class Language(Protocol):
    """A language: how it writes numbers, loads and operations.

    ``load`` is given where, with numbers the kernel computes in the place of the axes that stand for them. ``element``:
    such a number as an axis that is in bounds whatever the number is. ``operands``: an operation's arguments, given as
    text, as it takes them.
    """

    operations: Mapping[str, Operation]

    def define(self, name: str, expr: Expr, text: str) -> str: ...

    def const(self, expr: Const) -> str: ...

    def load(self, expr: Load, at: Index, guard: Sequence[Bound]) -> str: ...

    def position(self, at: Index) -> str: ...

    def element(self, number: Expr, text: str, size: int) -> Axis: ...

    def scanned(self, expr: Scanned, element: str) -> str: ...

    def operands(self, expr: Op, texts: Sequence[str]) -> Sequence[str]: ...

    def cast(self, text: str, given: torch.dtype, wanted: torch.dtype) -> str: ...


def print_expressions(
    language: Language, roots: Sequence[Expr], names: dict[Expr, str], only: Callable[[Expr], bool]
) -> list[str]:
    """Lines that compute what ``roots`` need, each expression once; those already in ``names`` are not computed again.

    ``only`` says which expressions belong here: what these are made of has a name by then. Afterwards ``names`` has a
    text for each of them.
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
            found = elements(language, expr.found, names)
            guard = [(substitute(i, found), low, high) for i, low, high in expr.guard]
            return language.load(expr, substitute(expr.at, found), guard)
        case Position():
            return language.position(substitute(expr.at, elements(language, expr.found, names)))
        case Scanned():
            return language.scanned(expr, names[expr.body])
        case Op():
            args = language.operands(expr, [names[a] for a in expr.operands])
            if expr.name == "cast":
                return language.cast(args[0], expr.operands[0].dtype, expr.dtype)
            how = language.operations[expr.name]
            kind = expr.operands[-1].dtype if expr.dtype == torch.bool else expr.dtype
            return how.format(*args) if isinstance(how, str) else how(kind, args)
    raise AssertionError(expr)


def elements(language: Language, found: Found, names: Mapping[Expr, str]) -> dict[Axis, Index]:
    """Axes that stand for numbers, as the text of an index that is in bounds whatever the number is."""
    return {axis: at_axis(language.element(number, names[number], axis.size)) for axis, number in found}


def decoded(axes: Sequence[Axis], name: str, divide: str = "/") -> list[tuple[str, str]]:
    """The counters of several loops, and what each is, of one that counts all their turns."""
    rest = Index(((Axis(name, math.prod(a.size for a in axes)), 1),))
    found: list[tuple[str, str]] = []
    for axis in reversed(axes):
        found.insert(0, (axis.name, index_text(rest % axis.size, divide)))
        rest = rest // axis.size
    return found


def index_text(index: Index, divide: str = "/") -> str:
    """An index as C and Python both write it, but for division, given that it is not negative (the verifier has seen
    to that)."""
    terms = [_term_text(atom, by, divide) for atom, by in index.terms]
    return " + ".join([*terms, *([str(index.const)] if index.const or not terms else [])])


def _term_text(atom: Atom, by: int, divide: str) -> str:
    if isinstance(atom, Axis):
        return f"{atom.name} * {by}" if by != 1 else atom.name
    of = index_text(atom.of, divide)
    text = f"({of if of.isidentifier() else f'({of})'} {divide if isinstance(atom, Quotient) else '%'} {atom.by})"
    return f"{text} * {by}" if by != 1 else text


def named(text: str) -> tuple[str, str]:
    """The name of a kernel, which is a digest of its text, and the text with the name where it says ``{name}``."""
    name = f"k_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return name, text.replace("{name}", name)
