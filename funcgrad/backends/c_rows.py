"""The loop over all rows of a kernel, as C: one counter, which threads share, and what it says of the counters of
the axes."""

from __future__ import annotations

from collections.abc import Sequence

from ..loops.index import Axis, Index
from ..symbolic.sizes import Size
from .emitter import index_text


def over_rows(axes: Sequence[Axis], rows: int, shared: Sequence[str], body: Sequence[str]) -> list[str]:
    """Lines that go over all rows of some axes; ``shared``: a pragma, where threads of the region around it share
    them."""
    head = [*shared, f"for (int64_t row = 0; row < {rows}; ++row) {{"]
    if not any(isinstance(axis.size, Size) for axis in axes[1:]):
        return [*head, *(f"  {line}" for line in (*decoded(axes, rows), *body)), "}"]
    # a division by what the compiler does not know takes as long as a short row: there is one where a thread begins
    names = [axis.name for axis in axes]
    step = f"++{names[0]};"
    for axis in axes[1:]:
        step = f"if (++{axis.name} == {axis.size}) {{ {axis.name} = 0; {step} }}"
    begins = " ".join(f"{name} = {text};" for name, text in _counters(axes, rows))
    lines = [f"if (row == next) {{ {step} }} else {{ {begins} }}", "next = row + 1;", *body]
    return [f"int64_t {' = 0, '.join(names)} = 0, next = -1;", *head, *(f"  {line}" for line in lines), "}"]


def decoded(axes: Sequence[Axis], rows: int) -> list[str]:
    """Lines that say what the counters of some axes are in a row of all there are."""
    return [f"const int64_t {name} = {text};" for name, text in _counters(axes, rows)]


def _counters(axes: Sequence[Axis], rows: int) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    rest = Index(((Axis("row", rows), 1),))
    for axis in reversed(axes):
        found.insert(0, (axis.name, index_text(rest % axis.size)))
        rest = rest // axis.size
    return found
