"""The order of connections in ``aiordma stat``, how many are shown, and what they come to together."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...admin.messages import Connection
    from ...admin.report import Process, Report

_Key = Callable[["Process", "Connection"], Any]

#: What rows can be ordered by: the largest first.
SORTS: dict[str, _Key] = {
    "sent": lambda process, row: row.bytes_sent,
    "received": lambda process, row: row.bytes_received,
    "bytes": lambda process, row: row.bytes_sent + row.bytes_received,
    "age": lambda process, row: row.age_s,
    "idle": lambda process, row: row.idle_s,
    "waiting": lambda process, row: row.waiting_bytes,
    "blocked": lambda process, row: row.times_blocked,
    "rtt": lambda process, row: row.rtt_us,
    "retransmits": lambda process, row: row.retransmits,
}
#: What can be summed up by.
BY: dict[str, Callable[[Process, Connection], str]] = {
    "program": lambda process, row: f"{process.program}[{process.pid}]",
    "peer": lambda process, row: row.remote.rpartition(":")[0],
    "local": lambda process, row: row.local if row.side == "server" else row.local.rpartition(":")[0],
    "mode": lambda process, row: row.mode,
    "state": lambda process, row: row.state,
    "kind": lambda process, row: f"{row.kind} {row.side}",
}


class Sum(NamedTuple):
    """Connections that have something in common."""

    what: str
    connections: int
    on_rdma: int
    bytes_sent: int
    bytes_received: int
    waiting_bytes: int
    times_blocked: int


def sums(rows: Iterable[tuple[Process, Connection]], by: str) -> list[Sum]:
    """One for each value of ``by``, the largest first."""
    found: dict[str, list[int]] = {}
    for process, row in rows:
        each = found.setdefault(BY[by](process, row), [0] * 6)
        more = (
            1,
            row.path == "rdma",
            row.bytes_sent,
            row.bytes_received,
            row.waiting_bytes,
            row.times_blocked,
        )
        each[:] = [one + other for one, other in zip(each, more, strict=True)]
    return sorted(
        (Sum(what, *counts) for what, counts in found.items()), key=lambda each: (-each[1], each[0])
    )


class Arrangement(NamedTuple):
    """As the command line has it."""

    #: of :data:`SORTS`; None: as they began
    sort: str | None = None
    #: so many rows; None: all
    limit: int | None = None
    #: of :data:`BY`; None: each for itself
    sum_by: str | None = None

    def rows(self, report: Report) -> list[tuple[Process, Connection]]:
        """All connections, in order."""
        rows = [(process, row) for process in report.processes for row in process.connections or ()]
        if self.sort is not None:
            key = SORTS[self.sort]
            rows.sort(key=lambda each: key(*each), reverse=True)
        return rows

    def cut(self, report: Report) -> None:
        """Leave in the report what is shown, in each process in order: for scripts."""
        if self.sort is None and self.limit is None:
            return
        kept: dict[int, list[Connection]] = {}
        for process, row in self.rows(report)[: self.limit]:
            kept.setdefault(id(process), []).append(row)
        for process in report.processes:
            if process.connections is not None:
                process.connections = kept.get(id(process), [])
