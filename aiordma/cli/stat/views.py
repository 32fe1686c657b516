"""The views of ``aiordma stat``: a report as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..tables import Column, bytes_text, clean, seconds_text, table
from .leaks import leak_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...admin.messages import Connection
    from ...admin.report import Process, Report

__all__ = ["Rates", "lines"]


class Row(NamedTuple):
    """A row of one process."""

    process: Process
    it: Any


Rates = dict[tuple[int, int], tuple[float, float]]
"""By process id and number of a connection: bytes a second that it sends and receives."""


def lines(
    report: Report, views: tuple[str, ...], *, details: bool = False, rates: Rates | None = None
) -> list[str]:
    """All views that were asked for, with titles if there are several."""
    found: list[str] = []
    for view in views:
        part = list(_VIEWS[view](report, details, rates))
        if len(views) > 1:
            found += [*([""] if found else []), view.upper()]
        found += part
    for process in report.processes:
        if process.state != "answered":
            found.append(f"{_program(process)}: {process.state.upper()}: {clean(process.text)}")
    return found


def _program(process: Process) -> str:
    return clean(f"{process.program}[{process.pid}]")


_PROGRAM = Column("PROGRAM", lambda row: _program(row.process))


def _field(title: str, name: str, *, right: bool = False) -> Column:
    return Column(title, lambda row: getattr(row.it, name), right)


def _bytes(title: str, name: str) -> Column:
    return Column(title, lambda row: bytes_text(getattr(row.it, name)), True)


def _rows(report: Report, view: str) -> list[Row]:
    return [Row(process, it) for process in report.processes for it in getattr(process, view) or ()]


_CONNECTIONS = [
    _PROGRAM,
    _field("NO", "number", right=True),
    _field("KIND", "kind"),
    _field("SIDE", "side"),
    _field("STATE", "state"),
    _field("LOCAL", "local"),
    _field("REMOTE", "remote"),
    _field("MODE", "mode"),
    _bytes("SENT", "bytes_sent"),
    _bytes("RECEIVED", "bytes_received"),
    Column("AGE", lambda row: seconds_text(row.it.age_s), True),
    Column("IDLE", lambda row: seconds_text(row.it.idle_s), True),
]
_DETAILS = [
    _bytes("RING", "ring_bytes"),
    _bytes("PEERRING", "peer_ring_bytes"),
    _bytes("WAITING", "waiting_bytes"),
    _field("BLOCKED", "times_blocked", right=True),
    _field("RXPROD", "rx_produced"),
    _field("RXCONS", "rx_consumed"),
    _field("TXPROD", "tx_produced"),
    _field("TXCONS", "tx_consumed"),
    Column("FLAGS", lambda row: f"{row.it.local_flags:02x}/{row.it.peer_flags:02x}"),
    Column("TOKEN", lambda row: f"{row.it.token:08x}"),
    _field("QP", "qp_num", right=True),
    Column("RTT", lambda row: f"{row.it.rtt_us}us" if row.it.rtt_us else "", True),
    _field("RETRANS", "retransmits", right=True),
]


def _connections(report: Report, details: bool, rates: Rates | None) -> Iterator[str]:
    rows = _rows(report, "connections")
    columns = list(_CONNECTIONS)
    if rates is not None:
        columns += [_rate("OUT/S", rates, 0), _rate("IN/S", rates, 1)]
    if details:
        columns += _DETAILS
    yield from table(columns, rows)
    reasons: dict[str, str] = {}
    for row in rows:
        it: Connection = row.it
        if it.reason:
            reasons.setdefault(it.mode, it.reason)
    yield from (f"{mode}: {clean(text)}" for mode, text in sorted(reasons.items()))
    on_rdma = sum(row.it.path == "rdma" for row in rows)
    yield f"{len(rows)} connections, {on_rdma} on RDMA, {len(rows) - on_rdma} on TCP"


def _rate(title: str, rates: Rates, direction: int) -> Column:
    def text(row: Row) -> str:
        found = rates.get((row.process.pid, row.it.number))
        return "" if found is None else bytes_text(found[direction])

    return Column(title, text, True)


_LINKS = [
    _PROGRAM,
    _field("DEVICE", "device"),
    _field("SIDE", "side"),
    _field("STATE", "state"),
    _field("PEER", "peer"),
    _field("CONNS", "connections", right=True),
    _field("QP", "qp_num", right=True),
    _field("PEERQP", "peer_qp_num", right=True),
    _field("CLASS", "traffic_class", right=True),
    _field("WINDOW", "window", right=True),
    _field("WAITS", "credit_waits", right=True),
    _field("MSGS-OUT", "messages_sent", right=True),
    _field("MSGS-IN", "messages_received", right=True),
    _bytes("WRITTEN", "bytes_written"),
    _field("KEEPALIVES", "keepalives", right=True),
    _field("TICKETS", "tickets", right=True),
    _bytes("MEMORY", "registered_bytes"),
]
_LINK_DETAILS = [
    _field("GID", "gid"),
    _field("MTU", "mtu", right=True),
    _field("NOPS-OUT", "nops_sent", right=True),
    _field("NOPS-IN", "nops_received", right=True),
    _field("MOVED-HERE", "moved_here", right=True),
    _field("ACK-MS", "ack_timeout_ms", right=True),
    _field("RETRIES", "retries", right=True),
    _field("RNR-RETRIES", "rnr_retries", right=True),
    _bytes("TICKET-RINGS", "ticket_ring_bytes"),
]
_DEVICES = [
    _PROGRAM,
    _field("DEVICE", "device"),
    _field("KIND", "kind"),
    _field("STATE", "state"),
    _field("PORT", "port", right=True),
    _field("MTU", "mtu", right=True),
    _field("GID", "gid"),
    _field("LINKS", "links", right=True),
    Column("RETRY", lambda row: seconds_text(row.it.retry_in_s) if row.it.retry_in_s else "", True),
    _field("WHY", "why"),
]
_MEMORY = [
    _PROGRAM,
    _field("DEVICE", "device"),
    _bytes("REGISTERED", "registered_bytes"),
    _bytes("MOST", "registered_high_water"),
    _bytes("USED", "used_bytes"),
    _bytes("MOST", "used_high_water"),
    _bytes("LIMIT", "limit_bytes"),
    _field("SLABS", "slabs", right=True),
    _field("ALLOCS", "allocations", right=True),
    _field("REUSED", "reuses", right=True),
    _field("SMALLER", "downgrades", right=True),
    _field("FAILED", "failures", right=True),
    _field("QPS", "parked_qps", right=True),
]
_HOLDERS = [
    _PROGRAM,
    _field("DEVICE", "device"),
    _field("HELD-AS", "kind"),
    _field("PEER", "peer"),
    _bytes("REGISTERED", "registered_bytes"),
    _bytes("USED", "used_bytes"),
    Column("DESCRIPTORS", lambda row: row.it.descriptors if row.it.kind == "region" else "", True),
    Column("OPENED", lambda row: row.it.openings if row.it.kind == "region" else "", True),
]
_RPC = [
    _PROGRAM,
    _field("SIDE", "side"),
    _field("PEER", "peer"),
    _field("METHOD", "method"),
    _field("IN-FLIGHT", "in_flight", right=True),
    _field("CALLS", "calls", right=True),
    _field("ERRORS", "errors", right=True),
    _field("TIMED", "traced", right=True),
    Column("P50", lambda row: _micros(row.it, row.it.p50_us), True),
    Column("P99", lambda row: _micros(row.it, row.it.p99_us), True),
    Column("MAX", lambda row: _micros(row.it, row.it.max_us), True),
]
_FALLBACKS = [
    _PROGRAM,
    _field("CONNS", "connections", right=True),
    _field("WHEN", "when"),
    _field("MODE", "mode"),
    _field("REASON", "text"),
]


def _micros(it: Any, value: float) -> str:
    return f"{value:.0f}us" if it.traced else ""


def _plain(view: str, columns: list[Column]) -> Callable[[Report, bool, Rates | None], Iterator[str]]:
    def show(report: Report, details: bool, rates: Rates | None) -> Iterator[str]:
        yield from table(columns, _rows(report, view))

    return show


def _memory(report: Report, details: bool, rates: Rates | None) -> Iterator[str]:
    yield from table(_MEMORY, _rows(report, "memory"))
    held = _rows(report, "holders")
    if held:
        yield ""
        held.sort(key=lambda row: (row.process.pid, -row.it.registered_bytes))
        yield from table(_HOLDERS, held)


def _links(report: Report, details: bool, rates: Rates | None) -> Iterator[str]:
    yield from table([*_LINKS, *(_LINK_DETAILS if details else ())], _rows(report, "links"))


def _totals(report: Report, details: bool, rates: Rates | None) -> Iterator[str]:
    for process in report.processes:
        totals = process.totals
        if totals is None:
            continue
        counted = "since the baseline" if process.since is not None else "since it began"
        yield f"{_program(process)}: {totals.open} connections open, {totals.links} links; {counted}:"
        made = sum(totals.connections.values())
        rdma = sum(count for name, count in totals.connections.items() if name.endswith("/rdma"))
        yield f"  {made} connections made, {rdma} on RDMA"
        for name, count in sorted(totals.connections.items()):
            yield f"    {count:>9}  {clean(name)}"
        yield f"  {totals.fell_back} began on TCP (--fallbacks: why), {totals.left_rdma} left RDMA later"
        for engine in totals.engines:
            yield (
                f"  {clean(engine.device)}: {engine.completions} completions, {engine.polls} polls "
                f"({engine.empty_polls} found nothing), {engine.events} events, {engine.spins} busy polls "
                f"({engine.spin_hits} paid off), {engine.slow_polls} slow polls"
            )
        yield f"  {totals.slow_requests} slow calls, {totals.slow_handlers} slow handlers"
        if found := ", ".join(f"{count} {clean(kind)}" for kind, count in totals.leaks.items() if count):
            yield f"  leaks (--leaks): {found}"


_VIEWS: dict[str, Callable[[Report, bool, Rates | None], Iterator[str]]] = {
    "connections": _connections,
    "links": _links,
    "devices": _plain("devices", _DEVICES),
    "memory": _memory,
    "rpc": _plain("rpc", _RPC),
    "fallbacks": _plain("fallbacks", _FALLBACKS),
    "leaks": lambda report, details, rates: leak_lines(report),
    "totals": _totals,
}
