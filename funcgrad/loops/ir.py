"""The loop IR: kernels are loops over rows, and over the elements of a row in one or several stages.

``rows`` are the parallel loops. Each ``Stage`` first computes what belongs to the row, then walks the ``columns``: it
reads, adds up for the row (``Reduced``), keeps elements for a later stage (``Stage.keeps``), writes, or adds to totals
over all rows (``Total``). So softmax with its backward is one kernel of a few stages over a row that stays in cache,
and a long chain of functions is one over a tile.

An expression is computed for one element; ``full`` says that it differs from column to column. Expressions of one
kernel are made by one ``Expressions``, which gives equal ones back as one object.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from attrs import field, frozen

from ..show.parts import Doc, Table
from ..show.shown import Shown
from ..show.text import elided
from ..symbolic.names import naming
from .index import Axis, Bound, Index


@frozen(eq=False)
class Expr:
    """A number for each element of a row (``full``), or one for the row. ``stage``: the first one in which it is
    known."""

    dtype: torch.dtype
    full: bool
    stage: int

    @property
    def args(self) -> tuple[Expr, ...]:
        return ()


Found = tuple[tuple[Axis, Expr], ...]
"""Axes of an index that stand for whole numbers computed in the kernel."""


@frozen(eq=False)
class Const(Expr):
    """A number known now."""

    value: Any

    def __str__(self) -> str:
        return str(self.value)


@frozen(eq=False)
class Load(Expr):
    """An element of a buffer; ``at`` counts elements from its start. Where a bound of ``guard`` does not hold it is
    any number, of which nothing may come. Axes in ``found`` are no loop counters, but what an expression says (see
    ``Expressions.axis``)."""

    buffer: str
    at: Index
    guard: tuple[Bound, ...]
    found: Found

    @property
    def args(self) -> tuple[Expr, ...]:
        return tuple(e for _, e in self.found)

    def __str__(self) -> str:
        guard = " and ".join(f"{low} <= {i} < {high}" for i, low, high in self.guard)
        return f"{self.buffer}[{self.at}]" + (f" if {guard}" if guard else "")


@frozen(eq=False)
class Position(Expr):
    """An index as a number."""

    at: Index
    found: Found

    @property
    def args(self) -> tuple[Expr, ...]:
        return tuple(e for _, e in self.found)

    def __str__(self) -> str:
        return f"({self.at})"


@frozen(eq=False)
class Op(Expr):
    """An operation on numbers; the arguments are of one dtype but for ``cast`` and ``where``."""

    name: str
    # shared: written out, they would be as long as the trees they are not
    operands: tuple[Expr, ...] = field(repr=False)

    @property
    def args(self) -> tuple[Expr, ...]:
        return self.operands


@frozen(eq=False)
class _OverColumns(Expr):
    kind: str
    body: Expr

    @property
    def args(self) -> tuple[Expr, ...]:
        return (self.body,)


@frozen(eq=False)
class Reduced(_OverColumns):
    """``kind`` of ``body`` over the columns: one number for the row, known in the stage after the body's."""


@frozen(eq=False)
class Scanned(_OverColumns):
    """``kind`` of ``body`` over the columns up to the present one; a walk that computes it goes through its columns
    in order."""


@frozen
class Buffer:
    """The memory of a tensor; strides count elements."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    strides: tuple[int, ...]

    @property
    def extent(self) -> int:
        """Elements from the first to the last, with what lies between them."""
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))


@frozen(eq=False)
class Store:
    """Write an element. ``full``: one for each column, else one for the row."""

    buffer: str
    at: Index
    value: Expr
    full: bool


@frozen(eq=False)
class Total:
    """Add an element to a total over all rows; ``at`` counts columns only. Threads keep totals of their own until the
    end.

    ``full``: each column adds, else each row once. ``size``: how many totals there are.
    """

    buffer: str
    at: Index
    kind: str
    value: Expr
    full: bool
    size: int


@frozen(eq=False)
class Put:
    """Write an element where numbers say: axes in ``found`` are as those of a ``Load``. Another row may write to the
    same place, and ``value`` may load what is there, so rows go one after the other, but for those that differ along
    the first ``apart`` axes."""

    buffer: str
    at: Index
    value: Expr
    full: bool
    found: Found
    apart: int


Effect = Store | Total | Put


def computed(effects: Iterable[Effect]) -> list[Expr]:
    """The expressions that effects need."""
    return [
        e
        for effect in effects
        for e in (effect.value, *((n for _, n in effect.found) if isinstance(effect, Put) else ()))
    ]


@frozen(eq=False)
class Stage:
    """What is done in one walk over the columns: reductions, elements kept in a buffer of the thread, effects."""

    reductions: tuple[Reduced, ...]
    keeps: tuple[Expr, ...]
    effects: tuple[Effect, ...]


@frozen(eq=False, repr=False)
class Kernel(Shown):
    """Loops over ``rows`` (in parallel), each with ``stages`` over ``columns``.

    ``reads`` and ``writes`` are its buffers, in the order of its parameters. ``tile``: the columns of a kernel
    without reductions are cut into tiles of this many, each a row of its own (0: they are not).
    """

    name: str
    rows: tuple[Axis, ...]
    columns: tuple[Axis, ...]
    stages: tuple[Stage, ...]
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    tile: int
    computes: Mapping[str, str]
    """The graph's nodes whose values it computes, by name, each with the reason why it is computed here."""
    over: Mapping[str, str] = {}
    """What it writes in the place of something it reads, ``{written: read}``: one parameter stands for both."""

    @property
    def parameters(self) -> tuple[Buffer, ...]:
        """What its function takes: what it reads, then what it writes elsewhere."""
        return (*self.reads, *(b for b in self.writes if b.name not in self.over))

    @property
    def names(self) -> dict[str, str]:
        """What its buffers are called in its function."""
        names = {b.name: f"p{i}" for i, b in enumerate(self.parameters)}
        return names | {written: names[read] for written, read in self.over.items()}

    def headline(self) -> str:
        rows, columns = (" × ".join(f"{a.name}<{a.size}" for a in axes) or "1" for axes in (self.rows, self.columns))
        return self._named()(f"{self.name}: rows {rows}, columns {columns}")

    def doc(self) -> Doc:
        named = self._named()
        rows = tuple((stage, what, named(formula)) for stage, what, formula in formulas(self.stages))
        values: dict[str, list[str]] = {}
        for value, why in self.computes.items():
            values.setdefault(why, []).append(value)
        reasons = tuple((", ".join(own), named(why)) for why, own in values.items())
        return Doc(
            self.headline(),
            (
                Table(("stage", "", ""), rows, "formulas"),
                *((Table(("computes", "why here"), reasons, "values"),) if reasons else ()),
            ),
        )

    def _named(self) -> Callable[[str], str]:
        return naming(
            n
            for sizes in ([a.size for a in (*self.rows, *self.columns)], *(b.shape for b in self.reads))
            for n in sizes
        )


def short(expr: Expr, length: int = 100) -> str:
    """An expression as text, without its middle where it grows too long to be read."""
    texts: dict[Expr, str] = {}
    for part in walk([expr]):
        texts[part] = elided(_formula(part, texts), length)
    return texts[expr]


_LONG = 160
"""Characters from which on a part of a formula has a name."""


def formulas(stages: Sequence[Stage]) -> Iterator[tuple[str, str, str]]:
    """What stages do, whole: the stage, what is done, and how. What is kept, shared or long has a name, so that
    nothing is said twice."""
    roots = [e for stage in stages for e in (*stage.reductions, *stage.keeps, *computed(stage.effects))]
    readers = Counter([a for e in walk(roots) for a in dict.fromkeys(e.args)])
    readers.update(e for stage in stages for e in computed(stage.effects))
    texts: dict[Expr, str] = {}
    seen: set[Expr] = set()
    names = 0
    for i, stage in enumerate(stages):
        kinds = dict.fromkeys(stage.keeps, "keep") | dict.fromkeys(stage.reductions, "reduce")
        for expr in walk([*stage.reductions, *stage.keeps, *computed(stage.effects)], into=seen):
            text = _formula(expr, texts)
            if expr.args and (readers[expr] > 1 or expr in kinds or len(text) > _LONG):
                yield str(i), kinds.get(expr, ""), f"t{names} = {text}"
                text, names = f"t{names}", names + 1
            texts[expr] = text
        for effect in stage.effects:
            sign = "=" if not isinstance(effect, Total) else "+=" if effect.kind == "sum" else f"= {effect.kind} with"
            where = _found(effect.found, texts) if isinstance(effect, Put) else ""
            yield (
                str(i),
                type(effect).__name__.lower(),
                f"{effect.buffer}[{effect.at}] {sign} {texts[effect.value]}{where}",
            )


_INFIX = {
    "mul": ("*", 2), "div": ("/", 2), "add": ("+", 1), "sub": ("-", 1),
    "lt": ("<", 0), "le": ("<=", 0), "gt": (">", 0), "ge": (">=", 0), "eq": ("==", 0), "ne": ("!=", 0),
}  # fmt: skip
"""Operations written between their operands: how, and how tightly they bind."""


def _formula(expr: Expr, texts: Mapping[Expr, str]) -> str:
    """How an expression is computed of its arguments, whose texts are given."""
    match expr:
        case Op(name=name, operands=(a, b)) if name in _INFIX:
            sign, binds = _INFIX[name]
            left = f"({texts[a]})" if _binds(a, texts) < max(binds, 1) else texts[a]
            right = f"({texts[b]})" if _binds(b, texts) <= binds else texts[b]
            return f"{left} {sign} {right}"
        case Op(name=name, operands=operands):
            return f"{name}({', '.join(texts[a] for a in operands)})"
        case Reduced(kind=kind, body=body):
            return f"{kind}_columns({texts[body]})"
        case Scanned(kind=kind, body=body):
            return f"running_{kind}({texts[body]})"
        case Load(found=found) | Position(found=found):
            return f"{expr}{_found(found, texts)}"
    return str(expr)


def _binds(expr: Expr, texts: Mapping[Expr, str]) -> int:
    """How tightly the text of an expression binds."""
    if texts[expr].isidentifier():
        return 3
    match expr:
        case Op(name=name) if name in _INFIX:
            return _INFIX[name][1]
        case Load(guard=guard, found=found) if guard or found:
            return -1
    return 3


def _found(found: Found, texts: Mapping[Expr, str]) -> str:
    return f" with {', '.join(f'{axis} = {texts[number]}' for axis, number in found)}" if found else ""


class Expressions:
    """Makes the expressions of one kernel: equal ones are one object, and what needs no computing is not computed."""

    def __init__(self, columns: Sequence[Axis]) -> None:
        self._columns = frozenset(columns)
        self._known: dict[tuple[Any, ...], Expr] = {}
        self._axes: dict[tuple[Expr, int], Axis] = {}
        self._found: dict[Axis, Expr] = {}

    def axis(self, number: Expr, size: int) -> Axis:
        """An axis that stands for a number where indices are: one that is negative counts from the end, for one that
        is out of bounds it is 0."""
        axis = self._axes.setdefault((number, size), Axis(f"f{len(self._axes)}", size))
        self._found[axis] = number
        return axis

    def const(self, value: Any, dtype: torch.dtype) -> Expr:
        return self._made(Const, dtype, False, 0, _Written(repr(value), value))

    def load(self, buffer: str, at: Index, dtype: torch.dtype, guard: tuple[Bound, ...] = ()) -> Expr:
        found = self.found_in(at, *(i for i, _, _ in guard))
        full = any(e.full for _, e in found) or self.is_full(at) or any(self.is_full(i) for i, _, _ in guard)
        return self._made(Load, dtype, full, _stage(found), buffer, at, guard, found)

    def position(self, at: Index) -> Expr:
        if not at.terms:
            return self.const(at.const, torch.int64)
        found = self.found_in(at)
        return self._made(
            Position, torch.int64, any(e.full for _, e in found) or self.is_full(at), _stage(found), at, found
        )

    def op(self, name: str, args: Sequence[Expr], dtype: torch.dtype) -> Expr:
        simple = _simplified(name, args, dtype)
        if simple is not None:
            return simple
        return self._made(
            Op, dtype, any(a.full for a in args), max((a.stage for a in args), default=0), name, tuple(args)
        )

    def reduced(self, kind: str, body: Expr) -> Expr:
        return self._made(Reduced, body.dtype, False, body.stage + 1, kind, body)

    def scanned(self, kind: str, body: Expr) -> Expr:
        return self._made(Scanned, body.dtype, True, body.stage, kind, body)

    def found_in(self, *indices: Index) -> Found:
        """The axes in indices that stand for numbers, and the numbers."""
        axes = frozenset().union(*(i.axes for i in indices)) if self._found else ()
        return tuple((a, self._found[a]) for a in sorted(axes, key=str) if a in self._found)

    def is_full(self, at: Index) -> bool:
        """Whether it differs from column to column."""
        return not self._columns.isdisjoint(at.axes)

    def _made(self, kind: type[Expr], *fields: Any) -> Expr:
        key = (kind, *(f.text if isinstance(f, _Written) else f for f in fields))
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = kind(*(f.value if isinstance(f, _Written) else f for f in fields))
        assert isinstance(found, kind)
        return found


def _stage(found: Found) -> int:
    return max((e.stage for _, e in found), default=0)


@frozen
class _Written:
    text: str
    value: Any


def _simplified(name: str, args: Sequence[Expr], dtype: torch.dtype) -> Expr | None:
    """Rules that hold for every number, NaN and -0.0 among them."""
    if name == "mul":
        for one, other in ((0, 1), (1, 0)):
            if _is(args[one], 1) and args[other].dtype == dtype:
                return args[other]
    if name == "div" and _is(args[1], 1) and args[0].dtype == dtype:
        return args[0]
    if name in ("add", "sub"):
        for zero, other in ((1, 0), (0, 1)) if name == "add" else ((1, 0),):
            # 0.0 is not neutral: it turns -0.0 into 0.0; -0.0 is, and so is 0.0 where it is taken away
            neutral = ("0",) if not dtype.is_floating_point else ("-0.0",) if name == "add" else ("0.0",)
            if isinstance(args[zero], Const) and str(args[zero]) in neutral and args[other].dtype == dtype:
                return args[other]
    return None


def _is(expr: Expr, value: int) -> bool:
    return isinstance(expr, Const) and not isinstance(expr.value, bool) and expr.value == value


def walk(roots: Sequence[Expr], into: set[Expr] | None = None) -> list[Expr]:
    """All expressions some are made of, each after its arguments; ``into`` are those already seen."""
    found: dict[Expr, None] = {}
    seen = into if into is not None else set()
    pending = [(root, False) for root in reversed(roots)]
    while pending:
        expr, ready = pending.pop()
        if expr in seen:
            continue
        if ready:
            seen.add(expr)
            found[expr] = None
        else:
            pending.append((expr, True))
            pending += [(a, False) for a in reversed(expr.args) if a not in seen]
    return list(found)
