"""The bytes of a stream on TCP after it has left RDMA: frames, so that its end is sent and not guessed.

A frame is four bytes, big-endian (kind in the upper 8 bits, length of the body in the lower 24), and the
body. An end of TCP without an ``END`` frame is a peer that died, and no end of the stream.

The stream may rejoin RDMA: both ends negotiate in frames between those of the data, and each marks its last
byte on TCP. What follows on TCP is not a frame any more, but belongs to the next ring.
"""

from __future__ import annotations

import enum
import struct

from .cdc import StateFlag
from .clcframe import MAX_MESSAGE_BYTES
from .errors import RemoteProtocolError
from .failover import MESSAGE_BYTES
from .framing import FrameAssembler

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
    """A CLC message: the stream may rejoin RDMA."""
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
    """The last frame of an end that rejoins RDMA."""
    return _HEADER.pack(Kind.ON_RING << 24 | 1) + b"\0"


class Assembler:
    """Takes frames apart, wherever the pieces are cut.

    :attr:`flags` are those of the peer's ``END`` frames, :attr:`messages` what it negotiates. With
    :attr:`on_ring`, its last byte on TCP has come, and :attr:`rest` is what follows for the next ring.
    """

    __slots__ = ("_frames", "_missing", "flags", "messages", "on_ring", "rest")

    def __init__(self) -> None:
        self.flags = 0
        self.messages: list[bytes] = []
        self.on_ring = False
        self.rest = b""
        self._frames = FrameAssembler(_HEADER)
        self._missing = 0  # of a DATA frame that has begun

    @property
    def done(self) -> bool:
        """Nothing follows from the peer."""
        return bool(self.flags & StateFlag.SENDING_DONE)

    def feed(self, data: bytes) -> list[memoryview]:
        """The parts of ``data`` that are bytes of the stream.

        :raises RemoteProtocolError: no frames, or data behind the end. What came before is lost: the stream
            is broken.
        """
        found: list[memoryview] = []
        frames = self._frames
        frames.feed(data)
        while frames.pending and not self.on_ring:
            if self._missing:
                part = frames.take_part(self._missing)
                self._missing -= len(part)
                found.append(part)
                continue
            header = frames.header()
            if header is None:
                break
            kind, length = header[0] >> 24, header[0] & 0xFFFFFF
            self._check(kind, length)
            if kind == Kind.DATA:
                frames.take_header()
                self._missing = length
                continue
            body = frames.take(length)
            if body is None:
                break
            self._control(kind, body)
        if self.on_ring:
            self._behind_the_last_frame()
        return found

    def _check(self, kind: int, length: int) -> None:
        if self.done and kind not in (Kind.END, Kind.NEGOTIATION):  # an answer may cross the end
            raise RemoteProtocolError("frames: more behind the end of the stream")
        if kind == Kind.DATA:
            if not 1 <= length <= MAX_BODY_BYTES:
                raise RemoteProtocolError(f"frames: {length} bytes in one frame")
        elif kind == Kind.NEGOTIATION:
            if not 1 <= length <= MAX_MESSAGE_BYTES:
                raise RemoteProtocolError(f"frames: a message of {length} bytes")
        elif kind not in (Kind.END, Kind.ON_RING) or length != 1:
            raise RemoteProtocolError(f"frames: kind {kind} with {length} bytes is not known")

    def _control(self, kind: int, body: bytes) -> None:
        """A whole frame that is not data has come."""
        if kind == Kind.END:
            self._end(body[0])
        elif kind == Kind.NEGOTIATION:
            self.messages.append(body)
        elif body[0]:
            raise RemoteProtocolError("frames: ON_RING has a value that is not known")
        else:
            self.on_ring = True

    def _behind_the_last_frame(self) -> None:
        while part := self._frames.take_part(self._frames.pending):
            self.rest += part
        if len(self.rest) > MESSAGE_BYTES:
            raise RemoteProtocolError(f"frames: {len(self.rest)} bytes behind the last frame")

    def _end(self, flags: int) -> None:
        known = StateFlag.SENDING_DONE | StateFlag.CLOSED
        if not flags & StateFlag.SENDING_DONE or flags & ~known or not flags & ~self.flags:
            raise RemoteProtocolError(f"frames: an end with flags 0x{flags:02x} cannot be here")
        self.flags |= flags
