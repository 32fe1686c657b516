"""Outcomes of simulations as tables and as one HTML file with drawings."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

from . import charts, drawing
from .ecn import thresholds
from .judge import judge, reasons, summary
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


def _cells(outcome: Outcome, network: Network) -> list[str]:
    """A row of the page; a cell has the colour of its goal."""
    judged, texts = judge(outcome, network.goals), row(outcome, network)
    goals = {
        "busy ports": judged.throughput,
        "pauses": judged.pauses,
        "most us": judged.latency,
        "dropped": judged.lossless,
        "goals": not texts[-1].startswith("missed"),
    }
    kinds = {True: " class=ok", False: " class=BROKEN", None: ""}
    return [
        f"<td{kinds[goals.get(name)]}>{html.escape(text)}</td>"
        for name, text in zip(HEAD, texts, strict=True)
    ]


def _overview(network: Network, outcomes: Sequence[Outcome]) -> str:
    """All models beside the goals: the slowest packet of each, and how much of the busy ports was used."""
    goals = network.goals
    slow = sorted(outcome.latency_most_us for outcome in outcomes)
    used = sorted(100 * outcome.throughput for outcome in outcomes if outcome.throughput >= 0)
    shown = [
        drawing.Panel(
            "slowest packet of each model", "us", "models", {"": list(enumerate(slow, 1))},
            {f"goal {goals.latency_us:g}": goals.latency_us}, dots=True, logarithmic=(False, True),
        ),
        drawing.Panel(
            "use of the busy ports in each model", "%", "models", {"": list(enumerate(used, 1))},
            {f"goal {goals.throughput_percent:g}": goals.throughput_percent}, dots=True,
        ),
    ]  # fmt: skip
    return drawing.panels(shown, columns=2)


def to_html(network: Network, outcomes: Sequence[Outcome]) -> str:
    """One file without references to others: a summary, goals, table, queues, rates and pauses."""
    title = html.escape(f"Simulations of {network.name}")
    parts = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"]
    whole = sum(not reasons(outcome, network.goals) for outcome in outcomes)
    kind = "ok" if whole == len(outcomes) else "BROKEN"
    parts.append(
        f"<h1>{title}</h1><p><span class={kind}>{whole} of {len(outcomes)} models meet every goal.</span></p>"
    )
    parts.append("<table><tr><th>goal</th><th>met by</th></tr>")
    for what, met, numbers in summary(outcomes, network.goals):
        kind = "ok" if met else "BROKEN"
        parts.append(f"<tr><td>{html.escape(what)}</td><td class={kind}>{numbers}</td></tr>")
    parts.append(f"</table><figure>{_overview(network, outcomes)}</figure>")
    head = "".join(f"<th>{cell}</th>" for cell in HEAD)
    parts.append(f"<p>Queues in cells. Dropped: lossless/lossy/on broken cables.</p><table><tr>{head}</tr>")
    parts += [f"<tr>{''.join(_cells(outcome, network))}</tr>" for outcome in outcomes]
    parts.append("</table>")
    parts += _drawings(network, outcomes)
    return "\n".join([*parts, "</html>\n"])


def _drawings(network: Network, outcomes: Sequence[Outcome]) -> list[str]:
    """Of the models with the fullest queues."""
    topology, parts = build(network), []
    slowest = min(link.rate_gbps for link in network.links)
    found = thresholds(network, topology, slowest, network.switches[0].cell_bytes)
    levels = {"Kmin": float(found.kmin), "Kmax": float(found.kmax)}
    for outcome in sorted(outcomes, key=lambda each: -each.queue_most)[:DRAWN]:
        parts.append(f"<h2>{html.escape(outcome.traffic)}</h2>")
        queue = f"queue of {outcome.queue_name}"
        rates = list(zip(*outcome.rates, strict=True))
        drawn = [
            charts.lines(queue, "cells", outcome.sample_us, [outcome.queue], levels),
            charts.lines("rates of the first senders", "Gb/s", outcome.sample_us, rates),
        ]
        if outcome.pauses:
            drawn.append(charts.pause_map(topology, outcome.pauses_by_port))
        parts += [f"<figure>{each}</figure>" for each in drawn]
    return parts
