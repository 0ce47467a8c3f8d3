"""A ``Doc`` as plain text, which fits ``WIDTH`` columns."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping

from .parts import Code, Doc, Table, Text

WIDTH = 100
"""Columns of plain text."""


_NARROWEST = 8
"""Columns that a column of a table keeps, however many there are."""


def elided(text: str, length: int) -> str:
    """A text without its middle where it is too long."""
    if len(text) <= length:
        return text
    head = (length - 3) // 2
    return f"{text[:head]} … {text[len(text) - (length - 3 - head) :]}"


def as_text(doc: Doc) -> str:
    """Plain text. Drawings are left out: the tables beside them hold the same facts."""
    return "\n".join(_lines(doc))


def _lines(doc: Doc) -> Iterator[str]:
    yield from _wrapped(doc.title, WIDTH)
    for part in doc.parts:
        match part:
            case Text(text):
                for line in text.splitlines():
                    yield from _wrapped(line, WIDTH)
            case Code(text, aside):
                if aside:
                    yield f"  … {aside}: {len(text.splitlines())} lines"
                else:
                    for line in text.splitlines():
                        yield from _wrapped_code(f"  {line}".rstrip(), WIDTH)
            case Table():
                yield from _aligned(part)
            case Doc():
                yield ""
                yield from _lines(part)


_WORDS = re.compile(r"[^\s,(\[]+[,(\[]*\s*|[,(\[]+\s*|\s+")


def _wrapped(text: str, width: int) -> list[str]:
    """A text in lines; those after the first are indented. Words longer than a line are cut."""
    lines, line = [], ""
    for word in _WORDS.findall(text):
        if line.strip() and len(line) + len(word.rstrip()) > width:
            lines.append(line.rstrip())
            line = "  "
        line += word
        while len(line.rstrip()) > width:
            lines.append(line[:width])
            line = f"  {line[width:]}"
    return [*lines, line.rstrip()]


def _wrapped_code(line: str, width: int) -> list[str]:
    r"""A line of code in several, which end with ``\``: in C and in Python they are still one."""
    if len(line) <= width:
        return [line]
    indent = " " * (len(line) - len(line.lstrip()))
    further = f"{indent}        "
    found = textwrap.wrap(
        line.lstrip(), width - 2, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False
    )
    return [*(f"{part} \\" for part in found[:-1]), found[-1]]


def _aligned(table: Table) -> Iterator[str]:
    """A table in columns. Where all do not fit, those give way of which the fewest cells have to go on in the next
    line."""
    rows = [table.header, *table.rows] if any(table.header) else list(table.rows)
    widths = [
        max((len(line) for row in rows for line in row[i].splitlines()), default=0) for i in range(len(table.header))
    ]
    lengths = [Counter(len(row[i]) for row in rows) for i in range(len(widths))]
    while sum(widths) + 2 * len(widths) > WIDTH and max(widths) > _NARROWEST:
        narrower = [i for i, width in enumerate(widths) if width > _NARROWEST]
        widths[
            min(narrower, key=lambda i: _lines_at(lengths[i], widths[i] - 1) - _lines_at(lengths[i], widths[i]))
        ] -= 1
    for row in rows:
        cells = [
            [part for line in cell.splitlines() for part in _wrapped(line, w)]
            for cell, w in zip(row, widths, strict=True)
        ]
        for k in range(max(map(len, cells), default=0)):
            line = "  ".join((cell[k] if k < len(cell) else "").ljust(w) for cell, w in zip(cells, widths, strict=True))
            yield f"  {line}".rstrip()


def _lines_at(lengths: Mapping[int, int], width: int) -> float:
    """How many lines cells of these lengths take, on average over where words end."""
    return sum(count * max(1, n / width) for n, count in lengths.items())
