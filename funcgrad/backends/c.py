"""Kernels as C: loops over rows in parallel, vectorised loops over columns, buffers of the thread for what is kept.

Nothing is reordered but the additions of a sum: NaN, infinities and signed zeros come out as in PyTorch. The vector math is
glibc's (at most 4 ulp) where it has a vector form, and polynomials of the same accuracy for exp and what is made of it.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Mapping, Sequence

import torch

from ..loops.index import Axis, Index
from ..loops.ir import Const, Expr, Kernel, Load, Op, Reduced, Stage, Store, Total, walk
from .backend import Launch
from .emitter import Operation, index_text, print_expressions

_TYPES = {
    torch.float32: "float", torch.float64: "double", torch.bfloat16: "float", torch.float16: "float", torch.int64: "int64_t",
    torch.int32: "int32_t", torch.int16: "int16_t", torch.int8: "int8_t", torch.uint8: "uint8_t", torch.bool: "int",
}  # fmt: skip
_STORED = _TYPES | {torch.bool: "uint8_t", torch.bfloat16: "bf16", torch.float16: "_Float16"}

_STACK = 1 << 16
"""Bytes of scratch that may lie on the stack."""

_PARALLEL_FROM = 40_000
"""Operations below which the start of the threads costs more than they save."""


def _function(name: str) -> Operation:
    return lambda dtype, args: f"{name}{'' if dtype == torch.float64 else 'f'}({', '.join(args)})"


def _wrapping(template: str) -> Operation:
    """Arithmetic that wraps around where whole numbers overflow: that is undefined in C, but for unsigned ones."""

    def text(dtype: torch.dtype, args: Sequence[str]) -> str:
        if dtype not in (torch.int32, torch.int64):  # those that are smaller are computed as int, and cut off where they are assigned
            return template.format(*args)
        kind = _TYPES[dtype]
        return f"({kind})({template.format(*(f'(u{kind}){a}' for a in args))})"

    return text


def _extreme(sign: str) -> Operation:
    def text(dtype: torch.dtype, args: Sequence[str]) -> str:
        a, b = args
        nan = f" || {a} != {a}" if dtype.is_floating_point else ""
        return f"({a} {sign} {b}{nan}) ? {a} : {b}"

    return text


def _absolute(dtype: torch.dtype, args: Sequence[str]) -> str:
    if dtype.is_floating_point:
        return f"fabs{'' if dtype == torch.float64 else 'f'}({args[0]})"
    return f"{args[0]} < 0 ? {_wrapping('-{}')(dtype, args)} : {args[0]}"  # type: ignore[operator]


_VECTOR_1 = "log sin cos tan tanh erf erfc expm1 log1p log2 log10 exp2 asin acos atan sinh cosh asinh acosh atanh exp".split()
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
    **{name: _function(f"fg_{name}") for name in ("exp", "sigmoid", "remainder")},
    **{name: _function(name) for name in ("floor", "ceil", "trunc", "sqrt", "fmod", "copysign")}, "round": _function("rint"),
}  # fmt: skip


def _prelude() -> str:
    lines = [
        "#include <stdint.h>", "#include <stdlib.h>", "#include <string.h>", "#include <math.h>", "#include <omp.h>",
        "typedef uint16_t bf16;",
        '#define SIMD __attribute__((simd("notinbranch"), const, nothrow))',
    ]  # fmt: skip
    for name in _VECTOR_1:  # declared here because glibc offers its vector forms under -ffast-math only
        lines.append(f'SIMD double mv_{name}(double) __asm__("{name}"); SIMD float mv_{name}f(float) __asm__("{name}f");')
    for name in _VECTOR_2:
        lines.append(f'SIMD double mv_{name}(double, double) __asm__("{name}"); SIMD float mv_{name}f(float, float) __asm__("{name}f");')
    return "\n".join(lines) + _HELPERS


_HELPERS = r"""
static inline float from_bf16(bf16 x) { uint32_t u = (uint32_t)x << 16; float f; memcpy(&f, &u, 4); return f; }
static inline bf16 to_bf16(float f) {
  uint32_t u; memcpy(&u, &f, 4);
  return f != f ? 0x7fc0 : (bf16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
}
/* exp by its own polynomial: 2^n * 2^r with |r| <= 1/2; overflow, underflow to denormals and NaN as they should be */
static inline float fg_expf(float x) {
  float t = rintf(x * 1.44269504088896341f);
  float r = fmaf(t, -0.693359375f, x);
  r = fmaf(t, 2.12194440e-4f, r);
  float p = 1.9875691500e-4f;
  p = fmaf(p, r, 1.3981999507e-3f); p = fmaf(p, r, 8.3334519073e-3f); p = fmaf(p, r, 4.1665795894e-2f);
  p = fmaf(p, r, 1.6666665459e-1f); p = fmaf(p, r, 5.0000001201e-1f);
  p = fmaf(p, r * r, r) + 1.0f;
  float c = t < -252.0f ? -252.0f : t > 254.0f ? 254.0f : t;
  int32_t n = (int32_t)(c == c ? c : 0.0f), h = n >> 1;  /* the power of two in two steps: each is a normal number */
  uint32_t a = (uint32_t)(h + 127) << 23, b = (uint32_t)(n - h + 127) << 23;
  float fa, fb; memcpy(&fa, &a, 4); memcpy(&fb, &b, 4);
  float y = p * fa * fb;
  y = x > 88.7228394f ? INFINITY : y;
  y = x < -103.972084f ? 0.0f : y;
  return x != x ? x : y;
}
static inline double fg_exp(double x) { return mv_exp(x); }
static inline float fg_sigmoidf(float x) { return 1.0f / (1.0f + fg_expf(-x)); }
static inline double fg_sigmoid(double x) { return 1.0 / (1.0 + fg_exp(-x)); }
static inline float fg_remainderf(float a, float b) { float r = fmodf(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
static inline double fg_remainder(double a, double b) { double r = fmod(a, b); return r != 0 && ((r < 0) != (b < 0)) ? r + b : r; }
#define FG_MAX(a, b) (((a) > (b) || (a) != (a)) ? (a) : (b))
#define FG_MIN(a, b) (((a) < (b) || (a) != (a)) ? (a) : (b))
#define FG_TYPES float, double, int64_t, int32_t, int16_t, int8_t, uint8_t
#pragma omp declare reduction(fgmax: FG_TYPES: omp_out = FG_MAX(omp_in, omp_out)) initializer(omp_priv = omp_orig)
#pragma omp declare reduction(fgmin: FG_TYPES: omp_out = FG_MIN(omp_in, omp_out)) initializer(omp_priv = omp_orig)
"""

PRELUDE = _prelude()

_REDUCTIONS = {
    # kind: the start, how a number is added, what OpenMP calls it
    "sum": ("0", "{0} + {1}", "+"),
    "prod": ("1", "{0} * {1}", "*"),
    "max": (None, "FG_MAX({1}, {0})", "fgmax"),
    "min": (None, "FG_MIN({1}, {0})", "fgmin"),
    "any": ("0", "{0} | {1}", "|"),
    "all": ("1", "{0} & {1}", "&"),
}


class _C:
    """C, as ``emitter.Language``."""

    operations = _OPERATIONS

    def __init__(self, parameters: Mapping[str, str], inner: Axis | None) -> None:
        self._parameters = parameters
        self._inner = inner

    def type(self, dtype: torch.dtype) -> str:
        return _TYPES[dtype]

    def define(self, name: str, expr: Expr, text: str) -> str:
        return f"const {_TYPES[expr.dtype]} {name} = {text};"

    def const(self, expr: Const) -> str:
        return number(expr.value, expr.dtype)

    def load(self, expr: Load, at: str, guard: Sequence[tuple[str, int, int]]) -> str:
        tests = " && ".join(f"{i} >= {low} && {i} < {high}" for i, low, high in guard)
        apart = self._inner is not None and expr.at.coefficient(self._inner) not in (-1, 0, 1)
        if tests and apart:  # gcc 12 loses elements of interleaved loads under a mask: read element 0, which nobody asks for
            at = f"({tests}) ? {at} : 0"
        element = f"{self._parameters[expr.buffer]}[{at}]"
        element = f"from_bf16({element})" if expr.dtype == torch.bfloat16 else element
        return f"({tests}) ? {element} : 0" if tests and not apart else element

    def position(self, at: str) -> str:
        return at

    def cast(self, text: str, given: torch.dtype, wanted: torch.dtype) -> str:
        if wanted == torch.bool:
            return f"{text} != 0"
        if wanted == torch.bfloat16:
            return f"from_bf16(to_bf16((float){text}))"
        return f"(float)(_Float16){text}" if wanted == torch.float16 else f"({_TYPES[wanted]}){text}"


def number(value: object, dtype: torch.dtype) -> str:
    """A number as C writes it."""
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


# ── a kernel ─────────────────────────────────────────────────────────────────────────────────────────────────────


def print_kernel(kernel: Kernel) -> tuple[str, str]:
    """The name and the C function of a kernel, ``void k_…(const float* p0, …, float* p3, …)``: what it reads, then what it writes.

    Kernels that do the same are the same text, whatever the tensors are called: it is compiled once, and the name is its digest.
    """
    text = "\n".join(_Printer(kernel).function())
    name = f"k_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    return name, text.replace("{name}", name)


def print_files(launches: Sequence[Launch], at_once: int) -> list[str]:
    """The C files of launches: their kernels, ``at_once`` in a file, and with the last ones a function for each launch."""
    kernels: dict[str, str] = {}
    declared: dict[str, str] = {}
    functions: list[str] = []
    for launch in launches:
        names = {b.name: f"a{i}" for i, b in enumerate(launch.buffers)}
        takes = ", ".join(f"{_STORED[b.dtype]}* {names[b.name]}" for b in launch.buffers)
        arena, begin, end = launch.arena, [], []
        if arena.nbytes:
            on_stack = arena.nbytes <= _STACK
            begin = [f"  char arena[{arena.nbytes}] __attribute__((aligned(64)));"]
            if not on_stack:
                begin = [f"  char* arena = aligned_alloc(64, {arena.nbytes});"]
            end = [] if on_stack else ["  free(arena);"]
            names |= {b.name: f"({_STORED[b.dtype]}*)(arena + {arena.offsets[b.name]})" for b in launch.scratch}
        calls = []
        for kernel in launch.kernels:
            name, text = print_kernel(kernel)
            kernels[name] = text
            declared[name] = text[: text.index(" {")] + ";"
            calls.append(f"  {name}({', '.join(names[b.name] for b in (*kernel.reads, *kernel.writes))});  /* {kernel.name} */")
        functions += [f"void {launch.name}({takes}) {{", *begin, *calls, *end, "}"]
    texts = list(kernels.values())
    files = [texts[i : i + at_once] for i in range(0, len(texts), at_once)]
    here = set(list(kernels)[(len(files) - 1) * at_once :])
    last = [PRELUDE, *files[-1], *(text for name, text in declared.items() if name not in here), *functions]
    return ["\n".join([PRELUDE, *file]) + "\n" for file in files[:-1]] + ["\n".join(last) + "\n"]


class _Printer:
    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._parameters = {b.name: f"p{i}" for i, b in enumerate((*kernel.reads, *kernel.writes))}
        self._language = _C(self._parameters, kernel.columns[-1] if kernel.columns else None)
        self._rows = math.prod(a.size for a in kernel.rows)
        self._columns = math.prod(a.size for a in kernel.columns)
        self._totals = [e for stage in kernel.stages for e in stage.effects if isinstance(e, Total)]
        self._numbers = itertools.count()
        self._totals_of = {t.buffer: t for t in self._totals}
        self._total_sizes = {b: max(t.size for t in self._totals if t.buffer == b) for b in dict.fromkeys(t.buffer for t in self._totals)}
        self._kept = {k: f"k{i}" for i, k in enumerate(k for stage in kernel.stages for k in stage.keeps)}

    def function(self) -> list[str]:
        kernel, body = self._kernel, self._rows_loop()
        takes = [f"const {_STORED[b.dtype]}* restrict {self._parameters[b.name]}" for b in kernel.reads]
        takes += [f"{_STORED[b.dtype]}* restrict {self._parameters[b.name]}" for b in kernel.writes]
        lines = [f"void {{name}}({', '.join(takes)}) {{"]
        if self._is_parallel:
            lines += ["  const int threads = omp_get_max_threads();", *self._before()]
            lines.append("  #pragma omp parallel num_threads(threads) if (threads > 1)")
        lines.append("  {")
        lines += [f"    {line}" for line in (*self._thread(), *body, *self._thread_end())]
        return [*lines, "  }", *self._after(), "}"]

    def _operations(self) -> float:
        found = walk([e.value for stage in self._kernel.stages for e in stage.effects])
        return 1 + sum(isinstance(e, (Op, Load)) and e.full for e in found)

    # totals over rows: one array for each thread, added up in the order of the threads

    @property
    def _is_parallel(self) -> bool:
        work = self._rows * self._columns * self._operations()
        return work >= _PARALLEL_FROM and (self._rows > 1 or self._kernel.tile > 0)

    def _before(self) -> list[str]:
        lines = []
        for buffer, total in self._totals_of.items():
            kind, size = self._total_type(total), _padded(self._total_sizes[buffer])
            lines.append(f"  {kind}* s_{self._parameters[buffer]} = malloc(threads * {size} * sizeof({kind}));")
        return ["  int used = 1;", *lines] if self._totals else []

    def _thread(self) -> list[str]:
        lines = []
        if self._is_parallel and self._totals:  # there may be fewer threads than were asked for: the others have no totals
            lines = ["const int thread = omp_get_thread_num();", "if (thread == 0) used = omp_get_num_threads();"]
        for buffer, total in self._totals_of.items():
            name, kind, size = self._parameters[buffer], self._total_type(total), self._total_sizes[buffer]
            if self._is_parallel:
                lines.append(f"{kind}* restrict t_{name} = s_{name} + (int64_t)thread * {_padded(size)};")
            else:
                on_stack = size <= _STACK // 8
                memory = f"malloc({size} * sizeof({kind}))"
                lines.append(f"{kind} t_{name}[{size}];" if on_stack else f"{kind}* restrict t_{name} = {memory};")
            lines.append(f"for (int64_t i = 0; i < {size}; ++i) t_{name}[i] = {_start(total.kind, total.value.dtype)};")
        width = self._kernel.tile or self._columns
        for expr, name in self._kept.items():
            kind = _TYPES[expr.dtype]
            if self._on_heap():
                lines.append(f"{kind}* restrict {name} = aligned_alloc(64, ({width} * sizeof({kind}) + 63) / 64 * 64);")
            else:
                lines.append(f"{kind} {name}[{width}] __attribute__((aligned(64)));")
        return lines

    def _thread_end(self) -> list[str]:
        lines = [f"free({name});" for name in self._kept.values()] if self._on_heap() else []
        if self._is_parallel:
            return lines
        for buffer, total in self._totals_of.items():
            name, size = self._parameters[buffer], self._total_sizes[buffer]
            lines.append(f"for (int64_t i = 0; i < {size}; ++i) {_stored(name, 'i', f't_{name}[i]', total.value.dtype)}")
            lines += [f"free(t_{name});"] if size > _STACK // 8 else []
        return lines

    def _after(self) -> list[str]:
        lines = []
        for buffer, total in self._totals_of.items():
            name, size = self._parameters[buffer], self._total_sizes[buffer]
            add = _REDUCTIONS[total.kind][1].format("sum", f"s_{name}[t * {_padded(size)} + i]")
            lines += [
                f"  for (int64_t i = 0; i < {size}; ++i) {{",
                f"    {self._total_type(total)} sum = s_{name}[i];",
                f"    for (int64_t t = 1; t < used; ++t) sum = {add};",
                f"    {_stored(name, 'i', 'sum', total.value.dtype)}",
                "  }", f"  free(s_{name});",
            ]  # fmt: skip
        return lines if self._is_parallel else []

    def _total_type(self, total: Total) -> str:
        """A single sum of floats over everything is added up in double precision."""
        wide = total.value.dtype == torch.float32 and total.kind == "sum" and self._total_sizes[total.buffer] == 1
        return "double" if wide else _TYPES[total.value.dtype]

    # loops

    def _rows_loop(self) -> list[str]:
        kernel = self._kernel
        inner = self._stages()
        shared = ["#pragma omp for schedule(static)"] if self._is_parallel else []
        if kernel.tile:
            (axis,) = kernel.columns
            return [
                *shared,
                f"for (int64_t begin = 0; begin < {axis.size}; begin += {kernel.tile}) {{",
                f"  const int64_t end = begin + {kernel.tile} < {axis.size} ? begin + {kernel.tile} : {axis.size};",
                *(f"  {line}" for line in inner), "}",
            ]  # fmt: skip
        if not kernel.rows:
            return ["{", *(f"  {line}" for line in inner), "}"]
        decoded: list[str] = []
        rest = Index(((Axis("row", self._rows), 1),))
        for axis in reversed(kernel.rows):
            decoded.insert(0, f"  const int64_t {axis.name} = {index_text(rest % axis.size)};")
            rest = rest // axis.size
        head = [*shared, f"for (int64_t row = 0; row < {self._rows}; ++row) {{"]
        return [*head, *decoded, *(f"  {line}" for line in inner), "}"]

    def _on_heap(self) -> bool:
        return (self._kernel.tile or self._columns) * len(self._kept) * 8 > 1 << 18

    def _stages(self) -> list[str]:
        lines: list[str] = []
        names: dict[Expr, str] = {}
        for stage in self._kernel.stages:
            lines += self._stage(stage, names)
        return lines

    def _stage(self, stage: Stage, names: dict[Expr, str]) -> list[str]:
        roots = [r.body for r in stage.reductions] + list(stage.keeps) + [e.value for e in stage.effects]
        lines = print_expressions(self._language, _row_parts(roots), names, lambda e: not e.full)
        for effect in stage.effects:
            if isinstance(effect, Store) and not effect.full:
                lines.append(_stored(self._parameters[effect.buffer], index_text(effect.at), names[effect.value], effect.value.dtype))
            elif isinstance(effect, Total) and not effect.full:
                total = f"t_{self._parameters[effect.buffer]}[0]"
                lines.append(f"{total} = {_REDUCTIONS[effect.kind][1].format(total, names[effect.value])};")
        full = [e for e in stage.effects if e.full]
        if stage.reductions or stage.keeps or full:
            lines += self._walk(stage, full, names)
        return lines

    def _walk(self, stage: Stage, effects: Sequence[Store | Total], names: dict[Expr, str]) -> list[str]:
        inside = dict(names)
        for expr, name in self._kept.items():
            if expr not in stage.keeps:
                inside[expr] = f"{name}[{self._column()}]"
        roots = [r.body for r in stage.reductions] + list(stage.keeps) + [e.value for e in effects]
        body = print_expressions(self._language, roots, inside, lambda e: True)
        before: list[str] = []
        after: list[str] = []
        clauses: list[str] = []
        for reduced in stage.reductions:
            name = names[reduced] = f"a{next(self._numbers)}"
            _, add, clause = _REDUCTIONS[reduced.kind]
            kind = _accumulator(reduced.dtype)
            before.append(f"{kind} {name} = {_start(reduced.kind, reduced.dtype)};")
            body.append(f"{name} = {add.format(name, inside[reduced.body])};")
            clauses.append(f"reduction({clause}:{name})")
        for keep in stage.keeps:
            body.append(f"{self._kept[keep]}[{self._column()}] = {inside[keep]};")
        for effect in effects:
            value = inside[effect.value]
            if isinstance(effect, Store):
                body.append(_stored(self._parameters[effect.buffer], index_text(effect.at), value, effect.value.dtype))
                continue
            total, add = f"t_{self._parameters[effect.buffer]}", _REDUCTIONS[effect.kind][1]
            if self._total_sizes[effect.buffer] == 1:
                name = f"a{next(self._numbers)}"
                before.append(f"{_accumulator(effect.value.dtype)} {name} = {_start(effect.kind, effect.value.dtype)};")
                body.append(f"{name} = {add.format(name, value)};")
                clauses.append(f"reduction({_REDUCTIONS[effect.kind][2]}:{name})")
                after.append(f"{total}[0] = {add.format(f'{total}[0]', name)};")
            else:
                at = f"{total}[{index_text(effect.at)}]"
                body.append(f"{at} = {add.format(at, value)};")
        return [*before, *self._loops(body, clauses), *after]

    def _loops(self, body: Sequence[str], clauses: Sequence[str]) -> list[str]:
        kernel = self._kernel
        if not kernel.columns:
            return ["{", *(f"  {line}" for line in body), "}"]
        lines: list[str] = []
        for depth, axis in enumerate(kernel.columns):
            pad = "  " * depth
            if depth == len(kernel.columns) - 1:
                lines.append(f"{pad}#pragma omp simd {' '.join(clauses)}".rstrip())
            bounds = ("begin", "end") if kernel.tile else ("0", str(axis.size))
            lines.append(f"{pad}for (int64_t {axis.name} = {bounds[0]}; {axis.name} < {bounds[1]}; ++{axis.name}) {{")
        pad = "  " * len(kernel.columns)
        lines += [pad + line for line in body]
        return [*lines, *("  " * depth + "}" for depth in reversed(range(len(kernel.columns))))]

    def _column(self) -> str:
        """Which element of a kept row the present column is."""
        if self._kernel.tile:
            return f"{self._kernel.columns[0].name} - begin"
        text = "0"
        for axis in self._kernel.columns:
            text = axis.name if text == "0" else f"({text}) * {axis.size} + {axis.name}"
        return text


def _row_parts(roots: Sequence[Expr]) -> list[Expr]:
    """What is the same in all columns of a row, of what some expressions need."""
    found: dict[Expr, None] = {}
    seen: set[Expr] = set()
    pending = list(roots)
    while pending:
        expr = pending.pop()
        if expr in seen:
            continue
        seen.add(expr)
        if not expr.full:
            if not isinstance(expr, Reduced):
                found[expr] = None
        else:
            pending += expr.args
    return list(found)


def _stored(buffer: str, at: str, value: str, dtype: torch.dtype) -> str:
    return f"{buffer}[{at}] = {f'to_bf16({value})' if dtype == torch.bfloat16 else value};"


def _accumulator(dtype: torch.dtype) -> str:
    return _TYPES[dtype]


def _start(kind: str, dtype: torch.dtype) -> str:
    start = _REDUCTIONS[kind][0]
    if start is not None:
        return start
    if dtype.is_floating_point:
        return "-INFINITY" if kind == "max" else "INFINITY"
    info = torch.iinfo(dtype)
    return number(info.min if kind == "max" else info.max, dtype)


def _padded(size: int) -> int:
    """Threads do not share a cache line."""
    return (size + 15) // 16 * 16
