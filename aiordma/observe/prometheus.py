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

from collections import Counter
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, SummaryMetricFamily
from prometheus_client.registry import Collector as BaseCollector

from ..errors import Code
from . import connections
from .trace import Recorder, recorder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from prometheus_client.metrics_core import Metric

__all__ = ["Collector"]

_KINDS = {0: "stream", 1: "datagrams", 2: "calls"}


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
        yield from self._connections()
        engines = [engine for engine in list(self._recorder._engines) if not engine.closed]
        yield from self._links(engines)
        yield from self._memory(engines)
        yield from self._loop(engines)
        yield self._calls()

    def _counter(self, name: str, text: str, labels: tuple[str, ...], values: Counter[Any]) -> Metric:
        """:param values: by the values of the labels."""
        metric = CounterMetricFamily(f"{self._prefix}_{name}", text, labels=labels)
        for key, value in sorted(values.items()):
            metric.add_metric(key, value)
        return metric

    def _gauge(self, name: str, text: str, labels: tuple[str, ...], values: Counter[Any]) -> Metric:
        metric = GaugeMetricFamily(f"{self._prefix}_{name}", text, labels=labels)
        for key, value in sorted(values.items()):
            metric.add_metric(key, value)
        return metric

    # ---- connections

    def _connections(self) -> Iterator[Metric]:
        counts = connections.counts
        made: Counter[Any] = Counter()
        for (kind, side, path), count in list(counts.connections.items()):
            made[_KINDS.get(kind, str(kind)), side, path] += count
        yield self._counter(
            "connections", "Connections whose path was agreed on.", ("kind", "side", "path"), made
        )
        fallbacks: Counter[Any] = Counter()
        for when, counter in (("began", counts.fallbacks), ("left", counts.left)):
            for (local, peer, _), count in list(counter.items()):
                fallbacks[when, _name(local), "" if peer is None else _name(peer)] += count
        yield self._counter(
            "fallbacks",
            "Connections that began on TCP, or left RDMA later, by both ends' reasons.",
            ("when", "reason", "peer_reason"),
            fallbacks,
        )
        now: Counter[Any] = Counter({("rdma",): 0, ("tcp",): 0})
        for entry in connections.of_all_loops():
            pipe = entry.pipe
            now["tcp" if pipe is None else pipe.path,] += 1
        yield self._gauge("open_connections", "Connections that are open now.", ("path",), now)

    # ---- links and memory

    def _links(self, engines: list[Any]) -> Iterator[Metric]:
        states: Counter[Any] = Counter()
        sums: Counter[Any] = Counter()
        for engine in engines:
            device = engine.backend.name
            for name, value in engine.past_links.items():
                sums[name, device] += value
            for group in list(engine.all_groups):
                found = group.statistics()
                states[device, found["side"], found["state"]] += 1
                for name in engine.LINK_COUNTERS:
                    sums[name, device] += found[name]
        yield self._gauge("links", "Links: queue pairs to peers.", ("device", "side", "state"), states)
        for name, own, text in _LINK_METRICS:
            yield self._counter(own, text, ("device",), _of(sums, name))

    def _memory(self, engines: list[Any]) -> Iterator[Metric]:
        sums: Counter[Any] = Counter()
        for engine in engines:
            for name, value in engine.pool.statistics()._asdict().items():
                sums[name, engine.backend.name] += value
        for name, own, text in _MEMORY_GAUGES:
            yield self._gauge(own, text, ("device",), _of(sums, name))
        for name, own, text in _MEMORY_COUNTERS:
            yield self._counter(own, text, ("device",), _of(sums, name))

    # ---- the event loop, and calls

    def _loop(self, engines: list[Any]) -> Iterator[Metric]:
        sums: Counter[Any] = Counter()
        for engine in engines:
            for name, _, _ in _POLLER_METRICS:
                sums[name, engine.backend.name] += getattr(engine.poller, name)
        for name, own, text in _POLLER_METRICS:
            yield self._counter(own, text, ("device",), _of(sums, name))

    def _calls(self) -> Metric:
        """Of calls that were traced (``Config.trace_mode``, or a threshold)."""
        metric = SummaryMetricFamily(
            f"{self._prefix}_traced_call_duration_seconds",
            "Calls that were traced: at clients to the result, at servers the handler alone.",
            labels=("side", "method"),
        )
        for (side, method), summary in self._recorder.summary().items():
            total = summary.total
            metric.add_metric((side, method), total.calls, total.mean * total.calls / 1e9)
            for quantile, value in (("0.5", total.p50), ("0.9", total.p90), ("0.99", total.p99)):
                labels = {"side": side, "method": method, "quantile": quantile}
                metric.add_sample(metric.name, labels, value / 1e9)
        return metric


def _name(code: int) -> str:
    """Of a reason; of an unknown one the number."""
    found = Code._value2member_map_.get(code)
    return f"0x{code:08x}" if found is None else found.name


def _of(sums: Counter[Any], name: str) -> Counter[Any]:
    """Those of one counter, by device."""
    return Counter({(device,): value for (each, device), value in sums.items() if each == name})


_LINK_METRICS = (
    ("bytes_written", "link_written_bytes", "Bytes of payload that were written to peers."),
    ("messages_sent", "link_sent_messages", "Messages that were sent on links."),
    ("messages_received", "link_received_messages", "Messages that came on links."),
    ("credit_waits", "link_credit_waits", "Times that a message waited for the window of its link."),
    ("keepalives", "link_keepalives", "Probes of silent links."),
)
_MEMORY_GAUGES = (
    ("registered_bytes", "registered_memory_bytes", "Registered memory."),
    ("used_bytes", "used_memory_bytes", "Registered memory in use."),
    ("limit_bytes", "memory_limit_bytes", "Limit of registered memory (AIORDMA_MEMORY_LIMIT_BYTES)."),
)
_MEMORY_COUNTERS = (
    ("allocations", "memory_allocations", "Blocks of registered memory that were handed out."),
    ("downgrades", "memory_downgrades", "Blocks that were smaller than asked for."),
    ("failures", "memory_failures", "Requests for registered memory that could not be served."),
)
_POLLER_METRICS = (
    ("completions", "completions", "Work completions."),
    ("polls", "polls", "Looks at the completion queue."),
    ("empty_polls", "empty_polls", "Looks at the completion queue that found nothing."),
    ("events", "completion_events", "Events of completion queues: the loop had slept."),
    ("spins", "busy_polls", "Busy polls before a task waits."),
    ("spin_hits", "busy_poll_hits", "Busy polls that paid off."),
    ("slow_polls", "slow_polls", "Polls that came too late (AIORDMA_SLOW_POLL_US)."),
)
