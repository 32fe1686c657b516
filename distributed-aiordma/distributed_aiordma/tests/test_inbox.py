"""Messages that arrive in pieces of any size."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest

from distributed_aiordma.frames import begin
from distributed_aiordma.inbox import Inbox

if TYPE_CHECKING:
    from aiordma import RdmaStream


class Pieces:
    """A stream that has so many bytes at a time."""

    def __init__(self, data: bytes, piece: int) -> None:
        self.data = data
        self.piece = piece
        self.at = 0
        #: Nothing arrives beyond.
        self.until = len(data)
        self.waits = asyncio.Event()

    async def receive(self, max_bytes: int) -> bytes:
        size = min(max_bytes, self.piece, self.until - self.at)
        if not size:
            self.waits.set()
            await asyncio.Event().wait()
        self.at += size
        return self.data[self.at - size : self.at]

    async def receive_exactly_into(self, buffer: Any) -> None:
        buffer[:] = self.data[self.at : self.at + len(buffer)]
        self.at += len(buffer)

    def inbox(self) -> Inbox:
        return Inbox(cast("RdmaStream", self))


def message(frames: list[bytes]) -> bytes:
    return begin(frames, [len(frame) for frame in frames]) + b"".join(frames)


@pytest.mark.parametrize(("count", "piece"), [(200_000, 1448), (1000, 1), (1000, 7), (3, 1 << 20)])
def test_a_message_in_pieces(count: int, piece: int) -> None:
    frames = [b"%d" % number for number in range(count)]

    async def main() -> None:
        inbox = Pieces(message(frames) + message(frames[:2]), piece).inbox()
        received, _ = await inbox.next()
        assert [bytes(frame) for frame in received] == frames
        received, _ = await inbox.next()
        assert [bytes(frame) for frame in received] == frames[:2]

    asyncio.run(main())


def test_what_arrived_before_a_cancellation_is_not_lost() -> None:
    async def main() -> None:
        frames = [b"x"] * 1000
        stream = Pieces(message(frames), 10)
        inbox = stream.inbox()
        stream.until = 2000
        first = asyncio.create_task(inbox.next())
        await stream.waits.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        stream.until = len(stream.data)
        received, _ = await inbox.next()
        assert [bytes(frame) for frame in received] == frames

    asyncio.run(main())
