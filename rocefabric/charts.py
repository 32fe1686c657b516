"""Drawings of simulations as SVG text: lines over time, trials, and pauses on the map of the network."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .drawing import BAD, Panel, open_svg, panels, text

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .topology import Topology

__all__ = ["lines", "pause_map", "scatter"]

WIDTH = 480
#: From so many milliseconds on, an axis has seconds.
_LONG_MS = 2000
#: Pauses of the node with the most of them, from which on it is red.
_MANY_PAUSES = 100


def lines(
    title: str,
    up: str,
    step_us: float,
    series: Sequence[Sequence[float]],
    levels: Mapping[str, float] | None = None,
    names: Sequence[str] = (),
) -> str:
    """Curves over time; `levels` are horizontal lines with a name, `names` those of the curves."""
    count = max(map(len, series), default=0)
    unit, step = ("s", step_us / 1e6) if count * step_us / 1000 >= _LONG_MS else ("ms", step_us / 1000)
    curves = {
        names[at] if names else str(at): [((index + 1) * step, value) for index, value in enumerate(values)]
        for at, values in enumerate(series)
    }
    if len(series) == 1 and not names:
        curves = {"": curves["0"]}
    crowd = len(series) > 1 and not names
    return panels([Panel(title, up, unit, curves, levels or {}, crowd=crowd)], width=WIDTH)


def scatter(title: str, across: str, up: str, points: Sequence[tuple[float, float, bool]]) -> str:
    """Points; the third value of each says whether it is one of the best: a line joins those, in order."""
    best = sorted((x, y) for x, y, is_best in points if is_best)
    rest = sorted((x, y) for x, y, is_best in points if not is_best)
    panel = Panel(title, up, across, {"the best": best, "others": rest}, dots=True, joined=("the best",))
    return panels([panel], width=WIDTH)


def pause_map(topology: Topology, pauses: Mapping[str, int]) -> str:
    """The network, hosts at the bottom; the redder a node, the more pauses it sent: red from 100 on."""
    by_node: dict[str, int] = {}
    for name, count in pauses.items():
        node = name.split(" to ")[0]
        by_node[node] = by_node.get(node, 0) + count
    most = max(_MANY_PAUSES, *by_node.values()) if by_node else _MANY_PAUSES
    edges = set(topology.edges())
    rows = [[name for name in topology.switches if name not in edges], sorted(edges), list(topology.hosts)]
    rows = [row for row in rows if row]
    place = {
        name: ((at + 0.5) * WIDTH / len(row), 70.0 + 70 * level)
        for level, row in enumerate(rows)
        for at, name in enumerate(row)
    }
    title = f"pauses sent: {sum(by_node.values()):,}"
    parts = [open_svg(WIDTH, 70 + 70 * (len(rows) - 1) + 20, title)]
    parts.append(text(8, 18, title, more=' font-weight="600"'))
    for cable in topology.cables:
        (x, y), (to_x, to_y) = place[cable.a], place[cable.b]
        parts.append(f'<path d="M{x:.0f} {y:.0f}L{to_x:.0f} {to_y:.0f}" stroke="#ddd"/>')
    for name, (x, y) in place.items():
        count = by_node.get(name, 0)
        fill = (
            f"rgb(200,{round(170 * (1 - count / most))},{round(170 * (1 - count / most))})"
            if count
            else "#777"
        )
        is_switch = name in topology.switches
        parts.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="{8 if is_switch else 3}" fill="{fill}"/>')
        if is_switch:
            label = f"{name}: {count:,}" if count else name
            parts.append(text(x, y - 13, label, anchor="middle", fill=BAD if count else "#222"))
    return "".join([*parts, "</svg>"])
