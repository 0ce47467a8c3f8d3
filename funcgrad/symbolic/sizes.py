"""Sizes that a program learns when it is called: polynomials in symbols, with whole coefficients.

A ``Size`` is computed with like an ``int``. It knows its value in the call that is compiled, its *hint*. Comparing two
answers as the hints do, and what the symbols' ranges do not decide becomes a guard: a program is made by code that
believes its sizes are numbers, and fits all calls in which each comparison comes out as it did then. Used as a number
(``range``, ``int``), a size is fixed to its hint. Costs, which are choices and no facts, are estimated from ``hint``
alone, and guard nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from attrs import define, field
from torch import SymInt

from ..torch_private.symbols import (
    expression,
    fixed_symbols,
    guard_expressions,
    python_text,
    replaced_symbols,
    shape_environment,
)
from .polynomials import LEAST, Atom, Terms, added, bounds, divided, multiplied, written

PREFIX = "size_"
"""How the names of symbols begin in C, where others are called s0, too."""

_SYMBOL = re.compile(rf"\b(?:{PREFIX})?(s\d+)\b")


def symbols_in(text: str) -> set[str]:
    """The names of the symbols that a size, or a condition, is written with."""
    return set(_SYMBOL.findall(text))


_DIVIDES = ("Eq(Mod(", "Eq(PythonMod(")


@define(eq=False)
class Sizes:
    """The symbols of one program and what was asked about them."""

    _environment: Any = None
    """Torch's, of which what it was asked is a guard, too."""
    inputs: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = field(factory=dict)
    """Sizes and strides of tensors with symbolic sizes, by path."""
    origins: dict[str, str] = field(factory=dict)
    """What each symbol is a size of, as Python: ``x.shape[0]``."""
    _reads: dict[str, int] = field(factory=dict)
    """The symbols that are sizes which Python read of values, and which of them each is in the order in which a
    program knows them."""
    given: dict[str, str] = field(factory=dict)
    """The symbols that are sizes made of numbers which the call is given, and how, as Python over those."""
    _earlier: dict[str, str] = field(factory=dict)
    """Symbols, where torch has put one in the place of another that is equal and known before it: that one."""
    _atoms: dict[str, Atom] = field(factory=dict)
    _guards: dict[str, None] = field(factory=dict)
    _known: dict[Any, int | Size] = field(factory=dict)
    _multiples: dict[str, Terms] = field(factory=dict)
    """Symbols of which torch found that a number divides them, in terms of the quotient."""
    _sizes: dict[Any, Size] = field(factory=dict)
    """Each polynomial that was met, one object."""
    _results: dict[Any, Any] = field(factory=dict)
    """What was computed of sizes, and asked of them: a graph asks the same for each of its layers."""
    _ranges: dict[Any, Any] = field(factory=dict)
    """What was found by the ranges of symbols, as they are known now."""
    _texts: dict[Any, str] = field(factory=dict)
    _learnt: int = 0
    _closed: tuple[str, ...] | None = None

    def symbol(self, name: str, hint: int) -> Size:
        """A symbol of this name; it is at least 2."""
        self._atoms.setdefault(PREFIX + name, Atom(hint, LEAST, math.inf, name, True))
        return self.size({(PREFIX + name,): 1})

    def size(self, terms: Terms) -> Size:
        """The object for a polynomial."""
        key = tuple(sorted(terms.items()))
        found = self._sizes.get(key)
        if found is None:
            found = self._sizes[key] = Size(self, terms, hash((id(self), key)))
        return found

    def text_of(self, value: SymInt) -> str:
        """A size of torch's as one reads it, in terms of what it is a size of."""
        expr = expression(value)
        if expr not in self._texts:
            self._texts[expr] = str(value)
        return self.named(self._texts[expr])

    def named(self, text: str) -> str:
        """A text that is read, with what symbols are sizes of in their place, where it says how Python, C or torch
        write them."""
        return _SYMBOL.sub(lambda found: self.origins.get(found[1], found[0]), text)

    @property
    def symbols(self) -> list[str]:
        """Their names, as Python writes them."""
        return [atom.python for atom in self._atoms.values() if atom.symbol]

    def read(self, symbol: str) -> None:
        """A symbol is known when the program has found what Python read: what is asked of it is checked then, and no
        guard of the call."""
        self._reads.setdefault(symbol, len(self._reads))

    @property
    def are_numbers(self) -> bool:
        """Whether some are numbers that the call is given, or are known only when the program has read them."""
        return bool(self._reads or self.given)

    @property
    def guards(self) -> list[str]:
        """Conditions over the symbols, as Python, under which each comparison comes out as it did; of those that are
        sizes of what a program is called with."""
        return [c for c in self._conditions if self._last_read(c) is None and not symbols_in(c) & self.given.keys()]

    @property
    def guards_of_numbers(self) -> list[str]:
        """The same of those that are numbers a program is called with, over the symbols of these."""
        about = [c for c in self._conditions if self._last_read(c) is None and symbols_in(c) & self.given.keys()]
        return list(map(self.over_numbers, about))

    def over_numbers(self, condition: str) -> str:
        """A condition with what they are made of in the places of sizes that the call is given."""
        return _SYMBOL.sub(lambda found: self.given.get(found[1], found[0]), condition)

    def checks(self, symbols: Collection[str]) -> list[str]:
        """The conditions that these decide: of the symbols in them, one of these is the last that is known."""
        return [condition for condition in self._conditions if self._last_read(condition) in symbols]

    def _last_read(self, condition: str) -> str | None:
        return max(symbols_in(condition) & self._reads.keys(), key=self._reads.__getitem__, default=None)

    @property
    def is_closed(self) -> bool:
        """Whether the program is done, and all its conditions are known."""
        return self._closed is not None

    @property
    def _conditions(self) -> list[str]:
        if self._closed is not None:
            return list(self._closed)
        own = set(self.symbols)
        asked = guard_expressions(self._environment) if self._environment is not None else ()
        torchs = dict.fromkeys(python_text(e) for e in asked if not own.isdisjoint(map(str, e.free_symbols)))
        # what is computed before the other one is read, which is equal, takes a symbol for its number, too
        fixed = fixed_symbols(self._environment) if self._reads and asked else {}
        numbers = {f"{symbol} == {n}": None for symbol, n in fixed.items() if symbol in self._reads}
        return [*(torchs | numbers), *(a.condition for a in self._atoms.values() if a.symbol), *self._guards]

    def close(self) -> None:
        """The program is done: what is asked from now on, where it is looked at, is no guard of it."""
        self._closed = tuple(self._conditions)
        self._environment = None
        self._results.clear()
        self._ranges.clear()

    def plain(self, value: SymInt) -> int | Size:
        """A size of torch's as one of ours; what has no such form is fixed to its value now."""
        self._learn()
        expr = expression(value)
        if expr not in self._known:
            found = self._converted(expr)
            self._known[expr] = self._fixed(python_text(expr), int(value)) if found is None else found
        return self._known[expr]

    def _learn(self) -> None:
        """What torch was asked, and answered, so that it holds in every call: what divides which symbols, and which
        are equal."""
        asked = guard_expressions(self._environment, self._learnt) if self._environment is not None else []
        if self._reads and asked:
            self._learn_order()
        for condition in asked:
            if not str(condition).startswith(_DIVIDES) or condition.args[1] != 0:  # another remainder
                continue
            of, by = condition.args[0].args
            if of.is_Symbol and by.is_Integer and f"{PREFIX}{of}" not in self._multiples:
                symbol = self.size({(f"{PREFIX}{of}",): 1})
                quotient = self.atom("//", symbol, int(by))
                self._multiples[f"{PREFIX}{of}"] = {names: n * int(by) for names, n in quotient._terms.items()}
                self._known.clear()
                self._results.clear()
                self._ranges.clear()
        self._learnt += len(asked)

    def _learn_order(self) -> None:
        earlier: dict[str, str] = {}
        for symbol, other in replaced_symbols(self._environment).items():
            first = min(symbol, earlier.get(other, other), key=lambda s: self._reads.get(s, -1))
            if first != other:
                earlier[other] = first
        if earlier != self._earlier:
            self._earlier = earlier
            self._known.clear()

    def _fixed(self, text: str, hint: int) -> int:
        self._guards[f"{text} == {hint}"] = None
        return hint

    def _converted(self, expr: Any) -> int | Size | None:
        kind, args = type(expr).__name__, [self._converted(a) for a in expr.args]
        if expr.is_Integer:
            return int(expr)
        if expr.is_Symbol:
            name = f"{PREFIX}{self._earlier.get(str(expr), expr)}"
            return _made(self, {(name,): 1}) if name in self._atoms else None
        rule = _RULES.get(kind)
        return None if rule is None or any(a is None for a in args) else rule(args)

    # ── what is known of a polynomial ────────────────────────────────────────────────────────────────────────────

    def hint_of(self, terms: Terms) -> int:
        return sum(by * math.prod(self._atoms[name].hint for name in names) for names, by in terms.items())

    def range_of(self, terms: Terms) -> tuple[float, float]:
        """The least and the greatest value, as far as the ranges of the symbols tell."""
        return bounds(terms, lambda name: (self._atoms[name].low, self._atoms[name].high))

    def is_at_most(self, terms: Terms, limit: int) -> bool:
        """Whether a polynomial is no larger than a number; where ranges do not tell, its hint does, and leaves a
        guard."""
        low, high = self.range_of(terms)
        if high <= limit or low > limit:
            return high <= limit
        holds = self.hint_of(terms) <= limit
        if not self._narrowed(terms, limit, holds):
            self._guards[f"{_text(self, terms, True)} {'<=' if holds else '>'} {limit}"] = None
        return holds

    def is_zero(self, terms: Terms) -> bool:
        low, high = self.range_of(terms)
        if low > 0 or high < 0:
            return False
        if self.hint_of(terms) == 0:
            return self.is_at_most(terms, 0) and not self.is_at_most(terms, -1)
        if low == 0 or high == 0:  # then it is on the other side: that says more
            self.is_at_most(terms, 0 if low == 0 else -1)
            return False
        variables = [names for names in terms if names]
        if len(variables) > 1 or len(variables[0]) > 1 or -terms.get((), 0) % terms[variables[0]] == 0:
            self._guards[f"{_text(self, terms, True)} != 0"] = None
        return False

    def _narrowed(self, terms: Terms, limit: int, holds: bool) -> bool:
        """Note ``terms <= limit``, or its contrary, in the range of what it is about, if that is one thing; whether
        that is a symbol, whose range is a guard."""
        variables = [names for names in terms if names]
        if len(variables) != 1 or len(variables[0]) != 1:
            return False
        by, atom = terms[variables[0]], self._atoms[variables[0][0]]
        self._ranges.clear()
        room = limit - terms.get((), 0)  # by * symbol <= room, or by * symbol >= room + 1
        if holds == (by > 0):
            atom.high = min(atom.high, room // by if holds else (room + 1) // by)
        else:
            atom.low = max(atom.low, -(room // -by) if holds else -(-(room + 1) // by))
        return atom.symbol

    def atom(self, kind: str, of: Size | int, by: Size | int) -> Size:
        """``of // by`` or ``of % by``, which is no polynomial."""
        sign = "/" if kind == "//" else "%"
        name = f"({of} {sign} {by})"
        if name not in self._atoms:
            value = hint(of) // hint(by) if kind == "//" else hint(of) % hint(by)
            low, high = 0, _range(by)[1] - 1
            if kind == "//":
                low = int(max(0, _range(of)[0])) // by if isinstance(by, int) else 0  # it is not negative (see _split)
                most = _range(of)[1]
                high = most if most == math.inf else most // max(1, _range(by)[0])
            self._atoms[name] = Atom(value, low, high, f"({of!r} {kind} {by!r})", False)
        return self.size({(name,): 1})


class SizeError(TypeError):
    """A symbolic size was used where a number was meant that is known before the program runs."""


class Size:
    """A whole number that is known when the program runs. ``str`` writes it as C, ``repr`` as Python."""

    __slots__ = ("_hash", "_sizes", "_terms", "hint")

    def __init__(self, sizes: Sizes, terms: Terms, known_by: int) -> None:
        self._sizes = sizes
        self._terms = terms
        self._hash = known_by
        self.hint = sizes.hint_of(terms)

    def _combined(self, other: Any, terms: Callable[[Terms, Terms], Terms]) -> Any:
        key: Any
        if type(other) is Size and other._sizes is self._sizes:
            key = terms, id(self), (id(other),)
        elif type(other) is int or type(other) is bool:
            key = terms, id(self), other
        elif isinstance(other, float):
            raise SizeError(self._sizes.named(f"{self!r} and {other!r} make no whole number"))
        else:
            return NotImplemented
        found = self._sizes._results.get(key)
        if found is None:
            own = {} if type(other) is int and not other else terms_of(other)
            found = self._sizes._results[key] = _made(self._sizes, terms(self._terms, own))
        return found

    def __add__(self, other: Any) -> Any:
        return self._combined(other, added)

    __radd__ = __add__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + -other if isinstance(other, (int, Size)) else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return -self + other

    def __mul__(self, other: Any) -> Any:
        return self._combined(other, multiplied)

    __rmul__ = __mul__

    def __floordiv__(self, by: Any) -> Any:
        return _split(self, by)[0]

    def __rfloordiv__(self, of: Any) -> Any:
        return _split(of, self)[0]

    def __mod__(self, by: Any) -> Any:
        return _split(self, by)[1]

    def __rmod__(self, of: Any) -> Any:
        return _split(of, self)[1]

    def __truediv__(self, by: Any) -> Any:
        raise SizeError(self._sizes.named(f"{self!r} / {by!r} is no whole number"))

    def __rtruediv__(self, of: Any) -> Any:
        raise SizeError(self._sizes.named(f"{of!r} / {self!r} is no whole number"))

    def __float__(self) -> float:
        raise SizeError(self._sizes.named(f"{self!r} is known when the program runs"))

    def __le__(self, other: Any) -> bool:
        return self._at_most(other, 0)

    def __lt__(self, other: Any) -> bool:
        return self._at_most(other, -1)

    def __gt__(self, other: Any) -> bool:
        return not self._at_most(other, 0)

    def __ge__(self, other: Any) -> bool:
        return not self._at_most(other, -1)

    def _at_most(self, other: Any, limit: int) -> bool:
        if isinstance(other, float):
            return (
                other > 0
                if math.isinf(other)
                else self._at_most(math.ceil(other) if limit else math.floor(other), limit)
            )
        # as hints say, whatever is known; and a guard needs asking for once
        results, key = self._sizes._results, (limit, id(self), other if isinstance(other, int) else (id(other),))
        found = results.get(key)
        if found is None:
            difference = self - other
            if isinstance(difference, int):
                found = difference <= limit
            else:
                found = self._sizes.is_at_most(difference._terms, limit)
            results[key] = found
        return found  # type: ignore[no-any-return]

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, (int, Size)) or (isinstance(other, Size) and other._sizes is not self._sizes):
            return False
        results, key = self._sizes._results, (id(self), other if isinstance(other, int) else (id(other),))
        found = results.get(key)
        if found is None:
            difference = self - other
            found = difference == 0 if isinstance(difference, int) else self._sizes.is_zero(difference._terms)
            results[key] = found
        return found  # type: ignore[no-any-return]

    def __hash__(self) -> int:
        return self._hash

    def __bool__(self) -> bool:
        return self != 0

    def __index__(self) -> int:
        """Fixes the size to its hint: the program is for this one."""
        assert self == self.hint
        return self.hint

    @property
    def range(self) -> tuple[float, float]:
        """The least and the greatest value it may have."""
        ranges: dict[Any, tuple[float, float]] = self._sizes._ranges
        if id(self) not in ranges:
            ranges[id(self)] = self._sizes.range_of(self._terms)
        return ranges[id(self)]

    def __str__(self) -> str:
        return _text(self._sizes, self._terms, False)

    def __repr__(self) -> str:
        return _text(self._sizes, self._terms, True)

    def __format__(self, how: str) -> str:
        return format(str(self), how)


def hint(size: Any) -> int:
    """The value of a size in the call that is compiled: for costs."""
    if isinstance(size, int):
        return size
    found = size if isinstance(size, Size) else plain(size)
    return found.hint if isinstance(found, Size) else found


def sizes_of(environment: Any) -> Sizes:
    """What is known of the sizes in an environment of torch's."""
    found: Sizes | None = vars(environment).get("funcgrad_sizes")
    if found is None:
        found = vars(environment)["funcgrad_sizes"] = Sizes(environment)  # they go together
    return found


def plain(value: Any) -> Any:
    """A size of torch's as one of ours; what is a number already, as it is."""
    return sizes_of(shape_environment(value)).plain(value) if isinstance(value, SymInt) else value


_RULES: Mapping[str, Callable[[list[Any]], Any]] = {
    "Add": sum, "Mul": math.prod, "Max": max, "Min": min,
    "Pow": lambda args: math.prod([args[0]] * args[1]) if isinstance(args[1], int) and args[1] > 0 else None,
    "FloorDiv": lambda args: args[0] // args[1], "CleanDiv": lambda args: args[0] // args[1],
    "Mod": lambda args: args[0] % args[1], "PythonMod": lambda args: args[0] % args[1],
}  # fmt: skip

# ── polynomials ──────────────────────────────────────────────────────────────────────────────────────────────────


def _made(sizes: Sizes, terms: Terms) -> int | Size:
    for symbol, multiple in sizes._multiples.items():
        for names in [names for names in terms if symbol in names]:
            rest = list(names)
            rest.remove(symbol)
            by = terms.pop(names)
            return _made(sizes, added(terms, multiplied({tuple(rest): by}, multiple)))
    terms = {names: by for names, by in terms.items() if by}
    return sizes.size(terms) if any(terms) else terms.get((), 0)


def _split(of: Any, by: Any) -> tuple[Any, Any]:
    """``divmod(of, by)``: the terms that ``by`` divides are divided; of the others, what is smaller than ``by`` is
    the remainder."""
    if not (isinstance(of, (int, Size)) and isinstance(by, (int, Size))):
        return NotImplemented, NotImplemented
    sizes: Sizes = (of if isinstance(of, Size) else by)._sizes  # type: ignore[union-attr]
    key = of if isinstance(of, int) else (id(of),), by if isinstance(by, int) else (id(by),)
    found = sizes._ranges.get(key)
    if found is None:
        found = sizes._ranges[key] = _divided(sizes, of, by)
    return found  # type: ignore[no-any-return]


def _divided(sizes: Sizes, of: Any, by: Any) -> tuple[Any, Any]:
    if by == 0:
        raise ZeroDivisionError(sizes.named(f"{of!r} divided by {by!r}"))
    if by < 0:
        quotient, remainder = _split(-of, -by)
        return quotient, -remainder
    if of < 0:  # C rounds towards zero
        up = (by - 1 - of) // by
        return -up, of + up * by
    whole, rest = divided(terms_of(of), terms_of(by))
    quotient, remainder = _made(sizes, whole), _made(sizes, rest)
    if isinstance(remainder, int) and isinstance(by, int):
        return quotient + remainder // by, remainder % by
    low, _ = _range(remainder)
    if low >= 0 and _range(remainder - by)[1] < 0:
        return quotient, remainder
    if _range(remainder)[1] < 0 and _range(remainder + by)[0] >= 0:
        return quotient - 1, remainder + by
    if low < 0:
        quotient, remainder = 0, of
    return quotient + sizes.atom("//", remainder, by), sizes.atom("%", remainder, by)


def terms_of(number: int | Size) -> Terms:
    """A number as a polynomial."""
    return number._terms if isinstance(number, Size) else {(): number}


def _range(number: int | Size) -> tuple[float, float]:
    return number.range if isinstance(number, Size) else (number, number)


def _text(sizes: Sizes, terms: Terms, python: bool) -> str:
    return written(terms, lambda name: sizes._atoms[name].python if python else name)
