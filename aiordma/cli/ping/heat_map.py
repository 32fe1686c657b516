"""A mesh as a page of HTML: a table whose cells have the colour of their median, on a logarithmic scale.
Nothing in it is loaded from anywhere."""

from __future__ import annotations

import html
import time
from typing import TYPE_CHECKING

from rocefabric.drawing import heat
from rocefabric.whole_file import write_whole

from ...measure.mesh import matrix, problems

if TYPE_CHECKING:
    from pathlib import Path

    from ...measure.mesh import Mesh, Pair

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>aiordma mesh</title><style>
body {{ font: 14px system-ui, sans-serif; margin: 2em; color: #222; background: #fff }}
table {{ border-collapse: collapse }}
th {{ font-weight: normal; padding: 2px 8px; text-align: right; white-space: nowrap }}
thead th {{ text-align: left; writing-mode: vertical-rl; transform: rotate(180deg); padding: 8px 2px }}
td {{ width: 4em; height: 2em; text-align: center; border: 1px solid #fff; color: #111 }}
td.self {{ background: #eee }} td.none {{ background: #444; color: #fff }}
td.tcp {{ outline: 2px dashed #555; outline-offset: -4px }}
</style></head><body>
<h1>Round trips of {size} bytes</h1>
<p>{when}. Median in microseconds, from the row's host to the column's; the rest is in each cell's tooltip.
Dashed: by TCP. Dark: no result. Colours from {least:.1f} (green) to {most:.1f} µs (red), logarithmic.</p>
<table><thead><tr><th></th>{titles}</tr></thead><tbody>
{rows}
</tbody></table>
{problems}
</body></html>
"""


def write(mesh: Mesh, path: Path) -> None:
    """Write the page, whole and in UTF-8 as it says. :raises click.ClickException: it cannot be written."""
    write_whole(path, heat_map(mesh))


def heat_map(mesh: Mesh) -> str:
    """The page."""
    medians = [pair.median_us for pair in mesh.pairs if pair.count]
    least, most = (min(medians), max(medians)) if medians else (0.0, 0.0)
    pairs = matrix(mesh)
    rows = [
        f"<tr><th>{html.escape(source)}</th>"
        + "".join(
            '<td class="self"></td>' if source == target else _cell(pairs.get((source, target)), least, most)
            for target in mesh.hosts
        )
        + "</tr>"
        for source in mesh.hosts
    ]
    return _PAGE.format(
        size=mesh.size_bytes,
        when=time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(mesh.taken_at)),
        least=least,
        most=max(most, 2 * least),
        titles="".join(f"<th>{html.escape(host)}</th>" for host in mesh.hosts),
        rows="\n".join(rows),
        problems=_problems(mesh),
    )


def _cell(pair: Pair | None, least: float, most: float) -> str:
    if pair is None:
        return '<td class="none" title="not measured"></td>'
    where = f"{pair.source} to {pair.target}"
    if not pair.count:
        return f'<td class="none" title="{html.escape(f"{where}: {pair.error}")}">-</td>'
    times = (
        f"min {pair.min_us:.1f}, median {pair.median_us:.1f}, p99 {pair.p99_us:.1f}, max {pair.max_us:.1f}"
    )
    title = html.escape(f"{where}: {times} µs, {pair.mode} {pair.error}".rstrip())
    kind = ' class="tcp"' if pair.path == "tcp" else ""
    colour = heat(pair.median_us, least, most)
    return f'<td{kind} style="background: {colour}" title="{title}">{pair.median_us:.1f}</td>'


def _problems(mesh: Mesh) -> str:
    found = problems(mesh.pairs)
    items = [
        f"<li>{html.escape(text)}: "
        + html.escape(", ".join(f"{pair.source} to {pair.target}" for pair in pairs))
        + "</li>"
        for text, pairs in found.items()
    ]
    return f"<h2>What is wrong</h2><ul>{''.join(items)}</ul>" if items else ""
