"""Metrics of OpenTelemetry: asynchronous instruments, read when the program's SDK collects.

::

    from opentelemetry import metrics
    from aiordma.observe.otel_metrics import instrument

    metrics.set_meter_provider(MeterProvider([PeriodicExportingMetricReader(...)]))
    instrument()

Needs ``opentelemetry-api`` (the extra ``otel``), and does nothing until the program configures an SDK. Names,
units (UCUM) and attributes follow OpenTelemetry's conventions, in the namespace ``aiordma``; the numbers are
those of :mod:`.prometheus`. Spans of calls are in :mod:`.otel`.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import Observation
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "aiordma.observe.otel_metrics needs OpenTelemetry's API: install opentelemetry-api, or aiordma with "
        "its extra 'otel'",
        name=error.name,
    ) from error

from . import readings
from .readings import METRICS, Metric
from .trace import recorder

if TYPE_CHECKING:
    from collections.abc import Iterable

    from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider

_NAMESPACE = "aiordma"


class _Reader:
    """One reading serves all instruments of one collection."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._values: readings.Values = {}
        self._served: set[Metric] = set()

    def values(self, metric: Metric) -> Any:
        """An instrument that asks again begins the next collection."""
        with self._lock:
            if not self._values or metric in self._served:
                self._values, self._served = readings.read(), set()
            self._served.add(metric)
            return self._values[metric]

    def callback(self, metric: Metric) -> Any:
        names = [f"{_NAMESPACE}.{label}" for label in metric.labels]

        def observe(options: CallbackOptions) -> Iterable[Observation]:
            for key, value in self.values(metric).items():
                yield Observation(value, dict(zip(names, key, strict=True)))

        return observe


def instrument(meter_provider: MeterProvider | None = None) -> Meter:
    """Create the instruments. Call it once: a second time would show the same numbers again.

    :param meter_provider: None: the global one.
    """
    meter = metrics.get_meter("aiordma", meter_provider=meter_provider)
    reader = _Reader()
    for metric in METRICS:
        name, callback = f"{_NAMESPACE}.{metric.dotted}", reader.callback(metric)
        if metric.kind == "counter":
            meter.create_observable_counter(name, [callback], metric.unit, metric.text)
        elif metric.kind == "amount":
            meter.create_observable_up_down_counter(name, [callback], metric.unit, metric.text)
        else:
            meter.create_observable_gauge(name, [callback], metric.unit, metric.text)
    _traced_calls(meter)
    return meter


def _traced_calls(meter: Meter) -> None:
    """Calls that were traced: number, time, and percentiles."""

    def attributes(side: str, method: str) -> dict[str, str]:
        service, dot, name = method.rpartition(".")
        return {
            f"{_NAMESPACE}.side": side,
            "rpc.system.name": "aiordma",
            "rpc.method": f"{service}/{name}" if dot else name,
        }

    def calls(options: CallbackOptions) -> Iterable[Observation]:
        for (side, method), summary in recorder.summary().items():
            yield Observation(summary.total.calls, attributes(side, method))

    def seconds(options: CallbackOptions) -> Iterable[Observation]:
        for (side, method), summary in recorder.summary().items():
            yield Observation(summary.total.mean * summary.total.calls / 1e9, attributes(side, method))

    def percentiles(options: CallbackOptions) -> Iterable[Observation]:
        for (side, method), summary in recorder.summary().items():
            total = summary.total
            for quantile, value in ((0.5, total.p50), (0.9, total.p90), (0.99, total.p99)):
                known: dict[str, Any] = attributes(side, method)
                yield Observation(value / 1e9, {**known, f"{_NAMESPACE}.quantile": quantile})

    name = f"{_NAMESPACE}.rpc.traced"
    meter.create_observable_counter(f"{name}.calls", [calls], "{call}", "Calls whose time was taken.")
    meter.create_observable_counter(f"{name}.time", [seconds], "s", "What these calls took, added up.")
    meter.create_observable_gauge(f"{name}.duration", [percentiles], "s", "Percentiles of these times.")
