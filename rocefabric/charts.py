"""Drawings of simulations as SVG text: lines over time, and pauses on the map of the network."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .topology import Topology

__all__ = ["lines", "pause_map", "scatter"]

COLOURS = ("#1f77b4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#666666")
WIDTH, HEIGHT, LEFT, BOTTOM = 460, 220, 60, 30


def _axes(title: str, across: str, up: str, most_x: float, most_y: float) -> list[str]:
    top, right = 24, 12
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" role="img" '
        'font-family="sans-serif" font-size="11" style="background:#fff">',
        f'<text x="{LEFT}" y="14">{html.escape(title)}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{WIDTH - LEFT - right}" height="{HEIGHT - top - BOTTOM}" '
        'fill="none" stroke="#999"/>',
    ]
    for share in (0, 0.5, 1):
        x = LEFT + share * (WIDTH - LEFT - right)
        y = HEIGHT - BOTTOM - share * (HEIGHT - top - BOTTOM)
        parts.append(f'<text x="{x:.0f}" y="{HEIGHT - 16}" text-anchor="middle">{share * most_x:.4g}</text>')
        parts.append(f'<text x="{LEFT - 4}" y="{y + 4:.0f}" text-anchor="end">{share * most_y:.4g}</text>')
    middle = (LEFT + WIDTH - right) / 2
    parts.append(f'<text x="{middle:.0f}" y="{HEIGHT - 3}" text-anchor="middle">{html.escape(across)}</text>')
    parts.append(
        f'<text x="12" y="{HEIGHT / 2:.0f}" text-anchor="middle" '
        f'transform="rotate(-90 12 {HEIGHT / 2:.0f})">{html.escape(up)}</text>'
    )
    return parts


def _place(x: float, y: float, most_x: float, most_y: float) -> tuple[float, float]:
    return LEFT + x / most_x * (WIDTH - LEFT - 12), HEIGHT - BOTTOM - y / most_y * (HEIGHT - 24 - BOTTOM)


def lines(
    title: str,
    up: str,
    step_us: float,
    series: Sequence[Sequence[float]],
    levels: Mapping[str, float] | None = None,
    names: Sequence[str] = (),
) -> str:
    """Curves over time; `levels` are horizontal lines with a name, `names` those of the curves."""
    levels = levels or {}
    count = max(map(len, series), default=0)
    most_x = count * step_us / 1000 or 1
    most_y = max([*(max(each, default=0) for each in series), *levels.values(), 1e-9]) * 1.05
    parts = _axes(title, "ms", up, most_x, most_y)
    for name, level in levels.items():
        x, y = _place(0, level, most_x, most_y)
        parts.append(f'<line x1="{x:.0f}" y1="{y:.1f}" x2="{WIDTH - 12}" y2="{y:.1f}" stroke="#b3001b" ')
        parts.append(
            f'stroke-dasharray="4 3"/><text x="{x + 4:.0f}" y="{y - 3:.1f}">{html.escape(name)}</text>'
        )
    for at, values in enumerate(series):
        points = " ".join(
            "{:.1f},{:.1f}".format(*_place((index + 1) * step_us / 1000, value, most_x, most_y))
            for index, value in enumerate(values)
        )
        colour = COLOURS[at % len(COLOURS)]
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.3"/>')
    for at, name in enumerate(names):
        x = WIDTH - 12 - 90 * (len(names) - at)
        parts.append(f'<text x="{x}" y="14" fill="{COLOURS[at % len(COLOURS)]}">{html.escape(name)}</text>')
    return "".join([*parts, "</svg>"])


def scatter(title: str, across: str, up: str, points: Sequence[tuple[float, float, bool]]) -> str:
    """Points; the third value of each says whether it is one of the best: a line joins those, in order."""
    most_x = max([each[0] for each in points] or [1]) * 1.05 or 1
    most_y = max([each[1] for each in points] or [1]) * 1.05 or 1
    parts = _axes(title, across, up, most_x, most_y)
    front = sorted((x, y) for x, y, best in points if best)
    line = " ".join("{:.1f},{:.1f}".format(*_place(x, y, most_x, most_y)) for x, y in front)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#b3001b" stroke-dasharray="2 3"/>')
    for x, y, best in sorted(points, key=lambda each: each[2]):
        at_x, at_y = _place(x, y, most_x, most_y)
        colour = "#b3001b" if best else "#999"
        parts.append(f'<circle cx="{at_x:.1f}" cy="{at_y:.1f}" r="{4 if best else 2.5}" fill="{colour}"/>')
    return "".join([*parts, "</svg>"])


def pause_map(topology: Topology, pauses: Mapping[str, int]) -> str:
    """The network, hosts at the bottom; a node is as red as it sent pauses."""
    by_node: dict[str, int] = {}
    for name, count in pauses.items():
        node = name.split(" to ")[0]
        by_node[node] = by_node.get(node, 0) + count
    most = max(by_node.values(), default=0) or 1
    edges = set(topology.edges())
    rows = [[name for name in topology.switches if name not in edges], sorted(edges), list(topology.hosts)]
    rows = [row for row in rows if row]
    place = {
        name: ((at + 0.5) * WIDTH / len(row), 40 + 70 * level)
        for level, row in enumerate(rows)
        for at, name in enumerate(row)
    }
    height = 40 + 70 * (len(rows) - 1) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" role="img" '
        'font-family="sans-serif" font-size="11" style="background:#fff">',
        f'<text x="4" y="14">pauses sent, {sum(by_node.values())} in all</text>',
    ]
    for cable in topology.cables:
        (x, y), (to_x, to_y) = place[cable.a], place[cable.b]
        parts.append(f'<line x1="{x:.0f}" y1="{y}" x2="{to_x:.0f}" y2="{to_y}" stroke="#ccc"/>')
    for name, (x, y) in place.items():
        share = by_node.get(name, 0) / most
        green = int(210 * (1 - share))
        fill = f"rgb(200,{green},{green})" if share else "#555"
        size = 7 if name in topology.switches else 3
        parts.append(f'<circle cx="{x:.0f}" cy="{y}" r="{size}" fill="{fill}"/>')
        if name in topology.switches:
            label = f"{name} {by_node[name]}" if name in by_node else name
            parts.append(f'<text x="{x:.0f}" y="{y - 10}" text-anchor="middle">{html.escape(label)}</text>')
    return "".join([*parts, "</svg>"])
