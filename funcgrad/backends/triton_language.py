"""Triton as a language kernels are printed in: its types, numbers, loads and operations.

Half precision is computed in float32. Quotients and roots are rounded as IEEE 754 asks, other functions are those of
CUDA's libdevice. What lies outside of a tile is masked: it is neither read nor written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import frozen

from ..loops.index import Axis, Bound, Index
from ..loops.ir import Const, Expr, Kernel, Load, Op, Scanned
from ..loops.values import PAIRWISE
from .emitter import Operation, decoded, index_text

TYPES = {
    torch.float32: "tl.float32", torch.float64: "tl.float64", torch.bfloat16: "tl.float32", torch.float16: "tl.float32",
    torch.int64: "tl.int64", torch.int32: "tl.int32", torch.int16: "tl.int16", torch.int8: "tl.int8",
    torch.uint8: "tl.uint8",
    torch.bool: "tl.int1",
}  # fmt: skip

WIDE_FROM = 1 << 30
"""Elements from which on indices are 64 bits wide: what is masked may lie as far behind a buffer as it is long."""

_INFIX = frozenset("add sub mul neg and or xor invert eq ne lt le gt ge".split())
"""Operations that take a number written as a number, as long as the other operand is a tensor."""


def _by_precision(single: str, double: str) -> Operation:
    return lambda dtype, args: (double if dtype == torch.float64 else single).format(*args)


def _negative(dtype: torch.dtype, args: Sequence[str]) -> str:
    # Triton's -x is 0 - x, and loses the sign of 0.0
    return f"{args[0]} * -1.0" if dtype.is_floating_point else f"-{args[0]}"


def _comparison(template: str, of_truths: str) -> Operation:
    """One bit is signed in Triton: True is less than False."""
    return lambda dtype, args: (of_truths if dtype == torch.bool else template).format(*args)


def _quotient(dtype: torch.dtype, args: Sequence[str]) -> str:
    if not dtype.is_floating_point:
        return f"{args[0]} // {args[1]}"
    return f"{args[0]} / {args[1]}" if dtype == torch.float64 else f"tl.div_rn({args[0]}, {args[1]})"


def _invert(dtype: torch.dtype, args: Sequence[str]) -> str:
    return f"{args[0]} ^ 255" if dtype == torch.uint8 else f"~{args[0]}"  # whose ones the interpreter takes for -1


def _relu(dtype: torch.dtype, args: Sequence[str]) -> str:
    return f"tl.where({args[0]} < 0, {typed(0, dtype)}, {args[0]})"


def _sign(dtype: torch.dtype, args: Sequence[str]) -> str:
    return f"({args[0]} > 0).to({TYPES[dtype]}) - ({args[0]} < 0).to({TYPES[dtype]})"


def _philox(half: int) -> Operation:
    kinds = {torch.float32: "float", torch.float64: "double", torch.int64: "bits"}
    return lambda dtype, args: f"philox_{kinds[dtype]}({', '.join(args)}, {half})"


_LIBDEVICE = (
    "exp log sin cos tan tanh erf erfc erfcx expm1 log1p log2 log10 exp2 asin acos atan sinh cosh asinh acosh atanh "
    "trunc rsqrt"
).split()

_OPERATIONS: Mapping[str, Operation] = {
    "add": "{} + {}", "sub": "{} - {}", "mul": "{} * {}", "neg": _negative, "div": _quotient,
    "reciprocal": _by_precision("tl.div_rn(1.0, {})", "1.0 / {}"), "invert": _invert,
    "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}", "eq": "{} == {}", "ne": "{} != {}",
    "lt": _comparison("{} < {}", "({} ^ True) & {}"), "le": _comparison("{} <= {}", "({} ^ True) | {}"),
    "gt": _comparison("{} > {}", "{} & ({} ^ True)"), "ge": _comparison("{} >= {}", "{} | ({} ^ True)"),
    "where": "tl.where({}, {}, {})", "relu": _relu, "sign": _sign, "abs": "tl.abs({})",
    "fma": "tl.fma({}, {}, {})", "maximum": "maximum({}, {})", "minimum": "minimum({}, {})",
    "floor": "tl.floor({})", "ceil": "tl.ceil({})", "round": "libdevice.rint({})",
    "sqrt": _by_precision("tl.sqrt_rn({})", "tl.sqrt({})"),
    "sigmoid": "sigmoid({})", "remainder": "remainder({}, {})", "philox0": _philox(0), "philox1": _philox(1),
    **{name: f"libdevice.{name}({{}})" for name in _LIBDEVICE},
    **{name: f"libdevice.{name}({{}}, {{}})" for name in ("pow", "atan2", "hypot", "fmod", "copysign")},
}  # fmt: skip


@frozen
class Tile:
    """The elements a program works on at a time: ``height`` rows by ``width`` columns, or, where ``width`` is 0, a line
    of ``height`` elements of any row and column.

    ``rows_inside`` and ``columns_inside`` name what is True for those that exist; None where all do.
    """

    rows: frozenset[Axis]
    columns: frozenset[Axis]
    height: int
    width: int
    rows_inside: str | None
    columns_inside: str | None

    def sides(self, axes: Iterable[Axis]) -> tuple[bool, bool]:
        """Whether what depends on these axes differs from row to row, and from column to column."""
        axes = set(axes)
        return not self.rows.isdisjoint(axes), not self.columns.isdisjoint(axes)

    def shape(self, sides: tuple[bool, bool]) -> list[int]:
        if not self.width:
            return [self.height]
        return [self.height if sides[0] else 1, self.width if sides[1] else 1]

    def inside(self, sides: tuple[bool, bool]) -> list[str]:
        """The tests an element passes that exists."""
        return [
            name for name, side in zip((self.rows_inside, self.columns_inside), sides, strict=True) if side and name
        ]


class Triton:
    """Triton, as ``emitter.Language``. ``parameters``: what buffers are called; ``tile``: the elements that are
    computed at a time.

    ``wide``: indices are 64 bits wide.
    """

    operations = _OPERATIONS

    def __init__(self, parameters: Mapping[str, str], tile: Tile, wide: bool) -> None:
        self._parameters = parameters
        self._tile = tile
        self._index = "tl.int64" if wide else "tl.int32"
        self._numbers: dict[Axis, tuple[bool, bool]] = {}  # axes that stand for numbers
        self.running: dict[Scanned, str] = {}  # what scans have come to in the parts of a row that were before

    def define(self, name: str, expr: Expr, text: str) -> str:
        return f"{name} = {text}"

    def const(self, expr: Const) -> str:
        return number(expr.value, expr.dtype)

    def operands(self, expr: Op, texts: Sequence[str]) -> Sequence[str]:
        """Python would compute with two numbers itself, and a function takes a number as one of 32 bits."""
        texts = list(texts)
        for i, operand in enumerate(expr.operands):
            if isinstance(operand, Const) and expr.name not in _INFIX:
                texts[i] = typed(operand.value, operand.dtype, always=expr.name == "cast")
        if isinstance(expr.operands[0], Const) and all(isinstance(a, Const) for a in expr.operands):
            texts[0] = typed(expr.operands[0].value, expr.operands[0].dtype, always=True)
        return texts

    def position(self, at: Index) -> str:
        return f"{_operand(at)}.to(tl.int64)"

    def element(self, number: Expr, text: str, size: int) -> Axis:
        text = typed(number.value, torch.int64, always=True) if isinstance(number, Const) else text
        sides = True, number.full
        axis = Axis(f"element(tl.broadcast_to({text}, {self._tile.shape(sides)}), {size})", size)
        self._numbers[axis] = sides
        return axis

    def scanned(self, expr: Scanned, element: str) -> str:
        here = f"running_{expr.kind}({self.filled(expr.body, element)})"
        how = self.operations[PAIRWISE[expr.kind]]
        assert isinstance(how, str)
        return how.format(self.running[expr], here) if expr in self.running else here

    def filled(self, expr: Expr, text: str) -> str:
        """A number for each element of the tile."""
        shape = self._tile.shape((True, True))
        return (
            f"tl.full({shape}, {text}, {TYPES[expr.dtype]})"
            if isinstance(expr, Const)
            else f"tl.broadcast_to({text}, {shape})"
        )

    def load(self, expr: Load, at: Index, guard: Sequence[Bound]) -> str:
        tests = [test for bound in guard for test in _tests(bound)]
        of_guard = self._sides(axis for i, _, _ in guard for axis in i.axes) if tests else (False, False)
        place, mask = self.address(expr.buffer, at, of_guard)
        mask = [*mask, *tests]
        text = f"tl.load({place}, mask={' & '.join(mask)}, other=0)" if mask else f"tl.load({place})"
        if expr.dtype == torch.bfloat16:
            return f"from_bfloat16({text})"
        return f"{text}.to(tl.float32)" if expr.dtype == torch.float16 else text

    def address(self, buffer: str, at: Index, least: tuple[bool, bool]) -> tuple[str, list[str]]:
        """Where an element is, for each of the tile that ``at`` tells apart, or ``least`` does; and the tests for
        those that exist."""
        own = self._sides(at.axes)
        sides = (own[0] or least[0], own[1] or least[1])
        text = index_text(at, "//")
        if sides != own:
            shape = self._tile.shape(sides)
            text = f"tl.broadcast_to({text}, {shape})" if any(own) else f"tl.full({shape}, {text}, {self._index})"
        name = self._parameters[buffer]
        return name if text == "0" else f"{name} + {text}", self._tile.inside(sides)

    def _sides(self, axes: Iterable[Axis]) -> tuple[bool, bool]:
        axes = list(axes)
        sides = [self._tile.sides(axes), *(self._numbers[a] for a in axes if a in self._numbers)]
        return any(rows for rows, _ in sides), any(columns for _, columns in sides)

    def cast(self, text: str, given: torch.dtype, wanted: torch.dtype) -> str:
        if wanted == torch.bool:
            return f"{text} != 0"
        single = text if TYPES[given] == "tl.float32" else f"{text}.to(tl.float32)"
        if wanted == torch.bfloat16:
            return f"from_bfloat16(to_bfloat16({single}))"
        return f"{single}.to(tl.float16).to(tl.float32)" if wanted == torch.float16 else f"{text}.to({TYPES[wanted]})"


def is_wide(kernel: Kernel) -> bool:
    """Whether indices are 64 bits wide."""
    extents = (b.extent for b in (*kernel.reads, *kernel.writes))
    return max(*extents, math.prod(a.size for a in (*kernel.rows, *kernel.columns))) >= WIDE_FROM


def power_of_two(n: int) -> int:
    """The least one that is no smaller."""
    return 1 << (n - 1).bit_length()


def _tests(bound: Bound) -> list[str]:
    i, low, high = bound
    text = index_text(i, "//")
    least, most = i.range
    return [f"({text} >= {low})"] * (least < low) + [f"({text} < {high})"] * (most >= high)


def counters(
    axes: Sequence[Axis], name: str, block: str, tile: tuple[int, int, str], inside: str | None, wide: bool
) -> list[str]:
    """Lines that say which rows, or columns, ``block`` has: ``tile`` are how many, how many blocks there are, and
    along which side of a tile they lie."""
    if not axes:
        return []
    size, blocks, shape = tile
    name = axes[0].name if len(axes) == 1 else name
    own = f"tl.arange(0, {size}){shape}"
    if wide:
        block, own = f"tl.cast({block}, tl.int64)", f"{own}.to(tl.int64)"
    lines = [f"{name} = {block} * {size} + {own}" if blocks > 1 else f"{name} = {own}"]
    if inside:
        lines.append(f"{inside} = {name} < {math.prod(a.size for a in axes)}")
    return lines + apart(axes, name)


def apart(axes: Sequence[Axis], name: str) -> list[str]:
    """Lines that say what the counters of several loops are, of one that counts them all."""
    return [f"{own} = {text}" for own, text in decoded(axes, name, "//")] if len(axes) > 1 else []


def stored(place: str, value: str, dtype: torch.dtype, mask: Sequence[str]) -> str:
    """Write a number of a dtype."""
    value = f"to_bfloat16({value})" if dtype == torch.bfloat16 else value
    return f"tl.store({place}, {value}, mask={' & '.join(mask)})" if mask else f"tl.store({place}, {value})"


def value_text(expr: Expr, names: Mapping[Expr, str]) -> str:
    """What is written."""
    return (
        typed(expr.value, expr.dtype, always=expr.dtype == torch.bfloat16) if isinstance(expr, Const) else names[expr]
    )


def _operand(at: Index) -> str:
    text = index_text(at, "//")
    return text if text.isidentifier() else f"({text})"


def number(value: object, dtype: torch.dtype) -> str:
    """A number as Python writes it."""
    if dtype == torch.bool:
        return repr(bool(value))
    if not dtype.is_floating_point:
        whole = int(value)  # type: ignore[call-overload]
        return f"({whole})" if whole < 0 else str(whole)
    real = float(value)  # type: ignore[arg-type]
    if real == 0 and math.copysign(1, real) < 0:
        return typed(real, dtype)
    text = f'float("{abs(real)}")' if math.isinf(real) or math.isnan(real) else repr(abs(real))
    return f"(-{text})" if real < 0 else text


def typed(value: object, dtype: torch.dtype, always: bool = False) -> str:
    """A number of this dtype: written as it is where Triton takes it for one (which it does not, where it is
    ``always`` one)."""
    kind = TYPES[dtype]
    if dtype.is_floating_point:
        real = float(value)  # type: ignore[arg-type]
        if real == 0 and math.copysign(1, real) < 0:
            return f"(tl.full([], 0.0, {kind}) * -1.0)"  # -0.0 as it is written is 0.0
        normal = real == 0 or not math.isfinite(real) or 2.0**-126 <= abs(real) <= torch.finfo(torch.float32).max
        as_written = kind == "tl.float32" and normal
    else:
        as_written = dtype in (torch.int32, torch.bool)
    text = number(value, dtype)
    return text if as_written and not always else f"tl.full([], {text}, {kind})"
