"""Metrics for Prometheus: a collector that any exporter of ``prometheus_client`` shows.

::

    import prometheus_client
    from aiordma.observe.prometheus import Collector

    prometheus_client.REGISTRY.register(Collector())
    prometheus_client.start_http_server(9000)

Everything is counted anyway; the work is done when somebody scrapes, in whatever thread that is. Metrics are
of the whole process. No label has one value for each connection or peer. When one of several event loops of a
process ends, what its engine counted is gone, which Prometheus takes for a restart of the counter.

Needs the extra ``prometheus`` (``pip install aiordma[prometheus]``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector as BaseCollector

from . import readings
from .trace import Recorder, recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

__all__ = ["Collector"]


class Collector(BaseCollector):
    """Register it once: a second one would show the same numbers again.

    :param prefix: begins the names of all metrics.
    """

    def __init__(self, prefix: str = "aiordma") -> None:
        self._prefix = prefix
        self._recorder: Recorder = recorder

    def describe(self) -> Iterable[Metric]:
        """Nothing: metrics are not made when it is registered."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """All metrics, as they are now."""
        for metric, values in readings.read().items():
            kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = kind(f"{self._prefix}_{metric.name}", metric.text, labels=metric.labels)
            for key, value in sorted(values.items()):
                family.add_metric(key, value)
            yield family
        yield self._calls()

    def _calls(self) -> Metric:
        """Of calls whose time was taken: one in 64, or those that are traced (``Config.trace_sample``)."""
        metric = SummaryMetricFamily(
            f"{self._prefix}_traced_call_duration_seconds",
            "Calls whose time was taken (a sample): at clients to the result, at servers the handler alone.",
            labels=("side", "method"),
        )
        for (side, method), summary in self._recorder.summary().items():
            total = summary.total
            metric.add_metric((side, method), total.calls, total.mean * total.calls / 1e9)
            for quantile, value in (("0.5", total.p50), ("0.9", total.p90), ("0.99", total.p99)):
                labels = {"side": side, "method": method, "quantile": quantile}
                metric.add_sample(metric.name, labels, value / 1e9)
        return metric
