"""Sends the messages of a comm behind its back: what the peer's ring has no room for now waits here."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from anyio import WouldBlock

from .frames import begin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiordma import RdmaStream

    from .frames import Frame

__all__ = ["Outbox"]

#: Messages up to this size are sent in one piece, and those up to the second one whose frames are short.
_JOINED_BYTES, _JOINED_SHORT_BYTES, _SHORT_FRAME = 1 << 17, 1 << 25, 1 << 15


class Outbox:
    """What leaves by one stream, in order.

    :param limit: bytes that may wait. :meth:`send` takes a message of any length when fewer wait.
    :param on_failure: called once when the stream has failed; what waits is dropped.
    """

    def __init__(self, stream: RdmaStream, limit: int, on_failure: Callable[[BaseException], None]) -> None:
        self._stream, self._limit, self._on_failure = stream, limit, on_failure
        self._waiting: deque[memoryview] = deque()
        #: bytes in it
        self.nbytes = 0
        self._task: asyncio.Task[None] | None = None
        self._room: asyncio.Event | None = None

    async def send(self, frames: Sequence[Frame]) -> int:
        """Send a message, or keep it to be sent; the number of its bytes. Its memory must not be changed
        before it was sent. Waits only while more than ``limit`` bytes wait already.

        :raises anyio.ClosedResourceError, anyio.BrokenResourceError: of the stream.
        """
        if self.nbytes > self._limit:
            await self._wait_for_room()
        lengths = [frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames]
        head = begin(frames, lengths)
        total = len(head) + sum(lengths)
        if total < _JOINED_BYTES or (total < _JOINED_SHORT_BYTES and total < len(frames) * _SHORT_FRAME):
            self._send(memoryview(b"".join((head, *frames))))
        else:
            self._send(memoryview(head))
            for frame, length in zip(frames, lengths, strict=True):
                if length:
                    self._send(memoryview(frame).cast("B"))
        return total

    def _send(self, piece: memoryview) -> None:
        if self._task is None:
            try:
                placed = self._stream.send_nowait(piece)
            except WouldBlock:
                placed = 0
            if placed == len(piece):
                return
            piece = piece[placed:]
            self._task = asyncio.create_task(self._run(), name="distributed-aiordma: write behind")
        self._waiting.append(piece)
        self.nbytes += len(piece)

    async def _run(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                await self._stream.send(waiting[0])
                self.nbytes -= len(waiting.popleft())
                if self._room is not None and self.nbytes <= self._limit:
                    self._room.set()
        except Exception as exc:
            waiting.clear()
            self.nbytes = 0
            self._on_failure(exc)
        finally:
            self._task = None
            if self._room is not None:
                self._room.set()

    async def _wait_for_room(self) -> None:
        while self.nbytes > self._limit:
            if self._room is None:
                self._room = asyncio.Event()
            self._room.clear()
            await self._room.wait()

    async def flush(self) -> None:
        """Wait until everything was sent, or the stream has failed. Cancelled: sending goes on."""
        task = self._task
        if task is not None:
            await asyncio.wait([task])

    def drop(self) -> None:
        """Send nothing more of what waits."""
        self._waiting.clear()
        self.nbytes = 0
        if self._task is not None:
            self._task.cancel()
