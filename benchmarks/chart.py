"""A bar chart as SVG text: no dependency, readable on light and dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

_ROW, _LEFT, _WIDTH = 28, 240, 420


def bar_chart(title: str, bars: Sequence[tuple[str, float]]) -> str:
    """Horizontal bars, longest value filling the width."""
    longest = max(value for _, value in bars)
    height = _ROW * (len(bars) + 1) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 90}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="13">',
        f'<text x="8" y="20" font-weight="bold" fill="#888">{escape(title)}</text>',
    ]
    for index, (name, value) in enumerate(bars):
        y = _ROW * (index + 1) + 8
        width = max(1.0, value / longest * _WIDTH)
        colour = "#2a9d8f" if name.startswith("warmcell") else "#adb5bd"
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end" fill="#888">{escape(name)}</text>')
        lines.append(f'<rect x="{_LEFT}" y="{y}" width="{width:.1f}" height="18" rx="2" fill="{colour}"/>')
        lines.append(f'<text x="{_LEFT + width + 6:.1f}" y="{y + 14}" fill="#888">{value:.2f}</text>')
    return "\n".join([*lines, "</svg>", ""])
