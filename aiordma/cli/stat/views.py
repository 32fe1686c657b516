"""The views of ``aiordma stat``: a report as lines of text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from ..tables import Column, bytes_text, clean, moment_text, seconds_text, table
from .leaks import leak_lines
from .order import Arrangement, sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ...admin.report import Process, Report


class Row(NamedTuple):
    """A row of one process."""

    process: Process
    it: Any


Rates = dict[tuple[int, int], tuple[float, float]]
"""By process id and number of a connection: bytes a second that it sends and receives."""


class How(NamedTuple):
    """What the command line asks of all views."""

    details: bool
    rates: Rates | None
    order: Arrangement


def lines(
    report: Report,
    views: tuple[str, ...],
    *,
    details: bool = False,
    rates: Rates | None = None,
    order: Arrangement | None = None,
) -> list[str]:
    """All views that were asked for, with titles if there are several."""
    found: list[str] = []
    how = How(details, rates, order or Arrangement())
    for view in views:
        part = list(_VIEWS[view](report, how))
        if len(views) > 1:
            found += [*([""] if found else []), view.upper()]
        found += part
    for process in report.processes:
        if process.state != "answered":
            found.append(f"{_program(process)}: {process.state.upper()}: {clean(process.text)}")
    for gone in report.killed or ():
        name = clean(f"{gone.program}[{gone.pid}]")
        had = f"it had {gone.open_connections} connections"
        found.append(f"{name}: KILLED, or crashed, at {moment_text(gone.last_at)}: {had}")
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
    Column("FOR", lambda row: seconds_text(row.it.blocked_s) if row.it.blocked_s else "", True),
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


_SUMS = [
    Column("CONNS", lambda each: each.connections, True),
    Column("RDMA", lambda each: each.on_rdma, True),
    Column("TCP", lambda each: each.connections - each.on_rdma, True),
    Column("SENT", lambda each: bytes_text(each.bytes_sent), True),
    Column("RECEIVED", lambda each: bytes_text(each.bytes_received), True),
    Column("WAITING", lambda each: bytes_text(each.waiting_bytes), True),
    Column("BLOCKED", lambda each: each.times_blocked, True),
]


def _connections(report: Report, how: How) -> Iterator[str]:
    everything = how.order.rows(report)
    rows = [Row(*each) for each in everything[: how.order.limit]]
    columns = list(_CONNECTIONS)
    if how.rates is not None:
        columns += [_rate("OUT/S", how.rates, 0), _rate("IN/S", how.rates, 1)]
    if how.details:
        columns += _DETAILS
    if how.order.sum_by is not None:
        found = sums(everything, how.order.sum_by)
        yield from table([Column(how.order.sum_by.upper(), lambda each: each.what), *_SUMS], found)
    else:
        yield from table(columns, rows)
        if len(rows) < len(everything):
            yield f"and {len(everything) - len(rows)} more (--limit)"
    reasons: dict[str, str] = {}
    for _, it in everything:
        if it.reason:
            reasons.setdefault(it.mode, it.reason)
    yield from (f"{mode}: {clean(text)}" for mode, text in sorted(reasons.items()))
    on_rdma = sum(it.path == "rdma" for _, it in everything)
    sent, received = (
        bytes_text(sum(getattr(it, f"bytes_{name}") for _, it in everything)) for name in ("sent", "received")
    )
    counts = f"{len(everything)} connections, {on_rdma} on RDMA, {len(everything) - on_rdma} on TCP"
    yield f"{counts}; {sent} bytes sent, {received} received"


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
    Column("AGE", lambda row: seconds_text(row.it.age_s) if row.it.age_s else "", True),
]
_LISTENERS = [
    _PROGRAM,
    _field("KIND", "kind"),
    Column("ADDRESS", lambda row: ", ".join(row.it.addresses)),
    _field("ACCEPTED", "accepted", right=True),
    Column("RDMA", lambda row: _known(row.it.rdma), True),
    Column("TCP", lambda row: _known(row.it.tcp), True),
    Column("FAILED", lambda row: _known(row.it.failed), True),
    _field("NEGOTIATING", "negotiating", right=True),
    _field("WAITING", "waiting", right=True),
    Column("AGE", lambda row: seconds_text(row.it.age_s), True),
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
    Column("FIRST", lambda row: moment_text(row.it.first_at)),
    Column("LAST", lambda row: moment_text(row.it.last_at)),
    _field("REASON", "text"),
]
_EVENTS = [
    Column("LAST", lambda row: moment_text(row.it.last_at)),
    Column("FIRST", lambda row: moment_text(row.it.first_at) if row.it.count > 1 else ""),
    Column("TIMES", lambda row: row.it.count if row.it.count > 1 else "", True),
    _PROGRAM,
    _field("EVENT", "kind"),
    _field("WHAT", "text"),
]
_PROGRAMS = [
    Column("PROGRAM", lambda each: f"{each.program}[{each.pid}]"),
    Column("HAS-OPEN", lambda each: ", ".join(each.devices)),
    Column("BY-AIORDMA", lambda each: "yes" if each.uses_aiordma else "no"),
]


def _known(count: int | None) -> object:
    return "" if count is None else count


def _micros(it: Any, value: float) -> str:
    return f"{value:.0f}us" if it.traced else ""


def _plain(view: str, columns: list[Column]) -> Callable[[Report, How], Iterator[str]]:
    def show(report: Report, how: How) -> Iterator[str]:
        yield from table(columns, _rows(report, view))

    return show


def _devices(report: Report, how: How) -> Iterator[str]:
    yield from table(_DEVICES, _rows(report, "devices"))
    if report.programs:
        yield ""
        yield from table(_PROGRAMS, report.programs)


def _events(report: Report, how: How) -> Iterator[str]:
    # All loops of a process have the same.
    seen = {process.pid: process for process in reversed(report.processes) if process.events is not None}
    rows = [Row(process, it) for process in seen.values() for it in process.events or ()]
    rows.sort(key=lambda row: float(row.it.last_at))
    yield from table(_EVENTS, rows)


def _memory(report: Report, how: How) -> Iterator[str]:
    yield from table(_MEMORY, _rows(report, "memory"))
    held = _rows(report, "holders")
    if held:
        yield ""
        held.sort(key=lambda row: (row.process.pid, -row.it.registered_bytes))
        yield from table(_HOLDERS, held)


def _links(report: Report, how: How) -> Iterator[str]:
    yield from table([*_LINKS, *(_LINK_DETAILS if how.details else ())], _rows(report, "links"))


def _totals(report: Report, how: How) -> Iterator[str]:
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
                f"({engine.empty_polls} found nothing), {engine.events} events, "
                f"{engine.busy_polls} busy polls ({engine.busy_poll_hits} paid off), "
                f"{engine.slow_polls} slow polls"
            )
        yield f"  {totals.slow_requests} slow calls, {totals.slow_handlers} slow handlers"
        if found := ", ".join(f"{count} {clean(kind)}" for kind, count in totals.leaks.items() if count):
            yield f"  leaks (--leaks): {found}"


_VIEWS: dict[str, Callable[[Report, How], Iterator[str]]] = {
    "connections": _connections,
    "listeners": _plain("listeners", _LISTENERS),
    "links": _links,
    "devices": _devices,
    "memory": _memory,
    "rpc": _plain("rpc", _RPC),
    "fallbacks": _plain("fallbacks", _FALLBACKS),
    "events": _events,
    "leaks": lambda report, how: leak_lines(report),
    "totals": _totals,
}
