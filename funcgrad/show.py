"""What a stage looks like, said once: a ``Doc`` of parts, drawn as plain text (golden tests) or HTML (notebooks).

The HTML stands alone: no network, no script, colours that follow the reader's light or dark theme.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from attrs import frozen

from .chart import Chart, chart_svg
from .draw import Drawing, svg


@frozen
class Text:
    """A paragraph."""

    text: str


@frozen
class Code:
    """Preformatted lines."""

    text: str


@frozen
class Table:
    """Rows of cells under a header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


Part = Text | Code | Table | Drawing | Chart


@frozen
class Doc:
    """A titled sequence of parts; a nested Doc is a section."""

    title: str
    parts: tuple[Part | Doc, ...] = ()


class Shown:
    """Mixin of every stage: ``doc()`` says what it looks like, ``str()``, the interactive prompt and notebooks draw it."""

    __slots__ = ()

    def doc(self) -> Doc:
        raise NotImplementedError(f"{type(self).__name__} does not say what it looks like")

    def __str__(self) -> str:
        return as_text(self.doc())

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return as_html(self.doc())


def as_text(doc: Doc) -> str:
    """Plain text. Drawings are left out: the tables beside them hold the same facts."""
    blocks = [doc.title]
    for part in doc.parts:
        match part:
            case Text(text):
                blocks.append(text)
            case Code(text):
                blocks.append("\n".join(f"  {line}".rstrip() for line in text.splitlines()))
            case Table():
                blocks.append(_align(part))
            case Doc():
                blocks.append(as_text(part))
    return "\n".join(blocks)


def _align(table: Table) -> str:
    rows = [table.header, *table.rows] if any(table.header) else list(table.rows)
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(table.header))]
    return "\n".join(("  " + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True))).rstrip() for row in rows)


_STYLE = """
.funcgrad{font-family:system-ui,sans-serif;color:inherit;line-height:1.4}
.funcgrad summary{font-weight:600;cursor:pointer;margin:.3em 0}
.funcgrad pre{background:rgba(128,128,128,.12);color:inherit;padding:.6em;border-radius:4px;overflow:auto;margin:.3em 0;
  font-family:ui-monospace,monospace!important;font-size:.92em}
.funcgrad tr{background:none!important}
.funcgrad table{border-collapse:collapse;font-size:.92em;margin:.3em 0}
.funcgrad th,.funcgrad td{text-align:left!important;vertical-align:top;padding:.15em .7em;
  border-bottom:1px solid rgba(128,128,128,.35);background:none!important;color:inherit;font-family:ui-monospace,monospace;white-space:pre}
.funcgrad svg text{fill:currentColor;font:11px ui-monospace,monospace}
.funcgrad section{margin-left:1em}
""".replace("\n", "")


def as_html(doc: Doc) -> str:
    """A self-contained HTML fragment."""
    return f'<style>{_STYLE}</style><div class="funcgrad">{_section(doc)}</div>'


def _section(doc: Doc) -> str:
    inside: list[str] = []
    for part in doc.parts:
        match part:
            case Text(text):
                inside.append(f"<p>{html.escape(text)}</p>")
            case Code(text):
                inside.append(f"<pre>{html.escape(text)}</pre>")
            case Table():
                inside.append(_html_table(part))
            case Drawing():
                inside.append(f'<div style="overflow:auto">{svg(part)}</div>')
            case Chart():
                inside.append(f'<div style="overflow:auto">{chart_svg(part)}</div>')
            case Doc():
                inside.append(f"<section>{_section(part)}</section>")
    return f"<details open><summary>{html.escape(doc.title)}</summary>{''.join(inside)}</details>"


def _html_table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    head = row(table.header, "th") if any(table.header) else ""
    return f"<table>{head}{''.join(row(cells, 'td') for cells in table.rows)}</table>"


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
