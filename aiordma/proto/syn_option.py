"""The TCP option by which two ends say in SYN and SYN-ACK that they negotiate (RFC 7609, section 2.2.2).

Linux asks for kind 254, a length that is even and at least 6, and SMC's eye catcher. aiordma adds two bytes:
who it is, which differs between SYN and SYN-ACK so that an option that comes back as it was sent is known for
an echo, and a version. Linux takes these eight bytes as its own six.

No I/O here: writing the option takes a program in the kernel, reading that of a SYN ``TCP_SAVED_SYN``.
"""

from __future__ import annotations

from .clcframe import EYE_CATCHER
from .errors import LocalProtocolError
from .frozen import Frozen

KIND = 254
"""For experiments (RFC 6994); the eye catcher's first half is the id of the experiment."""
VERSION = 1
_END, _PADDING = 0, 1
_HEAD_BYTES = 6
_IN_SYN, _IN_SYN_ACK = 0xA1, 0xA2
_TCP, _NEXT_HEADERS = 6, {0, 43, 60}  # hop-by-hop options, routing, destination options


class SynOption(Frozen):
    """What one end says of itself."""

    version: int = 0
    """Version of aiordma's own part; 0: another implementation of SMC."""
    in_answer: bool = False
    """It is the option of a SYN-ACK, as far as aiordma's part says it."""

    @property
    def is_aiordma(self) -> bool:
        """Whether the end is aiordma."""
        return self.version > 0

    def encode(self) -> bytes:
        """:raises LocalProtocolError: a version that has no place."""
        if not 0 <= self.version <= 255:
            raise LocalProtocolError(f"version {self.version} of the SYN option: must be from 0 to 255")
        own = bytes((_IN_SYN_ACK if self.in_answer else _IN_SYN, self.version)) if self.version else b""
        return bytes((KIND, _HEAD_BYTES + len(own))) + EYE_CATCHER + own


def find(options: bytes) -> SynOption | None:
    """The option among the ``options`` of a TCP header; None: there is none that Linux would take."""
    at = 0
    while at < len(options) and options[at] != _END:
        if options[at] == _PADDING:
            at += 1
            continue
        length = options[at + 1] if at + 1 < len(options) else 0
        if length < 2 or at + length > len(options):
            return None  # what follows cannot be told apart
        found = _decode(options[at : at + length])
        if found is not None:
            return found
        at += length
    return None


def _decode(option: bytes) -> SynOption | None:
    if option[0] != KIND or len(option) < _HEAD_BYTES or len(option) % 2 or option[2:6] != EYE_CATCHER:
        return None
    if len(option) >= _HEAD_BYTES + 2 and option[6] in (_IN_SYN, _IN_SYN_ACK):
        return SynOption(option[7], option[6] == _IN_SYN_ACK)
    return SynOption()


def find_in_packet(packet: bytes) -> SynOption | None:
    """The option of a SYN as ``TCP_SAVED_SYN`` has it, with its IP header; None: there is none."""
    at = _tcp_header(packet)
    if at is None or at + 20 > len(packet):
        return None
    end = at + (packet[at + 12] >> 4) * 4
    return find(packet[at + 20 : end]) if end <= len(packet) else None


def _tcp_header(packet: bytes) -> int | None:
    version = packet[0] >> 4 if packet else 0
    if version == 4 and len(packet) >= 20:
        return (packet[0] & 15) * 4 if packet[9] == _TCP else None
    if version != 6 or len(packet) < 40:
        return None
    kind, at = packet[6], 40
    while kind in _NEXT_HEADERS and at + 8 <= len(packet):
        kind, at = packet[at], at + 8 + packet[at + 1] * 8
    return at if kind == _TCP else None
