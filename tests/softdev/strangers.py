"""Packets of RoCEv2 from sockets that any user may open, with everything right that the sender knows."""

from __future__ import annotations

import contextlib
import socket
import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from tests.vm.wire.ends import namespaced

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.softdev.namespaces import Host

PORT = 4791
OWN_PORTS = 24791
"""Plus the number of the process: the high bits of its queue pairs' numbers."""
SEND_ONLY, WRITE_ONLY, ACK, CNP = 4, 10, 17, 0x81
IP_MTU_DISCOVER, IP_PMTUDISC_DO = 10, 2  # linux/in.h


def own_port(qpn: int) -> int:
    return OWN_PORTS + (qpn >> 14)


class Write(NamedTuple):
    """Where a WRITE goes."""

    addr: int
    rkey: int
    payload: bytes


def transport(opcode: int, qpn: int, psn: int, write: Write | None = None) -> bytes:
    """The base header and what follows it, without the checksum."""
    base = struct.pack("!BBHII", opcode, 0x40, 0xFFFF, qpn, 1 << 31 | psn)
    if opcode == CNP:
        return base[:4] + struct.pack("!B3s", 0x40, qpn.to_bytes(3)) + base[8:] + bytes(16)
    if opcode == ACK:
        return base + struct.pack("!I", 0x1F << 24)
    if write:
        return base + struct.pack("!QII", write.addr, write.rkey, len(write.payload)) + write.payload
    return base + bytes(64)


def request(number: int, port: int, source: tuple[str, int], to: tuple[str, int]) -> bytes:
    """A request of rdma_cm for a connection to that port (IBTA 12.6.5, annex A11); each number: another."""
    mad = bytearray(256)
    mad[:4] = 1, 7, 2, 3
    struct.pack_into("!QH", mad, 8, number, 0x10)
    struct.pack_into("!I4xQQ", mad, 24, number, 0x0106 << 16 | port, number)
    struct.pack_into("!I", mad, 24 + 32, (0x4000 + number) << 8 & 0xFFFFFF00)
    mad[24 + 43], mad[24 + 50], mad[165] = 20 << 3, 3 << 4, 4 << 4
    for at, (address, _) in ((168, source), (184, to)):
        mad[at + 12 : at + 16] = socket.inet_aton(address)
    return struct.pack("!BBHIIII", 0x64, 0x40, 0xFFFF, 1, 0, 0x80010000, 1) + mad


def with_checksum(source: tuple[str, int], to: tuple[str, int], body: bytes) -> bytes:
    """The payload of a UDP packet over IPv4 that its sender forbids to fragment (IBTA annex A17.3.3)."""
    size = len(body) + 4
    udp = struct.pack("!HHHH", source[1], to[1], 8 + size, 0xFFFF)
    ends = socket.inet_aton(source[0]) + socket.inet_aton(to[0])
    ip = struct.pack("!BBHHHBBH", 0x45, 0xFF, 28 + size, 0, 0x4000, 0xFF, 17, 0xFFFF) + ends
    masked = body[:4] + b"\xff" + body[5:]
    return body + zlib.crc32(b"\xff" * 8 + ip + udp + masked).to_bytes(4, "little")


def forwarded(source: tuple[str, int], to: tuple[str, int], payload: bytes) -> bytes:
    """As the process that has port 4791 hands it on to another one of its host."""
    mapped = bytes(10) + b"\xff\xff"
    ends = mapped + socket.inet_aton(source[0]) + mapped + socket.inet_aton(to[0])
    return b"aiowire1" + ends + struct.pack("=HHB3x", source[1], to[1], 2) + payload


@contextlib.contextmanager
def stranger(host: Host, port: int = 0, address: str | None = None) -> Iterator[socket.socket]:
    """A socket on that host. port 0: any."""
    with namespaced(host.namespace):
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with sock:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_DO)
        sock.bind((address or host.address, port))
        sock.setblocking(False)
        yield sock


@contextlib.contextmanager
def on_the_path(host: Host) -> Iterator[socket.socket]:
    """A raw socket: whoever has one sends in anybody's name."""
    with namespaced(host.namespace):
        sock = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
    with sock:
        yield sock


def with_headers(source: tuple[str, int], to: tuple[str, int], payload: bytes) -> bytes:
    """The whole packet; the kernel fills in the header's checksum."""
    size = 8 + len(payload)
    ends = socket.inet_aton(source[0]) + socket.inet_aton(to[0])
    ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + size, 0, 0x4000, 64, 17, 0) + ends
    return ip + struct.pack("!HHHH", source[1], to[1], size, 0) + payload


def got(sock: socket.socket) -> int:
    """How many packets have come to it."""
    count = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.recv(1 << 16)
            count += 1
    return count
