"""The metrics of OpenTelemetry: the numbers of Prometheus, with names and units of its conventions."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest

import aiordma
from aiordma.observe import readings
from tests.roles import LOCAL, echo
from tests.world import DEVICE

pytest.importorskip("aiordma._cq", reason="the compiled modules are not built")
pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from aiordma.observe.otel_metrics import instrument

CONFIG = aiordma.Config(device=DEVICE)


def collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    """Metrics by name."""
    data = reader.get_metrics_data()
    assert data is not None
    found = {}
    for resource in data.resource_metrics:
        for scope in resource.scope_metrics:
            assert scope.scope.name == "aiordma"
            found.update({metric.name: metric for metric in scope.metrics})
    return found


def values(metric: Any) -> dict[tuple[Any, ...], float]:
    return {tuple(point.attributes.values()): point.value for point in metric.data.data_points}


@pytest.mark.anyio
async def test_the_numbers_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read = readings.read

    def counted() -> Any:
        reads.append(1)
        return read()

    monkeypatch.setattr(readings, "read", counted)
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    instrument(provider)
    async with (
        await aiordma.listen(LOCAL, config=CONFIG) as listener,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(listener.serve, echo)
        before = collected(reader)
        async with await aiordma.connect(LOCAL, listener.port, config=CONFIG, mode="rdma") as stream:
            await stream.send(b"x" * 1000)
            await stream.receive()
            found = await anyio.to_thread.run_sync(collected, reader)
            assert values(found["aiordma.connection.open"])["rdma",] == 2
            (point,) = found["aiordma.link.written"].data.data_points
            assert list(point.attributes) == ["aiordma.device"]
            assert found["aiordma.link.written"].unit == "By"
            made = [
                values(each["aiordma.connection.made"]).get(("stream", "client", "rdma"), 0)
                for each in (before, found)
                if "aiordma.connection.made" in each
            ]
            assert made[-1] >= 1
            assert not found["aiordma.connection.open"].data.is_monotonic
            assert found["aiordma.link.written"].data.is_monotonic
        tasks.cancel_scope.cancel()
    # Each collection reads once, however many instruments there are.
    assert len(reads) == 2
    provider.shutdown()


def test_names_and_units_follow_the_conventions() -> None:
    names = [metric.dotted for metric in readings.METRICS]
    assert len(set(names)) == len(names)
    for metric in readings.METRICS:
        assert re.fullmatch(r"[a-z]+(\.[a-z_]+)+", metric.dotted)
        assert re.fullmatch(r"By|s|\{[a-z]+\}", metric.unit)
        # Units are no part of OpenTelemetry's names, and a part of those of Prometheus.
        assert not metric.dotted.endswith(("bytes", "seconds", "total"))
        assert metric.name.endswith("bytes") == (metric.unit == "By")
        assert metric.name.endswith("seconds") == (metric.unit == "s")
