"""What a stage looks like, said once: a ``Doc`` of parts."""

from __future__ import annotations

from attrs import frozen

from .chart import Chart
from .draw import Drawing


@frozen
class Text:
    """A paragraph."""

    text: str


@frozen
class Code:
    """Preformatted lines. ``aside``: they are the same for every stage of their kind. A page has them once, folded
    under this title, and plain text has the title alone."""

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
