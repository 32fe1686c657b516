"""The dashboard: each query is understood, and each metric and label in it exists."""

from __future__ import annotations

import json
import math
import sys

import pytest

from aiordma.observe.readings import METRICS
from tests.project.tree import ROOT

sys.path.insert(0, str(ROOT / "examples" / "grafana"))
import queries

#: What Prometheus adds, and what the collector adds to the readings.
COUNTERS = {f"aiordma_{metric.name}_total" for metric in METRICS if metric.kind == "counter"}
KNOWN = {
    **{
        f"aiordma_{metric.name}{'_total' * (metric.kind == 'counter')}": {*metric.labels}
        for metric in METRICS
    },
    "aiordma_traced_call_duration_seconds": {"side", "method", "quantile"},
}


@pytest.mark.parametrize("panel", queries.panels(), ids=lambda panel: panel.title)
def test_what_a_panel_shows_exists(panel: queries.Panel) -> None:
    assert panel.queries
    for query, legend in panel.queries:
        labels = KNOWN[query.metric] | {"instance"}
        assert {*query.by} <= labels
        assert {name for name, _ in query.equal} <= labels
        # Counters are shown as rates, and nothing else is.
        assert query.is_rate == (query.metric in COUNTERS)
        assert all(
            f"{{{{{name}}}}}" in legend for name in query.by if name not in ("device", "quantile")
        ) or (len(query.by) == 1)


def test_the_file_is_what_grafana_imports() -> None:
    found = json.loads(queries.DASHBOARD.read_text(encoding="utf-8"))
    assert (found["uid"], found["title"]) == ("aiordma", "aiordma")
    places = [tuple(row["gridPos"].values()) for row in found["panels"]]
    assert len(set(places)) == len(places) == len({row["id"] for row in found["panels"]})
    for row in found["panels"]:
        assert row["description"]
        assert all('{instance=~"$instance"' in each["expr"] for each in row["targets"])
    shown = {query.metric for panel in queries.panels() for query, _ in panel.queries}
    for name in ("fallbacks_total", "links", "registered_memory_bytes", "open_leaks", "slow_polls_total"):
        assert f"aiordma_{name}" in shown


def test_queries_on_samples() -> None:
    def scrape(first: float, second: float) -> queries.Scrape:
        return {
            ("m_total", (("device", "a"), ("side", "x"))): first,
            ("m_total", (("device", "a"), ("side", "y"))): second,
            ("other", (("device", "a"),)): 99.0,
        }

    scrapes = [(0.0, scrape(0, 0)), (1.0, scrape(10, 1)), (2.0, scrape(20, 2))]
    rate = queries.parse('sum by (device) (rate(m_total{instance=~"$instance"}[$__rate_interval]))')
    ((key, values),) = queries.evaluate(rate, scrapes).items()
    assert key == (("device", "a"),)
    assert math.isnan(values[0])
    assert values[1:] == [11.0, 11.0]
    now = queries.parse('max by (side) (m_total{instance=~"$instance",side="x"})')
    assert queries.evaluate(now, scrapes) == {(("side", "x"),): [0, 10, 20]}
    with pytest.raises(ValueError, match="this query is not understood: up"):
        queries.parse("up")
