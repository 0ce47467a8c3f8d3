"""C as a language kernels are printed in: its types, numbers and operations, and the functions they rely on.

NaN, infinities and signed zeros come out as in PyTorch. The vector math is our own (``c_math.py``), or glibc's (at most
4 ulp).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from copy import copy

import torch
from attrs import frozen

from ..loops.costs import TURNS
from ..loops.index import Axis, Bound, Index, at_axis, is_shifted_axis, limits, substitute
from ..loops.ir import Const, Expr, Load, Op, Scanned
from ..loops.values import PAIRWISE, neutral
from ..symbolic.sizes import Size
from .c_math import MATH
from .emitter import Operation, index_text

TYPES = {
    torch.float32: "float", torch.float64: "double", torch.bfloat16: "float", torch.float16: "float",
    torch.int64: "int64_t",
    torch.int32: "int32_t", torch.int16: "int16_t", torch.int8: "int8_t", torch.uint8: "uint8_t", torch.bool: "int",
}  # fmt: skip
STORED = TYPES | {torch.bool: "uint8_t", torch.bfloat16: "bf16", torch.float16: "_Float16"}


def _function(name: str) -> Operation:
    return lambda dtype, args: f"{name}{'' if dtype == torch.float64 else 'f'}({', '.join(args)})"


def _turn(name: str) -> Operation:
    return lambda dtype, args: f"{f'mv_{name}' if dtype == torch.float64 else f'fg_{name}f'}({args[0]})"


def _wrapping(template: str) -> Operation:
    """Arithmetic that wraps around where whole numbers overflow: that is undefined in C, but for unsigned ones."""

    def text(dtype: torch.dtype, args: Sequence[str]) -> str:
        # those that are smaller are computed as int, and cut off where they are assigned
        if dtype not in (torch.int32, torch.int64):
            return template.format(*args)
        kind = TYPES[dtype]
        return f"({kind})({template.format(*(f'(u{kind}){a}' for a in args))})"

    return text


def _extreme(sign: str) -> Operation:
    """The second number, if it is as good (of zeros it stays, as in eager PyTorch's vectors), or NaN. Of several
    extrema in a row, GCC 12 vectorises the comparisons only if a new number is asked."""

    def text(dtype: torch.dtype, args: Sequence[str]) -> str:
        a, b = args
        nan = f" || {b} != {b}" if dtype.is_floating_point else ""
        return f"({b} {sign}= {a}{nan}) ? {b} : {a}"

    return text


def _absolute(dtype: torch.dtype, args: Sequence[str]) -> str:
    if dtype.is_floating_point:
        return f"fabs{'' if dtype == torch.float64 else 'f'}({args[0]})"
    return f"{args[0]} < 0 ? {_wrapping('-{}')(dtype, args)} : {args[0]}"  # type: ignore[operator]


def _philox(half: int) -> Operation:
    kinds = {torch.float32: "float", torch.float64: "double", torch.int64: "bits"}
    return lambda dtype, args: f"fg_philox_{kinds[dtype]}({', '.join(args)}, {half})"


STACK = 1 << 16
"""Bytes of scratch that may lie on the stack."""

HOW = "// compile with "
"""How the first line of a file begins that says with which flag, in the place of -O3, it is compiled."""

_VECTOR_1 = (
    "log sin cos tan tanh erf erfc expm1 log1p log2 log10 exp2 asin acos atan sinh cosh asinh acosh atanh exp".split()
)
_VECTOR_2 = "pow atan2 hypot".split()

_OPERATIONS: Mapping[str, Operation] = {
    "add": _wrapping("{} + {}"), "sub": _wrapping("{} - {}"), "mul": _wrapping("{} * {}"), "neg": _wrapping("-{}"),
    "div": "{} / {}", "invert": "~{}",
    "reciprocal": "1 / {}", "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}",
    "eq": "{} == {}", "ne": "{} != {}", "lt": "{} < {}", "le": "{} <= {}", "gt": "{} > {}", "ge": "{} >= {}",
    "where": "{} ? {} : {}", "relu": lambda dtype, args: f"{args[0]} < 0 ? 0 : {args[0]}",
    "sign": lambda dtype, args: f"({args[0]} > 0) - ({args[0]} < 0)",
    "maximum": _extreme(">"), "minimum": _extreme("<"), "abs": _absolute,
    "rsqrt": lambda dtype, args: f"1 / sqrt{'' if dtype == torch.float64 else 'f'}({args[0]})",
    **{name: _function(f"mv_{name}") for name in (*_VECTOR_1, *_VECTOR_2)},
    **{name: _function(f"fg_{name}") for name in ("exp", "log1p", "sigmoid", "erf", "erfcx", "remainder")},
    **{name: _function(name) for name in ("floor", "ceil", "trunc", "sqrt", "fmod", "copysign", "fma")},
    "round": _function("rint"),
    "philox0": _philox(0), "philox1": _philox(1),
}  # fmt: skip


@frozen
class Reduction:
    """How numbers are reduced: what one more makes of them, and what OpenMP calls it."""

    add: str
    clause: str


REDUCTIONS = {
    "sum": Reduction("{0} + {1}", "+"), "prod": Reduction("{0} * {1}", "*"),
    "max": Reduction("FG_MAX({1}, {0})", "fgmax"), "min": Reduction("FG_MIN({1}, {0})", "fgmin"),
    "any": Reduction("{0} | {1}", "|"), "all": Reduction("{0} & {1}", "&"),
}  # fmt: skip


_DECLARED = """\
typedef __INT8_TYPE__ int8_t; typedef __INT16_TYPE__ int16_t;
typedef __INT32_TYPE__ int32_t; typedef __INT64_TYPE__ int64_t;
typedef __UINT8_TYPE__ uint8_t; typedef __UINT16_TYPE__ uint16_t;
typedef __UINT32_TYPE__ uint32_t; typedef __UINT64_TYPE__ uint64_t;
typedef __SIZE_TYPE__ size_t; typedef uint16_t bf16;
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define INT64_MIN (-__INT64_MAX__ - 1)
void* malloc(size_t); void* aligned_alloc(size_t, size_t); void free(void*);
void* memcpy(void* restrict, const void* restrict, size_t);
int omp_get_max_threads(void); int omp_get_num_threads(void); int omp_get_thread_num(void);
#define SIMD __attribute__((simd("notinbranch"), const, nothrow))
#define ALWAYS static inline __attribute__((always_inline))"""
"""What headers would declare: to read them takes a fifth of the time that a small kernel takes to compile."""


def _prelude() -> str:
    lines = [_DECLARED]
    for name in ("fabs", "floor", "ceil", "trunc", "sqrt", "rint"):
        lines.append(f"double {name}(double); float {name}f(float);")
    for name in ("fmod", "copysign"):
        lines.append(f"double {name}(double, double); float {name}f(float, float);")
    lines.append("double fma(double, double, double); float fmaf(float, float, float);")
    for name in _VECTOR_1:  # glibc offers its vector forms under -ffast-math only
        lines.append(
            f'SIMD double mv_{name}(double) __asm__("{name}"); SIMD float mv_{name}f(float) __asm__("{name}f");'
        )
    for name in _VECTOR_2:
        lines.append(
            f'SIMD double mv_{name}(double, double) __asm__("{name}"); SIMD float mv_{name}f(float, float) '
            f'__asm__("{name}f");'
        )
    return "\n".join(lines) + MATH + _HELPERS


_HELPERS = r"""
/* 0, which compilers do not know: GCC 12 makes trunc(x) of (float)(long)x, which is -0.0 where x is, and does not
   overflow. */
__attribute__((weak)) int8_t fg_nothing = 0;
static inline float from_bf16(bf16 x) { uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }
static inline bf16 to_bf16(float f) {
  uint32_t u; memcpy(&u, &f, 4);
  return f != f ? 0x7fc0 : (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
static inline float fg_remainderf(float a, float b) {
  float r = fmodf(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}
static inline double fg_remainder(double a, double b) {
  double r = fmod(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r;
}
/* a number as the index of one of n elements, counted from the end where it is negative; 0 where there is none */
static inline int64_t fg_at(int64_t i, int64_t n) { i += i < 0 ? n : 0; return (uint64_t)i < (uint64_t)n ? i : 0; }
/* Philox4x32-10, as philox.py defines it: two of the four words at a counter */
typedef struct { uint32_t low, high; } fg_words;
ALWAYS fg_words fg_philox(uint64_t key, uint64_t counter, int half) {
  uint32_t c0 = counter, c1 = counter >> 32, c2 = 0, c3 = 0, k0 = key, k1 = key >> 32;
#pragma GCC unroll 10
  for (int i = 0; i < 10; ++i) {
    uint64_t p0 = (uint64_t)c0 * 0xD2511F53u, p1 = (uint64_t)c2 * 0xCD9E8D57u;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0; c1 = (uint32_t)p1; c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1; c3 = (uint32_t)p0;
    k0 += 0x9E3779B9u; k1 += 0xBB67AE85u;
  }
  return half ? (fg_words){c2, c3} : (fg_words){c0, c1};
}
ALWAYS float fg_philox_float(int64_t key, int64_t counter, int half) {
  return (float)(int32_t)(fg_philox(key, counter, half).low >> 8) * 0x1p-24f;
}
ALWAYS double fg_philox_double(int64_t key, int64_t counter, int half) {
  fg_words w = fg_philox(key, counter, half);
  return (double)(((int64_t)(w.low >> 5) << 26) + (w.high >> 6)) * 0x1p-53;
}
ALWAYS int64_t fg_philox_bits(int64_t key, int64_t counter, int half) {
  fg_words w = fg_philox(key, counter, half);
  return (int64_t)((uint64_t)w.high << 32 | w.low);
}
#define CLAMP(x, low, high) ((x) < (low) ? (low) : (x) > (high) ? (high) : (x))
#define FG_MAX(a, b) (((a) > (b) || (a) != (a)) ? (a) : (b))
#define FG_MIN(a, b) (((a) < (b) || (a) != (a)) ? (a) : (b))
#define FGTYPES float, double, int64_t, int32_t, int16_t, int8_t, uint8_t
#pragma omp declare reduction(fgmax: FGTYPES: omp_out = FG_MAX(omp_in, omp_out)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(fgmin: FGTYPES: omp_out = FG_MIN(omp_in, omp_out)) initializer(omp_priv = omp_orig)
"""

PRELUDE = _prelude()

_LONG_STEP = 16
"""Elements; with shorter steps whole vectors are read, and taken apart."""


class C:
    """C, as ``emitter.Language``. ``parameters``: what buffers are called; ``column``: the counter of the loops that
    are vectorised."""

    operations: Mapping[str, Operation] = _OPERATIONS

    def __init__(self, parameters: Mapping[str, str], column: Axis | None = None) -> None:
        self._parameters = parameters
        self._column = column
        self._steps: set[int] = set()
        self.running: dict[Scanned, str] = {}  # the variables in which scans go on

    def near(self) -> C:
        """The same language, for angles near zero: sine and cosine in single precision are fast there."""
        language = copy(self)
        language.operations = {**self.operations, **{name: _turn(name) for name in TURNS}}
        return language

    def address(self, at: Index) -> str:
        """Where an element lies. GCC 12 does not vectorise loops that step over a power of two, if it knows: these
        come as variables."""
        terms = []
        for atom, by in at.terms:
            hidden = atom == self._column and isinstance(by, int) and by >= _LONG_STEP and by.bit_count() == 1
            if hidden:
                self._steps.add(by)
            terms.append((Axis(f"{atom} * by{by}", 2), 1) if hidden else (atom, by))
        return index_text(Index(tuple(terms), at.const))

    def variables(self) -> list[str]:
        """Lines that define what addresses name."""
        return [f'int64_t by{n} = {n}; __asm__("" : "+r"(by{n}));' for n in sorted(self._steps)]

    def define(self, name: str, expr: Expr, text: str) -> str:
        return f"const {TYPES[expr.dtype]} {name} = {text};"

    def const(self, expr: Const) -> str:
        return number(expr.value, expr.dtype)

    def load(self, expr: Load, at: Index, guard: Sequence[Bound]) -> str:
        element = f"{self._parameters[expr.buffer]}[{_inside(at, guard) if guard else self.address(at)}]"
        return f"from_bf16({element})" if expr.dtype == torch.bfloat16 else element

    def position(self, at: Index) -> str:
        return index_text(at)

    def element(self, number: Expr, text: str, size: int) -> Axis:
        return Axis(f"fg_at({text}, {size})", size)

    def scanned(self, expr: Scanned, element: str) -> str:
        how = self.operations[PAIRWISE[expr.kind]]
        so_far = self.running[expr]
        both = how.format(so_far, element) if isinstance(how, str) else how(expr.dtype, (so_far, element))
        return f"({so_far} = {both})"

    def operands(self, expr: Op, texts: Sequence[str]) -> Sequence[str]:
        first = expr.operands[0]
        truncated = isinstance(first, Op) and first.name == "cast" and first.operands[0].dtype.is_floating_point
        if expr.name == "cast" and truncated and expr.dtype.is_floating_point and not first.dtype.is_floating_point:
            return [f"({texts[0]} + fg_nothing)"]
        return texts

    def cast(self, text: str, given: torch.dtype, wanted: torch.dtype) -> str:
        if wanted == torch.bool:
            return f"{text} != 0"
        if wanted == torch.bfloat16:
            return f"from_bf16(to_bf16((float){text}))"
        return f"(float)(_Float16){text}" if wanted == torch.float16 else f"({TYPES[wanted]}){text}"


def _inside(at: Index, guard: Sequence[Bound]) -> str:
    """The address of a load, which is a good one also where the guard does not hold: then the number is not used.

    A load under a condition would do, too; but compilers vectorise that with masks, and GCC 12 gets the masks wrong.
    """
    if not all(is_shifted_axis(i) for i, _, _ in guard):
        tests = " && ".join(f"{index_text(i)} >= {low} && {index_text(i)} < {high}" for i, low, high in guard)
        return f"({tests}) ? {index_text(at)} : 0"
    kept = limits(guard)  # of which the verifier knows that they make a good address
    axes = {axis: at_axis(Axis(f"CLAMP({axis.name}, {low}, {high})", axis.size)) for axis, (low, high) in kept.items()}
    return index_text(substitute(at, axes))


def stored(buffer: str, at: str, value: str, dtype: torch.dtype) -> str:
    """Write a number of a dtype to a buffer."""
    return f"{buffer}[{at}] = {f'to_bf16({value})' if dtype == torch.bfloat16 else value};"


def number(value: object, dtype: torch.dtype) -> str:
    """A number as C writes it."""
    if isinstance(value, Size):
        return f"(({TYPES[dtype]}){value})"
    if dtype.is_floating_point:
        real = float(value)  # type: ignore[arg-type]
        if math.isinf(real):
            return "INFINITY" if real > 0 else "(-INFINITY)"
        if math.isnan(real):
            return "NAN"
        text = f"{real!r}" if dtype == torch.float64 else f"{real!r}f"
        return f"({text})" if text.startswith("-") else text
    whole = int(value)  # type: ignore[call-overload]
    if dtype == torch.int64:
        return f"({whole}LL)" if whole > -(2**63) else "INT64_MIN"
    return f"({whole})" if whole < 0 else str(whole)


def start(kind: str, dtype: torch.dtype) -> str:
    """What a reduction of numbers of a dtype begins with."""
    value = neutral(kind, dtype)
    return str(value) if value in (0, 1) else number(value, dtype).replace("(-INFINITY)", "-INFINITY")
