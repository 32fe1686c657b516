"""What ``aiordma top`` shows: two reports, one after the other, as rates, the busiest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ...admin.messages import Totals
    from ...admin.report import Process, Report
    from ...admin.requests import View

SCHEMA = "aiordma-top/1"
#: Of `aiordma stat`, that are asked for.
VIEWS: tuple[View, ...] = ("connections", "links", "rpc", "fallbacks", "totals")

#: Those that are in trouble come first, those that do not run last.
_ORDER = {"answered": 1, "stopped": 2}


class BusyProcess(Struct):
    """One event loop. Rates are per second, and 0 the first time."""

    pid: int
    program: str
    loop: str
    #: as in ``aiordma stat``: ``answered``, ``stuck`` ...
    state: str
    #: why it has not answered
    text: str
    on_rdma: int
    on_tcp: int
    sent_per_s: float
    received_per_s: float
    calls_per_s: float
    completions_per_s: float
    #: since it began, and the slowest of them
    slow_polls: int
    slowest_poll_us: float
    #: calls and handlers above their thresholds, and leaks that were found, since it began
    slow_requests: int = 0
    slow_handlers: int = 0
    leaks: int = 0
    #: the loop's own timer, once a second: how often the loop kept it for 20 ms or more in the last minute,
    #: for how long at most, and for how long it waited for a processor
    late_timers: int = 0
    latest_timer_ms: float = 0.0
    queued_ms: float = 0.0
    #: registered memory in use, its limit, and blocks of it that were smaller than wanted, or refused, since
    #: the process began
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    smaller_blocks: int = 0
    refused_blocks: int = 0


class BusyConnection(Struct):
    """One connection."""

    pid: int
    program: str
    number: int
    kind: str
    local: str
    remote: str
    mode: str
    sent_per_s: float
    received_per_s: float
    #: that this end's program has not read
    waiting_bytes: int
    #: how often the peer had no room, since the report before
    blocked: int
    #: for so long a send has waited for room now; 0: none does
    blocked_s: float = 0.0
    #: since when, in seconds since the epoch
    blocked_at: float = 0.0
    #: why it is on TCP
    reason: str = ""


class BusyLink(Struct):
    """One link."""

    pid: int
    program: str
    device: str
    peer: str
    state: str
    connections: int
    written_per_s: float
    messages_per_s: float
    #: messages that waited for the window, since the report before
    waits: int


class CalledMethod(Struct):
    """One method at one side. Times are those of ``aiordma stat --rpc``."""

    pid: int
    program: str
    side: str
    method: str
    calls_per_s: float
    #: without a result, since the report before, and in all
    new_errors: int
    errors: int
    in_flight: int
    traced: int
    p50_us: float
    p99_us: float
    max_us: float


class NewFallback(Struct):
    """Connections on TCP for one reason."""

    pid: int
    program: str
    #: ``began`` on TCP, or ``left`` RDMA later
    when: str
    mode: str
    text: str
    #: since the process began, and since the report before
    connections: int
    new: int


class Top(Struct):
    """What ``aiordma top --json`` prints, each time on one line."""

    schema: str
    #: seconds since the epoch, and since the report before (0: it is the first one)
    taken_at: float
    seconds: float
    processes: list[BusyProcess]
    connections: list[BusyConnection]
    links: list[BusyLink]
    #: the slowest first, then the most called
    methods: list[CalledMethod]
    #: those with new ones first
    fallbacks: list[NewFallback]


class _Before:
    """Counters of the report before, by what they are of."""

    def __init__(self, report: Report | None) -> None:
        self._counts: dict[tuple[Any, ...], Any] = {}
        self.taken_at = 0.0 if report is None else report.taken_at
        for key, process in _numbered(report):
            for name, row in _rows(process):
                self._counts[(*key, *name)] = row
            self._counts[(*key, "process")] = process

    def of(self, *key: object) -> Any:
        return self._counts.get(key)


def _numbered(report: Report | None) -> Iterator[tuple[tuple[int, int], Process]]:
    """A process may have several event loops."""
    seen: dict[int, int] = {}
    for process in report.processes if report is not None else ():
        index = seen[process.pid] = seen.get(process.pid, -1) + 1
        yield (process.pid, index), process


def _rows(process: Process) -> Iterator[tuple[tuple[Any, ...], Any]]:
    for connection in process.connections or ():
        yield ("connection", connection.number), connection
    for link in process.links or ():
        yield ("link", link.device, link.qp_num), link
    for method in process.rpc or ():
        if method.method:
            yield ("method", method.side, method.method), method
    for fallback in process.fallbacks or ():
        yield ("fallback", fallback.when, fallback.mode, fallback.text), fallback


def _more(now: Any, before: Any, name: str) -> int:
    """How much a counter has grown; what is new has no past to grow from."""
    return 0 if before is None else max(0, getattr(now, name) - getattr(before, name))


def compare(before: Report | None, now: Report) -> Top:
    """Rates between the two."""
    past = _Before(before)
    seconds = max(1e-3, now.taken_at - past.taken_at) if before is not None else 0.0
    top = Top(SCHEMA, now.taken_at, round(seconds, 3), [], [], [], [], [])
    for key, process in _numbered(now):
        found = _Loop(process, past, key, seconds)
        top.processes.append(found.process())
        top.connections += found.connections()
        top.links += found.links()
        top.methods += found.methods()
        top.fallbacks += found.fallbacks()
    top.processes.sort(key=lambda row: (_ORDER.get(row.state, 0), -_traffic(row), row.pid))
    top.connections.sort(key=lambda row: (-_traffic(row), row.pid, row.number))
    top.links.sort(key=lambda row: (-row.written_per_s - row.messages_per_s, row.pid, row.peer))
    top.methods.sort(key=lambda row: (-row.p99_us, -row.calls_per_s, row.pid, row.method))
    top.fallbacks.sort(key=lambda row: (-row.new, -row.connections, row.pid, row.mode))
    return top


def _traffic(row: BusyProcess | BusyConnection) -> float:
    return row.sent_per_s + row.received_per_s


def _of_totals(totals: Totals) -> dict[str, Any]:
    engines = totals.engines
    return {
        "slow_requests": totals.slow_requests,
        "slow_handlers": totals.slow_handlers,
        "leaks": sum(totals.leaks.values()),
        "late_timers": totals.late_timers,
        "latest_timer_ms": totals.latest_timer_ms,
        "queued_ms": totals.queued_ms,
        "memory_bytes": sum(each.used_bytes for each in engines),
        "memory_limit_bytes": sum(each.limit_bytes for each in engines),
        "smaller_blocks": sum(each.downgrades for each in engines),
        "refused_blocks": sum(each.failures for each in engines),
    }


class _Loop:
    """One event loop, then and now."""

    def __init__(self, process: Process, past: _Before, key: tuple[int, int], seconds: float) -> None:
        self._now, self._past, self._key, self._seconds = process, past, key, seconds
        self._name = process.pid, process.program

    def _before(self, *name: object) -> Any:
        return self._past.of(*self._key, *name)

    def _rate(self, count: float) -> float:
        return round(count / self._seconds, 1) if self._seconds else 0.0

    def process(self) -> BusyProcess:
        now, rows, totals = self._now, self._now.connections or [], self._now.totals
        before: Process | None = self._before("process")
        engines = [] if totals is None else totals.engines
        earlier = [] if before is None or before.totals is None else before.totals.engines
        done = sum(engine.completions for engine in engines) - sum(each.completions for each in earlier)
        connections = self.connections()
        on_rdma = sum(row.path == "rdma" for row in rows)
        return BusyProcess(
            *self._name,
            now.loop,
            now.state,
            now.text,
            on_rdma,
            len(rows) - on_rdma,
            round(sum(row.sent_per_s for row in connections), 1),
            round(sum(row.received_per_s for row in connections), 1),
            round(sum(row.calls_per_s for row in self.methods()), 1),
            self._rate(max(0, done)) if earlier else 0.0,
            sum(engine.slow_polls for engine in engines),
            max((engine.slowest_poll_ns / 1e3 for engine in engines), default=0.0),
            **({} if totals is None else _of_totals(totals)),
        )

    def connections(self) -> list[BusyConnection]:
        rows = []
        for row in self._now.connections or ():
            before = self._before("connection", row.number)
            rows.append(
                BusyConnection(
                    *self._name,
                    row.number,
                    row.kind,
                    row.local,
                    row.remote,
                    row.mode,
                    self._rate(_more(row, before, "bytes_sent")),
                    self._rate(_more(row, before, "bytes_received")),
                    row.waiting_bytes,
                    _more(row, before, "times_blocked"),
                    row.blocked_s,
                    row.blocked_at,
                    row.reason,
                )
            )
        return rows

    def links(self) -> list[BusyLink]:
        rows = []
        for row in self._now.links or ():
            before = self._before("link", row.device, row.qp_num)
            messages = _more(row, before, "messages_sent") + _more(row, before, "messages_received")
            rows.append(
                BusyLink(
                    *self._name,
                    row.device,
                    row.peer,
                    row.state,
                    row.connections,
                    self._rate(_more(row, before, "bytes_written")),
                    self._rate(messages),
                    _more(row, before, "credit_waits"),
                )
            )
        return rows

    def methods(self) -> list[CalledMethod]:
        rows = []
        for row in self._now.rpc or ():
            if not row.method:  # a connection
                continue
            before = self._before("method", row.side, row.method)
            rows.append(
                CalledMethod(
                    *self._name,
                    row.side,
                    row.method,
                    self._rate(_more(row, before, "calls")),
                    _more(row, before, "errors"),
                    row.errors,
                    row.in_flight,
                    row.traced,
                    row.p50_us,
                    row.p99_us,
                    row.max_us,
                )
            )
        return rows

    def fallbacks(self) -> list[NewFallback]:
        answered = self._before("process") is not None
        rows = []
        for row in self._now.fallbacks or ():
            before = self._before("fallback", row.when, row.mode, row.text)
            # A reason that was not there before is news, unless nothing was.
            new = row.connections if before is None and answered else _more(row, before, "connections")
            name = row.when, row.mode, row.text
            rows.append(NewFallback(*self._name, *name, row.connections, new))
        return rows
