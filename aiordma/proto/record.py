"""Messages in a byte stream: what a connected datagram looks like on a ring and on TCP.

A record is the length of the message (4 bytes, big endian) and the message. Records follow each other without
gaps and run over the end of a ring like any other bytes, so the same bytes travel on both paths. The framing
of the ring is compiled (``pipes/_ring_records.pyx``); this is the one for TCP, and the definition.

On TCP each end first says who it is (:data:`GREETING_BYTES`): a peer that is not one of ours, or that wants a
stream, is found out before a byte of it can be taken for a message.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from .errors import RemoteProtocolError

if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

__all__ = [
    "GREETING_BYTES",
    "HEADER_BYTES",
    "RecordReader",
    "greeting",
    "header",
    "read_greeting",
    "too_large",
]

HEADER_BYTES = 4
GREETING_BYTES = 12
_MAGIC = b"aiodgrm\x01"
#: No end may promise less or more than this many bytes in a message.
_LEAST, _MOST = 1024, (1 << 31) - 1


def header(length: int) -> bytes:
    """What precedes a message of ``length`` bytes."""
    return length.to_bytes(HEADER_BYTES)


def too_large(length: int, limit: int) -> OSError:
    """The error of sending a message that cannot be sent whole: errno ``EMSGSIZE``, as sockets have it."""
    return OSError(
        errno.EMSGSIZE, f"message too long: {length} bytes, at most {limit} can be sent to this peer at once"
    )


def greeting(max_message_bytes: int) -> bytes:
    """The first bytes of either end on TCP: a magic number with the version, and what it takes at most."""
    return _MAGIC + max_message_bytes.to_bytes(4)


def read_greeting(data: bytes) -> int:
    """The largest message that the peer takes.

    :raises RemoteProtocolError: these are not the first bytes of an aiordma datagram peer.
    """
    if not _MAGIC.startswith(data[: len(_MAGIC)]):
        raise RemoteProtocolError(
            f"the peer does not speak datagrams: its first bytes are {data[: len(_MAGIC)]!r}; "
            "is it a stream, or another program?"
        )
    if len(data) != GREETING_BYTES:
        raise RemoteProtocolError(f"the peer ended inside its greeting, after {len(data)} bytes")
    limit = int.from_bytes(data[len(_MAGIC) :])
    if not _LEAST <= limit <= _MOST:
        raise RemoteProtocolError(f"the peer says it takes messages of up to {limit} bytes, which cannot be")
    return limit


class RecordReader:
    """Cuts a byte stream into messages. Holds at most one message and what came with its end.

    :param limit: largest message, bytes.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._data = b""
        self._at = 0

    def feed(self, data: bytes) -> None:
        """Bytes arrived."""
        self._data = self._data[self._at :] + data if self._at < len(self._data) else data
        self._at = 0

    @property
    def pending(self) -> int:
        """Bytes fed and not taken."""
        return len(self._data) - self._at

    def peek(self) -> memoryview | None:
        """The next message, without taking it; None while it is not whole.

        :raises RemoteProtocolError: it is announced as larger than :attr:`limit`.
        """
        start = self._at + HEADER_BYTES
        if len(self._data) < start:
            return None
        length = int.from_bytes(self._data[self._at : start])
        if length > self.limit:
            raise RemoteProtocolError(
                f"the peer announces a message of {length} bytes; at most {self.limit} were agreed on"
            )
        if len(self._data) < start + length:
            return None
        return memoryview(self._data)[start : start + length]

    def take(self) -> bytes | None:
        """The next message; None while it is not whole. Raises as :meth:`peek`."""
        view = self.peek()
        if view is None:
            return None
        self._at += HEADER_BYTES + len(view)
        return bytes(view)
