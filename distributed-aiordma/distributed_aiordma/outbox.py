"""Sends messages behind the comm's back: what the peer's ring has no room for now is sent when it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anyio import WouldBlock

from .frames import begin

if TYPE_CHECKING:
    from collections.abc import Sequence

    from aiordma import RdmaStream

    from .frames import Frame

__all__ = ["send_message"]

#: Messages up to this size are sent in one piece, and those up to the second one whose frames are short.
_JOINED_BYTES, _JOINED_SHORT_BYTES, _SHORT_FRAME = 1 << 17, 1 << 25, 1 << 15


async def send_message(stream: RdmaStream, frames: Sequence[Frame], *, quick: bool) -> int:
    """Send a message, or have the stream keep it to be sent; the number of its bytes. Its memory must not be
    changed before it was sent. Waits only while ``stream.send_soon_limit`` bytes wait already.

    :raises anyio.ClosedResourceError, anyio.BrokenResourceError: of the stream.
    """
    lengths = [frame.nbytes if isinstance(frame, memoryview) else len(frame) for frame in frames]
    head = begin(frames, lengths, quick=quick)
    total = len(head) + sum(lengths)
    joined = total < _JOINED_BYTES or (total < _JOINED_SHORT_BYTES and total < len(frames) * _SHORT_FRAME)
    pieces = [b"".join((head, *frames))] if joined else [head, *frames]
    while True:
        try:
            stream.send_soon(pieces)
        except WouldBlock:
            await stream.flush()
        else:
            return total
