"""What is to be known of one connection, as a row."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from ..addresses import show
from ..proto.cdc import StateFlag
from ..proto.clc import Kind
from .messages import Connection

if TYPE_CHECKING:
    from ..errors import FallbackReason
    from ..observe.connections import Entry

KINDS: dict[int, str] = {Kind.STREAM: "stream", Kind.DATAGRAMS: "datagrams", Kind.CALLS: "calls"}

#: The part of the kernel's ``struct tcp_info`` that is used: state, milliseconds since data went and came,
#: round-trip time, retransmissions, bytes that were acknowledged, that came, and that were not sent yet.
_TCP_INFO = struct.Struct("=B43xI4xI12xI28xI16xQQ8xI")
#: Bytes that can be read from a socket.
_SIOCINQ, _INT = 0x541B, struct.Struct("=i")
#: States of the kernel's TCP (its header tcp_states.h), where they tell more than "active".
_TCP_STATES = {4: "eof sent", 5: "eof sent", 8: "eof received", 7: "broken"}
_TCP_CLOSING = {6, 9, 11}
#: As plain numbers: the operators of enumerations were a quarter of the time of a row.
_CLOSED, _SENDING_DONE = int(StateFlag.CLOSED), int(StateFlag.SENDING_DONE)


class _Tcp(NamedTuple):
    state: int
    sent_ms: int
    received_ms: int
    rtt_us: int
    retransmits: int
    acked: int
    received: int
    unsent: int


class Moment(NamedTuple):
    """Now, by the loop's clock, and the second in which its engines last looked at that clock. What they have
    moved since then is dated with that second."""

    now: float
    second: int


def _tcp_info(sock: socket.socket) -> _Tcp | None:
    """None: it is no TCP connection, or closed."""
    try:
        data = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        return _Tcp(*_TCP_INFO.unpack(data))
    except (OSError, struct.error):
        return None


def mode_of(local: int, peer: int | None) -> str:
    """Both reason codes, as ``smcss`` shows them."""
    return f"TCP 0x{local:08x}" + ("" if peer is None else f"/0x{peer:08x}")


def describe_connection(entry: Entry, now: float, loop_now: Moment) -> Connection | None:
    """:param now: ``time.monotonic()``.
    :param loop_now: the same moment by the loop's clock.
    :return: None: it is over.
    """
    sock, pipe = entry.sock, entry.pipe
    if sock is None:
        return None
    row = Connection(
        number=entry.number,
        kind=KINDS.get(entry.kind, str(entry.kind)),
        side=entry.side,
        state="active",
        local=show(entry.local),
        remote=show(entry.remote),
        path="tcp",
        mode="TCP",
        reason="",
        age_s=round(now - entry.since, 3),
        idle_s=0.0,
        bytes_sent=0,
        bytes_received=0,
    )
    if pipe is None:
        _on_tcp(row, sock, entry.fallback)
        return row
    if pipe.path == "tcp":
        _on_tcp(row, sock, pipe.fallback_reason)
    else:
        row.path, row.mode = "rdma", "SMC-R" if entry.smc_peer is not None else "RDMA"
    counts = pipe.statistics()
    row.bytes_sent, row.bytes_received = counts.bytes_sent, counts.bytes_received
    row.times_blocked = counts.times_blocked
    if row.path == "rdma":
        (_on_channel if entry.kind == Kind.CALLS else _on_rings)(row, pipe, counts, loop_now)
    if pipe.error is not None:
        row.state, row.reason = "broken", row.reason or str(pipe.error)
    return row


def describe_valkey(connection: Any, now: float) -> Connection | None:
    """A row for a ``valkey.connection.Connection``, which has no TCP connection.

    :param now: ``time.monotonic()``.
    :return: None: it is not connected yet.
    """
    seen, pipe = connection.seen, connection.pipe
    if seen is None:
        return None
    counts = pipe.statistics()
    state = "broken" if pipe.error is not None else "closing" if pipe.is_closed else "active"
    return Connection(
        number=seen.number,
        kind="valkey",
        side="client",
        state="eof received" if state == "active" and pipe.at_eof else state,
        local=show(seen.local),
        remote=show(seen.remote),
        path="rdma",
        mode="RDMA",
        reason="" if pipe.error is None else str(pipe.error),
        age_s=round(now - seen.since, 3),
        idle_s=round(max(0.0, min(now - seen.since, now - connection.active_at())), 3),
        bytes_sent=counts.bytes_sent,
        bytes_received=counts.bytes_received,
        ring_bytes=counts.ring_bytes,
        peer_ring_bytes=counts.peer_ring_bytes,
        waiting_bytes=pipe.readable,
        times_blocked=counts.times_blocked,
        qp_num=pipe.qp_num,
    )


def _on_tcp(row: Connection, sock: socket.socket, reason: FallbackReason | None) -> None:
    if reason is not None:
        row.mode, row.reason = mode_of(reason.local, reason.peer), reason.text
    info = _tcp_info(sock)
    if info is None:
        return
    row.state = "closing" if info.state in _TCP_CLOSING else _TCP_STATES.get(info.state, "active")
    row.idle_s = min(row.age_s, min(info.sent_ms, info.received_ms) / 1000)
    # The kernel counts a client's SYN as a byte that was acknowledged.
    row.bytes_sent = max(0, info.acked - (row.side == "client"))
    row.bytes_received = info.received
    row.rtt_us, row.retransmits = info.rtt_us, info.retransmits
    row.waiting_bytes = _unread(sock)
    # What the window of the peer's kernel has no room for has waited since it last had some.
    _wait(row, min(row.age_s, info.sent_ms / 1000) if info.unsent else 0.0)


def _unread(sock: socket.socket) -> int:
    with contextlib.suppress(OSError):
        return int(_INT.unpack(fcntl.ioctl(sock, _SIOCINQ, bytes(_INT.size)))[0])
    return 0


def _idle(row: Connection, active_at: int, loop_now: Moment) -> float:
    """At least so long: bytes are dated by a whole second, the one in which the engine last looked before."""
    if not active_at:
        return row.age_s
    if active_at >= loop_now.second:
        return 0.0
    return round(min(row.age_s, max(0.0, loop_now.now - active_at - 1)), 3)


def _on_channel(row: Connection, channel: Any, counts: Any, loop_now: Moment) -> None:
    row.idle_s = _idle(row, channel.active_at, loop_now)
    row.token, row.qp_num = channel.token, channel.qp_num
    _wait(row, channel.blocked_ns / 1e9)
    if channel.is_closed:
        row.state = "closing"
    elif channel.peer_gone:
        row.state = "eof received"


def _on_rings(row: Connection, pipe: Any, counts: Any, loop_now: Moment) -> None:
    ring = pipe.ring
    row.ring_bytes, row.peer_ring_bytes = counts.ring_bytes, counts.peer_ring_bytes
    row.token, row.peer_token, row.qp_num = ring.token, ring.peer_token, ring.qp_num
    row.waiting_bytes = ring.readable
    _wait(row, ring.blocked_ns / 1e9)
    position = ring.position
    if position is None:
        return
    row.idle_s = _idle(row, position.active_at, loop_now)
    row.rx_produced, row.rx_consumed = _cursor(position.rx_produced), _cursor(position.rx_consumed)
    row.tx_produced, row.tx_consumed = _cursor(position.tx_produced), _cursor(position.tx_consumed)
    row.local_flags, row.peer_flags = position.local_flags, position.peer_flags
    if position.local_flags & _CLOSED or ring.is_closed:
        row.state = "closing"
    elif ring.owner is not None and ring.owner.exchange is not None:
        row.state = "leaving"
    elif position.local_flags & _SENDING_DONE:
        row.state = "eof sent"
    elif position.peer_flags & (_SENDING_DONE | _CLOSED):
        row.state = "eof received"


def _wait(row: Connection, seconds: float) -> None:
    if seconds:
        row.blocked_s, row.blocked_at = round(seconds, 3), round(time.time() - seconds, 6)


def _cursor(position: tuple[int, int]) -> str:
    wrap, count = position
    return f"{wrap:04x}:{count:08x}"
