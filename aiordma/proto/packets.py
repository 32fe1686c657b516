"""Messages as packets, for Wireshark: what a capture of this library looks like to tools that read networks.

A message of a link becomes a RoCEv2 packet (IP, UDP port 4791, BTH), one of a negotiation a TCP segment.
Addresses and queue pairs are the real ones. What the library does not see is made up: ports, packet sequence
numbers (they count up), checksums, the ICRC (zero). Keys of memory and starting sequence numbers are blanked:
with them, anyone can speak for the peer.

``pcapng`` is draft-ietf-opsawg-pcapng, link type RAW: each packet begins with its IP header.
"""

from __future__ import annotations

import ipaddress
import struct
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

ROCE_PORT = 4791
_V4_MAPPED = bytes(10) + b"\xff\xff"
_UDP, _TCP = 17, 6
#: Opcodes of RC packets in the BTH.
SEND_ONLY, SEND_ONLY_IMM, WRITE_ONLY, READ_REQUEST = 0x04, 0x05, 0x0A, 0x0C
_ICRC = bytes(4)
_MOST_PAYLOAD = 60_000


class Packet(NamedTuple):
    """One packet of a capture."""

    #: nanoseconds since the epoch
    at_ns: int
    outbound: bool
    #: with the payload that was left out of ``data``
    length: int
    data: bytes


def ip_bytes(host: str) -> bytes:
    """16 bytes of an address (IPv4 mapped into IPv6, as in GIDs); zeros for what is none."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0].strip("[]"))
    except ValueError:
        return bytes(16)
    return address.packed if address.version == 6 else _V4_MAPPED + address.packed


def _ip(source: bytes, target: bytes, protocol: int, length: int) -> bytes:
    """:param length: of what follows."""
    if source[:12] == target[:12] == _V4_MAPPED:
        head = struct.pack(
            ">BBHHHBBH4s4s", 0x45, 0, 20 + length, 0, 0x4000, 64, protocol, 0, source[12:], target[12:]
        )
        total = sum(struct.unpack(">10H", head))
        total = (total & 0xFFFF) + (total >> 16)
        return head[:10] + struct.pack(">H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + head[12:]
    return struct.pack(">IHBB16s16s", 6 << 28, length, protocol, 64, source, target)


def roce_packet(
    ends: tuple[bytes, bytes],
    *,
    opcode: int,
    qp: int,
    psn: int,
    data: bytes,
    size: int,
    imm: int | None = None,
    remote_addr: int = 0,
) -> tuple[bytes, int]:
    """The packet, and its length with what is left out of it.

    What is left out is missing in the packet's own lengths, too: tools take a packet that was cut for a
    damaged one. The size of a WRITE is in its RETH.

    :param ends: sender's and receiver's GID.
    :param qp: of the receiver.
    :param data: the first bytes of ``size``.
    """
    more = b""
    if opcode in (WRITE_ONLY, READ_REQUEST):
        more = struct.pack(">QII", remote_addr, 0, size)
    elif imm is not None:
        opcode, more = SEND_ONLY_IMM, struct.pack(">I", imm)
    # What is longer travels in several packets; a capture shows it as one.
    data = data[:_MOST_PAYLOAD]
    pad = -len(data) % 4
    bth = struct.pack(">BBHII", opcode, pad << 4, 0xFFFF, qp & 0xFFFFFF, psn & 0xFFFFFF)
    udp = 8 + len(bth) + len(more) + len(data) + pad + len(_ICRC)
    head = struct.pack(">HHHH", 0xC000 | qp & 0x3FFF, ROCE_PORT, udp, 0) + bth + more
    ip = _ip(*ends, _UDP, udp)
    packet = ip + head + data + bytes(pad) + _ICRC
    return packet, len(packet) + (0 if opcode == READ_REQUEST else size - len(data))


def tcp_packet(ends: tuple[bytes, bytes], ports: tuple[int, int], at: tuple[int, int], data: bytes) -> bytes:
    """:param at: sequence number, and the one of what was received."""
    head = struct.pack(
        ">HHIIBBHHH", *ports, at[0] & 0xFFFFFFFF, at[1] & 0xFFFFFFFF, 5 << 4, 0x18, 0xFFFF, 0, 0
    )
    return _ip(*ends, _TCP, len(head) + len(data)) + head + data


# ---- keys

#: Where keys lie: in CLC messages by type (rkey and PSN of Accept and Confirm), in LLC messages by type.
_CLC_KEYS: dict[int, tuple[tuple[int, int], ...]] = {2: ((41, 45), (61, 64)), 3: ((41, 45), (61, 64))}
_LLC_KEYS: dict[int, tuple[tuple[int, int], ...]] = {
    0x02: ((33, 36),),  # Add Link: PSN; its keys in version 2 are below
    0x03: ((8, 16), (24, 32)),  # Add Link Continuation
    0x06: ((5, 9), (18, 22), (31, 35)),  # Confirm RKey
    0x08: ((5, 9), (18, 22), (31, 35)),  # its continuation
    0x09: ((8, 1 << 16),),  # Delete RKey: Linux takes the same key again
    0x0D: ((16, 20),),  # Ticket
    0x0F: ((20, 24),),  # Ring Resize
}
#: Behind an Add Link of version 2: where its first pair of keys lies, their size, and that with an address.
_ADDED, _ADDED_KEYS, _ADDED_BYTES = 72, 8, 16


def without_keys(message: bytes) -> bytes:
    """A CLC or LLC message with its keys blanked."""
    if message[:4] == b"\xe2\xd4\xc3\xd9":
        places = _CLC_KEYS.get(message[4], ()) if len(message) > 4 else ()
    else:
        kind = message[0] & 15 if message and message[0] < 0x80 else 0
        places = _LLC_KEYS.get(kind, ())
        if kind == 0x02:
            added = range(_ADDED, len(message), _ADDED_BYTES)
            places += tuple((at, at + _ADDED_KEYS) for at in added)
    if not places:
        return message
    blanked = bytearray(message)
    for start, stop in places:
        blanked[start : min(stop, len(blanked))] = bytes(max(0, min(stop, len(blanked)) - start))
    return bytes(blanked)


# ---- the file


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("<I", 12 + len(body))
    return struct.pack("<I", kind) + length + body + length


def pcapng(packets: Iterable[Packet]) -> bytes:
    """A file of them."""
    found = [
        _block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1)),
        # Link type RAW, no limit, and times in nanoseconds.
        _block(1, struct.pack("<HHIHHB3xHH", 101, 0, 0, 9, 1, 9, 0, 0)),
    ]
    for packet in packets:
        size = len(packet.data)
        fixed = struct.pack("<IIIII", 0, packet.at_ns >> 32, packet.at_ns & 0xFFFFFFFF, size, size)
        options = struct.pack("<HHI", 2, 4, 2 if packet.outbound else 1)
        if packet.length > size:
            comment = b"%d bytes of payload are left out" % (packet.length - size)
            options += struct.pack("<HH", 1, len(comment)) + comment + bytes(-len(comment) % 4)
        options += bytes(4)
        found.append(_block(6, fixed + packet.data + bytes(-size % 4) + options))
    return b"".join(found)
