"""Receives the messages of a stream, each frame straight into the buffer that it stays in."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from .buffers import POOL
from .frames import HEAD_BYTES, count_of, cut, layout_of, padding

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiordma import RdmaStream

__all__ = ["Inbox"]

_CHUNK = 65536


class Inbox:
    """What arrives on one stream."""

    def __init__(self, stream: RdmaStream) -> None:
        self._stream = stream
        #: Received, and not taken yet: the beginning of a message, or nothing.
        self._ahead = memoryview(b"")

    async def next(self) -> tuple[list[memoryview], bool]:
        """The frames of the next message, in writable memory, and whether it is quick to deserialise.

        :raises BadMessageError: the peer sent something else.
        :raises anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError, anyio.ClosedResourceError:
            of the stream; also within a message.
        :raises MemoryError: there is no memory for it.
        """
        count, quick = count_of(await self._look(HEAD_BYTES))
        begin = HEAD_BYTES + 8 * count
        words = struct.unpack_from(f"<{count}Q", await self._look(begin), HEAD_BYTES)
        self._ahead = self._ahead[begin:]
        frames: list[memoryview] = []
        for lengths in layout_of(words):
            frames += cut(await self._fill(lengths), lengths)
        return frames, quick

    async def _look(self, nbytes: int) -> memoryview:
        """At least the next ``nbytes`` bytes, which stay."""
        if not len(self._ahead):
            self._ahead = memoryview(await self._stream.receive(max(_CHUNK, nbytes)))
        if len(self._ahead) < nbytes:
            # Not joined with each piece: a long head in small ones would be copied very often.
            ahead = bytearray(self._ahead)
            try:
                while len(ahead) < nbytes:
                    ahead += await self._stream.receive(max(_CHUNK, nbytes - len(ahead)))
            finally:
                self._ahead = memoryview(ahead)
        return self._ahead

    async def _fill(self, lengths: Sequence[int]) -> memoryview:
        """A new buffer with the next frames."""
        free = padding(lengths)
        buffer = POOL.take(free + sum(lengths))[free:]
        if POOL.lent:
            POOL.keep_trimmed()
        taken = min(len(self._ahead), len(buffer))
        buffer[:taken] = self._ahead[:taken]
        self._ahead = self._ahead[taken:]
        if taken < len(buffer):
            await self._stream.receive_exactly_into(buffer[taken:])
        return buffer
