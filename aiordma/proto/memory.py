"""One-sided memory: descriptors, and the messages between the two ends of a connection for memory.

A descriptor names a piece of memory of one event loop, its rights, and when it expires. It says nothing of
where the memory lies: its owner keeps that, and tells it a peer that shows a valid descriptor (``OPEN``).
Layout, big-endian, 56 bytes: magic "aRM" (3), version (1), rights (1), zero (3), length (8), end of its life
in milliseconds since 1970, 0 for none (8), identity (16), secret (16).

Every message begins with its operation (1 byte), a code or flags (1), zero (2) and a number (4), which an
answer repeats. The numbers of requests belong to the end that asks.
"""

from __future__ import annotations

import enum
import hmac
import secrets
import struct
from typing import NamedTuple

from .errors import RemoteProtocolError

PIECE_BYTES = 65536
"""Most bytes of memory in one message (on TCP), and of one READ or WRITE by default."""
MAX_NOTE_BYTES = 4096
"""Longest payload of a notification."""
NOTES = 64
"""Notifications that an end has sent and the other end's user has not taken, at most."""
ATOMICS_BY_DEVICE = 1
"""The code of OPENED: atomic operations are the device's. If not set, the owner's loop does them."""
WORD_BYTES = 8
"""What atomic operations work on."""

HEADER = struct.Struct(">BBxxI")
_DESCRIPTOR = struct.Struct(">3sBBxxxQQ16s16s")
DESCRIPTOR_BYTES = _DESCRIPTOR.size
_MAGIC, _VERSION = b"aRM", 1
_OPENED = struct.Struct(">QQIB")
_SPAN = struct.Struct(">QQ")
_WORD = struct.Struct(">Q")


class Rights(enum.IntFlag):
    """What a descriptor allows."""

    READ = 1
    WRITE = 2
    #: compare_and_swap and fetch_and_add
    ATOMIC = 4


class Fault(enum.IntEnum):
    """Why an access was refused."""

    #: Not a descriptor, or of a newer version.
    MALFORMED = 1
    #: The peer's owner never made such a descriptor, or its region is closed.
    UNKNOWN = 2
    #: Its owner has taken it back.
    REVOKED = 3
    #: Its time is over.
    EXPIRED = 4
    #: The descriptor does not have the right.
    RIGHTS = 5
    #: Bytes outside it, or an atomic operation beside a word.
    RANGE = 6
    #: The owner cannot open it now: its device refuses, or too many are open.
    LIMIT = 7


class Op(enum.IntEnum):
    """Operations."""

    #: A descriptor; answered by OPENED.
    OPEN = 1
    OPENED = 2
    #: The number is that of an OPEN: it is used no more. Not answered.
    RELEASE = 3
    #: The same number, from the owner: it is taken back, and to be released.
    RECALL = 4
    #: For what the owner's loop does: the number of the OPEN and an offset in 16 bytes, then more.
    READ = 5
    WRITE = 6
    FETCH_ADD = 7
    COMPARE_SWAP = 8
    #: Answers: bytes that were read, the old word, or nothing.
    DONE = 9
    #: The answer to any request that was refused: the code is a :class:`Fault`, the rest is text.
    REFUSED = 10
    #: A notification, and that the user has taken one.
    NOTE = 11
    TAKEN = 12


class Descriptor(NamedTuple):
    """What a descriptor's bytes say."""

    rights: Rights
    length: int
    #: milliseconds since 1970; 0: it does not expire
    expires_ms: int
    identity: bytes
    secret: bytes

    @classmethod
    def new(cls, rights: Rights, length: int, expires_ms: int) -> Descriptor:
        """One that cannot be guessed."""
        return cls(rights, length, expires_ms, secrets.token_bytes(16), secrets.token_bytes(16))

    def encode(self) -> bytes:
        """Its bytes, :data:`DESCRIPTOR_BYTES` of them."""
        return _DESCRIPTOR.pack(
            _MAGIC, _VERSION, self.rights, self.length, self.expires_ms, self.identity, self.secret
        )

    @classmethod
    def decode(cls, data: bytes) -> Descriptor:
        """:raises ValueError: these bytes are no descriptor of this version."""
        if len(data) != DESCRIPTOR_BYTES or data[:3] != _MAGIC:
            raise ValueError("these bytes are no descriptor of memory")
        _, version, rights, length, expires_ms, identity, secret = _DESCRIPTOR.unpack(data)
        if version != _VERSION:
            raise ValueError(f"a descriptor of version {version}; this end knows version {_VERSION}")
        if not 0 < rights <= 7 or not 0 < length < 1 << 63:
            raise ValueError("a descriptor without rights or memory")
        return cls(Rights(rights), length, expires_ms, identity, secret)

    def matches(self, other: Descriptor) -> bool:
        """Whether it is the same; takes equally long whatever differs."""
        return hmac.compare_digest(self.encode(), other.encode())


def head(op: Op, number: int, code: int = 0) -> bytes:
    """The first 8 bytes of a message."""
    return HEADER.pack(op, code, number)


def open_answer(
    number: int, address: int, length: int, rkey: int, rights: Rights, *, atomics_by_device: bool = False
) -> bytes:
    """OPENED. :param rkey: 0 with an address of 0: the owner's loop does it."""
    code = ATOMICS_BY_DEVICE if atomics_by_device else 0
    return head(Op.OPENED, number, code) + _OPENED.pack(address, length, rkey, rights)


def _unpack(form: struct.Struct, body: memoryview | bytes) -> tuple[int, ...]:
    if len(body) != form.size:
        raise RemoteProtocolError("a message about memory has a wrong length")
    return form.unpack(body)


def parse_open_answer(body: memoryview) -> tuple[int, int, int, Rights]:
    """Address, length, rkey and rights. :raises RemoteProtocolError: it is not well-formed."""
    address, length, rkey, rights = _unpack(_OPENED, body)
    if not 0 < rights <= 7 or not length or address + length > 1 << 64:
        raise RemoteProtocolError("an opened descriptor without rights or memory")
    return address, length, rkey, Rights(rights)


def span(opened: int, offset: int, length: int = 0) -> bytes:
    """Which bytes a request is about: the number of the OPEN (32 bits), the length (32 bits), the offset."""
    return _SPAN.pack(opened << 32 | length, offset)


def parse_span(body: memoryview) -> tuple[int, int, int]:
    """Number of the OPEN, offset and length. :raises RemoteProtocolError:"""
    first, offset = _unpack(_SPAN, body[:16])
    return first >> 32, offset, first & 0xFFFFFFFF


def atomic_request(operand: int, compare: int = 0) -> bytes:
    """What follows the span of an atomic operation."""
    return _SPAN.pack(operand, compare)


def parse_atomic(body: memoryview) -> tuple[int, int]:
    """Operand and what is compared. :raises RemoteProtocolError:"""
    operand, compare = _unpack(_SPAN, body)
    return operand, compare


def word(value: int) -> bytes:
    """One word, in an answer."""
    return _WORD.pack(value)


def parse_word(body: memoryview) -> int:
    """:raises RemoteProtocolError: it is none."""
    return _unpack(_WORD, body)[0]
