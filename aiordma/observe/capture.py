"""The last messages of all links and negotiations of the process, kept in memory on request.

A capture is bounded: the oldest messages go. Without ``payload`` it has headers and control messages (CLC,
LLC, CDC) only. What it costs while none runs is one branch for each message of a negotiation, and on links
that of the fault rules, by which messages are seen (``faults.listen_in``). The packets are made by
:mod:`aiordma.proto.packets`.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

from ..proto.filter import Direction, Op
from ..proto.packets import (
    READ_REQUEST,
    SEND_ONLY,
    WRITE_ONLY,
    Packet,
    ip_bytes,
    roce_packet,
    tcp_packet,
    without_keys,
)

if TYPE_CHECKING:
    from ..addresses import Address

#: What is kept unless something else is asked for, and at most.
KEPT_BYTES, MOST_BYTES = 1 << 20, 64 << 20
#: Of the bytes of one message, with payload.
_MESSAGE_BYTES = 32 * 1024
#: The longest header of a message of a channel; control messages have 44 bytes.
_HEAD_BYTES = 64
#: Of the messages of channels: the header, and that of an announcement (type 0xC2).
_CHANNEL_HEAD, _ANNOUNCE, _ANNOUNCE_HEAD = 12, 0xC2, 28
#: A packet costs more than its bytes.
_PACKET_COST = 160
#: Of a CLC message: up to its length field, and the longest one.
_CLC_HEADER, _CLC_MOST = 8, 4096
#: Connections that are followed at a time.
_MOST_WAYS = 4096
_LOOPBACK = (ip_bytes("127.0.0.1"), ip_bytes("::1"))
_OPCODES = {Op.WRITE: WRITE_ONLY, Op.KEEPALIVE: WRITE_ONLY, Op.READ: READ_REQUEST}


class Capture:
    """One capture. Any thread adds to it.

    :param kept_bytes: of memory, about.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES, *, payload: bool = False) -> None:
        self.kept_bytes, self.payload = kept_bytes, payload
        #: how many were seen
        self.seen = 0
        self._lock = threading.Lock()
        self._packets: deque[Packet] = deque()
        self._bytes = 0
        self._psns: Counter[tuple[int, bool]] = Counter()
        self._tcp: Counter[tuple[Address, Address]] = Counter()
        #: messages of negotiations that have come in part: keys are found in whole ones only
        self._begun: dict[tuple[Address, Address], bytes] = {}

    @property
    def message_bytes(self) -> int:
        """How much of each message it wants to see."""
        return _MESSAGE_BYTES if self.payload else _HEAD_BYTES

    @property
    def told(self) -> str:
        """How many messages were seen, and how many of them are gone, for people."""
        with self._lock:
            gone = self.seen - len(self._packets)
        if not gone:
            return f"{self.seen} messages were seen"
        return (
            f"{self.seen} messages were seen: the first {gone} of them did not fit into {self.kept_bytes} "
            "bytes and are missing (`aiordma adm capture --keep` has more)"
        )

    def packets(self) -> list[Packet]:
        """What is kept, oldest first."""
        with self._lock:
            return list(self._packets)

    def _add(self, outbound: bool, data: bytes, length: int) -> None:
        """With the lock."""
        self.seen += 1
        self._packets.append(Packet(time.time_ns(), outbound, length, data))
        self._bytes += len(data) + _PACKET_COST
        while self._bytes > self.kept_bytes and self._packets:
            self._bytes -= len(self._packets.popleft().data) + _PACKET_COST

    def on_link(
        self,
        link: Any,
        direction: Direction,
        op: Op,
        data: bytes,
        size: int,
        imm: int | None,
        remote_addr: int,
    ) -> None:
        """A message of a link: a ``faults.Tap``."""
        outbound = direction is Direction.OUT
        data = self._shown(op, data)
        own = link.engine.backend.gid.raw
        peer = ip_bytes(link.peer.rpartition(":")[0])
        if peer in _LOOPBACK:
            peer = own
        qp = link.peer_qpn if outbound else link.qp_num
        with self._lock:
            # What a link sends and what it receives are two sequences, as at each end of the wire.
            psn = self._psns[link.qp_num, outbound]
            self._psns[link.qp_num, outbound] += 1
            packet, length = roce_packet(
                (own, peer) if outbound else (peer, own),
                opcode=_OPCODES.get(op, SEND_ONLY),
                qp=qp,
                psn=psn,
                data=data,
                size=size,
                imm=None if op in _OPCODES else imm,
                remote_addr=remote_addr,
            )
            self._add(outbound, packet, length)

    def _shown(self, op: Op, data: bytes) -> bytes:
        if op is Op.LLC:
            return without_keys(data)
        if self.payload or op is Op.CDC:
            return data
        if op is Op.MESSAGE:
            return data[: _ANNOUNCE_HEAD if data[:1] == bytes([_ANNOUNCE]) else _CHANNEL_HEAD]
        return b""

    def on_clc(self, local: Address, remote: Address, data: bytes, *, outbound: bool) -> None:
        """A message of a negotiation, whole or in parts."""
        ends, way = (ip_bytes(local[0]), ip_bytes(remote[0])), (local, remote)
        if not outbound:
            ends, way = ends[::-1], way[::-1]
        with self._lock:
            data = self._begun.pop(way, b"") + data
            if len(self._tcp) > _MOST_WAYS or len(self._begun) > _MOST_WAYS:
                self._tcp.clear()
                self._begun.clear()
            if len(data) < _CLC_HEADER or len(data) < int.from_bytes(data[5:7]) <= _CLC_MOST:
                self._begun[way] = data
                return
            at = self._tcp[way], self._tcp[way[::-1]]
            self._tcp[way] += len(data)
            packet = tcp_packet(ends, (way[0][1], way[1][1]), at, without_keys(data))
            self._add(outbound, packet, len(packet))


_running: Capture | None = None


def running() -> Capture | None:
    """The capture that runs now."""
    return _running


def start(kept_bytes: int = KEPT_BYTES, *, payload: bool = False) -> Capture:
    """Begin a new one in place of any other. The caller shows it the links (``faults.listen_in``).

    :raises ValueError: ``kept_bytes`` is not from 4096 to 64 MiB.
    """
    global _running
    if not 4096 <= kept_bytes <= MOST_BYTES:
        raise ValueError(f"a capture keeps from 4096 to {MOST_BYTES} bytes, not {kept_bytes}")
    _running = Capture(kept_bytes, payload=payload)
    return _running


def stop() -> Capture | None:
    """End it; what it has kept can still be read from it."""
    global _running
    ended, _running = _running, None
    return ended


def on_clc(local: Address, remote: Address, data: bytes, *, outbound: bool) -> None:
    """A message of a negotiation."""
    if _running is not None:
        _running.on_clc(local, remote, data, outbound=outbound)
