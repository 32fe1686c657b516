"""Outcomes of simulations as tables and as one HTML file with drawings."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from . import charts
from .ecn import thresholds
from .judge import judge, summary
from .render import STYLE
from .topology import build

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .model import Network
    from .simulate import Outcome

__all__ = ["HEAD", "row", "to_html"]

HEAD = (
    "traffic",
    "busy ports",
    "pauses",
    "quiet time",
    "p99 us",
    "most us",
    "queue",
    "dropped",
    "arrived",
    "goals",
)
#: Drawings for so many models: those with the fullest queues.
DRAWN = 12


def row(outcome: Outcome, network: Network) -> tuple[str, ...]:
    """One line of the table."""
    judged = judge(outcome, network.goals)
    marks = {
        "throughput": judged.throughput is not False,
        "pauses": judged.pauses,
        "latency": judged.latency,
        "lossless": judged.lossless,
    }
    missed = ", ".join(name for name, met in marks.items() if not met)
    return (
        outcome.traffic,
        "-" if outcome.throughput < 0 else f"{100 * outcome.throughput:.1f} %",
        str(outcome.pauses),
        f"{100 * outcome.quiet:.0f} %",
        f"{outcome.latency_99_us:.1f}",
        f"{outcome.latency_most_us:.1f}",
        str(outcome.queue_most),
        f"{outcome.lossless_drops + outcome.watchdog_drops}/{outcome.lossy_drops}/{outcome.lost}",
        f"{outcome.finished} of {outcome.transfers}",
        f"missed: {missed}" if missed else "ok",
    )


def to_html(network: Network, outcomes: Sequence[Outcome]) -> str:
    """One file without references to others: goals, table, queues, rates and pauses."""
    topology = build(network)
    title = html.escape(f"Simulations of {network.name}")
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{title}</h1><ul>")
    for what, met, numbers in summary(outcomes, network.goals):
        kind = "ok" if met else "BROKEN"
        parts.append(f"<li><span class={kind}>{kind}</span>: {html.escape(what)}: {numbers}</li>")
    head = "".join(f"<th>{cell}</th>" for cell in HEAD)
    parts.append(
        f"</ul><p>Queues in cells. Dropped: lossless/lossy/on broken cables.</p><table><tr>{head}</tr>"
    )
    for outcome in outcomes:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row(outcome, network))
        parts.append(f"<tr>{cells}</tr>")
    parts.append("</table>")
    slowest = min(link.rate_gbps for link in network.links)
    found = thresholds(network, topology, slowest, network.switches[0].cell_bytes)
    levels = {"Kmin": float(found.kmin), "Kmax": float(found.kmax)}
    for outcome in sorted(outcomes, key=lambda each: -each.queue_most)[:DRAWN]:
        parts.append(f"<h2>{html.escape(outcome.traffic)}</h2>")
        queue = f"queue of {outcome.queue_name}"
        parts.append(charts.lines(queue, "cells", outcome.sample_us, [outcome.queue], levels))
        rates = list(zip(*outcome.rates, strict=True))
        parts.append(charts.lines("rates of the first senders", "Gb/s", outcome.sample_us, rates))
        if outcome.pauses:
            parts.append(charts.pause_map(topology, outcome.pauses_by_port))
    return "\n".join([*parts, "</html>\n"])
