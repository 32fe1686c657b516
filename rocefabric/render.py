"""A report as Markdown, HTML, JSON, or on a terminal."""

from __future__ import annotations

import dataclasses
import html
import json
import math
from typing import TYPE_CHECKING

from .report import Table, Verdict

if TYPE_CHECKING:
    from rich.console import Console

    from .report import Report, Section

__all__ = ["STYLE", "cycle_svg", "to_html", "to_json", "to_markdown", "to_terminal"]

_NUMBERS = ("what", "value", "formula", "source")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
body { color: #222; } table { border-collapse: collapse; margin: 1rem 0; }
th, td { border: 1px solid #ccc; padding: .25rem .6rem; }
th { background: #f2f2f2; text-align: left; } .ok { color: #17712a; } .warning { color: #a15c00; }
.BROKEN { color: #b3001b; font-weight: bold; } pre { background: #f6f6f6; padding: .6rem; overflow: auto; }
td.ok { background: #e3f3e6; } td.warning { background: #fff3d6; } td.BROKEN { background: #f9d9dc; }
figure { display: inline-block; margin: 0 1rem 1rem 0; } svg { max-width: 100%; height: auto; }
"""


def _value(value: float, unit: str) -> str:
    text = f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
    return f"{text} {unit}".strip()


def _numbers(section: Section) -> Table:
    rows = [(each.name, _value(each.value, each.unit), each.formula, each.source) for each in section.numbers]
    return Table("", _NUMBERS, tuple(rows))


def to_json(report: Report) -> str:
    """Everything, the contents of the settings files included."""
    found = {"verdict": report.verdict, **dataclasses.asdict(report)}
    return json.dumps(found, indent=2) + "\n"


def _markdown_table(table: Table) -> list[str]:
    escaped = [[cell.replace("|", "\\|") for cell in row] for row in (table.head, *table.rows)]
    lines = [f"| {' | '.join(row)} |" for row in escaped]
    head = [f"**{table.title}**", ""] if table.title else []
    return [*head, lines[0], f"|{' --- |' * len(table.head)}", *lines[1:], ""]


def to_markdown(report: Report) -> str:
    """For a repository, beside the network's file."""
    lines = [f"# {report.title}", "", f"Verdict: {report.verdict}.", ""]
    for section in report.sections:
        lines += [f"## {section.title}", ""]
        if section.checks:
            lines += [f"* {check.verdict}: {check.name}: {check.text}" for check in section.checks] + [""]
        if section.numbers:
            lines += _markdown_table(_numbers(section))
        for table in section.tables:
            lines += _markdown_table(table)
        for cycle in section.cycles:
            lines += ["```", " -> ".join((*cycle, cycle[0])), "```", ""]
        for remark in section.remarks:
            lines += [remark, ""]
        if section.files:
            lines += [f"* `{name}`" for name in section.files] + [""]
    return "\n".join(lines)


def cycle_svg(names: tuple[str, ...]) -> str:
    """A circle of ports or switches, drawn."""
    size, radius = 360, 120
    places = [
        (
            size / 2 + radius * math.sin(2 * math.pi * at / len(names)),
            size / 2 - radius * math.cos(2 * math.pi * at / len(names)),
        )
        for at in range(len(names))
    ]
    parts = [
        f'<svg width="{size}" height="{size}" role="img"><defs>'
        '<marker id="arrow" markerWidth="10" markerHeight="10" refX="9" refY="4" orient="auto">'
        '<path d="M0,0 L9,4 L0,8 z" fill="#b3001b"/></marker></defs>'
    ]
    for (x, y), (to_x, to_y) in zip(places, [*places[1:], places[0]], strict=True):
        near_x, near_y = to_x + (x - to_x) * 0.18, to_y + (y - to_y) * 0.18
        parts.append(
            f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{near_x:.0f}" y2="{near_y:.0f}" stroke="#b3001b" '
            'stroke-width="2" marker-end="url(#arrow)"/>'
        )
    for name, (x, y) in zip(names, places, strict=True):
        parts.append(
            f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" fill="#333"/><text x="{x:.0f}" y="{y - 10:.0f}" '
            f'text-anchor="middle">{html.escape(name)}</text>'
        )
    return "".join([*parts, "</svg>"])


def _html_table(table: Table) -> str:
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table.head)
    rows = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in table.rows
    )
    title = f"<h3>{html.escape(table.title)}</h3>" if table.title else ""
    return f"{title}<table><tr>{head}</tr>{rows}</table>"


def _open(report: Report) -> list[str]:
    """How many checks hold, and a coloured table of those that do not."""
    checks = [check for section in report.sections for check in section.checks]
    bad = [check for check in checks if check.verdict is not Verdict.OK]
    rows = "".join(
        f"<tr><td class={check.verdict}>{check.verdict}</td><td>{html.escape(check.name)}</td>"
        f"<td>{html.escape(check.text)}</td></tr>"
        for check in sorted(bad, key=lambda check: check.verdict is not Verdict.BROKEN)
    )
    return [
        f"<p>{len(checks) - len(bad)} of {len(checks)} checks hold.</p>",
        f"<table>{rows}</table>" if bad else "",
    ]


def to_html(report: Report) -> str:
    """One file without references to others."""
    title = html.escape(report.title)
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{title}</h1><p>Verdict: <span class={report.verdict}>{report.verdict}</span></p>")
    parts += _open(report)
    for section in report.sections:
        parts.append(f"<h2>{html.escape(section.title)}</h2><ul>")
        for check in section.checks:
            text = html.escape(f"{check.name}: {check.text}")
            parts.append(f"<li><span class={check.verdict}>{check.verdict}</span>: {text}</li>")
        parts.append("</ul>")
        if section.numbers:
            parts.append(_html_table(_numbers(section)))
        parts += [_html_table(table) for table in section.tables]
        parts += [cycle_svg(cycle) for cycle in section.cycles]
        parts += [f"<p>{html.escape(remark)}</p>" for remark in section.remarks]
        for name, text in section.files.items():
            name, text = html.escape(name), html.escape(text)
            parts.append(f"<details><summary>{name}</summary><pre>{text}</pre></details>")
    return "\n".join([*parts, "</html>\n"])


def to_terminal(report: Report, console: Console) -> None:
    """With colours, as wide as the terminal."""
    from rich.markup import escape
    from rich.table import Table as Drawn

    colours = {Verdict.OK: "green", Verdict.WARNING: "yellow", Verdict.BROKEN: "bold red"}

    def draw(table: Table) -> None:
        drawn = Drawn(*table.head, title=table.title or None, title_justify="left")
        for row in table.rows:
            drawn.add_row(*(escape(cell) for cell in row))
        console.print(drawn)

    console.rule(escape(report.title))
    for section in report.sections:
        console.print(f"\n[bold]{escape(section.title)}[/bold]")
        for check in section.checks:
            mark = f"[{colours[check.verdict]}]{check.verdict}[/]"
            console.print(f"  {mark}  {escape(check.name)}: {escape(check.text)}")
        for table in (_numbers(section), *section.tables):
            if table.rows:
                draw(table)
        for cycle in section.cycles:
            console.print("  " + escape(" -> ".join((*cycle, cycle[0]))), style="red")
        for remark in section.remarks:
            console.print(f"  {escape(remark)}", style="dim")
    console.print(f"\nVerdict: [{colours[report.verdict]}]{report.verdict}[/]")
