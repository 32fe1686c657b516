"""Messages of a channel on TCP: frames, so that its end is sent and not guessed.

A frame is its type (1 byte), one of zero, the length of the message's head (2, big-endian; 0: it has none, or
is short), the length of the body (4), and the body, head included. Each end begins with a greeting of 16
bytes: magic (8), kind of the channel (1), 3 bytes of zero, the longest message that it takes (4). A ``CLOSE``
frame ends a connection in order. Its end without one is an error, since a process that dies ends its
connections, too.
"""

from __future__ import annotations

import mmap
import struct
from typing import TYPE_CHECKING

from .errors import RemoteProtocolError
from .framing import FrameAssembler, Greeting
from .message import MAX_HEAD_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

_GREETING = Greeting(b"aiordma\x02", "BxxxI", "message channels")
_HEADER = struct.Struct(">BxHI")
_MESSAGE, _CLOSE = 0xC1, 0xC4

CLOSE_FRAME = _HEADER.pack(_CLOSE, 0, 0)
"""Nothing follows."""
SHORT_BYTES = 16 * 1024
"""Messages up to this size are cut out of what was read. Longer ones are read into memory of their own."""
#: Of more, each page of new memory is taken when it is written to: no length has to be believed.
_LAZY_BYTES = 256 * 1024


def greeting(kind: int, max_message_bytes: int) -> bytes:
    """The first bytes of either end.

    :param kind: what the messages mean (``clc.Kind``).
    """
    return _GREETING.pack(kind, max_message_bytes)


def message_header(size: int, head_bytes: int = 0) -> bytes:
    """What precedes a message of ``size`` bytes, of which the first ``head_bytes`` are its head."""
    return _HEADER.pack(_MESSAGE, head_bytes if size > SHORT_BYTES else 0, size)


def lazy_memory(size: int) -> memoryview:
    """New memory, of which what is large takes pages only as it is written to.

    :raises MemoryError: there is not enough.
    """
    if size < _LAZY_BYTES:
        return memoryview(bytearray(size))
    try:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as exc:
        raise MemoryError(f"no memory for a message of {size} bytes: {exc}") from exc


class ChannelAssembler:
    """Takes apart what the peer sends: its greeting, then its messages, then its end.

    :param kind: kind of the channel; the peer must mean the same.
    :param limit: longest message that this end takes.
    :param memory: gives that of a long message, which is announced by a header alone and may never come: so
        it must cost nothing before it is written to.
    """

    __slots__ = (
        "_filled",
        "_frames",
        "_head",
        "_hello",
        "_kind",
        "_limit",
        "_long",
        "_memory",
        "closed",
        "greeted",
        "peer_limit",
        "place",
        "placed",
    )

    def __init__(self, kind: int, limit: int, memory: Callable[[int], memoryview] = lazy_memory) -> None:
        self.greeted = False
        self.closed = False
        """The peer has closed in order."""
        self.peer_limit = 0
        """Longest message that the peer takes, once it has greeted."""
        self.place: Callable[[bytes, int], memoryview | None] | None = None
        """Asked where the body of a long message goes, given its head and the body's length; None: to memory
        of its own."""
        self.placed = False
        """Whether what :meth:`take` returned last is a head alone, with its body where :attr:`place` said."""
        self._kind = kind
        self._limit = limit
        self._memory = memory
        self._hello = b""
        self._frames = FrameAssembler(_HEADER)
        self._long: memoryview | None = None  # a long message of which _filled bytes have come
        self._head: bytes | None = None  # of that message, if only its body is there
        self._filled = 0

    def feed(self, data: bytes) -> None:
        """Bytes have arrived, which do not belong into :attr:`room`.

        :raises RemoteProtocolError: the peer is not an end of such a channel.
        """
        if self.greeted:
            self._frames.feed(data)
            return
        self._hello += data
        fields = _GREETING.read(self._hello)
        if fields is None:
            return
        kind, self.peer_limit = fields
        if kind != self._kind:
            raise RemoteProtocolError(f"the peer means another kind of channel: {kind}, not {self._kind}")
        self.greeted = True
        self._frames.feed(self._hello[_GREETING.size :])
        self._hello = b""

    def drop(self) -> None:
        """Forget what has come and was not taken."""
        self._frames = FrameAssembler(_HEADER)
        self._long = self._head = None

    def withdraw(self) -> None:
        """Put no more where :attr:`place` said; the rest of that message is lost."""
        if self._long is not None and self._head is not None:
            self._long = self._memory(len(self._long))

    @property
    def room(self) -> memoryview | None:
        """Where the rest of a long message is to be received into; None: feed what comes."""
        return None if self._long is None else self._long[self._filled :]

    def filled(self, count: int) -> None:
        """So many bytes were received into :attr:`room`."""
        self._filled += count

    @property
    def whole(self) -> bool:
        """Whether :meth:`take` would find something: a message, the peer's end, or what it may not send."""
        if self._long is not None:
            return self._filled == len(self._long)
        header = self._frames.header()
        return header is not None and (
            header[0] != _MESSAGE
            or header[2] > self._limit
            or header[2] + _HEADER.size <= self._frames.pending
        )

    def take(self) -> bytes | memoryview | None:
        """The next message; None while it is not whole, and when there is none because the peer has closed.

        :raises RemoteProtocolError: the peer sends what it may not send.
        """
        self.placed = False
        if self._long is not None:
            if self._filled < len(self._long):
                return None
            message, self._long = self._long, None
            if self._head is None:
                return message.toreadonly()
            head, self._head = self._head, None
            self.placed = True
            return head
        header = self._frames.header()
        if header is None:
            return None
        kind, head_bytes, size = header
        if kind != _MESSAGE:
            if kind != _CLOSE or size or head_bytes:
                raise RemoteProtocolError(
                    f"a frame of unknown type 0x{kind:02x} on the TCP connection of a channel"
                )
            self.closed = True
            return None
        if size > self._limit:
            raise RemoteProtocolError(f"a message of {size} bytes announced, {self._limit} at most are taken")
        if head_bytes > MAX_HEAD_BYTES or head_bytes > size:
            raise RemoteProtocolError(f"a head of {head_bytes} bytes announced, in a message of {size}")
        if size <= SHORT_BYTES:
            return self._frames.take(size)
        return self.take() if self._begin_long(head_bytes, size) else None

    def _begin_long(self, head_bytes: int, size: int) -> bool:
        """Find memory for a long message, and take what is here of it. False: not enough of it has come to
        know where it goes."""
        body: memoryview | None = None
        if self.place is not None and 0 < head_bytes < size:
            head = self._frames.peek(head_bytes)
            if head is None:
                return False
            self._head = bytes(head)
            body = self.place(self._head, size - head_bytes)
        self._filled = 0
        self._frames.take_header()
        if body is None:
            self._head = None
            self._long = self._memory(size)
        else:
            self._frames.take_part(head_bytes)
            self._long = body
        while part := self._frames.take_part(len(self._long) - self._filled):
            self._long[self._filled : self._filled + len(part)] = part
            self._filled += len(part)
        return True
