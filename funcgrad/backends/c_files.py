"""The C files of launches: the kernels, and for each launch a function that runs them one after the other.

Kernels that follow one another and need nothing of one another share the threads: each thread does its part of one, and
goes on with the next; those too small to be cut go to whoever is free. So an optimiser's step over many leaves of many
sizes is one region.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, field

from ..loops.ir import Kernel
from ..machine import Machine
from ..memory.steps import Check, Launch, size_of
from ..symbolic.sizes import Size
from .c import Function, is_worth_threads, may_be_parallel, print_kernel, size_arguments
from .c_language import HOW, PRELUDE, STORED, number

_FEW = 64
"""Elements of a kernel that need not be unrolled. With less effort than -O2, GCC leaves sums and strided loads of loops
that are to be vectorised as they are, one element at a time."""

_SMALL = f"{HOW}-O2\n"

_Place = tuple[str, int, int]
"""Memory: an argument or the arena, and the bytes in it."""


def print_files(
    launches: Sequence[Launch], at_once: int, machine: Machine
) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """The C files of launches: their kernels, ``at_once`` in a file, and with the last ones a function for each
    launch; and for each launch the symbolic sizes it takes, after its buffers."""
    kernels: dict[str, Function] = {}
    lines: list[str] = []
    sizes: dict[str, tuple[str, ...]] = {}
    for launch in launches:
        printed = [(kernel, print_kernel(kernel, machine)) for kernel in launch.kernels]
        kernels |= {function.name: function for _, function in printed}
        needed = (*(f"{f.length}" for _, f in printed), *(s for _, f in printed for s in f.sizes))
        sizes[launch.name] = size_arguments(" ".join(needed))
        lines += _launch_function(launch, printed, sizes[launch.name], machine)
    groups = [[f for f in kernels.values() if (f.elements <= _FEW) == is_small] for is_small in (False, True)]
    files = [
        (_SMALL if group is groups[1] else "", group[i : i + at_once])
        for group in groups
        for i in range(0, len(group), at_once)
    ]
    sources = ["\n".join([how + PRELUDE, *(f.text for f in group)]) + "\n" for how, group in files]
    declarations = [f.text[: f.text.index(" {")] + ";" for f in kernels.values() if f not in files[-1][1]]
    return [*sources[:-1], "\n".join([sources[-1], *declarations, *lines]) + "\n"], sizes


def _launch_function(launch: Launch, printed: _Printed, sizes: Sequence[str], machine: Machine) -> Iterator[str]:
    names = {b.name: f"a{i}" for i, b in enumerate(launch.arguments)}
    takes = ", ".join(
        [
            *(f"{STORED[b.dtype]}* {names[b.name]}" for b in launch.arguments),
            *(["char* arena"] if launch.room else ()),
            *(f"int64_t {size}" for size in sizes),
        ]
    )
    arena = launch.arena
    names |= {
        b.name: f"({STORED[b.dtype]}*)(arena + {arena.offsets[b.name]})"
        for b in launch.scratch
        if b.name in arena.offsets
    }
    names |= {written: names[origin] for written, origin in launch.origins.items()}
    if launch.number_read is not None:  # a thread asks for its own
        yield f"static _Thread_local int64_t {launch.name}_number;"
        yield f"int64_t {launch.number_read}(void) {{ return {launch.name}_number; }}"
    yield f"{'int' if launch.checks else 'void'} {launch.name}({takes}) {{"
    if arena.nbytes and not launch.room:
        yield f"  char arena[{arena.nbytes}] __attribute__((aligned(64)));"
    places = _places(launch, names)
    parts = [(list(_waves(part, places)), checks) for part, checks in _until_checked(launch.checks, printed)]
    if any(wave.is_shared(machine) for waves, _ in parts for wave in waves):
        yield "  const int threads = omp_get_max_threads();"
    for waves, checks in parts:
        yield from _run(waves, names, machine)
        yield from (_checked(names[check.buffer.name], check, n, launch.name) for n, check in checks)
    if launch.checks:
        yield "  return 0;"
    yield "}"


def _checked(name: str, check: Check, n: int, launch: str) -> str:
    """Return the number of a check that fails."""
    wanted = check.number
    if wanted is None:
        return f"  if (*{name}) return {n};"
    text, is_float = number(wanted, check.buffer.dtype), isinstance(wanted, float)
    if is_float and wanted != wanted:
        differs = f"*{name} == *{name}"
    elif is_float and wanted == 0:
        differs = f"*{name} != 0 || {'!' * (math.copysign(1, wanted) < 0)}__builtin_signbit(*{name})"
    else:
        differs = f"*{name} != {text}"
    bits = f"double real = *{name}; __builtin_memcpy(&{launch}_number, &real, 8);"
    return f"  if ({differs}) {{ {bits if is_float else f'{launch}_number = *{name};'} return {n}; }}"


_Printed = Sequence[tuple[Kernel, Function]]


def _until_checked(checks: Sequence[Check], printed: _Printed) -> Iterator[tuple[_Printed, list[tuple[int, Check]]]]:
    """Kernels up to one that leaves a check of what Python read, with the checks, numbered, that are then known in
    order: on another path no other kernel has to run. With the last ones come the other checks."""
    numbered = list(enumerate(checks, 1))
    reads = {check.buffer.name: n for n, check in numbered if check.read}
    begin = told = 0
    for i, (kernel, _) in enumerate(printed, 1):
        last = max((reads[b.name] for b in kernel.writes if b.name in reads), default=0)
        last = len(numbered) if i == len(printed) else last
        if last or i == len(printed):
            yield printed[begin:i], numbered[told:last]
            begin, told = i, max(told, last)


def _run(waves: Iterable[_Wave], names: Mapping[str, str], machine: Machine) -> Iterator[str]:
    """Call the kernels of waves one after the other."""
    for is_shared, group in itertools.groupby(waves, lambda wave: wave.is_shared(machine)):
        together = list(group)
        if is_shared:
            is_worth_it = is_worth_threads(sum(wave.work for wave in together), machine)
            yield f"  #pragma omp parallel num_threads(threads) if ({is_worth_it})"
            yield "  {"
        for i, wave in enumerate(together):
            if is_shared and i:
                yield "    #pragma omp barrier"
            for kernel, function in wave.calls:
                if is_shared and not function.is_cut:
                    yield "    #pragma omp single nowait"
                length = [] if function.length is None else [str(function.length)]
                values = [*(names[b.name] for b in kernel.parameters), *length, *function.sizes]
                yield f"{'    ' if is_shared else '  '}{function.name}({', '.join(values)});  /* {kernel.name} */"
        if is_shared:
            yield "  }"


@define
class _Wave:
    """Kernels none of which writes to what another one knows."""

    calls: list[tuple[Kernel, Function]] = field(factory=list)
    reads: list[_Place] = field(factory=list)
    writes: list[_Place] = field(factory=list)

    def is_shared(self, machine: Machine) -> bool:
        """Whether threads share them."""
        functions = [f for _, f in self.calls]
        if any(f.has_threads for f in functions) or not (len(functions) > 1 or any(f.is_cut for f in functions)):
            return False
        return may_be_parallel(self.work, machine)

    @property
    def work(self) -> int | Size:
        """Operations, roughly."""
        return sum(f.work for _, f in self.calls)

    def joined_by(self, function: Function, reads: Sequence[_Place], writes: Sequence[_Place]) -> bool:
        """Whether one more kernel needs nothing of the others."""
        if function.has_threads or any(f.has_threads for _, f in self.calls):
            return False
        return not (_meet(writes, self.reads) or _meet(writes, self.writes) or _meet(reads, self.writes))


def _waves(printed: _Printed, places: Mapping[str, _Place]) -> Iterator[_Wave]:
    wave = _Wave()
    for kernel, function in printed:
        reads, writes = ([places[b.name] for b in buffers] for buffers in (kernel.reads, kernel.writes))
        if wave.calls and not wave.joined_by(function, reads, writes):
            yield wave
            wave = _Wave()
        wave.calls.append((kernel, function))
        wave.reads += reads
        wave.writes += writes
    yield wave


def _meet(some: Sequence[_Place], others: Sequence[_Place]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


def _places(launch: Launch, names: Mapping[str, str]) -> dict[str, _Place]:
    """Where buffers lie; what is not alive together may lie in one place of the arena."""
    offsets = launch.arena.offsets
    found = {name: (text, 0, 1) for name, text in names.items()}
    found |= {b.name: ("arena", at := offsets[b.name], at + size_of(b)) for b in launch.scratch if b.name in offsets}
    return found | {written: found[origin] for written, origin in launch.origins.items()}
