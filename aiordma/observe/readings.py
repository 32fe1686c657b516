"""What is measured, for whatever exports it (:mod:`.prometheus`, :mod:`.otel_metrics`): names, units, values.

Everything is counted anyway; :func:`read` collects it, in any thread. No label has one value for each
connection or peer. When one of several event loops of a process ends, what its engine counted is gone.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ..errors import Code
from . import connections, leaks
from .trace import recorder

if TYPE_CHECKING:
    from collections.abc import Mapping

Labels = tuple[str, ...]
_KINDS = {0: "stream", 1: "datagrams", 2: "calls", 3: "memory"}


class Metric(NamedTuple):
    """One of them. A *counter* only grows; an *amount* can be added up over processes, a *gauge* cannot."""

    kind: Literal["counter", "amount", "gauge"]
    #: for Prometheus, without its prefix and ``_total``
    name: str
    #: for OpenTelemetry, without its namespace
    dotted: str
    #: UCUM, as OpenTelemetry has it
    unit: str
    text: str
    labels: Labels = ("device",)


_MADE = Metric(
    "counter",
    "connections",
    "connection.made",
    "{connection}",
    "Connections whose path was agreed on.",
    ("kind", "side", "path"),
)
_SMCR = Metric(
    "counter",
    "smcr_connections",
    "connection.smcr",
    "{connection}",
    "Connections on RDMA with another implementation of SMC-R: Linux' sockets.",
    ("side",),
)
_FALLBACKS = Metric(
    "counter",
    "fallbacks",
    "connection.fallbacks",
    "{connection}",
    "Connections that began on TCP, or left RDMA later, by both ends' reasons.",
    ("when", "reason", "peer_reason"),
)
_OPEN = Metric(
    "amount",
    "open_connections",
    "connection.open",
    "{connection}",
    "Connections that are open now.",
    ("path",),
)
_LINKS = Metric(
    "amount", "links", "link.count", "{link}", "Links: queue pairs to peers.", ("device", "side", "state")
)
_MOVED = Metric(
    "counter", "moved_streams", "connection.moved", "{connection}", "Streams that moved to another link.", ()
)
_WAITING = Metric(
    "amount",
    "waiting_streams",
    "connection.waiting",
    "{connection}",
    "Streams on TCP that wait for another link.",
    (),
)
_LEAKS = Metric("counter", "leaks", "leak.found", "{leak}", "Leaks that were found, by kind.", ("kind",))
_OPEN_LEAKS = Metric("amount", "open_leaks", "leak.open", "{leak}", "Leaks that are there now.", ("kind",))
_LEAKED = Metric(
    "amount", "leaked_bytes", "leak.memory", "By", "Registered memory that open leaks hold.", ("kind",)
)
_SLOW_CALLS = Metric(
    "counter",
    "slow_requests",
    "rpc.slow_requests",
    "{call}",
    "Calls slower than AIORDMA_SLOW_REQUEST_US.",
    (),
)
_SLOW_HANDLERS = Metric(
    "counter",
    "slow_handlers",
    "rpc.slow_handlers",
    "{call}",
    "Handlers slower than AIORDMA_SLOW_HANDLER_US.",
    (),
)
_SLOWEST = Metric("gauge", "slowest_poll_seconds", "loop.slowest_poll", "s", "The slowest of the slow polls.")
_KEPT = Metric(
    "amount",
    "kept_message_bytes",
    "memory.kept_messages",
    "By",
    "Registered memory of received messages that the program keeps.",
)
_WIRE = Metric(
    "counter",
    "wire_packets",
    "wire.packets",
    "{packet}",
    "The software device's packets to and from other hosts, by what became of them.",
    ("event",),
)

#: By the name of the link's, the pool's or the poller's counter.
_OF_LINKS = {
    "bytes_written": Metric(
        "counter", "link_written_bytes", "link.written", "By", "Bytes of payload that were written to peers."
    ),
    "messages_sent": Metric(
        "counter",
        "link_sent_messages",
        "link.messages_sent",
        "{message}",
        "Messages that were sent on links.",
    ),
    "messages_received": Metric(
        "counter",
        "link_received_messages",
        "link.messages_received",
        "{message}",
        "Messages that came on links.",
    ),
    "credit_waits": Metric(
        "counter",
        "link_credit_waits",
        "link.credit_waits",
        "{wait}",
        "Times that a message waited for the window of its link.",
    ),
    "keepalives": Metric(
        "counter", "link_keepalives", "link.keepalives", "{probe}", "Probes of silent links."
    ),
}
_OF_POOLS = {
    "registered_bytes": Metric(
        "amount", "registered_memory_bytes", "memory.registered", "By", "Registered memory."
    ),
    "used_bytes": Metric("amount", "used_memory_bytes", "memory.used", "By", "Registered memory in use."),
    "limit_bytes": Metric(
        "amount",
        "memory_limit_bytes",
        "memory.limit",
        "By",
        "Limit of registered memory (AIORDMA_MEMORY_LIMIT_BYTES).",
    ),
    "slabs": Metric("amount", "memory_regions", "memory.regions", "{region}", "Registered memory regions."),
    "allocations": Metric(
        "counter",
        "memory_allocations",
        "memory.allocations",
        "{block}",
        "Blocks of registered memory that were handed out.",
    ),
    "downgrades": Metric(
        "counter",
        "memory_downgrades",
        "memory.downgrades",
        "{block}",
        "Blocks that were smaller than asked for.",
    ),
    "failures": Metric(
        "counter",
        "memory_failures",
        "memory.failures",
        "{request}",
        "Requests for registered memory that could not be served.",
    ),
}
_OF_POLLERS = {
    "completions": Metric("counter", "completions", "loop.completions", "{completion}", "Work completions."),
    "polls": Metric("counter", "polls", "loop.polls", "{poll}", "Looks at the completion queue."),
    "empty_polls": Metric(
        "counter",
        "empty_polls",
        "loop.empty_polls",
        "{poll}",
        "Looks at the completion queue that found nothing.",
    ),
    "events": Metric(
        "counter",
        "completion_events",
        "loop.completion_events",
        "{event}",
        "Events of completion queues: the loop had slept.",
    ),
    "busy_polls": Metric(
        "counter", "busy_polls", "loop.busy_polls", "{poll}", "Busy polls before a task or the loop waits."
    ),
    "busy_poll_hits": Metric(
        "counter", "busy_poll_hits", "loop.busy_poll_hits", "{poll}", "Busy polls that paid off."
    ),
    "slow_polls": Metric(
        "counter",
        "slow_polls",
        "loop.slow_polls",
        "{poll}",
        "Polls that came too late (AIORDMA_SLOW_POLL_US).",
    ),
}

METRICS: tuple[Metric, ...] = (
    *(_MADE, _SMCR, _FALLBACKS, _OPEN, _LINKS, _MOVED, _WAITING),
    *_OF_LINKS.values(),
    *_OF_POOLS.values(),
    _KEPT,
    *_OF_POLLERS.values(),
    *(_SLOWEST, _SLOW_CALLS, _SLOW_HANDLERS, _LEAKS, _OPEN_LEAKS, _LEAKED, _WIRE),
)
"""All that :func:`read` gives values for."""

Values = dict[Metric, Counter[Labels]]


def read() -> Values:
    """Values by metric, by the values of its labels in order. A metric without any has none now."""
    found: Values = {metric: Counter() for metric in METRICS}
    engines = [engine for engine in list(recorder._engines) if not engine.closed]
    _read_connections(found)
    _read_devices(found, engines)
    for engine in engines:
        _read_engine(found, engine)
    _read_leaks(found)
    slow = recorder.slow_counts
    found[_SLOW_CALLS][()], found[_SLOW_HANDLERS][()] = slow["request"], slow["handler"]
    return found


def _read_connections(found: Values) -> None:
    counts = connections.counts
    for (kind, side, path), count in list(counts.connections.items()):
        found[_MADE][_KINDS.get(kind, str(kind)), side, path] += count
    for side, count in list(counts.smcr.items()):
        found[_SMCR][side,] += count
    for when, counter in (("began", counts.fallbacks), ("left", counts.left)):
        for (local, peer, _), count in list(counter.items()):
            found[_FALLBACKS][when, _name(local), "" if peer is None else _name(peer)] += count
    now = found[_OPEN]
    now["rdma",] = now["tcp",] = 0
    for entry in connections.of_all_loops():
        pipe = entry.pipe
        now["tcp" if pipe is None else pipe.path,] += 1


def _read_devices(found: Values, engines: list[Any]) -> None:
    """What the devices of one loop have in common."""
    for devices in {id(engine.devices): engine.devices for engine in engines}.values():
        found[_MOVED][()] += devices.moved
        found[_WAITING][()] += devices.waiting
    # Of the whole process, so that one engine is as good as another.
    wire: Mapping[str, int] = next(filter(None, (engine.wire_counters() for engine in engines)), {})
    found[_WIRE].update({(event,): count for event, count in wire.items()})


def _read_engine(found: Values, engine: Any) -> None:
    device = engine.backend.name
    for name, value in engine.past_links.items():
        found[_OF_LINKS[name]][device,] += value
    for group in list(engine.all_groups):
        row = group.statistics()
        found[_LINKS][device, row["side"], row["state"]] += 1
        for name in engine.LINK_COUNTERS:
            found[_OF_LINKS[name]][device,] += row[name]
    pool = engine.pool.statistics()
    for name, metric in _OF_POOLS.items():
        found[metric][device,] += getattr(pool, name)
    found[_KEPT][device,] += sum(kept.length for kept in list(engine.pool.kept.values()))
    for name, metric in _OF_POLLERS.items():
        found[metric][device,] += getattr(engine.poller, name)
    slowest = found[_SLOWEST]
    slowest[device,] = max(slowest[device,], engine.poller.slowest_poll_ns / 1e9)


def _read_leaks(found: Values) -> None:
    for kind, count in leaks.counts().items():
        found[_LEAKS][kind,] = count
        found[_OPEN_LEAKS][kind,] = found[_LEAKED][kind,] = 0
    for leak in leaks.open_leaks():
        found[_OPEN_LEAKS][leak.kind,] += 1
        found[_LEAKED][leak.kind,] += leak.held_bytes


def _name(code: int) -> str:
    """Of a reason; of an unknown one the number."""
    try:
        return Code(code).name  # type: ignore[call-arg]
    except ValueError:
        return f"0x{code:08x}"
