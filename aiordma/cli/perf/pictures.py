"""Pictures of ``aiordma perf``: throughput over size, and how many operations took longer than a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocefabric import drawing

if TYPE_CHECKING:
    from ...measure.perf import Perf, Point


def plot(perf: Perf) -> bytes:
    """The picture as an SVG file."""
    modes = list(dict.fromkeys(point.mode for point in perf.points))
    shown = [
        panel for mode in modes for panel in (_throughput(perf, mode), _times(perf, mode)) if panel.curves
    ]
    if not shown:
        shown = [drawing.Panel("times", "", "µs", {})]
    where = f"aiordma perf, {perf.host}:{perf.port} ({perf.server.host})"
    foot = perf.busy or "Factors are in the table of the command."
    svg = drawing.panels(shown, columns=min(2, len(shown)), title=where, foot=foot, width=560)
    return f"{svg}\n".encode()


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
