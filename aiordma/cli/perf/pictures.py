"""Pictures of ``aiordma perf``: throughput over size, and how many operations took longer than a time."""

from __future__ import annotations

import html
import time
from typing import TYPE_CHECKING

from rocefabric import drawing

if TYPE_CHECKING:
    from ...measure.perf import Perf, Point

FORMATS = (".svg", ".html")

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>aiordma perf</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; color: #222; background: #fff }}
svg {{ max-width: 100%; height: auto }}
td, th {{ padding: 2px 12px; text-align: right }}
td:nth-child(-n+4), th:nth-child(-n+4) {{ text-align: left }}
</style></head><body>
<h1>{title}</h1><p>{when}</p>
{drawing}
<table><thead><tr>{heads}</tr></thead><tbody>
{rows}
</tbody></table>
</body></html>
"""
_COLUMNS = {
    "mode": "mode",
    "subject": "subject",
    "path": "path",
    "loop": "loop",
    "size_bytes": "bytes",
    "connections": "connections",
    "in_flight": "in flight",
    "messages_per_s": "messages/s",
    "bytes_per_s": "bytes/s",
    "median_us": "median µs",
    "p99_us": "p99 µs",
    "max_us": "max µs",
}


def plot(perf: Perf, suffix: str) -> bytes:
    """The picture as a file of that kind (:data:`FORMATS`)."""
    modes = list(dict.fromkeys(point.mode for point in perf.points))
    shown = [
        panel for mode in modes for panel in (_throughput(perf, mode), _times(perf, mode)) if panel.curves
    ]
    if not shown:
        shown = [drawing.Panel("times", "", "µs", {})]
    where = f"aiordma perf, {perf.host}:{perf.port} ({perf.server.host})"
    foot = perf.busy or "Factors are in the table of the command."
    svg = drawing.panels(shown, columns=min(2, len(shown)), title=where, foot=foot, width=560)
    return f"{svg}\n".encode() if suffix == ".svg" else _page(perf, svg)


def _name(point: Point) -> str:
    return point.subject if point.subject != "aiordma" else f"aiordma ({point.path})"


def _throughput(perf: Perf, mode: str) -> drawing.Panel:
    lines: dict[str, list[tuple[float, float]]] = {}
    for point in perf.points:
        if point.mode == mode and point.size_bytes:
            lines.setdefault(_name(point), []).append((point.size_bytes, point.bytes_per_s / 1e6))
    curves = {name: sorted(points) for name, points in lines.items()}
    return drawing.Panel(
        f"{mode}: throughput over size",
        "MB/s",
        "B",
        curves,
        logarithmic=(True, True),
        dots=True,
        joined=tuple(curves),
    )


def _times(perf: Perf, mode: str) -> drawing.Panel:
    """Of the smallest size, where most differ. What is sent one way only has no times."""
    timed = [point for point in perf.points if point.mode == mode and point.curve]
    smallest = min((point.size_bytes for point in timed), default=0)
    curves = {
        _name(point): [(took, 1 - share) for took, share in point.curve]
        for point in timed
        if point.size_bytes == smallest
    }
    size = f" of {smallest:,} B" if smallest else ""
    return drawing.Panel(
        f"{mode}{size}: share that took longer", "share", "µs", curves, logarithmic=(True, True)
    )


def _cell(point: Point, name: str) -> str:
    """Empty for a time of what was not timed."""
    return "" if name.endswith("_us") and not point.timed else str(getattr(point, name))


def _page(perf: Perf, picture: str) -> bytes:
    """The drawing, and the numbers below it."""
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(_cell(point, name))}</td>" for name in _COLUMNS) + "</tr>"
        for point in perf.points
    ]
    page = _PAGE.format(
        title=html.escape(f"aiordma perf, {perf.host}:{perf.port} ({perf.server.host})"),
        when=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(perf.taken_at)),
        drawing=picture,
        heads="".join(f"<th>{title}</th>" for title in _COLUMNS.values()),
        rows="\n".join(rows),
    )
    return page.encode()
