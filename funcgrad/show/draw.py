"""A layered drawing of a small directed acyclic graph, as inline SVG.

Nodes stand in the layer one below their deepest input; within a layer they are ordered by the mean place of their
inputs (one sweep of Sugiyama's barycentre heuristic), which is enough for graphs one can read at all.
"""

from __future__ import annotations

import html

from attrs import frozen

_COLOURS = {"input": "#8a8f98", "forward": "#3b82f6", "backward": "#f97316", "output": "#22a06b"}
GRAPH_STYLE = """
.funcgrad-graph rect{fill-opacity:.22}
.funcgrad-graph g text{text-anchor:middle}
.funcgrad-graph .e{fill:none;stroke:currentColor;stroke-opacity:.35}
""" + "".join(
    f".funcgrad-graph .{group[0]} rect{{fill:{colour};stroke:{colour}}}\n" for group, colour in _COLOURS.items()
)
"""Each group of boxes is a class, of which its first letter is the name."""

_CHAR, _HEIGHT, _GAP_X, _GAP_Y, _PAD = 6.7, 22, 14, 26, 8


@frozen
class Box:
    """One node: a name, what is written in it, which group it belongs to, and the names of its inputs."""

    name: str
    label: str
    group: str
    inputs: tuple[str, ...]
    hint: str = ""


@frozen
class Drawing:
    """Boxes in topological order. ``omitted`` says how many were left out to keep it readable."""

    boxes: tuple[Box, ...]
    omitted: int = 0


def svg(drawing: Drawing) -> str:
    """The drawing as one ``<svg>`` element that follows the reader's theme."""
    layer: dict[str, int] = {}
    rows: dict[int, list[Box]] = {}
    for box in drawing.boxes:
        layer[box.name] = 1 + max((layer[i] for i in box.inputs if i in layer), default=-1)
        rows.setdefault(layer[box.name], []).append(box)
    place: dict[str, tuple[float, float, float]] = {}
    width = 0.0
    for depth in sorted(rows):
        x = float(_PAD)
        for box in sorted(rows[depth], key=lambda b: _barycentre(b, place)):
            w = max(len(box.label), 2) * _CHAR + 14
            x = max(x, _barycentre(box, place) - w / 2) if depth else x
            place[box.name] = (x, _PAD + depth * (_HEIGHT + _GAP_Y), w)
            x += w + _GAP_X
        width = max(width, x)
    height = _PAD * 2 + len(rows) * (_HEIGHT + _GAP_Y) - _GAP_Y + (18 if drawing.omitted else 0)
    edges = [
        _edge(place[source], place[box.name])
        for box in drawing.boxes
        for source in dict.fromkeys(box.inputs)
        if source in place
    ]
    lines = [f'<path class="e" d="{"".join(edges)}"/>', *(_rectangle(box, *place[box.name]) for box in drawing.boxes)]
    if drawing.omitted:
        lines.append(f'<text x="{_PAD}" y="{height - 6}">… and {drawing.omitted} more</text>')
    return (
        f'<svg class="funcgrad-graph" role="img" xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" '
        f'height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">{"".join(lines)}</svg>'
    )


def _barycentre(box: Box, place: dict[str, tuple[float, float, float]]) -> float:
    known = [place[i][0] + place[i][2] / 2 for i in box.inputs if i in place]
    return sum(known) / len(known) if known else 0.0


def _edge(above: tuple[float, float, float], below: tuple[float, float, float]) -> str:
    """A curve with an arrowhead, as part of one path."""
    x, y = round(above[0] + above[2] / 2), round(above[1] + _HEIGHT)
    dx, dy = round(below[0] + below[2] / 2) - x, round(below[1]) - y
    return f"M{x} {y}c0 {dy // 2} {dx} {dy // 2} {dx} {dy}l-3-5m3 5 3-5"


def _rectangle(box: Box, x: float, y: float, w: float) -> str:
    return (
        f'<g class="{box.group[0]}"><title>{html.escape(box.hint or box.label, quote=False)}</title>'
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{w:.0f}" height="{_HEIGHT}" rx="4"/>'
        f'<text x="{x + w / 2:.0f}" y="{y + 15:.0f}">{html.escape(box.label, quote=False)}</text></g>'
    )
