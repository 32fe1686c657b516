"""Messages in a byte stream: what a connected datagram looks like on a ring and on TCP.

A record is the length of the message (4 bytes, big endian) and the message. Records follow each other without
gaps and run over the end of a ring like any other bytes, so the same bytes travel on both paths. The framing
of the ring is compiled (``pipes/_ring_records.pyx``). This is the framing for TCP, and the definition.

On TCP each end begins with a greeting (:data:`GREETING_BYTES`). So a peer that is not one of ours, or that
wants a stream, is detected before a byte of it can be taken for a message.
"""

from __future__ import annotations

import errno
import struct

from .errors import RemoteProtocolError
from .framing import FrameAssembler, Greeting

_HEADER = struct.Struct(">I")
HEADER_BYTES = _HEADER.size
_GREETING = Greeting(b"aiodgrm\x01", "I", "datagrams")
GREETING_BYTES = _GREETING.size
#: No end may promise less or more than this many bytes in a message.
_LEAST, _MOST = 1024, (1 << 31) - 1


def header(length: int) -> bytes:
    """What precedes a message of ``length`` bytes."""
    return _HEADER.pack(length)


def too_large(length: int, limit: int) -> OSError:
    """The error of sending a message that cannot be sent whole: errno ``EMSGSIZE``, as sockets have it."""
    return OSError(
        errno.EMSGSIZE, f"message too long: {length} bytes, at most {limit} can be sent to this peer at once"
    )


def greeting(max_message_bytes: int) -> bytes:
    """The first bytes of either end on TCP: a magic number with the version, and what it takes at most."""
    return _GREETING.pack(max_message_bytes)


def read_greeting(data: bytes) -> int | None:
    """The largest message that the peer takes; None while its greeting is not whole.

    :raises RemoteProtocolError: these are not the first bytes of an aiordma datagram peer.
    """
    fields = _GREETING.read(data)
    if fields is None:
        return None
    limit = fields[0]
    if not _LEAST <= limit <= _MOST:
        raise RemoteProtocolError(f"the peer announces a limit of {limit} bytes, which cannot be")
    return limit


class RecordReader:
    """Cuts a byte stream into messages. Holds at most one message and what came with its end.

    :param limit: largest message, bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._frames = FrameAssembler(_HEADER)

    def feed(self, data: bytes) -> None:
        """Bytes arrived."""
        self._frames.feed(data)

    @property
    def pending(self) -> int:
        """Bytes fed and not taken."""
        return self._frames.pending

    def _length(self) -> int:
        """Of the next message; -1 while it has not begun."""
        header = self._frames.header()
        if header is None:
            return -1
        length = header[0]
        if length > self.limit:
            raise RemoteProtocolError(
                f"the peer announces a message of {length} bytes; at most {self.limit} were agreed on"
            )
        return length

    def peek(self) -> memoryview | None:
        """The next message, without taking it; None while it is not whole.

        :raises RemoteProtocolError: it is announced as larger than :attr:`limit`.
        """
        length = self._length()
        return None if length < 0 else self._frames.peek(length)

    def take(self) -> bytes | None:
        """The next message; None while it is not whole. Raises as :meth:`peek`."""
        length = self._length()
        return None if length < 0 else self._frames.take(length)
