"""What the three framings on TCP have in common: frames whose header announces their length, and greetings.

The frames of streams that fail over to TCP (``frames.py``), datagrams (``record.py``) and message channels
(``channel_frames.py``) have different headers and rules. Cutting them out of a byte stream is the same.
"""

from __future__ import annotations

import struct

from .errors import RemoteProtocolError

#: Pieces that are shorter than this are joined as they come: each that is kept takes some 40 bytes more.
_TINY_BYTES = 1024


class FrameAssembler:
    """Takes a byte stream apart into headers of fixed length and the bodies behind them, wherever it is cut.

    It holds what it was fed and does not judge it: the caller reads a header, refuses one that announces too
    much, and then asks for the body, whole or in the parts in which it comes.

    :param header: format of a header.
    """

    __slots__ = ("_at", "_data", "_header", "_header_bytes", "_later", "pending")

    def __init__(self, header: struct.Struct) -> None:
        self.pending = 0
        """Bytes fed and not taken."""
        self._header = header
        self._header_bytes = header.size
        self._data = b""
        self._at = 0  # of the first byte in _data that was not taken
        # Fed behind _data. Joined to it once what is asked for is whole, so a long body that comes in small
        # pieces is not copied with each of them.
        self._later: list[bytes] = []

    def feed(self, data: bytes) -> None:
        """Bytes have arrived."""
        if not self.pending:
            self._data = data
            self._at = 0
        elif self._later and len(data) < _TINY_BYTES and len(self._later[-1]) < _TINY_BYTES:
            self._later[-1] += data
        else:
            self._later.append(data)
        self.pending += len(data)

    def _has(self, count: int) -> bool:
        """Whether ``count`` bytes are here; if so, they are in one piece."""
        if count > self.pending:
            return False
        if self._later and count > len(self._data) - self._at:
            self._data = b"".join((memoryview(self._data)[self._at :], *self._later))
            self._at = 0
            self._later.clear()
        return True

    def header(self) -> tuple[int, ...] | None:
        """The fields of the next header, without taking it; None while it is not whole."""
        if not self._has(self._header_bytes):
            return None
        return self._header.unpack_from(self._data, self._at)

    def peek(self, size: int) -> memoryview | None:
        """The body behind the next header, without taking it; None while it is not whole."""
        start = self._header_bytes
        if not self._has(start + size):
            return None
        return memoryview(self._data)[self._at + start : self._at + start + size]

    def take(self, size: int) -> bytes | None:
        """Take the next header and its body, and return the body; None while it is not whole."""
        whole = self._header_bytes + size
        if not self._has(whole):
            return None
        start = self._at + self._header_bytes
        self._at += whole
        self.pending -= whole
        return self._data[start : self._at]

    def take_header(self) -> None:
        """Take the header that :meth:`header` has shown. Its body follows with :meth:`take_part`."""
        self._at += self._header_bytes
        self.pending -= self._header_bytes

    def take_part(self, most: int) -> memoryview:
        """Take what is here in one piece, at most ``most`` bytes."""
        if self._at == len(self._data) and self._later:
            self._data = self._later.pop(0)
            self._at = 0
        part = memoryview(self._data)[self._at : self._at + most]
        self._at += len(part)
        self.pending -= len(part)
        return part


class Greeting:
    """The first bytes of an end: a magic number with the version, and what that end accepts.

    :param magic: eight bytes.
    :param fields: format of what follows.
    :param speaks: what an end that greets so speaks, for the error.
    """

    __slots__ = ("_format", "_magic", "_speaks", "size")

    def __init__(self, magic: bytes, fields: str, speaks: str) -> None:
        self._format = struct.Struct(f">{len(magic)}s{fields}")
        self._magic = magic
        self._speaks = speaks
        self.size = self._format.size

    def pack(self, *values: int) -> bytes:
        """The greeting of an end that accepts this."""
        return self._format.pack(self._magic, *values)

    def read(self, data: bytes) -> tuple[int, ...] | None:
        """The fields of a greeting at the front of ``data``; None while it is not whole.

        :raises RemoteProtocolError: the peer speaks something else.
        """
        start = data[: len(self._magic)]
        if not self._magic.startswith(start):
            raise RemoteProtocolError(
                f"the peer does not speak {self._speaks}: its first bytes are {start!r}; "
                "is it a stream, or another program?"
            )
        if len(data) < self.size:
            return None
        return self._format.unpack_from(data)[1:]
