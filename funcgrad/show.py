"""What a stage looks like, said once: a ``Doc`` of parts, drawn as plain text (golden tests) or HTML (notebooks).

Plain text fits ``WIDTH`` columns. The HTML opens on a summary, with what is long folded, and stands alone: no network, no script,
colours that follow the reader's light or dark theme. ``repr`` is one line.
"""

from __future__ import annotations

import html
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from attrs import frozen

from .chart import Chart, chart_svg
from .draw import GRAPH_STYLE, Drawing, svg

WIDTH = 100
"""Columns of plain text."""

_NARROWEST = 8
"""Columns that a column of a table keeps, however many there are."""

_FEW_ROWS, _FEW_LINES = 24, 60
"""Rows of a table, and lines of code, that a page shows unfolded."""


@frozen
class Text:
    """A paragraph."""

    text: str


@frozen
class Code:
    """Preformatted lines. ``aside``: they are the same for every stage of their kind. A page has them once, folded under this title, and
    plain text has the title alone."""

    text: str
    aside: str = ""


@frozen
class Table:
    """Rows of cells under a header. ``title``: what the rows are, where they are folded."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    title: str = "table"


Part = Text | Code | Table | Drawing | Chart


@frozen
class Doc:
    """A titled sequence of parts; a nested Doc is a section."""

    title: str
    parts: tuple[Part | Doc, ...] = ()


class Shown:
    """Mixin of every stage: ``doc()`` says what it looks like, ``str()`` and notebooks draw it; ``repr()`` is its ``headline()``."""

    __slots__ = ()

    def doc(self) -> Doc:
        raise NotImplementedError(f"{type(self).__name__} does not say what it looks like")

    def headline(self) -> str:
        """What it is, in a line; of a stage whose ``doc()`` takes long, without it."""
        return self.doc().title

    def __str__(self) -> str:
        return as_text(self.doc())

    def __repr__(self) -> str:
        return f"<{elided(' '.join(self.headline().split()), WIDTH - 2)}>"

    def _repr_html_(self) -> str:
        return as_html(self.doc())


Stage = TypeVar("Stage", bound=Shown)


class Several(tuple[Stage, ...], Shown):
    """A tuple of stages that shows itself as each of them does."""

    __slots__ = ()

    def headline(self) -> str:
        return f"tuple of {len(self)}: {'; '.join(stage.headline() for stage in self)}" if self else "no stages"

    def doc(self) -> Doc:
        return self[0].doc() if len(self) == 1 else Doc(f"{len(self) or 'no'} stages", tuple(stage.doc() for stage in self))

    __str__, __repr__ = Shown.__str__, Shown.__repr__  # those of a tuple come first otherwise


def elided(text: str, length: int) -> str:
    """A text without its middle where it is too long."""
    if len(text) <= length:
        return text
    head = (length - 3) // 2
    return f"{text[:head]} … {text[len(text) - (length - 3 - head) :]}"


# ── plain text ───────────────────────────────────────────────────────────────────────────────────────────────────


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
    found = textwrap.wrap(line.lstrip(), width - 2, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False)
    return [*(f"{part} \\" for part in found[:-1]), found[-1]]


def _aligned(table: Table) -> Iterator[str]:
    """A table in columns. Where all do not fit, those give way of which the fewest cells have to go on in the next line."""
    rows = [table.header, *table.rows] if any(table.header) else list(table.rows)
    widths = [max((len(line) for row in rows for line in row[i].splitlines()), default=0) for i in range(len(table.header))]
    lengths = [Counter(len(row[i]) for row in rows) for i in range(len(widths))]
    while sum(widths) + 2 * len(widths) > WIDTH and max(widths) > _NARROWEST:
        narrower = [i for i, width in enumerate(widths) if width > _NARROWEST]
        widths[min(narrower, key=lambda i: _lines_at(lengths[i], widths[i] - 1) - _lines_at(lengths[i], widths[i]))] -= 1
    for row in rows:
        cells = [[part for line in cell.splitlines() for part in _wrapped(line, w)] for cell, w in zip(row, widths, strict=True)]
        for k in range(max(map(len, cells), default=0)):
            line = "  ".join((cell[k] if k < len(cell) else "").ljust(w) for cell, w in zip(cells, widths, strict=True))
            yield f"  {line}".rstrip()


def _lines_at(lengths: Mapping[int, int], width: int) -> float:
    """How many lines cells of these lengths take, on average over where words end."""
    return sum(count * max(1, n / width) for n, count in lengths.items())


# ── HTML ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_STYLE = (
    """
.funcgrad{font-family:system-ui,sans-serif;color:inherit;line-height:1.4}
.funcgrad summary{font-weight:600;cursor:pointer;margin:.3em 0;overflow-wrap:anywhere}
.funcgrad pre{background:rgba(128,128,128,.12);color:inherit;padding:.6em;border-radius:4px;overflow:auto;margin:.3em 0;
  font-family:ui-monospace,monospace!important;font-size:.92em}
.funcgrad .s{overflow:auto;max-width:100%}
.funcgrad tr{background:none!important}
.funcgrad table{border-collapse:collapse;font-size:.92em;margin:.3em 0}
.funcgrad th,.funcgrad td{text-align:left!important;vertical-align:top;padding:.15em .7em;max-width:80ch;overflow-wrap:anywhere;
  border-bottom:1px solid rgba(128,128,128,.35);background:none!important;color:inherit;font-family:ui-monospace,monospace;
  white-space:pre-wrap}
.funcgrad svg{max-width:none!important}
.funcgrad svg text{fill:currentColor;font:11px ui-monospace,monospace}
.funcgrad details>*:not(summary){margin-left:1em}
"""
    + GRAPH_STYLE
).replace("\n", "")


def as_html(doc: Doc) -> str:
    """A self-contained HTML fragment: the title, what is short, and the rest folded."""
    return f'<style>{_STYLE}</style><div class="funcgrad"><b>{html.escape(doc.title)}</b>{_inside(doc, set(), unfolded=True)}</div>'


def _inside(doc: Doc, asides: set[Code], unfolded: bool) -> str:
    """The parts of a section. ``unfolded``: nothing is folded around it, so that what is long in it is. ``asides`` stand on the page."""
    found: list[str] = []
    for part in doc.parts:
        match part:
            case Doc(title):
                found.append(_folded(title, _inside(part, asides, unfolded=False)))
            case Code(text, aside) if aside:
                if part not in asides:
                    asides.add(part)
                    found.append(_folded(f"{aside}: {len(text.splitlines())} lines", _html(part)))
            case _:
                about = _what_is_long(part) if unfolded else ""
                found.append(_folded(about, _html(part)) if about else _html(part))
    return "".join(found)


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{inside}</details>"


def _what_is_long(part: Part) -> str:
    """What a part is, if it is too long for a page to open with."""
    match part:
        case Drawing():
            return f"drawing of {len(part.boxes)} of {len(part.boxes) + part.omitted} nodes"
        case Table() if len(part.rows) > _FEW_ROWS:
            return f"{part.title}: {len(part.rows)} rows"
        case Code(text) if text.count("\n") > _FEW_LINES:
            return f"{len(text.splitlines())} lines"
    return ""


def _html(part: Part) -> str:
    match part:
        case Text(text):
            return f"<p>{html.escape(text)}</p>"
        case Code(text):
            return f"<pre>{html.escape(text, quote=False)}</pre>"
        case Table():
            return f'<div class="s">{_html_table(part)}</div>'
        case Drawing():
            return f'<div class="s">{svg(part)}</div>'
        case Chart():
            return f'<div class="s">{chart_svg(part)}</div>'


def _html_table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell, quote=False)}</{tag}>" for cell in cells) + "</tr>"

    head = row(table.header, "th") if any(table.header) else ""
    return f"<table>{head}{''.join(row(cells, 'td') for cells in table.rows)}</table>"


# ── quantities ───────────────────────────────────────────────────────────────────────────────────────────────────


def in_bytes(n: float) -> str:
    """``1536`` → ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" or float(n).is_integer() else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.2f} GiB"


def in_operations(n: float) -> str:
    """``131072`` → ``131 kflop``."""
    for unit in ("flop", "kflop", "Mflop", "Gflop"):
        if n < 1000:
            return f"{n:.3g} {unit}"
        n /= 1000
    return f"{n:.3g} Tflop"


def in_seconds(seconds: float) -> str:
    """``0.0123`` → ``12.3 ms``."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
