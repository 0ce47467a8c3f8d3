"""A ``Doc`` as HTML, which opens on a summary, with what is long folded, and stands alone: no network, no script,
colours that follow the reader's light or dark theme."""

from __future__ import annotations

import html
from collections.abc import Sequence

from .chart import Chart, chart_svg
from .draw import GRAPH_STYLE, Drawing, svg
from .parts import Code, Doc, Part, Table, Text

_FEW_ROWS, _FEW_LINES = 24, 60
"""Rows of a table, and lines of code, that a page shows unfolded."""


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
    """The parts of a section. ``unfolded``: nothing is folded around it, so that what is long in it is. ``asides``
    stand on the page."""
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
