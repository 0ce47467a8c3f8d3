"""A quantity over time, as inline SVG: steps under a line, a limit across, and the moment one part ends and another
begins."""

from __future__ import annotations

import html

from attrs import frozen

_WIDTH, _HEIGHT, _PAD = 640, 120, 18


@frozen
class Chart:
    """``values`` from left to right. ``border``: the place of the first value of the second part; ``limit``: drawn
    across. Labels are texts that are ready to be read."""

    values: tuple[int, ...]
    highest: str
    border: int | None = None
    limit: int | None = None
    limit_label: str = ""


def chart_svg(chart: Chart) -> str:
    """The chart as one ``<svg>`` element that follows the reader's theme."""
    top = max((*chart.values, chart.limit or 0, 1))
    step = _WIDTH / max(len(chart.values), 1)

    def y(value: float) -> float:
        return _PAD + _HEIGHT * (1 - value / top)

    points = "".join(f"L{i * step:.1f} {y(v):.1f}L{(i + 1) * step:.1f} {y(v):.1f}" for i, v in enumerate(chart.values))
    parts = [
        f'<path d="M0 {y(0):.1f}{points}L{_WIDTH} {y(0):.1f}Z" fill="#3b82f6" fill-opacity=".35" stroke="#3b82f6"/>'
    ]
    if chart.border is not None:
        x = chart.border * step
        parts.append(
            f'<path d="M{x:.1f} {_PAD}V{_PAD + _HEIGHT}" stroke="currentColor" stroke-opacity=".5" '
            'stroke-dasharray="2 3"/>'
        )
        parts.append(
            f'<text x="{x + 3:.1f}" y="{_PAD + _HEIGHT + 13}">backward</text><text x="0" '
            f'y="{_PAD + _HEIGHT + 13}">forward</text>'
        )
    if chart.limit is not None:
        parts.append(f'<path d="M0 {y(chart.limit):.1f}H{_WIDTH}" stroke="#f97316" stroke-dasharray="6 3"/>')
        parts.append(
            f'<text x="{_WIDTH}" y="{y(chart.limit) - 3:.1f}" text-anchor="end">{html.escape(chart.limit_label)}</text>'
        )
    parts.append(f'<text x="0" y="12">{html.escape(chart.highest)}</text>')
    return (
        f'<svg class="funcgrad-chart" role="img" xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" '
        f'height="{_HEIGHT + 2 * _PAD}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT + 2 * _PAD}">{"".join(parts)}</svg>'
    )
