# cython: annotation_typing=False, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Valkey's RDMA protocol (valkey-doc, topics/RDMA.md): its commands, transfer buffers, and receives.

Each end registers a *transfer buffer* and sends where it is. The other end fills it from the start by RDMA
WRITE with immediate data, the number of bytes. It is not a ring: when the buffer is full and its owner has
read it, the owner registers a buffer again, and writing begins at its start.

Two things go beyond the text of the protocol, and any server understands them:

* This end may register the next buffer while it still reads the last one (:class:`Incoming`). A slow reader
  then does not stop the server at the end of each buffer.
* Nothing in the protocol tells how many receives the other end has posted. :class:`Outgoing` counts what may
  occupy one, and asks GetServerFeature now and then. The server answers when it has taken everything before.
"""

from __future__ import annotations

import enum
import struct
from typing import NamedTuple

from .errors import RemoteProtocolError

COMMAND_BYTES = 32
#: Receives that every implementation posts.
RECEIVES = 1024
#: valkey-server takes 16 MiB at most as its ``rdma-rx-size``.
MAX_BUFFER_BYTES = 1 << 28

#: What may be under way without proof that the server has taken it, and after how much this end asks.
_CREDIT = RECEIVES - 64
_ASK_AFTER = RECEIVES // 4

_MEMORY = struct.Struct(">H14xQII")  # opcode, address, length, rkey
_FEATURE = struct.Struct(">HH20xQ")  # opcode, select, features
_PLAIN = struct.Struct(">H30x")


class Opcode(enum.IntEnum):
    """First two bytes of a command."""

    GET_SERVER_FEATURE = 0
    SET_CLIENT_FEATURE = 1
    KEEPALIVE = 2
    REGISTER_XFER_MEMORY = 3


class TransferBuffer(NamedTuple):
    """Memory that the other end may write to."""

    address: int
    length: int
    rkey: int


class Command(NamedTuple):
    """A command that has arrived."""

    opcode: Opcode
    #: of RegisterXferMemory
    buffer: TransferBuffer | None = None
    #: of GetServerFeature and SetClientFeature
    features: int = 0


def feature_query() -> bytes:
    """GetServerFeature. No feature is defined so far."""
    return _FEATURE.pack(Opcode.GET_SERVER_FEATURE, 0, 0)


def keepalive() -> bytes:
    """Keepalive."""
    return _PLAIN.pack(Opcode.KEEPALIVE)


def registration(buffer: TransferBuffer) -> bytes:
    """RegisterXferMemory."""
    return _MEMORY.pack(Opcode.REGISTER_XFER_MEMORY, *buffer)


def parse(data: bytes) -> Command:
    """A command of the server. :raises RemoteProtocolError: it is none, or its buffer cannot be."""
    if len(data) != COMMAND_BYTES:
        raise RemoteProtocolError(f"a command of {len(data)} bytes: Valkey's commands have {COMMAND_BYTES}")
    number = int.from_bytes(data[:2], "big")
    if number == Opcode.REGISTER_XFER_MEMORY:
        _, address, length, rkey = _MEMORY.unpack(data)
        if not 0 < length <= MAX_BUFFER_BYTES or address == 0 or address + length > 1 << 64:
            raise RemoteProtocolError(
                f"RegisterXferMemory with {length} bytes at 0x{address:x}: no buffer is like that"
            )
        return Command(Opcode.REGISTER_XFER_MEMORY, TransferBuffer(address, length, rkey))
    if number == Opcode.KEEPALIVE:
        return Command(Opcode.KEEPALIVE)
    if number == Opcode.GET_SERVER_FEATURE:
        return Command(Opcode.GET_SERVER_FEATURE, None, _FEATURE.unpack(data)[2])
    raise RemoteProtocolError(f"command {number} from the server: a client gets 0, 2 and 3 only")


class Outgoing:
    """The server's transfer buffer, and its receives."""

    def __init__(self) -> None:
        self.address = 0
        self.length = 0
        self.rkey = 0
        self.offset = 0
        #: What has taken a receive of the server so far, and up to where that is certain to be posted again.
        self.taken = 0
        self.confirmed = 0
        self.asked = 0
        self.asking = 0
        self.full_at = 0

    def registered(self, buffer: TransferBuffer) -> None:
        """The server has registered a buffer. :raises RemoteProtocolError: the one before is in use."""
        if self.offset != self.length:
            raise RemoteProtocolError(
                f"RegisterXferMemory while the buffer before has room for {self.length - self.offset} bytes: "
                "what is under way would be lost"
            )
        self.address, self.length, self.rkey = buffer
        self.offset = 0
        # It has read the last buffer, so it has taken whatever filled that.
        if self.full_at > self.confirmed:
            self.confirmed = self.full_at

    def room(self) -> int:
        """Bytes that may be written now, at :attr:`offset`."""
        return self.length - self.offset if self.taken - self.confirmed < _CREDIT else 0

    def may_command(self) -> int:
        """1 if the server has a receive for a command that can wait."""
        return 1 if self.taken - self.confirmed < _CREDIT else 0

    def wrote(self, n: int) -> None:
        """``n`` bytes were written with immediate data; at most :meth:`room`."""
        self.offset += n
        self.taken += 1
        if self.offset == self.length:
            self.full_at = self.taken

    def commanded(self) -> None:
        """A command was sent."""
        self.taken += 1

    def ask_due(self) -> int:
        """1 when it is time to ask how far the server is, which needs one receive of those kept back."""
        return 1 if self.asking == 0 and self.taken - self.confirmed >= _ASK_AFTER else 0

    def ask(self) -> None:
        """GetServerFeature is sent."""
        self.taken += 1
        self.asking = 1
        self.asked = self.taken

    def answered(self) -> None:
        """The server has answered. :raises RemoteProtocolError: nothing was asked."""
        if self.asking == 0:
            raise RemoteProtocolError("an answer to GetServerFeature, which this end has not asked")
        self.asking = 0
        if self.asked > self.confirmed:
            self.confirmed = self.asked


class Incoming:
    """Transfer buffers of this end, side by side in one piece of memory.

    :param size: of one buffer, in bytes. All have the same: valkey-server may crash when it changes.
    :param count: at least 2.
    """

    def __init__(self, size: int, count: int) -> None:
        self.size = size
        self.total = size * count
        #: Bytes since the connection began: that may be written, that were written, and that were read.
        self.granted = 0
        self.arrived = 0
        self.consumed = 0

    def due(self) -> int:
        """1 when the next buffer must be registered: all before are full, and it is free."""
        return (
            1
            if self.arrived == self.granted and self.granted - self.consumed <= self.total - self.size
            else 0
        )

    def next_at(self) -> int:
        """Where in the memory the next buffer begins."""
        return self.granted % self.total

    def register(self) -> None:
        """RegisterXferMemory with the buffer at :meth:`next_at` is sent."""
        self.granted += self.size

    def arrive(self, n: int) -> int:
        """``n`` bytes were written, as their immediate data says. -1: there is no room for them."""
        if n == 0 or n > self.granted - self.arrived:
            return -1
        self.arrived += n
        return 0

    def readable(self) -> int:
        """Bytes that can be read."""
        return self.arrived - self.consumed

    def offset(self) -> int:
        """Where in the memory the next unread byte is."""
        return self.consumed % self.total

    def contiguous(self) -> int:
        """Bytes that can be read from there on without a step back to the start of the memory."""
        unread = self.arrived - self.consumed
        to_end = self.total - self.consumed % self.total
        return to_end if to_end < unread else unread

    def consume(self, n: int) -> None:
        """``n`` bytes were read; at most :meth:`readable`."""
        self.consumed += n
