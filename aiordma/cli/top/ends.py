"""Which end of a connection keeps the other waiting, as sentences.

A program that does not read stops its peer, whose program may then not read either, as it waits in a send. So
full rings at both ends say little: the end that has waited for longer is the victim. Where both ends are on
this host they are told apart, else the sentence says what this end knows.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ..tables import bytes_text, seconds_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .processes import Level
    from .rates import BusyConnection, Top

#: Bytes that wait for a program which does not read: less is on its way.
_WAITING_BYTES = 64 * 1024
#: A send that waits for less than that is on its way, too.
_BLOCKED_S = 1.0
#: A ring that was full so often in a second is too small, or is read too slowly.
_OFTEN = 5.0


def of_connections(top: Top) -> Iterator[tuple[Level, str]]:
    """Of all of them."""
    ends = {(row.local, row.remote): row for row in top.connections}
    for row in top.connections:
        peer = ends.get((row.remote, row.local))
        yield from _alone(row, top.seconds) if peer is None else _together(row, peer, top.seconds)
    yield from _on_tcp(top)


def _name(row: BusyConnection) -> str:
    return f"{row.program}[{row.pid}]"


def _where(row: BusyConnection) -> str:
    return f"(connection {row.number}, {row.local} to {row.remote})"


def _waits(row: BusyConnection) -> bool:
    return row.blocked_s >= _BLOCKED_S


def _holds(row: BusyConnection) -> bool:
    return row.waiting_bytes >= _WAITING_BYTES


def _held(row: BusyConnection) -> str:
    return f"{_name(row)} does not read: {bytes_text(row.waiting_bytes)} wait for it"


def _waited(row: BusyConnection) -> str:
    return f"{_name(row)} has waited for {seconds_text(row.blocked_s)}"


def _alone(row: BusyConnection, seconds: float) -> Iterator[tuple[Level, str]]:
    """The peer is elsewhere."""
    where = _where(row)
    if _waits(row):
        meanwhile = (
            f", and {bytes_text(row.waiting_bytes)} for it: of two ends that wait, the later one began it"
        )
        yield "slow", f"{_waited(row)} for {row.remote} to read{meanwhile if _holds(row) else ''} {where}."
    elif _holds(row):
        yield "slow", f"{_held(row)} {where}."
    elif row.blocked and row.blocked >= _OFTEN * seconds:
        yield "slow", _often(row, row.remote, seconds)


def _together(row: BusyConnection, peer: BusyConnection, seconds: float) -> Iterator[tuple[Level, str]]:
    """Both ends are here: the cause is said at its end, and nothing at the other one."""
    if _waits(peer) and not (_waits(row) and row.blocked_at <= peer.blocked_at):
        if row.waiting_bytes:
            also = ", and does not read meanwhile, either" if _waits(row) else ""
            yield "slow", f"{_held(row)}; {_waited(peer)} for that{also} {_where(row)}."
        else:
            yield (
                "bad",
                f"Nothing gets from {_name(row)} to {_name(peer)}: {_waited(peer)} for it to read, and it "
                f"has read all that came {_where(row)}. The link is tried, and given up without an answer.",
            )
    elif _waits(row):
        return
    elif _holds(row):
        yield "slow", f"{_held(row)} {_where(row)}."
    elif row.blocked and row.blocked >= _OFTEN * seconds:
        yield "slow", _often(row, _name(peer), seconds)


def _often(row: BusyConnection, other: str, seconds: float) -> str:
    times = f"its ring was full {row.blocked} times in the last {seconds:.0f} s"
    return f"{other} reads more slowly than {_name(row)} sends: {times} {_where(row)}."


def _on_tcp(top: Top) -> Iterator[tuple[Level, str]]:
    """Those that have left RDMA, and are not back."""
    left = {(row.pid, row.mode) for row in top.fallbacks if row.when == "left" and not row.new}
    found = Counter(
        (_name(row), row.reason) for row in top.connections if row.reason and (row.pid, row.mode) in left
    )
    for (name, reason), count in found.items():
        yield "slow", f"{count} connections of {name} are on TCP since they left RDMA: {reason}."
