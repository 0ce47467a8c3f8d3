"""Loops as C: over all rows of a kernel, with one counter, which threads share; over some axes, one inside of the
other; and what such loops read anew in each of their turns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..loops.index import Axis
from ..loops.ir import Kernel, Load
from ..symbolic.sizes import Size, hint
from .c_language import STORED
from .emitter import decoded

_SIDE_BY_SIDE, _TURNS = 8192, 8
"""At most so many elements that all turns read in steps are put side by side before, if there are at least so many
turns."""


def indented(lines: Iterable[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def parameters(kernel: Kernel) -> list[str]:
    """The parameters of a kernel's function. No two of them lead to the same memory."""
    names = kernel.names
    written = {names[b.name] for b in kernel.writes}
    return [
        f"{'' if names[b.name] in written else 'const '}{STORED[b.dtype]}* restrict {names[b.name]}"
        for b in kernel.parameters
    ]


def loop(axis: Axis, body: Iterable[str], begin: str = "0", end: str | None = None) -> list[str]:
    """Lines that go along an axis."""
    name = axis.name
    return [f"for (int64_t {name} = {begin}; {name} < {end or axis.size}; ++{name}) {{", *indented(body), "}"]


def nested(axes: Sequence[Axis], body: list[str]) -> list[str]:
    """Lines that go over axes, the last of them innermost."""
    for axis in reversed(axes):
        body = loop(axis, body)
    return body


def over_rows(axes: Sequence[Axis], shared: Sequence[str], body: Sequence[str]) -> list[str]:
    """Lines that go over all rows of some axes; ``shared``: a pragma, where threads of the region around it share
    them."""
    every = Axis("row", math.prod(a.size for a in axes))
    if not any(isinstance(axis.size, Size) for axis in axes[1:]):
        return [*shared, *loop(every, [*counters(axes), *body])]
    # a division by what the compiler does not know takes as long as a short row: there is one where a thread begins
    names = [axis.name for axis in axes]
    step = f"++{names[0]};"
    for axis in axes[1:]:
        step = f"if (++{axis.name} == {axis.size}) {{ {axis.name} = 0; {step} }}"
    begins = " ".join(f"{name} = {text};" for name, text in decoded(axes, "row"))
    lines = [f"if (row == next) {{ {step} }} else {{ {begins} }}", "next = row + 1;", *body]
    return [f"int64_t {' = 0, '.join(names)} = 0, next = -1;", *shared, *loop(every, lines)]


def counters(axes: Sequence[Axis]) -> list[str]:
    """Lines that say what the counters of some axes are in a row of all there are."""
    return [f"const int64_t {name} = {text};" for name, text in decoded(axes, "row")]


def read_in_steps(loads: Iterable[Load], inner: Sequence[Axis], outer: Sequence[Axis]) -> list[Load]:
    """What each turn of ``outer`` loops reads anew along ``inner`` ones, with steps between elements along the last of
    them, each of which would be a load of its own: once is enough."""
    if hint(math.prod(a.size for a in inner)) > _SIDE_BY_SIDE or hint(math.prod(a.size for a in outer)) < _TURNS:
        return []
    return [
        e
        for e in loads
        if not e.guard and not e.found and e.at.axes <= set(inner) and e.at.coefficient(inner[-1]) not in (0, 1)
    ]
