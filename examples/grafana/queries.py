"""The queries of the dashboard, on samples that were scraped: as much of PromQL as they use.

``[sum|max] by (labels) (rate(metric{selector}[...]))``, or the same without ``rate()``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

DASHBOARD = Path(__file__).with_name("aiordma.json")

_QUERY = re.compile(
    r"(?P<function>sum|max) by \((?P<by>[a-z_, ]+)\) "
    r"\((?P<rate>rate\()?(?P<metric>[a-z_]+)\{(?P<selector>[^}]*)\}(?(rate)\[\$__rate_interval\]\))\)"
)
_MATCHER = re.compile(r'([a-z_]+)(=~|=)"([^"]*)"')

Labels = tuple[tuple[str, str], ...]
Scrape = dict[tuple[str, Labels], float]
"""Values by metric and labels."""


class Query(NamedTuple):
    """One of them."""

    function: str
    by: tuple[str, ...]
    is_rate: bool
    metric: str
    #: label and value; that of ``$instance`` is left out
    equal: Labels


class Panel(NamedTuple):
    """One panel: its queries, each with its legend."""

    title: str
    unit: str
    queries: tuple[tuple[Query, str], ...]


def parse(text: str) -> Query:
    """:raises ValueError: it is none of that form."""
    match = _QUERY.fullmatch(text)
    if match is None:
        raise ValueError(f"this query is not understood: {text}")
    equal = tuple((name, value) for name, how, value in _MATCHER.findall(match["selector"]) if how == "=")
    by = tuple(each.strip() for each in match["by"].split(","))
    return Query(match["function"], by, bool(match["rate"]), match["metric"], equal)


def panels() -> list[Panel]:
    """Those of the dashboard."""
    found = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return [
        Panel(
            row["title"],
            row["fieldConfig"]["defaults"]["unit"],
            tuple((parse(each["expr"]), each["legendFormat"]) for each in row["targets"]),
        )
        for row in found["panels"]
    ]


def evaluate(query: Query, scrapes: list[tuple[float, Scrape]], window: int = 5) -> dict[Labels, list[float]]:
    """Values at each scrape, by the labels that the query keeps.

    :param scrapes: with their times in seconds.
    :param window: scrapes that a rate looks back.
    """
    found: dict[Labels, list[float]] = {}
    for at, (now, scrape) in enumerate(scrapes):
        first, earlier = scrapes[max(0, at - window)]
        sums: dict[Labels, float] = {}
        for (metric, labels), value in scrape.items():
            known = dict(labels)
            if metric != query.metric or any(known.get(name) != want for name, want in query.equal):
                continue
            if query.is_rate:
                if now == first:
                    continue
                value = max(0.0, value - earlier.get((metric, labels), 0.0)) / (now - first)
            key = tuple((name, known.get(name, "")) for name in query.by)
            sums[key] = (
                max(sums.get(key, 0.0), value) if query.function == "max" else sums.get(key, 0.0) + value
            )
        for key, value in sums.items():
            found.setdefault(key, [float("nan")] * at).append(value)
        for line in found.values():
            line += [float("nan")] * (at + 1 - len(line))
    return found
