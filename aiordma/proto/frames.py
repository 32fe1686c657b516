"""The bytes of a stream on TCP after it has left RDMA: frames, so that its end is said and not guessed.

A frame is four bytes, big-endian (kind in the upper 8 bits, length of the body in the lower 24), and the
body. An end of TCP without an ``END`` frame is a peer that died, and no end of the stream.

The stream may come back to RDMA: both ends negotiate in frames between those of the data, and each says where
its last byte on TCP was. What follows on TCP is no frame any more, but belongs to the ring's next life.
"""

from __future__ import annotations

import enum
import struct

from .cdc import StateFlag
from .clcframe import MAX_MESSAGE_BYTES
from .errors import RemoteProtocolError
from .failover import MESSAGE_BYTES

__all__ = [
    "HEADER_BYTES",
    "MAX_BODY_BYTES",
    "Assembler",
    "Kind",
    "data_header",
    "end_frame",
    "negotiation_frame",
    "on_ring_frame",
]

_HEADER = struct.Struct(">I")
HEADER_BYTES = _HEADER.size
MAX_BODY_BYTES = 64 * 1024


class Kind(enum.IntEnum):
    """What a frame is."""

    DATA = 1
    """Bytes of the stream, at least one."""
    END = 2
    """Nothing follows. One byte: ``SENDING_DONE``, with ``CLOSED`` when the sender takes nothing either."""
    NEGOTIATION = 3
    """A CLC message: the stream may come back to RDMA."""
    ON_RING = 4
    """What the sender sends from here on comes by the ring. One byte, 0."""


def data_header(length: int) -> bytes:
    """What goes before ``length`` bytes of the stream (1 to ``MAX_BODY_BYTES``)."""
    return _HEADER.pack(Kind.DATA << 24 | length)


def end_frame(*, closed: bool) -> bytes:
    """The last frame, or, after an ``END`` that only ended the sending, the close."""
    flags = StateFlag.SENDING_DONE | (StateFlag.CLOSED if closed else 0)
    return _HEADER.pack(Kind.END << 24 | 1) + bytes([flags])


def negotiation_frame(message: bytes) -> bytes:
    """A CLC message."""
    return _HEADER.pack(Kind.NEGOTIATION << 24 | len(message)) + message


def on_ring_frame() -> bytes:
    """The last frame of an end that comes back to RDMA."""
    return _HEADER.pack(Kind.ON_RING << 24 | 1) + b"\0"


class Assembler:
    """Takes frames apart, wherever the pieces are cut.

    :attr:`flags` is what the peer's ``END`` frames have said, :attr:`messages` what it negotiates; with
    :attr:`on_ring`, its last byte on TCP has come, and :attr:`rest` is what it says of the ring's next end.
    """

    __slots__ = ("_body", "_head", "_kind", "_missing", "flags", "messages", "on_ring", "rest")

    def __init__(self) -> None:
        self.flags = 0
        self.messages: list[bytes] = []
        self.on_ring = False
        self.rest = b""
        self._body = b""
        self._head = b""
        self._kind = 0
        self._missing = 0

    @property
    def done(self) -> bool:
        """The peer has said that nothing follows."""
        return bool(self.flags & StateFlag.SENDING_DONE)

    def feed(self, data: bytes) -> list[memoryview]:
        """The parts of ``data`` that are bytes of the stream.

        :raises RemoteProtocolError: no frames, or data behind the end. What came before is lost: the stream
            is broken.
        """
        found: list[memoryview] = []
        view = memoryview(data)
        while len(view):
            if self.on_ring:
                self.rest += bytes(view)
                if len(self.rest) > MESSAGE_BYTES:
                    raise RemoteProtocolError(f"frames: {len(self.rest)} bytes behind the last frame")
                break
            if not self._missing:
                take = HEADER_BYTES - len(self._head)
                self._head += bytes(view[:take])
                view = view[take:]
                if len(self._head) == HEADER_BYTES:
                    self._begin(_HEADER.unpack(self._head)[0])
                    self._head = b""
                continue
            part = view[: self._missing]
            view = view[len(part) :]
            self._missing -= len(part)
            if self._kind == Kind.DATA:
                found.append(part)
            elif self._kind == Kind.END:
                self._end(part[0])
            elif self._kind == Kind.ON_RING:
                if part[0]:
                    raise RemoteProtocolError("frames: the way to the ring has a value that is not known")
                self.on_ring = True
            else:
                self._body += bytes(part)
                if not self._missing:
                    self.messages.append(self._body)
                    self._body = b""
        return found

    def _begin(self, header: int) -> None:
        self._kind, self._missing = header >> 24, header & 0xFFFFFF
        if self.done and self._kind not in (Kind.END, Kind.NEGOTIATION):  # an answer may cross the end
            raise RemoteProtocolError("frames: more behind the end of the stream")
        if self._kind == Kind.DATA:
            if not 1 <= self._missing <= MAX_BODY_BYTES:
                raise RemoteProtocolError(f"frames: {self._missing} bytes in one frame")
        elif self._kind == Kind.NEGOTIATION:
            if not 1 <= self._missing <= MAX_MESSAGE_BYTES:
                raise RemoteProtocolError(f"frames: a message of {self._missing} bytes")
        elif self._kind not in (Kind.END, Kind.ON_RING) or self._missing != 1:
            raise RemoteProtocolError(f"frames: kind {self._kind} with {self._missing} bytes is not known")

    def _end(self, flags: int) -> None:
        known = StateFlag.SENDING_DONE | StateFlag.CLOSED
        if not flags & StateFlag.SENDING_DONE or flags & ~known or not flags & ~self.flags:
            raise RemoteProtocolError(f"frames: an end with flags 0x{flags:02x} cannot be here")
        self.flags |= flags
