"""Messages of the datagram resolver: from host and port to GID, QP number and queue key.

A datagram endpoint has a UDP port, and listens on the TCP port of the same number for peers that want to
reach its queue pair instead. In one resolution, A resolves B:

1. A to B, TCP: ``Hello`` with A's queue pair and a nonce.
2. B to A, TCP: ``Welcome`` with B's queue pair, A's nonce and one of B's own; or a refusal with a code.
3. A to B, from A's queue pair: B's nonce. A to B, from A's UDP port: B's nonce again.
4. B to A, from B's queue pair: A's nonce. A repeats step 3 until it arrives or the time limit passes.

This proves to B that the client of the TCP connection also sends from that queue pair and that UDP port (the
nonce went over TCP only, and the devices report the source of datagrams). It proves to A that datagrams
arrive in both directions and that B's queue pair belongs to the program that answered at B's address. Claims
in a payload are never trusted.
The TCP connection stays open: when it ends, the peer is gone and its queue pair is forgotten. The byte
``MOVED`` on it, from either end and at any time after step 2, means: the queue pair of its sender exists no
more, for its device has failed, and asking again may lead to another one.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from typing import ClassVar

from .codes import Code
from .errors import RemoteProtocolError

NONCE_BYTES = 16
#: Type of a resolver datagram (high bits of its immediate data): steps 3 and 4.
PROVE, PROVED = 2, 3
#: On the TCP connection: ask again.
MOVED = b"M"

_MAGIC = b"aioudp\x00\x01"
_UDP_MAGIC = b"aioudp\x00p"
_WHERE = struct.Struct(">16sHIIHxx16s")  # gid lid qpn qkey mtu host_id
_HELLO = struct.Struct(">8sB7x16s")  # magic type nonce
_WELCOME = struct.Struct(">8sB3xI16s16s")  # magic type code your_nonce nonce
_TYPE_HELLO, _TYPE_WELCOME = 1, 2
_MTUS = (256, 512, 1024, 2048, 4096)


@dataclass(frozen=True, slots=True)
class QueuePairAddress:
    """The address of a UD queue pair, as a sender needs it."""

    gid: bytes
    lid: int
    qpn: int
    qkey: int
    mtu: int
    """Largest datagram, bytes."""
    host_id: bytes
    """As in ``clc.Proposal.host_id``: decides whether the software device can reach it."""

    def encode(self) -> bytes:
        return _WHERE.pack(self.gid, self.lid, self.qpn, self.qkey, self.mtu, self.host_id)

    @classmethod
    def decode(cls, data: bytes) -> QueuePairAddress:
        """:raises RemoteProtocolError: a number is out of range for a queue pair."""
        gid, lid, qpn, qkey, mtu, host_id = _WHERE.unpack(data)
        if not 1 < qpn < 1 << 24:
            raise RemoteProtocolError(f"resolver: queue pair number {qpn:#x} (2 to 0xffffff)")
        if mtu not in _MTUS:
            raise RemoteProtocolError(f"resolver: an MTU of {mtu} bytes")
        if qkey >= 1 << 31:
            raise RemoteProtocolError(f"resolver: queue key {qkey:#x} with its highest bit set")
        if not any(gid):
            raise RemoteProtocolError("resolver: a GID of zeros")
        return cls(gid, lid, qpn, qkey, mtu, host_id)


@dataclass(frozen=True, slots=True)
class Hello:
    """Step 1."""

    SIZE: ClassVar[int] = _HELLO.size + _WHERE.size

    nonce: bytes
    where: QueuePairAddress

    def encode(self) -> bytes:
        return _HELLO.pack(_MAGIC, _TYPE_HELLO, self.nonce) + self.where.encode()

    @classmethod
    def decode(cls, data: bytes) -> Hello:
        """:raises RemoteProtocolError: malformed."""
        _check(data, cls.SIZE, _TYPE_HELLO)
        _, _, nonce = _HELLO.unpack_from(data)
        return cls(nonce, QueuePairAddress.decode(data[_HELLO.size :]))


@dataclass(frozen=True, slots=True)
class Welcome:
    """Step 2. Without ``where`` it is a refusal, and ``code`` is the reason."""

    SIZE: ClassVar[int] = _WELCOME.size + _WHERE.size

    your_nonce: bytes
    nonce: bytes
    where: QueuePairAddress | None
    code: int = 0

    def encode(self) -> bytes:
        code = self.code if self.where is None else 0
        where = bytes(_WHERE.size) if self.where is None else self.where.encode()
        return _WELCOME.pack(_MAGIC, _TYPE_WELCOME, code, self.your_nonce, self.nonce) + where

    @classmethod
    def decode(cls, data: bytes, nonce: bytes) -> Welcome:
        """:param nonce: the nonce of the Hello. :raises RemoteProtocolError: this does not answer it."""
        _check(data, cls.SIZE, _TYPE_WELCOME)
        _, _, code, yours, own = _WELCOME.unpack_from(data)
        if not hmac.compare_digest(yours, nonce):
            raise RemoteProtocolError("resolver: the answer belongs to another question")
        where = None if code else QueuePairAddress.decode(data[_WELCOME.size :])
        return cls(yours, own, where, code)


def _check(data: bytes, size: int, kind: int) -> None:
    if not _MAGIC.startswith(data[: len(_MAGIC)]) or len(data) < len(_MAGIC):
        raise RemoteProtocolError(f"resolver: not one of ours, it begins with {data[: len(_MAGIC)]!r}")
    if len(data) != size:
        raise RemoteProtocolError(f"resolver: {len(data)} bytes, must be {size}")
    if data[len(_MAGIC)] != kind:
        raise RemoteProtocolError(f"resolver: message type {data[len(_MAGIC)]}, expected {kind}")


def sender_key(gid: bytes, qpn: int) -> bytes:
    """The key to look up a sender by: fields that the device reports for every datagram."""
    return gid + qpn.to_bytes(3)


def udp_proof(nonce: bytes) -> bytes:
    """The datagram of step 3 that goes from UDP port to UDP port."""
    return _UDP_MAGIC + nonce


def is_proof(data: bytes) -> bytes | None:
    """The nonce of such a datagram; None for all others, which are data. It counts only if a resolution waits
    for exactly this nonce: data of the same form stays data."""
    if len(data) == len(_UDP_MAGIC) + NONCE_BYTES and data.startswith(_UDP_MAGIC):
        return data[len(_UDP_MAGIC) :]
    return None


class Splitter:
    """Collects one message of a known size from a TCP connection, and reads no byte beyond it.

    :param size: of the message.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.data = b""

    @property
    def missing(self) -> int:
        """Bytes still to come."""
        return self.size - len(self.data)

    def feed(self, data: bytes) -> bool:
        """True when the message is complete.

        :raises RemoteProtocolError: the connection ended early (``b""``), or this is no resolver message.
        """
        if not data:
            raise RemoteProtocolError(f"resolver: the connection ended after {len(self.data)} bytes")
        self.data += data
        if not _MAGIC.startswith(self.data[: len(_MAGIC)]):
            raise RemoteProtocolError(f"resolver: not one of ours, it begins with {self.data[:8]!r}")
        return not self.missing


def refusal(your_nonce: bytes, code: int = Code.NO_DEVICE) -> Welcome:
    """The answer of an endpoint without RDMA."""
    return Welcome(your_nonce, bytes(NONCE_BYTES), None, code)
