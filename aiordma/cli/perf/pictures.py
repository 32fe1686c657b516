"""Pictures of ``aiordma perf``: throughput over size, and the distribution of times. Needs matplotlib (the
extra ``plot``)."""

from __future__ import annotations

import html
import io
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ...measure.perf import Perf, Point

__all__ = ["FORMATS", "plot"]

FORMATS = (".svg", ".png", ".html")

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
    """The picture as a file of that kind (:data:`FORMATS`). :raises ImportError: matplotlib is missing."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _throughput(left, perf)
    _times(right, perf)
    figure.suptitle(f"aiordma perf, {perf.host}:{perf.port} ({perf.server.host})")
    image = io.BytesIO()
    if suffix == ".png":
        figure.savefig(image, format="png", dpi=150)
        return image.getvalue()
    figure.savefig(image, format="svg", metadata={"Date": None})
    drawing = image.getvalue()
    return drawing if suffix == ".svg" else _page(perf, drawing.decode())


def _name(point: Point) -> str:
    subject = point.subject if point.subject != "aiordma" else f"aiordma ({point.path})"
    return f"{point.mode}, {subject}"


def _throughput(axes: Any, perf: Perf) -> None:
    lines: dict[str, list[Point]] = {}
    for point in perf.points:
        if point.size_bytes:
            lines.setdefault(_name(point), []).append(point)
    for name, points in lines.items():
        points.sort(key=lambda point: point.size_bytes)
        sizes, rates = [point.size_bytes for point in points], [point.bytes_per_s / 1e6 for point in points]
        axes.plot(sizes, rates, marker="o", markersize=3, label=name)
    axes.set(xlabel="bytes of a message", ylabel="MB/s", title="Throughput")
    if lines:
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.legend(fontsize="small")
    axes.grid(alpha=0.3)


def _times(axes: Any, perf: Perf) -> None:
    """Of the smallest size, where most differ."""
    timed = [point for point in perf.points if point.curve]
    smallest: dict[str, int] = {}
    for point in timed:
        smallest[point.mode] = min(smallest.get(point.mode, point.size_bytes), point.size_bytes)
    chosen = [point for point in timed if point.size_bytes == smallest[point.mode]]
    for point in chosen:
        times, shares = zip(*point.curve, strict=True)
        size = f", {point.size_bytes} B" if point.size_bytes else ""
        axes.step(times, shares, where="post", label=f"{_name(point)}{size}")
    axes.set(xlabel="µs", ylabel="share that took no longer", title="Time of an operation")
    if chosen:
        axes.set_xscale("log")
        axes.legend(fontsize="small")
    else:
        axes.text(0.5, 0.5, "one way only: nothing was timed", ha="center", transform=axes.transAxes)
    axes.grid(alpha=0.3)


def _page(perf: Perf, drawing: str) -> bytes:
    """The drawing without its XML header, and the numbers below it."""
    rows = [
        "<tr>" + "".join(f"<td>{html.escape(str(getattr(point, name)))}</td>" for name in _COLUMNS) + "</tr>"
        for point in perf.points
    ]
    page = _PAGE.format(
        title=html.escape(f"aiordma perf, {perf.host}:{perf.port} ({perf.server.host})"),
        when=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(perf.taken_at)),
        drawing=drawing[drawing.index("<svg") :],
        heads="".join(f"<th>{title}</th>" for title in _COLUMNS.values()),
        rows="\n".join(rows),
    )
    return page.encode()
